//! Connections: how many are served at a time, how long each may take, and their orderly end.

mod service;
mod slots;
mod state;

use std::future::Future;
use std::io::{Error, ErrorKind, Result};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use rustix::net::sockopt::set_socket_send_buffer_size;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use toolbus_core::Clock;

use self::service::{Service, Watched, drive};
use self::slots::Slots;
pub(crate) use self::state::ConnectionState;

/// Slots of connections that have shown no valid token. A further connection takes the slot of one that waits for a
/// request, or waits for a slot.
pub(super) const MAX_ANONYMOUS: usize = 64;
/// Slots of connections that have shown a valid token.
pub(super) const MAX_KNOWN: usize = 1216;
/// Slots of clients without a token, where `http.open` admits them. They take no slot of clients with a token.
pub(super) const MAX_GUESTS: usize = 256;
/// Slots of connections that gave a wrong token and wait for their refusal.
pub(super) const MAX_SLOWED: usize = 256;
/// How long a client may take to send the head of a request, from its first byte.
pub(super) const HEAD_TIME: Duration = Duration::from_secs(2);
/// How long a head is waited for in any case: one that is sent at once has arrived by then.
pub(super) const GRACE: Duration = Duration::from_millis(250);
/// How long a request and its response may take by default.
pub(super) const REQUEST_TIME: Duration = Duration::from_secs(10);
/// How long a connection may wait for its next request.
pub(super) const IDLE_TIME: Duration = Duration::from_secs(60);
/// How long a client may read nothing of what is sent to it.
pub(super) const WRITE_TIME: Duration = Duration::from_secs(30);
/// Size of the socket's send buffer, in bytes. The default grows to some 4 MiB, and progress is reported by thirds of
/// it: a client that reads 100 kB/s would seem to read nothing for ten seconds, and each client that does not read would
/// cost as much.
pub(super) const SEND_BUFFER: usize = 256 * 1024;
/// Largest head of a request, in bytes.
const MAX_HEAD: usize = 16 * 1024;
/// Most headers of a request.
const MAX_HEADERS: usize = 64;
/// Pause after `accept` failed for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A source of connections.
pub(super) trait Accept {
    /// A connection.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// The next connection, and the address at its other end if it has one.
    fn accept_one(&self) -> impl Future<Output = Result<(Self::Stream, Option<IpAddr>)>> + Send;
}

impl Accept for TcpListener {
    type Stream = TcpStream;

    async fn accept_one(&self) -> Result<(TcpStream, Option<IpAddr>)> {
        let (stream, remote): (_, SocketAddr) = self.accept().await?;
        // Head and body of a response may leave in two writes; the second must not wait until the first is acknowledged.
        // Setting an option fails only if the client is gone.
        let _ = stream.set_nodelay(true);
        let _ = set_socket_send_buffer_size(&stream, SEND_BUFFER);
        Ok((stream, Some(remote.ip().to_canonical())))
    }
}

impl Accept for UnixListener {
    type Stream = UnixStream;

    async fn accept_one(&self) -> Result<(UnixStream, Option<IpAddr>)> {
        self.accept().await.map(|(stream, _)| (stream, None))
    }
}

/// Serves until `stop` is cancelled, then lets requests in progress finish.
pub(super) async fn serve(listener: impl Accept, routes: Router, stop: CancellationToken) {
    let slots = Arc::new(Slots::new(Clock::SYSTEM));
    let connections = TaskTracker::new();
    let accepting = async {
        loop {
            let (stream, remote) = match listener.accept_one().await {
                Ok(accepted) => accepted,
                Err(error) if is_gone(&error) => continue,
                Err(error) => {
                    tracing::warn!(%error, "HTTP: no connection could be accepted");
                    slots.make_room();
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let Some(state) = slots.enter(remote).await else { return };
            connections.spawn(serve_one(stream, state, routes.clone(), stop.clone()));
        }
    };
    stop.run_until_cancelled(accepting).await;
    drop(listener);
    connections.close();
    connections.wait().await;
}

/// Whether the client ended the connection before it was accepted.
fn is_gone(error: &Error) -> bool {
    use ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// Serves the requests of one connection.
async fn serve_one<S>(stream: S, state: Arc<ConnectionState>, routes: Router, stop: CancellationToken)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let deregister = state.deregister_on_drop();
    let connection = http1::Builder::new()
        // `ConnectionState` keeps the times: hyper does not tell a slow head from an idle connection.
        .header_read_timeout(None)
        .max_headers(MAX_HEADERS)
        .max_buf_size(MAX_HEAD)
        .serve_connection(
            TokioIo::new(Watched::new(stream, Arc::clone(&state))),
            Service::new(routes, Arc::clone(&state)),
        );
    drive(connection, &state, &stop).await;
    drop(deregister);
}
