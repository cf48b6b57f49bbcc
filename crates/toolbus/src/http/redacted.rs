//! Secrets in what operators are told.

use axum::Router;
use axum::body::{Body, HttpBody, to_bytes};
use axum::extract::State;
use axum::http::header::CONTENT_LENGTH;
use axum::middleware::map_response_with_state;
use axum::response::{IntoResponse, Response};
use toolbus_core::redact::Redactor;

/// Largest answer that is looked at, in bytes: far more than any has.
const MAX_ANSWER: usize = 64 * 1024 * 1024;

/// The same routes, whose answers have no secrets. A stream passes as it is.
pub(super) fn redacted(routes: Router, redactor: Redactor) -> Router {
    routes.layer(map_response_with_state(redactor, clean))
}

async fn clean(State(redactor): State<Redactor>, answer: Response) -> Response {
    if answer.body().size_hint().exact().is_none() {
        return answer;
    }
    let (mut head, body) = answer.into_parts();
    let Ok(body) = to_bytes(body, MAX_ANSWER).await else {
        return axum::http::StatusCode::INTERNAL_SERVER_ERROR.into_response();
    };
    match redactor.json(&body) {
        None => Response::from_parts(head, Body::from(body)),
        Some(clean) => {
            head.headers.remove(CONTENT_LENGTH);
            Response::from_parts(head, Body::from(clean))
        }
    }
}
