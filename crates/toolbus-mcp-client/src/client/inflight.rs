//! Whether a server that leaves pings without an answer may be at work.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// A call that was given up sooner says nothing of the server.
const FAIR_WAIT: Duration = Duration::from_secs(1);

/// The calls of a connection that wait for their answers.
///
/// A server at work on one call may answer nothing else. One that has left a call without an answer for its whole time has
/// no further excuse in the calls that came after that: with enough of them it would have one for ever.
#[derive(Default)]
pub(super) struct InFlight(Mutex<Calls>);

#[derive(Default)]
struct Calls {
    next: u64,
    waiting: BTreeSet<u64>,
    /// The first call that came after one had been given up, since the server's last answer.
    suspect: Option<u64>,
}

/// One call, until it is dropped.
pub(super) struct InFlightCall<'a> {
    inflight: &'a InFlight,
    id: u64,
    since: Instant,
    is_answered: bool,
}

impl InFlight {
    /// A call begins.
    pub(super) fn enter(&self) -> InFlightCall<'_> {
        let mut calls = self.calls();
        let id = calls.next;
        calls.next += 1;
        calls.waiting.insert(id);
        InFlightCall { inflight: self, id, since: Instant::now(), is_answered: false }
    }

    /// The server answered something.
    pub(super) fn answered(&self) {
        self.calls().suspect = None;
    }

    /// Whether the server may be at work on a call.
    pub(super) fn may_be_working(&self) -> bool {
        let calls = self.calls();
        calls.waiting.first().is_some_and(|first| calls.suspect.is_none_or(|suspect| *first < suspect))
    }

    fn calls(&self) -> MutexGuard<'_, Calls> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl InFlightCall<'_> {
    /// The call was answered.
    pub(super) fn answered(mut self) {
        self.is_answered = true;
        self.inflight.answered();
    }
}

impl Drop for InFlightCall<'_> {
    fn drop(&mut self) {
        let mut calls = self.inflight.calls();
        calls.waiting.remove(&self.id);
        if !self.is_answered && self.since.elapsed() >= FAIR_WAIT {
            let next = calls.next;
            calls.suspect.get_or_insert(next);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_server_may_be_at_work_on_a_call_for_as_long_as_somebody_waits() {
        let busy = InFlight::default();
        assert!(!busy.may_be_working());
        let call = busy.enter();
        advance(Duration::from_secs(3600)).await;
        assert!(busy.may_be_working());
        drop(call);
        assert!(!busy.may_be_working());
    }

    #[tokio::test(start_paused = true)]
    async fn calls_that_come_after_one_that_was_given_up_are_no_excuse() {
        let busy = InFlight::default();
        let (first, second) = (busy.enter(), busy.enter());
        advance(FAIR_WAIT).await;
        drop(first);
        assert!(busy.may_be_working(), "the server may be at work on the second");
        let third = busy.enter();
        drop(second);
        assert!(!busy.may_be_working());
        busy.answered();
        assert!(busy.may_be_working(), "it answers");
        drop(third);
    }

    #[tokio::test(start_paused = true)]
    async fn an_answered_call_shows_that_the_server_is_well() {
        let busy = InFlight::default();
        let (first, second) = (busy.enter(), busy.enter());
        advance(FAIR_WAIT).await;
        drop(first);
        let third = busy.enter();
        second.answered();
        assert!(busy.may_be_working());
        drop(third);
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_was_given_up_soon_says_nothing_of_the_server() {
        let busy = InFlight::default();
        let hasty = busy.enter();
        advance(FAIR_WAIT / 2).await;
        drop(hasty);
        let call = busy.enter();
        assert!(busy.may_be_working());
        drop(call);
    }
}
