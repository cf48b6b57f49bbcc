//! The entrance of the HTTP port. It runs on the thread of health probes, beside the threads that everything else runs
//! on: it serves those itself, and hands all other connections on. So other connections take neither the probes' slots
//! nor their time.

use std::collections::VecDeque;
use std::future::pending;
use std::io;
use std::net::{IpAddr, TcpStream as IdleStream};
use std::sync::Arc;

use axum::Router;
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::connections::{Accept, next, serve_one};
use super::slots::{HEAD_TIME, Slots};

/// Paths of health probes.
const PROBES: [&str; 4] = ["/livez", "/readyz", "/healthz", "/status"];
/// The end of a head.
const END: &[u8] = b"\r\n\r\n";
/// Largest head of a probe, in bytes.
const MAX_HEAD: usize = 4 * 1024;
/// Connections that have sent nothing yet. A further one replaces the oldest.
const MAX_SILENT: usize = 256;
/// Connections that were handed on, and not accepted yet. Further ones are closed.
const MAX_HANDED: usize = 1024;

/// Connections that the entrance has handed on.
pub(super) struct Handed(mpsc::Receiver<(IdleStream, Option<IpAddr>)>);

impl Accept for Handed {
    type Stream = TcpStream;

    async fn accept_one(&mut self) -> io::Result<(TcpStream, Option<IpAddr>)> {
        match self.0.recv().await {
            Some((stream, remote)) => Ok((TcpStream::from_std(stream)?, remote)),
            // The entrance is closed: the server stops.
            None => pending().await,
        }
    }
}

/// The entrance of a port.
pub(super) struct Entrance {
    routes: Router,
    /// Of probes.
    slots: Arc<Slots>,
    /// Of all other connections.
    other_slots: Arc<Slots>,
    others: mpsc::Sender<(IdleStream, Option<IpAddr>)>,
    stop: CancellationToken,
}

impl Entrance {
    /// An entrance, and where the connections come out that are no probes.
    pub(super) fn new(
        routes: Router,
        slots: Arc<Slots>,
        other_slots: Arc<Slots>,
        stop: CancellationToken,
    ) -> (Arc<Self>, Handed) {
        let (others, handed) = mpsc::channel(MAX_HANDED);
        (Arc::new(Self { routes, slots, other_slots, others, stop }), Handed(handed))
    }

    /// Accepts connections until the server stops, then lets the probes finish.
    pub(super) async fn run(self: Arc<Self>, mut listener: TcpListener) {
        let connections = TaskTracker::new();
        let mut silent = VecDeque::<AbortHandle>::new();
        let accepting = async {
            loop {
                let make_room = || {
                    silent.iter().take(1).for_each(AbortHandle::abort);
                    self.other_slots.make_room();
                };
                let (stream, remote) = next(&mut listener, make_room).await;
                // Most clients have sent their first bytes by now, and wait for no other.
                let head = first_bytes(&stream);
                let entering = connections.spawn(Arc::clone(&self).enter(stream, remote, head.is_some()));
                if head.is_none() {
                    silent.retain(|waiting| !waiting.is_finished());
                    if silent.len() >= MAX_SILENT {
                        silent.pop_front().into_iter().for_each(|oldest| oldest.abort());
                    }
                    silent.push_back(entering.abort_handle());
                }
            }
        };
        self.stop.run_until_cancelled(accepting).await;
        drop(listener);
        connections.close();
        connections.wait().await;
    }

    /// Serves a probe, or hands the connection on, once its first bytes are there.
    async fn enter(self: Arc<Self>, stream: TcpStream, remote: Option<IpAddr>, has_spoken: bool) {
        if !has_spoken {
            // Not `readable`, which may be so though there is nothing.
            let mut first = [0];
            let spoken = timeout(HEAD_TIME, stream.peek(&mut first));
            if !matches!(self.stop.run_until_cancelled(spoken).await, Some(Ok(Ok(1)))) {
                return;
            }
        }
        let head = first_bytes(&stream).unwrap_or_default();
        if is_probe(&head) {
            if let Some(state) = self.slots.enter(remote).await {
                serve_one(stream, state, self.routes.clone(), false, self.stop.clone()).await;
            }
        } else if !head.is_empty()
            && let Ok(stream) = stream.into_std()
        {
            // Closed if too many wait already.
            let _ = self.others.try_send((stream, remote));
        }
    }
}

/// The bytes that have arrived, which stay where they are; `None` if there are none yet.
fn first_bytes(stream: &TcpStream) -> Option<Vec<u8>> {
    let mut bytes = vec![0; MAX_HEAD];
    match recv(stream, bytes.as_mut_slice(), RecvFlags::PEEK) {
        Ok((_, length)) => bytes.truncate(length),
        Err(Errno::AGAIN | Errno::INTR) => return None,
        // The connection has ended.
        Err(_) => bytes.clear(),
    }
    Some(bytes)
}

/// Whether this begins with the whole head of a health probe; bytes after it get no response. A head that comes in
/// pieces is served like any other request: its connection has to wait.
fn is_probe(head: &[u8]) -> bool {
    let path = head.strip_prefix(b"GET ").or_else(|| head.strip_prefix(b"HEAD "));
    let is_path = |path: &[u8]| {
        let rest = PROBES.iter().find_map(|probe| path.strip_prefix(probe.as_bytes()));
        rest.is_some_and(|rest| rest.starts_with(b" ") || rest.starts_with(b"?"))
    };
    path.is_some_and(is_path) && head.windows(END.len()).any(|bytes| bytes == END)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_complete_head_of_a_health_request_is_a_probe() {
        for (head, expected) in [
            ("GET /livez HTTP/1.1\r\nHost: a\r\n\r\n", true),
            ("HEAD /readyz?verbose HTTP/1.0\r\n\r\n", true),
            ("GET /livez HTTP/1.1\r\nHost: a\r\n", false),
            ("GET /livez2 HTTP/1.1\r\n\r\n", false),
            ("GET /mcp HTTP/1.1\r\n\r\n", false),
            ("POST /livez HTTP/1.1\r\n\r\n{}", false),
            ("GET /livez HTTP/1.1\r\n\r\nGET /livez HTTP/1.1\r\n", true),
            ("", false),
        ] {
            assert_eq!(is_probe(head.as_bytes()), expected, "{head:?}");
        }
    }
}
