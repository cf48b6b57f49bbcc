//! The sessions of clients: one from each handshake to its end.

mod session;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use toolbus_core::caller::Caller;
use toolbus_protocol::new_message_id;

pub(crate) use session::{Listed, Owner, Session, Underway};

use crate::version::Version;
use crate::visitor::TokenId;

/// How many sessions there are, and for how long.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Sessions of everybody together.
    pub(crate) total: usize,
    /// Sessions that one token may have.
    pub(crate) per_token: usize,
    /// Time without a request and without a stream after which a session ends.
    pub(crate) idle: Duration,
}

/// There is no room for another session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("There are too many sessions. End one that is not used, or try again later.")]
pub(crate) struct Full;

/// All sessions.
pub(crate) struct Sessions {
    limits: Limits,
    by_id: Mutex<HashMap<Arc<str>, Arc<Session>>>,
}

impl Sessions {
    pub(crate) fn new(limits: Limits) -> Self {
        Self { limits, by_id: Mutex::default() }
    }

    /// Begins a session, if there is room for it, and gives the one that had to end for it. Of the sessions of a token that has
    /// as many as it may, the one that has been idle for longest makes room; where there is none for anybody, one whose token
    /// was withdrawn goes first.
    pub(crate) fn begin(
        &self,
        owner: Owner,
        version: Version,
        transport: &'static str,
        caller: impl FnOnce(Arc<str>) -> Caller,
    ) -> Result<(Arc<Session>, Option<Arc<Session>>), Full> {
        let token = owner.token;
        let id: Arc<str> = new_message_id().into();
        let session =
            Arc::new(Session::new(Arc::clone(&id), owner, version, transport, caller(Arc::clone(&id)).into()));
        let mut by_id = self.lock();
        let mut evicted = None;
        let has_all = by_id.values().filter(|other| other.is_of(token)).count() >= self.limits.per_token;
        if has_all || by_id.len() >= self.limits.total {
            let makes_room = |other: &Session| other.is_of(token) || (!has_all && other.is_revoked());
            let idle = by_id.values().filter(|other| makes_room(other) && other.is_idle());
            let first = idle.min_by_key(|other| (!other.is_revoked(), other.last_used()));
            let first = first.map(|other| Arc::clone(&other.id)).ok_or(Full)?;
            evicted = by_id.remove(&first);
        }
        by_id.insert(id, Arc::clone(&session));
        Ok((session, evicted))
    }

    /// The session of this id, if it belongs to this token.
    pub(crate) fn get(&self, id: &str, token: Option<TokenId>) -> Option<Arc<Session>> {
        let session = self.lock().get(id).filter(|session| session.is_of(token)).cloned()?;
        session.touch();
        Some(session)
    }

    /// Takes a session away.
    pub(crate) fn end(&self, session: &Session) -> Option<Arc<Session>> {
        self.lock().remove(&session.id)
    }

    /// Takes away the sessions that nobody has used for long enough, and those that nobody can use any more.
    pub(crate) fn expired(&self) -> Vec<Arc<Session>> {
        let latest = Instant::now().checked_sub(self.limits.idle);
        let mut by_id = self.lock();
        let is_unused = |session: &Session| latest.is_some_and(|latest| session.last_used() <= latest);
        let is_over = |session: &Session| session.is_idle() && (session.is_revoked() || is_unused(session));
        let ids: Vec<_> =
            by_id.values().filter(|session| is_over(session)).map(|session| Arc::clone(&session.id)).collect();
        ids.iter().filter_map(|id| by_id.remove(id)).collect()
    }

    /// Takes all sessions away.
    pub(crate) fn all(&self) -> Vec<Arc<Session>> {
        self.lock().drain().map(|(_, session)| session).collect()
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Arc<str>, Arc<Session>>> {
        self.by_id.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
