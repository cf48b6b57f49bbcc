//! The calls under way, so that their callers can cancel them.

use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio_util::sync::CancellationToken;

/// A caller and its id of a call.
type Id = (Arc<str>, Arc<str>);

/// Every call under way, by caller and call id. Bounded by what the daemon takes in.
#[derive(Default)]
pub(crate) struct RunningCalls {
    /// Callers may use an id twice: cancelling then means both.
    calls: Mutex<HashMap<Id, Vec<(u64, CancellationToken)>>>,
    next: AtomicU64,
}

/// Keeps a call in the list until it is dropped.
pub(crate) struct RunningCall {
    running: Arc<RunningCalls>,
    id: Id,
    number: u64,
    token: CancellationToken,
}

impl RunningCalls {
    pub(crate) fn enter(self: &Arc<Self>, caller: &Arc<str>, call_id: &Arc<str>) -> RunningCall {
        let id = (Arc::clone(caller), Arc::clone(call_id));
        let token = CancellationToken::new();
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.lock().entry(id.clone()).or_default().push((number, token.clone()));
        RunningCall { running: Arc::clone(self), id, number, token }
    }

    /// Cancels the calls of this caller with this id; false when there is none here.
    pub(crate) fn cancel(&self, caller: &str, call_id: &str) -> bool {
        let calls = self.lock();
        let tokens = calls.get(&(Arc::from(caller), Arc::from(call_id)));
        tokens.into_iter().flatten().for_each(|(_, token)| token.cancel());
        tokens.is_some()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Id, Vec<(u64, CancellationToken)>>> {
        self.calls.lock()
    }
}

impl RunningCall {
    /// Cancelled when the caller says so.
    pub(crate) fn token(&self) -> &CancellationToken {
        &self.token
    }
}

impl Drop for RunningCall {
    fn drop(&mut self) {
        let mut calls = self.running.lock();
        let Some(tokens) = calls.get_mut(&self.id) else { return };
        tokens.retain(|(number, _)| *number != self.number);
        if tokens.is_empty() {
            calls.remove(&self.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_cancels_its_own_call_only() {
        let running = Arc::new(RunningCalls::default());
        let entry = running.enter(&"ana".into(), &"call_1".into());
        assert!(!running.cancel("bob", "call_1"));
        assert!(!running.cancel("ana", "call_2"));
        assert!(!entry.token().is_cancelled());
        assert!(running.cancel("ana", "call_1"));
        assert!(entry.token().is_cancelled());
    }

    #[test]
    fn a_finished_call_is_gone() {
        let running = Arc::new(RunningCalls::default());
        drop(running.enter(&"ana".into(), &"call_1".into()));
        assert!(!running.cancel("ana", "call_1"));
        assert!(running.lock().is_empty());
    }

    #[test]
    fn an_id_used_twice_cancels_both_and_leaves_nothing() {
        let running = Arc::new(RunningCalls::default());
        let first = running.enter(&"ana".into(), &"call_1".into());
        let second = running.enter(&"ana".into(), &"call_1".into());
        assert!(running.cancel("ana", "call_1"));
        assert!(first.token().is_cancelled() && second.token().is_cancelled());
        drop((first, second));
        assert!(running.lock().is_empty());
    }
}
