//! Authentication and bounds of `/mcp`: origin, token and body of each request, and the size of its response.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::Method;
use axum::http::request::Parts;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use parking_lot::RwLock;
use tokio_util::sync::CancellationToken;
use toolbus_core::audit::Audit;
use toolbus_mcp_server::{AuthOutcome, Principal, TokenAuth};

use super::bodies::{Bodies, QueuedResponses};
use super::origin::{self, Names};
use super::refusal::Refusal;
use super::slots::ConnectionState;
use super::throttle::WrongTokens;
use crate::config::http::Open;
use crate::config::{Config, HttpConfig};

/// Delay of the response to a wrong token: as long as a client may hold a connection by sending nothing, so that guessing
/// delays others no more than silence does.
pub(super) const PENALTY: Duration = Duration::from_secs(2);
/// Parameters of a URL that look like a token.
const TOKENS_IN_URLS: [&str; 6] = ["token", "access_token", "api_key", "apikey", "key", "authorization"];

/// Admits requests to the MCP server. Tokens and names follow the configuration.
pub struct HttpAuth {
    tokens: TokenAuth,
    names: RwLock<Arc<Names>>,
    wrong_tokens: WrongTokens,
    bodies: Bodies,
    responses: QueuedResponses,
}

impl HttpAuth {
    /// Admits the clients of `config`. Cancelling `stop` ends every session opened through it.
    #[must_use]
    pub fn new(config: &Config, audit: Arc<dyn Audit>, stop: CancellationToken) -> Arc<Self> {
        let auth = Self {
            tokens: TokenAuth::new(stop),
            names: RwLock::default(),
            wrong_tokens: WrongTokens::new(audit),
            bodies: Bodies::new(config.max_mcp_body()),
            responses: QueuedResponses::default(),
        };
        auth.replace(&config.http);
        Arc::new(auth)
    }

    /// Admits the clients of `config` from now on.
    pub fn replace(&self, config: &HttpConfig) {
        let tokens = config.each_token().map(|(agent, token)| (agent.clone(), token.expose()));
        self.tokens.replace(tokens, config.open != Open::No);
        let names = Names { hosts: config.allowed_hosts.clone(), origins: config.allowed_origins.clone() };
        *self.names.write() = Arc::new(names);
    }

    pub(super) fn names(&self) -> Arc<Names> {
        Arc::clone(&self.names.read())
    }
}

/// The routes of the MCP server behind `auth`. An admitted request has a [`Principal`] and a complete body.
pub(super) fn guarded(auth: Arc<HttpAuth>, mcp: Router) -> Router {
    // `check` bounds bodies.
    mcp.layer(DefaultBodyLimit::disable()).layer(from_fn_with_state(auth, check))
}

async fn check(State(auth): State<Arc<HttpAuth>>, request: Request, next: Next) -> Response {
    let (mut parts, body) = request.into_parts();
    let page = match origin::page(&parts.headers, &auth.names()) {
        Ok(page) => page,
        Err(refusal) => return refusal.answer(body).await,
    };
    if parts.method == Method::OPTIONS && page.is_some() && origin::is_preflight(&parts.headers) {
        return origin::preflight(page, &parts.headers);
    }
    let answer = match auth.admit(&parts).await {
        Err(refusal) => refusal.answer(body).await,
        Ok(principal) => match auth.bodies.read(body, &parts.headers).await {
            Err((refusal, rest)) => refusal.answer(rest).await,
            Ok(whole) => {
                let token = principal.token;
                parts.extensions.insert::<Principal>(principal);
                let answer = next.run(Request::from_parts(parts, Body::from(whole.bytes))).await;
                drop(whole.room);
                auth.responses.counted(answer, token).await
            }
        },
    };
    origin::readable(page, answer)
}

impl HttpAuth {
    /// Identifies the client of a request, and gives its connection a slot.
    ///
    /// # Errors
    ///
    /// If the client may not use the MCP server, or no slot is free.
    async fn admit(&self, parts: &Parts) -> Result<Principal, Refusal> {
        let connection = parts.extensions.get::<Arc<ConnectionState>>();
        let principal = match self.tokens.authenticate(&parts.headers) {
            AuthOutcome::Closed => return Err(Refusal::closed()),
            _ if has_token(parts.uri.query()) => return Err(Refusal::in_url()),
            AuthOutcome::Principal(principal) => principal,
            AuthOutcome::NoToken => return Err(Refusal::no_token()),
            AuthOutcome::Unreadable => return Err(Refusal::unreadable()),
            AuthOutcome::Wrong => {
                self.wrong_tokens.report(connection.and_then(|connection| connection.remote()));
                return Err(match slowed(connection).await {
                    true => Refusal::wrong_token(),
                    false => Refusal::too_many_attempts(),
                });
            }
        };
        if let Some(connection) = connection {
            let has_slot = match principal.token {
                Some(token) => connection.vouch(Some(token)).await,
                None => connection.welcome().await,
            };
            if !has_slot {
                return Err(Refusal::full());
            }
            connection.take_any_time();
        }
        Ok(principal)
    }
}

/// Delays the response to a wrong token. Returns whether there was a slot to wait in.
pub(super) async fn slowed(connection: Option<&Arc<ConnectionState>>) -> bool {
    let has_slot = connection.is_none_or(|connection| connection.slow_down());
    if has_slot {
        tokio::time::sleep(PENALTY).await;
    }
    has_slot
}

/// Whether a query holds what looks like a token.
fn has_token(query: Option<&str>) -> bool {
    query.unwrap_or_default().split('&').any(|part| {
        let name = part.split('=').next().unwrap_or_default();
        TOKENS_IN_URLS.iter().any(|known| known.eq_ignore_ascii_case(name))
    })
}
