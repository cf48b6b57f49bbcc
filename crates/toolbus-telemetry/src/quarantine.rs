//! Metrics of tools that are quarantined, and of definitions that changed.

use std::collections::BTreeMap;
use std::sync::Arc;

use opentelemetry::KeyValue;
use opentelemetry::metrics::Meter;
use toolbus_protocol::bounded;

/// Attribute of the source.
const SOURCE: &str = "tool_source";
/// Stands for every source that is too many.
const OTHER: &str = "_other";
/// Sources that have a series of their own.
const MAX_SOURCES: usize = 1_000;

/// The quarantined tools of one source.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct QuarantinedTools {
    /// The source.
    pub source: String,
    /// Number of quarantined tools.
    pub count: u64,
    /// Number of definitions of the source that were not as they were, since the start.
    pub changes: u64,
}

/// Calls `look` at each export for the sources that have some.
pub(crate) fn observe(meter: &Meter, look: impl Fn() -> Vec<QuarantinedTools> + Send + Sync + 'static) {
    let look = Arc::new(look);
    let of_changes = Arc::clone(&look);
    let held = meter.u64_observable_gauge("toolbus.pins.held").with_unit("{tool}");
    let held = held.with_description("Tools that are quarantined until an operator approves them.");
    let by_source = held.with_callback(move |gauge| {
        for (source, of_source) in bounded_sources(look()) {
            gauge.observe(of_source.count, &[KeyValue::new(SOURCE, source)]);
        }
    });
    by_source.build();
    let changes = meter.u64_observable_counter("toolbus.pins.changes").with_unit("{change}");
    let changes = changes.with_description("Definitions of tools that were not as they were.");
    let by_source = changes.with_callback(move |counter| {
        for (source, of_source) in bounded_sources(of_changes()) {
            counter.observe(of_source.changes, &[KeyValue::new(SOURCE, source)]);
        }
    });
    by_source.build();
}

/// The first sources by name, and one sum for those that are too many.
fn bounded_sources(all: Vec<QuarantinedTools>) -> BTreeMap<String, QuarantinedTools> {
    let mut shown: BTreeMap<String, QuarantinedTools> = BTreeMap::new();
    let mut all: Vec<_> = all.into_iter().map(|one| (bounded(&one.source).to_owned(), one)).collect();
    all.sort_by(|(a, _), (b, _)| a.cmp(b));
    for (number, (source, one)) in all.into_iter().enumerate() {
        let source = if number < MAX_SOURCES { source } else { OTHER.to_owned() };
        let sum = shown.entry(source).or_default();
        sum.count += one.count;
        sum.changes += one.changes;
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_beyond_the_limit_are_one_sum() {
        let one = |number| QuarantinedTools { source: format!("mcp:{number:05}"), count: 1, changes: 2 };
        let shown = bounded_sources((0..MAX_SOURCES + 3).map(one).collect());
        assert_eq!((shown.len(), shown[OTHER].count, shown[OTHER].changes), (MAX_SOURCES + 1, 3, 6));
    }
}
