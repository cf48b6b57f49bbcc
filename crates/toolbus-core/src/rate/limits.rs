//! The buckets, counted while calls come.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::Rate;

/// Buckets that are kept.
const MAX_BUCKETS: usize = 65_536;

/// Whose bucket: (agent and binding), and tool. Both are numbers drawn from the configuration, never from messages.
type Key = (u64, u64);

/// Token buckets of (agent, binding, tool).
///
/// A bucket is one time: when it will be full, if nobody takes a token until then. That is exact, needs no timer, and a
/// bucket that is full says no more than one that is not there (the generic cell rate algorithm, GCRA).
pub(crate) struct RateLimits {
    epoch: Instant,
    max_buckets: usize,
    buckets: Mutex<HashMap<Key, Bucket>>,
}

#[derive(Clone, Copy)]
struct Bucket {
    /// When it is full again, since the epoch.
    full_at: Duration,
    /// How fast it fills.
    rate: Rate,
}

impl Bucket {
    /// When a bucket is full that was seen at `now` and fills at `rate`.
    ///
    /// A reload may have changed the rate. What was owed at the old one is owed still, but never more than a whole bucket.
    fn full_at(bucket: Option<&Self>, rate: &Rate, now: Duration) -> Duration {
        match bucket {
            Some(bucket) if bucket.rate == *rate => bucket.full_at.max(now),
            Some(bucket) => bucket.full_at.clamp(now, now.saturating_add(rate.fill_time())),
            None => now,
        }
    }
}

impl RateLimits {
    pub(crate) fn new() -> Self {
        Self::bounded(MAX_BUCKETS)
    }

    fn bounded(max_buckets: usize) -> Self {
        Self { epoch: Instant::now(), max_buckets, buckets: Mutex::default() }
    }

    /// Takes a token.
    ///
    /// # Errors
    ///
    /// The time until there is one: after exactly that long a call passes, unless another one was faster.
    pub(crate) fn take(&self, cell: u64, tool: u64, rate: &Rate, now: Instant) -> Result<(), Duration> {
        let (key, now) = ((cell, tool), self.since_epoch(now));
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

    /// What [`Self::take`] would say, without taking anything.
    pub(crate) fn peek(&self, cell: u64, tool: u64, rate: &Rate, now: Instant) -> Result<(), Duration> {
        let now = self.since_epoch(now);
        let waits = wait(Bucket::full_at(self.lock().get(&(cell, tool)), rate, now), rate, now);
        if waits.is_zero() { Ok(()) } else { Err(waits) }
    }

    fn since_epoch(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.epoch)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Bucket>> {
        self.buckets.lock().unwrap_or_else(PoisonError::into_inner)
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
    let first = buckets.iter().min_by_key(|(_, bucket)| bucket.full_at).map(|(key, _)| *key);
    if let Some(key) = first {
        buckets.remove(&key);
    }
}

#[cfg(test)]
mod tests;
