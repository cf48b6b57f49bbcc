//! How long to wait before a server is tried again.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// Failures in a row after which a server is given up for a while.
pub(super) const PARKED_AFTER: u32 = 6;
/// Longest wait before a remote server is tried again: connecting to it costs little.
const LONGEST: Duration = Duration::from_secs(30);
/// Wait after the first failure.
const FIRST: Duration = Duration::from_millis(100);
/// By which each wait is longer than the one before.
const FACTOR: u32 = 4;

/// What follows on a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wait {
    pub(super) time: Duration,
    /// Whether the server is given up for a while.
    pub(super) is_parked: bool,
}

/// What follows on this many failures in a row, at least 1. A process that was given up waits for `parked`.
pub(super) fn after(failures: u32, is_process: bool, parked: Duration) -> Wait {
    let is_parked = failures >= PARKED_AFTER;
    let time = match (is_parked, is_process) {
        (true, true) => parked,
        (true, false) => LONGEST,
        (false, _) => FIRST.saturating_mul(FACTOR.saturating_pow(failures.saturating_sub(1))).min(LONGEST),
    };
    Wait { time: jittered(time), is_parked }
}

/// Between this and a half more, so that servers that ended together do not start together.
fn jittered(time: Duration) -> Duration {
    let random = RandomState::new().hash_one(time) % 1024;
    time + time.mul_f64(f64::from(u32::try_from(random).unwrap_or_default()) / 2048.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARKED: Duration = Duration::from_secs(300);

    #[test]
    fn a_single_failure_costs_less_than_a_fifth_of_a_second() {
        for _ in 0..100 {
            let wait = after(1, true, PARKED);
            assert!(!wait.is_parked && wait.time >= FIRST && wait.time < FIRST * 2, "{wait:?}");
        }
    }

    #[test]
    fn servers_that_end_together_do_not_start_together() {
        let waits: std::collections::HashSet<_> = (0..100).map(|_| after(1, true, PARKED).time).collect();
        assert!(waits.len() > 20, "{waits:?}");
    }

    #[test]
    fn waits_grow_until_a_process_is_parked_and_a_remote_server_is_tried_twice_a_minute() {
        let seconds =
            |is_process| (1..9).map(|failures| after(failures, is_process, PARKED).time.as_secs()).collect::<Vec<_>>();
        let (process, remote) = (seconds(true), seconds(false));
        assert!(
            process[..6].is_sorted() && process[4] < 46 && process[5..].iter().all(|seconds| *seconds >= 300),
            "{process:?}"
        );
        assert!(remote.iter().all(|seconds| *seconds <= 45), "{remote:?}");
        assert!(
            after(6, true, PARKED).is_parked && after(6, false, PARKED).is_parked && !after(5, true, PARKED).is_parked
        );
    }
}
