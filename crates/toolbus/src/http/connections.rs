//! Connections: how many there may be, how long each may take, and their orderly end.

mod drive;
mod io;
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

use self::io::Watched;
use self::service::Service;
use self::slots::Slots;
pub(crate) use self::state::Link;

/// Connections that have shown no valid token, served at a time. A further one takes the place of one that waits for
/// a request, or waits itself.
pub(super) const MAX_STRANGERS: usize = 64;
/// Connections that have shown a valid token.
pub(super) const MAX_KNOWN: usize = 1216;
/// Connections of clients without a token, where the door is open. They take no place of those that have one.
pub(super) const MAX_GUESTS: usize = 256;
/// Connections that gave a wrong token and wait for their refusal.
pub(super) const MAX_SLOWED: usize = 256;
/// How long a client may take to send the head of a request, from its first byte.
pub(super) const HEAD_TIME: Duration = Duration::from_secs(2);
/// How long a head is waited for whatever else happens: one that is sent at once has come by then.
pub(super) const GRACE: Duration = Duration::from_millis(250);
/// How long one request and its answer may take, where nothing else is said.
pub(super) const REQUEST_TIME: Duration = Duration::from_secs(10);
/// How long a connection may wait for its next request.
pub(super) const IDLE_TIME: Duration = Duration::from_secs(60);
/// How long a client may take none of what is sent to it.
pub(super) const WRITE_TIME: Duration = Duration::from_secs(30);
/// What the system keeps of an answer until the client takes it, in bytes. By itself it would keep some 4 MiB, and then
/// tell of what is taken by the third of that: a client that takes 100 kB/s would seem to take nothing for ten seconds,
/// and each that does not read would cost as much.
pub(super) const SEND_BUFFER: usize = 256 * 1024;
/// Largest head of a request, in bytes.
const MAX_HEAD: usize = 16 * 1024;
/// Most headers of a request.
const MAX_HEADERS: usize = 64;
/// Pause after the system could not hand out a connection, for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Where connections come from.
pub(super) trait Accept {
    /// One connection.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// The next connection, and the address at its other end if it has one.
    fn accept_one(&self) -> impl Future<Output = Result<(Self::Stream, Option<IpAddr>)>> + Send;
}

impl Accept for TcpListener {
    type Stream = TcpStream;

    async fn accept_one(&self) -> Result<(TcpStream, Option<IpAddr>)> {
        let (stream, remote): (_, SocketAddr) = self.accept().await?;
        // Head and body of an answer may leave in two writes; the second must not wait until the first is acknowledged.
        // One that cannot be set is one of a client that is gone.
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

/// Serves until `stop` is cancelled, then lets requests in hand finish.
pub(super) async fn serve(listener: impl Accept, routes: Router, stop: CancellationToken) {
    let slots = Arc::new(Slots::new());
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
            let Some(link) = slots.enter(remote).await else { return };
            connections.spawn(serve_one(stream, link, routes.clone(), stop.clone()));
        }
    };
    stop.run_until_cancelled(accepting).await;
    drop(listener);
    connections.close();
    connections.wait().await;
}

/// Whether it is the client that failed, before its connection was taken.
fn is_gone(error: &Error) -> bool {
    use ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// Serves the requests of one connection.
async fn serve_one<S>(stream: S, link: Arc<Link>, routes: Router, stop: CancellationToken)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let left = link.leave_on_drop();
    let connection = http1::Builder::new()
        // Times are kept by the link: those of the server itself are no different between a head and a rest.
        .header_read_timeout(None)
        .max_headers(MAX_HEADERS)
        .max_buf_size(MAX_HEAD)
        .serve_connection(
            TokioIo::new(Watched::new(stream, Arc::clone(&link))),
            Service::new(routes, Arc::clone(&link)),
        );
    drive::drive(connection, &link, &stop).await;
    drop(left);
}
