use std::time::Instant;

use toolbus_core::failure::Cause;

use super::fixture::{Fixture, is_running, kill, stop};
use super::*;
use crate::status::PhaseName;

/// Far below the time of the call, and far above what a busy machine needs to report that its server is gone.
const AT_ONCE: Duration = Duration::from_secs(20);

#[tokio::test]
async fn a_server_that_is_killed_serves_again_and_its_calls_fail_at_once() {
    let world = Fixture::run(&[("a", "well"), ("b", "well")]).await;
    let pid = world.call("pid").await.unwrap();
    let waiting = tokio::spawn(world.begin("wait", Instant::now() + Duration::from_secs(60)));
    eventually("a call in flight", async || (world.status("a").in_flight == 1).then_some(())).await;
    eventually("the call", async || world.noted("a", "calls").contains(&"wait".to_owned()).then_some(())).await;
    let killed = Instant::now();
    kill(&pid);
    let failure = waiting.await.unwrap().unwrap_err();
    let (failed_after, cause) = (killed.elapsed(), failure.cause);
    let next = world.call("pid").await.unwrap();
    println!("failed after {failed_after:?}, served again after {:?}", killed.elapsed());
    assert_eq!(cause, Cause::ConnectionLost);
    assert!(failed_after < AT_ONCE, "{failed_after:?}");
    assert_ne!(next, pid);
    assert_eq!((world.status("a").restarts, world.status("b").restarts), (1, 0));
    assert!(world.status("a").last_error.is_some_and(|error| error.contains("signal 9")));
    world.end().await;
}

#[tokio::test]
async fn a_call_that_only_reads_is_repeated_once_and_no_other_is() {
    let world = Fixture::run(&[("a", "well")]).await;
    let pid = world.call("reads_and_dies_once").await.unwrap();
    assert_eq!(world.noted("a", "pids").last(), Some(&pid));
    assert_eq!(world.noted("a", "calls"), ["reads_and_dies_once"; 2]);
    world.remove("a.calls");
    let failure = world.call("die_once").await.unwrap_err();
    insta::assert_snapshot!(failure.message, @"The MCP server of tool 'die_once' went away before it answered.");
    assert_eq!(world.noted("a", "calls"), ["die_once"]);
    world.end().await;
}

#[tokio::test]
async fn a_server_without_ping_responses_is_restarted() {
    let world = Fixture::run(&[("a", "well")]).await;
    let pid = world.call("pid").await.unwrap();
    stop(&pid);
    eventually("another process", async || (world.noted("a", "pids").len() > 1).then_some(())).await;
    assert!(!is_running(&pid), "two processes of one server");
    let status = world.phase("a", PhaseName::Ready).await;
    assert_eq!(status.last_error.as_deref(), Some("the server did not answer 2 pings"));
    world.end().await;
}

#[tokio::test]
async fn a_busy_server_may_leave_pings_without_a_response() {
    let world = Fixture::run(&[("a", "well"), ("b", "well")]).await;
    let waiting = tokio::spawn(world.begin("wait", Instant::now() + Duration::from_secs(60)));
    eventually("the call", async || world.noted("a", "calls").pop()).await;
    // The other one is declared dead in the same time.
    stop(&world.noted("b", "pids").pop().unwrap());
    eventually("another process", async || (world.noted("b", "pids").len() > 1).then_some(())).await;
    world.touch("go");
    assert!(waiting.await.unwrap().is_ok());
    assert_eq!(world.noted("a", "pids").len(), 1);
    world.end().await;
}

#[tokio::test]
async fn a_silent_server_is_restarted_even_while_calls_wait() {
    let world = Fixture::run(&[("a", "well")]).await;
    let mut calls = tokio::task::JoinSet::new();
    eventually("another process", async || {
        calls.spawn(world.begin("silence", Instant::now() + Duration::from_millis(1500)));
        (world.noted("a", "pids").len() > 1).then_some(())
    })
    .await;
    let status = world.status("a");
    assert_eq!(status.last_error.as_deref(), Some("the server did not answer 2 pings"));
    calls.shutdown().await;
    world.end().await;
}

#[tokio::test]
async fn a_shutdown_ends_a_server_that_does_not_want_to_end() {
    let world = Fixture::run(&[("a", "stays"), ("b", "well")]).await;
    stop(&world.noted("b", "pids").pop().unwrap());
    world.end().await;
}
