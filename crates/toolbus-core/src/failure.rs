//! Why a call has no result, and what its caller, its metrics and its log are told.

use std::time::Duration;

use toolbus_protocol::{Code, Outcome};

use crate::tool::Effect;

/// Why a call has no result. Every failure of every layer is one of these.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cause {
    /// The request could not be read.
    MalformedRequest,
    /// No tool of that name that the caller may see.
    UnknownTool,
    /// The arguments are not what the tool takes.
    InvalidArguments,
    /// The deadline had passed before the tool could begin.
    Expired,
    /// The deadline passed while the tool ran, in any layer.
    DeadlineExceeded,
    /// No permit in time, or too many calls waiting.
    Overloaded,
    /// Cancelled by the caller before the tool began.
    CancelledBeforeStart,
    /// Cancelled by the caller, or by shutdown, while the tool ran.
    Cancelled,
    /// The backend could not be reached: nothing was sent.
    ConnectFailed,
    /// The backend went away while it worked on the call.
    ConnectionLost,
    /// The backend said that it cannot serve now (HTTP 502, 503, 504).
    Unavailable,
    /// The backend needs credentials that only a person can give.
    AuthRequired,
    /// The tool panicked.
    Panicked,
    /// The result is larger than allowed.
    ResultTooLarge,
    /// The result is not text, or not what was announced.
    InvalidResult,
    /// The request was delivered too often without an answer.
    DeliveredTooOften,
    /// Anything else.
    Failed,
}

impl Cause {
    /// Every cause.
    pub const ALL: [Self; 17] = [
        Self::MalformedRequest,
        Self::UnknownTool,
        Self::InvalidArguments,
        Self::Expired,
        Self::DeadlineExceeded,
        Self::Overloaded,
        Self::CancelledBeforeStart,
        Self::Cancelled,
        Self::ConnectFailed,
        Self::ConnectionLost,
        Self::Unavailable,
        Self::AuthRequired,
        Self::Panicked,
        Self::ResultTooLarge,
        Self::InvalidResult,
        Self::DeliveredTooOften,
        Self::Failed,
    ];
}

/// A failure of the machinery around a tool: a cause, and a text for each of its two readers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolFailure {
    /// Why.
    pub cause: Cause,
    /// For the caller: what happened and what to do next. No secret, no path of this machine, no stack trace.
    pub message: String,
    /// For the log alone.
    pub detail: Option<String>,
    /// How long the caller should wait before trying again.
    pub retry_after: Option<Duration>,
}

impl ToolFailure {
    /// A failure with a text for the caller.
    #[must_use]
    pub fn new(cause: Cause, message: impl Into<String>) -> Self {
        Self { cause, message: message.into(), detail: None, retry_after: None }
    }

    /// Adds what only the log may say.
    #[must_use]
    pub fn with_detail(mut self, detail: impl ToString) -> Self {
        self.detail = Some(detail.to_string());
        self
    }

    /// Adds how long to wait before trying again.
    #[must_use]
    pub const fn with_retry_after(mut self, wait: Duration) -> Self {
        self.retry_after = Some(wait);
        self
    }
}

/// What the caller is told of a cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    /// The wire's code.
    pub code: Code,
    /// Whether the same call may succeed later.
    pub is_retryable: bool,
    /// What is known of side effects; said only where it helps.
    pub outcome: Option<Outcome>,
}

/// Maps a cause to the wire: the only place where codes, retry hints and outcomes are decided.
///
/// `started` says whether the executor had begun. A tool *declared* effectful that may have started is never said to be
/// retryable; one that nobody declared is, as peers expect.
#[must_use]
pub const fn verdict(cause: Cause, effect: Effect, started: bool) -> Verdict {
    let may_have_acted = started && !matches!(effect, Effect::ReadOnly);
    let repeatable = !(started && matches!(effect, Effect::Effectful));
    let interrupted = if may_have_acted { Some(Outcome::Unknown) } else { None };
    let (code, is_retryable, outcome) = match cause {
        Cause::MalformedRequest | Cause::InvalidArguments => (Code::InvalidArguments, false, None),
        Cause::UnknownTool => (Code::ToolNotFound, false, None),
        Cause::Expired => (Code::Timeout, true, Some(Outcome::NotStarted)),
        Cause::DeadlineExceeded => (Code::Timeout, repeatable, interrupted),
        Cause::Overloaded => (Code::Overloaded, true, Some(Outcome::NotStarted)),
        Cause::CancelledBeforeStart => (Code::Cancelled, false, Some(Outcome::NotStarted)),
        Cause::Cancelled => (Code::Cancelled, false, interrupted),
        Cause::ConnectFailed => (Code::ExecutionFailed, true, Some(Outcome::NotStarted)),
        Cause::ConnectionLost | Cause::Unavailable => (Code::ExecutionFailed, repeatable, interrupted),
        Cause::AuthRequired => (Code::AuthRequired, false, Some(Outcome::NotStarted)),
        Cause::Panicked | Cause::ResultTooLarge | Cause::InvalidResult | Cause::DeliveredTooOften => {
            (Code::ExecutionFailed, false, interrupted)
        }
        Cause::Failed => (Code::ExecutionFailed, false, None),
    };
    Verdict { code, is_retryable, outcome }
}

/// How a call ended, as metrics label it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Status {
    /// A result.
    Ok,
    /// A result in which the tool says that it did not succeed.
    Error,
    /// No result, with this code.
    Refused(Code),
}

impl Status {
    /// The label's value.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Error => "error",
            Self::Refused(code) => code.as_str(),
        }
    }
}

/// Maps a cause to the metric label `error.type`, finer than the code: whose fault it was.
#[must_use]
pub const fn error_type(cause: Cause) -> &'static str {
    match cause {
        Cause::MalformedRequest => "malformed_request",
        Cause::UnknownTool => "tool_not_found",
        Cause::InvalidArguments => "invalid_arguments",
        Cause::Expired => "expired",
        Cause::DeadlineExceeded => "timeout",
        Cause::Overloaded => "overloaded",
        Cause::CancelledBeforeStart | Cause::Cancelled => "cancelled",
        Cause::ConnectFailed => "connect_failed",
        Cause::ConnectionLost => "connection_lost",
        Cause::Unavailable => "backend_unavailable",
        Cause::AuthRequired => "auth_required",
        Cause::Panicked => "panic",
        Cause::ResultTooLarge => "result_too_large",
        Cause::InvalidResult => "invalid_result",
        Cause::DeliveredTooOften => "delivered_too_often",
        Cause::Failed => "execution_failed",
    }
}
