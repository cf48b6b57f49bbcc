//! Slots for connections, a pool for each class, and eviction of idle connections.

use std::collections::HashMap;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use toolbus_core::Clock;
use toolbus_core::throttle::Throttle;
use toolbus_mcp_server::TokenId;

use super::state::ConnectionState;
use super::{MAX_ANONYMOUS, MAX_GUESTS, MAX_KNOWN, MAX_SLOWED};

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
    pub(super) clock: Clock,
    connections: Mutex<HashMap<u64, Arc<ConnectionState>>>,
    next: AtomicU64,
    foreign: Throttle,
}

/// What a connection has shown of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
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
        self.connections().insert(id, Arc::clone(&state));
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
    pub(super) fn slot(&self, class: Class) -> Option<OwnedSemaphorePermit> {
        Arc::clone(self.pool(class)).try_acquire_owned().ok()
    }

    /// A free slot of `class`, or that of the connection that has been idle longest.
    pub(super) async fn slot_soon(&self, class: Class) -> Option<OwnedSemaphorePermit> {
        match self.slot(class) {
            None => self.slot_after(class, |state| state.waits_since(class)).await,
            now => now,
        }
    }

    /// A slot for a connection with this token. A token may hold as many slots as are free: one is always left for another
    /// token, and tokens that compete get equal shares. Beyond that, an idle connection of the same token is evicted.
    pub(super) async fn slot_for_token(&self, token: TokenId) -> Option<OwnedSemaphorePermit> {
        let count = self.connections().values().filter(|state| state.is_of(token)).count();
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

    pub(super) fn leave(&self, id: u64) {
        self.connections().remove(&id);
    }

    /// Logs that a client speaks another protocol than HTTP.
    pub(super) fn speaks(&self, protocol: &str, remote: Option<IpAddr>) {
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
            let connections = self.connections();
            let waiting = connections.iter().filter_map(|(id, state)| Some((waits_since(state)?, id, state)));
            waiting.min_by_key(|(since, id, _)| (*since, *id)).map(|(_, _, state)| Arc::clone(state))
        };
        longest.is_some_and(|state| state.evict())
    }

    fn connections(&self) -> MutexGuard<'_, HashMap<u64, Arc<ConnectionState>>> {
        self.connections.lock()
    }
}
