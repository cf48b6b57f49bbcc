//! The HTTP door for operators: liveness, readiness and status. Nothing that can be asked here changes anything.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

mod health;
mod host;
mod probe;
mod routes;

pub use health::{Blocker, BrokerStatus, Build, Consumer, Counts, Health, Readiness, Status};
pub use probe::{ProbeError, probe};

/// Connections served at a time; further ones wait in the system's queue.
const MAX_CONNECTIONS: usize = 64;
/// How long a client may take to send the head of its request.
const HEAD_TIME: Duration = Duration::from_secs(2);
/// How long a connection may last: one request and its answer.
const CONNECTION_TIME: Duration = Duration::from_secs(10);
/// Largest head of a request, in bytes.
const MAX_HEAD: usize = 16 * 1024;
/// Most headers of a request.
const MAX_HEADERS: usize = 64;
/// Pause after the system could not hand out a connection, for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Why the server cannot listen, and which key to change.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// Another program listens there.
    #[error("cannot listen on {0}: the port is in use. End the other program, or set http.listen to another port")]
    PortInUse(SocketAddr),
    /// The address belongs to no interface.
    #[error("cannot listen on {0}: this machine has no such address. Set http.listen to one that it has")]
    NoSuchAddress(SocketAddr),
    /// The port is reserved for the administrator.
    #[error("cannot listen on {0}: permission denied. Set http.listen to a port from 1024 on")]
    Forbidden(SocketAddr),
    /// Anything else that the system says.
    #[error("cannot listen on {address} (http.listen): {source}")]
    Other {
        /// The address of the configuration.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
}

impl HttpError {
    fn new(address: SocketAddr, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::AddrInUse => Self::PortInUse(address),
            io::ErrorKind::AddrNotAvailable => Self::NoSuchAddress(address),
            io::ErrorKind::PermissionDenied => Self::Forbidden(address),
            _ => Self::Other { address, source },
        }
    }
}

/// A server that has its port and serves once it is run.
#[derive(Debug)]
pub struct HttpServer {
    listener: TcpListener,
    address: SocketAddr,
}

impl HttpServer {
    /// Takes the port. Port 0 takes a free one; the real address is logged.
    ///
    /// # Errors
    ///
    /// When the port cannot be had; the text says which key to change.
    pub async fn bind(listen: SocketAddr) -> Result<Self, HttpError> {
        let listener = TcpListener::bind(listen).await.map_err(|source| HttpError::new(listen, source))?;
        let address = listener.local_addr().map_err(|source| HttpError::new(listen, source))?;
        tracing::info!(%address, "HTTP: listening");
        Ok(Self { listener, address })
    }

    /// The address that is listened on.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `stop` is cancelled, then lets requests in hand finish.
    pub async fn run(self, health: Arc<Health>, stop: CancellationToken) {
        let routes = routes::router(health);
        let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let connections = TaskTracker::new();
        while let Some((stream, slot)) = self.next(&slots, &stop).await {
            connections.spawn(serve(stream, slot, routes.clone(), stop.clone()));
        }
        drop(self.listener);
        connections.close();
        connections.wait().await;
    }

    /// The next connection, once there is a slot for it; none when stopping.
    async fn next(
        &self,
        slots: &Arc<Semaphore>,
        stop: &CancellationToken,
    ) -> Option<(TcpStream, OwnedSemaphorePermit)> {
        let next = async {
            let slot = Arc::clone(slots).acquire_owned().await.ok()?;
            loop {
                match self.listener.accept().await {
                    Ok((stream, _)) => return Some((stream, slot)),
                    Err(error) => {
                        tracing::warn!(%error, "HTTP: no connection could be accepted");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                }
            }
        };
        stop.run_until_cancelled(next).await.flatten()
    }
}

/// Serves one request of one connection.
async fn serve(stream: TcpStream, slot: OwnedSemaphorePermit, routes: Router, stop: CancellationToken) {
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

#[cfg(test)]
mod tests;
