//! A tool set whose tools are run by an instance of each session's own.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::instance::{SessionFactory, SessionKey};
use super::lifecycle::{SessionSlot, live};
use super::session::{Full, Id, SessionTable, SetState, ToolSetSession, Visit};
use crate::caller::Caller;
use crate::failure::{Cause, ToolFailure};
use crate::tool::{Executor, Tool, ToolCall, ToolDescriptor, ToolOutput};

/// Longest time that a session may be idle.
const MAX_IDLE: Duration = Duration::from_secs(365 * 24 * 3600);
/// Wait until a caller may try again that had no room.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// Limits of sessions: idle time, and number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionLimits {
    /// Time without a call after which a session ends: 1 ms to 1 year.
    pub idle_timeout: Duration,
    /// Time after which a session ends, whether it is used or not; `None`: it may be used without end.
    pub max_lifetime: Option<Duration>,
    /// Sessions at a time, at least 1. One agent may have half of them, at least 1; all callers without a section
    /// together count as one agent.
    pub max_sessions: usize,
}

/// A tool set of scope `session`.
pub struct SessionSet {
    pub(super) state: Arc<SetState>,
    lives: TaskTracker,
}

/// A call's way into its session.
enum SessionEntry {
    In(Visit),
    /// The session of this name is ending; another may begin when it has.
    After(CancellationToken),
}

/// Runs the tools of a set, each call in its session.
struct InSession(Arc<SessionSet>);

impl Executor for InSession {
    async fn execute(&self, call: ToolCall) -> Result<ToolOutput, ToolFailure> {
        self.0.run(call).await
    }
}

impl SessionSet {
    /// A tool set without sessions, whose `factory` builds what runs their calls.
    pub fn new(name: impl Into<Arc<str>>, factory: impl SessionFactory, limits: SessionLimits) -> Arc<Self> {
        let state = SetState {
            name: name.into(),
            factory: Arc::new(factory),
            idle_timeout: limits.idle_timeout.clamp(Duration::from_millis(1), MAX_IDLE),
            max_lifetime: limits.max_lifetime,
            sessions: Mutex::new(SessionTable::new(limits.max_sessions)),
        };
        Arc::new(Self { state: Arc::new(state), lives: TaskTracker::new() })
    }

    /// Name of the set.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.state.name
    }

    /// A tool of this set.
    #[must_use]
    pub fn tool(self: &Arc<Self>, descriptor: ToolDescriptor) -> Tool {
        Tool::new(descriptor, InSession(Arc::clone(self)))
    }

    /// Sessions that live: those that start and those that end included.
    #[must_use]
    pub fn sessions(&self) -> usize {
        self.state.table().len()
    }

    /// Ends a session, if there is one: its calls are cancelled and what runs them is stopped, both after this returns.
    pub fn end(&self, owner: &str, session: &str) {
        if let Some(session) = self.state.table().get(&(owner.into(), session.into())) {
            session.ending.cancel();
        }
    }

    /// Ends the sessions of these callers, as [`Self::end`] does.
    pub(super) fn end_of(&self, has_left: impl Fn(&Caller) -> bool) {
        self.state
            .table()
            .all()
            .filter(|session| has_left(&session.caller))
            .for_each(|session| session.ending.cancel());
    }

    /// Ends every session and waits for that; no further one begins.
    pub async fn shutdown(&self) {
        {
            let mut sessions = self.state.table();
            sessions.closed = true;
            sessions.all().for_each(|session| session.ending.cancel());
        }
        self.lives.close();
        self.lives.wait().await;
    }

    /// Runs one call in its caller's session.
    ///
    /// # Errors
    ///
    /// If the caller is in no session, there is no room for another one, or the call could not be run.
    pub async fn run(self: &Arc<Self>, mut call: ToolCall) -> Result<ToolOutput, ToolFailure> {
        let visit = self.visit(&call.caller).await?;
        let instance = visit.instance(&self.state.name).await?;
        // The call's own token is its caller's: it distinguishes the caller's cancellation.
        let cancelled = call.cancelled.child_token();
        call.cancelled = cancelled.clone();
        let tool = Arc::clone(&call.tool);
        tokio::select! {
            biased;
            result = Arc::clone(&instance).execute_boxed(call) => {
                // At once, so that a caller that has read the reply gets another session.
                if instance.is_over() {
                    visit.session.ending.cancel();
                }
                result
            }
            () = visit.session.ending.cancelled() => {
                cancelled.cancel();
                let text = format!("Tool '{tool}' was cancelled because the session of its tool set ended.");
                Err(ToolFailure::new(Cause::Cancelled, text))
            }
        }
    }

    /// Enters the caller's session, which may begin now.
    async fn visit(self: &Arc<Self>, caller: &Caller) -> Result<Visit, ToolFailure> {
        let Some(session) = &caller.session else {
            let text = format!("Tool set '{}' works within a session. Give the call a sessionId.", self.state.name);
            return Err(ToolFailure::invalid(text));
        };
        let id = (Arc::clone(&caller.owner), Arc::clone(session));
        loop {
            match self.enter(caller, &id)? {
                SessionEntry::In(visit) => return Ok(visit),
                SessionEntry::After(gone) => gone.cancelled().await,
            }
        }
    }

    fn enter(self: &Arc<Self>, caller: &Caller, id: &Id) -> Result<SessionEntry, ToolFailure> {
        let mut sessions = self.state.table();
        if let Some(session) = sessions.get(id) {
            let is_ending = session.ending.is_cancelled();
            return Ok(if is_ending {
                SessionEntry::After(session.gone.clone())
            } else {
                SessionEntry::In(session.enter())
            });
        }
        if sessions.closed {
            return Err(overloaded("The daemon is stopping. Try again later.".to_owned()));
        }
        let share = caller.share();
        sessions.check(&share).map_err(|full| self.full(full))?;
        let (owner, name) = id.clone();
        let key = SessionKey { agent: Arc::clone(&caller.name), owner, session: name };
        let session = Arc::new(ToolSetSession::new(key, caller.clone()));
        sessions.insert(id.clone(), Arc::clone(&session));
        let visit = session.enter();
        // Counted under the lock, so that a shutdown waits for it.
        // In a task of its own: the start is not the first call's, which may be cancelled.
        self.lives.spawn(live(SessionSlot { set: Arc::clone(&self.state), session, id: id.clone(), failure: None }));
        drop(sessions);
        Ok(SessionEntry::In(visit))
    }

    fn full(&self, full: Full) -> ToolFailure {
        let set = &self.state.name;
        overloaded(match full {
            Full::Set(max) => {
                format!("Tool set '{set}' has no room for another session: there are {max}, the most. Try again later.")
            }
            Full::Agent(max) => format!(
                "Tool set '{set}' has no room for another session of this agent, which has {max}, the most. End one that \
                 is not needed any more, or try again later."
            ),
        })
    }
}

fn overloaded(text: String) -> ToolFailure {
    ToolFailure::new(Cause::Overloaded, text).with_retry_after(RETRY_AFTER)
}
