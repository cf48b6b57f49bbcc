//! The layer that exports lifecycle spans.

use opentelemetry_sdk::trace::SdkTracer;
use toolbus_core::lifecycle::TARGET;
use tracing::Subscriber;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::registry::LookupSpan;

/// Exports the spans of [`TARGET`], and nothing else. Every other callsite is disabled for this layer when it is
/// registered, so that the events of a call cost what they cost without it.
pub(crate) fn layer<S>(tracer: SdkTracer) -> impl Layer<S>
where
    S: Subscriber + for<'span> LookupSpan<'span>,
{
    let plain = tracing_opentelemetry::layer().with_tracer(tracer).with_location(false).with_threads(false);
    let plain = plain.with_tracked_inactivity(false).with_level(false).with_target(false);
    plain.with_filter(Targets::new().with_target(TARGET, LevelFilter::INFO))
}
