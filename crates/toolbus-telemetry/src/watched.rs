//! Exporters whose failures are counted, behind a queue whose losses are counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use opentelemetry::Context;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::metrics::Temporality;
use opentelemetry_sdk::metrics::data::ResourceMetrics;
use opentelemetry_sdk::metrics::exporter::PushMetricExporter;
use opentelemetry_sdk::trace::{Span, SpanData, SpanExporter, SpanProcessor};
use toolbus_core::redact::Redactor;

use crate::health::{ExportHealth, Loss};
use crate::redacted::clean_span;

/// Number of spans or log records that wait to be exported. The SDK drops what its queue cannot take and counts
/// nothing; this counts the same queue from outside, so that a loss is known.
#[derive(Debug)]
pub(crate) struct ExportQueue {
    count: AtomicUsize,
    limit: usize,
}

impl ExportQueue {
    pub(crate) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { count: AtomicUsize::new(0), limit })
    }

    pub(crate) fn enter(&self) -> bool {
        let enter = |waiting: usize| (waiting < self.limit).then_some(waiting + 1);
        self.count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, enter).is_ok()
    }

    pub(crate) fn leave(&self, count: usize) {
        let leave = |waiting: usize| Some(waiting.saturating_sub(count));
        // Never fails: the function always gives a value.
        let _ = self.count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, leave);
    }
}

/// An exporter of metrics whose failures are counted.
pub(crate) struct WatchedMetrics<E> {
    pub(crate) exporter: E,
    /// Endpoint that it sends to, without credentials.
    pub(crate) endpoint: String,
    pub(crate) health: Arc<ExportHealth>,
}

impl<E: PushMetricExporter> PushMetricExporter for WatchedMetrics<E> {
    async fn export(&self, metrics: &ResourceMetrics) -> OTelSdkResult {
        let exported = self.exporter.export(metrics).await;
        exported.inspect_err(|error| self.health.export_failed("metrics", &self.endpoint, error))
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.exporter.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn temporality(&self) -> Temporality {
        self.exporter.temporality()
    }
}

/// An exporter of spans without secrets, whose failures are counted.
#[derive(Debug)]
pub(crate) struct WatchedSpans<E> {
    pub(crate) exporter: E,
    /// Endpoint that it sends to, without credentials.
    pub(crate) endpoint: String,
    pub(crate) redactor: Redactor,
    pub(crate) health: Arc<ExportHealth>,
    pub(crate) waiting: Arc<ExportQueue>,
}

impl<E: SpanExporter> SpanExporter for WatchedSpans<E> {
    async fn export(&self, mut batch: Vec<SpanData>) -> OTelSdkResult {
        let count = batch.len();
        self.waiting.leave(count);
        batch.iter_mut().for_each(|span| clean_span(&self.redactor, span));
        let exported = self.exporter.export(batch).await;
        match &exported {
            Ok(()) => self.health.exported(Loss::Spans),
            Err(error) => {
                self.health.lose(Loss::Spans, count);
                self.health.export_failed("traces", &self.endpoint, error);
            }
        }
        exported
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.exporter.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

/// A processor that is given no more spans than may wait.
#[derive(Debug)]
pub(crate) struct Bounded<P> {
    pub(crate) processor: P,
    pub(crate) health: Arc<ExportHealth>,
    pub(crate) waiting: Arc<ExportQueue>,
}

impl<P: SpanProcessor> SpanProcessor for Bounded<P> {
    fn on_start(&self, span: &mut Span, context: &Context) {
        self.processor.on_start(span, context);
    }

    fn on_end(&self, span: SpanData) {
        if self.waiting.enter() {
            self.processor.on_end(span);
        } else {
            self.health.lose(Loss::Spans, 1);
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.processor.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.processor.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.processor.set_resource(resource);
    }
}

#[cfg(test)]
mod tests {
    use super::ExportQueue;

    #[test]
    fn no_more_spans_wait_than_may() {
        let waiting = ExportQueue::new(2);
        assert!(waiting.enter());
        assert!(waiting.enter());
        assert!(!waiting.enter());
        waiting.leave(1);
        assert!(waiting.enter());
    }

    #[test]
    fn leaving_more_than_wait_leaves_none() {
        let waiting = ExportQueue::new(1);
        waiting.leave(5);
        assert!(waiting.enter());
        assert!(!waiting.enter());
    }
}
