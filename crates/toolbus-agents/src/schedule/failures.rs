//! The last failure of each task and the next try of its call, as far as this process saw them: for operators, and
//! forgotten with the process.

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

/// Failures by the id of the task. Clones share them.
#[derive(Clone, Default)]
pub(super) struct TaskFailures(Arc<Mutex<KnownFailures>>);

#[derive(Default)]
struct KnownFailures {
    reasons: HashMap<(String, FiringStep), String>,
    /// When calls that were refused are tried again, in seconds since 1970.
    retries: HashMap<String, u64>,
}

impl TaskFailures {
    /// Notes why a step failed, or that it did not.
    pub(super) fn note(&self, id: &str, step: FiringStep, reason: Option<&str>) {
        let key = (id.to_owned(), step);
        let reasons = &mut self.0.lock().reasons;
        match reason {
            Some(reason) => drop(reasons.insert(key, excerpt(reason, MAX_REASON))),
            None => drop(reasons.remove(&key)),
        }
    }

    /// Forgets all but the tasks that there are.
    pub(super) fn retain(&self, is_known: impl Fn(&str) -> bool) {
        let mut known = self.0.lock();
        known.reasons.retain(|(id, _), _| is_known(id));
        known.retries.retain(|id, _| is_known(id));
    }

    /// Notes when the call of a task is tried again; `None`: it is not, or runs.
    pub(super) fn note_retry(&self, id: &str, at: Option<u64>) {
        let retries = &mut self.0.lock().retries;
        match at {
            Some(at) => drop(retries.insert(id.to_owned(), at)),
            None => drop(retries.remove(id)),
        }
    }

    /// Returns when the call of a task, which waits, is tried again.
    pub(super) fn retry_of(&self, id: &str) -> Option<u64> {
        self.0.lock().retries.get(id).copied()
    }

    /// Whether the message of a task failed, and so the call that it reports has ended.
    pub(super) fn has_message(&self, id: &str) -> bool {
        self.0.lock().reasons.contains_key(&(id.to_owned(), FiringStep::Message))
    }

    /// Returns what failed of a task at its last time.
    pub(super) fn of(&self, id: &str) -> Option<String> {
        let reasons = &self.0.lock().reasons;
        let reason = |step| reasons.get(&(id.to_owned(), step));
        let call = reason(FiringStep::Call).map(|reason| format!("its call failed: {reason}"));
        let message = reason(FiringStep::Message).map(|reason| format!("not published: {reason}"));
        call.into_iter().chain(message).reduce(|call, message| format!("{call}; {message}"))
    }
}
