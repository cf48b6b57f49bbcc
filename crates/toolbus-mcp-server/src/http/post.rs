//! `POST`: one message of a client, and the response to it.

use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{Extension, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};
use futures_util::stream;
use tokio_util::sync::CancellationToken;

use super::headers::{self, Narrowed};
use super::{TRANSPORT, caller, response, session};
use crate::auth::Principal;
use crate::meta::Meta;
use crate::methods::{Flow, FlowStep};
use crate::rpc::{Message, RpcError, RpcRequest};
use crate::server::{Handled, McpServer};
use crate::session::{Peer, SessionOwner};

/// Time after which the response becomes a stream: proxies do not wait for a header for ever.
const PATIENCE: Duration = Duration::from_secs(5);

pub(super) async fn handle(
    State(server): State<McpServer>,
    Extension(principal): Extension<Principal>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    if !headers::accepts_both(&headers) {
        return response::not_acceptable("The header Accept must allow application/json and text/event-stream.");
    }
    if !headers::is_json(&headers) {
        return response::unsupported_type();
    }
    match Message::read(&body) {
        Ok(Message::Request(call)) => respond(&server, principal, &headers, &call).await,
        Ok(Message::Notification { method, params }) => {
            if headers.contains_key(headers::SESSION_ID) {
                match session(&server, &principal, &headers) {
                    Ok(session) => server.notified(&Peer::of(session), &method, params),
                    Err(refused) => return *refused,
                }
            }
            StatusCode::ACCEPTED.into_response()
        }
        Ok(Message::Response) => StatusCode::ACCEPTED.into_response(),
        Err((id, error)) => response::bad_request(id.as_ref(), &error),
    }
}

async fn respond(server: &McpServer, principal: Principal, headers: &HeaderMap, call: &RpcRequest<'_>) -> Response {
    if call.method == "initialize" {
        return begin(server, &principal, headers, call);
    }
    let meta = Meta::of(call.params);
    let peer = if headers::stands_alone(headers, call, &meta) {
        if let Err(error) = headers::agree(headers, call, &meta) {
            return response::bad_request(Some(&call.id), &error);
        }
        let narrowed = match Narrowed::read(headers) {
            Ok(narrowed) => narrowed,
            Err(error) => return response::bad_request(Some(&call.id), &error),
        };
        // Per-session servers of stateless requests belong to the token.
        let session = principal.token.map_or_else(|| "open".to_owned(), |token| format!("token-{:016x}", token.0));
        Peer::alone(caller(server, &principal, narrowed, session.into()).into(), TRANSPORT)
    } else {
        match session(server, &principal, headers) {
            Ok(session) => Peer::of(session),
            Err(refused) => return *refused,
        }
    };
    let peer = peer.within(headers::trace(headers));
    match server.respond(&peer, call).await {
        Handled::Now(body) => response::json(StatusCode::OK, body),
        Handled::Refused(error, body) => response::json(status(&peer, &error), body),
        Handled::Later(flow) => later(server, &principal, flow).await,
    }
}

fn begin(server: &McpServer, principal: &Principal, headers: &HeaderMap, call: &RpcRequest<'_>) -> Response {
    let narrowed = match Narrowed::read(headers) {
        Ok(narrowed) => narrowed,
        Err(error) => return response::bad_request(Some(&call.id), &error),
    };
    let outside = headers::trace(headers);
    let owner = SessionOwner { token: principal.token, revoked: principal.revoked.clone() };
    let begun = server.begin(call, owner, TRANSPORT, outside, |id| caller(server, principal, narrowed, id));
    match begun {
        Ok((peer, body)) => {
            let mut response = response::json(StatusCode::OK, body);
            let id = peer.session.as_ref().and_then(|session| HeaderValue::from_str(&session.id).ok());
            if let Some(id) = id {
                response.headers_mut().insert(headers::SESSION_ID, id);
            }
            response
        }
        Err(error) if error.code == RpcError::INTERNAL_ERROR => {
            response::json(StatusCode::SERVICE_UNAVAILABLE, crate::rpc::failure(Some(&call.id), &error))
        }
        Err(error) => response::bad_request(Some(&call.id), &error),
    }
}

/// Responds with JSON if the response comes soon and first; else with a stream.
async fn later(server: &McpServer, principal: &Principal, mut flow: Flow) -> Response {
    let first = tokio::time::timeout(PATIENCE, flow.next()).await.ok();
    if let Some(FlowStep::Last(body)) = first {
        return response::json(StatusCode::OK, body);
    }
    flow.detach();
    let steps = stream::unfold((first, Some(flow)), async |(first, flow)| {
        let mut flow = flow?;
        let step = match first {
            Some(step) => step,
            None => flow.next().await,
        };
        match step {
            FlowStep::Interim(message) => Some((message, (None, Some(flow)))),
            FlowStep::Last(message) => Some((message, (None, None))),
            FlowStep::Nothing => None,
        }
    });
    response::event_stream(steps, withdrawn(principal.revoked.clone(), server.parts.closing.clone()))
}

/// Waits until a token is revoked. The end of the server revokes all tokens, but responses under way are still
/// delivered then.
async fn withdrawn(revoked: CancellationToken, closing: CancellationToken) {
    revoked.cancelled().await;
    if closing.is_cancelled() {
        std::future::pending().await
    }
}

/// The HTTP status of an error. Clients before version 2026-07-28 always get 200.
fn status(peer: &Peer, error: &RpcError) -> StatusCode {
    match error.code {
        _ if !peer.is_alone() => StatusCode::OK,
        RpcError::METHOD_NOT_FOUND => StatusCode::NOT_FOUND,
        RpcError::UNSUPPORTED_PROTOCOL_VERSION | RpcError::HEADER_MISMATCH => StatusCode::BAD_REQUEST,
        _ => StatusCode::OK,
    }
}
