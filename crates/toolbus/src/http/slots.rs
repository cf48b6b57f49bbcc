//! The slots of connections, the state of each connection, and the eviction of idle ones.

use std::collections::HashMap;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use toolbus_core::Clock;
use toolbus_core::throttle::Throttle;
use toolbus_mcp_server::TokenId;

/// Slots of connections without a valid token. A further connection takes the slot of one that waits for a request, or
/// waits for a slot.
pub(super) const MAX_ANONYMOUS: usize = 64;
/// Slots of connections that have shown a valid token.
pub(super) const MAX_KNOWN: usize = 1216;
/// Slots of clients without a token, where `http.open` admits them. They take no slot of clients with a token.
pub(super) const MAX_GUESTS: usize = 256;
/// Slots of connections that gave a wrong token and wait for their refusal.
pub(super) const MAX_SLOWED: usize = 256;
/// Longest time for a client to send the head of a request, from its first byte.
pub(super) const HEAD_TIME: Duration = Duration::from_secs(2);
/// Least wait for a head: a head that is sent at once has arrived by then.
pub(super) const GRACE: Duration = Duration::from_millis(250);
/// Default time limit of a request and its response.
pub(super) const REQUEST_TIME: Duration = Duration::from_secs(10);
/// Longest wait of a connection for its next request.
pub(super) const IDLE_TIME: Duration = Duration::from_secs(60);
/// Longest time for which a client may read nothing of its response.
pub(super) const WRITE_TIME: Duration = Duration::from_secs(30);
/// Longest wait for the slot of an evicted connection.
const EVICTION_TIME: Duration = Duration::from_secs(1);
/// Interval of attempts to evict a connection while a new one waits.
const RETRY: Duration = Duration::from_millis(20);

/// The slots of each [`Class`]: connections without a token leave room for those that have shown one.
#[derive(Debug)]
pub(super) struct Slots {
    anonymous: Arc<Semaphore>,
    known: Arc<Semaphore>,
    guests: Arc<Semaphore>,
    slowed: Arc<Semaphore>,
    clock: Clock,
    connections: Mutex<HashMap<u64, Arc<ConnectionState>>>,
    next: AtomicU64,
    foreign: Throttle,
}

/// Class of a connection, by the token that it has shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    /// No token yet.
    Anonymous,
    /// A valid token.
    Known,
    /// No token, where none is needed.
    Guest,
    /// A wrong token.
    Slowed,
}

impl Slots {
    pub(super) fn new(clock: Clock) -> Self {
        let pool = |count| Arc::new(Semaphore::new(count));
        Self {
            anonymous: pool(MAX_ANONYMOUS),
            known: pool(MAX_KNOWN),
            guests: pool(MAX_GUESTS),
            slowed: pool(MAX_SLOWED),
            clock,
            connections: Mutex::default(),
            next: AtomicU64::new(0),
            foreign: Throttle::default(),
        }
    }

    /// Waits for a slot for a new connection, and registers the connection. `None` once the pool is closed.
    pub(super) async fn enter(self: &Arc<Self>, remote: Option<IpAddr>) -> Option<Arc<ConnectionState>> {
        let slot = match self.slot(Class::Anonymous) {
            Some(slot) => slot,
            None => self.wait().await?,
        };
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let state = Arc::new(ConnectionState::new(id, remote, Arc::clone(self), slot));
        self.connections.lock().insert(id, Arc::clone(&state));
        Some(state)
    }

    /// Waits for a slot of class [`Class::Anonymous`].
    async fn wait(&self) -> Option<OwnedSemaphorePermit> {
        let slot = Arc::clone(&self.anonymous).acquire_owned();
        let mut slot = pin!(slot);
        loop {
            self.evict(|state| state.waits_since(Class::Anonymous));
            // A connection that cannot be evicted yet may be a moment later.
            if let Ok(slot) = timeout(RETRY, slot.as_mut()).await {
                return slot.ok();
            }
        }
    }

    /// A free slot of `class`, without waiting.
    fn slot(&self, class: Class) -> Option<OwnedSemaphorePermit> {
        Arc::clone(self.pool(class)).try_acquire_owned().ok()
    }

    /// A free slot of `class`, or that of the connection that has been idle longest.
    async fn slot_soon(&self, class: Class) -> Option<OwnedSemaphorePermit> {
        match self.slot(class) {
            None => self.slot_after(class, |state| state.waits_since(class)).await,
            now => now,
        }
    }

    /// A slot for a connection with this token. A token may hold as many slots as are free: one is always left for another
    /// token, and tokens that compete get equal shares. Beyond that, an idle connection of the same token is evicted.
    async fn slot_for_token(&self, token: TokenId) -> Option<OwnedSemaphorePermit> {
        let count = self.connections.lock().values().filter(|state| state.is_of(token)).count();
        if count == 0 || count < self.known.available_permits() {
            return self.slot_soon(Class::Known).await;
        }
        self.slot_after(Class::Known, |state| state.waits_since(Class::Known).filter(|_| state.is_of(token))).await
    }

    /// Evicts the connection that has been idle longest of those for which `waits_since` is `Some`, and takes its slot.
    async fn slot_after(
        &self,
        class: Class,
        waits_since: impl Fn(&ConnectionState) -> Option<(bool, Instant)>,
    ) -> Option<OwnedSemaphorePermit> {
        if !self.evict(waits_since) {
            return None;
        }
        let slot = Arc::clone(self.pool(class)).acquire_owned();
        timeout(EVICTION_TIME, slot).await.ok()?.ok()
    }

    const fn pool(&self, class: Class) -> &Arc<Semaphore> {
        match class {
            Class::Anonymous => &self.anonymous,
            Class::Known => &self.known,
            Class::Guest => &self.guests,
            Class::Slowed => &self.slowed,
        }
    }

    /// Evicts one idle connection, for want of file descriptors.
    pub(super) fn make_room(&self) {
        let classes = [Class::Anonymous, Class::Guest, Class::Known];
        let _ = classes.into_iter().any(|class| self.evict(|state| state.waits_since(class)));
    }

    fn leave(&self, id: u64) {
        self.connections.lock().remove(&id);
    }

    /// Logs that a client uses another protocol than HTTP.
    fn speaks(&self, protocol: &str, remote: Option<IpAddr>) {
        if let Some(left_out) = self.foreign.due() {
            let remote = remote.map(tracing::field::display);
            tracing::warn!(
                remote,
                left_out,
                "HTTP: a client speaks {protocol} here, and this port takes HTTP without TLS alone: use http:// in its \
                 address, or a proxy that ends TLS"
            );
        }
    }

    fn evict(&self, waits_since: impl Fn(&ConnectionState) -> Option<(bool, Instant)>) -> bool {
        let longest = {
            let connections = self.connections.lock();
            let waiting = connections.iter().filter_map(|(id, state)| Some((waits_since(state)?, id, state)));
            waiting.min_by_key(|(since, id, _)| (*since, *id)).map(|(_, _, state)| Arc::clone(state))
        };
        longest.is_some_and(|state| state.evict())
    }
}

/// The state of one connection: its phase, its time limit, and its slot.
#[derive(Debug)]
pub(crate) struct ConnectionState {
    /// Key of the connection in [`Slots`].
    id: u64,
    remote: Option<IpAddr>,
    slots: Arc<Slots>,
    inner: Mutex<Inner>,
    evicted: Notify,
}

#[derive(Debug)]
struct Inner {
    clock: Clock,
    phase: ConnectionPhase,
    /// When the phase began.
    since: Instant,
    /// Time since which the client has read nothing of its response.
    blocked: Option<Instant>,
    /// The deadline once the server stops.
    end: Option<Instant>,
    class: Class,
    /// The token that was shown.
    token: Option<TokenId>,
    slot: Option<OwnedSemaphorePermit>,
}

/// Phase of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ConnectionPhase {
    /// The head of a request is arriving, or the first one is awaited.
    Head,
    /// A request is being served, within this time if it is limited.
    Responding(Option<Duration>),
    /// The next request is awaited.
    Idle,
    /// The connection is to be closed.
    Evicted,
}

/// Removes a connection from [`Slots`] when dropped.
pub(super) struct Deregister(Arc<ConnectionState>);

impl Drop for Deregister {
    fn drop(&mut self) {
        self.0.slots.leave(self.0.id);
        self.0.inner.lock().slot = None;
    }
}

impl ConnectionState {
    fn new(id: u64, remote: Option<IpAddr>, slots: Arc<Slots>, slot: OwnedSemaphorePermit) -> Self {
        let inner = Inner {
            clock: slots.clock,
            phase: ConnectionPhase::Head,
            since: slots.clock.now(),
            blocked: None,
            end: None,
            class: Class::Anonymous,
            token: None,
            slot: Some(slot),
        };
        Self { id, remote, slots, inner: Mutex::new(inner), evicted: Notify::new() }
    }

    /// The address of the client; `None` on a Unix socket.
    pub(crate) const fn remote(&self) -> Option<IpAddr> {
        self.remote
    }

    /// Moves the connection to a slot of [`Class::Known`]: that of `token`, or of an operator. Returns whether one is free.
    pub(crate) async fn vouch(&self, token: Option<TokenId>) -> bool {
        if self.is(Class::Known) {
            return true;
        }
        let slot = match token {
            Some(token) => self.slots.slot_for_token(token).await,
            None => self.slots.slot_soon(Class::Known).await,
        };
        let is_free = self.take(slot, Class::Known);
        if is_free {
            self.inner.lock().token = token;
        }
        is_free
    }

    /// Moves the connection to a slot of [`Class::Guest`]. Returns whether one is free.
    pub(crate) async fn welcome(&self) -> bool {
        self.is(Class::Known)
            || self.is(Class::Guest)
            || self.take(self.slots.slot_soon(Class::Guest).await, Class::Guest)
    }

    /// Moves the connection to a slot of [`Class::Slowed`]. Returns whether one is free.
    pub(crate) fn slow_down(&self) -> bool {
        self.is(Class::Slowed) || self.take(self.slots.slot(Class::Slowed), Class::Slowed)
    }

    /// Lifts the time limit of the present request.
    pub(crate) fn take_any_time(&self) {
        if let ConnectionPhase::Responding(limit) = &mut self.inner.lock().phase {
            *limit = None;
        }
    }

    /// Whether its slot was given for this token.
    fn is_of(&self, token: TokenId) -> bool {
        self.inner.lock().token == Some(token)
    }

    fn is(&self, class: Class) -> bool {
        self.inner.lock().class == class
    }

    /// Replaces its slot by `slot`, if there is one.
    fn take(&self, slot: Option<OwnedSemaphorePermit>, class: Class) -> bool {
        let is_free = slot.is_some();
        if is_free {
            let mut inner = self.inner.lock();
            (inner.class, inner.slot) = (class, slot);
        }
        is_free
    }

    pub(super) fn deregister_on_drop(self: &Arc<Self>) -> Deregister {
        Deregister(Arc::clone(self))
    }

    /// Checks the first bytes, and logs a client of another protocol.
    pub(super) fn began(&self, bytes: &[u8]) {
        let protocol = match bytes {
            [0x16, 0x03, ..] => "TLS",
            [b'A', b'M', b'Q', b'P', ..] => "AMQP",
            _ => return,
        };
        self.slots.speaks(protocol, self.remote);
    }

    /// Notes that bytes have arrived.
    pub(super) fn heard(&self) {
        let mut inner = self.inner.lock();
        if inner.phase == ConnectionPhase::Idle {
            inner.enter(ConnectionPhase::Head);
        }
    }

    /// Notes that a request has arrived.
    pub(super) fn begin(&self) {
        self.inner.lock().enter(ConnectionPhase::Responding(Some(REQUEST_TIME)));
    }

    /// Notes that the response is complete, though much of it may not have been sent.
    pub(super) fn responded(&self) {
        self.inner.lock().enter(ConnectionPhase::Idle);
    }

    /// Notes whether the client reads its response; called when that changes.
    pub(super) fn wrote(&self, is_blocked: bool) {
        let mut inner = self.inner.lock();
        inner.blocked = is_blocked.then(|| inner.clock.now());
        if inner.phase == ConnectionPhase::Idle {
            // It is idle from the end of its response on, not while the client reads that.
            inner.since = inner.clock.now();
        }
    }

    /// Notes that the server stops: requests in progress get the time of one request.
    pub(super) fn stop(&self) {
        let mut inner = self.inner.lock();
        inner.end = Some(inner.clock.now() + REQUEST_TIME);
    }

    /// When the connection is to be closed, in its present phase.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let inner = self.inner.lock();
        let limit = match inner.phase {
            ConnectionPhase::Head => Some(HEAD_TIME),
            ConnectionPhase::Responding(limit) => limit,
            ConnectionPhase::Idle => Some(IDLE_TIME),
            ConnectionPhase::Evicted => Some(Duration::ZERO),
        };
        let times = [limit.map(|limit| inner.since + limit), inner.blocked.map(|since| since + WRITE_TIME), inner.end];
        times.into_iter().flatten().min()
    }

    /// Time since which the connection could have been closed without loss, if it can be and is of this class. A
    /// connection that does not read its response sorts after all idle ones.
    fn waits_since(&self, class: Class) -> Option<(bool, Instant)> {
        let inner = self.inner.lock();
        let waits = inner.class == class && inner.waits();
        waits.then(|| (inner.blocked.is_some(), inner.blocked.unwrap_or(inner.since)))
    }

    /// Has it closed, if it still can be: a request that arrives at the same moment is served. Returns whether it is.
    fn evict(&self) -> bool {
        let mut inner = self.inner.lock();
        let waits = inner.waits();
        if waits {
            inner.enter(ConnectionPhase::Evicted);
            self.evicted.notify_one();
        }
        waits
    }

    /// Waits until the connection may have been evicted.
    pub(super) async fn evicted(&self) {
        self.evicted.notified().await;
    }

    /// Clock of the connection.
    pub(super) fn clock(&self) -> Clock {
        self.slots.clock
    }
}

impl Inner {
    /// Whether the connection can be closed without loss. A head that has only just begun may be here as a whole and
    /// not read yet, and part of a response may be unsent. An anonymous connection that does not read its response is
    /// closed all the same: others without a token must get theirs, among them health probes.
    fn waits(&self) -> bool {
        if let Some(blocked) = self.blocked {
            return self.class == Class::Anonymous
                && self.phase != ConnectionPhase::Evicted
                && self.clock.since(blocked) >= GRACE;
        }
        match self.phase {
            ConnectionPhase::Idle => true,
            ConnectionPhase::Head => self.clock.since(self.since) >= GRACE,
            ConnectionPhase::Responding(_) | ConnectionPhase::Evicted => false,
        }
    }

    fn enter(&mut self, phase: ConnectionPhase) {
        self.phase = phase;
        self.since = self.clock.now();
    }
}
