use std::sync::Arc;

use axum::extract::rejection::{BytesRejection, PathRejection, QueryRejection};
use axum::extract::{DefaultBodyLimit, Path, Query, State};
use axum::http::header::CACHE_CONTROL;
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::{from_fn_with_state, map_response};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use axum::{Json, Router};
use bytes::Bytes;

use super::servers::{self, McpAdmin};
use super::token::{self, Token};
use super::view::{Disabled, Question, Refusal, Role};
use super::{Admin, AdminError, daemon, pins, tools};

/// Largest body of a request, in bytes.
pub const MAX_BODY: usize = 64 * 1024;
/// What there is.
const ROUTES: &str = "no such path: there are /v1/status, /v1/reload, /v1/tools, /v1/agents, /v1/agents/NAME, /v1/explain, /v1/disabled, \
                      /v1/disabled/KIND/NAME, /v1/mcp, /v1/mcp/NAME, /v1/mcp/NAME/restart, /v1/pins, /v1/pins/NAME and \
                      /v1/pins/NAME/approve";

/// The kind and the name of a switch, out of a path.
type Named = Result<Path<(String, String)>, PathRejection>;

/// The routes, for whoever can open the socket.
pub fn open(admin: Arc<Admin>, servers: Arc<dyn McpAdmin>) -> Router {
    Router::new().nest("/v1", routes(admin, servers)).fallback(unknown)
}

/// The routes below `/v1`, for whoever has the token.
pub fn guarded(admin: Arc<Admin>, servers: Arc<dyn McpAdmin>, token: &str) -> Router {
    routes(admin, servers).layer(from_fn_with_state(Arc::new(Token::new(token)), token::check))
}

fn routes(admin: Arc<Admin>, servers: Arc<dyn McpAdmin>) -> Router {
    let daemon = admin.daemon.clone().map(daemon::routes).unwrap_or_default();
    Router::new()
        .route("/agents", get(agents))
        .route("/agents/{name}", get(agent))
        .route("/explain", post(explain))
        .route("/disabled", get(disabled))
        .route("/disabled/{kind}/{name}", put(disable).delete(enable))
        .with_state(Arc::clone(&admin))
        .merge(tools::routes(Arc::clone(&admin)))
        .merge(pins::routes(admin))
        .merge(daemon)
        .merge(servers::routes(servers))
        .fallback(unknown)
        .method_not_allowed_fallback(async || {
            (StatusCode::METHOD_NOT_ALLOWED, Refusal::new("the method is not one of this path"))
        })
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(map_response(fresh))
}

async fn unknown() -> impl IntoResponse {
    (StatusCode::NOT_FOUND, Refusal::new(ROUTES))
}

async fn agents(State(admin): State<Arc<Admin>>) -> Response {
    Json(admin.agents()).into_response()
}

async fn agent(
    State(admin): State<Arc<Admin>>,
    name: Result<Path<String>, PathRejection>,
    role: Result<Query<Role>, QueryRejection>,
) -> Result<Response, AdminError> {
    let Path(name) = name.map_err(|error| AdminError::Request(error.body_text()))?;
    let Query(role) = role.map_err(|error| AdminError::Request(error.body_text()))?;
    Ok(Json(admin.agent(&name, &role)?).into_response())
}

async fn explain(State(admin): State<Arc<Admin>>, body: Result<Bytes, BytesRejection>) -> Result<Response, AdminError> {
    let body = body.map_err(|error| match error.status() {
        StatusCode::PAYLOAD_TOO_LARGE => AdminError::TooLarge,
        _ => AdminError::Request(error.body_text()),
    })?;
    let question: Question = serde_json::from_slice(&body)
        .map_err(|error| AdminError::Request(format!("the body is not usable: {error}")))?;
    Ok(Json(admin.explain(&question)?).into_response())
}

async fn disabled(State(admin): State<Arc<Admin>>) -> Response {
    Json(Disabled { disabled: admin.disabled() }).into_response()
}

async fn disable(State(admin): State<Arc<Admin>>, switch: Named) -> Result<Response, AdminError> {
    switched(&admin, switch, true).await
}

async fn enable(State(admin): State<Arc<Admin>>, switch: Named) -> Result<Response, AdminError> {
    switched(&admin, switch, false).await
}

async fn switched(admin: &Admin, switch: Named, off: bool) -> Result<Response, AdminError> {
    let Path((kind, name)) = switch.map_err(|error| AdminError::Request(error.body_text()))?;
    Ok(Json(admin.switch(&kind, &name, off).await?).into_response())
}

/// An answer that is true now and that nobody may keep.
async fn fresh(mut answer: Response) -> Response {
    answer.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}

impl IntoResponse for AdminError {
    fn into_response(self) -> Response {
        let code = match self {
            Self::Request(_) | Self::Agent(..) | Self::Switch(_) => StatusCode::BAD_REQUEST,
            Self::Tool(_) => StatusCode::NOT_FOUND,
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::TooMany(_) => StatusCode::CONFLICT,
            Self::Store(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        (code, Refusal::new(self.to_string())).into_response()
    }
}
