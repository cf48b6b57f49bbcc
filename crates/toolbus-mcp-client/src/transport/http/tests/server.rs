//! Servers for tests: a function from requests to responses.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::Request;
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::{IntoResponse as _, Response};
use futures_util::future::BoxFuture;
use futures_util::{StreamExt as _, stream};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use toolbus_testing::patience::eventually;
use url::Url;

/// A request that a server received.
#[derive(Debug, Clone)]
pub(super) struct RecordedRequest {
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

impl RecordedRequest {
    /// The message in the body, or null.
    pub(super) fn message(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// The method of the message.
    pub(super) fn does(&self, method: &str) -> bool {
        self.message()["method"] == method
    }

    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    pub(super) fn id(&self) -> Value {
        self.message()["id"].clone()
    }
}

/// A server that runs until it is dropped.
pub(super) struct Server {
    pub(super) url: Url,
    requests: Arc<Mutex<Vec<RecordedRequest>>>,
    task: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    /// A server that responds at once.
    pub(super) async fn start(respond: impl Fn(&RecordedRequest) -> Response + Send + Sync + 'static) -> Self {
        Self::slow(move |request| {
            let response = respond(&request);
            Box::pin(async { response })
        })
        .await
    }

    /// A server that responds to this method by `respond`, and to other requests in order.
    pub(super) async fn responding(
        method: &'static str,
        respond: impl Fn(&RecordedRequest) -> Response + Send + Sync + 'static,
    ) -> Self {
        Self::start(move |request| if request.does(method) { respond(request) } else { orderly(request) }).await
    }

    /// A server that responds to requests for a stream by `respond`, and to others in order.
    pub(super) async fn streaming(respond: impl Fn(&RecordedRequest) -> Response + Send + Sync + 'static) -> Self {
        Self::start(move |request| if request.method == Method::GET { respond(request) } else { orderly(request) })
            .await
    }

    /// A server that responds by a future.
    pub(super) async fn slow(
        respond: impl Fn(RecordedRequest) -> BoxFuture<'static, Response> + Send + Sync + 'static,
    ) -> Self {
        let recorded: Arc<Mutex<Vec<RecordedRequest>>> = Arc::default();
        let (kept, respond) = (Arc::clone(&recorded), Arc::new(respond));
        let handler = async move |request: Request| {
            let (parts, body) = request.into_parts();
            let body = to_bytes(body, usize::MAX).await.unwrap_or_default();
            let path = parts.uri.to_string();
            let request = RecordedRequest { method: parts.method, path, headers: parts.headers, body };
            kept.lock().push(request.clone());
            respond(request).await
        };
        let handler = move |request| {
            let handler = handler.clone();
            async move { handler(request).await }
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = Url::parse(&format!("http://{}/mcp", listener.local_addr().unwrap())).unwrap();
        let task = tokio::spawn(async move { axum::serve(listener, Router::new().fallback(handler)).await.unwrap() });
        Self { url, requests: recorded, task }
    }

    pub(super) fn requests(&self) -> Vec<RecordedRequest> {
        self.requests.lock().clone()
    }

    /// Counts the requests with a message of this method.
    pub(super) fn count(&self, method: &str) -> usize {
        self.requests().iter().filter(|request| request.does(method)).count()
    }

    /// Counts the requests for a stream.
    pub(super) fn streams(&self) -> usize {
        self.requests().iter().filter(|request| request.method == Method::GET).count()
    }

    /// The first request that `is_it`.
    pub(super) async fn wait_for_request(
        &self,
        what: &str,
        is_it: impl Fn(&RecordedRequest) -> bool,
    ) -> RecordedRequest {
        eventually(what, async || self.requests().into_iter().find(|request| is_it(request))).await
    }
}

/// Responses of an orderly Streamable HTTP server to everything but calls.
pub(super) fn orderly(request: &RecordedRequest) -> Response {
    match (request.method.as_str(), request.message()["method"].as_str()) {
        ("POST", Some("initialize")) => {
            let info = json!({ "name": "orderly", "version": "1" });
            let result = json!({ "protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": info });
            let mut response = result_of(request, &result);
            response.headers_mut().insert("mcp-session-id", "s1".parse().unwrap());
            response
        }
        ("POST", Some("tools/call")) => result_of(request, &text_result("hello")),
        ("POST", _) => StatusCode::ACCEPTED.into_response(),
        ("DELETE", _) => StatusCode::OK.into_response(),
        _ => StatusCode::METHOD_NOT_ALLOWED.into_response(),
    }
}

/// The result of a call with this text.
pub(super) fn text_result(text: &str) -> Value {
    json!({ "content": [{ "type": "text", "text": text }] })
}

pub(super) fn result_of(request: &RecordedRequest, result: &Value) -> Response {
    json_of(&json!({ "jsonrpc": "2.0", "id": request.id(), "result": result }))
}

pub(super) fn json_of(value: &Value) -> Response {
    axum::Json(value).into_response()
}

pub(super) fn status(code: u16, text: &str) -> Response {
    (StatusCode::from_u16(code).unwrap(), text.to_owned()).into_response()
}

pub(super) fn redirect(code: u16, to: &str) -> Response {
    (StatusCode::from_u16(code).unwrap(), [("location", to.to_owned())]).into_response()
}

/// Events that end.
pub(super) fn events(text: impl Into<Body>) -> Response {
    ([("content-type", "text/event-stream")], text.into()).into_response()
}

/// Events after which nothing comes, and nothing ends. `open` counts the streams of this kind that are open.
pub(super) fn silent_after(text: &str, open: &Arc<AtomicUsize>) -> Response {
    let open = Open::new(open);
    let begin = stream::iter([Ok::<_, std::io::Error>(Bytes::from(text.to_owned()))]);
    let silence = stream::once(async move {
        let _open = open;
        std::future::pending().await
    });
    events(Body::from_stream(begin.chain(silence)))
}

/// `text` for ever, in pieces of some KiB. `sent` counts the bytes.
pub(super) fn endless(text: &str, sent: &Arc<AtomicUsize>) -> Body {
    let (piece, sent) = (Bytes::from(text.repeat(16 * 1024 / text.len())), Arc::clone(sent));
    Body::from_stream(stream::repeat_with(move || {
        sent.fetch_add(piece.len(), Ordering::Relaxed);
        Ok::<_, std::io::Error>(piece.clone())
    }))
}

/// Counts itself while it is there.
pub(super) struct Open(Arc<AtomicUsize>);

impl Open {
    pub(super) fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(count))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}
