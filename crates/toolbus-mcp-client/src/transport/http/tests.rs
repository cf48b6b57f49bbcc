//! Connections to real servers on free ports, most of them hostile.

mod authorisation;
mod detection;
mod errors;
mod responses;
mod secrets;
mod server;
mod sessions;
mod sse;
mod tokens;

use std::collections::BTreeMap;

use rmcp::model::{ClientJsonRpcMessage, ServerJsonRpcMessage};
use rmcp::transport::Transport as _;
use serde_json::{Value, json};
use toolbus_core::Clock;
use url::Url;

use self::server::Server;
use super::{HttpError, HttpOpenError, HttpTransport, Opener};
use crate::spec::{Credential, Credentials, HttpKind, HttpSpec};

fn endpoint(url: &Url, kind: HttpKind) -> HttpSpec {
    // Fails where it is installed already.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    HttpSpec { url: url.clone(), kind, headers: BTreeMap::new(), credentials: Credentials::None }
}

fn opener(url: &Url, kind: HttpKind, credential: Option<Credential>) -> Opener {
    Opener::new(&endpoint(url, kind), credential, &Default::default(), Clock::SYSTEM).unwrap()
}

async fn open(url: &Url, kind: HttpKind) -> Result<HttpTransport, HttpOpenError> {
    opener(url, kind, None).open().await
}

fn message(message: Value) -> ClientJsonRpcMessage {
    serde_json::from_value(message).unwrap()
}

fn initialize() -> ClientJsonRpcMessage {
    let client = json!({ "name": "test", "version": "0" });
    let params = json!({ "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client });
    message(json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params }))
}

fn call(id: i64) -> ClientJsonRpcMessage {
    let params = json!({ "name": "echo", "arguments": {} });
    message(json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params }))
}

fn cancel(id: i64) -> ClientJsonRpcMessage {
    message(json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": id } }))
}

/// Shakes hands.
async fn begin(transport: &mut HttpTransport) -> Result<(), HttpError> {
    transport.send(initialize()).await?;
    transport.receive().await.unwrap();
    transport.send(message(json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }))).await
}

/// A connection by Streamable HTTP, after the handshake.
async fn begun(url: &Url) -> HttpTransport {
    let mut transport = open(url, HttpKind::Streamable).await.unwrap();
    begin(&mut transport).await.unwrap();
    transport
}

/// The next message of the server, as JSON.
async fn received(transport: &mut HttpTransport) -> Value {
    let message: ServerJsonRpcMessage = transport.receive().await.unwrap();
    serde_json::to_value(message).unwrap()
}

/// The message that comes next after a call.
async fn called(transport: &mut HttpTransport, id: i64) -> Value {
    transport.send(call(id)).await.unwrap();
    received(transport).await
}

/// The message that a server sends first after the call 1.
async fn response_of(server: &Server) -> Value {
    called(&mut begun(&server.url).await, 1).await
}

/// The error that call 1 ends with before there is a message.
async fn error_of(server: &Server) -> HttpError {
    begun(&server.url).await.send(call(1)).await.unwrap_err()
}
