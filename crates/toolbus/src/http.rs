//! The HTTP server: liveness, readiness and status for everybody, the door for operators, and the MCP door.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use toolbus_core::redact::Redactor;

pub mod admin;
mod answers;
mod auth;
mod bodies;
mod connections;
mod health;
mod host;
pub mod listeners;
mod origin;
mod probe;
mod redacted;
mod refusal;
mod routes;
mod scripts;
mod throttle;

pub use auth::Entrance;
pub use health::{
    Blocker, BrokerStatus, Build, Consumer, Counts, Health, LastReload, McpServer, Readiness, ReloadCounts,
    ReloadReport, Status,
};
pub use probe::{ProbeError, probe};
pub use scripts::{ScriptState, ScriptStatus};

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

/// What the server answers.
pub struct Site {
    /// What everybody may ask.
    pub health: Arc<Health>,
    /// What operators may, with a token that it looks for itself; absent: nothing.
    pub admin: Option<Router>,
    /// Who may enter.
    pub entrance: Arc<Entrance>,
    /// What those find who have entered.
    pub door: Router,
    /// Removes secrets from what operators are told.
    pub redactor: Redactor,
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
    pub async fn run(self, site: Site, stop: CancellationToken) {
        connections::serve(self.listener, routes::router(site), stop).await;
    }
}

#[cfg(test)]
mod tests;
