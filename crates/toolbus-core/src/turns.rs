//! Turns for heavy work: whatever reads, renders, parses, validates, splits, redacts or compresses more than [`SMALL`]
//! of data that came from outside. A few pieces run at a time, on threads beside those that everything else runs on.
//!
//! The next turn is that of the owner with the fewest running pieces, and among such owners of the one whose work has
//! taken the least time. An owner that comes anew begins where the last one that was served stood, so that it waits for
//! one piece of each other owner at most, however many pieces of theirs wait.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::oneshot;

use crate::Clock;
use crate::failure::{self, Cause, ToolFailure};

/// Data of others up to this size is worked on at once, in bytes.
pub const SMALL: usize = 64 * 1024;
/// Pieces of work that wait for their turn before anything of their calls has begun.
const MAX_WAITING: usize = 256;
/// Bytes that those hold together. An owner has at most half of what is free of either.
const MAX_WAITING_BYTES: usize = 64 * 1024 * 1024;
/// Bytes of outcomes that are kept until they are sent. While an owner keeps half of it, its work waits.
const MAX_KEPT: usize = 64 * 1024 * 1024;
/// When a refused caller may try again.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Gives turns. Clones give the same ones.
#[derive(Clone)]
pub struct Turns(Arc<TurnsState>);

struct TurnsState {
    /// Pieces of work that run at a time.
    slots: usize,
    queues: Mutex<Queues>,
}

/// The owners that have work, and what all of them use.
#[derive(Default)]
struct Queues {
    owners: HashMap<Arc<str>, Owner>,
    running: usize,
    waiting: usize,
    waiting_bytes: usize,
    kept: usize,
    /// The time that the owner served last had used before.
    level: Duration,
    next_number: u64,
}

#[derive(Default)]
struct Owner {
    running: usize,
    kept: usize,
    waiting_bytes: usize,
    /// Time that its work took, from [`Queues::level`] on.
    used: Duration,
    queue: VecDeque<Waiter>,
}

struct Waiter {
    number: u64,
    bytes: usize,
    given: oneshot::Sender<Turn>,
}

/// A turn. The next piece of work begins once it is dropped.
pub struct Turn {
    turns: Turns,
    owner: Arc<str>,
    /// When it began; `None` once the work is done, and bytes of its outcome are kept.
    began: Option<Instant>,
    kept: usize,
}

/// A piece of work that waits; it leaves the queue when dropped.
struct Waiting<'a> {
    turns: &'a Turns,
    owner: Arc<str>,
    number: u64,
    turn: oneshot::Receiver<Turn>,
}

impl Turns {
    /// So many turns at a time.
    fn of(slots: usize) -> Self {
        Self(Arc::new(TurnsState { slots, queues: Mutex::default() }))
    }

    /// Waits for a turn during at most half of the time until `deadline`, does the work on a thread of its own, and
    /// returns its outcome with the turn. `owner` identifies the agent for fairness; `bytes` is what the work holds
    /// while it waits. Work that began runs to its end, with its turn.
    ///
    /// # Errors
    ///
    /// [`Cause::Overloaded`] when too many wait already, or no turn comes in time; [`Cause::Expired`] at `deadline`.
    pub async fn run<T: Send + 'static>(
        &self,
        owner: Arc<str>,
        bytes: usize,
        deadline: Instant,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<(T, Turn), ToolFailure> {
        let now = Clock::SYSTEM.now();
        let latest = now + deadline.saturating_duration_since(now) / 2;
        let turn = self.turn(owner, bytes, true, latest).await?;
        turn.work(deadline, work)
            .await?
            .ok_or_else(|| ToolFailure::new(Cause::Expired, "The deadline of the call passed while it was prepared."))
    }

    /// The same for a call that has begun: its work is never refused because others wait, whose number and size their
    /// calls bound, and the wait for a turn and the work end at `latest`. Work on at most [`SMALL`] bytes is done at
    /// once, on the thread of the caller of this function.
    ///
    /// # Errors
    ///
    /// [`Cause::Unavailable`] if it is not done by then.
    pub async fn finish<T: Send + 'static>(
        &self,
        owner: Arc<str>,
        bytes: usize,
        latest: Instant,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ToolFailure> {
        if bytes <= SMALL {
            return Ok(work());
        }
        let late = || {
            let text = "The tool ran, and its result is large: too many others are in work to read it. Ask for less, or \
                        try again later.";
            ToolFailure::new(Cause::Unavailable, text).with_retry_after(RETRY_AFTER)
        };
        let turn = self.turn(owner, 0, false, latest).await.map_err(|_| late())?;
        turn.work(latest, work).await?.map(|(outcome, _)| outcome).ok_or_else(late)
    }

    /// Waits for a turn until `latest`. What `may_be_refused` is refused when too much waits.
    async fn turn(
        &self,
        owner: Arc<str>,
        bytes: usize,
        may_be_refused: bool,
        latest: Instant,
    ) -> Result<Turn, ToolFailure> {
        let mut waiting = {
            let (given, turn) = oneshot::channel();
            let mut queues = self.0.queues.lock();
            if may_be_refused && !queues.admits(&owner, bytes) {
                return Err(overloaded("Too many calls wait for their turn to be checked, read or listed."));
            }
            let number = queues.wait(&owner, bytes, given);
            Waiting { turns: self, owner, number, turn }
        };
        self.give();
        let turn = tokio::time::timeout_at(latest.into(), &mut waiting.turn).await;
        match turn {
            Ok(Ok(turn)) => Ok(turn),
            _ => Err(overloaded("No turn to check, read or list this call came in time.")),
        }
    }

    /// Gives the turns that are free.
    fn give(&self) {
        loop {
            let next = self.0.queues.lock().next(self.0.slots);
            let Some((owner, waiter)) = next else { return };
            let began = Some(Clock::SYSTEM.now());
            // One whose work waits no more is dropped here, which gives it to the next.
            let _ = waiter.given.send(Turn { turns: self.clone(), owner, began, kept: 0 });
        }
    }
}

impl Default for Turns {
    /// Half as many turns at a time as there are processors, so that the work leaves the other half to everything else.
    fn default() -> Self {
        Self::of(std::thread::available_parallelism().map_or(1, |processors| processors.get().div_ceil(2)))
    }
}

impl Turn {
    /// Does work in this turn; `None` if it is not done by `deadline`.
    async fn work<T: Send + 'static>(
        self,
        deadline: Instant,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<Option<(T, Self)>, ToolFailure> {
        let working = tokio::task::spawn_blocking(move || (work(), self));
        match tokio::time::timeout_at(deadline.into(), working).await {
            Ok(Ok(done)) => Ok(Some(done)),
            Ok(Err(broken)) => Err(match broken.try_into_panic() {
                Ok(panic) => failure::panicked(&*panic),
                Err(_) => ToolFailure::new(Cause::Cancelled, "The daemon shut down."),
            }),
            Err(_) => Ok(None),
        }
    }

    /// Lets the next work begin, and counts so many bytes of the outcome as kept until this is dropped.
    pub(crate) fn keep(&mut self, bytes: usize) {
        {
            let mut queues = self.turns.0.queues.lock();
            queues.kept += bytes;
            queues.owner(&self.owner).kept += bytes;
            self.kept += bytes;
            queues.end(&self.owner, self.began.take());
        }
        self.turns.give();
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        {
            let mut queues = self.turns.0.queues.lock();
            queues.kept = queues.kept.saturating_sub(self.kept);
            let owner = queues.owner(&self.owner);
            owner.kept = owner.kept.saturating_sub(self.kept);
            queues.end(&self.owner, self.began);
        }
        self.turns.give();
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        // A turn that came meanwhile is dropped with its channel.
        self.turns.0.queues.lock().leave(&self.owner, self.number);
    }
}

impl Queues {
    fn owner(&mut self, owner: &Arc<str>) -> &mut Owner {
        let level = self.level;
        self.owners.entry(Arc::clone(owner)).or_insert_with(|| Owner { used: level, ..Owner::default() })
    }

    /// Whether so many bytes more may wait: of one owner half of what is free, so that others find some.
    fn admits(&self, owner: &str, bytes: usize) -> bool {
        let (waiting, waiting_bytes) =
            self.owners.get(owner).map_or((0, 0), |owner| (owner.queue.len(), owner.waiting_bytes));
        waiting < MAX_WAITING.saturating_sub(self.waiting)
            && waiting_bytes + bytes <= MAX_WAITING_BYTES.saturating_sub(self.waiting_bytes)
    }

    fn wait(&mut self, owner: &Arc<str>, bytes: usize, given: oneshot::Sender<Turn>) -> u64 {
        let number = self.next_number;
        self.next_number += 1;
        self.waiting += 1;
        self.waiting_bytes += bytes;
        let level = self.level;
        let owner = self.owner(owner);
        if owner.running == 0 && owner.queue.is_empty() {
            owner.used = owner.used.max(level);
        }
        owner.waiting_bytes += bytes;
        owner.queue.push_back(Waiter { number, bytes, given });
        number
    }

    /// The work whose turn it is, if a slot is free.
    fn next(&mut self, slots: usize) -> Option<(Arc<str>, Waiter)> {
        if self.running >= slots || self.kept >= MAX_KEPT {
            return None;
        }
        let can_run = self.owners.iter().filter(|(_, owner)| owner.kept < MAX_KEPT / 2);
        let rank = |owner: &Owner| Some((owner.running, owner.used, owner.queue.front()?.number));
        let next = can_run.filter_map(|(name, owner)| Some((rank(owner)?, name))).min_by_key(|(rank, _)| *rank);
        let ((_, used, number), name) = next?;
        let name = Arc::clone(name);
        let waiter = self.take(&name, number)?;
        self.level = self.level.max(used);
        self.running += 1;
        self.owner(&name).running += 1;
        Some((name, waiter))
    }

    /// Takes work out of the queue, if it is there.
    fn take(&mut self, name: &Arc<str>, number: u64) -> Option<Waiter> {
        let owner = self.owners.get_mut(name)?;
        let position = owner.queue.binary_search_by_key(&number, |waiter| waiter.number).ok()?;
        let waiter = owner.queue.remove(position)?;
        owner.waiting_bytes -= waiter.bytes;
        self.waiting -= 1;
        self.waiting_bytes -= waiter.bytes;
        Some(waiter)
    }

    fn leave(&mut self, name: &Arc<str>, number: u64) {
        self.take(name, number);
        self.forget(name);
    }

    /// Ends work that began then; `None`: that has ended before.
    fn end(&mut self, name: &Arc<str>, began: Option<Instant>) {
        if let Some(began) = began {
            self.running = self.running.saturating_sub(1);
            let owner = self.owner(name);
            owner.running = owner.running.saturating_sub(1);
            owner.used += Clock::SYSTEM.since(began);
        }
        self.forget(name);
    }

    /// Forgets an owner that has nothing here.
    fn forget(&mut self, name: &Arc<str>) {
        let is_idle = |owner: &Owner| owner.running == 0 && owner.kept == 0 && owner.queue.is_empty();
        if self.owners.get(name).is_some_and(is_idle) {
            self.owners.remove(name);
        }
    }
}

/// Whether a value takes at most [`SMALL`] bytes in memory. No more than that of it is looked at.
#[must_use]
pub fn is_small(value: &Value) -> bool {
    fits(value, &mut { SMALL })
}

/// Whether a value has room, which is then less; values beyond it are not looked at.
fn fits(value: &Value, room: &mut usize) -> bool {
    let own = match value {
        Value::String(text) => text.len(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => 0,
    };
    let Some(rest) = room.checked_sub(own + size_of::<Value>()) else { return false };
    *room = rest;
    match value {
        Value::Array(elements) => elements.iter().all(|element| fits(element, room)),
        Value::Object(fields) => fields.iter().all(|(name, value)| {
            *room = room.saturating_sub(name.len());
            fits(value, room)
        }),
        _ => true,
    }
}

impl fmt::Debug for Turns {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Turns")
    }
}

fn overloaded(reason: &str) -> ToolFailure {
    ToolFailure::new(Cause::Overloaded, format!("{reason} Try again later.")).with_retry_after(RETRY_AFTER)
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn soon() -> Instant {
        Clock::SYSTEM.now() + Duration::from_secs(10)
    }

    /// One turn at a time, and that one.
    async fn taken() -> (Turns, Turn) {
        let turns = Turns::of(1);
        let ((), turn) = turns.run("first".into(), 0, soon(), || ()).await.unwrap();
        (turns, turn)
    }

    /// Work that notes in `done` whose it was.
    fn noted<'a>(
        turns: &'a Turns,
        owner: &'static str,
        done: &Arc<Mutex<Vec<&'static str>>>,
    ) -> impl Future<Output = ()> + 'a {
        let done = Arc::clone(done);
        turns.run(owner.into(), 0, soon(), move || done.lock().push(owner)).map(|ran| drop(ran.unwrap()))
    }

    #[tokio::test]
    async fn waiting_work_runs_when_the_turn_before_it_ends() {
        let (turns, turn) = taken().await;
        let mut waits = std::pin::pin!(turns.run("bob".into(), 0, soon(), || 8));
        assert!(waits.as_mut().now_or_never().is_none());
        drop(turn);
        assert_eq!(waits.await.unwrap().0, 8);
    }

    #[tokio::test]
    async fn an_owner_waits_for_one_piece_of_another_and_not_for_all_earlier_ones() {
        let (turns, turn) = taken().await;
        let done = Arc::default();
        let flood = futures_util::future::join_all((0..4).map(|_| noted(&turns, "ana", &done)));
        let mut all = std::pin::pin!(futures_util::future::join(flood, noted(&turns, "bob", &done)));
        assert!(all.as_mut().now_or_never().is_none());
        drop(turn);
        all.await;
        assert_eq!(*done.lock(), ["ana", "bob", "ana", "ana", "ana"]);
    }

    #[tokio::test]
    async fn the_owner_with_the_least_time_used_is_next() {
        let (turns, turn) = taken().await;
        let done = Arc::default();
        let work = |owner| noted(&turns, owner, &done);
        let first = futures_util::future::join3(work("ana"), work("ana"), work("bob"));
        let mut all = std::pin::pin!(first);
        assert!(all.as_mut().now_or_never().is_none());
        turns.0.queues.lock().owner(&"ana".into()).used += Duration::from_secs(1);
        drop(turn);
        all.await;
        assert_eq!(*done.lock(), ["bob", "ana", "ana"]);
    }

    #[tokio::test]
    async fn one_owner_leaves_slots_and_bytes_of_the_queue_to_others() {
        let (turns, _turn) = taken().await;
        for bytes in [0, MAX_WAITING_BYTES / 64] {
            let mut held = Vec::new();
            let mut waits = async |owner: &'static str| {
                let mut waiting = Box::pin(turns.run(owner.into(), bytes, soon(), || ()));
                let refused = (&mut waiting).now_or_never();
                held.push(waiting);
                refused.is_none()
            };
            while waits("ana").await {}
            assert!(waits("bob").await, "{bytes}");
        }
        assert_eq!(turns.0.queues.lock().owners.len(), 1, "what waits no more is forgotten");
    }

    #[tokio::test]
    async fn an_owner_waits_while_many_bytes_of_its_outcomes_are_not_sent() {
        let (turns, mut turn) = taken().await;
        turn.keep(MAX_KEPT / 2);
        let mut waits = std::pin::pin!(turns.run("first".into(), 0, soon(), || ()));
        assert!(waits.as_mut().now_or_never().is_none());
        turns.run("other".into(), 0, soon(), || ()).await.unwrap();
        drop(turn);
        waits.await.unwrap();
    }

    #[tokio::test]
    async fn work_of_begun_calls_is_never_refused_for_a_full_queue_and_runs_at_once_if_small() {
        let (turns, turn) = taken().await;
        let mut waiting: Vec<_> =
            (0..=MAX_WAITING).map(|_| Box::pin(turns.finish("ana".into(), SMALL + 1, soon(), || 1))).collect();
        assert!(waiting.iter_mut().all(|waiting| waiting.now_or_never().is_none()));
        assert_eq!(turns.finish("ana".into(), SMALL, soon(), || 2).now_or_never().unwrap(), Ok(2));
        drop(turn);
        assert_eq!(futures_util::future::try_join_all(waiting).await.unwrap().len(), MAX_WAITING + 1);
    }

    #[tokio::test]
    async fn work_that_is_not_done_in_time_fails_as_expired_and_keeps_its_turn() {
        let turns = Turns::of(1);
        let (finish, finished) = std::sync::mpsc::channel::<()>();
        let late = turns.run("ana".into(), 0, Clock::SYSTEM.now() + Duration::from_millis(50), move || finished.recv());
        assert_eq!(late.await.map(|_| ()).map_err(|failure| failure.cause), Err(Cause::Expired));
        let tries = turns.finish("bob".into(), SMALL + 1, Clock::SYSTEM.now(), || ()).await;
        assert_eq!(tries.map_err(|failure| failure.cause), Err(Cause::Unavailable));
        drop(finish);
        assert!(turns.run("bob".into(), 0, soon(), || ()).await.is_ok());
    }

    #[tokio::test]
    async fn work_that_panics_is_a_failure_and_gives_its_turn_back() {
        let turns = Turns::of(1);
        let broken = turns.run("ana".into(), 0, soon(), || panic!("on purpose")).await.map(|((), _)| ());
        assert_eq!(broken.map_err(|failure| failure.cause), Err(Cause::Panicked));
        assert!(turns.run("bob".into(), 0, soon(), || ()).await.is_ok());
    }
}
