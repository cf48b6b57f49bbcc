//! The body of a request, bounded in size and time.

use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::response::Response;
use bytes::Bytes;

use super::refusal;

/// How long a client may take to send a message.
const BODY_TIME: Duration = Duration::from_secs(30);

pub(super) async fn read(body: Body, limit: usize) -> Result<Bytes, Response> {
    match tokio::time::timeout(BODY_TIME, to_bytes(body, limit)).await {
        Ok(Ok(body)) => Ok(body),
        // Or the client went away in the midst of it, and reads no answer.
        Ok(Err(_)) => Err(refusal::too_large(limit)),
        Err(_) => Err(refusal::too_slow()),
    }
}
