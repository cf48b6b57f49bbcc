//! Recent calls in the admin API.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use toolbus_telemetry::{RecentCall, RecentCalls, RecentStep};

/// Status of a call that runs.
const IN_FLIGHT: &str = "in_flight";
/// Status of a call that was attached to another one.
const ATTACHED: &str = "attached";
/// Filter for every status of a call that has no result, or a bad one.
const FAILED: &str = "failed";

/// Most calls of a response.
const MAX_FOUND: usize = 200;
/// Most inner calls of a response.
pub const MAX_INNER: usize = 200;
/// Levels of inner calls within each other.
const MAX_DEPTH: usize = 16;

/// Whether the filter `failed` includes a status.
pub(crate) fn is_failure(status: &str) -> bool {
    !["ok", ATTACHED, IN_FLIGHT].contains(&status)
}

/// Selection of calls: those that match every given field.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RecentQuery {
    /// Id of the call, of its message, or of its trace; or its correlation id.
    pub id: Option<String>,
    /// Number of the call.
    pub number: Option<u64>,
    /// Name of the caller.
    pub agent: Option<String>,
    /// Name of the tool.
    pub tool: Option<String>,
    /// Source of the tool, such as `mcp:files`.
    pub source: Option<String>,
    /// Status of the call; `failed` stands for all but `ok`, `attached` and `in_flight`.
    pub status: Option<String>,
    /// Shortest time from arrival to end, in milliseconds. A call that runs has none yet.
    pub slower_ms: Option<u64>,
    /// Most calls of the response; 200 at most.
    pub limit: Option<usize>,
}

impl RecentQuery {
    /// The newest matching calls. If an id or a number is given, they have their inner calls, which are not listed
    /// otherwise.
    pub(super) fn find(&self, recent: &RecentCalls) -> RecentFound {
        let limit = self.limit.unwrap_or(MAX_FOUND).min(MAX_FOUND);
        if self.id.is_none() && self.number.is_none() {
            let calls = recent.newest(limit, |call| self.means(call)).iter().map(Into::into).collect();
            return RecentFound { calls, ..RecentFound::default() };
        }
        let kept = recent.newest(usize::MAX, |_| true);
        let meant: HashSet<u64> = kept.iter().filter(|call| self.means(call)).map(|call| call.number).collect();
        let is_outermost = |call: &RecentCall| call.around.is_none_or(|around| !meant.contains(&around));
        let found = kept.iter().filter(|call| meant.contains(&call.number) && is_outermost(call)).take(limit);
        let mut inner = InnerCalls::of(&kept);
        let calls = found.map(|call| CallTrace { inner: inner.take(call.number, MAX_DEPTH), ..call.into() }).collect();
        RecentFound { calls, ..RecentFound::default() }
    }

    fn means(&self, call: &RecentCall) -> bool {
        let status = call.end.map_or(IN_FLIGHT, |end| end.status);
        let has = |wanted: &Option<String>, own: &str| wanted.as_deref().is_none_or(|wanted| wanted == own);
        let is_status = match self.status.as_deref() {
            Some(FAILED) => is_failure(status),
            _ => has(&self.status, status),
        };
        let is_slow =
            self.slower_ms.is_none_or(|least| call.end.is_some_and(|end| end.total >= Duration::from_millis(least)));
        let has_number = self.number.is_none_or(|number| number == call.number);
        let has_id = self.id.as_deref().is_none_or(|id| call.has_id(id));
        let has_source = has(&self.source, call.source.as_deref().unwrap_or_default());
        let has_names = has(&self.agent, &call.caller) && has(&self.tool, &call.tool) && has_source;
        is_status && is_slow && has_number && has_id && has_names
    }
}

/// The calls that were found.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RecentFound {
    /// Newest first.
    pub calls: Vec<CallTrace>,
    /// Records of the audit file on a call that is no recent one, newest last; a daemon does not look there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub recorded: Vec<Map<String, Value>>,
}

/// A call, and the steps that took its time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CallTrace {
    /// Number of the call among those since the daemon's start.
    pub number: u64,
    /// Number of the call whose tool made this one; absent if none did.
    pub around: Option<u64>,
    /// When its request arrived, as RFC 3339 has it.
    pub arrived: String,
    /// The queue that the request came from; absent for a call that no message brought.
    pub queue: Option<String>,
    /// Id of the request's message.
    pub message_id: Option<String>,
    /// Correlation id of the request.
    pub correlation_id: Option<String>,
    /// The caller's id of the call.
    pub call_id: Option<String>,
    /// Trace of the call.
    pub trace_id: Option<String>,
    /// The caller's name.
    pub agent: String,
    /// The tool.
    pub tool: String,
    /// Source of the tool; absent if there is no such tool.
    pub source: Option<String>,
    /// `ok`, `error`, a code of the wire, `requeued`, `attached`, or `in_flight`.
    pub status: String,
    /// Cause of a missing result, with the value of `error.type` in metrics.
    pub cause: Option<String>,
    /// Message for the caller of a call that did not run: its first 500 bytes.
    pub refusal: Option<String>,
    /// Whether the reply is a replayed one.
    pub replayed: bool,
    /// Whether this call was attached to another call of its identity: the reply is that one's.
    #[serde(default)]
    pub attached: bool,
    /// Key by which its caller identifies it, once it has ended; absent if the caller gave none.
    #[serde(default)]
    pub idempotency_key: Option<String>,
    /// Whether the broker had delivered its request before.
    #[serde(default)]
    pub redelivered: bool,
    /// Earlier deliveries of its request, as far as the broker counts them.
    #[serde(default)]
    pub earlier_deliveries: u32,
    /// Milliseconds from arrival to end; absent while it runs.
    pub total_ms: Option<f64>,
    /// The parts of its time, in order.
    pub steps: Vec<TraceStep>,
    /// Calls that its tool made, oldest first, 200 at most in a response; only of a call that is requested by id or
    /// number.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub inner: Vec<CallTrace>,
}

impl CallTrace {
    /// Addition to the outcome of a call whose reply is another one's.
    #[must_use]
    pub const fn repeated(&self) -> &'static str {
        match (self.replayed, self.attached) {
            (_, true) => " (reply of another run)",
            (true, false) => " (repeated reply)",
            (false, false) => "",
        }
    }

    /// Which delivery of its request this is; `None` for a call that no message brought.
    #[must_use]
    pub fn attempt(&self) -> Option<String> {
        self.queue.as_ref()?;
        Some(match (self.earlier_deliveries, self.redelivered) {
            (0, false) => "first".to_owned(),
            (0, true) => "a later one".to_owned(),
            (earlier, _) => format!("number {}", u64::from(earlier) + 1),
        })
    }
}

/// Recent calls by the call around them.
struct InnerCalls<'a> {
    by_number: HashMap<u64, Vec<&'a RecentCall>>,
    /// Number of calls that there is still room for.
    left: usize,
}

impl<'a> InnerCalls<'a> {
    /// Of calls that are newest first.
    fn of(kept: &'a [RecentCall]) -> Self {
        let mut by_number = HashMap::<u64, Vec<_>>::new();
        for call in kept.iter().rev() {
            if let Some(around) = call.around {
                by_number.entry(around).or_default().push(call);
            }
        }
        Self { by_number, left: MAX_INNER }
    }

    /// The calls within the call of this number, with those within them.
    fn take(&mut self, number: u64, depth: usize) -> Vec<CallTrace> {
        let Some(depth) = depth.checked_sub(1) else { return Vec::new() };
        let mut shown = Vec::new();
        for call in self.by_number.remove(&number).unwrap_or_default() {
            let Some(left) = self.left.checked_sub(1) else { break };
            self.left = left;
            shown.push(CallTrace { inner: self.take(call.number, depth), ..call.into() });
        }
        shown
    }
}

/// A part of a call's time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TraceStep {
    /// `check`, `wait`, `run`, `reply`, `confirm` or `settle`.
    pub name: String,
    /// Milliseconds from the arrival to its beginning.
    pub from_ms: f64,
    /// Length of the step in milliseconds; absent while it lasts.
    pub took_ms: Option<f64>,
}

impl From<&RecentCall> for CallTrace {
    fn from(call: &RecentCall) -> Self {
        let text = |id: &Option<Box<str>>| id.as_deref().map(str::to_owned);
        let end = call.end;
        Self {
            number: call.number,
            around: call.around,
            arrived: in_rfc3339(call.arrived),
            queue: call.queue.as_deref().map(str::to_owned),
            message_id: text(&call.message_id),
            correlation_id: text(&call.correlation_id),
            call_id: text(&call.call_id),
            trace_id: text(&call.trace_id),
            agent: call.caller.to_string(),
            tool: call.tool.to_string(),
            source: call.source.as_deref().map(str::to_owned),
            status: end.map_or(IN_FLIGHT, |end| end.status).to_owned(),
            cause: end.and_then(|end| end.cause).map(str::to_owned),
            refusal: text(&call.refusal),
            replayed: end.is_some_and(|end| end.replayed),
            attached: end.is_some_and(|end| end.attached),
            idempotency_key: text(&call.idempotency_key),
            redelivered: call.redelivered,
            earlier_deliveries: call.earlier_deliveries,
            total_ms: end.map(|end| in_ms(end.total)),
            steps: call.steps.iter().map(Into::into).collect(),
            inner: Vec::new(),
        }
    }
}

impl From<&RecentStep> for TraceStep {
    fn from(step: &RecentStep) -> Self {
        Self { name: step.name.to_owned(), from_ms: in_ms(step.from), took_ms: step.took.map(in_ms) }
    }
}

/// A time as RFC 3339 has it, to a millisecond.
pub(crate) fn in_rfc3339(time: SystemTime) -> String {
    jiff::Timestamp::try_from(time).map(|at| format!("{at:.3}")).unwrap_or_default()
}

/// Milliseconds, to a thousandth.
fn in_ms(time: Duration) -> f64 {
    (time.as_secs_f64() * 1_000_000.0).round() / 1_000.0
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use toolbus_core::Clock;
    use toolbus_core::caller::Caller;
    use toolbus_core::events::Discard;
    use toolbus_core::telemetry::{CallSpan, CallSummary};

    use super::*;

    fn ended(span: Box<dyn CallSpan>, requested: &str, call_id: &str) -> Option<u64> {
        let (number, caller) = (span.number(), Caller::unknown());
        let unanswered = CallSummary::unanswered(Duration::ZERO);
        span.finished(&CallSummary { caller: Some(&caller), requested, call_id, ..unanswered });
        number
    }

    fn names(calls: &[CallTrace]) -> Vec<String> {
        let name = |call: &CallTrace| match &*call.inner {
            [] => call.tool.clone(),
            inner => format!("{} {:?}", call.tool, names(inner)),
        };
        calls.iter().map(name).collect()
    }

    #[test]
    fn inner_calls_are_found_in_the_call_that_made_them_or_by_their_number() {
        let recent = RecentCalls::default();
        let telemetry = recent.recording(Arc::new(Discard), Clock::manual(), None);
        let outer = ended(telemetry.nested(None, None), "pipeline", "c-1");
        let inner = ended(telemetry.nested(None, outer), "invoke", "c-1");
        ended(telemetry.nested(None, inner), "add", "c-1");
        ended(telemetry.nested(None, outer), "echo", "c-1");
        let find = |id: Option<&str>, number| {
            let id = id.map(str::to_owned);
            names(&RecentQuery { id, number, ..RecentQuery::default() }.find(&recent).calls)
        };
        assert_eq!(find(Some("c-1"), None), [r#"pipeline ["invoke [\"add\"]", "echo"]"#]);
        assert_eq!(find(Some("c-1"), inner), [r#"invoke ["add"]"#]);
        assert_eq!(find(Some("c-2"), inner), [""; 0]);
        assert_eq!(find(None, None), ["echo", "add", "invoke", "pipeline"]);
    }

    #[test]
    fn the_attempt_of_a_call_is_named_as_far_as_the_broker_counts() {
        let attempt = |earlier_deliveries, redelivered| {
            let queue = Some("invoke".to_owned());
            CallTrace { queue, earlier_deliveries, redelivered, ..CallTrace::default() }.attempt()
        };
        let attempts = [attempt(0, false), attempt(0, true), attempt(2, true)].map(Option::unwrap);
        assert_eq!(attempts, ["first", "a later one", "number 3"]);
        assert_eq!(CallTrace::default().attempt(), None, "no message brought it");
    }

    #[test]
    fn an_inner_call_stands_alone_once_the_one_around_it_is_forgotten() {
        let recent = RecentCalls::default();
        let telemetry = recent.recording(Arc::new(Discard), Clock::manual(), None);
        ended(telemetry.nested(None, Some(9)), "echo", "c-1");
        let query = RecentQuery { id: Some("c-1".to_owned()), ..RecentQuery::default() };
        assert_eq!(names(&query.find(&recent).calls), ["echo"]);
    }

    #[test]
    fn inner_calls_are_bounded_in_number_and_depth() {
        let recent = RecentCalls::default();
        let telemetry = recent.recording(Arc::new(Discard), Clock::manual(), None);
        let depth = |trace: &CallTrace| {
            let mut calls = (&trace.inner, 0);
            while let Some(call) = calls.0.first() {
                calls = (&call.inner, calls.1 + 1);
            }
            calls.1
        };
        let mut deepest = None;
        for _ in 0..30 {
            deepest = ended(telemetry.nested(None, deepest), "deep", "c-1");
        }
        let wide = ended(telemetry.nested(None, None), "wide", "c-2");
        for _ in 0..300 {
            ended(telemetry.nested(None, wide), "echo", "c-2");
        }
        let find = |id: &str| RecentQuery { id: Some(id.to_owned()), ..RecentQuery::default() }.find(&recent).calls;
        assert_eq!(depth(&find("c-1")[0]), MAX_DEPTH);
        assert_eq!(find("c-2")[0].inner.len(), MAX_INNER);
    }
}
