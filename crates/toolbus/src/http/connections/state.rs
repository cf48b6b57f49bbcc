//! The state of one connection: its phase, its deadline and its slot.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, OwnedSemaphorePermit};
use toolbus_core::Clock;
use toolbus_mcp_server::TokenId;

use super::slots::{Class, Slots};
use super::{GRACE, HEAD_TIME, IDLE_TIME, REQUEST_TIME, WRITE_TIME};

/// The state of one connection: what it does, until when it may, and which slot it holds.
#[derive(Debug)]
pub(crate) struct ConnectionState {
    /// Its key in [`Slots`].
    id: u64,
    remote: Option<IpAddr>,
    slots: Arc<Slots>,
    inner: Mutex<Inner>,
    evicted: Notify,
}

#[derive(Debug)]
struct Inner {
    clock: Clock,
    phase: Phase,
    /// When the phase began.
    since: Instant,
    /// Since when the client has read nothing of what is written.
    blocked: Option<Instant>,
    /// The deadline once the server stops.
    end: Option<Instant>,
    class: Class,
    /// The token that was shown.
    token: Option<TokenId>,
    slot: Option<OwnedSemaphorePermit>,
}

/// What a connection is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The head of a request is arriving, or the first one is awaited.
    Head,
    /// A request is being served, within this time if it is limited.
    Answering(Option<Duration>),
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
        self.0.lock().slot = None;
    }
}

impl ConnectionState {
    pub(super) fn new(id: u64, remote: Option<IpAddr>, slots: Arc<Slots>, slot: OwnedSemaphorePermit) -> Self {
        let inner = Inner {
            clock: slots.clock,
            phase: Phase::Head,
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
            self.lock().token = token;
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
        if let Phase::Answering(limit) = &mut self.lock().phase {
            *limit = None;
        }
    }

    /// Whether its slot was given for this token.
    pub(super) fn is_of(&self, token: TokenId) -> bool {
        self.lock().token == Some(token)
    }

    fn is(&self, class: Class) -> bool {
        self.lock().class == class
    }

    /// Replaces its slot by `slot`, if there is one.
    fn take(&self, slot: Option<OwnedSemaphorePermit>, class: Class) -> bool {
        let is_free = slot.is_some();
        if is_free {
            let mut inner = self.lock();
            (inner.class, inner.slot) = (class, slot);
        }
        is_free
    }

    pub(super) fn deregister_on_drop(self: &Arc<Self>) -> Deregister {
        Deregister(Arc::clone(self))
    }

    /// Looks at the first bytes, and logs a client that takes this port for that of another protocol.
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
        let mut inner = self.lock();
        if inner.phase == Phase::Idle {
            inner.enter(Phase::Head);
        }
    }

    /// Notes that a request has arrived.
    pub(super) fn begin(&self) {
        self.lock().enter(Phase::Answering(Some(REQUEST_TIME)));
    }

    /// Notes that the response is complete, though much of it may not have been sent.
    pub(super) fn answered(&self) {
        self.lock().enter(Phase::Idle);
    }

    /// Notes whether the client reads what is written; called when that changes.
    pub(super) fn wrote(&self, is_blocked: bool) {
        let mut inner = self.lock();
        inner.blocked = is_blocked.then(|| inner.clock.now());
        if inner.phase == Phase::Idle {
            // It is idle from the end of its response on, not while the client reads that.
            inner.since = inner.clock.now();
        }
    }

    /// Notes that the server stops: what is in progress gets the time of one request.
    pub(super) fn stop(&self) {
        let mut inner = self.lock();
        inner.end = Some(inner.clock.now() + REQUEST_TIME);
    }

    /// When the connection is to be closed, in its present phase.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let inner = self.lock();
        let limit = match inner.phase {
            Phase::Head => Some(HEAD_TIME),
            Phase::Answering(limit) => limit,
            Phase::Idle => Some(IDLE_TIME),
            Phase::Evicted => Some(Duration::ZERO),
        };
        let times = [limit.map(|limit| inner.since + limit), inner.blocked.map(|since| since + WRITE_TIME), inner.end];
        times.into_iter().flatten().min()
    }

    /// Since when the connection could have been closed without loss, if it can be and is of this class. One that does not
    /// read its response sorts after all that are idle.
    pub(super) fn waits_since(&self, class: Class) -> Option<(bool, Instant)> {
        let inner = self.lock();
        let waits = inner.class == class && inner.waits();
        waits.then(|| (inner.blocked.is_some(), inner.blocked.unwrap_or(inner.since)))
    }

    /// Has it closed, if it still can be: a request that arrives at the same moment is served. Returns whether it is.
    pub(super) fn evict(&self) -> bool {
        let mut inner = self.lock();
        let waits = inner.waits();
        if waits {
            inner.enter(Phase::Evicted);
            self.evicted.notify_one();
        }
        waits
    }

    /// Waits until the connection may have been evicted.
    pub(super) async fn evicted(&self) {
        self.evicted.notified().await;
    }

    /// What tells the time of the connection.
    pub(super) fn clock(&self) -> Clock {
        self.slots.clock
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }
}

impl Inner {
    /// Whether it can be closed without loss. A head that has only just begun may be here as a whole and not read yet, and
    /// part of a response may be unsent. An anonymous connection that does not read its response is closed all the same:
    /// others without a token must get theirs, among them health probes.
    fn waits(&self) -> bool {
        if let Some(blocked) = self.blocked {
            return self.class == Class::Anonymous
                && self.phase != Phase::Evicted
                && self.clock.since(blocked) >= GRACE;
        }
        match self.phase {
            Phase::Idle => true,
            Phase::Head => self.clock.since(self.since) >= GRACE,
            Phase::Answering(_) | Phase::Evicted => false,
        }
    }

    fn enter(&mut self, phase: Phase) {
        self.phase = phase;
        self.since = self.clock.now();
    }
}
