use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Connections served at a time; further ones wait in the system's queue.
pub(super) const MAX_CONNECTIONS: usize = 64;
/// How long a client may take to send the head of its request.
const HEAD_TIME: Duration = Duration::from_secs(2);
/// How long a connection may last: one request and its answer.
pub(super) const CONNECTION_TIME: Duration = Duration::from_secs(10);
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

    /// The next connection.
    fn accept_one(&self) -> impl Future<Output = io::Result<Self::Stream>> + Send;
}

impl Accept for TcpListener {
    type Stream = TcpStream;

    async fn accept_one(&self) -> io::Result<TcpStream> {
        self.accept().await.map(|(stream, _)| stream)
    }
}

impl Accept for UnixListener {
    type Stream = UnixStream;

    async fn accept_one(&self) -> io::Result<UnixStream> {
        self.accept().await.map(|(stream, _)| stream)
    }
}

/// Serves until `stop` is cancelled, then lets requests in hand finish.
pub(super) async fn serve(listener: impl Accept, routes: Router, stop: CancellationToken) {
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let connections = TaskTracker::new();
    while let Some((stream, slot)) = next(&listener, &slots, &stop).await {
        connections.spawn(serve_one(stream, slot, routes.clone(), stop.clone()));
    }
    drop(listener);
    connections.close();
    connections.wait().await;
}

/// The next connection, once there is a slot for it; none when stopping.
async fn next<L: Accept>(
    listener: &L,
    slots: &Arc<Semaphore>,
    stop: &CancellationToken,
) -> Option<(L::Stream, OwnedSemaphorePermit)> {
    let next = async {
        let slot = Arc::clone(slots).acquire_owned().await.ok()?;
        loop {
            match listener.accept_one().await {
                Ok(stream) => return Some((stream, slot)),
                Err(error) => {
                    tracing::warn!(%error, "HTTP: no connection could be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    };
    stop.run_until_cancelled(next).await.flatten()
}

/// Serves one request of one connection.
async fn serve_one<S>(stream: S, slot: OwnedSemaphorePermit, routes: Router, stop: CancellationToken)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME)
        .max_headers(MAX_HEADERS)
        .max_buf_size(MAX_HEAD)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(routes));
    let whole = async {
        let mut connection = pin!(connection);
        if stop.run_until_cancelled(connection.as_mut()).await.is_none() {
            connection.as_mut().graceful_shutdown();
            // What a client did wrong on its way out is of no interest to an operator.
            drop(connection.await);
        }
    };
    if tokio::time::timeout(CONNECTION_TIME, whole).await.is_err() {
        tracing::debug!("HTTP: a connection took too long and was closed");
    }
    drop(slot);
}
