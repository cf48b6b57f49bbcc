use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, OwnedSemaphorePermit};
use tokio::time::Instant;
use toolbus_mcp_server::TokenId;

use super::slots::{Class, Slots};
use super::{GRACE, HEAD_TIME, IDLE_TIME, REQUEST_TIME, WRITE_TIME};

/// One connection, as those see it who serve it: what it does, how long it may, and which place it takes.
#[derive(Debug)]
pub(crate) struct Link {
    /// By which it is found among the others.
    id: u64,
    remote: Option<IpAddr>,
    slots: Arc<Slots>,
    state: Mutex<State>,
    evicted: Notify,
}

#[derive(Debug)]
struct State {
    phase: Phase,
    /// When the phase began.
    since: Instant,
    /// Since when the client has taken nothing of what is written.
    blocked: Option<Instant>,
    /// What is left when the server stops.
    end: Option<Instant>,
    class: Class,
    /// The token that it has shown.
    token: Option<TokenId>,
    place: Option<OwnedSemaphorePermit>,
}

/// What a connection does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The head of a request is on its way, or the first one is awaited.
    Head,
    /// A request is answered, within the given time if there is one.
    Answering(Option<Duration>),
    /// The next request is awaited.
    Idle,
    /// It was told to end.
    Evicted,
}

/// Takes a connection off the books.
pub(super) struct Leaving(Arc<Link>);

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.slots.leave(self.0.id);
        self.0.state().place = None;
    }
}

impl Link {
    pub(super) fn new(id: u64, remote: Option<IpAddr>, slots: Arc<Slots>, place: OwnedSemaphorePermit) -> Self {
        let state = State {
            phase: Phase::Head,
            since: Instant::now(),
            blocked: None,
            end: None,
            class: Class::Stranger,
            token: None,
            place: Some(place),
        };
        Self { id, remote, slots, state: Mutex::new(state), evicted: Notify::new() }
    }

    /// The address of the client; absent on a Unix socket.
    pub(crate) const fn remote(&self) -> Option<IpAddr> {
        self.remote
    }

    /// Gives the connection a place among those that have shown a valid token: `token`, of whose connections there may
    /// be so many, or that of operators. Whether there is one.
    pub(crate) async fn vouch(&self, token: Option<TokenId>) -> bool {
        if self.is(Class::Known) {
            return true;
        }
        let place = match token {
            Some(token) => self.slots.place_of(token).await,
            None => self.slots.place_soon(Class::Known).await,
        };
        let is_there = self.take(place, Class::Known);
        if is_there {
            self.state().token = token;
        }
        is_there
    }

    /// Gives the connection a place among those of clients that need no token. Whether there is one.
    pub(crate) async fn welcome(&self) -> bool {
        self.is(Class::Known)
            || self.is(Class::Guest)
            || self.take(self.slots.place_soon(Class::Guest).await, Class::Guest)
    }

    /// Gives the connection a place among those that wait for their refusal. Whether there is one.
    pub(crate) fn slow_down(&self) -> bool {
        self.is(Class::Slowed) || self.take(self.slots.place(Class::Slowed), Class::Slowed)
    }

    /// Lets the present request take as long as it takes.
    pub(crate) fn take_any_time(&self) {
        if let Phase::Answering(limit) = &mut self.state().phase {
            *limit = None;
        }
    }

    /// Whether it has its place by this token.
    pub(super) fn is_of(&self, token: TokenId) -> bool {
        self.state().token == Some(token)
    }

    fn is(&self, class: Class) -> bool {
        self.state().class == class
    }

    /// Takes another place, if it is given one, and leaves the present one to others.
    fn take(&self, place: Option<OwnedSemaphorePermit>, class: Class) -> bool {
        let is_there = place.is_some();
        if is_there {
            let mut state = self.state();
            (state.class, state.place) = (class, place);
        }
        is_there
    }

    pub(super) fn leave_on_drop(self: &Arc<Self>) -> Leaving {
        Leaving(Arc::clone(self))
    }

    /// The first bytes have come. Tells operators of a client that mistakes this port for another.
    pub(super) fn began(&self, bytes: &[u8]) {
        let protocol = match bytes {
            [0x16, 0x03, ..] => "TLS",
            [b'A', b'M', b'Q', b'P', ..] => "AMQP",
            _ => return,
        };
        self.slots.speaks(protocol, self.remote);
    }

    /// Bytes have come.
    pub(super) fn heard(&self) {
        let mut state = self.state();
        if state.phase == Phase::Idle {
            state.enter(Phase::Head);
        }
    }

    /// A request is there.
    pub(super) fn begin(&self) {
        self.state().enter(Phase::Answering(Some(REQUEST_TIME)));
    }

    /// All of an answer is on its way, though much of it may not have left yet.
    pub(super) fn answered(&self) {
        self.state().enter(Phase::Idle);
    }

    /// Whether the client takes what is written, told when that changes.
    pub(super) fn wrote(&self, is_blocked: bool) {
        let mut state = self.state();
        state.blocked = is_blocked.then(Instant::now);
        if state.phase == Phase::Idle {
            // It rests from the end of its answer on, not while it takes that.
            state.since = Instant::now();
        }
    }

    /// The server stops: whatever is under way has as long as any request.
    pub(super) fn stop(&self) {
        self.state().end = Some(Instant::now() + REQUEST_TIME);
    }

    /// When the connection is to be closed, as things are.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let state = self.state();
        let limit = match state.phase {
            Phase::Head => Some(HEAD_TIME),
            Phase::Answering(limit) => limit,
            Phase::Idle => Some(IDLE_TIME),
            Phase::Evicted => Some(Duration::ZERO),
        };
        let times = [limit.map(|limit| state.since + limit), state.blocked.map(|since| since + WRITE_TIME), state.end];
        times.into_iter().flatten().min()
    }

    /// Since when it could have been ended without a loss, if it can and is of this class. One that takes no answer comes
    /// after all that wait for a request.
    pub(super) fn waits_since(&self, class: Class) -> Option<(bool, Instant)> {
        let state = self.state();
        let waits = state.class == class && state.waits();
        waits.then(|| (state.blocked.is_some(), state.blocked.unwrap_or(state.since)))
    }

    /// Has it closed, if it still can be: a request that comes at the same moment is answered.
    pub(super) fn evict(&self) -> bool {
        let mut state = self.state();
        let waits = state.waits();
        if waits {
            state.enter(Phase::Evicted);
            self.evicted.notify_one();
        }
        waits
    }

    /// Until the connection may have been told to end.
    pub(super) async fn evicted(&self) {
        self.evicted.notified().await;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Whether it can end without a loss. A head that has only just begun may be here as a whole, and not read yet; and of an
    /// answer, something may be left. A stranger that takes nothing of it loses its place all the same: others that
    /// say no more must get their answers, and probes of this daemon's health are among them.
    fn waits(&self) -> bool {
        if let Some(blocked) = self.blocked {
            return self.class == Class::Stranger && self.phase != Phase::Evicted && blocked.elapsed() >= GRACE;
        }
        match self.phase {
            Phase::Idle => true,
            Phase::Head => self.since.elapsed() >= GRACE,
            Phase::Answering(_) | Phase::Evicted => false,
        }
    }

    fn enter(&mut self, phase: Phase) {
        self.phase = phase;
        self.since = Instant::now();
    }
}
