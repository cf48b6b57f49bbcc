//! How long to wait before the next attempt.

use std::time::{Duration, Instant};

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};

const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(30);
/// What lasted this long counts as healthy: its loss starts from the shortest wait again.
const HEALTHY: Duration = Duration::from_secs(5);

/// Waits that double from 100 ms to 30 s, each with up to as much again in jitter.
pub(super) struct Backoff {
    waits: ExponentialBackoff,
}

impl Backoff {
    pub(super) fn new() -> Self {
        let waits = ExponentialBuilder::new()
            .with_min_delay(SHORTEST)
            .with_max_delay(LONGEST)
            .without_max_times()
            .with_jitter()
            .build();
        Self { waits }
    }

    /// The wait after something that was opened then (if it was) and lost now.
    pub(super) fn after(&mut self, opened: Option<Instant>) -> Duration {
        if opened.is_some_and(|opened| opened.elapsed() >= HEALTHY) {
            *self = Self::new();
        }
        self.waits.next().unwrap_or(LONGEST).min(LONGEST)
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::{Backoff, LONGEST, SHORTEST};

    #[test]
    fn waits_grow_to_the_longest_and_stay_there() {
        let mut backoff = Backoff::new();
        let waits: Vec<_> = (0..20).map(|_| backoff.after(None)).collect();
        assert!(waits[0] >= SHORTEST && waits[0] <= SHORTEST * 2, "{waits:?}");
        assert!(waits[5] > waits[0]);
        assert!(waits[10..].iter().all(|wait| *wait == LONGEST), "{waits:?}");
    }

    #[test]
    fn what_lasted_long_enough_starts_again_from_the_shortest_wait() {
        let mut backoff = Backoff::new();
        for _ in 0..10 {
            backoff.after(None);
        }
        let opened = Instant::now().checked_sub(Duration::from_secs(60)).unwrap();
        assert!(backoff.after(Some(opened)) <= SHORTEST * 2);
    }
}
