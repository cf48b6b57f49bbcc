//! Reason why a call has no result, and the fields of its reply, its metrics and its log.

use std::any::Any;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolbus_protocol::{Code, Outcome, ToolError};

use crate::redact::Redactor;

/// Reason why a call has no result. Every failure of every layer is one of these.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cause {
    /// The request could not be read.
    MalformedRequest,
    /// No tool of that name that the caller may see.
    UnknownTool,
    /// No MCP server of that name of which the caller may see a tool.
    UnknownServer,
    /// The arguments are not what the tool takes.
    InvalidArguments,
    /// The deadline had passed before the tool could begin.
    Expired,
    /// The deadline passed while the tool ran, in any layer.
    DeadlineExceeded,
    /// The tool is one that the caller may see, but this use of it is refused.
    NotAllowed,
    /// Over the rate at which the caller may call the tool.
    RateLimited,
    /// No permit in time, or too many calls waiting.
    Overloaded,
    /// Cancelled by the caller before the tool began.
    CancelledBeforeStart,
    /// Cancelled by the caller, or by shutdown, while the tool ran.
    Cancelled,
    /// The backend could not be reached, or the program not be started: nothing was sent or done.
    ConnectFailed,
    /// The backend went away while it worked on the call.
    ConnectionLost,
    /// The backend responded that it cannot serve now (HTTP 502, 503, 504).
    Unavailable,
    /// The backend needs credentials that only a person can give.
    AuthRequired,
    /// The tool panicked.
    Panicked,
    /// The result is larger than allowed.
    ResultTooLarge,
    /// The result is not text, or not what was announced.
    InvalidResult,
    /// The request was delivered too often without a reply.
    DeliveredTooOften,
    /// The request had begun before, and how that ended is not known.
    OutcomeUnknown,
    /// The idempotency key is that of a request for something else.
    KeyReused,
    /// The ledger cannot record the call before the tool begins.
    LedgerUnavailable,
    /// The tool, or its server, has failed again and again, and is not called for now.
    BreakerOpen,
    /// Anything else.
    Failed,
}

impl Cause {
    /// Every cause.
    pub const ALL: [Self; 24] = [
        Self::MalformedRequest,
        Self::UnknownTool,
        Self::UnknownServer,
        Self::InvalidArguments,
        Self::Expired,
        Self::DeadlineExceeded,
        Self::NotAllowed,
        Self::RateLimited,
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
        Self::OutcomeUnknown,
        Self::KeyReused,
        Self::LedgerUnavailable,
        Self::BreakerOpen,
        Self::Failed,
    ];
}

/// Effect of repeating a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(inline)]
pub enum Effect {
    /// Changes nothing.
    ReadOnly,
    /// Changes something, once, however often it is repeated.
    Idempotent,
    /// Changes something each time.
    Effectful,
    /// Undeclared: treated as effectful wherever a call might be repeated.
    #[serde(skip)]
    #[default]
    Undeclared,
}

impl Effect {
    /// Whether the machinery may repeat a call on its own.
    #[must_use]
    pub const fn is_repeatable(self) -> bool {
        matches!(self, Self::ReadOnly | Self::Idempotent)
    }
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
    /// Time that the caller should wait before trying again.
    pub retry_after: Option<Duration>,
    /// The verdict, if it is made already: for a tool that was called within another.
    pub verdict: Option<Verdict>,
}

impl ToolFailure {
    /// A failure with a text for the caller.
    #[must_use]
    pub fn new(cause: Cause, message: impl Into<String>) -> Self {
        Self { cause, message: message.into(), detail: None, retry_after: None, verdict: None }
    }

    /// The failure of a call whose arguments the caller has to mend.
    #[must_use]
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(Cause::InvalidArguments, message)
    }

    /// Adds a detail for the log alone.
    #[must_use]
    pub fn with_detail(mut self, detail: impl ToString) -> Self {
        self.detail = Some(detail.to_string());
        self
    }

    /// Marks a call whose tool may have acted, though this call did not run it.
    pub(crate) fn begun(mut self) -> Self {
        self.verdict = Some(verdict(self.cause, Effect::Undeclared, true));
        self
    }

    /// Adds how long to wait before trying again.
    #[must_use]
    pub const fn with_retry_after(mut self, wait: Duration) -> Self {
        self.retry_after = Some(wait);
        self
    }

    /// Verdict of the reply: the one that is made already, or else that of a tool of this effect.
    #[must_use]
    pub fn verdict(&self, effect: Effect, started: bool) -> Verdict {
        self.verdict.unwrap_or_else(|| verdict(self.cause, effect, started))
    }

    /// Removes secrets from both texts.
    pub(crate) fn redact(&mut self, redactor: &Redactor) {
        redactor.clean(&mut self.message);
        if let Some(detail) = &mut self.detail {
            redactor.clean(detail);
        }
    }
}

/// A failure as a caller on the bus gets it: its message is made for that caller, and its cause is only the kind of
/// mistake.
impl From<ToolError> for ToolFailure {
    fn from(error: ToolError) -> Self {
        let cause = match error.code {
            Code::ToolNotFound => Cause::UnknownTool,
            Code::InvalidArguments => Cause::InvalidArguments,
            Code::Timeout => Cause::DeadlineExceeded,
            Code::NotAllowed => Cause::NotAllowed,
            Code::RateLimited => Cause::RateLimited,
            Code::Overloaded => Cause::Overloaded,
            Code::Cancelled => Cause::Cancelled,
            Code::AuthRequired => Cause::AuthRequired,
            Code::ExecutionFailed => Cause::Failed,
        };
        let verdict = Verdict { code: error.code, is_retryable: error.is_retryable, outcome: error.outcome };
        Self {
            retry_after: error.retry_after_ms.map(Duration::from_millis),
            verdict: Some(verdict),
            ..Self::new(cause, error.message)
        }
    }
}

/// Code, retry hint and outcome of a reply for a cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    /// The wire's code.
    pub code: Code,
    /// Whether the same call may succeed later.
    pub is_retryable: bool,
    /// Known side effects; set only where it helps.
    pub outcome: Option<Outcome>,
}

/// Maps a cause to the wire: the only function by which codes, retry hints and outcomes are decided.
///
/// `started`: whether the executor had begun. A tool *declared* effectful that may have started is never reported as
/// retryable; an undeclared one is, as peers expect.
#[must_use]
pub const fn verdict(cause: Cause, effect: Effect, started: bool) -> Verdict {
    let may_have_acted = started && !matches!(effect, Effect::ReadOnly);
    let repeatable = !(started && matches!(effect, Effect::Effectful));
    let interrupted = if may_have_acted { Some(Outcome::Unknown) } else { None };
    let (code, is_retryable, outcome) = match cause {
        Cause::MalformedRequest | Cause::InvalidArguments | Cause::KeyReused => (Code::InvalidArguments, false, None),
        Cause::UnknownTool | Cause::UnknownServer => (Code::ToolNotFound, false, None),
        Cause::Expired => (Code::Timeout, true, Some(Outcome::NotStarted)),
        Cause::DeadlineExceeded => (Code::Timeout, repeatable, interrupted),
        Cause::NotAllowed => (Code::NotAllowed, false, Some(Outcome::NotStarted)),
        Cause::RateLimited => (Code::RateLimited, true, Some(Outcome::NotStarted)),
        Cause::Overloaded => (Code::Overloaded, true, Some(Outcome::NotStarted)),
        Cause::CancelledBeforeStart => (Code::Cancelled, false, Some(Outcome::NotStarted)),
        Cause::Cancelled => (Code::Cancelled, false, interrupted),
        Cause::ConnectFailed | Cause::BreakerOpen | Cause::LedgerUnavailable => {
            (Code::ExecutionFailed, true, Some(Outcome::NotStarted))
        }
        Cause::ConnectionLost | Cause::Unavailable => (Code::ExecutionFailed, repeatable, interrupted),
        Cause::AuthRequired => (Code::AuthRequired, false, Some(Outcome::NotStarted)),
        Cause::Panicked
        | Cause::ResultTooLarge
        | Cause::InvalidResult
        | Cause::DeliveredTooOften
        | Cause::OutcomeUnknown
        | Cause::Failed => (Code::ExecutionFailed, false, interrupted),
    };
    Verdict { code, is_retryable, outcome }
}

/// End of a call, as metrics label it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Status {
    /// A result.
    Ok,
    /// A result with `isError`.
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
        Cause::UnknownTool | Cause::UnknownServer => "tool_not_found",
        Cause::InvalidArguments => "invalid_arguments",
        Cause::Expired => "expired",
        Cause::DeadlineExceeded => "timeout",
        Cause::NotAllowed => "not_allowed",
        Cause::RateLimited => "rate_limited",
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
        Cause::OutcomeUnknown => "outcome_unknown",
        Cause::KeyReused => "key_reused",
        Cause::LedgerUnavailable => "ledger_unavailable",
        Cause::BreakerOpen => "breaker_open",
        Cause::Failed => "execution_failed",
    }
}

/// Failure of a call in which code of the daemon panicked, outside its tool.
pub(crate) fn panicked(panic: &(dyn Any + Send)) -> ToolFailure {
    ToolFailure::new(Cause::Panicked, "The call failed because of a mistake in the daemon's code. Report it.")
        .with_detail(format_args!("panic outside the tool: {}", text_of_panic(panic)))
}

/// Message of a panic.
pub(crate) fn text_of_panic(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("without a text")
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::fmt::Write as _;
    use std::time::Duration;

    use toolbus_protocol::{Code, Outcome};

    use super::{Cause, Effect, Status, ToolFailure, Verdict, error_type, verdict};

    const EFFECTS: [Effect; 4] = [Effect::ReadOnly, Effect::Idempotent, Effect::Effectful, Effect::Undeclared];

    fn summary(Verdict { is_retryable, outcome, .. }: Verdict) -> String {
        let retry = if is_retryable { "again" } else { "final" };
        let outcome = match outcome {
            None => "-",
            Some(Outcome::NotStarted) => "not_started",
            Some(Outcome::Failed) => "failed",
            Some(Outcome::Unknown) => "unknown",
        };
        format!("{retry} {outcome}")
    }

    fn every_verdict() -> impl Iterator<Item = (Cause, Effect, bool, Verdict)> {
        Cause::ALL.into_iter().flat_map(|cause| {
            EFFECTS.into_iter().flat_map(move |effect| {
                [false, true].map(|started| (cause, effect, started, verdict(cause, effect, started)))
            })
        })
    }

    #[test]
    fn every_cause_has_its_verdict() {
        let mut table = String::new();
        for cause in Cause::ALL {
            for started in [false, true] {
                let code = verdict(cause, Effect::ReadOnly, started).code.as_str();
                let when = if started { "started" } else { "before" };
                write!(table, "{:<20} {when:<7} {code:<17} ", format!("{cause:?}")).unwrap();
                let [read_only, idempotent, effectful, undeclared] =
                    EFFECTS.map(|effect| summary(verdict(cause, effect, started)));
                writeln!(table, "| {read_only:<17} | {idempotent:<17} | {effectful:<17} | {undeclared}").unwrap();
            }
        }
        insta::assert_snapshot!(table, @"
        MalformedRequest     before  invalid_arguments | final -           | final -           | final -           | final -
        MalformedRequest     started invalid_arguments | final -           | final -           | final -           | final -
        UnknownTool          before  tool_not_found    | final -           | final -           | final -           | final -
        UnknownTool          started tool_not_found    | final -           | final -           | final -           | final -
        UnknownServer        before  tool_not_found    | final -           | final -           | final -           | final -
        UnknownServer        started tool_not_found    | final -           | final -           | final -           | final -
        InvalidArguments     before  invalid_arguments | final -           | final -           | final -           | final -
        InvalidArguments     started invalid_arguments | final -           | final -           | final -           | final -
        Expired              before  timeout           | again not_started | again not_started | again not_started | again not_started
        Expired              started timeout           | again not_started | again not_started | again not_started | again not_started
        DeadlineExceeded     before  timeout           | again -           | again -           | again -           | again -
        DeadlineExceeded     started timeout           | again -           | again unknown     | final unknown     | again unknown
        NotAllowed           before  not_allowed       | final not_started | final not_started | final not_started | final not_started
        NotAllowed           started not_allowed       | final not_started | final not_started | final not_started | final not_started
        RateLimited          before  rate_limited      | again not_started | again not_started | again not_started | again not_started
        RateLimited          started rate_limited      | again not_started | again not_started | again not_started | again not_started
        Overloaded           before  overloaded        | again not_started | again not_started | again not_started | again not_started
        Overloaded           started overloaded        | again not_started | again not_started | again not_started | again not_started
        CancelledBeforeStart before  cancelled         | final not_started | final not_started | final not_started | final not_started
        CancelledBeforeStart started cancelled         | final not_started | final not_started | final not_started | final not_started
        Cancelled            before  cancelled         | final -           | final -           | final -           | final -
        Cancelled            started cancelled         | final -           | final unknown     | final unknown     | final unknown
        ConnectFailed        before  execution_failed  | again not_started | again not_started | again not_started | again not_started
        ConnectFailed        started execution_failed  | again not_started | again not_started | again not_started | again not_started
        ConnectionLost       before  execution_failed  | again -           | again -           | again -           | again -
        ConnectionLost       started execution_failed  | again -           | again unknown     | final unknown     | again unknown
        Unavailable          before  execution_failed  | again -           | again -           | again -           | again -
        Unavailable          started execution_failed  | again -           | again unknown     | final unknown     | again unknown
        AuthRequired         before  auth_required     | final not_started | final not_started | final not_started | final not_started
        AuthRequired         started auth_required     | final not_started | final not_started | final not_started | final not_started
        Panicked             before  execution_failed  | final -           | final -           | final -           | final -
        Panicked             started execution_failed  | final -           | final unknown     | final unknown     | final unknown
        ResultTooLarge       before  execution_failed  | final -           | final -           | final -           | final -
        ResultTooLarge       started execution_failed  | final -           | final unknown     | final unknown     | final unknown
        InvalidResult        before  execution_failed  | final -           | final -           | final -           | final -
        InvalidResult        started execution_failed  | final -           | final unknown     | final unknown     | final unknown
        DeliveredTooOften    before  execution_failed  | final -           | final -           | final -           | final -
        DeliveredTooOften    started execution_failed  | final -           | final unknown     | final unknown     | final unknown
        OutcomeUnknown       before  execution_failed  | final -           | final -           | final -           | final -
        OutcomeUnknown       started execution_failed  | final -           | final unknown     | final unknown     | final unknown
        KeyReused            before  invalid_arguments | final -           | final -           | final -           | final -
        KeyReused            started invalid_arguments | final -           | final -           | final -           | final -
        LedgerUnavailable    before  execution_failed  | again not_started | again not_started | again not_started | again not_started
        LedgerUnavailable    started execution_failed  | again not_started | again not_started | again not_started | again not_started
        BreakerOpen          before  execution_failed  | again not_started | again not_started | again not_started | again not_started
        BreakerOpen          started execution_failed  | again not_started | again not_started | again not_started | again not_started
        Failed               before  execution_failed  | final -           | final -           | final -           | final -
        Failed               started execution_failed  | final -           | final unknown     | final unknown     | final unknown
        ");
    }

    #[test]
    fn the_code_depends_on_the_cause_alone() {
        for (cause, effect, started, verdict) in every_verdict() {
            let expected = super::verdict(cause, Effect::ReadOnly, false).code;
            assert_eq!(verdict.code, expected, "{cause:?} {effect:?} {started}");
        }
    }

    #[test]
    fn a_tool_declared_effectful_that_may_have_acted_is_never_repeated() {
        for (cause, effect, started, verdict) in every_verdict() {
            if effect == Effect::Effectful && started && verdict.is_retryable {
                assert_eq!(verdict.outcome, Some(Outcome::NotStarted), "{cause:?}");
            }
        }
    }

    #[test]
    fn a_call_that_did_not_start_never_has_an_unknown_outcome() {
        for (cause, effect, started, verdict) in every_verdict() {
            let harmless = !started || effect == Effect::ReadOnly;
            assert!(!harmless || verdict.outcome != Some(Outcome::Unknown), "{cause:?} {effect:?}");
        }
    }

    #[test]
    fn the_list_of_causes_names_each_once() {
        assert_eq!(Cause::ALL.into_iter().collect::<HashSet<_>>().len(), Cause::ALL.len());
    }

    #[test]
    fn every_cause_has_its_label() {
        let labels: Vec<String> = Cause::ALL.iter().map(|cause| format!("{cause:?} {}", error_type(*cause))).collect();
        insta::assert_snapshot!(labels.join("\n"), @"
        MalformedRequest malformed_request
        UnknownTool tool_not_found
        UnknownServer tool_not_found
        InvalidArguments invalid_arguments
        Expired expired
        DeadlineExceeded timeout
        NotAllowed not_allowed
        RateLimited rate_limited
        Overloaded overloaded
        CancelledBeforeStart cancelled
        Cancelled cancelled
        ConnectFailed connect_failed
        ConnectionLost connection_lost
        Unavailable backend_unavailable
        AuthRequired auth_required
        Panicked panic
        ResultTooLarge result_too_large
        InvalidResult invalid_result
        DeliveredTooOften delivered_too_often
        OutcomeUnknown outcome_unknown
        KeyReused key_reused
        LedgerUnavailable ledger_unavailable
        BreakerOpen breaker_open
        Failed execution_failed
        ");
    }

    #[test]
    fn labels_are_fit_for_metrics() {
        let fit =
            |label: &str| !label.is_empty() && label.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
        assert!(Cause::ALL.into_iter().map(error_type).all(fit));
        let statuses = [Status::Ok, Status::Error].into_iter().chain(Code::ALL.map(Status::Refused));
        let labels: HashSet<&str> = statuses.map(Status::as_str).collect();
        assert!(labels.iter().copied().all(fit));
        assert_eq!(labels.len(), 2 + Code::ALL.len(), "no two statuses share a label");
    }

    #[test]
    fn a_failure_keeps_its_two_texts_apart() {
        let failure = ToolFailure::new(Cause::ConnectFailed, "The backend cannot be reached.")
            .with_detail("connect 10.0.0.1:80: refused")
            .with_retry_after(Duration::from_secs(2));
        assert_eq!(failure.message, "The backend cannot be reached.");
        assert_eq!(failure.detail.as_deref(), Some("connect 10.0.0.1:80: refused"));
        assert_eq!(failure.retry_after, Some(Duration::from_secs(2)));
    }
}
