use std::collections::HashMap;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::link::Link;
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
            self.evict(Class::Stranger);
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
        let now = self.place(class);
        if now.is_some() || !self.evict(class) {
            return now;
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
        let _ = [Class::Stranger, Class::Guest, Class::Known].into_iter().any(|class| self.evict(class));
    }

    pub(super) fn leave(&self, id: u64) {
        self.links().remove(&id);
    }

    fn evict(&self, class: Class) -> bool {
        let longest = {
            let links = self.links();
            let waiting = links.iter().filter_map(|(id, link)| Some((link.waits_since(class)?, id, link)));
            waiting.min_by_key(|(since, id, _)| (*since, *id)).map(|(_, _, link)| Arc::clone(link))
        };
        longest.is_some_and(|link| link.evict())
    }

    fn links(&self) -> MutexGuard<'_, HashMap<u64, Arc<Link>>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
