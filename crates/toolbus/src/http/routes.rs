use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CACHE_CONTROL;
use axum::response::IntoResponse;
use axum::routing::get;
use axum::{Json, Router, middleware};

use super::health::Health;
use super::redacted::redacted;
use super::{Site, auth, host};

/// Every route, behind the check of the host: those for everybody, those of `admin`, which look for a token, and the
/// door, for whom the entrance lets in.
pub(super) fn router(site: Site) -> Router {
    let Site { health, admin, entrance, door, redactor } = site;
    let door = auth::guarded(Arc::clone(&entrance), door);
    let open = Router::new()
        .route("/healthz", get(alive))
        .route("/livez", get(alive))
        .route("/readyz", get(ready))
        .route("/status", get(status))
        .fallback(async || (StatusCode::NOT_FOUND, "There are /healthz, /livez, /readyz, /status and /mcp.\n"))
        .with_state(health);
    let for_operators = match admin {
        Some(admin) => open.nest("/v1", admin),
        None => open,
    };
    // What comes through the door was looked at by the dispatcher.
    redacted(for_operators, redactor).nest("/mcp", door).layer(middleware::from_fn_with_state(entrance, host::check))
}

/// The process answers; a broker that is away is no reason to restart it.
async fn alive() -> impl IntoResponse {
    fresh("ok\n")
}

async fn ready(State(health): State<Arc<Health>>) -> impl IntoResponse {
    let readiness = health.readiness();
    let code = if readiness.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (code, fresh(Json(readiness)))
}

async fn status(State(health): State<Arc<Health>>) -> impl IntoResponse {
    fresh(Json(health.status().public()))
}

/// An answer that is true now and that nobody may keep.
fn fresh(answer: impl IntoResponse) -> impl IntoResponse {
    ([(CACHE_CONTROL, "no-store")], answer)
}
