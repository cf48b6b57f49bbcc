//! End of the server, and what becomes of what is under way.

use tokio::time::Instant;

use super::fixture::{Fixture, INITIALIZE, INITIALIZED, alone, call, plain};
use crate::stdio::StdioEnd;

#[tokio::test(start_paused = true)]
async fn at_the_end_of_the_input_what_is_under_way_is_answered_and_the_session_ends() {
    let mut world = Fixture::begun().await;
    world.say(INITIALIZED).await;
    world.say(&call(1, "second")).await;
    // The last line has no end.
    world.write(plain(2, "ping").as_bytes()).await;
    world.close_input();
    let (rest, end, log) = world.ended().await;
    assert_eq!(end, StdioEnd::Input);
    assert_eq!(log, ["second: done", "end of a session of ana"]);
    assert_eq!(rest.len(), 2, "{rest:?}");
}

#[tokio::test(start_paused = true)]
async fn what_takes_too_long_after_the_end_of_the_input_is_cancelled() {
    let mut world = Fixture::begun().await;
    world.say(&call(1, "waits")).await;
    world.say(&call(2, "echo")).await;
    world.close_input();
    let began = Instant::now();
    let (rest, end, log) = world.ended().await;
    assert_eq!((rest.len(), end), (1, StdioEnd::Input), "{rest:?}");
    assert_eq!(log, ["end of a session of ana", "waits: cancelled"]);
    assert!(began.elapsed().as_secs() <= 6, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn all_that_is_written_in_one_go_is_answered() {
    let mut world = Fixture::new();
    let lines = [INITIALIZE.to_owned(), INITIALIZED.to_owned(), plain(1, "tools/list"), call(2, "echo")];
    world.write(lines.join("\n").as_bytes()).await;
    world.close_input();
    let (rest, ..) = world.ended().await;
    assert_eq!(rest.len(), 3, "{rest:?}");
}

#[tokio::test(start_paused = true)]
async fn without_a_word_there_is_nothing_to_end() {
    let mut world = Fixture::new();
    world.close_input();
    assert_eq!(world.ended().await, (Vec::new(), StdioEnd::Input, Vec::new()));
}

#[tokio::test(start_paused = true)]
async fn when_nobody_reads_any_more_everything_is_cancelled() {
    let mut world = Fixture::begun().await;
    world.say(&call(1, "waits")).await;
    world.close_output();
    world.say(&plain(2, "ping")).await;
    let (_, end, log) = world.ended().await;
    assert_eq!(end, StdioEnd::Output);
    assert_eq!(log, ["end of a session of ana", "waits: cancelled"]);
}

#[tokio::test(start_paused = true)]
async fn when_the_server_closes_calls_are_cancelled_and_those_who_listen_are_told() {
    let mut world = Fixture::begun().await;
    world.say(&call(1, "waits")).await;
    world.ask(&alone(2, "subscriptions/listen", r#""notifications":{"toolsListChanged":true},"#)).await;
    world.closing.cancel();
    let (rest, end, mut log) = world.ended().await;
    assert_eq!(end, StdioEnd::Closed);
    insta::assert_snapshot!(rest.join("\n"), @r#"{"jsonrpc":"2.0","id":2,"result":{"resultType":"complete","_meta":{"io.modelcontextprotocol/subscriptionId":2,"io.modelcontextprotocol/serverInfo":{"name":"toolbus","title":"Toolbus","version":"1"}}}}"#);
    log.sort();
    assert_eq!(log, ["end of a session of ana", "end of a session of ana", "waits: cancelled"]);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_read_holds_the_end_up_for_a_moment_only() {
    let mut world = Fixture::with_pipe(256);
    world.say(INITIALIZE).await;
    for number in 1..=40 {
        world.say(&call(number, "large")).await;
    }
    world.closing.cancel();
    let began = Instant::now();
    // The pipe stays open, and nobody reads it.
    let end = world.served_to_its_end().await;
    assert_eq!(end, StdioEnd::Closed);
    assert!(began.elapsed().as_secs() <= 3, "{:?}", began.elapsed());
}
