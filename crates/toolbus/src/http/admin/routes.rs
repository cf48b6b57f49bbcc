//! The routes of the admin API: open on the Unix socket, behind a token over HTTP.

use std::sync::Arc;

use axum::extract::rejection::{BytesRejection, PathRejection, QueryRejection};
use axum::extract::{DefaultBodyLimit, Path, Query, Request, State};
use axum::http::header::{CACHE_CONTROL, CONNECTION, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::{Next, from_fn_with_state, map_response};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use axum::{Json, Router};
use bytes::Bytes;
use serde::de::DeserializeOwned;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use toolbus_core::throttle::Throttle;
use toolbus_mcp_server::auth::bearer;

use super::servers::{self, McpAdmin};
use super::view::{AgentTools, Agents, DaemonStatus, Disabled, Explained, Refusal, Role, Switching, Tools};
use super::{Admin, DaemonAdmin, ToolsQuery, pins};
use crate::http::ReloadReport;
use crate::http::auth::slowed;
use crate::http::slots::ConnectionState;

/// Largest body of a request, in bytes.
pub const MAX_BODY: usize = 64 * 1024;
/// The paths that exist.
const ROUTES: &str = "no such path: there are /v1/status, /v1/reload, /v1/tools, /v1/agents, /v1/agents/NAME, /v1/explain, /v1/disabled, \
                      /v1/disabled/KIND/NAME, /v1/mcp, /v1/mcp/NAME, /v1/mcp/NAME/restart, /v1/pins, /v1/pins/NAME and \
                      /v1/pins/NAME/approve";

/// Why a request to the admin API is refused: a status, and a text for the operator.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub struct ApiError {
    status: StatusCode,
    text: String,
}

impl ApiError {
    pub(super) fn new(status: StatusCode, text: impl ToString) -> Self {
        Self { status, text: text.to_string() }
    }

    pub(super) fn bad_request(text: impl ToString) -> Self {
        Self::new(StatusCode::BAD_REQUEST, text)
    }

    pub(super) fn not_found(text: impl ToString) -> Self {
        Self::new(StatusCode::NOT_FOUND, text)
    }

    pub(super) fn conflict(text: impl ToString) -> Self {
        Self::new(StatusCode::CONFLICT, text)
    }

    pub(super) fn internal(text: impl ToString) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, text)
    }

    pub(super) fn unavailable(text: impl ToString) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, text)
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        (self.status, Json(Refusal { error: self.text })).into_response()
    }
}

impl From<PathRejection> for ApiError {
    fn from(rejection: PathRejection) -> Self {
        Self::bad_request(rejection.body_text())
    }
}

impl From<QueryRejection> for ApiError {
    fn from(rejection: QueryRejection) -> Self {
        Self::bad_request(rejection.body_text())
    }
}

impl From<BytesRejection> for ApiError {
    fn from(rejection: BytesRejection) -> Self {
        match rejection.status() {
            StatusCode::PAYLOAD_TOO_LARGE => {
                Self::new(StatusCode::PAYLOAD_TOO_LARGE, format!("the body is larger than {} KiB", MAX_BODY / 1024))
            }
            _ => Self::bad_request(rejection.body_text()),
        }
    }
}

/// The body of a request.
pub(super) type BodyBytes = Result<Bytes, BytesRejection>;
/// The name in a path.
pub(super) type NameInPath = Result<Path<String>, PathRejection>;
/// Kind and name of a switch in a path.
type KindAndName = Result<Path<(String, String)>, PathRejection>;
/// The query of a request.
pub(super) type QueryOf<T> = Result<Query<T>, QueryRejection>;
/// A response as JSON.
pub(super) type ApiResult<T> = Result<Json<T>, ApiError>;

type AdminState = State<Arc<Admin>>;

/// Reads a body as JSON.
pub(super) fn parsed<T: DeserializeOwned>(body: BodyBytes) -> Result<T, ApiError> {
    serde_json::from_slice(&body?).map_err(|error| ApiError::bad_request(format!("the body is not usable: {error}")))
}

/// The routes without a token, for the Unix socket.
pub fn open(admin: Arc<Admin>, servers: Arc<dyn McpAdmin>) -> Router {
    Router::new().nest("/v1", routes(admin, servers)).fallback(unknown)
}

/// The routes below `/v1`, for requests with `token`.
pub fn guarded(admin: Arc<Admin>, servers: Arc<dyn McpAdmin>, token: &str) -> Router {
    routes(admin, servers).layer(from_fn_with_state(Arc::new(AdminToken::new(token)), check))
}

fn routes(admin: Arc<Admin>, servers: Arc<dyn McpAdmin>) -> Router {
    let of_daemon =
        |daemon| Router::new().route("/status", get(status)).route("/reload", post(reload)).with_state::<()>(daemon);
    let daemon = admin.daemon.clone().map(of_daemon).unwrap_or_default();
    Router::new()
        .route("/agents", get(agents))
        .route("/agents/{name}", get(agent))
        .route("/tools", get(tools))
        .route("/explain", post(explain))
        .route("/disabled", get(disabled))
        .route("/disabled/{kind}/{name}", put(disable).delete(enable))
        .merge(pins::routes())
        .with_state(admin)
        .merge(daemon)
        .merge(servers::routes(servers))
        .fallback(unknown)
        .method_not_allowed_fallback(async || {
            ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "the method is not one of this path")
        })
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(map_response(no_store))
}

async fn unknown() -> ApiError {
    ApiError::not_found(ROUTES)
}

async fn status(State(daemon): State<DaemonAdmin>) -> Json<DaemonStatus> {
    Json(daemon.status())
}

async fn reload(State(daemon): State<DaemonAdmin>) -> ApiResult<ReloadReport> {
    Ok(Json(daemon.reload().await?))
}

async fn agents(State(admin): AdminState) -> Json<Agents> {
    Json(admin.agents())
}

async fn agent(State(admin): AdminState, name: NameInPath, role: QueryOf<Role>) -> ApiResult<AgentTools> {
    let (Path(name), Query(role)) = (name?, role?);
    Ok(Json(admin.agent(&name, &role)?))
}

async fn tools(State(admin): AdminState, query: QueryOf<ToolsQuery>) -> ApiResult<Tools> {
    let Query(query) = query?;
    Ok(Json(admin.tools(&query)?))
}

async fn explain(State(admin): AdminState, body: BodyBytes) -> ApiResult<Explained> {
    Ok(Json(admin.explain(&parsed(body)?)?))
}

async fn disabled(State(admin): AdminState) -> Json<Disabled> {
    Json(Disabled { disabled: admin.disabled() })
}

async fn disable(State(admin): AdminState, switch: KindAndName) -> ApiResult<Switching> {
    let Path((kind, name)) = switch?;
    Ok(Json(admin.switch(&kind, &name, true).await?))
}

async fn enable(State(admin): AdminState, switch: KindAndName) -> ApiResult<Switching> {
    let Path((kind, name)) = switch?;
    Ok(Json(admin.switch(&kind, &name, false).await?))
}

/// Adds `Cache-Control: no-store`.
async fn no_store(mut response: Response) -> Response {
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// The token of the admin API over HTTP.
struct AdminToken {
    /// Of equal length for every token, so that a comparison reveals no length.
    digest: [u8; 32],
    wrong: Throttle,
}

impl AdminToken {
    fn new(token: &str) -> Self {
        Self { digest: Sha256::digest(token).into(), wrong: Throttle::default() }
    }

    fn is(&self, given: &[u8]) -> bool {
        let given: [u8; 32] = Sha256::digest(given).into();
        given.ct_eq(&self.digest).into()
    }
}

/// Refuses requests without the token. A wrong one is logged, and refused after a delay.
async fn check(State(token): State<Arc<AdminToken>>, request: Request, next: Next) -> Response {
    let connection = request.extensions().get::<Arc<ConnectionState>>();
    match bearer(request.headers()) {
        Some(given) if token.is(given) => {
            // Without a free slot of its class, the connection keeps the one that it has.
            if let Some(connection) = connection {
                connection.vouch(None).await;
            }
            next.run(request).await
        }
        None => unauthorized("a token is needed: `Authorization: Bearer`, with the value of http.admin_token"),
        Some(_) => {
            if let Some(left_out) = token.wrong.due() {
                tracing::warn!(left_out, "admin: a wrong token was given over HTTP");
            }
            let mut refused = match slowed(connection).await {
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
    use super::*;

    #[test]
    fn a_token_is_equal_as_a_whole() {
        let token = AdminToken::new("s3cret");
        assert!(token.is(b"s3cret"));
        for other in ["", "s3cre", "s3cret ", "S3cret", "s3crets"] {
            assert!(!token.is(other.as_bytes()), "{other:?}");
        }
    }
}
