//! Servers that respond as a test defines.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::request::Parts;
use axum::http::{HeaderMap, Response};
use axum::serve::ListenerExt as _;
use parking_lot::Mutex;
use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::TaskTracker;

/// A request as the server saw it.
#[derive(Debug, Clone)]
pub(super) struct SeenRequest {
    pub(super) method: String,
    /// Path and query, as sent.
    pub(super) target: String,
    pub(super) headers: HeaderMap,
    pub(super) body: String,
}

type TestResponse = Arc<dyn Fn(&SeenRequest) -> Response<Body> + Send + Sync>;

/// A well-behaved HTTP server, which remembers its requests. It ends with the test's runtime.
pub(super) struct TestServer {
    /// `http://127.0.0.1:PORT`.
    pub(super) origin: String,
    state: Arc<ServerLog>,
    connections: Arc<AtomicUsize>,
}

struct ServerLog {
    response: TestResponse,
    seen: Mutex<Vec<SeenRequest>>,
}

impl TestServer {
    pub(super) async fn start(response: impl Fn(&SeenRequest) -> Response<Body> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let origin = format!("http://{}", listener.local_addr().unwrap());
        let state = Arc::new(ServerLog { response: Arc::new(response), seen: Mutex::default() });
        let connections = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&connections);
        let listener = listener.tap_io(move |_| {
            counter.fetch_add(1, Ordering::Relaxed);
        });
        let router = Router::new().fallback(handle).with_state(Arc::clone(&state));
        TaskTracker::new().spawn(async move { axum::serve(listener, router).await });
        Self { origin, state, connections }
    }

    /// A server that responds to every request with 200 and `text`.
    pub(super) async fn saying(text: &'static str) -> Self {
        Self::start(move |_| Response::new(Body::from(text))).await
    }

    pub(super) fn seen(&self) -> Vec<SeenRequest> {
        self.state.seen.lock().clone()
    }

    pub(super) fn only(&self) -> SeenRequest {
        let mut seen = self.seen();
        assert_eq!(seen.len(), 1, "{seen:?}");
        seen.remove(0)
    }

    pub(super) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }
}

async fn handle(State(memory): State<Arc<ServerLog>>, parts: Parts, body: Bytes) -> Response<Body> {
    let seen = SeenRequest {
        method: parts.method.to_string(),
        target: parts.uri.to_string(),
        headers: parts.headers,
        body: String::from_utf8(body.to_vec()).unwrap(),
    };
    memory.seen.lock().push(seen.clone());
    (memory.response)(&seen)
}

/// A server that lets `serve` do anything with each connection, once a request's head has arrived. Gives its origin.
pub(super) async fn raw<F>(serve: impl Fn(TcpStream) -> F + Send + Sync + 'static) -> String
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let origin = format!("http://{}", listener.local_addr().unwrap());
    TaskTracker::new().spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            read_head(&mut stream).await;
            TaskTracker::new().spawn(serve(stream));
        }
    });
    origin
}

/// Reads a request up to its body.
pub(super) async fn read_head(stream: &mut TcpStream) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => return,
        }
    }
}

/// Waits until the other side has closed the connection.
pub(super) async fn closed(stream: &mut TcpStream) {
    let mut rest = [0; 1024];
    while stream.read(&mut rest).await.is_ok_and(|count| count > 0) {}
}
