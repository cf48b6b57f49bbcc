//! Conditions that must hold at the end of a schedule.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::Ordering;

use serde_json::Value;
use toolbus_core::tool::Effect;
use toolbus_protocol::message_type;

use crate::broker::{SimBroker, SimMessage, Stray};
use crate::callers::PlannedRequest;
use crate::daemon::DEAD_LETTERS;
use crate::tools::{ToolRun, ToolRuns};

/// Something that should not have happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Violation {
    /// A request was taken, and got no reply.
    Lost(usize),
    /// The replies of one request differ.
    RepliesDiffer(usize, Vec<String>),
    /// The replies of one request do not have the same message id.
    MessageIdsDiffer(usize),
    /// A tool that may not be repeated had its effect several times for one request.
    RanTwice(usize, usize),
    /// A reply is not true.
    Untrue(usize, String),
    /// A process refused a request that it did not have any more.
    NotItsOwn(usize, String),
    /// Messages wait in the daemon's queues, or were never settled.
    Unsettled {
        /// Messages that wait.
        waiting: usize,
        /// Deliveries that were not settled.
        unsettled: usize,
    },
    /// A process had calls under way when every request had its reply.
    NotFinished,
    /// Number of tasks that outlive the processes that started them.
    TasksLeft(usize),
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost(request) => write!(f, "request {request} was taken and has no answer"),
            Self::RepliesDiffer(request, replies) => {
                write!(f, "request {request} has {} different answers: {}", replies.len(), replies.join(" | "))
            }
            Self::MessageIdsDiffer(request) => write!(f, "the answers of request {request} have different message ids"),
            Self::RanTwice(request, times) => write!(f, "request {request} had its effect {times} times"),
            Self::Untrue(request, why) => write!(f, "the answer of request {request} is not true: {why}"),
            Self::NotItsOwn(request, process) => {
                write!(f, "{process} refused request {request} after it had lost its connection")
            }
            Self::Unsettled { waiting, unsettled } => {
                write!(f, "{waiting} messages wait in the daemon's queues, {unsettled} deliveries are not settled")
            }
            Self::NotFinished => write!(f, "a process had calls under way when all was answered"),
            Self::TasksLeft(tasks) => write!(f, "{tasks} tasks outlive their processes"),
        }
    }
}

/// Compares planned requests, runs and replies.
pub(crate) struct Oracle<'a> {
    pub(crate) plans: &'a [PlannedRequest],
    pub(crate) executions: &'a ToolRuns,
    pub(crate) broker: &'a SimBroker,
    /// Whether an operation of the ledger has failed.
    pub(crate) has_ledger_failed: bool,
}

impl Oracle<'_> {
    pub(crate) fn check(&self) -> Vec<Violation> {
        let messages = self.plans.iter().filter_map(|plan| self.check_message(plan));
        let identities = self.plans.iter().filter(|plan| plan.request == plan.number);
        let strays = self.broker.strays().into_iter().filter_map(|stray| self.check_stray(&stray));
        messages.chain(identities.flat_map(|plan| self.check_identity(plan))).chain(strays).collect()
    }

    /// Checks that what is published without its request is of a run of the same process.
    fn check_stray(&self, Stray { by, request }: &Stray) -> Option<Violation> {
        let plan = self.plans.iter().find(|plan| plan.id() == *request)?;
        let has_run = self.executions.of(plan.request).iter().any(|run| run.process == *by);
        (!has_run).then(|| Violation::NotItsOwn(plan.number, by.as_ref().to_owned()))
    }

    /// Checks what holds for each message.
    fn check_message(&self, plan: &PlannedRequest) -> Option<Violation> {
        let replies = self.replies(plan);
        let ids: BTreeSet<_> = replies.iter().map(|reply| &reply.properties.message_id).collect();
        // A dead letter that is the request itself was delivered too often.
        if ids.is_empty() && plan.confirmed.load(Ordering::Relaxed) && self.about(plan, DEAD_LETTERS).next().is_none() {
            return Some(Violation::Lost(plan.number));
        }
        // What one message is refused, another of the same key may get.
        (ids.len() > 1 && !plan.has_key).then_some(Violation::MessageIdsDiffer(plan.number))
    }

    /// Checks what holds for all messages that are one request.
    fn check_identity(&self, plan: &PlannedRequest) -> Vec<Violation> {
        let mut violations = Vec::new();
        let (number, is_repeatable) = (plan.number, plan.effect.is_repeatable());
        let runs = self.executions.of(number);
        let plans = self.plans.iter().filter(|other| other.request == number);
        let bodies: BTreeSet<String> = plans.flat_map(|plan| self.replies(plan)).map(|reply| content(&reply)).collect();
        let distinct: Vec<Value> = bodies.iter().map(|body| serde_json::from_str(body).unwrap_or_default()).collect();
        let (refusals, others): (Vec<&Value>, Vec<&Value>) =
            distinct.iter().partition(|reply| is_refusal(reply, plan.has_key || self.has_ledger_failed));
        let acted = runs.iter().filter(|run| run.has_acted).count();
        // The outcome of what could not be recorded is unknown later, and the reply has that outcome.
        let certain = others.iter().filter(|reply| !self.has_ledger_failed || outcome(reply) != Some("unknown"));
        let certain: Vec<String> = certain.map(ToString::to_string).collect();
        if certain.len() > 1 && !is_repeatable {
            violations.push(Violation::RepliesDiffer(number, certain));
        }
        if acted > 1 && !is_repeatable {
            violations.push(Violation::RanTwice(number, acted));
        }
        // Of a tool that may run again, a refusal speaks for its own delivery.
        let last = if others.is_empty() && !is_repeatable { refusals } else { others };
        let untruths: Vec<Option<String>> = last.into_iter().map(|reply| untrue(reply, plan.effect, &runs)).collect();
        // Of a tool that may run again, one run has its effect, and another reports that it itself had none.
        if !is_repeatable || untruths.iter().all(Option::is_some) {
            violations.extend(untruths.into_iter().flatten().map(|why| Violation::Untrue(number, why)));
        }
        violations
    }

    /// Every reply to a request, at its caller or among the dead letters.
    fn replies(&self, plan: &PlannedRequest) -> Vec<SimMessage> {
        let is_reply = |message: &SimMessage| {
            let kind = message.properties.message_type.as_deref();
            matches!(kind, Some(message_type::TOOL_INVOKE_RESPONSE | message_type::TOOL_ERROR))
        };
        self.about(plan, plan.caller).chain(self.about(plan, DEAD_LETTERS)).filter(is_reply).collect()
    }

    fn about(&self, plan: &PlannedRequest, queue: &str) -> impl Iterator<Item = SimMessage> + use<> {
        let id = plan.id();
        let messages = self.broker.messages(queue).into_iter();
        messages.filter(move |message| message.properties.correlation_id.as_ref() == Some(&id))
    }
}

/// The body of a reply, without the id that each caller gives the call.
fn content(reply: &SimMessage) -> String {
    let mut body: Value = serde_json::from_slice(&reply.body).unwrap_or_default();
    body.as_object_mut().and_then(|fields| fields.remove("toolCallId"));
    body.to_string()
}

fn outcome(reply: &Value) -> Option<&str> {
    reply.get("outcome").and_then(Value::as_str)
}

/// Whether a reply refuses a request before its tool begins. Nothing is recorded of it then, so that the request can
/// still run if it is delivered again. `also_later`: by the same key, it runs again also after a run that had no effect;
/// and what cannot be recorded does not begin.
fn is_refusal(reply: &Value, also_later: bool) -> bool {
    let code = reply.get("code").and_then(Value::as_str);
    let is_early = matches!(code, Some("overloaded" | "timeout" | "cancelled"));
    outcome(reply) == Some("not_started") && (is_early || also_later)
}

/// Reason why a reply is not true of the runs that there were.
fn untrue(reply: &Value, effect: Effect, runs: &[ToolRun]) -> Option<String> {
    let text = |name: &str| reply.get(name).and_then(Value::as_str);
    let has_acted = runs.iter().any(|run| run.has_acted);
    let Some(code) = text("code") else {
        let is_known = runs.iter().any(|run| run.result.as_deref() == text("content") && run.has_acted);
        return (!is_known).then(|| format!("no run has ended with it: {reply}"));
    };
    if !has_acted || effect == Effect::ReadOnly {
        return None;
    }
    match outcome(reply) {
        Some("unknown") => {}
        outcome => return Some(format!("`{code}` with the outcome {outcome:?}, and the tool had its effect")),
    }
    let may_repeat = effect == Effect::Effectful && reply.get("isRetryable") == Some(&Value::Bool(true));
    may_repeat.then(|| format!("`{code}` is said to be retryable, and the tool had its effect"))
}
