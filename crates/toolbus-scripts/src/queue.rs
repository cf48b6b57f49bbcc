//! Whose turn it is to run.

mod state;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::oneshot;

use state::State;

/// How much runs and waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Runs at a time; at least one.
    pub running: usize,
    /// Waiting at a time, of one owner.
    pub waiting_per_owner: usize,
    /// Waiting at a time, of all owners.
    pub waiting: usize,
}

/// Gives turns: to the owner of whom the fewest run, among those in turn, and within an owner to the first who came.
///
/// So one with a hundred waiting delays another's first by no more than the one run that ends soonest.
#[derive(Clone)]
pub struct FairQueue {
    state: Arc<Mutex<State<Given>>>,
}

/// Why there was no turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum QueueError {
    /// Too many wait already.
    #[error("too many are waiting")]
    Full,
    /// None came in time.
    #[error("no turn came in time")]
    TooLate,
}

/// The right to run. Dropping it gives the next one its turn.
pub struct Turn {
    queue: FairQueue,
    owner: Arc<str>,
    /// Whether it was never taken, and somebody else was told so already.
    is_void: bool,
}

/// How a turn gets to who waits for it.
type Given = oneshot::Sender<Turn>;

impl FairQueue {
    /// A queue in which nobody waits.
    #[must_use]
    pub fn new(bounds: Bounds) -> Self {
        Self { state: Arc::new(Mutex::new(State::new(bounds))) }
    }

    /// Waits for a turn of `owner`, at most until `deadline`. Dropping the future gives the place up.
    ///
    /// # Errors
    ///
    /// When too many wait already, or no turn comes in time.
    pub async fn acquire(&self, owner: &Arc<str>, deadline: Instant) -> Result<Turn, QueueError> {
        let (given, turn) = oneshot::channel();
        let place = {
            let mut state = self.state();
            if state.begin_at_once(owner) {
                drop(state);
                return Ok(self.turn(Arc::clone(owner)));
            }
            let number = state.wait(owner, given).ok_or(QueueError::Full)?;
            Place { queue: self, owner, number }
        };
        // A turn that was given when this is dropped is dropped with `turn`, and goes to the next.
        let turn = tokio::time::timeout_at(deadline.into(), turn).await;
        drop(place);
        match turn {
            Ok(Ok(turn)) => Ok(turn),
            _ => Err(QueueError::TooLate),
        }
    }

    /// How many wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.state().waiting()
    }

    /// How many run.
    #[must_use]
    pub fn running(&self) -> usize {
        self.state().running()
    }

    fn turn(&self, owner: Arc<str>) -> Turn {
        Turn { queue: self.clone(), owner, is_void: false }
    }

    /// Ends the run of `owner`, and gives its place to the next who still waits for one.
    fn end(&self, owner: &str) {
        let mut ended = Some(Arc::<str>::from(owner));
        while let Some(owner) = ended.take() {
            let next = self.state().next(&owner);
            // Not under the lock: what cannot be given is dropped here.
            if let Some((owner, given)) = next
                && let Err(mut turn) = given.send(self.turn(owner))
            {
                turn.is_void = true;
                ended = Some(Arc::clone(&turn.owner));
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State<Given>> {
        // Nothing panics under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if !self.is_void {
            self.queue.end(&self.owner);
        }
    }
}

/// A place among those who wait.
struct Place<'a> {
    queue: &'a FairQueue,
    owner: &'a str,
    number: u64,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.queue.state().leave(self.owner, self.number);
    }
}

impl fmt::Debug for FairQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FairQueue").field("waiting", &self.waiting()).field("running", &self.running()).finish()
    }
}

impl fmt::Debug for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Turn").field(&self.owner).finish()
    }
}
