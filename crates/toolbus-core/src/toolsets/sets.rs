//! Every tool set of scope `session`.

use parking_lot::RwLock;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::join_all;

use super::lifecycle::ENDING_TIME;
use super::set::SessionSet;
use crate::policy::PolicyHandle;

/// Longest end of all sessions together: they end side by side.
const SHUTDOWN_TIME: Duration = ENDING_TIME.saturating_add(Duration::from_secs(1));

/// All tool sets of the daemon that are built for each session. Cheap to clone.
#[derive(Clone, Default)]
pub struct SessionSets {
    sets: Arc<RwLock<Sets>>,
}

#[derive(Default)]
struct Sets {
    current: Vec<Arc<SessionSet>>,
    /// Sets that were replaced. Each is kept by its sessions and by the calls that began before.
    retired: Vec<Weak<SessionSet>>,
}

impl SessionSets {
    /// These sets.
    #[must_use]
    pub fn new(sets: Vec<Arc<SessionSet>>) -> Self {
        Self { sets: Arc::new(RwLock::new(Sets { current: sets, retired: Vec::new() })) }
    }

    /// The set of this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<Arc<SessionSet>> {
        let sets = self.sets.read();
        sets.current.iter().find(|set| set.name() == name).cloned()
    }

    /// The sets that are in force.
    #[must_use]
    pub fn current(&self) -> Vec<Arc<SessionSet>> {
        self.sets.read().current.clone()
    }

    /// Replaces the sets. Sessions of a set that is not among the others end when they have been idle for long enough:
    /// calls under way keep them.
    pub fn replace(&self, next: Vec<Arc<SessionSet>>) {
        let mut sets = self.sets.write();
        let before = std::mem::replace(&mut sets.current, next);
        let gone: Vec<_> = before
            .iter()
            .filter(|set| !sets.current.iter().any(|next| Arc::ptr_eq(set, next)))
            .map(Arc::downgrade)
            .collect();
        sets.retired.retain(|set| set.strong_count() > 0);
        sets.retired.extend(gone);
    }

    /// Ends a caller's session in every set, as [`SessionSet::end`] does. A set without it is left alone.
    pub fn end_session(&self, owner: &str, session: &str) {
        self.all().iter().for_each(|set| set.end(owner, session));
    }

    /// Ends the sessions of callers that lose all their tools, or their section, whenever the policy changes.
    pub async fn follow(&self, policy: PolicyHandle) {
        let mut changes = policy.changes();
        while changes.changed().await.is_ok() {
            self.all().iter().for_each(|set| set.end_of(|caller| policy.has_left(caller)));
        }
    }

    /// Ends every session of every set, side by side, and waits for that: at most 17 s.
    pub async fn shutdown(&self) {
        let sets = self.all();
        let all = join_all(sets.iter().map(|set| set.shutdown()));
        if tokio::time::timeout(SHUTDOWN_TIME, all).await.is_err() {
            tracing::warn!(sessions = self.sessions(), "sessions of tool sets did not end in time");
        }
    }

    /// Sessions that live, in all sets together.
    #[must_use]
    pub fn sessions(&self) -> usize {
        self.all().iter().map(|set| set.sessions()).sum()
    }

    fn all(&self) -> Vec<Arc<SessionSet>> {
        let sets = self.sets.read();
        sets.current.iter().cloned().chain(sets.retired.iter().filter_map(Weak::upgrade)).collect()
    }
}
