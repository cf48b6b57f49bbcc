//! Authentication and bounds of `/mcp`: host, origin, token and body of each request, and the size of its response.

use std::collections::HashMap;
use std::mem;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::request::Parts;
use axum::http::{Method, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use parking_lot::{Mutex, RwLock};
use tokio_util::sync::CancellationToken;
use toolbus_core::audit::{Audit, AuditRecord};
use toolbus_core::throttle::Throttle;
use toolbus_mcp_server::{AuthOutcome, Principal, TokenAuth};

use super::bodies::{Bodies, QueuedResponses};
use super::origin::{self, HostNames};
use super::refusal::{HttpRefusal, PENALTY};
use super::slots::ConnectionState;
use crate::config::http::Open;
use crate::config::{Config, HttpConfig};

/// Time between two records of one address.
const RECORD_PERIOD: Duration = Duration::from_secs(10);
/// Most addresses that are counted apart.
const MAX_ADDRESSES: usize = 256;
/// Refusal of a request whose `Host` header does not name this server.
const WRONG_HOST: &str = "this server is addressed by IP address, as `localhost`, or by a name that its operator lists \
                          in http.allowed_hosts: check the host in the address, and the `Host` header that a proxy \
                          sends on";
/// Parameters of a URL that look like a token.
const TOKENS_IN_URLS: [&str; 6] = ["token", "access_token", "api_key", "apikey", "key", "authorization"];

/// Admits requests to the MCP server. Tokens and names follow the configuration.
pub struct HttpAuth {
    tokens: TokenAuth,
    names: RwLock<Arc<HostNames>>,
    wrong_tokens: Arc<WrongTokens>,
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
            wrong_tokens: Arc::new(WrongTokens::new(audit)),
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
        let names = HostNames { hosts: config.allowed_hosts.clone(), origins: config.allowed_origins.clone() };
        *self.names.write() = Arc::new(names);
    }

    /// Records wrong tokens, those of operators among them.
    pub(super) fn wrong_tokens(&self) -> Arc<WrongTokens> {
        Arc::clone(&self.wrong_tokens)
    }

    pub(super) fn names(&self) -> Arc<HostNames> {
        Arc::clone(&self.names.read())
    }
}

/// The routes of the MCP server behind `auth`. An admitted request has a [`Principal`] and a complete body.
pub(super) fn guarded(auth: Arc<HttpAuth>, mcp: Router) -> Router {
    // `check` bounds bodies.
    mcp.layer(DefaultBodyLimit::disable()).layer(from_fn_with_state(auth, check))
}

/// Refuses requests for another host.
///
/// Prevents DNS rebinding: a website whose name resolves to this address has browsers send requests here, with that name
/// in `Host`. Literal addresses resolve to nothing else, and are what probes send.
pub(super) async fn check_host(State(auth): State<Arc<HttpAuth>>, request: Request, next: Next) -> Response {
    if origin::is_ours(&request, &auth.names()) {
        return next.run(request).await;
    }
    match is_for_mcp(request.uri().path()) {
        true => HttpRefusal::misdirected(WRONG_HOST).respond(request.into_body()).await,
        false => (StatusCode::MISDIRECTED_REQUEST, format!("{WRONG_HOST}\n")).into_response(),
    }
}

/// Whether this is a path of the MCP server, whose clients read JSON-RPC errors alone.
fn is_for_mcp(path: &str) -> bool {
    path.strip_prefix("/mcp").is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

async fn check(State(auth): State<Arc<HttpAuth>>, request: Request, next: Next) -> Response {
    let (mut parts, body) = request.into_parts();
    let page = match origin::page(&parts.headers, &auth.names()) {
        Ok(page) => page,
        Err(refusal) => return refusal.respond(body).await,
    };
    if parts.method == Method::OPTIONS && page.is_some() && origin::is_preflight(&parts.headers) {
        return origin::preflight(page, &parts.headers);
    }
    let response = match auth.admit(&parts).await {
        Err(refusal) => refusal.respond(body).await,
        Ok(principal) => match auth.bodies.read(body, &parts.headers).await {
            Err((refusal, rest)) => refusal.respond(rest).await,
            Ok(whole) => {
                let token = principal.token;
                parts.extensions.insert::<Principal>(principal);
                let response = next.run(Request::from_parts(parts, Body::from(whole.bytes))).await;
                drop(whole.room);
                auth.responses.counted(response, token).await
            }
        },
    };
    origin::readable(page, response)
}

impl HttpAuth {
    /// Identifies the client of a request, and gives its connection a slot.
    ///
    /// # Errors
    ///
    /// If the client may not use the MCP server, or no slot is free.
    async fn admit(&self, parts: &Parts) -> Result<Principal, HttpRefusal> {
        let connection = parts.extensions.get::<Arc<ConnectionState>>();
        let principal = match self.tokens.authenticate(&parts.headers) {
            AuthOutcome::Closed => return Err(HttpRefusal::closed()),
            _ if has_token(parts.uri.query()) => return Err(HttpRefusal::in_url()),
            AuthOutcome::Principal(principal) => principal,
            AuthOutcome::NoToken => return Err(HttpRefusal::no_token()),
            AuthOutcome::Unreadable => return Err(HttpRefusal::unreadable()),
            AuthOutcome::Wrong => {
                self.wrong_tokens.report(connection.and_then(|connection| connection.remote()));
                return Err(match slowed(connection).await {
                    true => HttpRefusal::wrong_token(),
                    false => HttpRefusal::too_many_attempts(),
                });
            }
        };
        if let Some(connection) = connection {
            let has_slot = match principal.token {
                Some(token) => connection.vouch(Some(token)).await,
                None => connection.welcome().await,
            };
            if !has_slot {
                return Err(HttpRefusal::full());
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

/// Whether a query seems to contain a token.
fn has_token(query: Option<&str>) -> bool {
    query.unwrap_or_default().split('&').any(|part| {
        let name = part.split('=').next().unwrap_or_default();
        TOKENS_IN_URLS.iter().any(|known| known.eq_ignore_ascii_case(name))
    })
}

/// Logs and audits wrong tokens: the first of an address at once, then how many followed.
pub(super) struct WrongTokens {
    audit: Arc<dyn Audit>,
    /// Wrong tokens of each address since its last record.
    addresses: Arc<Mutex<HashMap<Option<IpAddr>, u64>>>,
    log: Throttle,
}

impl WrongTokens {
    fn new(audit: Arc<dyn Audit>) -> Self {
        Self { audit, addresses: Arc::default(), log: Throttle::default() }
    }

    /// Reports a wrong token from this address.
    fn report(&self, remote: Option<IpAddr>) {
        if let Some(left_out) = self.log.due() {
            let remote = remote.map(tracing::field::display);
            tracing::warn!(remote, left_out, "MCP server: a wrong token was given");
        }
        self.record(remote);
    }

    /// Records a wrong token from this address.
    pub(super) fn record(&self, remote: Option<IpAddr>) {
        if let Some(counted) = self.begins(remote) {
            self.audit.record(AuditRecord::refused_entry(remote, 0));
            self.follow(counted);
        }
    }

    /// Counts a wrong token. Returns the address that it is counted for, if it is the first.
    fn begins(&self, remote: Option<IpAddr>) -> Option<Option<IpAddr>> {
        let mut addresses = self.addresses.lock();
        // Addresses beyond the limit are counted together.
        let key = if addresses.contains_key(&remote) || addresses.len() < MAX_ADDRESSES { remote } else { None };
        match addresses.get_mut(&key) {
            Some(left_out) => {
                *left_out = left_out.saturating_add(1);
                None
            }
            None => {
                addresses.insert(key, 0);
                Some(key)
            }
        }
    }

    /// Records how many followed in each period, until a period has none.
    #[expect(clippy::disallowed_methods, reason = "the task ends after a period without wrong tokens")]
    fn follow(&self, remote: Option<IpAddr>) {
        let (audit, addresses) = (Arc::clone(&self.audit), Arc::clone(&self.addresses));
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(RECORD_PERIOD).await;
                let left_out = {
                    let mut addresses = addresses.lock();
                    let Some(count) = addresses.get_mut(&remote) else { return };
                    let left_out = mem::take(count);
                    if left_out == 0 {
                        addresses.remove(&remote);
                    }
                    left_out
                };
                if left_out == 0 {
                    return;
                }
                audit.record(AuditRecord::refused_entry(remote, left_out));
            }
        });
    }
}
