//! How many requests of one agent wait at a time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Most requests of one agent that wait at a time. All agents share the room that a topic has, which is more than this.
const MAX_WAITING: usize = 4;

/// Who waits how often, by name of the section that a caller has: callers without one are one agent, so that there are no
/// more names than the configuration gives.
#[derive(Default)]
pub(super) struct WaitLimits(Mutex<HashMap<Arc<str>, Arc<Semaphore>>>);

impl WaitLimits {
    /// A place to wait, until it is dropped; `None` if the section has all of its places already.
    pub(super) fn take(&self, section: &str) -> Option<OwnedSemaphorePermit> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let limits = all.entry(section.into()).or_insert_with(|| Arc::new(Semaphore::new(MAX_WAITING)));
        Arc::clone(limits).try_acquire_owned().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_agent_has_places_of_its_own_and_gets_them_back() {
        let limits = WaitLimits::default();
        let mut held: Vec<_> = (0..MAX_WAITING).map(|_| limits.take("ana").unwrap()).collect();
        assert!(limits.take("ana").is_none());
        assert!(limits.take("bob").is_some());
        held.pop();
        assert!(limits.take("ana").is_some());
    }
}
