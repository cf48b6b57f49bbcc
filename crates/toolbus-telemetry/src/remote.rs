//! Counts that are looked up at each export of tool sets whose tools other daemons list.

use std::collections::BTreeMap;
use std::sync::Arc;

use opentelemetry::KeyValue;
use opentelemetry::metrics::Meter;
use toolbus_protocol::bounded;

/// Attribute of the set, by the source of its tools.
const SOURCE: &str = "tool_source";
/// Stands for every source that is too many.
const OTHER: &str = "_other";
/// Sources that have a series of their own.
const MAX_SOURCES: usize = 1_000;

/// Tool sets whose tools other daemons list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RemoteSetCounts {
    /// Each phase, with the number of sets in it.
    pub phases: Vec<(&'static str, u64)>,
    /// Source of each set whose tools are known, and seconds since the last list of the other daemon.
    pub ages: Vec<(String, u64)>,
}

/// Registers the instruments that are observed at each export.
pub(crate) fn observe(meter: &Meter, look: impl Fn() -> RemoteSetCounts + Send + Sync + 'static) {
    let look = Arc::new(look);
    let of_ages = Arc::clone(&look);
    let sets = meter.u64_observable_gauge("toolbus.remote.sets").with_unit("{toolset}");
    let sets = sets.with_description("Tool sets whose tools other daemons list, by what is known of these.");
    let by_phase = sets.with_callback(move |gauge| {
        for (phase, count) in look().phases {
            gauge.observe(count, &[KeyValue::new("phase", phase)]);
        }
    });
    by_phase.build();
    let ages = meter.u64_observable_gauge("toolbus.remote.list.age").with_unit("s");
    let ages = ages.with_description("Time since another daemon said last which tools it has.");
    let by_source = ages.with_callback(move |gauge| {
        for (source, age) in bounded_ages(of_ages().ages) {
            gauge.observe(age, &[KeyValue::new(SOURCE, source)]);
        }
    });
    by_source.build();
}

/// The first sources by name, and the oldest of those that are too many.
fn bounded_ages(mut all: Vec<(String, u64)>) -> BTreeMap<String, u64> {
    all.sort();
    let mut shown = BTreeMap::new();
    for (source, age) in all {
        let source = bounded(&source);
        let source = if shown.len() < MAX_SOURCES || shown.contains_key(source) { source } else { OTHER };
        let oldest = shown.entry(source.to_owned()).or_insert(age);
        *oldest = age.max(*oldest);
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_beyond_the_limit_are_one_value_the_oldest() {
        let ages = |count: usize| (0..count).map(|number| (format!("remote:{number:05}"), number as u64)).collect();
        let shown = bounded_ages(ages(MAX_SOURCES + 3));
        assert_eq!((shown.len(), shown[OTHER]), (MAX_SOURCES + 1, MAX_SOURCES as u64 + 2));
        assert!(!bounded_ages(ages(MAX_SOURCES)).contains_key(OTHER));
    }

    #[test]
    fn of_two_sets_with_one_source_the_older_list_counts() {
        let of = |age| ("mcp:notes".to_owned(), age);
        assert_eq!(bounded_ages(vec![of(3), of(70), of(5)]), BTreeMap::from([of(70)]));
    }
}
