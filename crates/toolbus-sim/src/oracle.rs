//! What must hold at the end of a schedule.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::Ordering;

use serde_json::Value;
use toolbus_core::tool::Effect;
use toolbus_protocol::message_type;

use crate::broker::{SimBroker, SimMessage};
use crate::callers::Ask;
use crate::daemon::DEAD_LETTERS;
use crate::tools::{Execution, Executions};

/// Something that should not have happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Violation {
    /// A request was taken, and got no answer.
    Lost(usize),
    /// The answers of one request differ.
    AnswersDiffer(usize, Vec<String>),
    /// The answers of one request do not have the same message id.
    MessageIdsDiffer(usize),
    /// A tool that may not be repeated had its effect several times for one request.
    RanTwice(usize, usize),
    /// An answer says something that is not so.
    Untrue(usize, String),
    /// Messages wait in the daemon's queues, or were never settled.
    Unsettled {
        /// Messages that wait.
        waiting: usize,
        /// Deliveries that were not settled.
        unsettled: usize,
    },
    /// A process had calls under way when all was answered.
    NotFinished,
    /// So many tasks outlive the processes that started them.
    TasksLeft(usize),
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost(request) => write!(f, "request {request} was taken and has no answer"),
            Self::AnswersDiffer(request, answers) => {
                write!(f, "request {request} has {} different answers: {}", answers.len(), answers.join(" | "))
            }
            Self::MessageIdsDiffer(request) => write!(f, "the answers of request {request} have different message ids"),
            Self::RanTwice(request, times) => write!(f, "request {request} had its effect {times} times"),
            Self::Untrue(request, why) => write!(f, "the answer of request {request} is not true: {why}"),
            Self::Unsettled { waiting, unsettled } => {
                write!(f, "{waiting} messages wait in the daemon's queues, {unsettled} deliveries are not settled")
            }
            Self::NotFinished => write!(f, "a process had calls under way when all was answered"),
            Self::TasksLeft(tasks) => write!(f, "{tasks} tasks outlive their processes"),
        }
    }
}

/// Compares what was asked, what ran, and what was answered.
pub(crate) struct Oracle<'a> {
    pub(crate) asks: &'a [Ask],
    pub(crate) executions: &'a Executions,
    pub(crate) broker: &'a SimBroker,
}

impl Oracle<'_> {
    pub(crate) fn check(&self) -> Vec<Violation> {
        self.asks.iter().flat_map(|ask| self.check_one(ask)).collect()
    }

    fn check_one(&self, ask: &Ask) -> Vec<Violation> {
        let mut violations = Vec::new();
        let number = ask.number;
        let runs = self.executions.of(number);
        let answers = self.answers(ask);
        if answers.is_empty() {
            let is_dead = self.about(ask, DEAD_LETTERS).next().is_some();
            if ask.confirmed.load(Ordering::Relaxed) && !is_dead {
                violations.push(Violation::Lost(number));
            }
            return violations;
        }
        let ids: BTreeSet<_> = answers.iter().map(|answer| &answer.properties.message_id).collect();
        if ids.len() > 1 {
            violations.push(Violation::MessageIdsDiffer(number));
        }
        if !self.is_protected(ask) {
            return violations;
        }
        let distinct: BTreeSet<_> = answers.iter().map(|answer| &answer.body).collect();
        let acted = runs.iter().filter(|run| run.has_acted).count();
        if distinct.len() > 1 && !ask.effect.is_repeatable() {
            let texts = distinct.iter().map(|body| String::from_utf8_lossy(body).into_owned()).collect();
            violations.push(Violation::AnswersDiffer(number, texts));
        }
        if acted > 1 && !ask.effect.is_repeatable() {
            violations.push(Violation::RanTwice(number, acted));
        }
        for answer in distinct {
            let said = untrue(&serde_json::from_slice(answer).unwrap_or_default(), ask.effect, &runs);
            violations.extend(said.map(|why| Violation::Untrue(number, why)));
        }
        violations
    }

    /// Whether one process alone got the request, and got it once: what it remembers ends with it, and is looked up for
    /// messages alone that are marked as delivered again.
    fn is_protected(&self, ask: &Ask) -> bool {
        let requests = self.broker.history(&ask.id());
        let answers = self.answers(ask).len();
        requests.copies == answers + 1 && requests.receivers.len() == 1
    }

    /// Every answer to a request, at its caller or among the dead letters.
    fn answers(&self, ask: &Ask) -> Vec<SimMessage> {
        let is_answer = |message: &SimMessage| {
            let kind = message.properties.message_type.as_deref();
            matches!(kind, Some(message_type::TOOL_INVOKE_RESPONSE | message_type::TOOL_ERROR))
        };
        self.about(ask, ask.caller).chain(self.about(ask, DEAD_LETTERS)).filter(is_answer).collect()
    }

    fn about(&self, ask: &Ask, queue: &str) -> impl Iterator<Item = SimMessage> + use<> {
        let id = ask.id();
        let messages = self.broker.messages(queue).into_iter();
        messages.filter(move |message| message.properties.correlation_id.as_ref() == Some(&id))
    }
}

/// Why an answer is not true of the runs that there were.
fn untrue(answer: &Value, effect: Effect, runs: &[Execution]) -> Option<String> {
    let text = |name: &str| answer.get(name).and_then(Value::as_str);
    let has_acted = runs.iter().any(|run| run.has_acted);
    let Some(code) = text("code") else {
        let is_known = runs.iter().any(|run| run.result.as_deref() == text("content") && run.has_acted);
        return (!is_known).then(|| format!("no run has ended with it: {answer}"));
    };
    if !has_acted || effect == Effect::ReadOnly {
        return None;
    }
    match text("outcome") {
        Some("unknown") => {}
        outcome => return Some(format!("`{code}` with the outcome {outcome:?}, and the tool had its effect")),
    }
    let may_repeat = effect == Effect::Effectful && answer.get("isRetryable") == Some(&Value::Bool(true));
    may_repeat.then(|| format!("`{code}` is said to be retryable, and the tool had its effect"))
}
