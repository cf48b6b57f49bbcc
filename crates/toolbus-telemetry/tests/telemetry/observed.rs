//! Telemetry that arrived at a receiver, in the words of the contract.

use std::collections::{BTreeMap, BTreeSet};

use toolbus_testing::otlp::Receiver;
use toolbus_testing::otlp::proto::common::v1::{KeyValue, any_value::Value};
use toolbus_testing::otlp::proto::metrics::v1::{Metric, metric::Data, number_data_point};
use toolbus_testing::otlp::proto::trace::v1::{Span, span::SpanKind};

pub(crate) type Attributes = BTreeMap<String, String>;

/// One metric.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Series {
    pub(crate) kind: &'static str,
    pub(crate) unit: String,
    pub(crate) bounds: Vec<f64>,
    /// Each series, with its count (histograms) or value.
    pub(crate) points: Vec<(Attributes, f64)>,
}

impl Series {
    /// The count or value of the series with these attributes.
    pub(crate) fn value(&self, attributes: &[(&str, &str)]) -> Option<f64> {
        let matches = |point: &&(Attributes, f64)| {
            attributes.iter().all(|(key, value)| point.0.get(*key).is_some_and(|found| found == value))
        };
        let matching: Vec<f64> = self.points.iter().filter(matches).map(|(_, value)| *value).collect();
        (!matching.is_empty()).then(|| matching.iter().sum())
    }

    /// Every value of an attribute.
    pub(crate) fn values(&self, attribute: &str) -> BTreeSet<&str> {
        self.points.iter().filter_map(|(attributes, _)| attributes.get(attribute)).map(String::as_str).collect()
    }
}

/// The metrics of the last export, by name.
pub(crate) fn metrics(receiver: &Receiver) -> BTreeMap<String, Series> {
    receiver.metrics().into_iter().map(|metric| (metric.name.clone(), series(metric))).collect()
}

#[expect(clippy::cast_precision_loss, reason = "tests count to some thousands")]
fn series(metric: Metric) -> Series {
    let number = |value: Option<number_data_point::Value>| match value {
        Some(number_data_point::Value::AsInt(value)) => value as f64,
        Some(number_data_point::Value::AsDouble(value)) => value,
        None => f64::NAN,
    };
    let (kind, bounds, points) = match metric.data.unwrap() {
        Data::Histogram(histogram) => {
            let bounds = histogram.data_points[0].explicit_bounds.clone();
            let points = histogram.data_points.into_iter();
            ("histogram", bounds, points.map(|point| (attributes(point.attributes), point.count as f64)).collect())
        }
        Data::Sum(sum) => {
            let kind = if sum.is_monotonic { "counter" } else { "up-down counter" };
            let points = sum.data_points.into_iter();
            (kind, Vec::new(), points.map(|point| (attributes(point.attributes), number(point.value))).collect())
        }
        Data::Gauge(gauge) => {
            let points = gauge.data_points.into_iter();
            ("gauge", Vec::new(), points.map(|point| (attributes(point.attributes), number(point.value))).collect())
        }
        other => panic!("{} is a {other:?}", metric.name),
    };
    Series { kind, unit: metric.unit, bounds, points }
}

pub(crate) fn attributes(list: Vec<KeyValue>) -> Attributes {
    list.into_iter().map(|pair| (pair.key, text(pair.value.and_then(|value| value.value)))).collect()
}

fn text(value: Option<Value>) -> String {
    match value {
        Some(Value::StringValue(text)) => text,
        Some(Value::IntValue(number)) => number.to_string(),
        Some(Value::BoolValue(flag)) => flag.to_string(),
        other => panic!("an attribute is {other:?}"),
    }
}

/// The only span whose name begins so.
pub(crate) fn span<'a>(spans: &'a [Span], name: &str) -> &'a Span {
    let mut found = spans.iter().filter(|span| span.name.starts_with(name));
    let span = found.next().unwrap_or_else(|| panic!("no span `{name}`"));
    assert!(found.next().is_none(), "more than one span `{name}`");
    span
}

pub(crate) fn kind(span: &Span) -> &'static str {
    match span.kind() {
        SpanKind::Consumer => "consumer",
        SpanKind::Producer => "producer",
        SpanKind::Internal => "internal",
        SpanKind::Client => "client",
        SpanKind::Server => "server",
        SpanKind::Unspecified => "unspecified",
    }
}

pub(crate) fn hex(id: &[u8]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}
