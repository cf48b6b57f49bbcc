//! One server: kept connected, started again when it ends.

mod backoff;
mod keeper;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, watch};
use tokio::time::timeout_at;
use tokio_util::sync::CancellationToken;
use toolbus_core::failure::{Cause, ToolFailure};
use toolbus_core::log::shown;
use toolbus_core::tool::{ToolCall, ToolOutput};

use crate::connection::{About, Connection, Listed};
use crate::dial::{Dialer, Link};
use crate::spec::ServerName;
use crate::status::PhaseName;

/// For how long a server is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keeping {
    /// From now on.
    Always,
    /// From its first call until it has been idle for this long.
    WhileUsed(Duration),
    /// Until its tools are listed: others are started to run them.
    UntilListed,
}

/// Takes what a server lists.
pub(crate) trait Listener: Send + Sync + 'static {
    /// The server listed its tools, as it does after each start and when they change. Returns when they can be called.
    fn listed(&self, about: &About, listed: Listed) -> futures_util::future::BoxFuture<'_, ()>;
}

/// One server, and its keeper's hold on it.
pub(crate) struct Server {
    pub(crate) name: ServerName,
    keeping: Keeping,
    dialer: Dialer,
    state: watch::Sender<State>,
    stop: CancellationToken,
    /// Somebody wants it to be there, now.
    wanted: Notify,
    /// Somebody wants it to be started again.
    restart: Notify,
    /// Somebody wants its tools to be listed again.
    relist: Notify,
    restarts: AtomicU64,
    last_error: Mutex<Option<String>>,
    stderr: Mutex<Vec<String>>,
    last_used: Mutex<Instant>,
}

/// What a server is doing.
#[derive(Clone)]
pub(crate) enum State {
    Idle,
    Connecting,
    Ready(Arc<Ready>),
    Waiting,
    Parked,
    AuthRequired,
    Stopped,
}

/// A connection that takes calls.
pub(crate) struct Ready {
    pub(crate) link: Link,
    pub(crate) since: Instant,
}

impl State {
    pub(crate) const fn phase(&self) -> PhaseName {
        match self {
            Self::Idle => PhaseName::Idle,
            Self::Connecting => PhaseName::Connecting,
            Self::Ready(_) => PhaseName::Ready,
            Self::Waiting => PhaseName::Waiting,
            Self::Parked => PhaseName::Parked,
            Self::AuthRequired => PhaseName::AuthRequired,
            Self::Stopped => PhaseName::Stopped,
        }
    }

    /// Whether nothing will happen for a while unless somebody does something.
    pub(crate) const fn is_final(&self) -> bool {
        matches!(self, Self::Parked | Self::AuthRequired | Self::Stopped)
    }
}

impl Server {
    pub(crate) fn new(name: ServerName, keeping: Keeping, dialer: Dialer) -> Arc<Self> {
        Arc::new(Self {
            name,
            keeping,
            dialer,
            state: watch::Sender::new(match keeping {
                Keeping::WhileUsed(_) => State::Idle,
                Keeping::Always | Keeping::UntilListed => State::Connecting,
            }),
            stop: CancellationToken::new(),
            wanted: Notify::new(),
            restart: Notify::new(),
            relist: Notify::new(),
            restarts: AtomicU64::new(0),
            last_error: Mutex::default(),
            stderr: Mutex::default(),
            last_used: Mutex::new(Instant::now()),
        })
    }

    /// Keeps the server until it is stopped.
    pub(crate) async fn keep(self: Arc<Self>, listener: Arc<dyn Listener>) {
        keeper::keep(&self, &*listener).await;
    }

    /// Ends the server. Its keeper returns when it is gone.
    pub(crate) fn stop(&self) {
        self.stop.cancel();
    }

    /// Starts the server again, also when it was given up.
    pub(crate) fn restart(&self) {
        self.restart.notify_one();
    }

    /// Lists the server's tools again, or tries at once to connect.
    pub(crate) fn relist(&self) {
        match &*self.state.borrow() {
            State::Ready(_) => self.relist.notify_one(),
            _ => self.wanted.notify_one(),
        }
    }

    /// Starts the server if it waits for that.
    pub(crate) fn wake(&self) {
        if matches!(*self.state.borrow(), State::Idle) {
            self.wanted.notify_one();
        }
    }

    /// What the server is doing, and every change of that.
    pub(crate) fn states(&self) -> watch::Receiver<State> {
        self.state.subscribe()
    }

    pub(crate) fn state(&self) -> State {
        self.state.borrow().clone()
    }

    pub(crate) const fn dialer(&self) -> &Dialer {
        &self.dialer
    }

    pub(crate) fn restarts(&self) -> u64 {
        self.restarts.load(Ordering::Relaxed)
    }

    pub(crate) fn last_error(&self) -> Option<String> {
        self.last_error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What it wrote to its standard error last, in this life or the one before.
    pub(crate) fn stderr(&self) -> Vec<String> {
        if let State::Ready(ready) = &*self.state.borrow() {
            return ready.link.stderr();
        }
        self.stderr.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Runs a tool, by the server's own name of it. A call that is lost with its connection is repeated once, on the next,
    /// if that does no harm.
    pub(crate) async fn call(
        &self,
        tool: &str,
        call: &ToolCall,
        is_repeatable: bool,
    ) -> Result<ToolOutput, ToolFailure> {
        let first = self.ready(call, None).await?;
        let _used = Used::new(self);
        let lost = match first.link.connection.call(tool, call).await {
            Ok(output) => return Ok(output),
            Err(error) if error.is_lost && is_repeatable => error,
            Err(error) => return Err(error.failure),
        };
        let Ok(second) = self.ready(call, Some(&first.link.connection)).await else { return Err(lost.failure) };
        second.link.connection.call(tool, call).await.map_err(|error| error.failure)
    }

    /// A connection other than the one that was lost, waited for until the call's deadline.
    async fn ready(&self, call: &ToolCall, lost: Option<&Arc<Connection>>) -> Result<Arc<Ready>, ToolFailure> {
        let usable = |state: &State| match state {
            State::Ready(ready) if lost.is_none_or(|lost| !Arc::ptr_eq(lost, &ready.link.connection)) => {
                Some(Ok(Arc::clone(ready)))
            }
            State::AuthRequired => Some(Err(self.unreachable(Cause::AuthRequired, "it needs credentials"))),
            State::Parked => Some(Err(self.unreachable(Cause::ConnectFailed, "it fails again and again"))),
            State::Stopped => Some(Err(self.unreachable(Cause::ConnectFailed, "it has been stopped"))),
            State::Ready(_) | State::Idle | State::Connecting | State::Waiting => None,
        };
        if let Some(ready) = usable(&self.state.borrow()) {
            return ready;
        }
        let mut states = self.state.subscribe();
        let settled = async {
            loop {
                self.wake();
                if let Some(ready) = usable(&states.borrow_and_update()) {
                    return ready;
                }
                if states.changed().await.is_err() {
                    return Err(self.unreachable(Cause::ConnectFailed, "it has been stopped"));
                }
            }
        };
        tokio::select! {
            biased;
            settled = timeout_at(call.deadline.into(), settled) => settled.unwrap_or_else(|_| {
                let text = format!("MCP server '{}' was not connected before the deadline of the call. The tool was not run.", self.shown());
                Err(ToolFailure::new(Cause::Expired, text))
            }),
            () = call.cancelled.cancelled() => {
                Err(ToolFailure::new(Cause::CancelledBeforeStart, "The call was cancelled before the tool began."))
            }
        }
    }

    fn unreachable(&self, cause: Cause, why: &str) -> ToolFailure {
        let advice = match cause {
            Cause::AuthRequired => "An operator has to give them.",
            _ => "Try again later, or ask an operator to look at it.",
        };
        let text = format!("MCP server '{}' is registered but not reachable right now ({why}). {advice}", self.shown());
        ToolFailure::new(cause, text)
    }

    fn shown(&self) -> String {
        shown(self.name.as_str())
    }

    fn idle_since(&self) -> Instant {
        *self.last_used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn remember_error(&self, error: &str, stderr: Vec<String>) {
        *self.last_error.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.to_owned());
        *self.stderr.lock().unwrap_or_else(PoisonError::into_inner) = stderr;
    }
}

/// Notes when a call begins and when it ends.
struct Used<'a>(&'a Server);

impl<'a> Used<'a> {
    fn new(server: &'a Server) -> Self {
        let used = Self(server);
        used.note();
        used
    }

    fn note(&self) {
        // Only idleness is told from it.
        if matches!(self.0.keeping, Keeping::WhileUsed(_)) {
            *self.0.last_used.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        }
    }
}

impl Drop for Used<'_> {
    fn drop(&mut self) {
        self.note();
    }
}
