//! A server with a fixed response for each path, byte by byte.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// Response to a request for a path.
#[derive(Clone)]
pub(super) enum TestResponse {
    /// These bytes, then the connection is closed.
    Bytes(Vec<u8>),
    /// Each of these in turn, the last one from then on.
    InTurn(Vec<Vec<u8>>),
    /// These bytes, and then nothing.
    Stalled(Vec<u8>),
    /// These bytes, and then the others again and again.
    Endless(Vec<u8>, Vec<u8>),
}

type Routes = BTreeMap<String, TestResponse>;

/// A server on a free port of this machine.
pub(super) struct Server {
    pub(super) address: SocketAddr,
    /// The requests, as they came.
    pub(super) requests: Arc<Mutex<Vec<String>>>,
    _serving: JoinSet<()>,
}

impl Server {
    pub(super) async fn start(routes: impl FnOnce(SocketAddr) -> Vec<(&'static str, TestResponse)>) -> Self {
        Self::start_at("127.0.0.1:0", routes).await
    }

    pub(super) async fn start_at(
        at: &str,
        routes: impl FnOnce(SocketAddr) -> Vec<(&'static str, TestResponse)>,
    ) -> Self {
        let listener = TcpListener::bind(at).await.unwrap();
        let address = listener.local_addr().unwrap();
        let routes: Routes = routes(address).into_iter().map(|(path, response)| (path.to_owned(), response)).collect();
        let (routes, requests) = (Arc::new(Mutex::new(routes)), Arc::<Mutex<Vec<String>>>::default());
        let (seen, mut serving) = (Arc::clone(&requests), JoinSet::new());
        serving.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(respond(stream, Arc::clone(&routes), Arc::clone(&seen)));
            }
        });
        Self { address, requests, _serving: serving }
    }

    pub(super) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Counts the requests for a path.
    pub(super) fn count(&self, path: &str) -> usize {
        let start = format!(" {path} HTTP/1.1");
        self.requests.lock().iter().filter(|request| request.lines().next().unwrap().ends_with(&start)).count()
    }
}

async fn respond(mut stream: TcpStream, routes: Arc<Mutex<Routes>>, seen: Arc<Mutex<Vec<String>>>) {
    let mut request = Vec::new();
    let mut buffer = [0; 4096];
    while !request.windows(4).any(|window| window == b"\r\n\r\n") {
        match stream.read(&mut buffer).await {
            Ok(0) | Err(_) => return,
            Ok(count) => request.extend_from_slice(&buffer[..count]),
        }
    }
    let request = String::from_utf8_lossy(&request).into_owned();
    let path = request.split(' ').nth(1).unwrap_or_default().to_owned();
    seen.lock().push(request);
    let response = {
        let mut routes = routes.lock();
        match routes.get_mut(&path) {
            Some(TestResponse::InTurn(responses)) => {
                TestResponse::Bytes(if responses.len() > 1 { responses.remove(0) } else { responses[0].clone() })
            }
            Some(response) => response.clone(),
            None => TestResponse::Bytes(response("404 Not Found", &[], b"nothing here")),
        }
    };
    match response {
        TestResponse::Bytes(bytes) => {
            let _ = stream.write_all(&bytes).await;
            let _ = stream.shutdown().await;
            // Read on, so that the client gets all of it before the connection is reset.
            while stream.read(&mut buffer).await.is_ok_and(|count| count > 0) {}
        }
        TestResponse::Stalled(bytes) => {
            let _ = stream.write_all(&bytes).await;
            std::future::pending::<()>().await;
        }
        TestResponse::Endless(start, more) => {
            let _ = stream.write_all(&start).await;
            while stream.write_all(&more).await.is_ok() {}
        }
        TestResponse::InTurn(_) => {}
    }
}

/// A response with its length.
pub(super) fn response(status: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n", body.len());
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("\r\n");
    [head.as_bytes(), body].concat()
}

/// A page of this type.
pub(super) fn typed(kind: &str, body: impl AsRef<[u8]>) -> TestResponse {
    TestResponse::Bytes(response("200 OK", &[("content-type", kind)], body.as_ref()))
}

/// A page of HTML.
pub(super) fn html(body: &str) -> TestResponse {
    typed("text/html; charset=utf-8", body)
}

/// A page of text.
pub(super) fn plain(body: &str) -> TestResponse {
    typed("text/plain", body)
}

/// A redirect.
pub(super) fn redirect(to: &str) -> TestResponse {
    TestResponse::Bytes(response("302 Found", &[("location", to)], b""))
}
