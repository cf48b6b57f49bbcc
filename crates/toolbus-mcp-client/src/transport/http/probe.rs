//! Finding out which transport a server speaks.

use bytes::Bytes;
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderValue};
use reqwest::{Method, Response, StatusCode};
use serde_json::Value;

use super::body::{self, MAX_REFUSAL};
use super::client::{HttpClient, Outgoing};
use super::error::HttpError;
use super::streamable::SESSION;

/// A request that changes nothing and opens no session. A server of Streamable HTTP answers it, or refuses it in its own
/// words.
const PING: &str = r#"{"jsonrpc":"2.0","id":"probe","method":"ping"}"#;

/// What a server made of a message that was posted to its URL.
pub(super) enum Probed {
    /// It speaks Streamable HTTP.
    Streamable,
    /// It takes no messages there; the refusal says how it put that.
    NoMessages(HttpError),
    /// One or the other.
    Unclear,
}

/// Posts a ping.
pub(super) async fn probe(client: &HttpClient) -> Result<Probed, HttpError> {
    let mut headers = HeaderMap::new();
    headers.insert(ACCEPT, HeaderValue::from_static("application/json, text/event-stream"));
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let body = Some(Bytes::from_static(PING.as_bytes()));
    let outgoing = Outgoing { method: Method::POST, url: client.url().clone(), headers, body };
    let response = client.exchange(&outgoing).await?;
    let refusal = client.refusal(&response);
    let status = response.status();
    delete_session(client, &response).await;
    match status {
        StatusCode::BAD_REQUEST | StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED => {
            let body = body::read(client.origin(), response, MAX_REFUSAL).await.unwrap_or_default();
            Ok(if is_json_rpc(&body) {
                Probed::Streamable
            } else if status == StatusCode::BAD_REQUEST {
                Probed::Unclear
            } else {
                Probed::NoMessages(refusal)
            })
        }
        StatusCode::NOT_ACCEPTABLE | StatusCode::UNSUPPORTED_MEDIA_TYPE | StatusCode::UNPROCESSABLE_ENTITY => {
            Ok(Probed::Streamable)
        }
        status if status.is_success() => Ok(Probed::Streamable),
        _ => Err(refusal),
    }
}

/// Some servers open a session for whatever comes first.
async fn delete_session(client: &HttpClient, response: &Response) {
    let Some(session) = response.headers().get(SESSION) else { return };
    let headers = HeaderMap::from_iter([(SESSION, session.clone())]);
    let outgoing = Outgoing { method: Method::DELETE, url: client.url().clone(), headers, body: None };
    if let Err(error) = client.exchange(&outgoing).await {
        tracing::debug!(%error, "the session of a probe was not deleted");
    }
}

fn is_json_rpc(body: &[u8]) -> bool {
    serde_json::from_slice::<Value>(body).is_ok_and(|answer| answer.get("jsonrpc").is_some())
}
