//! The time, as a value that is handed to what decides by it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A source of the time.
///
/// [`Clock::SYSTEM`] is the system's. In a test whose runtime is paused it stands still and advances with the timers of
/// tokio, so that decisions and waits agree. A clock of [`Clock::manual`] moves when a test advances it, and one of
/// [`Clock::paused`] with those timers, the wall clock included.
#[derive(Debug, Clone, Copy, Default)]
pub struct Clock(Option<&'static Manual>);

/// Whole milliseconds of a time, as messages and logs have them.
#[must_use]
pub fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// A time that is set by hand.
#[derive(Debug)]
struct Manual {
    start: Instant,
    /// Time that has passed, in nanoseconds; `None` if the runtime measures it.
    passed: Option<AtomicU64>,
}

impl Clock {
    /// The clock of the system.
    pub const SYSTEM: Self = Self(None);

    /// A clock for tests that begins at 2026-01-01T00:00:00Z, and moves by [`Self::advance`] alone. It is never freed.
    #[must_use]
    pub fn manual() -> Self {
        Self::beginning_now(Some(AtomicU64::new(0)))
    }

    /// A clock for a paused runtime, in which it is made: it begins at 2026-01-01T00:00:00Z, and moves with the timers of
    /// tokio, so that two runs see the same times. It is never freed.
    #[must_use]
    pub fn paused() -> Self {
        Self::beginning_now(None)
    }

    fn beginning_now(passed: Option<AtomicU64>) -> Self {
        Self(Some(Box::leak(Box::new(Manual { start: Self::SYSTEM.now(), passed }))))
    }

    /// Moves a manual clock. Nothing for others.
    pub fn advance(self, time: Duration) {
        if let Some(passed) = self.0.and_then(|manual| manual.passed.as_ref()) {
            passed.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
        }
    }

    /// The present time for deadlines and durations. It never goes back.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "the only reader of the system clock")]
    pub fn now(self) -> Instant {
        match self.0 {
            // Without tokio's feature for tests, this is the `now` of the standard library.
            None => tokio::time::Instant::now().into_std(),
            Some(manual) => manual.start + manual.passed(),
        }
    }

    /// Time that has passed since `earlier`; zero if that is yet to come.
    #[must_use]
    pub fn since(self, earlier: Instant) -> Duration {
        self.now().saturating_duration_since(earlier)
    }

    /// The present time of the world. It may be set, and go back.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "the only reader of the system clock")]
    pub fn wall(self) -> SystemTime {
        match self.0 {
            None => SystemTime::now(),
            Some(manual) => UNIX_EPOCH + Manual::FIRST + manual.passed(),
        }
    }

    /// Time since 1970 by the wall clock; zero before.
    #[must_use]
    pub fn since_epoch(self) -> Duration {
        self.wall().duration_since(UNIX_EPOCH).unwrap_or_default()
    }
}

impl Manual {
    /// 2026-01-01T00:00:00Z, since 1970.
    const FIRST: Duration = Duration::from_secs(1_767_225_600);

    fn passed(&self) -> Duration {
        match &self.passed {
            Some(passed) => Duration::from_nanos(passed.load(Ordering::Relaxed)),
            None => Clock::SYSTEM.since(self.start),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manual_clock_moves_only_when_advanced() {
        let clock = Clock::manual();
        let (now, wall) = (clock.now(), clock.wall());
        assert_eq!((clock.now(), clock.since_epoch().as_secs()), (now, 1_767_225_600));
        clock.advance(Duration::from_secs(90));
        assert_eq!(clock.since(now), Duration::from_secs(90));
        assert_eq!(clock.wall().duration_since(wall).unwrap(), Duration::from_secs(90));
        assert_eq!(clock.since(clock.now() + Duration::from_secs(1)), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn the_clock_of_the_system_follows_a_paused_runtime() {
        let before = Clock::SYSTEM.now();
        tokio::time::sleep(Duration::from_secs(3600)).await;
        assert_eq!(Clock::SYSTEM.since(before).as_secs(), 3600);
    }
    #[tokio::test(start_paused = true)]
    async fn the_clock_of_a_paused_runtime_moves_with_its_timers_the_wall_included() {
        let clock = Clock::paused();
        let now = clock.now();
        assert_eq!(clock.since_epoch().as_secs(), 1_767_225_600);
        tokio::time::sleep(Duration::from_secs(3600)).await;
        clock.advance(Duration::from_secs(1));
        assert_eq!((clock.since(now).as_secs(), clock.since_epoch().as_secs()), (3600, 1_767_229_200));
    }
}
