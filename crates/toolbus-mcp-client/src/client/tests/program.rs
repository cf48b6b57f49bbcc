//! A server that is a program, over its standard input and output.

use std::process::Stdio;

use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use toolbus_core::Clock;
use toolbus_core::progress::ProgressSink;
use toolbus_core::tool::{ToolCall, ToolOutput};

use super::{How, call, open};
use crate::client::{RequestError, SessionMode};
use crate::process::{Exit, Exited};
use crate::transport::LargeMessages;
use crate::transport::stdio::StdioTransport;

/// Reads lines of JSON as simple servers do. With `strict` it ends when the first of them is not `initialize`.
const SERVER: &str = r#"
import json, sys

def say(message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()

is_initialized = False
for line in sys.stdin:
    request = json.loads(line)
    method, params = request.get("method"), request.get("params", {})
    if "strict" in sys.argv and not is_initialized and method != "initialize":
        sys.exit(3)
    is_initialized = True
    if method == "initialize":
        say({"id": request["id"], "result": {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "program", "version": "1"}}})
    elif method == "tools/list":
        say({"id": request["id"], "result": {"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]}})
    elif method == "tools/call":
        token = params.get("_meta", {}).get("progressToken")
        if token is not None:
            say({"method": "notifications/progress", "params": {"progressToken": token, "progress": 0.5}})
        if params["name"] == "die":
            sys.exit(4)
        text = params["arguments"]["text"]
        say({"id": request["id"], "result": {"content": [{"type": "text", "text": text}]}})
    elif "id" in request:
        say({"id": request["id"], "error": {"code": -32601, "message": "Method not found"}})
"#;

/// A program that runs until it is dropped.
struct Program {
    _child: Child,
    /// Keeps the exit unknown.
    _exit: watch::Sender<Option<Exit>>,
}

fn start(mode: &str) -> (StdioTransport, Program) {
    let mut command = Command::new("python3");
    command.args(["-c", SERVER, mode]).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().unwrap();
    let (from, to) = (child.stdout.take().unwrap(), child.stdin.take().unwrap());
    let (exit_sender, exit) = watch::channel(None);
    let closing = CancellationToken::new();
    let transport = StdioTransport::new(from, to, closing, Exited::new(exit), LargeMessages::default(), Clock::SYSTEM);
    (transport, Program { _child: child, _exit: exit_sender })
}

#[tokio::test]
async fn a_program_serves_until_it_ends() {
    let (transport, _program) = start("lenient");
    let how = How { fast_path: Some(transport.fast_path()), ..How::default() };
    let connection = open(transport, how).await.unwrap().unwrap();
    assert_eq!(connection.session_mode(), SessionMode::Sessions);
    assert_eq!(connection.server_info().name.as_deref(), Some("program"));
    assert_eq!(connection.list_tools().await.unwrap().tools.len(), 1);
    let (sink, mut reports) = ProgressSink::new();
    let output = connection.call("echo", &ToolCall { progress: Some(sink), ..call() }).await.unwrap();
    assert_eq!(output, ToolOutput::text("hi"));
    assert_eq!(reports.recv().await.unwrap().progress, 0.5);
    assert_eq!(connection.call("echo", &call()).await.unwrap(), ToolOutput::text("hi"));
    connection.ping().await.unwrap();
    assert!(connection.call("die", &call()).await.unwrap_err().is_lost);
    connection.close().await;
}

#[tokio::test]
async fn a_program_that_exits_on_the_probe_is_reached_without_it() {
    let (transport, _program) = start("strict");
    assert!(matches!(open(transport, How::default()).await.unwrap(), Err(RequestError::ProbeFailed(_))));
    let (transport, _program) = start("strict");
    let how = How { session_mode: Some(SessionMode::Sessions), ..How::default() };
    let connection = open(transport, how).await.unwrap().unwrap();
    assert_eq!(connection.call("echo", &call()).await.unwrap(), ToolOutput::text("hi"));
}
