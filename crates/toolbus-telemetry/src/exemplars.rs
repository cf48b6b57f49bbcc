//! Exemplars: for each bucket of the time of calls, the trace of the last call in it. OpenTelemetry for Rust records none.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use opentelemetry::KeyValue;
use parking_lot::Mutex;
use toolbus_core::Clock;

use crate::instruments::INVOKE_BOUNDS;

/// The trace of a call.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Exemplar {
    pub(crate) trace_id: Box<str>,
    /// Time of the call, in milliseconds.
    pub(crate) milliseconds: f64,
    /// End, since 1970.
    pub(crate) at: Duration,
}

/// An exemplar for each bucket, the last of which has no upper bound.
pub(crate) type BucketExemplars = [Option<Exemplar>; INVOKE_BOUNDS.len() + 1];

/// The labels of a series, kept so that their address stays theirs, and its exemplars.
type SeriesExemplars = (Arc<[KeyValue]>, BucketExemplars);

/// The exemplars of `rockbot.tool.invoke.duration`. There are as many series as [labels](crate::tools) allow.
pub(crate) struct Exemplars {
    /// By the address of the labels.
    series: Mutex<HashMap<usize, SeriesExemplars>>,
    clock: Clock,
}

impl Exemplars {
    pub(crate) fn new(clock: Clock) -> Self {
        Self { series: Mutex::default(), clock }
    }

    /// Records a call whose trace is sampled.
    pub(crate) fn record(&self, labels: &Arc<[KeyValue]>, milliseconds: f64, trace_id: &str) {
        let bucket = INVOKE_BOUNDS.partition_point(|bound| *bound < milliseconds);
        let exemplar = Exemplar { trace_id: trace_id.into(), milliseconds, at: self.clock.since_epoch() };
        let mut series = self.series.lock();
        let entry = series.entry(Arc::as_ptr(labels).addr());
        let (_, buckets) = entry.or_insert_with(|| (Arc::clone(labels), BucketExemplars::default()));
        if let Some(last) = buckets.get_mut(bucket) {
            *last = Some(exemplar);
        }
    }

    /// The exemplars of each series, by its labels as [`series_key`] writes them.
    pub(crate) fn by_series(&self) -> HashMap<String, BucketExemplars> {
        let key = |labels: &[KeyValue]| {
            series_key(labels.iter().map(|label| (label.key.as_str(), label.value.as_str().into_owned())))
        };
        self.series.lock().values().map(|(labels, buckets)| (key(labels), buckets.clone())).collect()
    }
}

/// A text for the labels of a series, whatever their order is.
pub(crate) fn series_key<N: AsRef<str> + Ord, V: AsRef<str> + Ord>(labels: impl Iterator<Item = (N, V)>) -> String {
    let mut labels: Vec<_> = labels.collect();
    labels.sort();
    labels.iter().fold(String::new(), |key, (name, value)| key + name.as_ref() + "\0" + value.as_ref() + "\0")
}
