//! End of the server, and of the requests under way.

use tokio::time::Instant;

use super::fixture::{Fixture, INITIALIZE, INITIALIZED, alone, call, plain};
use crate::stdio::StdioEnd;

#[tokio::test(start_paused = true)]
async fn at_the_end_of_the_input_requests_finish_and_the_session_ends() {
    let mut world = Fixture::begun().await;
    world.send(INITIALIZED).await;
    world.send(&call(1, "second")).await;
    // The last line has no end.
    world.write(plain(2, "ping").as_bytes()).await;
    world.close_input();
    let (rest, end, log) = world.ended().await;
    assert_eq!(end, StdioEnd::Input);
    assert_eq!(log, ["second: done", "end of a session of ana"]);
    assert_eq!(rest.len(), 2, "{rest:?}");
}

#[tokio::test(start_paused = true)]
async fn slow_calls_are_cancelled_after_the_end_of_the_input() {
    let mut world = Fixture::begun().await;
    world.send(&call(1, "waits")).await;
    world.send(&call(2, "echo")).await;
    world.close_input();
    let began = Instant::now();
    let (rest, end, log) = world.ended().await;
    assert_eq!((rest.len(), end), (1, StdioEnd::Input), "{rest:?}");
    assert_eq!(log, ["end of a session of ana", "waits: cancelled"]);
    assert!(began.elapsed().as_secs() <= 6, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn requests_written_in_one_go_get_all_responses() {
    let mut world = Fixture::new();
    let lines = [INITIALIZE.to_owned(), INITIALIZED.to_owned(), plain(1, "tools/list"), call(2, "echo")];
    world.write(lines.join("\n").as_bytes()).await;
    world.close_input();
    let (rest, ..) = world.ended().await;
    assert_eq!(rest.len(), 3, "{rest:?}");
}

#[tokio::test(start_paused = true)]
async fn an_empty_input_begins_no_session() {
    let mut world = Fixture::new();
    world.close_input();
    assert_eq!(world.ended().await, (Vec::new(), StdioEnd::Input, Vec::new()));
}

#[tokio::test(start_paused = true)]
async fn a_closed_output_cancels_every_call() {
    let mut world = Fixture::begun().await;
    world.send(&call(1, "waits")).await;
    world.close_output();
    world.send(&plain(2, "ping")).await;
    let (_, end, log) = world.ended().await;
    assert_eq!(end, StdioEnd::Output);
    assert_eq!(log, ["end of a session of ana", "waits: cancelled"]);
}

#[tokio::test(start_paused = true)]
async fn a_closing_server_cancels_calls_and_completes_subscriptions() {
    let mut world = Fixture::begun().await;
    world.send(&call(1, "waits")).await;
    world.request(&alone(2, "subscriptions/listen", r#""notifications":{"toolsListChanged":true},"#)).await;
    world.closing.cancel();
    let (rest, end, mut log) = world.ended().await;
    assert_eq!(end, StdioEnd::Closed);
    insta::assert_snapshot!(rest.join("\n"), @r#"{"jsonrpc":"2.0","id":2,"result":{"resultType":"complete","_meta":{"io.modelcontextprotocol/subscriptionId":2,"io.modelcontextprotocol/serverInfo":{"name":"toolbus","title":"Toolbus","version":"1"}}}}"#);
    log.sort();
    assert_eq!(log, ["end of a session of ana", "end of a session of ana", "waits: cancelled"]);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_read_delays_the_end_only_briefly() {
    let mut world = Fixture::with_pipe(256);
    world.send(INITIALIZE).await;
    for number in 1..=40 {
        world.send(&call(number, "large")).await;
    }
    world.closing.cancel();
    let began = Instant::now();
    // The pipe stays open, and unread.
    let end = world.served_to_its_end().await;
    assert_eq!(end, StdioEnd::Closed);
    assert!(began.elapsed().as_secs() <= 3, "{:?}", began.elapsed());
}
