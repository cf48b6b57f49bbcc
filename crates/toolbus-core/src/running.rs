//! The calls under way, so that their callers can cancel them, and cancellations that came before their calls.

use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lru::LruCache;
use tokio_util::sync::CancellationToken;
use toolbus_protocol::MAX_SHORT_STRING;

use crate::Clock;
use crate::caller::is_named;

/// Time for which a cancellation is remembered whose call is not there.
const REMEMBERED_FOR: Duration = Duration::from_secs(10 * 60);
/// Callers with such cancellations.
const MAX_CALLERS: NonZeroUsize = NonZeroUsize::new(512).unwrap();
/// Such cancellations of one caller.
const MAX_OF_CALLER: usize = 32;

/// A caller and its id of a call.
type Id = (Arc<str>, Arc<str>);

/// Every call under way, by caller and call id. Bounded by what the daemon takes in.
pub(crate) struct RunningCalls {
    calls: Mutex<CallTable>,
    next: AtomicU64,
    clock: Clock,
}

struct CallTable {
    /// Callers may use an id twice: cancelling then means both.
    under_way: HashMap<Id, Vec<(u64, CancellationToken)>>,
    /// Cancellations whose calls may still lie in the broker, by caller, the latest last.
    early: LruCache<Arc<str>, VecDeque<EarlyCancel>>,
}

/// A cancellation of a call that is not there.
struct EarlyCancel {
    call_id: Arc<str>,
    /// When it was sent, in seconds since 1970.
    sent: u64,
    arrived: Instant,
}

/// Keeps a call in the list until it is dropped.
pub(crate) struct RunningCall {
    running: Arc<RunningCalls>,
    id: Id,
    number: u64,
    token: CancellationToken,
}

impl RunningCalls {
    pub(crate) fn new(clock: Clock) -> Self {
        let calls = CallTable { under_way: HashMap::new(), early: LruCache::new(MAX_CALLERS) };
        Self { calls: Mutex::new(calls), next: AtomicU64::default(), clock }
    }

    /// Enters a call that was sent at this time, in seconds since 1970. It is cancelled already if a cancellation came
    /// before it that was sent no earlier: models use their ids again, so that an older one meant another call. Of a
    /// call whose time is not known, that is not known either.
    pub(crate) fn enter(self: &Arc<Self>, caller: &Arc<str>, call_id: &Arc<str>, sent: Option<u64>) -> RunningCall {
        let id = (Arc::clone(caller), Arc::clone(call_id));
        let token = CancellationToken::new();
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let mut calls = self.calls.lock();
        if !calls.early.is_empty()
            && let (Some(sent), Some(early)) = (sent, calls.early.peek(caller))
            && early.iter().any(|early| {
                early.call_id == *call_id && early.sent >= sent && self.clock.since(early.arrived) < REMEMBERED_FOR
            })
        {
            token.cancel();
        }
        calls.under_way.entry(id.clone()).or_default().push((number, token.clone()));
        drop(calls);
        RunningCall { running: Arc::clone(self), id, number, token }
    }

    /// Cancels the calls of this caller with this id; false when there is none here. Then the cancellation is
    /// remembered for a while, if it has the time at which it was sent.
    pub(crate) fn cancel(&self, caller: &str, call_id: &str, sent: Option<u64>) -> bool {
        let id = (Arc::from(caller), Arc::from(call_id));
        let mut calls = self.calls.lock();
        if let Some(tokens) = calls.under_way.get(&id) {
            tokens.iter().for_each(|(_, token)| token.cancel());
            return true;
        }
        let (caller, call_id) = id;
        if let Some(sent) = sent
            && call_id.len() <= MAX_SHORT_STRING
        {
            let early = calls.early.get_or_insert_mut(caller, VecDeque::new);
            if early.len() >= MAX_OF_CALLER {
                early.pop_front();
            }
            early.push_back(EarlyCancel { call_id, sent, arrived: self.clock.now() });
        }
        false
    }

    /// Cancels the calls with this id of all callers that have this name; gives their number.
    pub(crate) fn cancel_named(&self, name: &str, call_id: &str) -> usize {
        let calls = self.calls.lock();
        let meant = calls.under_way.iter().filter(|((owner, id), _)| **id == *call_id && is_named(owner, name));
        meant.flat_map(|(_, tokens)| tokens).map(|(_, token)| token.cancel()).count()
    }
}

impl RunningCall {
    /// Cancelled when the caller cancels the call.
    pub(crate) fn token(&self) -> &CancellationToken {
        &self.token
    }
}

impl Drop for RunningCall {
    fn drop(&mut self) {
        let mut calls = self.running.calls.lock();
        let Some(tokens) = calls.under_way.get_mut(&self.id) else { return };
        tokens.retain(|(number, _)| *number != self.number);
        if tokens.is_empty() {
            calls.under_way.remove(&self.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn running(clock: Clock) -> Arc<RunningCalls> {
        Arc::new(RunningCalls::new(clock))
    }

    #[test]
    fn a_caller_cancels_its_own_call_only() {
        let running = running(Clock::SYSTEM);
        let entry = running.enter(&"ana".into(), &"call_1".into(), None);
        assert!(!running.cancel("bob", "call_1", None));
        assert!(!running.cancel("ana", "call_2", None));
        assert!(!entry.token().is_cancelled());
        assert!(running.cancel("ana", "call_1", None));
        assert!(entry.token().is_cancelled());
    }

    #[test]
    fn an_operator_cancels_calls_by_the_name_that_their_callers_are_shown_with() {
        let running = running(Clock::SYSTEM);
        let owners = ["ana", "bob", "unknown:0::ana", "unknown:3:a:b:ana", "unknown:0::x:ana"];
        let calls = owners.map(|owner| running.enter(&owner.into(), &"call_1".into(), None));
        let other = running.enter(&"ana".into(), &"call_2".into(), None);
        assert_eq!(running.cancel_named("ana", "call_1"), 3);
        assert_eq!(calls.map(|call| call.token().is_cancelled()), [true, false, true, true, false]);
        assert!(!other.token().is_cancelled());
        assert_eq!(running.cancel_named("eve", "call_2"), 0);
    }

    #[test]
    fn a_finished_call_is_gone() {
        let running = running(Clock::SYSTEM);
        drop(running.enter(&"ana".into(), &"call_1".into(), None));
        assert!(!running.cancel("ana", "call_1", None));
        assert!(running.calls.lock().under_way.is_empty());
    }

    #[test]
    fn an_id_used_twice_cancels_both_and_leaves_nothing() {
        let running = running(Clock::SYSTEM);
        let first = running.enter(&"ana".into(), &"call_1".into(), None);
        let second = running.enter(&"ana".into(), &"call_1".into(), None);
        assert!(running.cancel("ana", "call_1", None));
        assert!(first.token().is_cancelled() && second.token().is_cancelled());
        drop((first, second));
        assert!(running.calls.lock().under_way.is_empty());
    }

    #[test]
    fn a_cancellation_that_comes_first_cancels_the_call_that_was_sent_before_it() {
        let clock = Clock::manual();
        let running = running(clock);
        assert!(!running.cancel("ana", "call_1", Some(1_000)));
        let is_cancelled = |caller: &str, call_id: &str, sent| {
            running.enter(&caller.into(), &call_id.into(), sent).token().is_cancelled()
        };
        assert!(is_cancelled("ana", "call_1", Some(999)));
        assert!(is_cancelled("ana", "call_1", Some(1_000)), "a redelivery too");
        assert!(!is_cancelled("ana", "call_1", Some(1_001)), "the next turn of the model");
        assert!(!is_cancelled("ana", "call_1", None), "not known when");
        assert!(!is_cancelled("ana", "call_2", Some(999)));
        assert!(!is_cancelled("bob", "call_1", Some(999)));
        clock.advance(REMEMBERED_FOR);
        assert!(!is_cancelled("ana", "call_1", Some(999)), "long ago");
    }

    #[test]
    fn a_cancellation_without_a_time_is_not_remembered() {
        let running = running(Clock::SYSTEM);
        assert!(!running.cancel("ana", "call_1", None));
        assert!(!running.enter(&"ana".into(), &"call_1".into(), Some(0)).token().is_cancelled());
    }

    #[test]
    fn remembered_cancellations_are_bounded_by_caller_and_in_all() {
        let running = running(Clock::SYSTEM);
        let long = "x".repeat(MAX_SHORT_STRING + 1);
        assert!(!running.cancel("ana", "call_1", Some(1)) && !running.cancel("ana", &long, Some(1)));
        for number in 0..MAX_CALLERS.get() * 2 {
            running.cancel("mallory", &number.to_string(), Some(1));
        }
        assert!(
            running.enter(&"ana".into(), &"call_1".into(), Some(1)).token().is_cancelled(),
            "another caller's flood"
        );
        assert_eq!(running.calls.lock().early.peek("mallory").map(VecDeque::len), Some(MAX_OF_CALLER));
        assert_eq!(running.calls.lock().early.peek("ana").map(VecDeque::len), Some(1), "the long one is left out");
        for number in 0..MAX_CALLERS.get() * 2 {
            running.cancel(&number.to_string(), "call_1", Some(1));
        }
        assert_eq!(running.calls.lock().early.len(), MAX_CALLERS.get());
    }
}
