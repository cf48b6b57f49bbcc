//! The routes of the admin API: open on the Unix socket, behind a token over HTTP.

use std::sync::Arc;

use axum::extract::rejection::{BytesRejection, PathRejection, QueryRejection};
use axum::extract::{DefaultBodyLimit, Path, Query, Request, State};
use axum::http::header::{CACHE_CONTROL, CONNECTION, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, Method, StatusCode};
use axum::middleware::{Next, from_fn_with_state, map_response};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post, put};
use axum::{Extension, Json, Router};
use bytes::Bytes;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use tokio::task::spawn_blocking;
use toolbus_core::Clock;
use toolbus_core::throttle::Throttle;
use toolbus_mcp_client::status::ServerStatus;
use toolbus_mcp_server::auth::bearer;

use super::recent::{RecentFound, RecentQuery, in_rfc3339};
use super::view::{
    AgentOverview, AgentTools, ApiError, Approved, BreakerReset, CallOutcome, CallRates, CallerQuery, Changes,
    DaemonStatus, Disabled, Explained, MAX_BODY, McpRestart, McpServerList, OpenBreakers, PinnedTools, Switching,
    ToolsFound, ToolsQuery,
};
use super::{Actor, Admin, DaemonAdmin, OperatorCalls};
use crate::config::{HttpConfig, Secret};
use crate::http::auth::{WrongTokens, slowed};
use crate::http::slots::ConnectionState;
use crate::http::{HttpAuth, ReloadReport};

/// The paths that exist.
const ROUTES: &str = "no such path: there are /v1/status, /v1/reload, /v1/tools, /v1/agents, /v1/agents/NAME, /v1/calls, /v1/rates, /v1/explain, /v1/disabled, \
                      /v1/disabled/KIND/NAME, /v1/breakers, /v1/breakers/NAME, /v1/mcp, /v1/mcp/NAME, /v1/mcp/NAME/restart, /v1/pins, /v1/pins/NAME and \
                      /v1/pins/NAME/approve";

/// The body of a request.
pub(super) type BodyBytes = Result<Bytes, BytesRejection>;
/// The name in a path.
type NameInPath = Result<Path<String>, PathRejection>;
/// Kind and name of a switch in a path.
type KindAndName = Result<Path<(String, String)>, PathRejection>;
/// The query of a request.
type QueryOf<T> = Result<Query<T>, QueryRejection>;
/// A response as JSON.
pub(super) type ApiResult<T> = Result<Json<T>, ApiError>;

type AdminState = State<Arc<Admin>>;
type ByOperator = Extension<Actor>;

/// Reads a body as JSON.
pub(super) fn parsed<T: DeserializeOwned>(body: BodyBytes) -> Result<T, ApiError> {
    serde_json::from_slice(&body?).map_err(|error| ApiError::bad_request(format!("the body is not usable: {error}")))
}

/// The routes without a token, for the Unix socket.
pub fn open(admin: Arc<Admin>) -> Router {
    Router::new().nest("/v1", routes(admin).layer(Extension(Actor::SOCKET))).fallback(unknown)
}

/// The routes below `/v1`, for requests with a token of operators. Wrong tokens are recorded with those of `auth`.
pub fn guarded(admin: Arc<Admin>, config: &HttpConfig, auth: &HttpAuth) -> Router {
    routes(admin).layer(from_fn_with_state(Arc::new(OperatorTokens::new(config, auth)), check))
}

fn routes(admin: Arc<Admin>) -> Router {
    let of_daemon = |daemon| {
        let reload = post(reload).with_state(Arc::clone(&admin));
        Router::new().route("/status", get(status)).route("/reload", reload).with_state::<()>(daemon)
    };
    let daemon = admin.daemon.clone().map(of_daemon).unwrap_or_default();
    Router::new()
        .route("/agents", get(agents))
        .route("/agents/{name}", get(agent))
        .route("/tools", get(tools))
        .route("/calls", get(recent))
        .route("/rates", get(rates))
        .route("/explain", post(explain))
        .route("/disabled", get(disabled))
        .route("/disabled/{kind}/{name}", put(disable).delete(enable))
        .route("/breakers", get(breakers))
        .route("/breakers/{name}", delete(reset_breaker))
        .route("/pins", get(pins))
        .route("/pins/{name}", get(pin_changes))
        .route("/pins/{name}/approve", post(approve))
        .route("/mcp", get(servers))
        .route("/mcp/{name}", get(server))
        .route("/mcp/{name}/restart", post(restart))
        .with_state(admin)
        .merge(daemon)
        .fallback(unknown)
        .method_not_allowed_fallback(async || {
            ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "the method is not one of this path")
        })
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(map_response(no_store))
}

/// The route for calls. The socket is served on the thread of health probes, and calls run elsewhere.
pub fn calls(admin: Arc<Admin>, calls: OperatorCalls) -> Router {
    Router::new().route("/v1/call", post(call)).with_state((admin, calls))
}

async fn call(
    State((admin, calls)): State<(Arc<Admin>, OperatorCalls)>,
    connection: Option<Extension<Arc<ConnectionState>>>,
    body: BodyBytes,
) -> ApiResult<CallOutcome> {
    let connection = connection.as_ref().map(|Extension(connection)| &**connection);
    Ok(Json(admin.by(Actor::SOCKET).call(&calls, parsed(body)?, connection).await?))
}

async fn unknown() -> ApiError {
    ApiError::not_found(ROUTES)
}

async fn status(State(daemon): State<DaemonAdmin>) -> Json<DaemonStatus> {
    Json(daemon.status())
}

async fn reload(
    State(admin): AdminState,
    Extension(operator): ByOperator,
    connection: Option<Extension<Arc<ConnectionState>>>,
) -> ApiResult<ReloadReport> {
    // Reading specifications takes longer than other requests may.
    if let Some(Extension(connection)) = connection {
        connection.take_any_time();
    }
    Ok(Json(admin.by(operator).reload().await?))
}

async fn agents(State(admin): AdminState) -> Json<AgentOverview> {
    Json(admin.agents())
}

async fn agent(State(admin): AdminState, name: NameInPath, role: QueryOf<CallerQuery>) -> ApiResult<AgentTools> {
    let (Path(name), Query(role)) = (name?, role?);
    Ok(Json(admin.agent(&name, &role)?))
}

async fn tools(State(admin): AdminState, query: QueryOf<ToolsQuery>) -> ApiResult<ToolsFound> {
    let Query(query) = query?;
    Ok(Json(admin.tools(&query)?))
}

async fn explain(State(admin): AdminState, body: BodyBytes) -> ApiResult<Explained> {
    Ok(Json(admin.explain(&parsed(body)?)?))
}

async fn recent(State(admin): AdminState, query: QueryOf<RecentQuery>) -> ApiResult<RecentFound> {
    let Query(query) = query?;
    Ok(Json(admin.recent(&query)))
}

async fn rates(State(admin): AdminState) -> ApiResult<CallRates> {
    let Some(metrics) = admin.metrics.clone() else {
        return Err(ApiError::conflict("metrics are off: set http.metrics to true, and restart the daemon"));
    };
    match spawn_blocking(move || metrics.call_totals()).await {
        Ok(totals) => Ok(Json(CallRates { at: in_rfc3339(Clock::SYSTEM.wall()), totals })),
        Err(_) => Err(ApiError::unavailable("the daemon is ending")),
    }
}

async fn breakers(State(admin): AdminState) -> Json<OpenBreakers> {
    Json(admin.breakers())
}

async fn reset_breaker(
    State(admin): AdminState,
    Extension(operator): ByOperator,
    name: NameInPath,
) -> ApiResult<BreakerReset> {
    let Path(name) = name?;
    Ok(Json(admin.by(operator).reset_breaker(name)?))
}

async fn disabled(State(admin): AdminState) -> Json<Disabled> {
    Json(Disabled { disabled: admin.disabled() })
}

async fn disable(
    State(admin): AdminState,
    Extension(operator): ByOperator,
    switch: KindAndName,
) -> ApiResult<Switching> {
    let Path((kind, name)) = switch?;
    Ok(Json(admin.by(operator).switch(&kind, &name, true).await?))
}

async fn enable(
    State(admin): AdminState,
    Extension(operator): ByOperator,
    switch: KindAndName,
) -> ApiResult<Switching> {
    let Path((kind, name)) = switch?;
    Ok(Json(admin.by(operator).switch(&kind, &name, false).await?))
}

/// Selection of the source.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Of {
    source: Option<String>,
}

async fn pins(State(admin): AdminState, of: QueryOf<Of>) -> ApiResult<PinnedTools> {
    let Query(Of { source }) = of?;
    Ok(Json(admin.pins(source.as_deref())?))
}

async fn pin_changes(State(admin): AdminState, name: NameInPath, of: QueryOf<Of>) -> ApiResult<Changes> {
    let (Path(name), Query(Of { source })) = (name?, of?);
    Ok(Json(admin.pin_changes(&name, source.as_deref())?))
}

async fn approve(
    State(admin): AdminState,
    Extension(operator): ByOperator,
    name: NameInPath,
    body: BodyBytes,
) -> ApiResult<Approved> {
    let Path(name) = name?;
    Ok(Json(admin.by(operator).approve_pin(&name, parsed(body)?).await?))
}

async fn servers(State(admin): AdminState) -> Json<McpServerList> {
    Json(admin.servers())
}

async fn server(State(admin): AdminState, name: NameInPath) -> ApiResult<ServerStatus> {
    let Path(name) = name?;
    Ok(Json(admin.server(&name)?))
}

async fn restart(
    State(admin): AdminState,
    Extension(operator): ByOperator,
    name: NameInPath,
) -> Result<(StatusCode, Json<McpRestart>), ApiError> {
    let Path(name) = name?;
    Ok((StatusCode::ACCEPTED, Json(admin.by(operator).restart_server(&name)?)))
}

/// Adds `Cache-Control: no-store`.
async fn no_store(mut response: Response) -> Response {
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// OperatorRight that a token gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OperatorRight {
    /// Read, and change things.
    Act,
    /// Read.
    Read,
}

/// The tokens of operators over HTTP.
pub struct OperatorTokens {
    /// Of equal length for every token, so that a comparison reveals no length.
    digests: Vec<([u8; 32], OperatorRight)>,
    wrong: Throttle,
    recorded: Arc<WrongTokens>,
}

impl OperatorTokens {
    /// Those of a configuration. Wrong ones are recorded with those of `auth`.
    #[must_use]
    pub fn new(config: &HttpConfig, auth: &HttpAuth) -> Self {
        let tokens = [(&config.admin_token, OperatorRight::Act), (&config.read_token, OperatorRight::Read)];
        let digest = |(token, right): (&Option<Secret>, OperatorRight)| {
            Some((Sha256::digest(token.as_ref()?.expose()).into(), right))
        };
        let digests = tokens.into_iter().filter_map(digest).collect();
        Self { digests, wrong: Throttle::default(), recorded: auth.wrong_tokens() }
    }

    /// The right that a token gives, if it is one of them.
    pub fn right(&self, given: &[u8]) -> Option<OperatorRight> {
        let given: [u8; 32] = Sha256::digest(given).into();
        let found = self.digests.iter().filter(|(digest, _)| given.ct_eq(digest).into());
        found.map(|(_, right)| *right).next()
    }

    /// Logs and records a wrong token, and delays its response. Returns whether there was a slot to wait in.
    pub(in crate::http) async fn is_wrong(&self, connection: Option<&Arc<ConnectionState>>) -> bool {
        if let Some(left_out) = self.wrong.due() {
            tracing::warn!(left_out, "admin: a wrong token was given over HTTP");
        }
        self.recorded.record(connection.and_then(|connection| connection.remote()));
        slowed(connection).await
    }
}

/// Whether a request changes nothing.
fn is_read(request: &Request) -> bool {
    matches!(*request.method(), Method::GET | Method::HEAD) || request.uri().path() == "/explain"
}

/// Refuses requests without the token. A wrong one is logged, and refused after a delay.
async fn check(State(tokens): State<Arc<OperatorTokens>>, mut request: Request, next: Next) -> Response {
    let connection = request.extensions().get::<Arc<ConnectionState>>().cloned();
    let connection = connection.as_ref();
    request.extensions_mut().insert(Actor::over_http(connection.and_then(|connection| connection.remote())));
    let given = bearer(request.headers());
    match (given, given.and_then(|given| tokens.right(given))) {
        (Some(_), Some(OperatorRight::Read)) if !is_read(&request) => {
            ApiError::new(StatusCode::FORBIDDEN, "http.read_token lets read alone: this needs http.admin_token")
                .into_response()
        }
        (Some(_), Some(_)) => {
            // Without a free slot of its class, the connection keeps its present one.
            if let Some(connection) = connection {
                connection.vouch(None).await;
            }
            next.run(request).await
        }
        (None, _) => unauthorized("a token is needed: `Authorization: Bearer`, with the value of http.admin_token"),
        (Some(_), None) => {
            let mut refused = match tokens.is_wrong(connection).await {
                true => unauthorized("the token is not the value of http.admin_token"),
                false => ApiError::new(
                    StatusCode::TOO_MANY_REQUESTS,
                    "too many wrong tokens are being given; try again later",
                )
                .into_response(),
            };
            refused.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            refused.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            refused
        }
    }
}

fn unauthorized(text: &str) -> Response {
    ([(WWW_AUTHENTICATE, "Bearer")], ApiError::new(StatusCode::UNAUTHORIZED, text)).into_response()
}

#[cfg(test)]
mod tests {
    use tokio_util::sync::CancellationToken;
    use toolbus_core::events::Discard;

    use super::*;
    use crate::config::Config;

    #[test]
    fn a_token_is_equal_as_a_whole() {
        let token = |text: &str| Some(Secret::new(text));
        let auth = HttpAuth::new(&Config::default(), Arc::new(Discard), CancellationToken::new());
        let config = HttpConfig { admin_token: token("s3cret"), read_token: token("looks"), ..HttpConfig::default() };
        let tokens = OperatorTokens::new(&config, &auth);
        assert_eq!(
            ["s3cret", "looks"].map(|token| tokens.right(token.as_bytes())),
            [Some(OperatorRight::Act), Some(OperatorRight::Read)]
        );
        for other in ["", "s3cre", "s3cret ", "S3cret", "s3crets"] {
            assert_eq!(tokens.right(other.as_bytes()), None, "{other:?}");
        }
        assert_eq!(OperatorTokens::new(&HttpConfig::default(), &auth).right(b""), None);
    }
}
