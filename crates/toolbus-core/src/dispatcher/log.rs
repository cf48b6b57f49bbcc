//! Log lines of the dispatcher: one per failure, as `docs/logging.md` has it.

use toolbus_protocol::header;
use tracing::Level;

use crate::failure::{Cause, ToolFailure, error_type};
use crate::request::Request;
use crate::text::shown;
use crate::throttle::Throttle;
use crate::tool::ToolDescriptor;

/// Target of the lines about failures, as `docs/logging.md` names it.
const TARGET: &str = "toolbus_core::log";

/// The lines that may repeat for as long as a state lasts, or as often as a caller likes.
#[derive(Default)]
pub(super) struct Log {
    overloaded: Throttle,
    breaker_open: Throttle,
    ledger_away: Throttle,
    budgets: Throttle,
}

/// The call that a line is about.
pub(super) struct LoggedCall<'a> {
    pub(super) tool: Option<&'a ToolDescriptor>,
    pub(super) request: &'a Request,
    pub(super) trace_id: Option<&'a str>,
}

impl Log {
    /// Writes why a call has no result. What callers do themselves is no concern of an operator's.
    pub(super) fn failure(&self, subject: &LoggedCall<'_>, failure: &ToolFailure, shutting_down: bool) {
        let (level, message) = match failure.cause {
            Cause::MalformedRequest
            | Cause::UnknownTool
            | Cause::UnknownServer
            | Cause::InvalidArguments
            | Cause::KeyReused
            | Cause::NotAllowed
            | Cause::RateLimited => (Level::INFO, "refused a call"),
            Cause::Expired | Cause::CancelledBeforeStart => {
                (Level::INFO, "did not run a call that its caller had given up")
            }
            Cause::Cancelled if !shutting_down => (Level::INFO, "a call was cancelled by its caller"),
            Cause::Overloaded => (Level::WARN, "refused a call because too many are under way"),
            Cause::BreakerOpen => (Level::WARN, "refused a call: the circuit breaker of its tool is open"),
            Cause::LedgerUnavailable => (Level::WARN, "refused a call because that it begins cannot be recorded"),
            Cause::Panicked => (Level::ERROR, "a tool panicked"),
            _ => (Level::WARN, "a call failed"),
        };
        // What lasts would fill the log.
        let throttle = match failure.cause {
            Cause::Overloaded => Some(&self.overloaded),
            Cause::BreakerOpen => Some(&self.breaker_open),
            Cause::LedgerUnavailable => Some(&self.ledger_away),
            _ => None,
        };
        let left_out = match throttle.map(Throttle::due) {
            Some(None) => return,
            due => due.flatten(),
        };
        let (tool, source) = subject.tool.map_or(("-", "-"), |tool| (&*tool.name, &*tool.source));
        let LoggedCall { request, trace_id, .. } = *subject;
        let cause = error_type(failure.cause);
        // A refusal has no detail beyond its message.
        let detail = failure.detail.as_deref().filter(|_| level != Level::INFO && failure.cause != Cause::Overloaded);
        // The level of an event is a constant.
        macro_rules! record {
            ($level:expr) => {
                tracing::event!(
                    target: TARGET,
                    $level,
                    tool,
                    source,
                    caller = shown(&request.caller.name),
                    call_id = shown(&request.call_id),
                    cause,
                    trace_id,
                    detail,
                    left_out,
                    "{message}"
                )
            };
        }
        match level {
            Level::INFO => record!(Level::INFO),
            Level::ERROR => record!(Level::ERROR),
            _ => record!(Level::WARN),
        }
    }

    /// Writes that a caller's budget is no positive number of milliseconds.
    pub(super) fn unusable_budget(&self, request: &Request) {
        if let Some(left_out) = self.budgets.due() {
            tracing::warn!(
                target: TARGET,
                caller = shown(&request.caller.name),
                call_id = shown(&request.call_id),
                detail = request.envelope.header(header::TIMEOUT_MS).map(shown),
                left_out,
                "ignored an unusable budget"
            );
        }
    }
}
