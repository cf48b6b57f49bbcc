//! The buckets, counted while calls come.

use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::rate::Rate;

/// Buckets that are kept.
const MAX_BUCKETS: usize = 65_536;

/// Whose bucket: (agent and binding), and tool. Both are numbers drawn from the configuration, never from messages.
type Key = (u64, u64);

/// Token buckets of (agent, binding, tool).
///
/// A bucket is one time: when it will be full, if no token is taken until then. That is exact, needs no timer, and a
/// full bucket equals an absent one (the generic cell rate algorithm, GCRA).
pub(crate) struct RateLimits {
    epoch: Instant,
    max_buckets: usize,
    buckets: Mutex<HashMap<Key, Bucket>>,
}

#[derive(Clone, Copy)]
struct Bucket {
    /// When it is full again, since the epoch.
    full_at: Duration,
    /// Rate at which the bucket fills.
    rate: Rate,
}

impl Bucket {
    /// When a bucket is full that was seen at `now` and fills at `rate`.
    ///
    /// A reload may have changed the rate. What was owed at the old one is owed still, but never more than a whole
    /// bucket.
    fn full_at(bucket: Option<&Self>, rate: &Rate, now: Duration) -> Duration {
        match bucket {
            Some(bucket) if bucket.rate == *rate => bucket.full_at.max(now),
            Some(bucket) => bucket.full_at.clamp(now, now.saturating_add(rate.fill_time())),
            None => now,
        }
    }
}

impl RateLimits {
    /// No bucket, and times from `epoch` on.
    pub(crate) fn new(epoch: Instant) -> Self {
        Self::bounded(epoch, MAX_BUCKETS)
    }

    fn bounded(epoch: Instant, max_buckets: usize) -> Self {
        Self { epoch, max_buckets, buckets: Mutex::default() }
    }

    /// Takes a token.
    ///
    /// # Errors
    ///
    /// The time until there is one: after exactly that long a call passes, unless another one was faster.
    pub(crate) fn take(&self, binding: u64, tool: u64, rate: &Rate, now: Instant) -> Result<(), Duration> {
        let (key, now) = ((binding, tool), self.since_epoch(now));
        let mut buckets = self.lock();
        let known = buckets.get_mut(&key);
        let full_at = Bucket::full_at(known.as_deref(), rate, now);
        let waits = wait(full_at, rate, now);
        // Kept when refused, too: what is owed at a new rate is reckoned once, and then falls due.
        let full_at = if waits.is_zero() { full_at.saturating_add(rate.interval()) } else { full_at };
        let bucket = Bucket { full_at, rate: *rate };
        match known {
            Some(known) => *known = bucket,
            None => {
                if buckets.len() >= self.max_buckets {
                    make_room(&mut buckets, now);
                }
                buckets.insert(key, bucket);
            }
        }
        if waits.is_zero() { Ok(()) } else { Err(waits) }
    }

    /// Returns the result of [`Self::take`], without taking anything.
    pub(crate) fn peek(&self, binding: u64, tool: u64, rate: &Rate, now: Instant) -> Result<(), Duration> {
        let now = self.since_epoch(now);
        let waits = wait(Bucket::full_at(self.lock().get(&(binding, tool)), rate, now), rate, now);
        if waits.is_zero() { Ok(()) } else { Err(waits) }
    }

    fn since_epoch(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.epoch)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Bucket>> {
        self.buckets.lock()
    }
}

/// Time until a bucket that is full at `full_at` has a token.
fn wait(full_at: Duration, rate: &Rate, now: Duration) -> Duration {
    let but_one = rate.fill_time().saturating_sub(rate.interval());
    full_at.saturating_sub(now.saturating_add(but_one))
}

/// Forgets the buckets that are full, which forgives nothing; without any, the one that is full first.
fn make_room(buckets: &mut HashMap<Key, Bucket>, now: Duration) {
    let before = buckets.len();
    buckets.retain(|_, bucket| bucket.full_at > now);
    if buckets.len() < before {
        return;
    }
    let first = buckets.iter().min_by_key(|(key, bucket)| (bucket.full_at, **key)).map(|(key, _)| *key);
    if let Some(key) = first {
        buckets.remove(&key);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use proptest::prelude::*;

    use super::*;
    use crate::Clock;

    const MS: Duration = Duration::from_millis(1);
    const NS: Duration = Duration::from_nanos(1);

    fn epoch() -> Instant {
        Clock::SYSTEM.now()
    }

    fn rate(rps: f64, burst: u32) -> Rate {
        Rate::new(rps, burst).unwrap()
    }

    /// Calls that pass at `now`, until the first that does not.
    fn passing(limits: &RateLimits, binding: u64, tool: u64, rate: &Rate, now: Instant) -> usize {
        std::iter::repeat_with(|| limits.take(binding, tool, rate, now)).take_while(Result::is_ok).count()
    }

    #[test]
    fn a_rested_caller_gets_its_burst_at_once_and_then_its_rate() {
        let (limits, rate, now) = (RateLimits::new(epoch()), rate(2.0, 3), epoch());
        assert_eq!(passing(&limits, 1, 1, &rate, now), 3);
        assert_eq!(passing(&limits, 1, 1, &rate, now + 500 * MS), 1);
        assert_eq!(passing(&limits, 1, 1, &rate, now + 1_500 * MS), 2);
        assert_eq!(passing(&limits, 1, 1, &rate, now + Duration::from_secs(3_600)), 3);
    }

    #[test]
    fn the_time_to_wait_is_exact() {
        for rate in [rate(2.0, 3), rate(3.0, 1), rate(7.0, 5), rate(1e6, 1), rate(0.000_01, 2)] {
            let (limits, now) = (RateLimits::new(epoch()), epoch());
            assert_eq!(passing(&limits, 1, 1, &rate, now), rate.burst as usize);
            let wait = limits.take(1, 1, &rate, now).unwrap_err();
            assert_eq!(wait, rate.interval(), "{rate}");
            assert_eq!(limits.take(1, 1, &rate, now + wait - NS), Err(NS), "{rate}");
            assert_eq!(limits.take(1, 1, &rate, now + wait), Ok(()), "{rate}");
        }
    }

    #[test]
    fn every_binding_and_every_tool_has_a_bucket_of_its_own() {
        let (limits, rate, now) = (RateLimits::new(epoch()), rate(1.0, 2), epoch());
        for (binding, tool) in [(1, 1), (1, 2), (2, 1)] {
            assert_eq!(passing(&limits, binding, tool, &rate, now), 2, "{binding} {tool}");
        }
    }

    #[test]
    fn peeking_takes_no_token_and_has_the_result_of_taking() {
        let (limits, rate, now) = (RateLimits::new(epoch()), rate(1.0, 1), epoch());
        for _ in 0..10 {
            assert_eq!(limits.peek(1, 1, &rate, now), Ok(()));
        }
        limits.take(1, 1, &rate, now).unwrap();
        assert_eq!(limits.peek(1, 1, &rate, now + 400 * MS), Err(600 * MS));
        assert_eq!(limits.take(1, 1, &rate, now + 400 * MS), Err(600 * MS));
    }

    #[test]
    fn a_changed_rate_keeps_an_empty_bucket_and_refills_it_at_the_new_rate() {
        let (limits, now) = (RateLimits::new(epoch()), epoch());
        let (slow, fast) = (rate(0.001, 1), rate(10.0, 2));
        limits.take(1, 1, &slow, now).unwrap();
        assert_eq!(limits.take(1, 1, &fast, now), Err(100 * MS), "an empty bucket at the new rate");
        assert_eq!(passing(&limits, 1, 1, &fast, now + 100 * MS), 1);
        assert_eq!(passing(&limits, 1, 1, &fast, now + 1_000 * MS), 2);
    }

    #[test]
    fn an_earlier_clock_reading_of_another_thread_adds_no_token() {
        let (limits, rate, now) = (RateLimits::new(epoch()), rate(1.0, 1), epoch() + 1_000 * MS);
        limits.take(1, 1, &rate, now).unwrap();
        assert_eq!(limits.take(1, 1, &rate, now - 10 * MS), Err(1_010 * MS));
        assert_eq!(limits.take(1, 1, &rate, now + 1_000 * MS - NS), Err(NS));
    }

    #[test]
    fn only_full_buckets_are_forgotten_while_there_are_any() {
        let (limits, rate, now) = (RateLimits::bounded(epoch(), 3), rate(1.0, 1), epoch());
        limits.take(1, 1, &rate, now).unwrap();
        limits.take(1, 2, &rate, now + 900 * MS).unwrap();
        limits.take(1, 3, &rate, now + 900 * MS).unwrap();
        let later = now + 1_000 * MS;
        limits.take(1, 4, &rate, later).unwrap();
        for tool in [2, 3, 4] {
            assert!(limits.take(1, tool, &rate, later).is_err(), "{tool} is not forgotten");
        }
        assert_eq!(limits.lock().len(), 3);
    }

    #[test]
    fn full_buckets_are_forgotten_at_once() {
        let (limits, rate, now) = (RateLimits::bounded(epoch(), 3), rate(1.0, 1), epoch());
        for (tool, at) in [(1, Duration::ZERO), (2, Duration::ZERO), (3, 900 * MS), (4, 1_000 * MS)] {
            limits.take(1, tool, &rate, now + at).unwrap();
        }
        assert_eq!(limits.lock().len(), 2);
    }

    #[test]
    fn without_a_full_bucket_the_next_to_be_full_is_forgotten() {
        let (limits, rate, now) = (RateLimits::bounded(epoch(), 3), rate(1.0, 1), epoch());
        for (tool, at) in [(1, 20 * MS), (2, 10 * MS), (3, 30 * MS), (4, 40 * MS)] {
            limits.take(1, tool, &rate, now + at).unwrap();
        }
        let held: Vec<bool> = (1..=4).map(|tool| limits.peek(1, tool, &rate, now + 40 * MS).is_err()).collect();
        assert_eq!(held, [true, false, true, true]);
    }

    #[test]
    fn buckets_are_bounded_in_number() {
        let (limits, rate, now) = (RateLimits::new(epoch()), rate(1.0, 1), epoch());
        // A nanosecond apart, so that the first one is always the one to go.
        for tool in 0..MAX_BUCKETS as u64 + 8 {
            limits.take(1, tool, &rate, now + u32::try_from(tool).unwrap() * NS).unwrap();
        }
        assert_eq!(limits.lock().len(), MAX_BUCKETS);
    }

    #[test]
    fn concurrent_callers_add_no_token() {
        let (limits, taken) = (Arc::new(RateLimits::new(epoch())), Arc::new(AtomicUsize::new(0)));
        let (rate, start) = (rate(1_000.0, 50), epoch());
        std::thread::scope(|scope| {
            for thread in 0..8u32 {
                let (limits, taken) = (Arc::clone(&limits), Arc::clone(&taken));
                scope.spawn(move || {
                    // Every thread plays the same 100 ms, each with a clock that differs a little from the others'.
                    for step in 0..2_000u32 {
                        let now = start + step * 50_000 * NS + thread * NS;
                        if limits.take(1, 1, &rate, now).is_ok() {
                            taken.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        // The burst, and one token for each whole millisecond of the 100 that were played.
        assert_eq!(taken.load(Ordering::Relaxed), 50 + 99);
    }

    /// A bucket as a textbook has it, in nanoseconds of tokens: filled at every look, up to the brim.
    struct Naive {
        tokens: u128,
        seen: u128,
    }

    impl Naive {
        fn take(&mut self, interval: u128, burst: u128, now: u128) -> bool {
            self.tokens = (self.tokens + now - self.seen).min(interval * burst);
            self.seen = now;
            let has_one = self.tokens >= interval;
            if has_one {
                self.tokens -= interval;
            }
            has_one
        }
    }

    proptest! {
        #[test]
        fn limits_agree_with_a_textbook_bucket(
            rps in 0.1f64..10_000.0,
            burst in 1u32..20,
            pauses in proptest::collection::vec(prop_oneof![Just(0), 0u64..2_000_000, 0u64..5_000_000_000], 1..200),
        ) {
            let (limits, rate) = (RateLimits::new(epoch()), rate(rps, burst));
            let (interval, burst) = (rate.interval().as_nanos(), u128::from(burst));
            let mut naive = Naive { tokens: interval * burst, seen: 0 };
            let mut passed = Duration::ZERO;
            for pause in pauses {
                passed += Duration::from_nanos(pause);
                let now = limits.epoch + passed;
                let expected = naive.take(interval, burst, passed.as_nanos());
                prop_assert_eq!(limits.peek(1, 1, &rate, now).is_ok(), expected);
                match limits.take(1, 1, &rate, now) {
                    Ok(()) => prop_assert!(expected),
                    Err(wait) => {
                        prop_assert!(!expected);
                        prop_assert_eq!(wait.as_nanos(), interval - naive.tokens);
                    }
                }
            }
        }
    }
}
