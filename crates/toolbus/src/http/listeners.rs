//! What listens: the HTTP port, and the Unix socket of the admin API. Both are taken when the daemon is built, and
//! served once it runs.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::body::{Body, HttpBody as _, to_bytes};
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::{CACHE_CONTROL, CONTENT_LENGTH};
use axum::middleware::{from_fn_with_state, map_response_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use toolbus_core::redact::Redactor;

use super::admin::{AdminSocket, SocketError};
use super::auth::HttpAuth;
use super::health::Health;
use super::{auth, connections};
use crate::config::Config;

/// Largest response whose secrets are removed, in bytes: far more than any response has.
const MAX_REDACTED: usize = 64 * 1024 * 1024;

/// Why the HTTP server cannot listen, and which key to change.
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
    /// Any other error of the system.
    #[error("cannot listen on {address} (http.listen): {source}")]
    Other {
        /// The address of the configuration.
        address: SocketAddr,
        /// The error of the system.
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

/// Why the daemon cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum ListenersError {
    /// The port.
    #[error(transparent)]
    Http(#[from] HttpError),
    /// The socket.
    #[error(transparent)]
    Socket(#[from] SocketError),
}

/// What the HTTP server serves.
pub struct HttpState {
    /// Health and status, for anybody.
    pub health: Arc<Health>,
    /// The admin API with its token check; `None` if it has no token.
    pub admin: Option<Router>,
    /// Admits requests to `/mcp`.
    pub auth: Arc<HttpAuth>,
    /// The MCP server.
    pub mcp: Router,
    /// Removes secrets from all responses but those of `/mcp`.
    pub redactor: Redactor,
}

/// The HTTP port and the admin socket.
pub struct Listeners {
    server: HttpServer,
    socket: Option<AdminSocket>,
}

impl Listeners {
    /// Takes the port, and the socket if one is configured.
    ///
    /// # Errors
    ///
    /// If either cannot be had.
    pub async fn bind(config: &Config) -> Result<Self, ListenersError> {
        let server = HttpServer::bind(config.http.listen).await?;
        let socket = match &config.daemon.socket {
            Some(path) => Some(AdminSocket::bind(path).await?),
            None => None,
        };
        Ok(Self { server, socket })
    }

    /// Serves `state` on the port and `admin` on the socket until `stop` is cancelled. The tasks end once the requests in
    /// progress are answered.
    pub fn serve(self, state: HttpState, admin: Router, stop: &CancellationToken) -> JoinSet<()> {
        let mut tasks = JoinSet::new();
        if let Some(socket) = self.socket {
            tasks.spawn(socket.run(redacted(admin, state.redactor.clone()), stop.clone()));
        }
        tasks.spawn(self.server.run(state, stop.clone()));
        tasks
    }
}

/// A server that has taken its port, and serves once it is run.
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
    /// If the port cannot be had; the text names the key to change.
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

    /// Serves until `stop` is cancelled, then lets requests in progress finish.
    pub async fn run(self, state: HttpState, stop: CancellationToken) {
        connections::serve(self.listener, router(state), stop).await;
    }
}

/// Every route of the port, behind the check of the host.
pub(super) fn router(state: HttpState) -> Router {
    let HttpState { health, admin, auth, mcp, redactor } = state;
    let mcp = auth::guarded(Arc::clone(&auth), mcp);
    let open = Router::new()
        .route("/healthz", get(alive))
        .route("/livez", get(alive))
        .route("/readyz", get(ready))
        .route("/status", get(status))
        .fallback(async || (StatusCode::NOT_FOUND, "There are /healthz, /livez, /readyz, /status and /mcp.\n"))
        .with_state(health);
    let with_admin = match admin {
        Some(admin) => open.nest("/v1", admin),
        None => open,
    };
    // The dispatcher has removed secrets from responses of the MCP server.
    redacted(with_admin, redactor).nest("/mcp", mcp).layer(from_fn_with_state(auth, auth::check_host))
}

/// Answers while the process runs: a broker that is away is no reason to restart it.
async fn alive() -> impl IntoResponse {
    no_store("ok\n")
}

async fn ready(State(health): State<Arc<Health>>) -> impl IntoResponse {
    let readiness = health.readiness();
    let code = if readiness.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (code, no_store(Json(readiness)))
}

async fn status(State(health): State<Arc<Health>>) -> impl IntoResponse {
    no_store(Json(health.status().public()))
}

/// Adds `Cache-Control: no-store`.
fn no_store(response: impl IntoResponse) -> impl IntoResponse {
    ([(CACHE_CONTROL, "no-store")], response)
}

/// Removes secrets from the responses of `routes`, streams excepted.
fn redacted(routes: Router, redactor: Redactor) -> Router {
    routes.layer(map_response_with_state(redactor, redact))
}

async fn redact(State(redactor): State<Redactor>, response: Response) -> Response {
    if response.body().size_hint().exact().is_none() {
        return response;
    }
    let (mut head, body) = response.into_parts();
    let Ok(body) = to_bytes(body, MAX_REDACTED).await else {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    };
    match redactor.json(&body) {
        None => Response::from_parts(head, Body::from(body)),
        Some(clean) => {
            head.headers.remove(CONTENT_LENGTH);
            Response::from_parts(head, Body::from(clean))
        }
    }
}
