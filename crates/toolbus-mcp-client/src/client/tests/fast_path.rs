//! Calls beside rmcp.

use std::sync::Arc;
use std::time::Duration;

use insta::assert_json_snapshot;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _};
use toolbus_core::failure::Cause;
use toolbus_core::progress::ProgressSink;
use toolbus_core::tool::{ToolCall, ToolOutput};
use toolbus_protocol::TraceContext;

use super::{How, call, discovered, initialized, open, start, text};
use crate::client::{Connection, SessionMode};
use crate::transport::stdio::tests::{Server, connect as pipes};

impl Server {
    /// The next message, which is of `method`.
    async fn expect(&mut self, method: &str) -> Value {
        let mut line = String::new();
        self.input.read_line(&mut line).await.unwrap();
        let message: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(message["method"], method, "{message}");
        message
    }

    async fn send(&mut self, message: Value) {
        self.output.write_all(format!("{message}\n").as_bytes()).await.unwrap();
    }

    async fn respond(&mut self, id: &Value, result: Value) {
        self.send(json!({ "jsonrpc": "2.0", "id": id, "result": result })).await;
    }
}

/// A connection over pipes, with calls beside rmcp.
async fn connect(session_mode: SessionMode) -> (Arc<Connection>, Server) {
    let (transport, mut server) = pipes();
    let how = How { session_mode: Some(session_mode), fast_path: Some(transport.fast_path()), ..How::default() };
    let opened = open(transport, how);
    let (method, result, next) = match session_mode {
        SessionMode::Sessions => ("initialize", initialized(), "notifications/initialized"),
        SessionMode::Stateless => ("server/discover", discovered(), "subscriptions/listen"),
    };
    let request = server.expect(method).await;
    server.respond(&request["id"], result).await;
    let connection = opened.await.unwrap().unwrap();
    server.expect(next).await;
    (connection, server)
}

#[tokio::test]
async fn a_call_has_an_id_that_the_sdk_has_not() {
    let (connection, mut server) = connect(SessionMode::Sessions).await;
    let called = start(&connection, call());
    let request = server.expect("tools/call").await;
    assert_json_snapshot!(request, @r#"
    {
      "id": 1073741824,
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
    server.respond(&request["id"], text("hi")).await;
    assert_eq!(called.await.unwrap().unwrap(), ToolOutput::text("hi"));
}

#[tokio::test]
async fn a_stateless_call_names_the_client_and_the_trace() {
    let (connection, mut server) = connect(SessionMode::Stateless).await;
    let trace = TraceContext::parse("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", Some("a=b"));
    let called = start(&connection, ToolCall { trace, ..call() });
    let request = server.expect("tools/call").await;
    assert_json_snapshot!(request["params"]["_meta"], @r#"
    {
      "io.modelcontextprotocol/clientCapabilities": {},
      "io.modelcontextprotocol/clientInfo": {
        "name": "toolbus",
        "version": "0.1.0"
      },
      "io.modelcontextprotocol/protocolVersion": "2026-07-28",
      "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
      "tracestate": "a=b"
    }
    "#);
    server.respond(&request["id"], text("hi")).await;
    called.await.unwrap().unwrap();
}

#[tokio::test]
async fn responses_find_their_calls_in_any_order_also_by_ids_as_strings() {
    let (connection, mut server) = connect(SessionMode::Sessions).await;
    let (first, second) = (start(&connection, call()), start(&connection, call()));
    let (of_first, of_second) = (server.expect("tools/call").await, server.expect("tools/call").await);
    server.respond(&json!(of_second["id"].to_string()), text("second")).await;
    server.send(json!({ "jsonrpc": "2.0", "id": of_first["id"], "error": { "code": -32602, "message": "no" } })).await;
    assert_eq!(second.await.unwrap().unwrap(), ToolOutput::text("second"));
    assert_eq!(first.await.unwrap().unwrap_err().failure.cause, Cause::InvalidArguments);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_given_up_is_cancelled_at_the_server_and_its_late_response_dropped() {
    let (connection, mut server) = connect(SessionMode::Sessions).await;
    let dropped = start(&connection, call());
    let late = start(&connection, ToolCall { deadline: std::time::Instant::now() + Duration::from_secs(5), ..call() });
    let requests = [server.expect("tools/call").await, server.expect("tools/call").await];
    dropped.abort();
    assert_eq!(late.await.unwrap().unwrap_err().failure.cause, Cause::DeadlineExceeded);
    let mut cancellations =
        [server.expect("notifications/cancelled").await, server.expect("notifications/cancelled").await];
    cancellations.sort_by_key(|cancellation| cancellation["params"]["requestId"].as_i64());
    for (cancellation, request) in cancellations.iter().zip(&requests) {
        assert_eq!(cancellation["params"]["requestId"], request["id"]);
        assert_eq!(cancellation["params"]["reason"], "the caller no longer waits for the response");
        server.respond(&request["id"], text("late")).await;
    }
    let next = start(&connection, call());
    let request = server.expect("tools/call").await;
    server.respond(&request["id"], text("next")).await;
    assert_eq!(next.await.unwrap().unwrap(), ToolOutput::text("next"));
}

#[tokio::test]
async fn a_finished_call_is_not_cancelled() {
    let (connection, mut server) = connect(SessionMode::Sessions).await;
    for _ in 0..2 {
        let called = start(&connection, call());
        let request = server.expect("tools/call").await;
        server.respond(&request["id"], text("hi")).await;
        called.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn calls_fail_at_once_when_the_connection_ends() {
    let (connection, mut server) = connect(SessionMode::Sessions).await;
    let called = start(&connection, call());
    server.expect("tools/call").await;
    drop(server.output);
    assert!(called.await.unwrap().unwrap_err().is_lost);

    let (connection, mut server) = connect(SessionMode::Sessions).await;
    let called = start(&connection, call());
    server.expect("tools/call").await;
    server.closing.cancel();
    assert!(called.await.unwrap().unwrap_err().is_lost);
    assert!(connection.call("echo", &call()).await.unwrap_err().is_lost, "nor is another one sent");
}

#[tokio::test]
async fn a_call_with_progress_goes_through_the_sdk() {
    let (connection, mut server) = connect(SessionMode::Sessions).await;
    let (sink, mut reports) = ProgressSink::new();
    let called = start(&connection, ToolCall { progress: Some(sink), ..call() });
    let request = server.expect("tools/call").await;
    let token = &request["params"]["_meta"]["progressToken"];
    let report = json!({ "progressToken": token, "progress": 1 });
    server.send(json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": report })).await;
    server.respond(&request["id"], text("done")).await;
    called.await.unwrap().unwrap();
    assert_eq!(reports.recv().await.unwrap().progress, 1.0);
}
