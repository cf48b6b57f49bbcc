//! The [text format of OpenMetrics](https://prometheus.io/docs/specs/om/open_metrics_spec/), which has exemplars.

use std::collections::HashMap;
use std::fmt::{self, Write as _};

use prometheus::proto::{Histogram, LabelPair, Metric, MetricFamily, MetricType};

use crate::exemplars::{BucketExemplars, Exemplar, series_key};

/// Suffix of the samples of counters, which their family does not have.
const TOTAL: &str = "_total";

/// Writes families of metrics. `exemplars` are those of the histogram of this name, by series.
pub(crate) fn write(families: &[MetricFamily], name: &str, exemplars: &HashMap<String, BucketExemplars>) -> String {
    let mut text = String::new();
    for family in families {
        let exemplars = (family.name() == name).then_some(exemplars);
        // A string takes everything.
        let _ = write_family(&mut text, family, exemplars);
    }
    text.push_str("# EOF\n");
    text
}

fn write_family(
    text: &mut String,
    family: &MetricFamily,
    exemplars: Option<&HashMap<String, BucketExemplars>>,
) -> fmt::Result {
    let kind = family.get_field_type();
    let base = match kind {
        MetricType::COUNTER => family.name().strip_suffix(TOTAL).unwrap_or(family.name()),
        _ => family.name(),
    };
    let word = match kind {
        MetricType::COUNTER => "counter",
        MetricType::GAUGE => "gauge",
        MetricType::HISTOGRAM => "histogram",
        // The reader makes no others.
        MetricType::SUMMARY | MetricType::UNTYPED => return Ok(()),
    };
    writeln!(text, "# HELP {base} {}", Escaped(family.help()))?;
    writeln!(text, "# TYPE {base} {word}")?;
    for metric in family.get_metric() {
        match kind {
            MetricType::COUNTER => write_sample(text, base, TOTAL, metric, metric.get_counter().get_value())?,
            MetricType::GAUGE => write_sample(text, base, "", metric, metric.get_gauge().get_value())?,
            _ => {
                let key = || series_key(metric.get_label().iter().map(|label| (label.name(), label.value())));
                let exemplars = exemplars.and_then(|exemplars| exemplars.get(&key()));
                write_histogram(text, base, metric, exemplars)?;
            }
        }
    }
    Ok(())
}

fn write_sample(text: &mut String, name: &str, suffix: &str, metric: &Metric, value: f64) -> fmt::Result {
    writeln!(text, "{name}{suffix}{} {value}", SampleLabels(metric.get_label(), None))
}

fn write_histogram(text: &mut String, name: &str, metric: &Metric, exemplars: Option<&BucketExemplars>) -> fmt::Result {
    let histogram: &Histogram = metric.get_histogram();
    let count = histogram.get_sample_count();
    let bounded = histogram.get_bucket().iter().filter(|bucket| bucket.upper_bound().is_finite());
    let bounded = bounded.map(|bucket| (bucket.upper_bound().to_string(), bucket.cumulative_count()));
    for (number, (bound, below)) in bounded.chain([("+Inf".to_owned(), count)]).enumerate() {
        write!(text, "{name}_bucket{} {below}", SampleLabels(metric.get_label(), Some(&bound)))?;
        let exemplar = exemplars.and_then(|exemplars| exemplars.get(number)?.as_ref());
        if let Some(Exemplar { trace_id, milliseconds, at }) = exemplar {
            write!(text, " # {{trace_id=\"{}\"}} {milliseconds} {:.3}", Escaped(trace_id), at.as_secs_f64())?;
        }
        text.push('\n');
    }
    write_sample(text, name, "_sum", metric, histogram.get_sample_sum())?;
    write_sample(text, name, "_count", metric, count as f64)
}

/// SampleLabels, with the upper bound of a bucket if there is one; nothing if there are none.
struct SampleLabels<'a>(&'a [LabelPair], Option<&'a str>);

impl fmt::Display for SampleLabels<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(labels, bound) = self;
        let labels = labels.iter().map(|label| (label.name(), label.value()));
        for (number, (name, value)) in labels.chain(bound.map(|bound| ("le", bound))).enumerate() {
            let before = if number == 0 { '{' } else { ',' };
            write!(f, "{before}{name}=\"{}\"", Escaped(value))?;
        }
        if self.0.is_empty() && bound.is_none() { Ok(()) } else { f.write_char('}') }
    }
}

/// A text within quotation marks, or after `# HELP`.
struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|character| match character {
            '\\' => f.write_str("\\\\"),
            '"' => f.write_str("\\\""),
            '\n' => f.write_str("\\n"),
            other => f.write_char(other),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use opentelemetry::KeyValue;
    use opentelemetry::metrics::MeterProvider as _;
    use opentelemetry_sdk::metrics::SdkMeterProvider;
    use prometheus::Registry;
    use toolbus_core::Clock;

    use super::*;
    use crate::exemplars::Exemplars;
    use crate::instruments::INVOKE_BOUNDS;

    #[test]
    fn families_have_the_names_and_samples_of_the_format_and_buckets_their_exemplars() {
        let registry = Registry::new();
        let reader = opentelemetry_prometheus::exporter().with_registry(registry.clone());
        let reader = reader.without_target_info().scope_info_enabled(false).build().unwrap();
        let provider = SdkMeterProvider::builder().with_reader(reader).build();
        let meter = provider.meter("test");
        meter.u64_counter("calls").with_description("a \"b\"\n\\").build().add(3, &[KeyValue::new("tool", "x\"y")]);
        meter.f64_gauge("load").with_description("l").build().record(0.5, &[]);
        let labels: Arc<[KeyValue]> = Arc::new([KeyValue::new("tool_name", "echo"), KeyValue::new("agent", "ana")]);
        let time =
            meter.f64_histogram("time").with_boundaries(INVOKE_BOUNDS[..3].to_vec()).with_description("t").build();
        let exemplars = Exemplars::new(Clock::manual());
        for (milliseconds, trace) in [(1.5, "older"), (2.0, "0af7"), (4.0, "late")] {
            time.record(milliseconds, &labels);
            exemplars.record(&labels, milliseconds, trace);
        }
        let text = write(&registry.gather(), "time", &exemplars.by_series());
        insta::assert_snapshot!(text, @r##"
        # HELP calls a \"b\"\n\\
        # TYPE calls counter
        calls_total{tool="x\"y"} 3
        # HELP load l
        # TYPE load gauge
        load 0.5
        # HELP time t
        # TYPE time histogram
        time_bucket{agent="ana",tool_name="echo",le="1"} 0
        time_bucket{agent="ana",tool_name="echo",le="2"} 2 # {trace_id="0af7"} 2 1767225600.000
        time_bucket{agent="ana",tool_name="echo",le="5"} 3 # {trace_id="late"} 4 1767225600.000
        time_bucket{agent="ana",tool_name="echo",le="+Inf"} 3
        time_sum{agent="ana",tool_name="echo"} 7.5
        time_count{agent="ana",tool_name="echo"} 3
        # EOF
        "##);
    }
}
