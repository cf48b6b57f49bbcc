use std::time::{Duration, Instant};

use insta::assert_snapshot;
use toolbus_core::failure::Cause;
use toolbus_core::tool::ToolOutput;
use toolbus_testing::patience::{at_most, eventually};

use super::{How, call, sent, session, start, stateless, text};
use crate::client::RequestError;

#[tokio::test]
async fn calls_fail_at_once_when_the_server_goes_away() {
    let how = How::default();
    let (connection, mut script) = session(how.clone()).await;
    let calls: Vec<_> = (0..20).map(|_| start(&connection, call())).collect();
    for _ in 0..20 {
        script.expect("tools/call").await;
    }
    how.failure.set("the server was ended by signal 9");
    let began = Instant::now();
    drop(script);
    for called in calls {
        let error = called.await.unwrap().unwrap_err();
        assert!(error.is_lost);
        assert_eq!(error.failure.cause, Cause::ConnectionLost);
        assert_eq!(error.failure.detail.as_deref(), Some("the server was ended by signal 9"));
        assert_eq!(error.failure.message, "The MCP server of tool 'echo' went away before it answered.");
    }
    assert!(began.elapsed() < at_most(Duration::from_secs(1)), "{:?}", began.elapsed());
    assert_eq!(connection.closed().await, "the server was ended by signal 9");
    let session = "session scripted 2025-06-18 connection_lost";
    eventually("the session is reported", async || how.seen.lines().contains(&session.to_owned()).then_some(())).await;

    let late = connection.call("echo", &call()).await.unwrap_err();
    assert!(late.is_lost);
    let Err(RequestError::Failed(text)) = connection.ping().await else { panic!("the ping succeeded") };
    assert_snapshot!(text, @"the server was ended by signal 9; `ping` was not answered");
}

#[tokio::test]
async fn a_response_before_the_end_counts() {
    let (connection, mut script) = session(How::default()).await;
    let (called, request) = sent(&connection, &mut script, call()).await;
    script.respond(&request, text("last words"));
    drop(script);
    assert_eq!(called.await.unwrap().unwrap(), ToolOutput::text("last words"));
}

#[tokio::test]
async fn a_connection_that_is_closed_fails_its_calls_and_ends_in_order() {
    let how = How::default();
    let (connection, mut script, _) = stateless(how.clone()).await;
    let (called, _) = sent(&connection, &mut script, call()).await;
    connection.close().await;
    connection.close().await;
    assert!(script.sender.is_closed(), "the transport was closed");
    assert!(called.await.unwrap().unwrap_err().is_lost);
    assert_eq!(connection.closed().await, "the connection was closed");
    let session = "session scripted 2026-07-28 -";
    eventually("the session is reported", async || how.seen.lines().contains(&session.to_owned()).then_some(())).await;
}

#[tokio::test]
async fn nothing_is_left_of_a_connection_that_is_dropped() {
    let (connection, script, _) = stateless(How::default()).await;
    drop(connection);
    eventually("the transport is dropped", async || script.sender.is_closed().then_some(())).await;
}
