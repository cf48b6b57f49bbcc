//! Answers to requests that are none.

use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;

use crate::rpc::{Id, RpcError, failure};

/// An answer of JSON.
pub(super) fn json(status: StatusCode, body: Bytes) -> Response {
    (status, [(CONTENT_TYPE, "application/json")], body).into_response()
}

pub(super) fn bad_request(id: Option<&Id>, error: &RpcError) -> Response {
    json(StatusCode::BAD_REQUEST, failure(id, error))
}

pub(super) fn not_acceptable(text: &str) -> Response {
    json(StatusCode::NOT_ACCEPTABLE, failure(None, &RpcError::new(RpcError::INVALID_REQUEST, text)))
}

pub(super) fn unsupported_type() -> Response {
    let error = RpcError::new(RpcError::INVALID_REQUEST, "The header Content-Type must be application/json.");
    json(StatusCode::UNSUPPORTED_MEDIA_TYPE, failure(None, &error))
}

pub(super) fn no_session() -> Response {
    let text = "There is no such session, or none of this token: it has ended, perhaps. Begin with `initialize`.";
    json(StatusCode::NOT_FOUND, failure(None, &RpcError::new(RpcError::INVALID_REQUEST, text)))
}
