//! One session of a tool set, as its calls see it.

use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::instance::{AnyFactory, AnyInstance, SessionKey};
use crate::Clock;
use crate::caller::Caller;
use crate::failure::{Cause, ToolFailure};

/// Phase of a session.
#[derive(Clone)]
pub(super) enum SessionPhase {
    /// The instance is being built.
    Starting,
    /// The instance takes calls.
    Ready(Arc<dyn AnyInstance>),
    /// The instance could not be built.
    Failed(ToolFailure),
    /// The session has ended.
    Over,
}

/// State that a tool set and the lives of its sessions share.
pub(super) struct SetState {
    pub(super) name: Arc<str>,
    pub(super) factory: Arc<dyn AnyFactory>,
    pub(super) idle_timeout: Duration,
    pub(super) max_lifetime: Option<Duration>,
    pub(super) sessions: Mutex<SessionTable>,
}

impl SetState {
    pub(super) fn table(&self) -> MutexGuard<'_, SessionTable> {
        self.sessions.lock()
    }
}

/// One session: made by its first call, held by its task and by its calls.
pub(super) struct ToolSetSession {
    pub(super) key: SessionKey,
    /// The caller that began it.
    pub(super) caller: Caller,
    /// Whose part of the room it takes.
    pub(super) share: Arc<str>,
    pub(super) phase: watch::Sender<SessionPhase>,
    /// Cancelled when the session is to end: no call enters any more.
    pub(super) ending: CancellationToken,
    /// Cancelled when the session has left the set, so that another of its name may begin.
    pub(super) gone: CancellationToken,
    /// Calls that wait for the instance or run in it.
    pub(super) calls: TaskTracker,
    pub(super) began: Instant,
    idle_since: Mutex<Instant>,
}

/// One call in a session: the session is not idle while it lives.
pub(super) struct Visit {
    pub(super) session: Arc<ToolSetSession>,
    _counted: TaskTrackerToken,
}

impl ToolSetSession {
    pub(super) fn new(key: SessionKey, caller: Caller) -> Self {
        Self {
            key,
            share: caller.share(),
            caller,
            phase: watch::Sender::new(SessionPhase::Starting),
            ending: CancellationToken::new(),
            gone: CancellationToken::new(),
            calls: TaskTracker::new(),
            began: Clock::SYSTEM.now(),
            idle_since: Mutex::new(Clock::SYSTEM.now()),
        }
    }

    pub(super) fn enter(self: &Arc<Self>) -> Visit {
        Visit { session: Arc::clone(self), _counted: self.calls.token() }
    }

    /// The earliest moment at which the session has been idle for so long, if no call begins before.
    pub(super) fn idle_until(&self, timeout: Duration) -> Instant {
        let idle_since = if self.calls.is_empty() { *self.lock() } else { Clock::SYSTEM.now() };
        idle_since + timeout
    }

    fn lock(&self) -> MutexGuard<'_, Instant> {
        self.idle_since.lock()
    }
}

impl Visit {
    /// The session's instance, as soon as there is one.
    pub(super) async fn instance(&self, set: &str) -> Result<Arc<dyn AnyInstance>, ToolFailure> {
        let session = &self.session;
        let mut phase = session.phase.subscribe();
        let settled = async {
            let settled = phase.wait_for(|phase| !matches!(phase, SessionPhase::Starting)).await;
            settled.map_or(SessionPhase::Over, |phase| SessionPhase::clone(&phase))
        };
        let settled = tokio::select! {
            biased;
            settled = settled => settled,
            () = session.ending.cancelled() => SessionPhase::Over,
        };
        match settled {
            SessionPhase::Ready(instance) if !session.ending.is_cancelled() => Ok(instance),
            SessionPhase::Failed(failure) => Err(failure),
            SessionPhase::Starting | SessionPhase::Ready(_) | SessionPhase::Over => Err(ToolFailure::new(
                Cause::CancelledBeforeStart,
                format!("The session of tool set '{set}' ended before the tool began."),
            )),
        }
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        *self.session.lock() = Clock::SYSTEM.now();
    }
}

/// An owner and its id of a session.
pub(super) type Id = (Arc<str>, Arc<str>);

/// The sessions of one tool set.
pub(super) struct SessionTable {
    sessions: HashMap<Id, Arc<ToolSetSession>>,
    /// Sessions of each agent; never 0.
    shares: HashMap<Arc<str>, usize>,
    max: usize,
    max_per_agent: usize,
    /// Whether no further session may begin.
    pub(super) closed: bool,
}

/// Reason why there is no room for another session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Full {
    /// There are this many, and no more may be.
    Set(usize),
    /// The caller has this many, and one caller may have no more.
    Agent(usize),
}

impl SessionTable {
    /// Room for `max` sessions, at least 1, of which one agent may have half, at least 1.
    pub(super) fn new(max: usize) -> Self {
        let max = max.max(1);
        Self { sessions: HashMap::new(), shares: HashMap::new(), max, max_per_agent: (max / 2).max(1), closed: false }
    }

    pub(super) fn get(&self, id: &Id) -> Option<&Arc<ToolSetSession>> {
        self.sessions.get(id)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<ToolSetSession>> {
        self.sessions.values()
    }

    pub(super) fn len(&self) -> usize {
        self.sessions.len()
    }

    /// Whether another session of this share of the room may begin.
    pub(super) fn check(&self, share: &str) -> Result<(), Full> {
        // First: that another agent ends a session does not help then.
        if self.shares.get(share).copied().unwrap_or_default() >= self.max_per_agent {
            return Err(Full::Agent(self.max_per_agent));
        }
        if self.sessions.len() >= self.max {
            return Err(Full::Set(self.max));
        }
        Ok(())
    }

    pub(super) fn insert(&mut self, id: Id, session: Arc<ToolSetSession>) {
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
