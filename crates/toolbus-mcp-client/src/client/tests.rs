//! Connections to scripted servers, and to a program.

mod asides;
mod calls;
mod ending;
mod fast_path;
mod handshake;
mod listing;
mod program;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;
use rmcp::RoleClient;
use rmcp::model::{ClientJsonRpcMessage, ServerJsonRpcMessage};
use rmcp::transport::Transport;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use toolbus_core::Clock;
use toolbus_core::events::{McpClientEvents, McpClientOperation, McpClientSession};
use toolbus_core::failure::Cause;
use toolbus_core::results::ResultBudget;
use toolbus_core::tool::{ToolCall, ToolOutput};

use super::{CallError, Connection, HandshakeContext, RequestError, SessionMode, message, roomed};
use crate::spec::ServerName;
use crate::testing;
use crate::transport::stdio::FastPath;
use crate::transport::{MAX_MESSAGE, TransportFailure};

/// Response of a server with sessions to `initialize`.
fn initialized() -> Value {
    json!({
        "protocolVersion": "2025-06-18",
        "capabilities": { "tools": { "listChanged": true } },
        "serverInfo": { "name": "scripted", "version": "1.0" },
        "instructions": "Call gently.",
    })
}

/// Response of a server without sessions to `server/discover`.
fn discovered() -> Value {
    json!({
        "resultType": "complete",
        "supportedVersions": ["2026-07-28"],
        "capabilities": { "tools": { "listChanged": true } },
        "serverInfo": { "name": "scripted", "version": "2.0" },
        "ttlMs": 0,
        "cacheScope": "private",
    })
}

/// Our end of a connection without a wire.
struct Wire {
    to: mpsc::UnboundedSender<Value>,
    from: mpsc::UnboundedReceiver<Value>,
}

/// The server's end.
struct Script {
    received: mpsc::UnboundedReceiver<Value>,
    sender: mpsc::UnboundedSender<Value>,
}

impl Transport<RoleClient> for Wire {
    type Error = io::Error;

    fn send(&mut self, message: ClientJsonRpcMessage) -> impl Future<Output = io::Result<()>> + Send + 'static {
        let sent = self.to.send(serde_json::to_value(message).unwrap());
        std::future::ready(sent.map_err(|_| io::ErrorKind::BrokenPipe.into()))
    }

    async fn receive(&mut self) -> Option<ServerJsonRpcMessage> {
        self.from.recv().await.map(|message| message::read(message.to_string().as_bytes()).unwrap())
    }

    async fn close(&mut self) -> io::Result<()> {
        self.from.close();
        Ok(())
    }
}

fn wire() -> (Wire, Script) {
    let (to, received) = mpsc::unbounded_channel();
    let (sender, from) = mpsc::unbounded_channel();
    (Wire { to, from }, Script { received, sender })
}

impl Script {
    /// The next message.
    async fn receive(&mut self) -> Value {
        self.received.recv().await.expect("the client is there")
    }

    /// The next message, which is of `method`.
    async fn expect(&mut self, method: &str) -> Value {
        let message = self.receive().await;
        assert_eq!(message["method"], method, "{message}");
        message
    }

    fn send(&self, message: Value) {
        self.sender.send(message).unwrap();
    }

    fn respond(&self, request: &Value, result: Value) {
        self.send(json!({ "jsonrpc": "2.0", "id": request["id"], "result": result }));
    }

    fn refuse(&self, request: &Value, code: i32, message: &str) {
        self.send(json!({ "jsonrpc": "2.0", "id": request["id"], "error": { "code": code, "message": message } }));
    }

    fn notify(&self, method: &str, params: Value) {
        self.send(json!({ "jsonrpc": "2.0", "method": method, "params": params }));
    }
}

/// Observations of a test, a line each.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Vec<String>>>);

impl Seen {
    fn lines(&self) -> Vec<String> {
        self.0.lock().clone()
    }
}

impl McpClientEvents for Seen {
    fn operation(&self, operation: &McpClientOperation<'_>) {
        let McpClientOperation { method, tool, server, protocol_version, error_type, .. } = operation;
        let (tool, error_type) = (tool.unwrap_or("-"), error_type.unwrap_or("-"));
        self.0.lock().push(format!("{method} {tool} {server} {protocol_version} {error_type}"));
    }

    fn session(&self, session: &McpClientSession<'_>) {
        let McpClientSession { server, protocol_version, error_type, .. } = session;
        self.0.lock().push(format!("session {server} {protocol_version} {}", error_type.unwrap_or("-")));
    }
}

/// Options of a test's connection.
#[derive(Clone, Default)]
struct How {
    session_mode: Option<SessionMode>,
    roots: Vec<PathBuf>,
    failure: TransportFailure,
    is_tcp: bool,
    fast_path: Option<FastPath>,
    seen: Seen,
}

type Opened = JoinHandle<Result<Arc<Connection>, RequestError>>;

fn open<T: Transport<RoleClient> + 'static>(transport: T, how: How) -> Opened {
    let How { session_mode, roots, failure, is_tcp, fast_path, seen } = how;
    tokio::spawn(async move {
        let server = ServerName::parse("scripted").unwrap();
        let network = if is_tcp { "tcp" } else { "pipe" };
        let observer = Arc::new(seen);
        let opening = HandshakeContext {
            server: &server,
            transport: network,
            session_mode,
            fast_path,
            failure,
            roots,
            observer,
            redactor: Default::default(),
            clock: Clock::SYSTEM,
            span: &tracing::Span::none(),
        };
        Connection::open(transport, opening).await
    })
}

/// A connection that is being opened to a server of either generation, and the probe that the server got.
async fn probed(how: How) -> (Opened, Script, Value) {
    let (wire, mut script) = wire();
    let opened = open(wire, how);
    let probe = script.expect("server/discover").await;
    (opened, script, probe)
}

/// A connection to a server with sessions.
async fn session(how: How) -> (Arc<Connection>, Script) {
    let (wire, mut script) = wire();
    let opened = open(wire, How { session_mode: Some(SessionMode::Sessions), ..how });
    let request = script.expect("initialize").await;
    script.respond(&request, initialized());
    script.expect("notifications/initialized").await;
    (opened.await.unwrap().unwrap(), script)
}

/// A connection to a server without sessions, and its request for changes.
async fn stateless(how: How) -> (Arc<Connection>, Script, Value) {
    let (opened, mut script, probe) = probed(How { session_mode: Some(SessionMode::Stateless), ..how }).await;
    script.respond(&probe, discovered());
    let connection = opened.await.unwrap().unwrap();
    let listen = script.expect("subscriptions/listen").await;
    (connection, script, listen)
}

/// A call with 60 s to go.
fn call() -> ToolCall {
    let arguments = json!({ "text": "hi" });
    ToolCall { arguments: Arc::new(arguments.as_object().unwrap().clone()), ..testing::call("echo") }
}

/// Calls the tool `echo` in a task.
fn start(connection: &Arc<Connection>, call: ToolCall) -> JoinHandle<Result<ToolOutput, CallError>> {
    let connection = Arc::clone(connection);
    tokio::spawn(async move { connection.call("echo", &call).await })
}

/// Calls the tool `echo` in a task; the request that the server got.
async fn sent(
    connection: &Arc<Connection>,
    script: &mut Script,
    call: ToolCall,
) -> (JoinHandle<Result<ToolOutput, CallError>>, Value) {
    let called = start(connection, call);
    (called, script.expect("tools/call").await)
}

fn text(text: &str) -> Value {
    json!({ "content": [{ "type": "text", "text": text }] })
}

#[test]
fn a_large_result_takes_room_and_without_room_it_is_too_large() {
    let result = || ToolOutput::text("x".repeat(MAX_MESSAGE + 1));
    let refused = |room| roomed("t", &ToolCall { room, ..call() }, result()).unwrap_err().cause;
    assert_eq!(refused(None), Cause::ResultTooLarge);
    let budget = ResultBudget::new(20 << 20, 20 << 20);
    let room = budget.room();
    assert_eq!(roomed("t", &ToolCall { room: Some(room.clone()), ..call() }, result()).unwrap(), result());
    assert_eq!(refused(Some(budget.room())), Cause::Unavailable, "the first still has its room");
    drop(room);
    assert!(roomed("t", &ToolCall { room: Some(budget.room()), ..call() }, result()).is_ok());
}
