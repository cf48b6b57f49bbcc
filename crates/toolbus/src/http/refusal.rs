//! Refusals of `/mcp`, as JSON-RPC errors.

use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::http::header::{CACHE_CONTROL, CONNECTION, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};
use futures_util::StreamExt as _;
use serde_json::json;
use tokio::time::timeout;

/// Delay of the response to a wrong token: as long as a client may hold a connection by sending nothing, so that guessing
/// delays others no more than silence does.
pub(super) const PENALTY: Duration = Duration::from_secs(2);
/// Bytes that are read of a body that is not used: as many as the largest body has by default.
const MAX_DISCARDED: usize = 4 * 1024 * 1024;
/// Time for which such a body is read: bytes in flight arrive by then, and a client that announces a body and sends
/// none holds no slot for long.
const DISCARD_TIME: Duration = Duration::from_millis(200);
/// Code of a refusal, from the range that JSON-RPC leaves to servers.
const CODE: i32 = -32000;

/// Reason why a request is refused, and the next step. MCP clients read it as a JSON-RPC error.
#[derive(Debug)]
pub(crate) struct HttpRefusal {
    status: StatusCode,
    text: String,
    /// Value of `WWW-Authenticate`.
    challenge: Option<&'static str>,
    retry_after: Option<Duration>,
    /// Whether the connection is closed after it.
    closes: bool,
}

impl HttpRefusal {
    fn new(status: StatusCode, text: impl Into<String>) -> Self {
        Self { status, text: text.into(), challenge: None, retry_after: None, closes: false }
    }

    fn unauthorized(text: &str, challenge: &'static str) -> Self {
        Self { challenge: Some(challenge), ..Self::new(StatusCode::UNAUTHORIZED, text) }
    }

    pub(super) fn closed() -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            "the MCP server takes no requests: give agents tokens with http.tokens, or set http.open = true",
        )
    }

    pub(super) fn origin() -> Self {
        Self::new(
            StatusCode::FORBIDDEN,
            "pages of this origin may not use this server: its operator lists those that may in http.allowed_origins",
        )
    }

    pub(super) fn misdirected(text: &str) -> Self {
        Self::new(StatusCode::MISDIRECTED_REQUEST, text)
    }

    pub(super) fn in_url() -> Self {
        Self::new(
            StatusCode::BAD_REQUEST,
            "a token in the URL is not taken, because URLs are kept in logs and histories: send the header \
             `Authorization: Bearer` with it, and have it changed if it was a real one",
        )
    }

    pub(super) fn no_token() -> Self {
        Self::unauthorized(
            "a token is needed: send the header `Authorization: Bearer` with the token that http.tokens has for your \
             agent",
            "Bearer",
        )
    }

    pub(super) fn unreadable() -> Self {
        Self::unauthorized("send one header `Authorization`, of the form `Bearer TOKEN`", "Bearer")
    }

    pub(super) fn wrong_token() -> Self {
        let refusal = Self::unauthorized(
            "this token is none of http.tokens: look whether it is complete and has not been replaced",
            "Bearer error=\"invalid_token\"",
        );
        Self { closes: true, ..refusal }
    }

    pub(super) fn too_many_attempts() -> Self {
        let refusal =
            Self::new(StatusCode::TOO_MANY_REQUESTS, "too many wrong tokens are being given; try again later");
        Self { retry_after: Some(PENALTY), closes: true, ..refusal }
    }

    pub(super) fn full() -> Self {
        let refusal =
            Self::new(StatusCode::SERVICE_UNAVAILABLE, "too many connections are open; close some, or try again later");
        Self { retry_after: Some(PENALTY), closes: true, ..refusal }
    }

    pub(crate) fn not_ready() -> Self {
        let refusal = Self::new(StatusCode::SERVICE_UNAVAILABLE, "the daemon waits for its store; try again later");
        Self { retry_after: Some(PENALTY), ..refusal }
    }

    pub(super) fn no_room() -> Self {
        let refusal =
            Self::new(StatusCode::SERVICE_UNAVAILABLE, "too many large requests are on their way; try again later");
        Self { retry_after: Some(PENALTY), closes: true, ..refusal }
    }

    pub(super) fn untaken() -> Self {
        // Without `Retry-After`: proxies would send the request again, and the call has had its effect.
        let refusal = Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "the request was carried out, but its answer is not sent, because too much waits for this client already: \
             read the answers that are on their way, and if it was a call, find out what it did before calling again",
        );
        Self { closes: true, ..refusal }
    }

    pub(super) fn large_body(max: usize) -> Self {
        let text = format!("the body is larger than {max} bytes, which is http.max_body");
        Self { closes: true, ..Self::new(StatusCode::PAYLOAD_TOO_LARGE, text) }
    }

    pub(super) fn slow_body() -> Self {
        Self { closes: true, ..Self::new(StatusCode::REQUEST_TIMEOUT, "the body took too long to come") }
    }

    pub(super) fn broken_body() -> Self {
        Self { closes: true, ..Self::new(StatusCode::BAD_REQUEST, "the body did not come as a whole") }
    }

    /// The response, after the body of the request was read.
    pub(crate) async fn respond(self, body: Body) -> Response {
        discard(body).await;
        let Self { status, text, challenge, retry_after, closes } = self;
        let error = json!({"jsonrpc": "2.0", "error": {"code": CODE, "message": text}});
        let mut response = (status, Json(error)).into_response();
        let headers = response.headers_mut();
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(challenge) = challenge {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static(challenge));
        }
        if let Some(time) = retry_after {
            headers.insert(RETRY_AFTER, time.as_secs().into());
        }
        if closes {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

/// Reads a body that is not used, up to a bound: a connection that is closed with bytes unread may lose the response.
async fn discard(body: Body) {
    let mut chunks = body.into_data_stream();
    let reading = async {
        let mut read = 0_usize;
        while let Some(Ok(chunk)) = chunks.next().await {
            read = read.saturating_add(chunk.len());
            if read > MAX_DISCARDED {
                return;
            }
        }
    };
    // The response is sent in any case.
    let _ = timeout(DISCARD_TIME, reading).await;
}
