//! A server with tools that tests script.

use std::pin::Pin;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{Extension, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::Response;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt as _, Stream, StreamExt as _};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use toolbus_core::caller::AgentName;
use toolbus_core::failure::{Cause, ToolFailure};
use toolbus_core::progress::Progress;
use toolbus_core::results::READER;
use toolbus_core::tool::ToolOutput;

use crate::auth::{Principal, TokenId};
use crate::backend::BackendCall;
use crate::server::McpServer;
use crate::testing::Fake;

/// Largest message.
pub(super) const MAX_BODY: usize = 1024 * 1024;
pub(super) const JSON: (&str, &str) = ("content-type", "application/json");
pub(super) const BOTH: (&str, &str) = ("accept", "application/json, text/event-stream");

/// Runs the tool of this name.
fn run(fake: Arc<Fake>, call: BackendCall) -> BoxFuture<'static, Result<ToolOutput, ToolFailure>> {
    async move {
        let BackendCall { caller, tool, arguments, cancelled, progress, idempotency_key, .. } = call;
        fake.keys.lock().push(idempotency_key.as_deref().map(str::to_owned));
        if !fake.tools_of(&caller).contains(&tool) {
            return Err(ToolFailure::new(Cause::UnknownTool, format!("Tool '{tool}' is not registered.")));
        }
        fake.note(format!("began {tool}"));
        let result = match &*tool {
            "wait" => tokio::select! {
                () = fake.release.notified() => Ok(ToolOutput::text("released")),
                () = cancelled.cancelled() => Err(ToolFailure::new(Cause::Cancelled, "The call was cancelled.")),
            },
            "storm" => {
                for step in 0..100_000_u32 {
                    let progress_now = Progress { progress: step.into(), total: None, message: None };
                    progress.as_ref().unwrap().report(progress_now);
                    if step % 100 == 0 {
                        tokio::task::yield_now().await;
                    }
                }
                Ok(ToolOutput::text("calm"))
            }
            "hasty" => {
                let done = Progress { progress: 1.0, total: Some(1.0), message: None };
                progress.as_ref().unwrap().report(done);
                Ok(ToolOutput::text("done"))
            }
            READER if key_of(arguments.as_deref()) == "wait" => {
                fake.release.notified().await;
                Ok(ToolOutput::text("released"))
            }
            READER if key_of(arguments.as_deref()) == "scripted" => fake.scripted.lock().take().unwrap(),
            "scripted" => fake.scripted.lock().take().unwrap(),
            _ => Ok(ToolOutput::text(arguments.unwrap_or_default())),
        };
        fake.note(format!("ended {tool}{}", if cancelled.is_cancelled() { " cancelled" } else { "" }));
        result
    }
    .boxed()
}

/// The key of the entry that is read.
fn key_of(arguments: Option<&str>) -> String {
    let arguments: Value = serde_json::from_str(arguments.unwrap_or("{}")).unwrap();
    arguments["key"].as_str().unwrap_or_default().to_owned()
}

/// A server, and two clients: `ana` and `bea`.
pub(super) struct Fixture {
    pub(super) backend: Arc<Fake>,
    pub(super) server: McpServer,
    pub(super) closing: CancellationToken,
    pub(super) ana: Principal,
    pub(super) bea: Principal,
}

fn principal(agent: &str, token: u64) -> Principal {
    Principal { agent: AgentName::parse(agent).ok(), token: Some(TokenId(token)), revoked: CancellationToken::new() }
}

impl Fixture {
    pub(super) fn new() -> Self {
        let backend = Fake::new(run, &["echo", "scripted", "storm", "wait"]);
        let closing = CancellationToken::new();
        let server = backend.serve("0.0.0", MAX_BODY, &closing);
        Self { backend, server, closing, ana: principal("ana", 1), bea: principal("bea", 2) }
    }

    /// The same, and ana has begun a session.
    pub(super) async fn begun() -> (Self, String) {
        let world = Self::new();
        let session = world.begin(&world.ana).await;
        (world, session)
    }

    /// Sends a body with exactly these headers.
    pub(super) async fn send(
        &self,
        principal: &Principal,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> TestResponse {
        let (server, principal) = (State(self.server.clone()), Extension(principal.clone()));
        TestResponse::of(crate::http::post::handle(server, principal, head(headers), body.into()).await)
    }

    /// Sends a message, with these headers besides the common ones.
    pub(super) async fn post(&self, principal: &Principal, headers: &[(&str, &str)], message: &Value) -> TestResponse {
        let headers: Vec<_> = [JSON, BOTH].into_iter().chain(headers.iter().copied()).collect();
        self.send(principal, &headers, message.to_string()).await
    }

    /// Sends a message of a session.
    pub(super) async fn request(&self, principal: &Principal, session: &str, message: &Value) -> TestResponse {
        self.post(principal, &[("mcp-session-id", session)], message).await
    }

    /// A call of `wait` by ana, of the id 1, which is under way.
    pub(super) async fn waiting<'a>(&'a self, session: &'a str) -> Pin<Box<impl Future<Output = TestResponse> + 'a>> {
        let mut waiting = Box::pin(async move { self.request(&self.ana, session, &call(1, "wait")).await });
        assert!(futures_util::poll!(&mut waiting).is_pending());
        waiting
    }

    /// Sends a request of version 2026-07-28, with matching headers.
    pub(super) async fn alone(&self, principal: &Principal, id: i64, method: &str, params: Value) -> TestResponse {
        let message = standing_alone(id, method, params);
        let addressed = |field| message["params"][field].as_str();
        let name = addressed("name").or(addressed("uri")).unwrap_or_default().to_owned();
        let headers = [("mcp-protocol-version", "2026-07-28"), ("mcp-method", method), ("mcp-name", &name)];
        self.post(principal, &headers, &message).await
    }

    /// Begins a session, and returns its id.
    pub(super) async fn begin(&self, principal: &Principal) -> String {
        let response = self.post(principal, &[], &hello()).await;
        assert_eq!(response.status, StatusCode::OK);
        response.headers["mcp-session-id"].to_str().unwrap().to_owned()
    }

    pub(super) async fn get(&self, principal: &Principal, session: &str) -> TestResponse {
        let headers = head(&[("accept", "text/event-stream"), ("mcp-session-id", session)]);
        TestResponse::of(crate::http::listen(State(self.server.clone()), Extension(principal.clone()), headers).await)
    }

    pub(super) async fn delete(&self, principal: &Principal, session: &str) -> StatusCode {
        let headers = head(&[("mcp-session-id", session)]);
        crate::http::end(State(self.server.clone()), Extension(principal.clone()), headers).await.status()
    }
}

fn head(headers: &[(&str, &str)]) -> HeaderMap {
    let header = |(name, value): &(&str, &str)| -> (HeaderName, HeaderValue) {
        (name.parse().unwrap(), HeaderValue::from_bytes(value.as_bytes()).unwrap())
    };
    headers.iter().map(header).collect()
}

pub(super) fn hello() -> Value {
    let params =
        json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
    json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params})
}

pub(super) fn message(id: i64, method: &str, params: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
}

pub(super) fn call(id: i64, tool: &str) -> Value {
    message(id, "tools/call", json!({"name": tool, "arguments": {"n": id}}))
}

pub(super) fn cancel(id: i64) -> Value {
    json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}})
}

/// A complete stateless request of version 2026-07-28.
pub(super) fn standing_alone(id: i64, method: &str, mut params: Value) -> Value {
    params["_meta"]["io.modelcontextprotocol/protocolVersion"] = "2026-07-28".into();
    params["_meta"]["io.modelcontextprotocol/clientCapabilities"] = json!({});
    message(id, method, params)
}

/// A response with a body that is read event by event.
pub(super) struct TestResponse {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    body: Pin<Box<dyn Stream<Item = Bytes> + Send>>,
}

impl TestResponse {
    fn of(response: Response) -> Self {
        let (head, body) = response.into_parts();
        let body = Box::pin(body.into_data_stream().map(|chunk| chunk.unwrap()));
        Self { status: head.status, headers: head.headers, body }
    }

    pub(super) fn is_stream(&self) -> bool {
        self.headers["content-type"] == "text/event-stream"
    }

    pub(super) async fn text(self) -> String {
        let chunks: Vec<Bytes> = self.body.collect().await;
        String::from_utf8(chunks.concat()).unwrap()
    }

    pub(super) async fn json(self) -> Value {
        assert!(!self.is_stream());
        serde_json::from_str(&self.text().await).unwrap()
    }

    /// The next message of a stream; none at its end.
    pub(super) async fn event(&mut self) -> Option<Value> {
        loop {
            let chunk = self.body.next().await?;
            let text = std::str::from_utf8(&chunk).unwrap();
            if let Some(data) = text.strip_prefix("event: message\ndata: ") {
                return Some(serde_json::from_str(data).unwrap());
            }
            assert!(text.starts_with(": "), "{text}");
        }
    }

    /// The status, and the code and text of the error.
    pub(super) async fn refusal(self) -> String {
        let status = self.status.as_u16();
        let body = self.json().await;
        let error = &body["error"];
        format!("{status} {} {} {}", body["id"], error["code"], error["message"].as_str().unwrap_or("no error"))
    }
}
