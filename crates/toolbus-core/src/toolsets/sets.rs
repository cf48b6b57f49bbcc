//! Every tool set of scope `session`.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use futures_util::future::join_all;

use super::keeper::ENDING_TIME;
use super::set::SessionSet;

/// Longest end of all sessions together: they end side by side.
const SHUTDOWN_TIME: Duration = ENDING_TIME.saturating_add(Duration::from_secs(1));

/// All tool sets of the daemon that are built for each session. Cheap to clone.
#[derive(Clone, Default)]
pub struct SessionSets {
    sets: Arc<RwLock<Arc<[Arc<SessionSet>]>>>,
}

impl SessionSets {
    /// These sets.
    #[must_use]
    pub fn new(sets: Vec<Arc<SessionSet>>) -> Self {
        Self { sets: Arc::new(RwLock::new(sets.into())) }
    }

    /// Puts other sets in the place of these, which come back: whoever replaces them shuts them down.
    #[must_use]
    pub fn replace(&self, sets: Vec<Arc<SessionSet>>) -> Self {
        let mut current = self.sets.write().unwrap_or_else(PoisonError::into_inner);
        Self { sets: Arc::new(RwLock::new(std::mem::replace(&mut *current, sets.into()))) }
    }

    /// Ends a caller's session in every set, as [`SessionSet::end`] does. A set without it is left alone.
    pub fn end_session(&self, owner: &str, session: &str) {
        self.current().iter().for_each(|set| set.end(owner, session));
    }

    /// Ends every session of every set, side by side, and waits for that: at most 17 s.
    pub async fn shutdown(&self) {
        let sets = self.current();
        let all = join_all(sets.iter().map(|set| set.shutdown()));
        if tokio::time::timeout(SHUTDOWN_TIME, all).await.is_err() {
            tracing::warn!(sessions = self.sessions(), "sessions of tool sets did not end in time");
        }
    }

    /// Sessions that live, in all sets together.
    #[must_use]
    pub fn sessions(&self) -> usize {
        self.current().iter().map(|set| set.sessions()).sum()
    }

    fn current(&self) -> Arc<[Arc<SessionSet>]> {
        Arc::clone(&self.sets.read().unwrap_or_else(PoisonError::into_inner))
    }
}
