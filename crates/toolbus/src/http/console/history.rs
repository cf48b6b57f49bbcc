//! The calls of the last hour in steps of ten seconds, for the charts of the overview. They are differences of metrics that
//! are kept anyway: nothing is added to a call.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use toolbus_telemetry::{CallTotals, MetricsText};

/// Length of a step.
pub(super) const STEP: Duration = Duration::from_secs(10);
/// Steps that are kept: an hour.
pub(super) const MAX_STEPS: usize = 360;
/// Shares of calls that are shown with the time that they took at most.
pub(super) const QUANTILES: [f64; 3] = [0.5, 0.95, 0.99];

/// The last hour.
#[derive(Default)]
pub struct LastHour(Mutex<Steps>);

#[derive(Default)]
struct Steps {
    /// The totals that the next step is the difference to; absent before the first look.
    last: Option<Totals>,
    steps: VecDeque<Arc<Step>>,
}

/// Numbers since the start of the process.
#[derive(Debug, Clone, Default)]
struct Totals {
    by_status: BTreeMap<String, u64>,
    buckets: Vec<u64>,
}

/// Events of one step.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Step {
    /// Calls that ended, by status.
    pub(super) by_status: BTreeMap<String, u64>,
    /// Times of the calls that ended, in milliseconds, by [`QUANTILES`]; absent if none did.
    pub(super) times_ms: Option<[f64; 3]>,
    /// Tools that ran at its end.
    pub(super) in_flight: u64,
    /// Calls that waited for a permit at its end.
    pub(super) waiting: u64,
}

impl Step {
    /// Calls that ended.
    pub(super) fn calls(&self) -> u64 {
        self.by_status.values().sum()
    }
}

impl LastHour {
    /// Takes a step every ten seconds until `stop` is cancelled.
    pub async fn follow(self: Arc<Self>, metrics: MetricsText, stop: CancellationToken) {
        let mut ticks = interval(STEP);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while stop.run_until_cancelled(ticks.tick()).await.is_some() {
            let metrics = metrics.clone();
            // Fails where the process ends.
            let Ok(totals) = spawn_blocking(move || metrics.call_totals()).await else { return };
            self.add(&totals);
        }
    }

    /// The steps, oldest first.
    pub(super) fn steps(&self) -> Vec<Arc<Step>> {
        self.0.lock().steps.iter().cloned().collect()
    }

    fn add(&self, totals: &CallTotals) {
        let now = Totals::of(totals);
        let mut steps = self.0.lock();
        if let Some(last) = &steps.last {
            let since = |(status, count): (&String, &u64)| {
                let more = count.saturating_sub(last.by_status.get(status).copied().unwrap_or_default());
                (more > 0).then(|| (status.clone(), more))
            };
            let before = last.buckets.iter().copied().chain(std::iter::repeat(0));
            let buckets: Vec<u64> =
                now.buckets.iter().zip(before).map(|(now, before)| now.saturating_sub(before)).collect();
            let quantile = |share| CallTotals::quantile(&totals.bounds_ms, &buckets, share);
            let times = QUANTILES.map(quantile);
            let step = Step {
                by_status: now.by_status.iter().filter_map(since).collect(),
                times_ms: if let [Some(a), Some(b), Some(c)] = times { Some([a, b, c]) } else { None },
                in_flight: totals.in_flight,
                waiting: totals.waiting,
            };
            if steps.steps.len() >= MAX_STEPS {
                steps.steps.pop_front();
            }
            steps.steps.push_back(Arc::new(step));
        }
        steps.last = Some(now);
    }
}

impl Totals {
    fn of(totals: &CallTotals) -> Self {
        let mut sums = Self::default();
        for series in &totals.series {
            *sums.by_status.entry(series.status.clone()).or_default() += series.count;
            sums.buckets.resize(sums.buckets.len().max(series.buckets.len()), 0);
            sums.buckets.iter_mut().zip(&series.buckets).for_each(|(sum, count)| *sum += count);
        }
        sums
    }
}

#[cfg(test)]
mod tests {
    use toolbus_telemetry::CallSeries;

    use super::*;

    fn totals(counts: &[(&str, [u64; 3])]) -> CallTotals {
        let series = |(status, buckets): &(&str, [u64; 3])| CallSeries {
            status: (*status).to_owned(),
            count: buckets.iter().sum(),
            buckets: buckets.to_vec(),
            ..CallSeries::default()
        };
        CallTotals {
            bounds_ms: vec![10.0, 20.0],
            series: counts.iter().map(series).collect(),
            in_flight: 2,
            waiting: 1,
        }
    }

    #[test]
    fn a_step_has_the_additions_since_the_previous_one() {
        let history = LastHour::default();
        history.add(&totals(&[("ok", [5, 0, 0])]));
        assert!(history.steps().is_empty());
        history.add(&totals(&[("ok", [5, 4, 0]), ("timeout", [0, 0, 1])]));
        history.add(&totals(&[("ok", [5, 4, 0]), ("timeout", [0, 0, 1])]));
        let steps = history.steps();
        let counts = |pairs: &[(&str, u64)]| pairs.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
        assert_eq!(
            *steps[0],
            Step {
                by_status: counts(&[("ok", 4), ("timeout", 1)]),
                times_ms: steps[0].times_ms,
                in_flight: 2,
                waiting: 1
            }
        );
        assert!(steps[0].times_ms.is_some_and(|[half, most, _]| (10.0..=20.0).contains(&half) && most >= 18.0));
        assert_eq!((steps[1].calls(), steps[1].times_ms), (0, None));
    }

    #[test]
    fn an_hour_is_kept() {
        let history = LastHour::default();
        (0..MAX_STEPS as u64 + 10).for_each(|count| history.add(&totals(&[("ok", [count, 0, 0])])));
        assert_eq!(history.steps().len(), MAX_STEPS);
    }
}
