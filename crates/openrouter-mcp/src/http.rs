//! Streamable HTTP: access to the server, and the limits of requests.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::header::{HOST, ORIGIN, WWW_AUTHENTICATE};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use toolbus_core::caller::AgentName;
use toolbus_mcp_server::{AuthOutcome, McpServer, Principal, TokenAuth, router};

use crate::MAX_BODY;

/// Settings by which the server is reached over HTTP.
pub(crate) struct HttpSettings {
    pub(crate) listen: SocketAddr,
    /// Bearer token of clients; absent: every program of this machine is one.
    pub(crate) token: Option<String>,
    /// Names, beside addresses and `localhost`, that the header `Host` may have.
    pub(crate) hosts: Vec<String>,
}

struct Guard {
    tokens: TokenAuth,
    hosts: Vec<String>,
}

/// Serves `/mcp` and `/healthz` until `stop` is cancelled.
///
/// # Errors
///
/// If the port is not available, or any client could use the server.
pub(crate) async fn serve(server: McpServer, settings: HttpSettings, stop: CancellationToken) -> io::Result<()> {
    let HttpSettings { listen, token, hosts } = settings;
    if token.is_none() && !listen.ip().is_loopback() {
        return Err(io::Error::other(
            "other machines reach this address: give --token-file with a token for clients, or listen on 127.0.0.1",
        ));
    }
    let tokens = TokenAuth::new(stop.clone());
    let client = AgentName::parse("client").map_err(io::Error::other)?;
    tokens.replace(token.iter().map(|token| (client.clone(), token.as_str())), token.is_none());
    let guard = Arc::new(Guard { tokens, hosts });
    let mcp = router(server).layer(from_fn_with_state(guard, check));
    let routes = Router::new().route("/healthz", get(async || "ok\n")).nest("/mcp", mcp);
    let listener = TcpListener::bind(listen).await?;
    tracing::info!(address = %listener.local_addr()?, "listening for MCP clients at /mcp");
    axum::serve(listener, routes).with_graceful_shutdown(stop.cancelled_owned()).await
}

/// Lets a request pass that is for this server, of a known client, and of bounded size.
async fn check(State(guard): State<Arc<Guard>>, request: Request, next: Next) -> Response {
    let (mut parts, body) = request.into_parts();
    // Refuses foreign `Host` headers (DNS rebinding).
    if !guard.is_ours(&parts.headers) {
        return refuse(StatusCode::MISDIRECTED_REQUEST, "the header Host names another server: see --allowed-host");
    }
    if parts.headers.contains_key(ORIGIN) {
        return refuse(StatusCode::FORBIDDEN, "pages of a browser may not use this server");
    }
    let principal = match guard.tokens.authenticate(&parts.headers) {
        AuthOutcome::Principal(principal) => principal,
        _ => {
            let refused =
                refuse(StatusCode::UNAUTHORIZED, "give the token of this server: Authorization: Bearer TOKEN");
            return ([(WWW_AUTHENTICATE, "Bearer")], refused).into_response();
        }
    };
    parts.extensions.insert::<Principal>(principal);
    match to_bytes(body, MAX_BODY).await {
        Ok(whole) => next.run(Request::from_parts(parts, Body::from(whole))).await,
        Err(_) => refuse(StatusCode::PAYLOAD_TOO_LARGE, "a message has at most 1 MiB"),
    }
}

impl Guard {
    fn is_ours(&self, headers: &HeaderMap) -> bool {
        let Some(host) = headers.get(HOST).and_then(|host| host.to_str().ok()?.parse::<Authority>().ok()) else {
            return false;
        };
        let name = host.host().trim_start_matches('[').trim_end_matches(']');
        let is_local = name.eq_ignore_ascii_case("localhost") || name.parse::<std::net::IpAddr>().is_ok();
        is_local || self.hosts.iter().any(|own| own.eq_ignore_ascii_case(name))
    }
}

fn refuse(status: StatusCode, text: &str) -> Response {
    (status, format!("{text}\n")).into_response()
}
