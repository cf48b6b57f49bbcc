//! What is looked up at each export: tools and configurations that are not as they were, and the ledger.

use std::collections::BTreeMap;
use std::sync::Arc;

use opentelemetry::KeyValue;
use opentelemetry::metrics::Meter;
use toolbus_core::ledger::LedgerUsage;
use toolbus_protocol::bounded;

/// The attribute that says which source.
const SOURCE: &str = "tool_source";
/// Stands for every source that is too many.
const OTHER: &str = "_other";
/// Sources that have a series of their own.
const MAX_SOURCES: usize = 1_000;

/// What is looked up at each export, of one source.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HeldTools {
    /// The source.
    pub source: String,
    /// Its quarantined tools.
    pub held: u64,
    /// Its definitions that were not as they were, since the start.
    pub changes: u64,
}

/// Registers what is looked up at each export.
pub(crate) fn observe(meter: &Meter, look: impl Fn() -> Vec<HeldTools> + Send + Sync + 'static) {
    let look = Arc::new(look);
    let of_changes = Arc::clone(&look);
    let held = meter.u64_observable_gauge("toolbus.pins.held").with_unit("{tool}");
    let held = held.with_description("Tools that are quarantined until an operator approves them.");
    let by_source = held.with_callback(move |gauge| {
        for (source, of_source) in bounded_sources(look()) {
            gauge.observe(of_source.held, &[KeyValue::new(SOURCE, source)]);
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

/// Registers how many reloads of the configuration there were, by outcome.
pub(crate) fn observe_reloads(meter: &Meter, look: impl Fn() -> [(&'static str, u64); 2] + Send + Sync + 'static) {
    let reloads = meter.u64_observable_counter("toolbus.config.reloads").with_unit("{reload}");
    let reloads = reloads.with_description("Reloads of the configuration.");
    let by_outcome = reloads.with_callback(move |counter| {
        for (outcome, count) in look() {
            counter.observe(count, &[KeyValue::new("outcome", outcome)]);
        }
    });
    by_outcome.build();
}

/// Registers how much the ledger keeps.
pub(crate) fn observe_ledger(meter: &Meter, look: impl Fn() -> LedgerUsage + Send + Sync + 'static) {
    let look = Arc::new(look);
    let (of_bytes, of_shed) = (Arc::clone(&look), Arc::clone(&look));
    let gauge = |name: &'static str, unit: &'static str, description: &'static str| {
        meter.u64_observable_gauge(name).with_unit(unit).with_description(description)
    };
    let entries = gauge("toolbus.ledger.entries", "{entry}", "Calls that the ledger knows.");
    entries.with_callback(move |gauge| gauge.observe(look().entries, &[])).build();
    let bytes = gauge("toolbus.ledger.size", "By", "What the ledger keeps of them.");
    bytes.with_callback(move |gauge| gauge.observe(of_bytes().bytes, &[])).build();
    let shed = meter.u64_observable_counter("toolbus.ledger.shed").with_unit("{entry}");
    let shed = shed.with_description("Answered calls that the ledger forgot before their time, to make room.");
    shed.with_callback(move |counter| counter.observe(of_shed().shed, &[])).build();
}

/// Registers how many replicas share a store, by whether they have the configuration of this one.
pub(crate) fn observe_replicas(meter: &Meter, look: impl Fn() -> [(&'static str, u64); 2] + Send + Sync + 'static) {
    let replicas = meter.u64_observable_gauge("toolbus.replicas").with_unit("{replica}");
    let replicas = replicas.with_description("Replicas that share a store.");
    let by_configuration = replicas.with_callback(move |gauge| {
        for (configuration, count) in look() {
            gauge.observe(count, &[KeyValue::new("configuration", configuration)]);
        }
    });
    by_configuration.build();
}

/// The first sources by name, and one sum for those that are too many.
fn bounded_sources(all: Vec<HeldTools>) -> BTreeMap<String, HeldTools> {
    let mut shown: BTreeMap<String, HeldTools> = BTreeMap::new();
    let mut all: Vec<_> = all.into_iter().map(|one| (bounded(&one.source).to_owned(), one)).collect();
    all.sort_by(|(a, _), (b, _)| a.cmp(b));
    for (number, (source, one)) in all.into_iter().enumerate() {
        let source = if number < MAX_SOURCES { source } else { OTHER.to_owned() };
        let sum = shown.entry(source).or_default();
        sum.held += one.held;
        sum.changes += one.changes;
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_that_are_too_many_are_one_sum() {
        let one = |number| HeldTools { source: format!("mcp:{number:05}"), held: 1, changes: 2 };
        let shown = bounded_sources((0..MAX_SOURCES + 3).map(one).collect());
        assert_eq!((shown.len(), shown[OTHER].held, shown[OTHER].changes), (MAX_SOURCES + 1, 3, 6));
    }
}
