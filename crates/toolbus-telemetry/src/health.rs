use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use toolbus_core::Clock;
use toolbus_core::text::with_dates;

/// Least time between two lines of the log about a collector that fails.
const QUIET: Duration = Duration::from_secs(60);
/// Longest part of an exporter's error that is logged, in characters.
const MAX_SHOWN: usize = 200;

/// Failures on the way to the collector: counted always, logged now and then.
#[derive(Debug, Default)]
pub(crate) struct ExportHealth {
    spans: Losses,
    logs: Losses,
    failed_exports: AtomicU64,
    last_logged: Mutex<Option<Instant>>,
    clock: Clock,
}

/// Kind of data that is lost where it cannot be queued or exported. Metrics are cumulative: the next export has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loss {
    Spans,
    Logs,
}

#[derive(Debug, Default)]
struct Losses {
    count: AtomicU64,
    /// Number of losses that the log has reported.
    reported: AtomicU64,
}

impl Losses {
    fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// The count, as it is reported now.
    fn report(&self) -> u64 {
        let count = self.count();
        self.reported.store(count, Ordering::Relaxed);
        count
    }

    fn has_new(&self) -> bool {
        self.count() > self.reported.load(Ordering::Relaxed)
    }
}

impl ExportHealth {
    pub(crate) fn new(clock: Clock) -> Self {
        Self { clock, ..Self::default() }
    }

    pub(crate) const fn clock(&self) -> Clock {
        self.clock
    }

    fn losses(&self, of: Loss) -> &Losses {
        match of {
            Loss::Spans => &self.spans,
            Loss::Logs => &self.logs,
        }
    }

    /// Spans that were not exported since the start.
    pub(crate) fn dropped_spans(&self) -> u64 {
        self.spans.count()
    }

    /// Log records that were not exported since the start.
    pub(crate) fn dropped_logs(&self) -> u64 {
        self.logs.count()
    }

    /// Exports that failed since the start.
    pub(crate) fn failed_exports(&self) -> u64 {
        self.failed_exports.load(Ordering::Relaxed)
    }

    pub(crate) fn lose(&self, what: Loss, count: usize) {
        self.losses(what).count.fetch_add(u64::try_from(count).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    pub(crate) fn export_failed(&self, signal: &'static str, endpoint: &str, error: &dyn std::fmt::Display) {
        let failed_exports = self.failed_exports.fetch_add(1, Ordering::Relaxed) + 1;
        if self.may_speak(self.clock.now()) {
            let error: String = with_dates(&error.to_string()).chars().take(MAX_SHOWN).collect();
            let (dropped_spans, dropped_logs) = (self.spans.report(), self.logs.report());
            tracing::warn!(
                signal,
                endpoint,
                failed_exports,
                dropped_spans,
                dropped_logs,
                error,
                "could not export telemetry"
            );
        }
    }

    /// Logs the drops that happened though exporting works. The exporter's thread calls it: a call, which drops, has no
    /// time to log.
    pub(crate) fn exported(&self, what: Loss) {
        let losses = self.losses(what);
        if !losses.has_new() || !self.may_speak(self.clock.now()) {
            return;
        }
        let count = losses.report();
        match what {
            Loss::Spans => {
                tracing::warn!(dropped_spans = count, "dropped spans that came faster than the collector took them");
            }
            Loss::Logs => {
                tracing::warn!(
                    dropped_logs = count,
                    "dropped log records that came faster than the collector took them"
                );
            }
        }
    }

    fn may_speak(&self, now: Instant) -> bool {
        let mut last_logged = self.last_logged.lock();
        let due = last_logged.is_none_or(|logged| now.saturating_duration_since(logged) >= QUIET);
        if due {
            *last_logged = Some(now);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::{ExportHealth, Loss, QUIET};

    #[test]
    fn failures_are_logged_at_most_once_per_interval() {
        let health = ExportHealth::default();
        let start = Instant::now();
        assert!(health.may_speak(start));
        assert!(!health.may_speak(start + QUIET - Duration::from_millis(1)));
        assert!(health.may_speak(start + QUIET));
        assert!(!health.may_speak(start + QUIET + Duration::from_secs(1)));
    }

    #[test]
    fn new_drops_are_logged_once_per_interval() {
        let health = ExportHealth::default();
        health.exported(Loss::Spans);
        assert!(health.last_logged.lock().is_none(), "nothing was dropped");
        health.lose(Loss::Spans, 1);
        health.exported(Loss::Spans);
        let logged = *health.last_logged.lock();
        assert!(logged.is_some());
        health.lose(Loss::Spans, 1);
        health.exported(Loss::Spans);
        assert_eq!(*health.last_logged.lock(), logged, "the interval has not passed");
    }

    #[test]
    fn failures_and_drops_are_all_counted() {
        let health = ExportHealth::default();
        health.export_failed("traces", "http://collector:4317", &"refused");
        health.export_failed("metrics", "http://collector:4317", &"refused");
        health.lose(Loss::Spans, 3);
        health.lose(Loss::Logs, 2);
        assert_eq!((health.failed_exports(), health.dropped_spans(), health.dropped_logs()), (2, 3, 2));
    }
}
