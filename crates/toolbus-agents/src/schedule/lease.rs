//! Which of the processes that share a store publishes what is due: the one that holds the lease.
//!
//! No clock of one process is compared with that of another. The holder writes another value every few seconds, and a
//! process that has seen one value for [`LEASE`] takes the lease. The holder's own authority ends earlier, by its own
//! clock, so that one that was stopped for a while knows that it holds the lease no more.

use std::sync::Arc;
use std::time::{Duration, Instant};

use toolbus_core::Clock;
use toolbus_core::store::{Store, StoreError};

use super::task_store::SCHEDULER;

/// Key of the lease.
const KEY: &str = "lease";
/// Time for which the same value is seen before another process takes the lease.
const LEASE: Duration = Duration::from_secs(10);
/// Time for which a value is good for its holder, from before it was written.
const AUTHORITY: Duration = Duration::from_secs(8);
/// Time between two values.
const RENEWAL: Duration = Duration::from_secs(2);
/// Value that a holder that has ended leaves behind.
const FREE: &[u8] = b"free";

/// A process's view of the lease.
pub(super) struct Lease {
    store: Arc<dyn Store>,
    clock: Clock,
    /// Names the process.
    id: String,
    /// Number of the next value.
    number: u64,
    held: Option<HeldLease>,
    /// A value of another process, and when it was first seen.
    seen: Option<(Vec<u8>, Instant)>,
}

struct HeldLease {
    value: Vec<u8>,
    renewed: Instant,
    until: Instant,
}

impl Lease {
    pub(super) fn new(store: Arc<dyn Store>, id: String, clock: Clock) -> Self {
        Self { store, clock, id, number: 0, held: None, seen: None }
    }

    /// Takes or renews the lease, if it can be had; until when this process may publish.
    ///
    /// # Errors
    ///
    /// If the store fails, and this process does not hold the lease any more.
    pub(super) async fn hold(&mut self) -> Result<Option<Instant>, StoreError> {
        let now = self.clock.now();
        if let Some(held) = &self.held {
            if self.clock.since(held.renewed) < RENEWAL {
                return Ok(Some(held.until));
            }
            let (expected, until) = (held.value.clone(), held.until);
            return match self.write(Some(&expected), now).await {
                Err(_) if self.clock.now() < until => Ok(Some(until)),
                result => result,
            };
        }
        let present = self.store.get(SCHEDULER, KEY).await?;
        if let Some(present) = present.as_ref().filter(|present| *present != FREE) {
            match &self.seen {
                Some((seen, since)) if seen == present => {
                    if self.clock.since(*since) < LEASE {
                        return Ok(None);
                    }
                }
                _ => {
                    self.seen = Some((present.clone(), now));
                    return Ok(None);
                }
            }
        }
        self.write(present.as_deref(), now).await
    }

    /// Leaves the lease to others at once.
    pub(super) async fn release(&mut self) {
        if let Some(held) = self.held.take() {
            // Where that fails, the lease ends with its time.
            let _ = self.store.replace(SCHEDULER, KEY, Some(&held.value), FREE.to_vec()).await;
        }
    }

    /// Replaces `expected` by the next value. After an error the same value is tried again: it may be there.
    async fn write(&mut self, expected: Option<&[u8]>, now: Instant) -> Result<Option<Instant>, StoreError> {
        let value = format!("{} {}", self.id, self.number).into_bytes();
        match self.store.replace(SCHEDULER, KEY, expected, value.clone()).await {
            Ok(true) => {
                self.number += 1;
                let until = now + AUTHORITY;
                (self.held, self.seen) = (Some(HeldLease { value, renewed: now, until }), None);
                Ok(Some(until))
            }
            Ok(false) => {
                self.held = None;
                Ok(None)
            }
            Err(error) => {
                self.held.take_if(|held| self.clock.now() >= held.until);
                Err(error)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use toolbus_store::MemoryStore;

    use super::*;

    fn two() -> (Lease, Lease, Clock) {
        let (store, clock): (Arc<dyn Store>, _) = (Arc::new(MemoryStore::default()), Clock::manual());
        let lease = |id: &str| Lease::new(Arc::clone(&store), id.to_owned(), clock);
        (lease("a"), lease("b"), clock)
    }

    #[tokio::test]
    async fn one_process_holds_the_lease_as_long_as_it_renews_it() {
        let (mut one, mut other, clock) = two();
        for _ in 0..20 {
            assert_eq!(one.hold().await, Ok(Some(clock.now() + AUTHORITY)));
            assert_eq!(other.hold().await, Ok(None));
            clock.advance(RENEWAL);
        }
    }

    #[tokio::test]
    async fn a_stopped_process_has_no_authority_when_another_takes_the_lease() {
        let (mut one, mut other, clock) = two();
        let until = one.hold().await.unwrap().unwrap();
        other.hold().await.unwrap();
        clock.advance(LEASE);
        assert!(clock.now() >= until, "the first one must know before the other one begins");
        assert!(other.hold().await.unwrap().is_some());
        assert_eq!(one.hold().await, Ok(None));
        assert_eq!(one.hold().await, Ok(None));
    }

    #[tokio::test]
    async fn a_lease_that_was_released_is_taken_at_once() {
        let (mut one, mut other, _) = two();
        one.hold().await.unwrap();
        assert_eq!(other.hold().await, Ok(None));
        one.release().await;
        assert!(other.hold().await.unwrap().is_some());
        assert_eq!(one.hold().await, Ok(None));
    }
}
