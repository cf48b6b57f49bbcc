//! Reading what a collector got.

use toolbus_testing::otlp::Receiver;
use toolbus_testing::otlp::proto::common::v1::{AnyValue, KeyValue, any_value};
use toolbus_testing::otlp::proto::metrics::v1::{metric, number_data_point};

/// The text of an attribute, empty when absent.
#[must_use]
pub fn attribute<'a>(attributes: &'a [KeyValue], name: &str) -> &'a str {
    let found = attributes.iter().find(|attribute| attribute.key == name);
    match found.and_then(|attribute| attribute.value.as_ref()) {
        Some(AnyValue { value: Some(any_value::Value::StringValue(text)) }) => text,
        _ => "",
    }
}

fn has(attributes: &[KeyValue], labels: &[(&str, &str)]) -> bool {
    labels.iter().all(|(name, value)| attribute(attributes, name) == *value)
}

/// Returns the sum of a counter or gauge with these labels, in the last export.
///
/// # Panics
///
/// When it is of another kind.
#[must_use]
pub fn sum(receiver: &Receiver, name: &str, labels: &[(&str, &str)]) -> i64 {
    let metrics = receiver.metrics();
    let points = metrics.into_iter().filter(|metric| metric.name == name).flat_map(|metric| match metric.data {
        Some(metric::Data::Sum(sum)) => sum.data_points,
        Some(metric::Data::Gauge(gauge)) => gauge.data_points,
        _ => Vec::new(),
    });
    let values = points.filter(|point| has(&point.attributes, labels)).map(|point| match point.value {
        Some(number_data_point::Value::AsInt(value)) => value,
        other => panic!("{name} is no whole number: {other:?}"),
    });
    values.sum()
}

/// Counts the values that a histogram with these labels has, in the last export.
#[must_use]
pub fn count(receiver: &Receiver, name: &str, labels: &[(&str, &str)]) -> u64 {
    let metrics = receiver.metrics();
    let points = metrics.into_iter().filter(|metric| metric.name == name).flat_map(|metric| match metric.data {
        Some(metric::Data::Histogram(histogram)) => histogram.data_points,
        _ => Vec::new(),
    });
    points.filter(|point| has(&point.attributes, labels)).map(|point| point.count).sum()
}
