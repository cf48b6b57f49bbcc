//! Servers over HTTP that forget their sessions, or respond to no pings.

use std::collections::BTreeMap;
use std::time::Instant;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::{IntoResponse as _, Response};
use futures_util::stream;
use parking_lot::Mutex;
use serde_json::{Value, json};
use toolbus_core::failure::Cause;
use toolbus_core::tool::ToolOutput;
use url::Url;

use super::fixture::{Fixture, HASTE};
use super::*;
use crate::spec::{Credentials, HttpKind, HttpSpec};

/// A server whose responses to some requests a test chooses.
pub(super) struct Remote {
    url: Url,
    requests: Requests,
}

/// The requests so far.
type Requests = Arc<Mutex<Vec<Value>>>;
type Choose = dyn Fn(&Value, usize) -> Option<Response> + Send + Sync;

impl Remote {
    /// `choose` gets a request, with the bearer token that it came with as `token`, and how many of its method, tool and
    /// token there have been, this one included.
    pub(super) async fn start(choose: impl Fn(&Value, usize) -> Option<Response> + Send + Sync + 'static) -> Self {
        let requests = Requests::default();
        let choose: Arc<Choose> = Arc::new(choose);
        let router = Router::new().fallback(respond).with_state((Arc::clone(&requests), choose));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/mcp", listener.local_addr().unwrap()).parse().unwrap();
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { url, requests }
    }

    /// Counts the requests with this method.
    pub(super) fn count(&self, method: &str) -> usize {
        self.count_of(method, None)
    }

    /// Counts the requests with this method that came with this token.
    pub(super) fn count_of(&self, method: &str, token: Option<&str>) -> usize {
        let is_it =
            |request: &&Value| request["method"] == method && token.is_none_or(|token| request["token"] == token);
        self.requests.lock().iter().filter(is_it).count()
    }

    pub(super) fn spec(&self, name: &str) -> ServerSpec {
        self.spec_with(name, Credentials::None)
    }

    pub(super) fn spec_with(&self, name: &str, credentials: Credentials) -> ServerSpec {
        let (url, headers) = (self.url.clone(), BTreeMap::new());
        let endpoint = HttpSpec { url, kind: HttpKind::Streamable, headers, credentials };
        ServerSpec { transport: TransportSpec::Http(endpoint), ..spec(name, ServerOrigin::Configuration) }
    }

    /// A bridge that has listed the tools of this server.
    async fn attached(&self) -> Fixture {
        let world = Fixture::new();
        world.apply([self.spec("remote")]);
        eventually("the tools", async || world.registry.snapshot().get("echo").map(drop)).await;
        world
    }
}

async fn respond(
    State((requests, choose)): State<(Requests, Arc<Choose>)>,
    method: Method,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let mut request: Value = serde_json::from_slice(&body).unwrap_or_default();
    let token = headers.get("authorization").and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
    if let (Some(token), Value::Object(request)) = (token, &mut request) {
        request.insert("token".to_owned(), token.into());
    }
    let (number, sessions) = {
        let mut requests = requests.lock();
        requests.push(request.clone());
        let kind = |of: &Value| [&of["method"], &of["params"]["name"], &of["token"]].map(Value::clone);
        let same = |other: &&Value| kind(other) == kind(&request);
        (
            requests.iter().filter(same).count(),
            requests.iter().filter(|request| request["method"] == "initialize").count(),
        )
    };
    if let Some(response) = choose(&request, number) {
        return response;
    }
    let result = match request["method"].as_str() {
        Some("initialize") => {
            let session = [("mcp-session-id", format!("s{sessions}"))];
            return (session, initialized(&request)).into_response();
        }
        Some("tools/list") => {
            // Each session has one tool more.
            let names = ["echo", "expire", "reads", "more"].into_iter().take(2 + sessions);
            let tool = |name| {
                let annotations = if name == "reads" { json!({"readOnlyHint": true}) } else { json!({}) };
                json!({"name": name, "inputSchema": {"type": "object"}, "annotations": annotations})
            };
            json!({"tools": names.map(tool).collect::<Vec<_>>()})
        }
        Some("tools/call") => json!({"content": [{"type": "text", "text": format!("in s{sessions}")}]}),
        Some("ping") => json!({}),
        Some(_) if request.get("id").is_some() => {
            let error = json!({"code": -32601, "message": "no such method"});
            return axum::Json(json!({"jsonrpc": "2.0", "id": request["id"], "error": error})).into_response();
        }
        _ if method == Method::GET => return StatusCode::METHOD_NOT_ALLOWED.into_response(),
        _ => return StatusCode::ACCEPTED.into_response(),
    };
    response_to(&request, &result)
}

/// The response to a request with this result.
pub(super) fn response_to(request: &Value, result: &Value) -> Response {
    axum::Json(json!({"jsonrpc": "2.0", "id": request["id"], "result": result})).into_response()
}

/// Response of the server to `initialize`, without a session id.
fn initialized(request: &Value) -> Response {
    let server = json!({"name": "remote", "version": "1"});
    let result = json!({"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": server});
    response_to(request, &result)
}

pub(super) fn not_found() -> Option<Response> {
    Some(StatusCode::NOT_FOUND.into_response())
}

/// A stream of events without any.
fn silence() -> Option<Response> {
    let body = Body::from_stream(stream::pending::<std::io::Result<Bytes>>());
    Some(([("content-type", "text/event-stream")], body).into_response())
}

#[tokio::test]
async fn calls_of_a_forgotten_session_are_lost_and_read_only_ones_repeated() {
    let remote = Remote::start(|request, number| match request["params"]["name"].as_str() {
        Some("expire") if number == 1 => not_found(),
        Some("echo" | "reads") if number == 1 => silence(),
        _ => None,
    })
    .await;
    let world = remote.attached().await;
    let deadline = Instant::now() + Duration::from_secs(60);
    let [changing, reading] = ["echo", "reads"].map(|tool| tokio::spawn(world.begin(tool, deadline)));
    eventually("both calls", async || (remote.count("tools/call") == 2).then_some(())).await;
    assert_eq!(world.call("expire").await.unwrap(), "in s2");
    let failure = changing.await.unwrap().unwrap_err();
    assert_eq!(failure.cause, Cause::ConnectionLost);
    insta::assert_snapshot!(failure.message, @"The MCP server of tool 'echo' went away before it answered.");
    assert_eq!(reading.await.unwrap().unwrap(), ToolOutput::text("in s2"));
    world.end().await;
}

#[tokio::test]
async fn the_tools_of_a_server_that_forgot_its_session_are_listed_again() {
    let remote = Remote::start(|request, number| match request["params"]["name"].as_str() {
        Some("expire") if number == 1 => not_found(),
        _ => None,
    })
    .await;
    let world = remote.attached().await;
    assert!(world.registry.snapshot().get("more").is_none());
    assert_eq!(world.call("expire").await.unwrap(), "in s2");
    eventually("the tools of the new session", async || world.registry.snapshot().get("more").map(drop)).await;
    assert_eq!([remote.count("initialize"), remote.count("tools/list")], [2, 2]);
    world.end().await;
}

#[tokio::test]
async fn a_server_that_refuses_pings_with_a_status_is_reconnected() {
    let remote = Remote::start(|request, number| match request["method"].as_str() {
        // The response of servers of the Python SDK to an unknown session.
        Some("ping") if number <= 2 => Some(StatusCode::BAD_REQUEST.into_response()),
        _ => None,
    })
    .await;
    let world = remote.attached().await;
    eventually("another connection", async || (remote.count("initialize") == 2).then_some(())).await;
    world.end().await;
}

#[tokio::test]
async fn a_ping_that_fails_at_once_is_given_its_time() {
    let first: Mutex<Option<Instant>> = Mutex::default();
    let remote = Remote::start(move |request, _| match request["method"].as_str() {
        // Without the name of a session, which would be opened again.
        Some("initialize") => Some(initialized(request)),
        Some("ping") if first.lock().get_or_insert_with(Instant::now).elapsed() < HASTE.ping_time / 2 => not_found(),
        _ => None,
    })
    .await;
    let world = remote.attached().await;
    eventually("more pings", async || (remote.count("ping") > 2).then_some(())).await;
    assert_eq!((world.status("remote").restarts, remote.count("initialize")), (0, 1));
    world.end().await;
}

#[tokio::test]
async fn a_server_whose_endpoint_is_gone_is_lost_after_two_pings() {
    let remote = Remote::start(|request, number| match request["method"].as_str() {
        Some("initialize") => Some(initialized(request)),
        Some("ping") if number <= 2 => not_found(),
        _ => None,
    })
    .await;
    let world = remote.attached().await;
    eventually("another connection", async || (remote.count("initialize") == 2).then_some(())).await;
    assert!(remote.count("ping") >= 2);
    let status = world.status("remote");
    assert_eq!((status.restarts, status.last_error.as_deref()), (1, Some("the server did not answer 2 pings")));
    world.end().await;
}
