//! Errors of an HTTP server.

use std::error::Error;

use reqwest::StatusCode;
use reqwest::header::{HeaderMap, LOCATION, WWW_AUTHENTICATE};
use rmcp::service::ServiceError;
use rmcp::transport::streamable_http_client::StreamableHttpError;
use toolbus_core::failure::Cause;
use toolbus_core::text::{shown, with_dates};
use toolbus_outbound::TokenError;
use url::Url;

/// A request or a connection that failed. The text is for operators and callers: it has no secret, nothing that the
/// server wrote, and of the server's URL only the origin.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub(crate) struct HttpError {
    /// Kind of the failure.
    pub(crate) kind: HttpErrorKind,
    /// The status of the response, if there is one.
    pub(crate) status: Option<u16>,
    text: String,
}

/// Kinds of failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HttpErrorKind {
    /// No connection: nothing was sent.
    ConnectFailed,
    /// The connection ended before the response.
    ConnectionLost,
    /// HTTP 429 or 502 to 504: the server is temporarily unavailable.
    Unavailable,
    /// A person has to give or renew a credential.
    AuthRequired,
    /// The response is over the limit.
    TooLarge,
    /// The response is not a valid one.
    InvalidResponse,
    /// Any other status.
    Refused,
}

impl HttpError {
    pub(crate) fn new(kind: HttpErrorKind, text: impl Into<String>) -> Self {
        Self { kind, status: None, text: text.into() }
    }

    /// A connection that this side has closed.
    pub(super) fn closed() -> Self {
        Self::new(HttpErrorKind::ConnectionLost, "the connection to the MCP server was closed")
    }

    /// An invalid response.
    pub(crate) fn invalid(text: impl Into<String>) -> Self {
        Self::new(HttpErrorKind::InvalidResponse, text)
    }

    /// A request to `origin` without a response.
    pub(super) fn no_response(origin: &str, error: &reqwest::Error) -> Self {
        if error.is_connect() {
            let text = format!("no connection to the MCP server at {origin}: {}", root(error));
            Self::new(HttpErrorKind::ConnectFailed, text)
        } else {
            let text = format!("the connection to the MCP server at {origin} ended before the answer was complete");
            Self::new(HttpErrorKind::ConnectionLost, text)
        }
    }

    /// A response of `origin` with a status that is no success.
    pub(super) fn refused(origin: &str, status: StatusCode, headers: &HeaderMap, has_credential: bool) -> Self {
        let code = status.as_u16();
        let advice;
        let (kind, text) = match code {
            401 | 403 => {
                let advice = match (has_credential, is_short_of_scope(headers)) {
                    (true, true) => "the configured credential lacks a scope that it asks for: add it",
                    (true, false) => "it does not accept the configured credential: renew it",
                    (false, _) => "it asks for a credential and none is configured: configure one",
                };
                (HttpErrorKind::AuthRequired, advice)
            }
            429 | 502..=504 => (HttpErrorKind::Unavailable, "it cannot serve now: try again later"),
            300..=399 => {
                let target = target(origin, headers).map_or_else(String::new, |target| format!(", {target}"));
                advice = format!("redirects are not followed: configure the address that it redirects to{target}");
                (HttpErrorKind::Refused, advice.as_str())
            }
            404 | 405 => (HttpErrorKind::Refused, "check the path of its URL, and its transport"),
            _ => (HttpErrorKind::Refused, "see the log of that server"),
        };
        let text = format!("the MCP server at {origin} answered HTTP {code}; {text}");
        Self { kind, status: Some(code), text }
    }

    const fn cause(&self) -> Cause {
        match self.kind {
            HttpErrorKind::ConnectFailed => Cause::ConnectFailed,
            HttpErrorKind::ConnectionLost => Cause::ConnectionLost,
            HttpErrorKind::Unavailable => Cause::Unavailable,
            HttpErrorKind::AuthRequired => Cause::AuthRequired,
            HttpErrorKind::TooLarge => Cause::ResultTooLarge,
            HttpErrorKind::InvalidResponse => Cause::InvalidResult,
            HttpErrorKind::Refused => Cause::Failed,
        }
    }
}

/// The innermost cause, which is the specific one: `Connection refused`, `invalid peer certificate`.
fn root(error: &reqwest::Error) -> String {
    let mut innermost: &(dyn Error + 'static) = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    if innermost.is::<reqwest::Error>() { "it timed out".to_owned() } else { with_dates(&innermost.to_string()) }
}

/// Where a redirect leads, without what may be secret in an address.
fn target(origin: &str, headers: &HeaderMap) -> Option<String> {
    let location = headers.get(LOCATION)?.to_str().ok()?;
    let target = Url::parse(origin).ok()?.join(location).ok()?;
    let [host, path] = [target.origin().ascii_serialization(), target.path().to_owned()];
    target.has_host().then(|| shown(&format!("{host}{path}")))
}

/// RFC 6750, section 3.1.
fn is_short_of_scope(headers: &HeaderMap) -> bool {
    let mut challenges = headers.get_all(WWW_AUTHENTICATE).iter().filter_map(|value| value.to_str().ok());
    challenges.any(|challenge| challenge.contains("insufficient_scope"))
}

/// The [`HttpError`] that an error is or comes from, and what it means for a call.
pub(crate) fn classify(error: &(dyn Error + 'static)) -> Option<Cause> {
    find(error).map(HttpError::cause)
}

/// The [`HttpError`] that an error is or comes from.
pub(crate) fn find<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a HttpError> {
    if let Some(found) = error.downcast_ref::<HttpError>() {
        return Some(found);
    }
    let source = match error.downcast_ref::<ServiceError>() {
        Some(ServiceError::TransportSend(error)) => Some(error as &(dyn Error + 'static)),
        _ => error.source(),
    };
    source.and_then(find)
}

impl From<StreamableHttpError<Self>> for HttpError {
    fn from(error: StreamableHttpError<Self>) -> Self {
        match error {
            StreamableHttpError::Client(error) => error,
            StreamableHttpError::SessionExpired => {
                Self::new(HttpErrorKind::ConnectionLost, "the MCP server no longer knows the session")
            }
            StreamableHttpError::SessionRecoveryTimeout => {
                Self::new(HttpErrorKind::ConnectionLost, "the MCP server did not renew the session in time")
            }
            StreamableHttpError::ReinitializationFailed(_) => {
                Self::new(HttpErrorKind::ConnectionLost, "the MCP server refused to renew the session")
            }
            _ => Self::closed(),
        }
    }
}

impl From<TokenError> for HttpError {
    fn from(error: TokenError) -> Self {
        let kind = match error {
            TokenError::Unreachable(_) | TokenError::Unavailable { .. } => HttpErrorKind::ConnectFailed,
            TokenError::Refused { .. } | TokenError::Unusable { .. } => HttpErrorKind::AuthRequired,
        };
        Self::new(kind, error.to_string())
    }
}
