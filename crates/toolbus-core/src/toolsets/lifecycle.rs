//! The life of one session: its instance is built, kept while it is used, and stopped once.

use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{sleep_until, timeout};

use super::instance::{AnyInstance, Panic, Started, contained};
use super::session::{Id, SessionPhase, SetState, ToolSetSession};
use crate::Clock;
use crate::failure::{Cause, ToolFailure, text_of_panic};
use crate::text::shown;

/// Longest start of an instance.
const START_TIME: Duration = Duration::from_secs(120);
/// Time that a start gets to finish when its session ends meanwhile, so that what it built can be stopped in order.
const START_GRACE: Duration = Duration::from_secs(5);
/// Longest wait for calls to leave a session that ends. They are cancelled; one that blocks its thread is not waited
/// for.
const LEAVING_TIME: Duration = Duration::from_secs(1);
/// Longest stop of an instance.
const STOP_TIME: Duration = Duration::from_secs(10);
/// Longest end of a session, whatever it was at.
pub(super) const ENDING_TIME: Duration = START_GRACE.saturating_add(LEAVING_TIME).saturating_add(STOP_TIME);

/// A session's slot in its set, given back when dropped: also when the session's task panics or is aborted.
pub(super) struct SessionSlot {
    pub(super) set: Arc<SetState>,
    pub(super) session: Arc<ToolSetSession>,
    pub(super) id: Id,
    /// The failure of the calls that wait for the instance.
    pub(super) failure: Option<ToolFailure>,
}

/// The life of a session, from its first call to its end.
pub(super) async fn live(mut slot: SessionSlot) {
    match start(&slot).await {
        Ok(instance) => {
            slot.session.phase.send_replace(SessionPhase::Ready(Arc::clone(&instance)));
            slot.log("a session of a tool set began");
            ended(&slot).await;
            stop(&slot, instance).await;
            slot.log("a session of a tool set ended");
        }
        Err(failure) => slot.failure = Some(failure),
    }
}

/// Builds the instance. When the session ends meanwhile, the start may still finish, for a while.
async fn start(slot: &SessionSlot) -> Started {
    let set = &slot.set.name;
    let (factory, key) = (Arc::clone(&slot.set.factory), slot.session.key.clone());
    let mut starting = Box::pin(contained(Box::pin(async move { factory.start_boxed(key).await })));
    let started = tokio::select! {
        biased;
        started = timeout(START_TIME, &mut starting) => started,
        () = ended(slot) => timeout(START_GRACE, &mut starting).await,
    };
    slot.release(starting);
    match started {
        Ok(Ok(started)) => started,
        Ok(Err(panic)) => Err(panicked(set, &panic)),
        Err(_) => Err(ToolFailure::new(
            Cause::ConnectFailed,
            format!("Tool set '{set}' could not be started for the session in time. Try again later."),
        )),
    }
}

/// Returns when the session is to end: on request, because it was idle for long enough, or because it is too old.
async fn ended(slot: &SessionSlot) {
    tokio::select! {
        biased;
        () = slot.session.ending.cancelled() => {}
        () = idle(slot) => {}
        () = outlived(slot) => slot.session.ending.cancel(),
    }
}

async fn outlived(SessionSlot { set, session, .. }: &SessionSlot) {
    match set.max_lifetime.and_then(|lifetime| session.began.checked_add(lifetime)) {
        Some(until) => sleep_until(until.into()).await,
        None => std::future::pending().await,
    }
}

async fn idle(SessionSlot { set, session, .. }: &SessionSlot) {
    loop {
        let until = {
            // No call can enter between the look and the end.
            let _table = set.table();
            let until = session.idle_until(set.idle_timeout);
            if until <= Clock::SYSTEM.now() {
                session.ending.cancel();
                return;
            }
            until
        };
        sleep_until(until.into()).await;
    }
}

async fn stop(slot: &SessionSlot, instance: Arc<dyn AnyInstance>) {
    let session = &slot.session;
    session.calls.close();
    let _ = timeout(LEAVING_TIME, session.calls.wait()).await;
    let stopping = Arc::clone(&instance);
    let mut stopping = Box::pin(contained(Box::pin(async move { stopping.stop_boxed().await })));
    match timeout(STOP_TIME, &mut stopping).await {
        Ok(Ok(())) => {}
        Ok(Err(panic)) => slot.complain(&format!("panic: {}", text_of_panic(&*panic))),
        Err(_) => slot.complain("did not stop in time"),
    }
    slot.release(stopping);
    slot.release(session.phase.send_replace(SessionPhase::Over));
    slot.release(instance);
}

fn panicked(set: &str, panic: &Panic) -> ToolFailure {
    ToolFailure::new(
        Cause::Panicked,
        format!("Tool set '{set}' could not be started for the session because of a mistake in its code."),
    )
    .with_detail(format_args!("panic: {}", text_of_panic(&**panic)))
}

impl SessionSlot {
    /// Drops a value of a tool set, which may panic.
    fn release<T>(&self, it: T) {
        if let Err(panic) = panic::catch_unwind(AssertUnwindSafe(move || drop(it))) {
            self.complain(&format!("panic: {}", text_of_panic(&*panic)));
        }
    }

    fn complain(&self, detail: &str) {
        tracing::error!(toolset = &*self.set.name, detail, "the task of a tool set's session ended with an error");
    }

    fn log(&self, message: &str) {
        let key = &self.session.key;
        tracing::debug!(
            toolset = &*self.set.name,
            caller = shown(&key.agent),
            session = shown(&key.session),
            "{message}"
        );
    }
}

impl Drop for SessionSlot {
    fn drop(&mut self) {
        let Self { set, session, id, failure } = self;
        // First, so that a caller that reads the failure can begin another session.
        set.table().remove(id);
        if let Some(failure) = failure.take() {
            session.phase.send_replace(SessionPhase::Failed(failure));
        }
        session.ending.cancel();
        session.gone.cancel();
    }
}
