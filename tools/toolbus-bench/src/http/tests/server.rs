//! A server that keeps its requests, and responds as a test decides.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// A request as it came.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    /// Counted from 0, over all connections.
    pub(crate) number: usize,
    pub(crate) connection: usize,
    pub(crate) line: String,
    headers: Vec<(String, String)>,
    /// `null` where it is no JSON.
    pub(crate) body: Value,
}

impl Request {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(given, _)| given == name).map(|(_, value)| &**value)
    }
}

/// A response.
#[derive(Debug, Clone)]
pub(crate) struct Response {
    head: String,
    body: String,
    closes: bool,
    never_ends: bool,
}

impl Response {
    fn new(status: &str, kind: &str, body: String) -> Self {
        let head = format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\n");
        Self { head, body, closes: false, never_ends: false }
    }

    pub(crate) fn text(text: &str) -> Self {
        Self::new("200 OK", "text/plain", text.to_owned())
    }

    pub(crate) fn status(status: &str) -> Self {
        Self::new(status, "text/plain", String::new())
    }

    pub(crate) fn json(body: &Value) -> Self {
        Self::new("200 OK", "application/json", body.to_string())
    }

    pub(crate) fn events(messages: &[Value]) -> Self {
        let events = messages.iter().map(|message| format!("event: message\ndata: {message}\n\n"));
        Self::new("200 OK", "text/event-stream", events.collect())
    }

    pub(crate) fn stream() -> Self {
        Self { never_ends: true, ..Self::new("200 OK", "text/event-stream", String::new()) }
    }

    pub(crate) fn header(mut self, line: &str) -> Self {
        self.head += &format!("{line}\r\n");
        self
    }

    pub(crate) fn closing(self) -> Self {
        Self { closes: true, ..self.header("Connection: close") }
    }
}

/// Serves until it is dropped.
pub(crate) struct Server {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<Request>>>,
    _serving: JoinSet<()>,
}

impl Server {
    pub(crate) async fn start(respond: impl Fn(&Request) -> Response + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, requests, respond) =
            (listener.local_addr().unwrap(), Arc::<Mutex<Vec<Request>>>::default(), Arc::new(respond));
        let seen = Arc::clone(&requests);
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            let mut connections = JoinSet::new();
            for number in 0.. {
                let (socket, _) = listener.accept().await.unwrap();
                let (seen, respond) = (Arc::clone(&seen), Arc::clone(&respond));
                connections.spawn(async move { serve(socket, number, &seen, &*respond).await.unwrap_or_default() });
            }
        });
        Self { address, requests, _serving: serving }
    }

    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }
}

/// Ends with the connection.
async fn serve(
    socket: TcpStream,
    connection: usize,
    seen: &Mutex<Vec<Request>>,
    respond: &(impl Fn(&Request) -> Response + Sync),
) -> Option<()> {
    let mut socket = BufReader::new(socket);
    loop {
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            if socket.read_line(&mut line).await.ok()? == 0 {
                return None;
            }
            match line.trim_end() {
                "" => break,
                line => lines.push(line.to_owned()),
            }
        }
        let split = |line: &String| line.split_once(": ").map(|(name, value)| (name.to_lowercase(), value.to_owned()));
        let headers: Vec<(String, String)> = lines.iter().filter_map(split).collect();
        let length = headers.iter().find(|(name, _)| name == "content-length").map_or("0", |(_, value)| value);
        let mut body = vec![0; length.parse().ok()?];
        socket.read_exact(&mut body).await.ok()?;
        let body = serde_json::from_slice(&body).unwrap_or_default();
        let line = lines.first()?.clone();
        let request = {
            let mut seen = seen.lock().unwrap();
            let number = seen.len();
            seen.push(Request { number, connection, line, headers, body });
            seen.last()?.clone()
        };
        let Response { head, body, closes, never_ends } = respond(&request);
        let length = if never_ends { String::new() } else { format!("Content-Length: {}\r\n", body.len()) };
        socket.write_all(format!("{head}{length}\r\n{body}").as_bytes()).await.ok()?;
        if never_ends {
            std::future::pending::<()>().await;
        }
        if closes {
            return None;
        }
    }
}
