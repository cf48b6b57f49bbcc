//! How long to wait before the next attempt.

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};

const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(5);

/// Waits that double from 100 ms to 5 s, with up to as much again in jitter while they grow.
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

    /// The wait before the next attempt. After what was healthy, the waits start from the shortest again.
    pub(super) fn after(&mut self, was_healthy: bool) -> Duration {
        if was_healthy {
            *self = Self::new();
        }
        self.waits.next().unwrap_or(LONGEST).min(LONGEST)
    }
}

#[cfg(test)]
mod tests {
    use super::{Backoff, LONGEST, SHORTEST};

    #[test]
    fn waits_grow_to_the_longest_and_stay_there() {
        let mut backoff = Backoff::new();
        let waits: Vec<_> = (0..20).map(|_| backoff.after(false)).collect();
        assert!(waits[0] >= SHORTEST && waits[0] <= SHORTEST * 2, "{waits:?}");
        assert!(waits[5] > waits[0]);
        assert!(waits[10..].iter().all(|wait| *wait == LONGEST), "{waits:?}");
    }

    #[test]
    fn waits_start_from_the_shortest_again_after_what_was_healthy() {
        let mut backoff = Backoff::new();
        for _ in 0..10 {
            backoff.after(false);
        }
        assert!(backoff.after(true) <= SHORTEST * 2);
    }
}
