use std::sync::Arc;
use std::time::{Duration, Instant};

use insta::{assert_json_snapshot, assert_snapshot};
use serde_json::{Value, json};
use toolbus_core::failure::Cause;
use toolbus_core::progress::ProgressSink;
use toolbus_core::tool::{ToolCall, ToolOutput};
use toolbus_protocol::TraceContext;

use super::{How, Script, call, sent, session, stateless, text};
use crate::client::CallError;

/// Returns the outcome of a call whose response is `response`, with the id set.
async fn outcome_of(mut response: Value) -> Result<ToolOutput, CallError> {
    let (connection, mut script) = session(How::default()).await;
    let (called, request) = sent(&connection, &mut script, call()).await;
    response["jsonrpc"] = "2.0".into();
    response["id"] = request["id"].clone();
    script.send(response);
    called.await.unwrap()
}

#[tokio::test]
async fn a_call_carries_its_arguments_and_nothing_else() {
    let how = How::default();
    let (connection, mut script) = session(how.clone()).await;
    let (called, request) = sent(&connection, &mut script, call()).await;
    assert!(connection.is_busy());
    assert_json_snapshot!(request, @r#"
    {
      "id": 1,
      "jsonrpc": "2.0",
      "method": "tools/call",
      "params": {
        "arguments": {
          "text": "hi"
        },
        "name": "echo"
      }
    }
    "#);
    script.respond(&request, text("hi"));
    assert_eq!(called.await.unwrap().unwrap(), ToolOutput::text("hi"));
    assert!(!connection.is_busy());
    assert!(connection.last_latency().is_some());
    assert_eq!(how.seen.lines().last().unwrap(), "tools/call echo scripted 2025-06-18 -");
}

#[tokio::test]
async fn a_stateless_call_names_the_client() {
    let (connection, mut script, _) = stateless(How::default()).await;
    let (called, request) = sent(&connection, &mut script, call()).await;
    assert_json_snapshot!(request["params"]["_meta"], @r#"
    {
      "io.modelcontextprotocol/clientCapabilities": {},
      "io.modelcontextprotocol/clientInfo": {
        "name": "toolbus",
        "version": "0.1.0"
      },
      "io.modelcontextprotocol/protocolVersion": "2026-07-28"
    }
    "#);
    let mut result = text("hi");
    result["resultType"] = "complete".into();
    script.respond(&request, result);
    assert_eq!(called.await.unwrap().unwrap(), ToolOutput::text("hi"));
}

#[tokio::test]
async fn the_trace_is_passed_on_in_the_metadata() {
    let (connection, mut script) = session(How::default()).await;
    let trace = TraceContext::parse("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", Some("a=b"));
    let (_called, request) = sent(&connection, &mut script, ToolCall { trace, ..call() }).await;
    assert_json_snapshot!(request["params"]["_meta"], @r#"
    {
      "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
      "tracestate": "a=b"
    }
    "#);
}

#[tokio::test]
async fn progress_is_passed_to_the_caller() {
    let (connection, mut script) = session(How::default()).await;
    let (sink, mut reports) = ProgressSink::new();
    let (called, request) = sent(&connection, &mut script, ToolCall { progress: Some(sink), ..call() }).await;
    let token = &request["params"]["_meta"]["progressToken"];
    assert!(token.is_number(), "{request}");
    script.notify("notifications/progress", json!({ "progressToken": 4242, "progress": 9 }));
    script.notify(
        "notifications/progress",
        json!({ "progressToken": token, "progress": 1, "total": 2, "message": "half" }),
    );
    let report = reports.recv().await.unwrap();
    assert_eq!((report.progress, report.total, report.message.as_deref()), (1.0, Some(2.0), Some("half")));
    script.respond(&request, text("done"));
    called.await.unwrap().unwrap();
    assert!(reports.recv().await.is_none(), "nothing is kept of a call that is over");
}

async fn expect_cancellation(script: &mut Script, request: &Value) {
    let notification = script.expect("notifications/cancelled").await;
    assert_eq!(notification["params"]["requestId"], request["id"]);
}

#[tokio::test]
async fn a_cancelled_call_is_cancelled_at_the_server() {
    let how = How::default();
    let (connection, mut script) = session(how.clone()).await;
    let cancelled = call();
    let token = cancelled.cancelled.clone();
    let (called, request) = sent(&connection, &mut script, cancelled).await;
    token.cancel();
    let error = called.await.unwrap().unwrap_err();
    assert_eq!((error.failure.cause, error.is_lost), (Cause::Cancelled, false));
    expect_cancellation(&mut script, &request).await;
    assert_eq!(how.seen.lines().last().unwrap(), "tools/call echo scripted 2025-06-18 cancelled");
}

#[tokio::test]
async fn a_call_that_is_dropped_is_cancelled_at_the_server() {
    let how = How::default();
    let (connection, mut script) = session(how.clone()).await;
    let (called, request) = sent(&connection, &mut script, call()).await;
    called.abort();
    expect_cancellation(&mut script, &request).await;
    assert_eq!(how.seen.lines().last().unwrap(), "tools/call echo scripted 2025-06-18 cancelled");
    assert!(!connection.is_busy());
}

#[tokio::test(start_paused = true)]
async fn a_passed_deadline_ends_the_call_and_cancels_it_at_the_server() {
    let how = How::default();
    let (connection, mut script) = session(how.clone()).await;
    let hasty = ToolCall { deadline: Instant::now() + Duration::from_secs(5), ..call() };
    let (late, request) = sent(&connection, &mut script, hasty).await;
    let error = late.await.unwrap().unwrap_err();
    assert_eq!((error.failure.cause, error.is_lost), (Cause::DeadlineExceeded, false));
    assert!(error.failure.message.starts_with("Tool 'echo' did not answer within "), "{}", error.failure.message);
    expect_cancellation(&mut script, &request).await;
    assert_eq!(how.seen.lines().last().unwrap(), "tools/call echo scripted 2025-06-18 timeout");
    script.respond(&request, text("late"));
    let (next, request) = sent(&connection, &mut script, call()).await;
    script.respond(&request, text("next"));
    assert_eq!(next.await.unwrap().unwrap(), ToolOutput::text("next"));
}

#[tokio::test]
async fn an_error_result_and_an_empty_result_are_results() {
    let failed = json!({ "content": [{ "type": "text", "text": "no" }], "isError": true });
    for (result, output) in [(failed, ToolOutput::error("no")), (json!({}), ToolOutput::default())] {
        assert_eq!(outcome_of(json!({ "result": result })).await.unwrap(), output);
    }
}

#[tokio::test]
async fn a_response_without_a_result_becomes_a_failure_with_a_text() {
    let responses = [
        json!({ "error": { "code": -32602, "message": "Unknown tool: echo" } }),
        json!({ "error": { "code": -32603, "message": "disk\u{1b}[2J full" } }),
        json!({ "error": { "code": -1, "message": "x".repeat(5_000) } }),
        json!({ "result": { "resultType": "input_required", "inputRequests": {} } }),
        json!({ "result": { "resultType": "task", "taskId": "t1", "status": "working", "ttlMs": null,
            "createdAt": "2026-01-01T00:00:00Z", "lastUpdatedAt": "2026-01-01T00:00:00Z" } }),
        json!({ "result": { "tools": [] } }),
        json!({ "result": [1, 2] }),
    ];
    let mut texts = Vec::new();
    for response in responses {
        let CallError { failure, is_lost } = outcome_of(response).await.unwrap_err();
        assert!(!is_lost);
        let message: String = failure.message.chars().take(100).collect();
        assert!(failure.message.len() < 2_100);
        texts.push(format!("{:?}: {message} [{}]", failure.cause, failure.detail.unwrap_or_default()));
    }
    assert_snapshot!(texts.join("\n"), @r"
    InvalidArguments: Tool 'echo' refused the call: Unknown tool: echo []
    Failed: Tool 'echo' failed: disk\u{1b}[2J full [JSON-RPC error -32603]
    Failed: Tool 'echo' failed: xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx [JSON-RPC error -1]
    Failed: Tool 'echo' needs input from a person, which this bridge does not relay. []
    Failed: Tool 'echo' runs as a task that is asked for its result later, which this bridge does not do. []
    InvalidResult: Tool 'echo' answered with something that is not the result of a call. []
    InvalidResult: Tool 'echo' answered with something that is not the result of a call. []
    ");
}

#[tokio::test]
async fn a_ping_accepts_any_response() {
    let (connection, mut script) = session(How::default()).await;
    let pinging = Arc::clone(&connection);
    let pinged = tokio::spawn(async move { pinging.ping().await });
    let request = script.expect("ping").await;
    script.refuse(&request, -32601, "Method not found");
    pinged.await.unwrap().unwrap();

    let (connection, mut script, _) = stateless(How::default()).await;
    let pinged = tokio::spawn(async move { connection.ping().await });
    let request = script.expect("server/discover").await;
    script.respond(&request, super::discovered());
    pinged.await.unwrap().unwrap();
}
