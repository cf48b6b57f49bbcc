//! Reason why there is no connection, for operators; and why a call has no result, for callers.

use std::error::Error;

use rmcp::model::{ErrorCode, ErrorData, ProtocolVersion};
use rmcp::service::{ClientInitializeError, ServiceError};
use toolbus_core::failure::{Cause, ToolFailure};

use super::SessionMode;
use crate::transport::http::classify;

/// The error with which rmcp ends the requests of a session of Streamable HTTP that it has replaced by another one.
const PAST_SESSION: &str = "streamable HTTP session was re-initialized before the response arrived";
/// Longest text of a server within an error, in characters.
const MAX_TEXT: usize = 2_000;

/// Reason why a request to a server has no response, or a connection did not come about. The texts are for operators.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RequestError {
    /// The server wants credentials that it was not given.
    #[error("{0}")]
    AuthRequired(String),
    /// The server did not survive the probe, as old ones may: to be connected to with `initialize`.
    #[error("{0}")]
    ProbeFailed(String),
    /// The server is stateless, and its response to the probe came after `initialize` was sent: to be connected to
    /// again without.
    #[error("{0}")]
    RespondedLate(String),
    /// Anything else.
    #[error("{0}")]
    Failed(String),
}

impl RequestError {
    /// The session mode of the next attempt, if it is known.
    pub(crate) const fn next(&self) -> Option<SessionMode> {
        match self {
            Self::ProbeFailed(_) => Some(SessionMode::Sessions),
            Self::RespondedLate(_) => Some(SessionMode::Stateless),
            Self::AuthRequired(_) | Self::Failed(_) => None,
        }
    }

    /// As metrics label it.
    pub(super) const fn error_type(&self) -> &'static str {
        match self {
            Self::AuthRequired(_) => "auth_required",
            Self::ProbeFailed(_) | Self::RespondedLate(_) | Self::Failed(_) => "connect_failed",
        }
    }
}

/// Reason why a call has no result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CallError {
    /// The failure of the call.
    pub(crate) failure: ToolFailure,
    /// Whether the connection was lost, so that a call that may be repeated can be tried on the next one.
    pub(crate) is_lost: bool,
}

impl From<ToolFailure> for CallError {
    fn from(failure: ToolFailure) -> Self {
        Self { failure, is_lost: false }
    }
}

/// A handshake that failed. `method` is the one without a valid response, `ended` why the connection is over.
pub(super) fn handshake(
    error: &ClientInitializeError,
    method: &str,
    ended: Option<&str>,
    kind: fn(String) -> RequestError,
) -> RequestError {
    let text = match error {
        ClientInitializeError::ExpectedInitResponse(_) | ClientInitializeError::ExpectedInitResult(_) => {
            format!("the server answered `{method}` with something else than its result")
        }
        ClientInitializeError::ConflictInitResponseId(expected, received)
        | ClientInitializeError::UncorrelatedErrorResponse { expected, received } => {
            let received = shown(&received.to_string(), 64);
            format!("the server answered `{method}` with the id {received} instead of {expected}")
        }
        ClientInitializeError::ConnectionClosed(_) => {
            format!("{}; `{method}` was not answered", ended.unwrap_or("the server closed the connection"))
        }
        ClientInitializeError::TransportError { error, .. } => {
            format!("`{method}` could not be sent: {}", chain(error.error.as_ref()))
        }
        ClientInitializeError::JsonRpcError(error) => {
            format!("the server refused `{method}`: {} ({})", shown(&error.message, MAX_TEXT), error.code.0)
        }
        ClientInitializeError::NoCompatibleProtocolVersion { server_supported, .. } => {
            let versions: Vec<_> = server_supported.iter().take(8).map(|version| shown(version.as_str(), 32)).collect();
            format!("the server speaks no stateless version of the protocol that is known here, but {versions:?}")
        }
        ClientInitializeError::LegacyFallbackFailed { fallback, .. } => {
            return handshake(fallback, method, ended, kind);
        }
        other => shown(&other.to_string(), MAX_TEXT),
    };
    if cause_of(error) == Some(Cause::AuthRequired) { RequestError::AuthRequired(text) } else { kind(text) }
}

/// The error of a server that chose a version that was not offered.
pub(super) fn unknown_version(version: &str) -> RequestError {
    let known: Vec<_> = ProtocolVersion::KNOWN_VERSIONS.iter().map(ProtocolVersion::as_str).collect();
    RequestError::Failed(format!(
        "the server speaks version {:?} of the protocol; known here are {}",
        shown(version, 32),
        known.join(", ")
    ))
}

/// A request without a response.
pub(super) fn request(method: &str, error: &ServiceError, ended: Option<&str>) -> RequestError {
    if let ServiceError::TransportSend(error) = error
        && classify(error.error.as_ref()) == Some(Cause::AuthRequired)
    {
        return RequestError::AuthRequired(format!("`{method}` could not be sent: {}", chain(error.error.as_ref())));
    }
    RequestError::Failed(match error {
        ServiceError::McpError(error) => {
            format!("the server refused `{method}`: {} ({})", shown(&error.message, MAX_TEXT), error.code.0)
        }
        ServiceError::TransportSend(error) => format!("`{method}` could not be sent: {}", chain(error.error.as_ref())),
        ServiceError::TransportClosed => {
            format!("{}; `{method}` was not answered", ended.unwrap_or("the server closed the connection"))
        }
        ServiceError::UnexpectedResponse => {
            format!("the server answered `{method}` with something else than its result")
        }
        other => shown(&other.to_string(), MAX_TEXT),
    })
}

/// A call without a result.
pub(super) fn call(tool: &str, error: ServiceError, ended: Option<&str>) -> CallError {
    match error {
        ServiceError::McpError(error) => refused(tool, &error).into(),
        ServiceError::TransportSend(error) => not_sent(tool, error.error.as_ref()),
        ServiceError::UnexpectedResponse => ToolFailure::new(
            Cause::InvalidResult,
            format!("Tool '{tool}' answered with something that is not the result of a call."),
        )
        .into(),
        other => lost(tool, ended.unwrap_or(&shown(&other.to_string(), MAX_TEXT))),
    }
}

/// Whether a request has no response because its session of Streamable HTTP was replaced by another one.
pub(super) fn is_of_past_session(error: &ErrorData) -> bool {
    error.code == ErrorCode::INTERNAL_ERROR && error.message == PAST_SESSION
}

/// The error of a server is for the caller, as a result would be.
fn refused(tool: &str, error: &ErrorData) -> ToolFailure {
    let text = shown(&error.message, MAX_TEXT);
    match error.code {
        ErrorCode::INVALID_PARAMS => ToolFailure::invalid(format!("Tool '{tool}' refused the call: {text}")),
        code => ToolFailure::new(Cause::Failed, format!("Tool '{tool}' failed: {text}"))
            .with_detail(format_args!("JSON-RPC error {}", code.0)),
    }
}

fn not_sent(tool: &str, error: &(dyn Error + 'static)) -> CallError {
    let cause = classify(error).unwrap_or(Cause::ConnectionLost);
    let what = match cause {
        Cause::ConnectFailed => "cannot be reached: nothing was sent. Try again later.",
        Cause::Unavailable => "cannot serve now.",
        Cause::AuthRequired => "asks for a credential that only an operator can give.",
        Cause::ResultTooLarge => "answered with more than is allowed. Ask for less.",
        Cause::InvalidResult => "answered with something that is not the result of a call.",
        Cause::Failed => "refused the request. Only an operator can mend this.",
        _ => return lost(tool, &chain(error)),
    };
    ToolFailure::new(cause, format!("The MCP server of tool '{tool}' {what}")).with_detail(chain(error)).into()
}

fn lost(tool: &str, why: &str) -> CallError {
    let text = format!("The MCP server of tool '{tool}' went away before it answered.");
    CallError { failure: ToolFailure::new(Cause::ConnectionLost, text).with_detail(why), is_lost: true }
}

/// Returns the cause that an error of a transport over HTTP stands for.
fn cause_of(error: &ClientInitializeError) -> Option<Cause> {
    match error {
        ClientInitializeError::TransportError { error, .. } => classify(error.error.as_ref()),
        _ => None,
    }
}

/// An error and what caused it.
fn chain(error: &(dyn Error + 'static)) -> String {
    let sources = std::iter::successors(Some(error), |&error| error.source()).take(8);
    shown(&sources.map(ToString::to_string).collect::<Vec<_>>().join(": "), MAX_TEXT)
}

/// At most `max` characters of `text`, without control characters besides line breaks and tabs.
pub(super) fn shown(text: &str, max: usize) -> String {
    let mut shown = String::with_capacity(text.len().min(max));
    for character in text.chars().take(max) {
        if character.is_control() && !matches!(character, '\n' | '\t') {
            shown.extend(character.escape_debug());
        } else {
            shown.push(character);
        }
    }
    if text.chars().nth(max).is_some() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use std::any::TypeId;
    use std::io;

    use insta::assert_snapshot;
    use rmcp::transport::DynamicTransportError;

    use super::*;
    use crate::transport::http::{HttpError, HttpErrorKind};

    fn transport(error: impl Error + Send + Sync + 'static) -> DynamicTransportError {
        DynamicTransportError::from_parts("test", TypeId::of::<()>(), Box::new(error))
    }

    #[test]
    fn each_kind_of_http_error_has_its_cause_and_message() {
        let kinds = [
            HttpErrorKind::ConnectFailed,
            HttpErrorKind::ConnectionLost,
            HttpErrorKind::Unavailable,
            HttpErrorKind::AuthRequired,
            HttpErrorKind::TooLarge,
            HttpErrorKind::InvalidResponse,
            HttpErrorKind::Refused,
        ];
        let texts = kinds.map(|kind| {
            let error = ServiceError::TransportSend(transport(HttpError::new(kind, "why")));
            let CallError { failure, is_lost } = call("echo", error, None);
            assert_eq!((failure.detail.as_deref(), is_lost), (Some("why"), kind == HttpErrorKind::ConnectionLost));
            format!("{:?}: {}", failure.cause, failure.message)
        });
        assert_snapshot!(texts.join("\n"), @"
        ConnectFailed: The MCP server of tool 'echo' cannot be reached: nothing was sent. Try again later.
        ConnectionLost: The MCP server of tool 'echo' went away before it answered.
        Unavailable: The MCP server of tool 'echo' cannot serve now.
        AuthRequired: The MCP server of tool 'echo' asks for a credential that only an operator can give.
        ResultTooLarge: The MCP server of tool 'echo' answered with more than is allowed. Ask for less.
        InvalidResult: The MCP server of tool 'echo' answered with something that is not the result of a call.
        Failed: The MCP server of tool 'echo' refused the request. Only an operator can mend this.
        ");
    }

    #[test]
    fn a_failed_send_loses_the_server() {
        let broken = ServiceError::TransportSend(transport(io::Error::from(io::ErrorKind::BrokenPipe)));
        let CallError { failure, is_lost } = call("echo", broken, Some("the server ended with exit code 1"));
        assert!(is_lost);
        assert_eq!((failure.cause, failure.detail.as_deref()), (Cause::ConnectionLost, Some("broken pipe")));
    }

    #[test]
    fn a_server_that_requires_a_credential_is_distinguished() {
        let refused = || transport(HttpError::new(HttpErrorKind::AuthRequired, "renew it"));
        let error = ClientInitializeError::TransportError { error: refused(), context: "test".into() };
        assert_eq!(
            handshake(&error, "server/discover", None, RequestError::ProbeFailed),
            RequestError::AuthRequired("`server/discover` could not be sent: renew it".to_owned())
        );
        assert_eq!(
            request("ping", &ServiceError::TransportSend(refused()), None),
            RequestError::AuthRequired("`ping` could not be sent: renew it".to_owned())
        );
    }

    #[test]
    fn a_text_keeps_its_lines_loses_what_would_move_a_cursor_and_is_cut_at_a_character() {
        assert_eq!(shown("a\tb\nc\u{1b}[2J", 100), "a\tb\nc\\u{1b}[2J");
        assert_eq!(shown("äöüß", 4), "äöüß");
        assert_eq!(shown("äöüß", 3), "äöü…");
    }
}
