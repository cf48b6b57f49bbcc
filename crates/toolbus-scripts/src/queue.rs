//! Fair queue of runs.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use tokio::sync::oneshot;

/// Limits of runs and waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Runs at a time; at least one.
    pub running: usize,
    /// Waiting at a time, of one owner.
    pub waiting_per_owner: usize,
    /// Waiting at a time, of all owners.
    pub waiting: usize,
}

/// A fair queue: the owner with the fewest runs is next, equal owners in turn; within an owner the first is next.
///
/// So one with a hundred waiting delays another's first by no more than the one run that ends soonest.
#[derive(Clone)]
pub struct FairQueue {
    state: Arc<Mutex<QueueState<TurnSender>>>,
}

/// Reason why there was no turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum QueueError {
    /// Too many wait already.
    #[error("too many are waiting")]
    Full,
    /// No turn came in time.
    #[error("no turn came in time")]
    TooLate,
}

/// The right to run. Dropping it gives the next one its turn.
pub struct Turn {
    queue: FairQueue,
    owner: Arc<str>,
    /// Whether the turn was never taken, and the next was notified already.
    is_void: bool,
}

/// Hands a turn to a waiting caller.
type TurnSender = oneshot::Sender<Turn>;

impl FairQueue {
    /// Creates an empty queue.
    #[must_use]
    pub fn new(bounds: Bounds) -> Self {
        Self { state: Arc::new(Mutex::new(QueueState::new(bounds))) }
    }

    /// Waits for a turn of `owner`, at most until `deadline`. Dropping the future leaves the queue.
    ///
    /// # Errors
    ///
    /// If as many wait as may, or the deadline passes.
    pub async fn acquire(&self, owner: &Arc<str>, deadline: Instant) -> Result<Turn, QueueError> {
        let (given, turn) = oneshot::channel();
        let position = {
            let mut state = self.state.lock();
            if state.begin_at_once(owner) {
                drop(state);
                return Ok(self.turn(Arc::clone(owner)));
            }
            let number = state.wait(owner, given).ok_or(QueueError::Full)?;
            QueuePosition { queue: self, owner, number }
        };
        // A turn that was given when this is dropped is dropped with `turn`, and goes to the next.
        let turn = tokio::time::timeout_at(deadline.into(), turn).await;
        drop(position);
        match turn {
            Ok(Ok(turn)) => Ok(turn),
            _ => Err(QueueError::TooLate),
        }
    }

    /// Number of runs that wait for their turn.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.state.lock().waiting()
    }

    /// Number of runs under way.
    #[must_use]
    pub fn running(&self) -> usize {
        self.state.lock().running()
    }

    fn turn(&self, owner: Arc<str>) -> Turn {
        Turn { queue: self.clone(), owner, is_void: false }
    }

    /// Ends the run of `owner`, and gives its slot to the next waiting caller.
    fn end(&self, owner: &str) {
        let mut ended = Some(Arc::<str>::from(owner));
        while let Some(owner) = ended.take() {
            let next = self.state.lock().next(&owner);
            // Not under the lock: what cannot be given is dropped here.
            if let Some((owner, given)) = next
                && let Err(mut turn) = given.send(self.turn(owner))
            {
                turn.is_void = true;
                ended = Some(Arc::clone(&turn.owner));
            }
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if !self.is_void {
            self.queue.end(&self.owner);
        }
    }
}

/// A position in the queue.
struct QueuePosition<'a> {
    queue: &'a FairQueue,
    owner: &'a str,
    number: u64,
}

impl Drop for QueuePosition<'_> {
    fn drop(&mut self) {
        self.queue.state.lock().leave(self.owner, self.number);
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

/// Running and waiting callers. `T` notifies a waiting caller of its turn.
struct QueueState<T> {
    bounds: Bounds,
    /// Owners with runs, running or waiting.
    owners: HashMap<Arc<str>, OwnerQueue<T>>,
    /// Owners with waiting runs, in turn.
    in_turn: VecDeque<Arc<str>>,
    running: usize,
    waiting: usize,
    numbers: u64,
}

struct OwnerQueue<T> {
    running: usize,
    waiting: VecDeque<(u64, T)>,
}

impl<T> Default for OwnerQueue<T> {
    fn default() -> Self {
        Self { running: 0, waiting: VecDeque::new() }
    }
}

impl<T> QueueState<T> {
    fn new(bounds: Bounds) -> Self {
        let bounds = Bounds { running: bounds.running.max(1), ..bounds };
        Self { bounds, owners: HashMap::new(), in_turn: VecDeque::new(), running: 0, waiting: 0, numbers: 0 }
    }

    const fn waiting(&self) -> usize {
        self.waiting
    }

    const fn running(&self) -> usize {
        self.running
    }

    /// Takes a slot if one is free; then no call waits.
    fn begin_at_once(&mut self, owner: &Arc<str>) -> bool {
        let is_free = self.running < self.bounds.running;
        if is_free {
            self.running += 1;
            self.owners.entry(Arc::clone(owner)).or_default().running += 1;
        }
        is_free
    }

    /// Takes a position in the queue, and returns its number; `None` if the queue is full.
    fn wait(&mut self, owner: &Arc<str>, sender: T) -> Option<u64> {
        let waiting_of_owner = self.owners.get(owner).map_or(0, |owner| owner.waiting.len());
        if waiting_of_owner >= self.bounds.waiting_per_owner || self.waiting >= self.bounds.waiting {
            return None;
        }
        self.numbers += 1;
        self.waiting += 1;
        self.owners.entry(Arc::clone(owner)).or_default().waiting.push_back((self.numbers, sender));
        if waiting_of_owner == 0 {
            self.in_turn.push_back(Arc::clone(owner));
        }
        Some(self.numbers)
    }

    /// Leaves the queue, if the number is still in it.
    fn leave(&mut self, owner: &str, number: u64) {
        let Some(of_owner) = self.owners.get_mut(owner) else { return };
        let before = of_owner.waiting.len();
        of_owner.waiting.retain(|(other, _)| *other != number);
        if of_owner.waiting.len() < before {
            self.waiting -= 1;
            self.tidy(owner);
        }
    }

    /// Ends a run, and begins the next waiting one.
    fn next(&mut self, ended: &str) -> Option<(Arc<str>, T)> {
        self.running = self.running.saturating_sub(1);
        if let Some(owner) = self.owners.get_mut(ended) {
            owner.running = owner.running.saturating_sub(1);
        }
        let next = self.take();
        self.tidy(ended);
        next
    }

    fn take(&mut self) -> Option<(Arc<str>, T)> {
        let running = |owner: &Arc<str>| self.owners.get(owner).map_or(0, |owner| owner.running);
        // Of equals, the first.
        let (index, _) = self.in_turn.iter().enumerate().min_by_key(|(_, owner)| running(owner))?;
        let owner = self.in_turn.remove(index)?;
        let of_owner = self.owners.get_mut(&owner)?;
        let (_, sender) = of_owner.waiting.pop_front()?;
        of_owner.running += 1;
        if !of_owner.waiting.is_empty() {
            self.in_turn.push_back(Arc::clone(&owner));
        }
        self.waiting -= 1;
        self.running += 1;
        Some((owner, sender))
    }

    /// Removes an owner from the turns if none of its runs wait, and altogether if none run either.
    fn tidy(&mut self, owner: &str) {
        let Some(of_owner) = self.owners.get(owner) else { return };
        if of_owner.waiting.is_empty() {
            self.in_turn.retain(|other| **other != *owner);
            if of_owner.running == 0 {
                self.owners.remove(owner);
            }
        }
    }

    /// Whether the counters match the queues.
    #[cfg(test)]
    fn is_consistent(&self) -> bool {
        let running: usize = self.owners.values().map(|owner| owner.running).sum();
        let waiting: usize = self.owners.values().map(|owner| owner.waiting.len()).sum();
        let in_turn = self.in_turn.iter().all(|owner| !self.owners[owner].waiting.is_empty());
        let each_once = self.in_turn.len() == self.owners.values().filter(|owner| !owner.waiting.is_empty()).count();
        let none_idle = waiting == 0 || running == self.bounds.running;
        let none_left = self.owners.values().all(|owner| owner.running > 0 || !owner.waiting.is_empty());
        (running, waiting) == (self.running, self.waiting) && in_turn && each_once && none_idle && none_left
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::Arc;
    use std::time::{Duration, Instant};
    use toolbus_core::Clock;

    use futures_util::FutureExt as _;
    use futures_util::future::BoxFuture;
    use proptest::prelude::*;

    use super::{Bounds, FairQueue, QueueError, Turn};

    const BOUNDS: Bounds = Bounds { running: 1, waiting_per_owner: 100, waiting: 200 };

    type Acquiring<'a> = BoxFuture<'a, Result<Turn, QueueError>>;

    fn later() -> Instant {
        Clock::SYSTEM.now() + Duration::from_secs(60)
    }

    /// Begins to wait, or gets a turn at once.
    fn acquire<'a>(queue: &'a FairQueue, owner: &'static str) -> Acquiring<'a> {
        let mut acquiring = async move { queue.acquire(&Arc::from(owner), later()).await }.boxed();
        match (&mut acquiring).now_or_never() {
            Some(turn) => std::future::ready(turn).boxed(),
            None => acquiring,
        }
    }

    fn turn(acquiring: &mut Acquiring<'_>) -> Option<Turn> {
        acquiring.now_or_never().map(Result::unwrap)
    }

    #[tokio::test(start_paused = true)]
    async fn turns_of_one_owner_come_in_order() {
        let queue = FairQueue::new(BOUNDS);
        let mut current = turn(&mut acquire(&queue, "a")).unwrap();
        let mut waiting: Vec<_> = (0..5).map(|_| acquire(&queue, "a")).collect();
        while !waiting.is_empty() {
            assert!(waiting.iter_mut().all(|acquiring| turn(acquiring).is_none()));
            drop(current);
            current = turn(&mut waiting.remove(0)).unwrap();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_owner_with_a_hundred_waiting_delays_another_by_one_run() {
        for running in [1, 2, 8] {
            let queue = FairQueue::new(Bounds { running, ..BOUNDS });
            let mut turns: Vec<Turn> = (0..running).map(|_| turn(&mut acquire(&queue, "many")).unwrap()).collect();
            let mut many: VecDeque<_> = (0..100).map(|_| acquire(&queue, "many")).collect();
            let mut one = acquire(&queue, "one");
            let mut ended = 0;
            while turn(&mut one).is_none() {
                // The first of many is the first to have a turn.
                turns.extend((ended > 0).then(|| turn(&mut many.pop_front().unwrap()).unwrap()));
                assert!(turns.pop().is_some());
                ended += 1;
            }
            assert_eq!(ended, if running == 1 { 2 } else { 1 }, "{running} at a time");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn owners_take_turns() {
        let queue = FairQueue::new(BOUNDS);
        let mut current = turn(&mut acquire(&queue, "a")).unwrap();
        let owners = ["a", "a", "a", "b", "b", "c"];
        let mut waiting: Vec<_> = owners.map(|owner| (owner, acquire(&queue, owner))).into();
        let mut order = Vec::new();
        while !waiting.is_empty() {
            drop(current);
            let (index, next) =
                waiting.iter_mut().enumerate().find_map(|(at, (_, acquiring))| Some((at, turn(acquiring)?))).unwrap();
            order.push(waiting.remove(index).0);
            current = next;
        }
        assert_eq!(order, ["a", "b", "c", "a", "b", "a"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_turn_goes_to_the_owner_with_the_fewest_runs() {
        let queue = FairQueue::new(Bounds { running: 3, ..BOUNDS });
        let mut of_a: Vec<_> = (0..2).map(|_| turn(&mut acquire(&queue, "a")).unwrap()).collect();
        let _of_b = turn(&mut acquire(&queue, "b")).unwrap();
        let mut waiting = ["a", "b", "c"].map(|owner| acquire(&queue, owner));
        let mut next = || waiting.iter_mut().position(|acquiring| turn(acquiring).map(std::mem::forget).is_some());
        of_a.pop();
        assert_eq!(next(), Some(2), "none of c runs");
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_runs_are_limited() {
        let queue = FairQueue::new(Bounds { running: 1, waiting_per_owner: 2, waiting: 3 });
        let _running = turn(&mut acquire(&queue, "a")).unwrap();
        let mut waiting: Vec<_> = ["a", "a", "a", "b", "b"].map(|owner| acquire(&queue, owner)).into();
        let refused: Vec<_> =
            waiting.iter_mut().map(|acquiring| acquiring.now_or_never().map(Result::unwrap_err)).collect();
        let full = Some(QueueError::Full);
        assert_eq!(refused, [None, None, full, None, full]);
        assert_eq!((queue.running(), queue.waiting()), (1, 3));
    }

    #[tokio::test(start_paused = true)]
    async fn a_run_that_waits_too_long_fails_and_leaves_the_queue() {
        let queue = FairQueue::new(BOUNDS);
        let running = turn(&mut acquire(&queue, "a")).unwrap();
        let began = Clock::SYSTEM.now();
        let owner = Arc::from("a");
        assert_eq!(queue.acquire(&owner, later()).await.unwrap_err(), QueueError::TooLate);
        assert_eq!(Clock::SYSTEM.since(began).as_secs(), 60);
        assert_eq!((queue.running(), queue.waiting()), (1, 0));
        drop(running);
        assert_eq!(queue.running(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_dropped_wait_leaves_the_queue() {
        let queue = FairQueue::new(BOUNDS);
        let running = turn(&mut acquire(&queue, "a")).unwrap();
        let leaving = acquire(&queue, "b");
        let mut staying = acquire(&queue, "b");
        drop(leaving);
        assert_eq!(queue.waiting(), 1);
        drop(running);
        assert!(turn(&mut staying).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_turn_given_to_a_dropped_wait_goes_to_the_next() {
        let queue = FairQueue::new(BOUNDS);
        let running = turn(&mut acquire(&queue, "a")).unwrap();
        let leaving = acquire(&queue, "b");
        let mut staying = acquire(&queue, "c");
        drop(running);
        drop(leaving);
        let turn = turn(&mut staying).unwrap();
        assert_eq!((queue.running(), queue.waiting()), (1, 0));
        drop(turn);
        assert_eq!(queue.running(), 0);
    }

    /// Step of a random test of a queue.
    #[derive(Debug, Clone, Copy)]
    enum Step {
        Acquire(usize),
        GiveUp(usize),
        Take(usize),
        End(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => (0..4_usize).prop_map(Step::Acquire),
            1 => (0..20_usize).prop_map(Step::GiveUp),
            3 => (0..20_usize).prop_map(Step::Take),
            2 => (0..20_usize).prop_map(Step::End),
        ]
    }

    fn run_steps(queue: &FairQueue, steps: &[Step]) {
        let mut waiting: Vec<Acquiring<'_>> = Vec::new();
        let mut turns: Vec<Turn> = Vec::new();
        for step in steps {
            match *step {
                Step::Acquire(owner) => waiting.push(acquire(queue, ["a", "b", "c", "d"][owner])),
                Step::GiveUp(at) if at < waiting.len() => drop(waiting.remove(at)),
                Step::Take(at) if at < waiting.len() => {
                    if let Some(taken) = (&mut waiting[at]).now_or_never() {
                        drop(waiting.remove(at));
                        turns.extend(taken);
                    }
                }
                Step::End(at) if at < turns.len() => drop(turns.remove(at)),
                _ => {}
            }
            assert!(queue.state.lock().is_consistent(), "after {step:?}");
        }
        // A call that still waits gets a turn.
        while !(waiting.is_empty() && turns.is_empty()) {
            turns.clear();
            let before = waiting.len();
            for mut acquiring in std::mem::take(&mut waiting) {
                match (&mut acquiring).now_or_never() {
                    Some(taken) => turns.extend(taken),
                    None => waiting.push(acquiring),
                }
            }
            assert!(before == 0 || waiting.len() < before, "no waiting call got a turn");
        }
        assert_eq!((queue.running(), queue.waiting()), (0, 0));
    }

    proptest! {
        #[test]
        fn every_wait_gets_a_turn_and_no_slot_is_lost(
            running in 1..4_usize,
            steps in prop::collection::vec(step(), 0..80),
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
            let queue = FairQueue::new(Bounds { running, waiting_per_owner: 5, waiting: 12 });
            runtime.block_on(async { run_steps(&queue, &steps) });
        }
    }
}
