//! One session of a tool set, as its calls see it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::instance::{AnyInstance, SessionKey};
use crate::failure::{Cause, ToolFailure};

/// How far a session is.
#[derive(Clone)]
pub(super) enum Phase {
    /// Its instance is being built.
    Starting,
    /// Its instance takes calls.
    Ready(Arc<dyn AnyInstance>),
    /// Its instance could not be built.
    Failed(ToolFailure),
    /// It has ended.
    Over,
}

/// One session: made by its first call, held by its keeper and by its calls.
pub(super) struct Session {
    pub(super) key: SessionKey,
    /// Whose part of the room it takes.
    pub(super) share: Arc<str>,
    pub(super) phase: watch::Sender<Phase>,
    /// Cancelled when the session is to end: no call enters any more.
    pub(super) ending: CancellationToken,
    /// Cancelled when the session has left the set, so that another of its name may begin.
    pub(super) gone: CancellationToken,
    /// Calls that wait for the instance or run in it.
    pub(super) calls: TaskTracker,
    idle_since: Mutex<Instant>,
}

/// One call in a session: the session is not idle while it lives.
pub(super) struct Visit {
    pub(super) session: Arc<Session>,
    _counted: TaskTrackerToken,
}

impl Session {
    pub(super) fn new(key: SessionKey, share: Arc<str>) -> Self {
        Self {
            key,
            share,
            phase: watch::Sender::new(Phase::Starting),
            ending: CancellationToken::new(),
            gone: CancellationToken::new(),
            calls: TaskTracker::new(),
            idle_since: Mutex::new(Instant::now()),
        }
    }

    pub(super) fn enter(self: &Arc<Self>) -> Visit {
        Visit { session: Arc::clone(self), _counted: self.calls.token() }
    }

    /// The earliest moment at which the session has been idle for so long, if no call begins before.
    pub(super) fn idle_until(&self, timeout: Duration) -> Instant {
        let idle_since = if self.calls.is_empty() { *self.lock() } else { Instant::now() };
        idle_since + timeout
    }

    fn lock(&self) -> MutexGuard<'_, Instant> {
        self.idle_since.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Visit {
    /// The session's instance, as soon as there is one.
    pub(super) async fn instance(&self, set: &str) -> Result<Arc<dyn AnyInstance>, ToolFailure> {
        let session = &self.session;
        let mut phase = session.phase.subscribe();
        let settled = async {
            let settled = phase.wait_for(|phase| !matches!(phase, Phase::Starting)).await;
            settled.map_or(Phase::Over, |phase| Phase::clone(&phase))
        };
        let settled = tokio::select! {
            biased;
            settled = settled => settled,
            () = session.ending.cancelled() => Phase::Over,
        };
        match settled {
            Phase::Ready(instance) if !session.ending.is_cancelled() => Ok(instance),
            Phase::Failed(failure) => Err(failure),
            Phase::Starting | Phase::Ready(_) | Phase::Over => Err(ToolFailure::new(
                Cause::CancelledBeforeStart,
                format!("The session of tool set '{set}' ended before the tool began."),
            )),
        }
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        *self.session.lock() = Instant::now();
    }
}
