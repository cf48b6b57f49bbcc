//! A raw HTTP client: it sends what no other would.

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

/// A connection to the daemon.
pub struct Connection(BufReader<TcpStream>);

/// A response. The code is 0 when the connection was closed instead.
#[derive(Debug)]
pub struct HttpResponse {
    /// Status of the response.
    pub code: u16,
    /// Head of the response, in lower case.
    pub head: String,
    /// Body of the response, if `Content-Length` is given.
    pub body: String,
}

impl Connection {
    /// Connects.
    ///
    /// # Panics
    ///
    /// When no server listens.
    pub async fn open(listen: &str) -> Self {
        Self(BufReader::new(TcpStream::connect(listen).await.unwrap()))
    }

    /// Sends this. Whether the other side took it.
    pub async fn write(&mut self, text: &str) -> bool {
        self.0.write_all(text.as_bytes()).await.is_ok()
    }

    /// Reads a response.
    ///
    /// # Panics
    ///
    /// When it is none.
    pub async fn response(&mut self) -> HttpResponse {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if !self.0.read_line(&mut head).await.is_ok_and(|read| read > 0) {
                return HttpResponse { code: 0, head, body: String::new() };
            }
        }
        let head = head.to_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
        let mut body = vec![0; length.unwrap_or(0)];
        if self.0.read_exact(&mut body).await.is_err() {
            return HttpResponse { code: 0, head, body: String::new() };
        }
        let code = head.split(' ').nth(1).unwrap().parse().unwrap();
        HttpResponse { code, head, body: String::from_utf8(body).unwrap() }
    }

    /// Sends a message to the MCP server, with these lines in its head.
    pub async fn post(&mut self, head: &[&str], message: &Value) -> HttpResponse {
        let body = message.to_string();
        self.write(&posted(head, body.len())).await;
        self.write(&body).await;
        self.response().await
    }

    /// Reads until this has come. Whether it came.
    pub async fn saw(&mut self, text: &str) -> bool {
        let mut seen = String::new();
        while !seen.contains(text) {
            match self.0.read_line(&mut seen).await {
                Ok(read) if read > 0 => {}
                _ => return false,
            }
        }
        true
    }
}

/// The head of a message to the MCP server, with these lines in it.
#[must_use]
pub fn posted(head: &[&str], length: usize) -> String {
    let host = if head.iter().any(|line| line.starts_with("Host:")) { "" } else { "Host: localhost\r\n" };
    let lines: String = head.iter().map(|line| format!("{line}\r\n")).collect();
    format!(
        "POST /mcp HTTP/1.1\r\n{host}Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\n\
         Content-Length: {length}\r\n{lines}\r\n"
    )
}

/// The first message of a client that has sessions.
#[must_use]
pub fn hello() -> Value {
    let client = json!({"name": "test", "version": "1"});
    let params = json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client});
    json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params})
}

impl HttpResponse {
    /// The value of a header.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }

    /// The body as JSON.
    ///
    /// # Panics
    ///
    /// When it is none.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}
