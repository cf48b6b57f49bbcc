use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use toolbus_core::log::with_dates;

/// Least time between two lines of the log about a collector that fails.
const QUIET: Duration = Duration::from_secs(60);
/// Longest part of an exporter's error that is logged, in characters.
const MAX_SHOWN: usize = 200;

/// What went wrong on the way to the collector: counted always, logged now and then.
#[derive(Debug, Default)]
pub(crate) struct Health {
    dropped_spans: AtomicU64,
    failed_exports: AtomicU64,
    /// Dropped spans that the log knows of.
    told_spans: AtomicU64,
    last_said: Mutex<Option<Instant>>,
}

impl Health {
    /// Spans that were not exported since the start.
    pub(crate) fn dropped_spans(&self) -> u64 {
        self.dropped_spans.load(Ordering::Relaxed)
    }

    /// Exports that failed since the start.
    pub(crate) fn failed_exports(&self) -> u64 {
        self.failed_exports.load(Ordering::Relaxed)
    }

    pub(crate) fn drop_spans(&self, count: usize) {
        self.dropped_spans.fetch_add(u64::try_from(count).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    pub(crate) fn export_failed(&self, signal: &'static str, endpoint: &str, error: &dyn std::fmt::Display) {
        let failed_exports = self.failed_exports.fetch_add(1, Ordering::Relaxed) + 1;
        if self.may_speak(Instant::now()) {
            let error: String = with_dates(&error.to_string()).chars().take(MAX_SHOWN).collect();
            let dropped_spans = self.dropped_spans();
            self.told_spans.store(dropped_spans, Ordering::Relaxed);
            tracing::warn!(signal, endpoint, failed_exports, dropped_spans, error, "could not export telemetry");
        }
    }

    /// Tells of spans that were dropped though exporting works. It is asked for by the exporter's thread: what drops
    /// them is a call, and has no time.
    pub(crate) fn exported(&self) {
        let dropped_spans = self.dropped_spans();
        if dropped_spans > self.told_spans.load(Ordering::Relaxed) && self.may_speak(Instant::now()) {
            self.told_spans.store(dropped_spans, Ordering::Relaxed);
            tracing::warn!(dropped_spans, "dropped spans that came faster than the collector took them");
        }
    }

    fn may_speak(&self, now: Instant) -> bool {
        let mut last_said = self.last_said.lock().unwrap_or_else(PoisonError::into_inner);
        let due = last_said.is_none_or(|said| now.saturating_duration_since(said) >= QUIET);
        if due {
            *last_said = Some(now);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::{Health, QUIET};

    #[test]
    fn failures_are_logged_at_most_once_per_interval() {
        let health = Health::default();
        let start = Instant::now();
        assert!(health.may_speak(start));
        assert!(!health.may_speak(start + QUIET - Duration::from_millis(1)));
        assert!(health.may_speak(start + QUIET));
        assert!(!health.may_speak(start + QUIET + Duration::from_secs(1)));
    }

    #[test]
    fn drops_are_told_once_and_only_when_there_are_new_ones() {
        let health = Health::default();
        health.exported();
        assert!(health.last_said.lock().unwrap().is_none(), "nothing was dropped");
        health.drop_spans(1);
        health.exported();
        let said = *health.last_said.lock().unwrap();
        assert!(said.is_some());
        health.drop_spans(1);
        health.exported();
        assert_eq!(*health.last_said.lock().unwrap(), said, "the interval has not passed");
    }

    #[test]
    fn failures_and_drops_are_all_counted() {
        let health = Health::default();
        health.export_failed("traces", "http://collector:4317", &"refused");
        health.export_failed("metrics", "http://collector:4317", &"refused");
        health.drop_spans(3);
        assert_eq!((health.failed_exports(), health.dropped_spans()), (2, 3));
    }
}
