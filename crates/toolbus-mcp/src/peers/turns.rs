//! How many requests of one agent wait at a time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Most requests of one agent that wait at a time. All agents share the room that a topic has, which is more than this.
const MAX_WAITING: usize = 4;

/// Who waits how often, by name of the section that a caller has: callers without one are one agent, so that there are no
/// more names than the configuration gives.
#[derive(Default)]
pub(super) struct Turns(Mutex<HashMap<Arc<str>, Arc<Semaphore>>>);

impl Turns {
    /// A turn to wait, until it is dropped; none for a section that has all of its turns already.
    pub(super) fn take(&self, section: &str) -> Option<OwnedSemaphorePermit> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let turns = all.entry(section.into()).or_insert_with(|| Arc::new(Semaphore::new(MAX_WAITING)));
        Arc::clone(turns).try_acquire_owned().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_agent_has_its_own_turns_and_gets_them_back() {
        let turns = Turns::default();
        let mut held: Vec<_> = (0..MAX_WAITING).map(|_| turns.take("ana").unwrap()).collect();
        assert!(turns.take("ana").is_none());
        assert!(turns.take("bob").is_some());
        held.pop();
        assert!(turns.take("ana").is_some());
    }
}
