//! Connections without a network, in paused time: measured times are exact, and no test waits.

#![expect(clippy::disallowed_methods, reason = "tasks of a test end with its runtime")]

use std::io::Result;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use toolbus_core::Clock;

use crate::http::connections::{Accept, serve};
use crate::http::slots::Slots;

/// Size of the window on the way to a client, in bytes.
pub(crate) const WINDOW: usize = 1024;

/// Connections that tests make.
struct Dialled(mpsc::UnboundedReceiver<DuplexStream>);

impl Accept for Dialled {
    type Stream = DuplexStream;

    async fn accept_one(&mut self) -> Result<(DuplexStream, Option<IpAddr>)> {
        match self.0.recv().await {
            Some(stream) => Ok((stream, Some(IpAddr::from([192, 0, 2, 7])))),
            None => std::future::pending().await,
        }
    }
}

/// A server that clients reach without a network.
pub(crate) struct Server {
    dial: mpsc::UnboundedSender<DuplexStream>,
    pub(crate) stop: CancellationToken,
    pub(crate) task: JoinHandle<()>,
}

impl Server {
    pub(crate) fn start(routes: Router) -> Self {
        let (dial, dialled) = mpsc::unbounded_channel();
        let stop = CancellationToken::new();
        let task = tokio::spawn(serve(Dialled(dialled), Arc::new(Slots::new(Clock::SYSTEM)), routes, stop.clone()));
        Self { dial, stop, task }
    }

    pub(crate) fn connect(&self) -> Client {
        let (near, far) = duplex(WINDOW);
        self.dial.send(far).unwrap();
        Client(near)
    }
}

/// A response: its code, its head in lower case, and its body where the length of that is given. The code is 0 when the
/// connection was closed instead.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TestResponse {
    pub(crate) code: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

/// One end of a connection.
pub(crate) struct Client(pub(crate) DuplexStream);

impl Client {
    pub(crate) async fn write(&mut self, text: &str) {
        self.0.write_all(text.as_bytes()).await.unwrap();
    }

    pub(crate) async fn send(&mut self, path: &str) {
        self.write(&format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n")).await;
    }

    pub(crate) async fn get(&mut self, path: &str) -> (u16, String) {
        self.send(path).await;
        self.body().await
    }

    pub(crate) async fn body(&mut self) -> (u16, String) {
        let TestResponse { code, body, .. } = self.response().await;
        (code, body)
    }

    pub(crate) async fn response(&mut self) -> TestResponse {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            match self.0.read_u8().await {
                Ok(byte) => head.push(byte),
                Err(_) => return TestResponse { code: 0, head: String::from_utf8(head).unwrap(), body: String::new() },
            }
        }
        let head = String::from_utf8(head).unwrap().to_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok()).unwrap_or(0);
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).await.unwrap();
        TestResponse { code: head[9..12].parse().unwrap(), head, body: String::from_utf8(body).unwrap() }
    }

    /// Measures the time until the other side closes.
    pub(crate) async fn closed_after(&mut self) -> Duration {
        let started = Clock::SYSTEM.now();
        let _ = self.0.read_to_end(&mut Vec::new()).await;
        Clock::SYSTEM.since(started)
    }
}
