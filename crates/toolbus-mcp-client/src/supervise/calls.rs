//! Calls of a server's tools, in any state of the server.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::time::{timeout, timeout_at};
use toolbus_core::Clock;
use toolbus_core::failure::{Cause, ToolFailure};
use toolbus_core::text::shown;
use toolbus_core::tool::{ToolCall, ToolOutput};

use super::{Lifetime, Ready, ServerState, SupervisedServer};

/// Wait for the end of a connection after a call on it was lost.
const END_TIME: Duration = Duration::from_millis(100);

/// The calls that use a server or wait for it.
pub(super) struct ActiveCalls {
    count: AtomicUsize,
    /// End of the last call.
    last: Mutex<Instant>,
    clock: Clock,
}

impl ActiveCalls {
    pub(super) fn none(clock: Clock) -> Self {
        Self { count: AtomicUsize::new(0), last: Mutex::new(clock.now()), clock }
    }

    /// The number of calls.
    pub(super) fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// When the last call ended.
    pub(super) fn idle_since(&self) -> Instant {
        *self.last.lock()
    }

    /// Restarts the idle time.
    pub(super) fn note(&self) {
        *self.last.lock() = self.clock.now();
    }
}

/// One call, from before it waits for a connection until it ends.
struct ActiveCall<'a>(&'a SupervisedServer);

impl<'a> ActiveCall<'a> {
    fn new(server: &'a SupervisedServer) -> Self {
        server.active_calls.count.fetch_add(1, Ordering::AcqRel);
        Self(server)
    }
}

impl Drop for ActiveCall<'_> {
    fn drop(&mut self) {
        // Needed only to measure idle time.
        if matches!(self.0.lifetime, Lifetime::WhileUsed(_)) {
            self.0.active_calls.note();
        }
        self.0.active_calls.count.fetch_sub(1, Ordering::AcqRel);
    }
}

impl SupervisedServer {
    /// Runs a tool by its own name, if `is_admitted` holds once the server is connected: its list may have changed
    /// since the call was admitted. A lost call is repeated once if `is_repeatable`; on the next connection if its own
    /// was lost, which over HTTP it need not be.
    ///
    /// # Errors
    ///
    /// If there is no result: the server is unreachable, the tool was removed, or the call failed, was cancelled or
    /// timed out.
    pub(crate) async fn call(
        &self,
        tool: &str,
        call: &ToolCall,
        is_repeatable: bool,
        is_admitted: &(dyn Fn() -> bool + Sync),
    ) -> Result<ToolOutput, ToolFailure> {
        let _using = ActiveCall::new(self);
        let first = self.ready(call).await?;
        if !is_admitted() {
            return Err(not_there(tool));
        }
        let lost = match first.connected.connection.call(tool, call).await {
            Ok(output) => return Ok(output),
            Err(error) if error.is_lost => error,
            Err(error) => return Err(error.failure),
        };
        // What is lost may be known before its cause, and the server of a session has to be known as gone.
        if is_repeatable || self.lifetime == Lifetime::Once {
            let _ = timeout(END_TIME, first.connected.connection.closed()).await;
        }
        if !is_repeatable {
            return Err(lost.failure);
        }
        let Ok(second) = self.ready(call).await else { return Err(lost.failure) };
        if !is_admitted() {
            return Err(lost.failure);
        }
        second.connected.connection.call(tool, call).await.map_err(|error| error.failure)
    }

    /// A connection, waited for until the call's deadline.
    async fn ready(&self, call: &ToolCall) -> Result<Arc<Ready>, ToolFailure> {
        if let Some(ready) = self.usable(&self.state.borrow()) {
            return ready;
        }
        let mut states = self.state.subscribe();
        let settled = async {
            loop {
                if let Some(ready) = self.usable(&states.borrow_and_update()) {
                    return ready;
                }
                self.wake();
                if states.changed().await.is_err() {
                    return Err(self.unreachable(Cause::ConnectFailed, "it has been stopped"));
                }
            }
        };
        tokio::select! {
            biased;
            settled = timeout_at(call.deadline.into(), settled) => settled.unwrap_or_else(|_| {
                let name = shown(self.name.as_str());
                let text = format!("MCP server '{name}' was not connected before the deadline of the call. The tool was not run.");
                Err(ToolFailure::new(Cause::Expired, text))
            }),
            () = call.cancelled.cancelled() => {
                Err(ToolFailure::new(Cause::CancelledBeforeStart, "The call was cancelled before the tool began."))
            }
        }
    }

    /// Returns what a call gets in this state; `None` if it has to wait. A connection that has ended takes no call,
    /// even before its supervision notices.
    fn usable(&self, state: &ServerState) -> Option<Result<Arc<Ready>, ToolFailure>> {
        match state {
            state if state.starts_when_called(self.clock) => None,
            ServerState::Ready(ready) => (!ready.connected.connection.is_over()).then(|| Ok(Arc::clone(ready))),
            ServerState::AuthRequired => Some(Err(self.unreachable(Cause::AuthRequired, "it needs credentials"))),
            ServerState::Parked { .. } => Some(Err(self.unreachable(Cause::ConnectFailed, "it fails again and again"))),
            ServerState::Stopped => Some(Err(self.unreachable(Cause::ConnectFailed, "it has been stopped"))),
            ServerState::Idle | ServerState::Connecting | ServerState::Waiting => None,
        }
    }

    /// The failure of a call while the server's tools are unknown, because it has never been connected.
    pub(crate) fn out_of_reach(&self) -> ToolFailure {
        let failure = self.usable(&self.state()).and_then(Result::err);
        failure.unwrap_or_else(|| self.unreachable(Cause::ConnectFailed, "it is being connected to"))
    }

    fn unreachable(&self, cause: Cause, why: &str) -> ToolFailure {
        let advice = match cause {
            Cause::AuthRequired => "An operator has to give them.",
            _ => "Try again later, or ask an operator to look at it.",
        };
        let name = shown(self.name.as_str());
        ToolFailure::new(
            cause,
            format!("MCP server '{name}' is registered but not reachable right now ({why}). {advice}"),
        )
    }
}

/// The failure of a call of a tool that has been removed.
fn not_there(tool: &str) -> ToolFailure {
    ToolFailure::new(Cause::UnknownTool, format!("Tool '{}' is not registered.", shown(tool)))
}
