//! Shortest time that the calls of one agent took lately, and when those that run began.

use std::time::{Duration, Instant};

/// Length of a window. Times count in the window in which they were noted and in the next one.
const WINDOW: Duration = Duration::from_secs(60);
/// Times that must have been noted before the shortest one means anything.
const MIN_COUNT: usize = 8;

/// The shortest of the times that were noted in the last one or two windows.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// When the calls that run began. As many as the agent may run.
    running: Vec<Instant>,
    /// When the present window began; absent before the first time was noted.
    began: Option<Instant>,
    present: PaceWindow,
    previous: PaceWindow,
}

#[derive(Debug, Clone, Copy)]
struct PaceWindow {
    shortest: Duration,
    count: usize,
}

impl Default for PaceWindow {
    fn default() -> Self {
        Self { shortest: Duration::MAX, count: 0 }
    }
}

impl Pace {
    /// A call begins.
    pub(crate) fn begin(&mut self, now: Instant) {
        self.running.push(now);
    }

    /// A call that began then ends.
    pub(crate) fn end(&mut self, began: Instant) {
        if let Some(position) = self.running.iter().position(|running| *running == began) {
            self.running.swap_remove(position);
        }
    }

    /// Times at which each of so many slots comes free, where a call takes this long.
    pub(crate) fn frees(&self, slots: usize, each: Duration, now: Instant) -> impl Iterator<Item = Instant> {
        let idle = slots.saturating_sub(self.running.len());
        let busy = self.running.iter().map(move |began| (*began + each).max(now));
        std::iter::repeat_n(now, idle).chain(busy)
    }

    /// Notes what a call took that has ended now.
    pub(crate) fn note(&mut self, took: Duration, now: Instant) {
        self.turn(now);
        self.present.shortest = self.present.shortest.min(took);
        self.present.count = self.present.count.saturating_add(1);
    }

    /// The shortest time lately; `None` if too few were noted.
    pub(crate) fn shortest(&mut self, now: Instant) -> Option<Duration> {
        self.turn(now);
        let count = self.present.count.saturating_add(self.previous.count);
        (count >= MIN_COUNT).then(|| self.present.shortest.min(self.previous.shortest))
    }

    /// Begins the window of this time.
    fn turn(&mut self, now: Instant) {
        let age = now.saturating_duration_since(*self.began.get_or_insert(now));
        if age >= WINDOW {
            let present = std::mem::take(&mut self.present);
            self.previous = if age < WINDOW * 2 { present } else { PaceWindow::default() };
            self.began = Some(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Clock;

    fn noted(pace: &mut Pace, times: &[u64], now: Instant) {
        times.iter().for_each(|seconds| pace.note(Duration::from_secs(*seconds), now));
    }

    #[test]
    fn too_few_durations_give_no_estimate() {
        let (mut pace, now) = (Pace::default(), Clock::SYSTEM.now());
        noted(&mut pace, &[5; MIN_COUNT - 1], now);
        assert_eq!(pace.shortest(now), None);
        noted(&mut pace, &[9], now);
        assert_eq!(pace.shortest(now), Some(Duration::from_secs(5)));
    }

    #[test]
    fn durations_are_forgotten_after_the_next_window() {
        let (mut pace, start) = (Pace::default(), Clock::SYSTEM.now());
        noted(&mut pace, &[1; MIN_COUNT], start);
        noted(&mut pace, &[4; MIN_COUNT], start + WINDOW);
        assert_eq!(pace.shortest(start + WINDOW), Some(Duration::from_secs(1)));
        assert_eq!(pace.shortest(start + WINDOW * 2), Some(Duration::from_secs(4)));
        assert_eq!(pace.shortest(start + WINDOW * 4), None);
        noted(&mut pace, &[1; MIN_COUNT], start + WINDOW * 5);
        assert_eq!(pace.shortest(start + WINDOW * 7), None, "a window without any is between");
    }
}
