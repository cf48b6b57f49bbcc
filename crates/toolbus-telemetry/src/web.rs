//! Records of the web tools.

use opentelemetry::KeyValue;
use opentelemetry::metrics::{Counter, Histogram, Meter};
use toolbus_core::events::{WebEvents, WebFetch, WebSearch};

use crate::labels::among;

/// Bytes, from 1 KiB to 16 MiB.
const SIZE_BOUNDS: [f64; 8] = [1_024.0, 4_096.0, 16_384.0, 65_536.0, 262_144.0, 1_048_576.0, 4_194_304.0, 16_777_216.0];

/// Records pages and searches. Without a collector it does nothing.
pub struct WebRecorder {
    instruments: Option<WebInstruments>,
}

struct WebInstruments {
    fetches: Counter<u64>,
    size: Histogram<u64>,
    refusals: Counter<u64>,
    searches: Counter<u64>,
}

impl WebRecorder {
    pub(crate) fn new(meter: Option<&Meter>) -> Self {
        Self { instruments: meter.map(WebInstruments::new) }
    }
}

impl WebEvents for WebRecorder {
    fn fetched(&self, fetch: &WebFetch) {
        let Some(instruments) = &self.instruments else { return };
        let WebFetch { outcome, site, refusal, size } = *fetch;
        let (outcome, site) = (among(&WebFetch::OUTCOMES, outcome), among(&WebFetch::SITES, site));
        instruments.fetches.add(1, &fetch_labels(outcome, site));
        if let Some(reason) = refusal {
            instruments.refusals.add(1, &[KeyValue::new("reason", among(&WebFetch::REFUSALS, reason))]);
        }
        if let Some(size) = size {
            instruments.size.record(size, &[]);
        }
    }

    fn searched(&self, search: &WebSearch) {
        let Some(instruments) = &self.instruments else { return };
        let provider = KeyValue::new("provider", among(&WebSearch::PROVIDERS, search.provider));
        let outcome = KeyValue::new("outcome", among(&WebSearch::OUTCOMES, search.outcome));
        instruments.searches.add(1, &[provider, outcome]);
    }
}

impl WebInstruments {
    fn new(meter: &Meter) -> Self {
        let counter = |name: &'static str, unit: &'static str, description: &'static str| {
            meter.u64_counter(name).with_unit(unit).with_description(description).build()
        };
        let fetches = counter("toolbus.web.fetches", "{fetch}", "Pages that were asked for.");
        let refusals = counter("toolbus.web.refusals", "{refusal}", "Pages that the egress rules refused.");
        for outcome in WebFetch::OUTCOMES {
            fetches.add(0, &fetch_labels(outcome, WebFetch::WEB));
        }
        WebFetch::REFUSALS.iter().for_each(|reason| refusals.add(0, &[KeyValue::new("reason", *reason)]));
        let size = meter.u64_histogram("toolbus.web.page.size").with_unit("By");
        let size = size.with_description("Size of a page that was received, without compression.");
        Self {
            fetches,
            size: size.with_boundaries(SIZE_BOUNDS.to_vec()).build(),
            refusals,
            searches: counter("toolbus.web.searches", "{search}", "Queries that a search engine was asked."),
        }
    }
}

fn fetch_labels(outcome: &'static str, site: &'static str) -> [KeyValue; 2] {
    [KeyValue::new("outcome", outcome), KeyValue::new("site", site)]
}
