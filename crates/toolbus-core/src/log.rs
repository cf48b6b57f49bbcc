//! What the dispatcher writes to the log: one line per failure, as `docs/logging.md` has it.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use toolbus_protocol::header;

use crate::decode::Request;
use crate::failure::{Cause, ToolFailure, error_type};
use crate::tool::ToolDescriptor;

/// Longest part of what outsiders wrote that is repeated, in characters.
const MAX_SHOWN: usize = 64;
/// Time between two lines of one kind, where they repeat.
const PERIOD: Duration = Duration::from_secs(60);

/// Lets one line through per minute, and counts those that it leaves out.
#[derive(Debug, Default)]
pub struct Throttle(Mutex<Lines>);

#[derive(Debug, Default)]
struct Lines {
    next: Option<Instant>,
    left_out: u64,
}

impl Throttle {
    /// How many lines were left out since the last one, if a line is due now.
    #[must_use]
    pub fn due(&self) -> Option<u64> {
        self.due_at(Instant::now())
    }

    fn due_at(&self, now: Instant) -> Option<u64> {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.next.is_some_and(|next| now < next) {
            lines.left_out = lines.left_out.saturating_add(1);
            return None;
        }
        lines.next = Some(now + PERIOD);
        Some(std::mem::take(&mut lines.left_out))
    }
}

/// The lines that may repeat for as long as a state lasts, or as often as a caller likes.
#[derive(Default)]
pub(crate) struct Log {
    overloaded: Throttle,
    budgets: Throttle,
    pub(crate) requests: Throttle,
    pub(crate) undeliverable: Throttle,
    pub(crate) unconfirmed: Throttle,
    pub(crate) not_buried: Throttle,
    pub(crate) no_queue: Throttle,
    pub(crate) broker_away: Throttle,
}

/// The call that a line is about.
pub(crate) struct Subject<'a> {
    pub(crate) tool: Option<&'a ToolDescriptor>,
    pub(crate) request: &'a Request,
    pub(crate) trace_id: Option<&'a str>,
}

impl Log {
    /// Says why a call has no result. What callers do themselves is no concern of an operator's.
    pub(crate) fn failure(&self, subject: &Subject<'_>, failure: &ToolFailure, shutting_down: bool) {
        let (tool, source) = subject.tool.map_or(("-", "-"), |tool| (&*tool.name, &*tool.source));
        let Subject { request, trace_id, .. } = *subject;
        let cause = error_type(failure.cause);
        let detail = failure.detail.as_deref();
        match failure.cause {
            Cause::MalformedRequest
            | Cause::UnknownTool
            | Cause::UnknownServer
            | Cause::InvalidArguments
            | Cause::NotAllowed
            | Cause::RateLimited => tracing::info!(
                tool,
                source,
                caller = shown(&request.caller.name),
                call_id = shown(&request.call_id),
                cause,
                trace_id,
                "refused a call"
            ),
            Cause::Expired | Cause::CancelledBeforeStart => tracing::info!(
                tool,
                source,
                caller = shown(&request.caller.name),
                call_id = shown(&request.call_id),
                cause,
                trace_id,
                "did not run a call that its caller had given up"
            ),
            Cause::Cancelled if !shutting_down => tracing::info!(
                tool,
                source,
                caller = shown(&request.caller.name),
                call_id = shown(&request.call_id),
                cause,
                trace_id,
                "a call was cancelled by its caller"
            ),
            Cause::Overloaded => {
                if let Some(left_out) = self.overloaded.due() {
                    tracing::warn!(
                        tool,
                        source,
                        caller = shown(&request.caller.name),
                        call_id = shown(&request.call_id),
                        cause,
                        trace_id,
                        left_out,
                        "refused a call because too many are under way"
                    );
                }
            }
            Cause::Panicked => tracing::error!(
                tool,
                source,
                caller = shown(&request.caller.name),
                call_id = shown(&request.call_id),
                cause,
                trace_id,
                detail,
                "a tool panicked"
            ),
            _ => tracing::warn!(
                tool,
                source,
                caller = shown(&request.caller.name),
                call_id = shown(&request.call_id),
                cause,
                trace_id,
                detail,
                "a call failed"
            ),
        }
    }

    /// Says that a caller's budget is no positive number of milliseconds.
    pub(crate) fn unusable_budget(&self, request: &Request) {
        if let Some(left_out) = self.budgets.due() {
            tracing::warn!(
                caller = shown(&request.caller.name),
                call_id = shown(&request.call_id),
                detail = request.envelope.header(header::TIMEOUT_MS).map(shown),
                left_out,
                "ignored an unusable budget"
            );
        }
    }
}

/// Digits of the seconds since 1970 that are taken for a date: those of 1973 and later.
const MIN_DATE: usize = 9;

/// An error text with dates where TLS libraries write seconds since 1970 (`not valid after 1763852400`).
#[must_use]
pub fn with_dates(text: &str) -> String {
    let mut before = "";
    let words = text.split(' ').filter(|word| !word.starts_with("(UNIX)")).map(|word| {
        let is_date = matches!(before, "time" | "after" | "before") && word.len() >= MIN_DATE;
        before = word;
        let date = is_date.then(|| word.parse().ok().and_then(|seconds| jiff::Timestamp::from_second(seconds).ok()));
        date.flatten().map_or_else(|| word.to_owned(), |date| date.to_string())
    });
    words.collect::<Vec<_>>().join(" ")
}

/// What outsiders wrote, as a log line or an answer may repeat it: at most 64 characters, escaped.
#[must_use]
pub fn shown(text: &str) -> String {
    let mut shown: String = text.chars().take(MAX_SHOWN).flat_map(char::escape_debug).collect();
    if text.chars().nth(MAX_SHOWN).is_some() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_passes_and_then_one_per_minute_with_a_count() {
        let (throttle, now) = (Throttle::default(), Instant::now());
        assert_eq!(throttle.due_at(now), Some(0));
        for _ in 0..3 {
            assert_eq!(throttle.due_at(now + Duration::from_secs(59)), None);
        }
        assert_eq!(throttle.due_at(now + PERIOD), Some(3));
        assert_eq!(throttle.due_at(now + PERIOD), None);
    }

    #[test]
    fn what_is_shown_is_short_and_without_control_characters() {
        assert_eq!(shown("a\u{1b}[2J\n"), "a\\u{1b}[2J\\n");
        assert_eq!(shown(&"x".repeat(100)).chars().count(), MAX_SHOWN + 1);
    }

    #[test]
    fn seconds_of_certificates_are_dates_and_other_numbers_stay() {
        let said = "certificate expired: verification time 1763852400 (UNIX), but certificate is not valid after 1763766000 \
                    (86400 seconds ago)";
        assert_eq!(
            with_dates(said),
            "certificate expired: verification time 2025-11-22T23:00:00Z but certificate is not valid after \
             2025-11-21T23:00:00Z (86400 seconds ago)"
        );
        for other in ["after 3 tries", "closed at 1763852400", "  two  spaces", ""] {
            assert_eq!(with_dates(other), other);
        }
    }
}
