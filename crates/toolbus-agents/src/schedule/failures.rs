//! The last failure of each task, as far as this process saw it: for operators, and forgotten with the process.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use toolbus_core::text::excerpt;

/// Longest reason, in characters.
const MAX_REASON: usize = 200;

/// Part of what happens at a time of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum FiringStep {
    /// The call of a tool.
    Call,
    /// The message to the agent.
    Message,
}

/// Reasons by the id of the task. Clones share them.
#[derive(Clone, Default)]
pub(super) struct TaskFailures(Arc<Mutex<HashMap<(String, FiringStep), String>>>);

impl TaskFailures {
    /// Notes why a step failed, or that it did not.
    pub(super) fn note(&self, id: &str, step: FiringStep, reason: Option<&str>) {
        let key = (id.to_owned(), step);
        let mut reasons = self.0.lock();
        match reason {
            Some(reason) => drop(reasons.insert(key, excerpt(reason, MAX_REASON))),
            None => drop(reasons.remove(&key)),
        }
    }

    /// Forgets all but the tasks that there are.
    pub(super) fn retain(&self, is_known: impl Fn(&str) -> bool) {
        self.0.lock().retain(|(id, _), _| is_known(id));
    }

    /// Whether the message of a task failed, and so what it tells of has ended.
    pub(super) fn has_message(&self, id: &str) -> bool {
        self.0.lock().contains_key(&(id.to_owned(), FiringStep::Message))
    }

    /// Returns what failed of a task at its last time.
    pub(super) fn of(&self, id: &str) -> Option<String> {
        let reasons = self.0.lock();
        let reason = |step| reasons.get(&(id.to_owned(), step));
        let call = reason(FiringStep::Call).map(|reason| format!("its call failed: {reason}"));
        let message = reason(FiringStep::Message).map(|reason| format!("not published: {reason}"));
        call.into_iter().chain(message).reduce(|call, message| format!("{call}; {message}"))
    }
}
