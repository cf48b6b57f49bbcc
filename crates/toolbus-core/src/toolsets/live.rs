//! The sessions that there are, within their bounds.

use std::collections::HashMap;
use std::sync::Arc;

use super::session::Session;
use crate::caller::Caller;

/// What every unknown caller has in common: one share of the room. No agent has a colon in its name.
const UNKNOWN: &str = "unknown:";

/// An owner and its id of a session.
pub(super) type Id = (Arc<str>, Arc<str>);

/// The sessions of one tool set.
pub(super) struct Live {
    sessions: HashMap<Id, Arc<Session>>,
    /// Sessions of each agent; never 0.
    shares: HashMap<Arc<str>, usize>,
    max: usize,
    max_per_agent: usize,
    /// Whether no further session may begin.
    pub(super) closed: bool,
}

/// Why there is no room for another session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Full {
    /// There are this many, and no more may be.
    Set(usize),
    /// The caller has this many, and one caller may have no more.
    Agent(usize),
}

impl Live {
    /// Room for `max` sessions, at least 1, of which one agent may have half, at least 1.
    pub(super) fn new(max: usize) -> Self {
        let max = max.max(1);
        Self { sessions: HashMap::new(), shares: HashMap::new(), max, max_per_agent: (max / 2).max(1), closed: false }
    }

    pub(super) fn get(&self, id: &Id) -> Option<&Arc<Session>> {
        self.sessions.get(id)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<Session>> {
        self.sessions.values()
    }

    pub(super) fn len(&self) -> usize {
        self.sessions.len()
    }

    /// Whether another session of this share of the room may begin.
    pub(super) fn check(&self, share: &str) -> Result<(), Full> {
        if self.sessions.len() >= self.max {
            return Err(Full::Set(self.max));
        }
        if self.shares.get(share).copied().unwrap_or_default() >= self.max_per_agent {
            return Err(Full::Agent(self.max_per_agent));
        }
        Ok(())
    }

    pub(super) fn insert(&mut self, id: Id, session: Arc<Session>) {
        let share = Arc::clone(&session.share);
        if self.sessions.insert(id, session).is_none() {
            *self.shares.entry(share).or_default() += 1;
        }
    }

    pub(super) fn remove(&mut self, id: &Id) {
        let Some(session) = self.sessions.remove(id) else { return };
        if let Some(count) = self.shares.get_mut(&session.share) {
            *count -= 1;
            if *count == 0 {
                self.shares.remove(&session.share);
            }
        }
    }

    /// Whether nothing is kept, of agents neither.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.sessions.is_empty() && self.shares.is_empty()
    }
}

/// Whose part of the room a caller uses. Callers without a section may choose their own names, so that they share one.
pub(super) fn share_of(caller: &Caller) -> Arc<str> {
    if caller.has_section { Arc::clone(&caller.owner) } else { UNKNOWN.into() }
}
