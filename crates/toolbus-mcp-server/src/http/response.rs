//! HTTP responses: JSON, refusals and event streams.

use std::convert::Infallible;
use std::pin::Pin;
use std::time::Duration;

use axum::body::Body;
use axum::http::StatusCode;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse as _, Response};
use bytes::{BufMut as _, Bytes, BytesMut};
use futures_util::{FutureExt as _, Stream, StreamExt as _};
use tokio_util::sync::CancellationToken;

use crate::rpc::{Id, RpcError, failure};

/// A response of JSON.
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

/// Time without an event after which a comment is sent, so that proxies keep the stream open, and so that a client that
/// is gone is noticed.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Waits until one of the tokens is cancelled.
pub(super) async fn any_cancelled<const N: usize>(tokens: [CancellationToken; N]) {
    futures_util::future::select_all(tokens.iter().map(|token| token.cancelled().boxed())).await;
}

/// A response that streams messages as server-sent events until `over` ends.
pub(super) fn event_stream(
    messages: impl Stream<Item = Bytes> + Send + 'static,
    over: impl Future<Output = ()> + Send + 'static,
) -> Response {
    let messages: Pin<Box<dyn Stream<Item = Bytes> + Send>> = Box::pin(messages);
    let events = futures_util::stream::unfold(messages, async |mut messages| {
        let event = match tokio::time::timeout(KEEP_ALIVE, messages.next()).await {
            Ok(message) => event(&message?),
            Err(_) => Bytes::from_static(b": still here\n\n"),
        };
        Some((Ok::<_, Infallible>(event), messages))
    });
    // The head leaves with the first bytes of the body: without any, a client would wait for it.
    let first = futures_util::stream::iter([Ok(Bytes::from_static(b": here\n\n"))]);
    let events = first.chain(events).take_until(Box::pin(over));
    let headers = [(CONTENT_TYPE, "text/event-stream"), (CACHE_CONTROL, "no-cache, no-transform")];
    (headers, [("x-accel-buffering", "no")], Body::from_stream(events)).into_response()
}

fn event(message: &[u8]) -> Bytes {
    // JSON as it is written here has no line end.
    let mut event = BytesMut::with_capacity(message.len() + 32);
    event.put_slice(b"event: message\ndata: ");
    event.put_slice(message);
    event.put_slice(b"\n\n");
    event.freeze()
}
