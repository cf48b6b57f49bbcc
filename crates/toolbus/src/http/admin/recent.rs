//! Recent calls, as the admin API tells of them.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use toolbus_telemetry::{RecentCall, RecentStep};

/// Status of a call that runs.
const IN_FLIGHT: &str = "in_flight";
/// Stands for every status of a call that has no result, or a bad one.
const FAILED: &str = "failed";

/// Which calls are meant: those that have everything that is given.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RecentQuery {
    /// Id of the call, of its message, or of its trace; or its correlation id.
    pub id: Option<String>,
    /// Name of the caller.
    pub agent: Option<String>,
    /// Name of the tool.
    pub tool: Option<String>,
    /// Status of the call; `failed` stands for all but `ok` and `in_flight`.
    pub status: Option<String>,
    /// Shortest time from arrival to end, in milliseconds. A call that runs has none yet.
    pub slower_ms: Option<u64>,
    /// Most calls of the answer; 200 at most.
    pub limit: Option<usize>,
}

impl RecentQuery {
    pub(super) fn means(&self, call: &RecentCall) -> bool {
        let status = call.end.map_or(IN_FLIGHT, |end| end.status);
        let has = |wanted: &Option<String>, own: &str| wanted.as_deref().is_none_or(|wanted| wanted == own);
        let is_status = match self.status.as_deref() {
            Some(FAILED) => !["ok", IN_FLIGHT].contains(&status),
            _ => has(&self.status, status),
        };
        let is_slow =
            self.slower_ms.is_none_or(|least| call.end.is_some_and(|end| end.total >= Duration::from_millis(least)));
        let has_id = self.id.as_deref().is_none_or(|id| call.has_id(id));
        is_status && is_slow && has_id && has(&self.agent, &call.caller) && has(&self.tool, &call.tool)
    }
}

/// The calls that were found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RecentFound {
    /// Newest first.
    pub calls: Vec<CallTrace>,
}

/// A call, and what its time went into.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CallTrace {
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
    /// `ok`, `error`, a code of the wire, `requeued`, or `in_flight`.
    pub status: String,
    /// Cause of a missing result, with the value of `error.type` in metrics.
    pub cause: Option<String>,
    /// Whether the reply is one that was given before.
    pub replayed: bool,
    /// Milliseconds from arrival to end; absent while it runs.
    pub total_ms: Option<f64>,
    /// The parts of its time, in order.
    pub steps: Vec<TraceStep>,
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
            replayed: end.is_some_and(|end| end.replayed),
            total_ms: end.map(|end| in_ms(end.total)),
            steps: call.steps.iter().map(Into::into).collect(),
        }
    }
}

impl From<&RecentStep> for TraceStep {
    fn from(step: &RecentStep) -> Self {
        Self { name: step.name.to_owned(), from_ms: in_ms(step.from), took_ms: step.took.map(in_ms) }
    }
}

/// A time as RFC 3339 has it, to a millisecond.
pub(super) fn in_rfc3339(time: SystemTime) -> String {
    jiff::Timestamp::try_from(time).map(|at| format!("{at:.3}")).unwrap_or_default()
}

/// Milliseconds, to a thousandth.
fn in_ms(time: Duration) -> f64 {
    (time.as_secs_f64() * 1_000_000.0).round() / 1_000.0
}
