//! Metrics in the text format of Prometheus, for those who scrape.

use std::sync::Arc;
use std::time::{Duration, Instant};

use opentelemetry_prometheus::PrometheusExporter;
use opentelemetry_sdk::error::OTelSdkError;
use parking_lot::Mutex;
use prometheus::{Registry, TextEncoder};
use toolbus_core::Clock;

/// Time for which a text is given to further readers. Reading it costs time that calls would have, and anyone who reaches the
/// port may read as often as they like.
const KEPT: Duration = Duration::from_secs(1);

/// The metrics of a process as Prometheus scrapes them.
#[derive(Clone)]
pub struct MetricsText(Arc<ScrapedRegistry>);

struct ScrapedRegistry {
    registry: Registry,
    clock: Clock,
    last: Mutex<Option<(Instant, Arc<str>)>>,
}

impl MetricsText {
    /// Media type of the text.
    pub const MEDIA_TYPE: &str = prometheus::TEXT_FORMAT;

    /// A text, and the reader that it is made from.
    pub(crate) fn new(clock: Clock) -> Result<(Self, PrometheusExporter), OTelSdkError> {
        let registry = Registry::new();
        let reader = opentelemetry_prometheus::exporter().with_registry(registry.clone());
        let reader = reader.scope_info_enabled(false).build()?;
        Ok((Self(Arc::new(ScrapedRegistry { registry, clock, last: Mutex::default() })), reader))
    }

    /// Every metric, at most a second old. Blocks for as long as the metrics take to be read and written, one reader at a
    /// time.
    #[must_use]
    pub fn read(&self) -> Arc<str> {
        let ScrapedRegistry { registry, clock, last } = &*self.0;
        let mut last = last.lock();
        if let Some((at, text)) = &*last
            && clock.since(*at) < KEPT
        {
            return Arc::clone(text);
        }
        // Fails on no metric that the reader makes.
        let text: Arc<str> = TextEncoder::new().encode_to_string(&registry.gather()).unwrap_or_default().into();
        *last = Some((clock.now(), Arc::clone(&text)));
        text
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry::metrics::MeterProvider as _;
    use opentelemetry_sdk::metrics::SdkMeterProvider;

    use super::*;

    #[test]
    fn a_text_is_kept_for_a_second() {
        let clock = Clock::manual();
        let (text, reader) = MetricsText::new(clock).unwrap();
        let provider = SdkMeterProvider::builder().with_reader(reader).build();
        let counter = provider.meter("test").u64_counter("calls").build();
        let add = |expected: &str| {
            counter.add(1, &[]);
            let read = text.read();
            assert!(read.contains(expected), "{read}");
        };
        add("\ncalls_total 1\n");
        add("\ncalls_total 1\n");
        clock.advance(KEPT);
        add("\ncalls_total 3\n");
    }
}
