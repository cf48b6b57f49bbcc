//! A bound on repeated log lines.

use parking_lot::Mutex;
use std::time::{Duration, Instant};

use crate::Clock;

/// Time between two lines of one kind, where they repeat.
const PERIOD: Duration = Duration::from_secs(60);

/// Lets one line through per minute, and counts those that it leaves out.
#[derive(Debug, Default)]
pub struct Throttle(Mutex<ThrottledLines>);

#[derive(Debug, Default)]
struct ThrottledLines {
    next: Option<Instant>,
    left_out: u64,
}

impl Throttle {
    /// Number of lines that were left out since the last one, if a line is due now.
    #[must_use]
    pub fn due(&self) -> Option<u64> {
        self.due_at(Clock::SYSTEM.now())
    }

    fn due_at(&self, now: Instant) -> Option<u64> {
        let mut lines = self.0.lock();
        if lines.next.is_some_and(|next| now < next) {
            lines.left_out = lines.left_out.saturating_add(1);
            return None;
        }
        lines.next = Some(now + PERIOD);
        Some(std::mem::take(&mut lines.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_passes_and_then_one_per_minute_with_a_count() {
        let (throttle, now) = (Throttle::default(), Clock::SYSTEM.now());
        assert_eq!(throttle.due_at(now), Some(0));
        for _ in 0..3 {
            assert_eq!(throttle.due_at(now + Duration::from_secs(59)), None);
        }
        assert_eq!(throttle.due_at(now + PERIOD), Some(3));
        assert_eq!(throttle.due_at(now + PERIOD), None);
    }
}
