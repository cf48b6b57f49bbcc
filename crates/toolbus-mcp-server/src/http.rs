//! Streamable HTTP: the protocol over `POST`, `GET` and `DELETE` of one address.
//!
//! Requests are authenticated before: each carries a [`Principal`] and a complete body of bounded size.

mod headers;
mod post;
mod response;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use axum::Router;
use axum::extract::{Extension, State};
use axum::http::header::ALLOW;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use toolbus_core::caller::Caller;

use self::headers::Narrowed;
use crate::auth::Principal;
use crate::methods::listen::ListChanges;
use crate::rpc::{RpcError, notification};
use crate::server::McpServer;
use crate::session::McpSession;

/// Way in which requests come, as telemetry names it.
const TRANSPORT: &str = "tcp";

/// The routes of the server, relative to its path. Each request must have a [`Principal`] as an extension, and its
/// whole body in memory.
pub fn router(server: McpServer) -> Router {
    // Otherwise `HEAD` would be taken for `GET`, and the stream that it begins would end the one that there is.
    let no_head = async || (StatusCode::METHOD_NOT_ALLOWED, [(ALLOW, "GET,POST,DELETE")]);
    Router::new().route("/", post(post::handle).get(listen).delete(end).head(no_head)).with_state(server)
}

/// `GET`: the changes of a session, as long as it is listened to.
async fn listen(
    State(server): State<McpServer>,
    Extension(principal): Extension<Principal>,
    headers: HeaderMap,
) -> Response {
    if !headers::accepts(&headers, headers::EVENTS) {
        return response::not_acceptable("The header Accept must allow text/event-stream.");
    }
    let session = match session(&server, &principal, &headers) {
        Ok(session) => session,
        Err(refused) => return *refused,
    };
    // Ends with its holder: this request, if its client goes meanwhile, or else the body of its response.
    let stream = session.stream();
    let over = response::any_cancelled([stream.over.clone(), principal.revoked, server.parts.closing.clone()]);
    let backend = Arc::clone(&server.parts.backend);
    let changes = ListChanges::begin(backend, Arc::clone(&session.caller), Some(&session)).await;
    let changes = futures_util::stream::unfold((changes, stream), async |(mut changes, stream)| {
        let method = changes.next().await?;
        Some((notification(method, None::<()>), (changes, stream)))
    });
    response::event_stream(changes, over)
}

/// `DELETE`: the end of a session.
async fn end(
    State(server): State<McpServer>,
    Extension(principal): Extension<Principal>,
    headers: HeaderMap,
) -> Response {
    match session(&server, &principal, &headers) {
        Ok(session) => {
            server.end(&session);
            StatusCode::NO_CONTENT.into_response()
        }
        Err(refused) => *refused,
    }
}

/// The session that a request names.
fn session(server: &McpServer, principal: &Principal, headers: &HeaderMap) -> Result<Arc<McpSession>, Box<Response>> {
    let refused = |error: RpcError| Box::new(response::bad_request(None, &error));
    headers::known_version(headers).map_err(refused)?;
    let Some(id) = headers::one(headers, headers::SESSION_ID).map_err(refused)? else {
        let text = "The header Mcp-Session-Id is missing. Begin with `initialize`, and send the id that it answers.";
        return Err(refused(RpcError::new(RpcError::INVALID_REQUEST, text)));
    };
    let narrowed = Narrowed::read(headers).map_err(refused)?;
    let session = server.parts.sessions.get(id, principal.token).ok_or_else(|| Box::new(response::no_session()))?;
    match narrowed.is_of(&session.caller) {
        true => Ok(session),
        false => Err(refused(RpcError::new(
            RpcError::INVALID_REQUEST,
            "The headers rb-binding and rb-tool-profile of a session are those of its `initialize`. Begin another session to change them.",
        ))),
    }
}

/// The caller that a principal is.
fn caller(server: &McpServer, principal: &Principal, narrowed: Narrowed<'_>, session: Arc<str>) -> Caller {
    Caller {
        binding: narrowed.binding.map(Arc::from),
        profile: narrowed.profile.map(Arc::from),
        ..server.parts.backend.caller(principal.agent.clone(), session)
    }
}
