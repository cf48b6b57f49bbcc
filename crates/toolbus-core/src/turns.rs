//! Turns for work that takes long: a few pieces at a time, on threads beside those that everything else runs on.

use std::sync::Arc;
use std::time::Instant;

use crate::bulkhead;
use crate::clock::Clock;
use crate::failure::{Cause, ToolFailure};
use crate::gates::permit::{AgentGate, Permit, Permits};

/// Pieces of work that wait for their turn.
const MAX_WAITING: usize = 256;

/// Gives turns: next to the caller that has the fewest. Cheap to clone.
#[derive(Clone)]
pub struct Turns {
    permits: Arc<Permits>,
    gate: Arc<AgentGate>,
}

/// A turn, held until it is dropped.
pub struct Turn(#[expect(dead_code, reason = "its drop gives the turn back")] Permit);

impl Turns {
    /// Half as many turns at a time as there are processors, so that the work leaves the other half to everything else.
    pub(crate) fn new() -> Self {
        let places = std::thread::available_parallelism().map_or(1, |processors| processors.get().div_ceil(2));
        Self {
            permits: Arc::new(Permits::new(places, MAX_WAITING, Arc::default(), Clock::SYSTEM)),
            gate: Arc::new(AgentGate::of_turns(places, MAX_WAITING)),
        }
    }

    /// Waits for a turn during at most half of the time until `deadline`, does the work on a thread of its own, and returns
    /// its outcome with the turn. The turn stays taken while the caller of this function holds it. `caller` identifies the
    /// agent for fairness; `bytes` is what the work holds while it waits. Work that began runs to its end, with its turn.
    ///
    /// # Errors
    ///
    /// [`Cause::Overloaded`] when too many wait already, or no turn comes in time; [`Cause::Expired`] at `deadline`.
    pub async fn run<T: Send + 'static>(
        &self,
        caller: Arc<str>,
        bytes: usize,
        deadline: Instant,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<(T, Turn), ToolFailure> {
        let now = Clock::SYSTEM.now();
        let latest = now + deadline.saturating_duration_since(now) / 2;
        let turn = Turn(self.permits.acquire(None, &self.gate, caller, bytes, latest).await?);
        let working = tokio::task::spawn_blocking(move || (work(), turn));
        match tokio::time::timeout(deadline.saturating_duration_since(Clock::SYSTEM.now()), working).await {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(broken)) => Err(match broken.try_into_panic() {
                Ok(panic) => bulkhead::broken(&*panic),
                Err(_) => ToolFailure::new(Cause::Cancelled, "The daemon shut down."),
            }),
            Err(_) => Err(ToolFailure::new(Cause::Expired, "The deadline of the call passed while it was prepared.")),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn soon() -> Instant {
        Clock::SYSTEM.now() + Duration::from_secs(10)
    }

    #[tokio::test]
    async fn an_outcome_comes_with_the_turn_that_others_wait_for() {
        let turns = Turns::new();
        let mut held = Vec::new();
        while let Ok(taken) = turns.run("ana".into(), 0, Clock::SYSTEM.now() + Duration::from_millis(200), || 7).await {
            held.push(taken);
        }
        assert!(!held.is_empty());
        let waits = turns.run("bob".into(), 0, soon(), || 8);
        held.pop();
        assert_eq!(waits.await.map(|(outcome, _)| outcome), Ok(8));
    }

    #[tokio::test]
    async fn work_that_is_not_done_in_time_is_told_as_late_and_keeps_its_turn() {
        let turns = Turns::new();
        let (finish, finished) = std::sync::mpsc::channel::<()>();
        let late = turns.run("ana".into(), 0, Clock::SYSTEM.now() + Duration::from_millis(50), move || finished.recv());
        assert_eq!(late.await.map(|_| ()).map_err(|failure| failure.cause), Err(Cause::Expired));
        drop(finish);
        assert!(turns.run("bob".into(), 0, soon(), || ()).await.is_ok());
    }

    #[tokio::test]
    async fn work_that_panics_is_a_failure() {
        let broken = Turns::new().run("ana".into(), 0, soon(), || panic!("on purpose")).await.map(|((), _)| ());
        assert_eq!(broken.map_err(|failure| failure.cause), Err(Cause::Panicked));
    }
}
