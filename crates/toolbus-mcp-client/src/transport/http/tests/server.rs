//! Servers for tests: a function from what is asked to what is answered.

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

/// A request that a server had.
#[derive(Debug, Clone)]
pub(super) struct Asked {
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

impl Asked {
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
    asked: Arc<Mutex<Vec<Asked>>>,
    task: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    /// Answers at once.
    pub(super) async fn start(answer: impl Fn(&Asked) -> Response + Send + Sync + 'static) -> Self {
        Self::slow(move |asked| {
            let answer = answer(&asked);
            Box::pin(async { answer })
        })
        .await
    }

    /// Answers messages of this method by `answer`, and everything else in order.
    pub(super) async fn answering(
        method: &'static str,
        answer: impl Fn(&Asked) -> Response + Send + Sync + 'static,
    ) -> Self {
        Self::start(move |asked| if asked.does(method) { answer(asked) } else { orderly(asked) }).await
    }

    /// Answers who asks for a stream of notifications by `answer`, and everything else in order.
    pub(super) async fn streaming(answer: impl Fn(&Asked) -> Response + Send + Sync + 'static) -> Self {
        Self::start(move |asked| if asked.method == Method::GET { answer(asked) } else { orderly(asked) }).await
    }

    /// Answers when it likes.
    pub(super) async fn slow(answer: impl Fn(Asked) -> BoxFuture<'static, Response> + Send + Sync + 'static) -> Self {
        let seen: Arc<Mutex<Vec<Asked>>> = Arc::default();
        let (kept, answer) = (Arc::clone(&seen), Arc::new(answer));
        let handler = async move |request: Request| {
            let (parts, body) = request.into_parts();
            let body = to_bytes(body, usize::MAX).await.unwrap_or_default();
            let path = parts.uri.to_string();
            let asked = Asked { method: parts.method, path, headers: parts.headers, body };
            kept.lock().push(asked.clone());
            answer(asked).await
        };
        let handler = move |request| {
            let handler = handler.clone();
            async move { handler(request).await }
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = Url::parse(&format!("http://{}/mcp", listener.local_addr().unwrap())).unwrap();
        let task = tokio::spawn(async move { axum::serve(listener, Router::new().fallback(handler)).await.unwrap() });
        Self { url, asked: seen, task }
    }

    pub(super) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().clone()
    }

    /// Counts the requests with a message of this method.
    pub(super) fn count(&self, method: &str) -> usize {
        self.asked().iter().filter(|asked| asked.does(method)).count()
    }

    /// Counts the requests for a stream.
    pub(super) fn streams(&self) -> usize {
        self.asked().iter().filter(|asked| asked.method == Method::GET).count()
    }

    /// The first request that `is_it`.
    pub(super) async fn when_asked(&self, what: &str, is_it: impl Fn(&Asked) -> bool) -> Asked {
        eventually(what, async || self.asked().into_iter().find(|asked| is_it(asked))).await
    }
}

/// Responses of an orderly Streamable HTTP server to everything but calls.
pub(super) fn orderly(asked: &Asked) -> Response {
    match (asked.method.as_str(), asked.message()["method"].as_str()) {
        ("POST", Some("initialize")) => {
            let info = json!({ "name": "orderly", "version": "1" });
            let result = json!({ "protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": info });
            let mut response = result_of(asked, &result);
            response.headers_mut().insert("mcp-session-id", "s1".parse().unwrap());
            response
        }
        ("POST", Some("tools/call")) => result_of(asked, &said("hello")),
        ("POST", _) => StatusCode::ACCEPTED.into_response(),
        ("DELETE", _) => StatusCode::OK.into_response(),
        _ => StatusCode::METHOD_NOT_ALLOWED.into_response(),
    }
}

/// The result of a call that says `text`.
pub(super) fn said(text: &str) -> Value {
    json!({ "content": [{ "type": "text", "text": text }] })
}

pub(super) fn result_of(asked: &Asked, result: &Value) -> Response {
    json_of(&json!({ "jsonrpc": "2.0", "id": asked.id(), "result": result }))
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
