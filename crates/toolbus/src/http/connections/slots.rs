use std::collections::HashMap;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};
use toolbus_core::log::Throttle;
use toolbus_mcp_server::TokenId;

use super::state::Link;
use super::{MAX_GUESTS, MAX_KNOWN, MAX_SLOWED, MAX_STRANGERS};

/// Longest wait for the place of a connection that was told to end.
const EVICTION_TIME: Duration = Duration::from_secs(1);
/// Time between two looks for one that can be told to, while a new one waits.
const RETRY: Duration = Duration::from_millis(20);

/// The places that connections take, so that those who have shown nothing leave room for those who have.
#[derive(Debug)]
pub(super) struct Slots {
    strangers: Arc<Semaphore>,
    known: Arc<Semaphore>,
    guests: Arc<Semaphore>,
    slowed: Arc<Semaphore>,
    links: Mutex<HashMap<u64, Arc<Link>>>,
    next: AtomicU64,
    foreign: Throttle,
}

/// What a connection has shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    /// No token, so far.
    Stranger,
    /// A valid token.
    Known,
    /// That it may enter without a token.
    Guest,
    /// A wrong token.
    Slowed,
}

impl Slots {
    pub(super) fn new() -> Self {
        let places = |count| Arc::new(Semaphore::new(count));
        Self {
            strangers: places(MAX_STRANGERS),
            known: places(MAX_KNOWN),
            guests: places(MAX_GUESTS),
            slowed: places(MAX_SLOWED),
            links: Mutex::default(),
            next: AtomicU64::new(0),
            foreign: Throttle::default(),
        }
    }

    /// A place for a new connection, once there is one.
    pub(super) async fn enter(self: &Arc<Self>, remote: Option<IpAddr>) -> Option<Arc<Link>> {
        let place = match self.place(Class::Stranger) {
            Some(place) => place,
            None => self.wait().await?,
        };
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let link = Arc::new(Link::new(id, remote, Arc::clone(self), place));
        self.links().insert(id, Arc::clone(&link));
        Some(link)
    }

    /// The next place of a stranger.
    async fn wait(&self) -> Option<OwnedSemaphorePermit> {
        let place = Arc::clone(&self.strangers).acquire_owned();
        let mut place = pin!(place);
        loop {
            self.evict(|link| link.waits_since(Class::Stranger));
            // What cannot make room now can soon.
            if let Ok(place) = timeout(RETRY, place.as_mut()).await {
                return place.ok();
            }
        }
    }

    /// A place that is free now.
    pub(super) fn place(&self, class: Class) -> Option<OwnedSemaphorePermit> {
        Arc::clone(self.places(class)).try_acquire_owned().ok()
    }

    /// A place that is free now, or that of the connection that has waited longest for a request.
    pub(super) async fn place_soon(&self, class: Class) -> Option<OwnedSemaphorePermit> {
        match self.place(class) {
            None => self.place_after(class, |link| link.waits_since(class)).await,
            now => now,
        }
    }

    /// A place for a connection that has shown this token, of which there may be as many as places are free. So there is
    /// always one left for another token, and several that want all get equal shares. Beyond that, a connection of the
    /// same token makes room.
    pub(super) async fn place_of(&self, token: TokenId) -> Option<OwnedSemaphorePermit> {
        let count = self.links().values().filter(|link| link.is_of(token)).count();
        if count == 0 || count < self.known.available_permits() {
            return self.place_soon(Class::Known).await;
        }
        self.place_after(Class::Known, |link| link.waits_since(Class::Known).filter(|_| link.is_of(token))).await
    }

    /// The place of the connection that has waited longest, of those for which `waits_since` says so.
    async fn place_after(
        &self,
        class: Class,
        waits_since: impl Fn(&Link) -> Option<(bool, Instant)>,
    ) -> Option<OwnedSemaphorePermit> {
        if !self.evict(waits_since) {
            return None;
        }
        let place = Arc::clone(self.places(class)).acquire_owned();
        timeout(EVICTION_TIME, place).await.ok()?.ok()
    }

    const fn places(&self, class: Class) -> &Arc<Semaphore> {
        match class {
            Class::Stranger => &self.strangers,
            Class::Known => &self.known,
            Class::Guest => &self.guests,
            Class::Slowed => &self.slowed,
        }
    }

    /// Ends what waits for a request, because the system has nothing left.
    pub(super) fn make_room(&self) {
        let classes = [Class::Stranger, Class::Guest, Class::Known];
        let _ = classes.into_iter().any(|class| self.evict(|link| link.waits_since(class)));
    }

    pub(super) fn leave(&self, id: u64) {
        self.links().remove(&id);
    }

    /// Notes that a client begins with another protocol than HTTP.
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

    fn evict(&self, waits_since: impl Fn(&Link) -> Option<(bool, Instant)>) -> bool {
        let longest = {
            let links = self.links();
            let waiting = links.iter().filter_map(|(id, link)| Some((waits_since(link)?, id, link)));
            waiting.min_by_key(|(since, id, _)| (*since, *id)).map(|(_, _, link)| Arc::clone(link))
        };
        longest.is_some_and(|link| link.evict())
    }

    fn links(&self) -> MutexGuard<'_, HashMap<u64, Arc<Link>>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
