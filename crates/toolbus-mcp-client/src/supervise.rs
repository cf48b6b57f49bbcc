//! Supervision of one server: it is kept connected, and started again when it ends.

mod calls;
pub(crate) mod connect;
mod run;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use toolbus_core::Clock;
use toolbus_protocol::Random;

use self::calls::ActiveCalls;
use self::connect::{Connected, Connector};
use crate::client::{ServerInfo, ServerListing};
use crate::spec::ServerName;
use crate::status::PhaseName;

/// Time for which a server is kept running.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lifetime {
    /// Always.
    Always,
    /// From its first call until it has been idle for this long.
    WhileUsed(Duration),
    /// Until its tools are listed: each session starts a server of its own.
    UntilListed,
    /// Until it ends: its state would be lost by a restart. Its tools are known already.
    Once,
}

/// Receives the listings of a server.
pub(crate) trait Listener: Send + Sync + 'static {
    /// The server listed its tools, as it does after each start and when they change. Returns when they can be called.
    fn listed(&self, about: &ServerInfo, listed: ServerListing) -> BoxFuture<'_, ()>;
}

/// One server and the state of its supervision.
pub(crate) struct SupervisedServer {
    pub(crate) name: ServerName,
    lifetime: Lifetime,
    timeouts: Timeouts,
    connector: Connector,
    clock: Clock,
    state: watch::Sender<ServerState>,
    stop: CancellationToken,
    /// A call needs the server.
    wanted: Notify,
    /// A restart was requested.
    restart: Notify,
    /// A listing was requested.
    relist: Notify,
    restarts: AtomicU64,
    /// When the last attempt to connect began.
    tried: Mutex<Instant>,
    last_error: Mutex<Option<String>>,
    stderr: Mutex<Vec<String>>,
    active_calls: ActiveCalls,
}

/// The state of a server.
#[derive(Clone)]
pub(crate) enum ServerState {
    Idle,
    Connecting,
    Ready(Arc<Ready>),
    Waiting,
    /// Parked; from `due` on, a call makes it connect at once.
    Parked {
        due: Instant,
    },
    AuthRequired,
    Stopped,
}

/// A connection that takes calls.
pub(crate) struct Ready {
    pub(crate) connected: Connected,
    pub(crate) since: Instant,
}

impl ServerState {
    pub(crate) const fn phase(&self) -> PhaseName {
        match self {
            Self::Idle => PhaseName::Idle,
            Self::Connecting => PhaseName::Connecting,
            Self::Ready(_) => PhaseName::Ready,
            Self::Waiting => PhaseName::Waiting,
            Self::Parked { .. } => PhaseName::Parked,
            Self::AuthRequired => PhaseName::AuthRequired,
            Self::Stopped => PhaseName::Stopped,
        }
    }

    /// Whether neither time nor a call will change the state soon.
    pub(crate) fn is_final(&self, clock: Clock) -> bool {
        matches!(self, Self::Parked { .. } | Self::AuthRequired | Self::Stopped) && !self.starts_when_called(clock)
    }

    /// Whether a call starts the server.
    fn starts_when_called(&self, clock: Clock) -> bool {
        match self {
            Self::Idle => true,
            Self::Parked { due } => *due <= clock.now(),
            _ => false,
        }
    }
}

impl SupervisedServer {
    pub(crate) fn new(name: ServerName, lifetime: Lifetime, timeouts: Timeouts, connector: Connector) -> Arc<Self> {
        let clock = connector.clock();
        Arc::new(Self {
            name,
            lifetime,
            timeouts,
            connector,
            clock,
            state: watch::Sender::new(match lifetime {
                Lifetime::WhileUsed(_) => ServerState::Idle,
                Lifetime::Always | Lifetime::UntilListed | Lifetime::Once => ServerState::Connecting,
            }),
            stop: CancellationToken::new(),
            wanted: Notify::new(),
            restart: Notify::new(),
            relist: Notify::new(),
            restarts: AtomicU64::new(0),
            tried: Mutex::new(clock.now()),
            last_error: Mutex::default(),
            stderr: Mutex::default(),
            active_calls: ActiveCalls::none(clock),
        })
    }

    /// Supervises the server until it is stopped.
    pub(crate) async fn keep(self: Arc<Self>, listener: Arc<dyn Listener>) {
        run::keep(&self, &*listener).await;
    }

    /// Ends the server. [`SupervisedServer::keep`] returns when it has ended.
    pub(crate) fn stop(&self) {
        self.stop.cancel();
    }

    /// Restarts the server, also when it is parked.
    pub(crate) fn restart(&self) {
        self.restart.notify_one();
    }

    /// Lists the server's tools again, or connects at once to one that waits for its next attempt. A parked or idle
    /// one stays as it is.
    pub(crate) fn relist(&self) {
        match &*self.state.borrow() {
            ServerState::Ready(_) => self.relist.notify_one(),
            ServerState::Waiting => self.wanted.notify_one(),
            ServerState::Idle if self.lifetime == Lifetime::UntilListed => self.wanted.notify_one(),
            _ => {}
        }
    }

    /// Starts the server if it waits for a call.
    pub(crate) fn wake(&self) {
        // Holds the state meanwhile, so that no wake-up arrives after [`Self::begin`] consumed the pending ones.
        if self.state.borrow().starts_when_called(self.clock) {
            self.wanted.notify_one();
        }
    }

    /// Until when a call waits for a server whose tools are unknown: [`Timeouts::arrival`] from its last attempt.
    pub(crate) fn promising_until(&self) -> Instant {
        let tried = match self.state() {
            ServerState::Connecting => self.tried(),
            _ => self.clock.now(),
        };
        tried + self.timeouts.arrival
    }

    /// When the last attempt to connect began.
    fn tried(&self) -> Instant {
        *self.tried.lock()
    }

    /// Whether the first attempt to connect is still pending.
    pub(crate) fn is_untried(&self) -> bool {
        matches!(self.state(), ServerState::Idle | ServerState::Connecting) && self.last_error().is_none()
    }

    /// Notes that the server is being started, which serves all pending wake-ups and restarts.
    fn begin(&self) {
        *self.tried.lock() = self.clock.now();
        self.state.send_replace(ServerState::Connecting);
        let _ = self.wanted.notified().now_or_never();
        let _ = self.restart.notified().now_or_never();
    }

    /// A watch on the state.
    pub(crate) fn states(&self) -> watch::Receiver<ServerState> {
        self.state.subscribe()
    }

    pub(crate) fn state(&self) -> ServerState {
        self.state.borrow().clone()
    }

    /// The clock that measures its time.
    pub(crate) const fn clock(&self) -> Clock {
        self.clock
    }

    pub(crate) const fn connector(&self) -> &Connector {
        &self.connector
    }

    /// Calls that use the server or wait for it.
    pub(crate) fn in_flight(&self) -> usize {
        self.active_calls.count()
    }

    pub(crate) fn restarts(&self) -> u64 {
        self.restarts.load(Ordering::Relaxed)
    }

    pub(crate) fn last_error(&self) -> Option<String> {
        self.last_error.lock().clone()
    }

    /// The last lines of its standard error, of this run or the previous one.
    pub(crate) fn stderr(&self) -> Vec<String> {
        if let ServerState::Ready(ready) = &*self.state.borrow() {
            return ready.connected.stderr();
        }
        self.stderr.lock().clone()
    }

    fn remember_error(&self, error: &str, stderr: Vec<String>) {
        *self.last_error.lock() = Some(error.to_owned());
        *self.stderr.lock() = stderr;
    }
}

/// Timeouts of the supervision of a server.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timeouts {
    /// Longest time from a start to the end of the handshake. Package runners fetch what they run first.
    pub(crate) connect: Duration,
    /// Time in which a ready server counts as recovered.
    pub(crate) stable: Duration,
    /// Time within which several list changes count as one.
    pub(crate) debounce: Duration,
    /// Interval of pings to an idle server.
    pub(crate) ping_period: Duration,
    /// Longest wait for the response to a ping.
    pub(crate) ping_time: Duration,
    /// Wait before a parked process is tried again without a call.
    pub(crate) parked: Duration,
    /// Least time after a failure until a call makes a parked server connect again.
    pub(crate) retry: Duration,
    /// Longest wait of a call that does not name the server for unknown tools, from the attempt to connect.
    pub(crate) arrival: Duration,
    /// Time without a call after which a lazy server is stopped.
    pub(crate) idle: Duration,
    /// Source of the jitter between attempts.
    pub(crate) random: Random,
}

impl Timeouts {
    /// The timeouts of production.
    pub(crate) const DEFAULT: Self = Self {
        connect: Duration::from_secs(60),
        stable: Duration::from_secs(60),
        debounce: Duration::from_millis(200),
        ping_period: Duration::from_secs(30),
        ping_time: Duration::from_secs(10),
        parked: Duration::from_secs(5 * 60),
        retry: Duration::from_secs(5),
        arrival: Duration::from_secs(5),
        idle: Duration::from_secs(5 * 60),
        random: Random::SYSTEM,
    };
}
