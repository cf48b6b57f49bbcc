//! A factory whose instances have a state of their own, and everything that happened to them.

use parking_lot::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::caller::{AgentName, Caller};
use crate::failure::{Cause, ToolFailure};
use crate::tool::{Executor, Membership, Tool, ToolCall, ToolDescriptor, ToolOutput};
use crate::toolsets::{Instance, SessionFactory, SessionKey, SessionLimits, SessionSet};
use tokio_util::task::TaskTracker;

pub(super) const IDLE: Duration = Duration::from_secs(60);

/// Behaviour of starts and stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Goes {
    #[default]
    Well,
    Fails,
    Panics,
    /// Waits until [`World::open`].
    Waits,
    /// Never ends.
    Hangs,
}

#[derive(Default)]
pub(super) struct Notes {
    pub(super) start: Mutex<Goes>,
    pub(super) stop: Mutex<Goes>,
    pub(super) starts: Mutex<Vec<SessionKey>>,
    pub(super) stops: Mutex<Vec<String>>,
    /// Tokens of the calls that hang.
    pub(super) tokens: Mutex<Vec<CancellationToken>>,
    pub(super) dropped_starts: AtomicUsize,
    instances: Mutex<Vec<Weak<()>>>,
}

pub(super) struct World {
    pub(super) set: Arc<SessionSet>,
    pub(super) notes: Arc<Notes>,
    gate: Arc<Semaphore>,
}

struct Factory {
    notes: Arc<Notes>,
    gate: Arc<Semaphore>,
}

struct Counter {
    key: SessionKey,
    calls: AtomicUsize,
    broken: CancellationToken,
    notes: Arc<Notes>,
    gate: Arc<Semaphore>,
    _alive: Arc<()>,
}

/// Counts a start that is dropped half-way.
struct Half<'a>(&'a Notes);

impl Drop for Half<'_> {
    fn drop(&mut self) {
        self.0.dropped_starts.fetch_add(1, Ordering::Relaxed);
    }
}

async fn go(how: Goes, gate: &Semaphore) {
    match how {
        Goes::Well | Goes::Fails => {}
        Goes::Panics => panic!("secret detail"),
        Goes::Waits => gate.acquire().await.unwrap().forget(),
        Goes::Hangs => std::future::pending().await,
    }
}

impl SessionFactory for Factory {
    type Instance = Counter;

    async fn start(&self, key: SessionKey) -> Result<Counter, ToolFailure> {
        self.notes.starts.lock().push(key.clone());
        let how = *self.notes.start.lock();
        let half = Half(&self.notes);
        go(how, &self.gate).await;
        std::mem::forget(half);
        if how == Goes::Fails {
            return Err(ToolFailure::new(Cause::ConnectFailed, "No server."));
        }
        let alive = Arc::new(());
        self.notes.instances.lock().push(Arc::downgrade(&alive));
        let (notes, gate) = (Arc::clone(&self.notes), Arc::clone(&self.gate));
        Ok(Counter { key, calls: AtomicUsize::new(0), broken: CancellationToken::new(), notes, gate, _alive: alive })
    }
}

impl Executor for Counter {
    async fn execute(&self, call: ToolCall) -> Result<ToolOutput, ToolFailure> {
        if &*call.tool == "hang" {
            self.notes.tokens.lock().push(call.cancelled.clone());
            std::future::pending().await
        }
        if &*call.tool == "break" {
            self.broken.cancel();
            return Err(ToolFailure::new(Cause::ConnectionLost, "Broken."));
        }
        let count = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        Ok(ToolOutput::text(format!("{} {count}", call.tool)))
    }
}

impl Instance for Counter {
    async fn stop(&self) {
        self.notes.stops.lock().push(format!("{}/{}", self.key.owner, self.key.session));
        let how = *self.notes.stop.lock();
        go(how, &self.gate).await;
    }

    fn is_over(&self) -> bool {
        self.broken.is_cancelled()
    }
}

/// The caller `agent`, in `session`.
pub(super) fn caller(agent: &str, session: &str) -> Caller {
    Caller { session: Some(session.into()), ..Caller::agent(AgentName::parse(agent).unwrap()) }
}

impl World {
    pub(super) fn new(max_sessions: usize) -> Self {
        Self::with(SessionLimits { idle_timeout: IDLE, max_lifetime: None, max_sessions })
    }

    pub(super) fn with(limits: SessionLimits) -> Self {
        let (notes, gate) = (Arc::<Notes>::default(), Arc::new(Semaphore::new(0)));
        let factory = Factory { notes: Arc::clone(&notes), gate: Arc::clone(&gate) };
        Self { set: SessionSet::new("fs", factory, limits), notes, gate }
    }

    pub(super) fn start_goes(&self, how: Goes) {
        *self.notes.start.lock() = how;
    }

    pub(super) fn stop_goes(&self, how: Goes) {
        *self.notes.stop.lock() = how;
    }

    /// Lets what waits go on.
    pub(super) fn open(&self) {
        self.gate.add_permits(1);
    }

    fn tool(&self, name: &str) -> Tool {
        let member = Membership { set: "fs".into(), name: name.into(), needs_session: true };
        let descriptor = ToolDescriptor::new(format!("fs.{name}"), "test", "local");
        self.set.tool(ToolDescriptor { toolset: Some(member), ..descriptor })
    }

    /// Begins a call, in a task of its own.
    pub(super) fn begin(&self, tool: &str, caller: Caller) -> JoinHandle<Result<ToolOutput, ToolFailure>> {
        let tool = self.tool(tool);
        let call = ToolCall::new(
            Arc::clone(tool.descriptor.bare_name()),
            caller,
            serde_json::Map::new(),
            Duration::from_secs(30),
        );
        TaskTracker::new().spawn(tool.executor.execute_boxed(call))
    }

    /// Calls the tool that counts; gives the count.
    pub(super) async fn count(&self, agent: &str, session: &str) -> Result<String, ToolFailure> {
        self.begin("count", caller(agent, session)).await.unwrap().map(|output| output.content.unwrap())
    }

    /// Calls the tool that counts as ana, whose session then starts in this way.
    pub(super) async fn starting(how: Goes) -> (Self, JoinHandle<Result<ToolOutput, ToolFailure>>) {
        let world = Self::new(10);
        world.start_goes(how);
        let call = world.begin("count", self::caller("ana", "s"));
        world.started(1).await;
        (world, call)
    }

    /// Begins a call that never returns, and waits until it runs.
    pub(super) async fn hang(&self, agent: &str, session: &str) -> JoinHandle<Result<ToolOutput, ToolFailure>> {
        let before = self.running();
        let call = self.begin("hang", caller(agent, session));
        until("the call runs", || self.running() > before).await;
        call
    }

    /// Calls that hang and were not cancelled.
    pub(super) fn running(&self) -> usize {
        self.notes.tokens.lock().iter().filter(|token| !token.is_cancelled()).count()
    }

    pub(super) fn starts(&self) -> usize {
        self.notes.starts.lock().len()
    }

    pub(super) fn stops(&self) -> Vec<String> {
        self.notes.stops.lock().clone()
    }

    /// Waits until so many instances were requested.
    pub(super) async fn started(&self, count: usize) {
        until("the start is under way", || self.starts() == count).await;
    }

    /// Waits until the set has so many sessions.
    pub(super) async fn left(&self, count: usize) {
        until("sessions are gone", || self.set.sessions() == count).await;
    }

    /// Instances that exist.
    pub(super) fn instances(&self) -> usize {
        self.notes.instances.lock().iter().filter(|alive| alive.strong_count() > 0).count()
    }

    /// Whether nothing is left of any session.
    pub(super) fn is_empty(&self) -> bool {
        self.instances() == 0 && self.set.state.table().is_empty()
    }
}

/// Lets other tasks run, without time passing, until `condition` holds.
pub(super) async fn until(what: &str, condition: impl Fn() -> bool) {
    for _ in 0..10_000 {
        if condition() {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("waited in vain until {what}");
}

/// Lets time pass, and what is due then happen.
pub(super) async fn pass(time: Duration) {
    tokio::time::advance(time).await;
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}
