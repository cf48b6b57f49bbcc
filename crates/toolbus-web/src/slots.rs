//! Slots for what takes much memory: a few in all, and fewer for each owner.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Slots, granted in the order of their requests. An owner waits for its own first, so that it is never more than
/// `of_owner` times ahead of another.
#[derive(Debug)]
pub(crate) struct FairSlots {
    of_owner: usize,
    owners: Mutex<HashMap<Arc<str>, Weak<Semaphore>>>,
    all: Arc<Semaphore>,
}

/// A slot, taken until this is dropped.
#[derive(Debug)]
pub(crate) struct Slot {
    _of_owner: Option<OwnedSemaphorePermit>,
    _of_all: Option<OwnedSemaphorePermit>,
}

impl FairSlots {
    pub(crate) fn new(of_owner: usize, all: usize) -> Self {
        Self { of_owner, owners: Mutex::default(), all: Arc::new(Semaphore::new(all)) }
    }

    /// Waits for a slot.
    pub(crate) async fn take(&self, owner: &Arc<str>) -> Slot {
        // Neither semaphore is ever closed.
        let of_owner = self.slots_of(owner).acquire_owned().await.ok();
        let of_all = Arc::clone(&self.all).acquire_owned().await.ok();
        Slot { _of_owner: of_owner, _of_all: of_all }
    }

    fn slots_of(&self, owner: &Arc<str>) -> Arc<Semaphore> {
        let mut owners = self.owners.lock();
        owners.retain(|_, slots| slots.strong_count() > 0);
        owners.get(owner).and_then(Weak::upgrade).unwrap_or_else(|| {
            let slots = Arc::new(Semaphore::new(self.of_owner));
            owners.insert(Arc::clone(owner), Arc::downgrade(&slots));
            slots
        })
    }
}

#[cfg(test)]
mod tests {
    use std::task::Poll;

    use tokio_util::task::TaskTracker;

    use super::*;

    #[tokio::test]
    async fn an_owner_that_asks_for_many_leaves_the_next_slot_to_another() {
        let slots = Arc::new(FairSlots::new(1, 2));
        let (ana, bob) = (Arc::<str>::from("ana"), Arc::<str>::from("bob"));
        let first = slots.take(&ana).await;
        let waiting = TaskTracker::new();
        for _ in 0..100 {
            let (slots, ana) = (Arc::clone(&slots), Arc::clone(&ana));
            waiting.spawn(async move { drop(slots.take(&ana).await) });
        }
        tokio::task::yield_now().await;
        let of_bob = slots.take(&bob).await;
        let mut more = std::pin::pin!(slots.take(&bob));
        assert!(matches!(futures_poll(more.as_mut()).await, Poll::Pending));
        drop((first, of_bob));
        drop(more.await);
        waiting.close();
        waiting.wait().await;
        drop(slots.take(&ana).await);
        assert_eq!(slots.owners.lock().len(), 1, "owners without slots are forgotten");
    }

    async fn futures_poll<F: Future>(mut future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
        std::future::poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await
    }
}
