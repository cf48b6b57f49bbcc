//! Metrics in the text formats of Prometheus and OpenMetrics, for scrapers, and the totals of calls among them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use opentelemetry_prometheus::PrometheusExporter;
use opentelemetry_sdk::error::OTelSdkError;
use parking_lot::Mutex;
use prometheus::proto::{Metric, MetricFamily};
use prometheus::{Registry, TextEncoder};
use serde::{Deserialize, Serialize};
use toolbus_core::Clock;

use crate::exemplars::Exemplars;
use crate::open_metrics;

/// Names of metrics as the reader writes them.
const DURATION: &str = "rockbot_tool_invoke_duration_milliseconds";
const IN_FLIGHT: &str = "toolbus_calls_in_flight";
const WAITING: &str = "toolbus_calls_waiting";

/// Time for which a scrape is repeated to further readers. Reading costs time that calls would have, and any process
/// that reaches the port may read as often as it likes.
const KEPT: Duration = Duration::from_secs(1);

/// The metrics of a process as Prometheus scrapes them.
#[derive(Clone)]
pub struct MetricsText(Arc<ScrapedRegistry>);

struct ScrapedRegistry {
    registry: Registry,
    clock: Clock,
    /// The last text in each format.
    texts: [Kept<Arc<str>>; 2],
    exemplars: Arc<Exemplars>,
    totals: Kept<CallTotals>,
}

/// Format of the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricsFormat {
    /// The text format of Prometheus, which every scraper reads.
    Prometheus,
    /// OpenMetrics, which has exemplars.
    OpenMetrics,
}

impl MetricsFormat {
    const OPEN_METRICS: &str = "application/openmetrics-text";

    /// The format for a scraper that accepts these media types, as the header `Accept` lists them.
    #[must_use]
    pub fn accepted(accept: &str) -> Self {
        let mut types = accept.split(',').filter_map(|item| item.split(';').next());
        match types.any(|kind| kind.trim().eq_ignore_ascii_case(Self::OPEN_METRICS)) {
            true => Self::OpenMetrics,
            false => Self::Prometheus,
        }
    }

    /// Media type of the text.
    #[must_use]
    pub const fn media_type(self) -> &'static str {
        match self {
            Self::Prometheus => prometheus::TEXT_FORMAT,
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// The last reading, and its time.
type Kept<T> = Mutex<Option<(Instant, T)>>;

/// Numbers of calls since the start of the process, by how they ended and how long they took. Readers take differences.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CallTotals {
    /// Upper bounds of the buckets but the last, in milliseconds, ascending. Empty until a call has ended.
    pub bounds_ms: Vec<f64>,
    /// One entry for each combination of labels that had a call.
    pub series: Vec<CallSeries>,
    /// Tools that run now.
    pub in_flight: u64,
    /// Calls that wait for a permit now.
    pub waiting: u64,
}

/// The calls with the same labels.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CallSeries {
    /// Section of the caller; `default` for callers without one, `_other` beyond the limit of labels.
    pub agent: String,
    /// The tool; `_unknown` for names that are none, `_other` beyond the limit of labels.
    pub tool: String,
    /// Source of the tool.
    pub source: String,
    /// `ok`, `error` or a code of the wire.
    pub status: String,
    /// Number of calls.
    pub count: u64,
    /// Number of calls in each bucket, one more than there are bounds.
    pub buckets: Vec<u64>,
}

impl MetricsText {
    /// A text, and the reader that it is made from.
    pub(crate) fn new(clock: Clock) -> Result<(Self, PrometheusExporter), OTelSdkError> {
        let registry = Registry::new();
        let reader = opentelemetry_prometheus::exporter().with_registry(registry.clone());
        let reader = reader.scope_info_enabled(false).build()?;
        let (texts, totals) = Default::default();
        let exemplars = Arc::new(Exemplars::new(clock));
        Ok((Self(Arc::new(ScrapedRegistry { registry, clock, texts, exemplars, totals })), reader))
    }

    /// The exemplars that the text has.
    pub(crate) fn exemplars(&self) -> Arc<Exemplars> {
        Arc::clone(&self.0.exemplars)
    }

    /// Every metric, at most a second old. Blocks for as long as the metrics take to be read and written, one reader at a
    /// time.
    #[must_use]
    pub fn read(&self, format: MetricsFormat) -> Arc<str> {
        let ScrapedRegistry { texts: [plain, open], exemplars, .. } = &*self.0;
        match format {
            // Fails on no metric that the reader makes.
            MetricsFormat::Prometheus => {
                self.0.kept(plain, |families| TextEncoder::new().encode_to_string(families).unwrap_or_default().into())
            }
            MetricsFormat::OpenMetrics => {
                self.0.kept(open, |families| open_metrics::write(families, DURATION, &exemplars.by_series()).into())
            }
        }
    }

    /// The totals of calls, at most a second old. Blocks as [`Self::read`] does.
    #[must_use]
    pub fn call_totals(&self) -> CallTotals {
        self.0.kept(&self.0.totals, CallTotals::of)
    }
}

impl ScrapedRegistry {
    fn kept<T: Clone>(&self, last: &Kept<T>, make: impl FnOnce(&[MetricFamily]) -> T) -> T {
        let mut last = last.lock();
        if let Some((at, made)) = &*last
            && self.clock.since(*at) < KEPT
        {
            return made.clone();
        }
        let made = make(&self.registry.gather());
        *last = Some((self.clock.now(), made.clone()));
        made
    }
}

impl CallTotals {
    fn of(families: &[MetricFamily]) -> Self {
        let of = |name: &str| {
            families.iter().find(|family| family.name() == name).map(MetricFamily::get_metric).unwrap_or_default()
        };
        // A gauge counts calls: it is whole, and not negative.
        let gauge = |name: &str| of(name).first().map(|gauge| gauge.get_gauge().get_value() as u64).unwrap_or_default();
        let durations = of(DURATION);
        let bounds = durations.first().map(|first| first.get_histogram().get_bucket()).unwrap_or_default();
        Self {
            bounds_ms: bounds.iter().map(|bucket| bucket.upper_bound()).collect(),
            series: durations.iter().map(CallSeries::of).collect(),
            in_flight: gauge(IN_FLIGHT),
            waiting: gauge(WAITING),
        }
    }
}

impl CallTotals {
    /// The time that a share (0 to 1) of the calls does not exceed, as if the calls of a bucket were spread evenly; absent
    /// without calls. In the last bucket, which has no upper bound, it is the lower one.
    #[must_use]
    pub fn quantile(bounds_ms: &[f64], buckets: &[u64], share: f64) -> Option<f64> {
        let calls: u64 = buckets.iter().sum();
        let rank = calls as f64 * share;
        let (mut below, mut lower) = (0.0, 0.0);
        for (number, count) in buckets.iter().enumerate().filter(|(_, count)| **count > 0) {
            let count = *count as f64;
            if let Some(before) = number.checked_sub(1).and_then(|before| bounds_ms.get(before)) {
                lower = *before;
            }
            if below + count >= rank {
                let upper = bounds_ms.get(number).copied().unwrap_or(lower);
                return Some(lower + (upper - lower) * (rank - below) / count);
            }
            below += count;
        }
        None
    }
}

impl CallSeries {
    fn of(metric: &Metric) -> Self {
        let label = |name: &str| {
            let pair = metric.get_label().iter().find(|pair| pair.name() == name);
            pair.map(|pair| pair.value().to_owned()).unwrap_or_default()
        };
        let histogram = metric.get_histogram();
        let (count, mut below) = (histogram.get_sample_count(), 0);
        let cumulative = histogram.get_bucket().iter().map(|bucket| bucket.cumulative_count());
        Self {
            agent: label("agent"),
            tool: label("tool_name"),
            source: label("tool_source"),
            status: label("status"),
            count,
            buckets: cumulative
                .chain([count])
                .map(|upto| upto.saturating_sub(std::mem::replace(&mut below, upto)))
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry::KeyValue;
    use opentelemetry::metrics::MeterProvider as _;
    use opentelemetry_sdk::metrics::SdkMeterProvider;

    use super::*;
    use crate::instruments::CallInstruments;

    #[test]
    fn a_text_is_kept_for_a_second() {
        let clock = Clock::manual();
        let (text, reader) = MetricsText::new(clock).unwrap();
        let provider = SdkMeterProvider::builder().with_reader(reader).build();
        let counter = provider.meter("test").u64_counter("calls").build();
        let add = |expected: &str| {
            counter.add(1, &[]);
            let read = text.read(MetricsFormat::Prometheus);
            assert!(read.contains(expected), "{read}");
        };
        add("\ncalls_total 1\n");
        add("\ncalls_total 1\n");
        clock.advance(KEPT);
        add("\ncalls_total 3\n");
    }

    #[test]
    fn quantiles_are_interpolated_within_a_bucket() {
        let of = |buckets: [u64; 3], share| CallTotals::quantile(&[10.0, 100.0], &buckets, share);
        assert_eq!(of([0, 0, 0], 0.5), None);
        assert_eq!(of([4, 0, 0], 0.5), Some(5.0));
        assert_eq!(of([1, 2, 1], 0.5), Some(55.0));
        assert_eq!(of([1, 2, 1], 0.95), Some(100.0));
        assert_eq!(CallTotals::quantile(&[], &[3], 0.5), Some(0.0));
    }

    #[test]
    fn totals_of_calls_are_read_from_the_metrics_and_kept_for_a_second() {
        let clock = Clock::manual();
        let (text, reader) = MetricsText::new(clock).unwrap();
        let provider = SdkMeterProvider::builder().with_reader(reader).build();
        let meter = provider.meter("test");
        assert_eq!(text.call_totals(), CallTotals::default());

        let instruments = CallInstruments::new(&meter);
        let waiting = meter.u64_observable_gauge("toolbus.calls.waiting").with_unit("{call}");
        waiting.with_callback(|gauge| gauge.observe(3, &[])).build();
        let record = |status: &'static str, milliseconds| {
            let names = [("tool_name", "echo"), ("status", status), ("tool_source", "time"), ("agent", "ana")];
            let labels = names.map(|(name, value)| KeyValue::new(name, value));
            instruments.invoke_duration.record(milliseconds, &labels);
        };
        record("ok", 0.5);
        record("ok", 1.5);
        record("ok", 1.6);
        record("timeout", 400_000.0);
        assert_eq!(text.call_totals(), CallTotals::default());

        clock.advance(KEPT);
        let CallTotals { bounds_ms, series, in_flight, waiting } = text.call_totals();
        assert_eq!((bounds_ms.len(), bounds_ms.first(), in_flight, waiting), (17, Some(&1.0), 0, 3));
        let counts = |buckets: &[(usize, u64)]| {
            let count = |bucket| buckets.iter().find(|(at, _)| *at == bucket).map_or(0, |(_, count)| *count);
            (0..=17).map(count).collect::<Vec<_>>()
        };
        let of = |status: &str, count, buckets| CallSeries {
            agent: "ana".to_owned(),
            tool: "echo".to_owned(),
            source: "time".to_owned(),
            status: status.to_owned(),
            count,
            buckets: counts(buckets),
        };
        assert_eq!(series, [of("ok", 3, &[(0, 1), (1, 2)]), of("timeout", 1, &[(17, 1)])]);
    }
}
