//! Log records over OTLP: the events of the log, redacted, bounded and with their trace.

use std::sync::Arc;
use std::time::Duration;

use opentelemetry::logs::{AnyValue, LogRecord, Logger, LoggerProvider};
use opentelemetry::{InstrumentationScope, SpanId, TraceId};
use opentelemetry_appender_tracing::layer::OpenTelemetryTracingBridge;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::logs::{LogBatch, LogExporter, LogProcessor, SdkLogRecord, SdkLogger, SdkLoggerProvider};
use toolbus_core::redact::Redactor;
use tracing::Subscriber;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::registry::LookupSpan;

use crate::health::{ExportHealth, Loss};
use crate::watched::ExportQueue;

/// Longest body or attribute, in bytes.
const MAX_TEXT: usize = 4_096;
/// Field of an event that names its trace: 32 hexadecimal digits.
const TRACE_ID: &str = "trace_id";
/// Targets that export telemetry, whose own events are not exported: each would cause the next one.
const EXPORTING: [&str; 9] =
    ["h2", "hyper", "hyper_util", "opentelemetry", "reqwest", "rustls", "tonic", "tower", "toolbus_telemetry"];

/// Exports the events that `filter` of the log passes, without those of the exporters themselves.
pub(crate) fn layer<S>(provider: &SdkLoggerProvider) -> impl Layer<S> + use<S>
where
    S: Subscriber + for<'span> LookupSpan<'span>,
{
    let exporting = EXPORTING.map(|target| (target, LevelFilter::OFF));
    let others = Targets::new().with_default(LevelFilter::TRACE).with_targets(exporting);
    OpenTelemetryTracingBridge::new(provider).with_filter(others)
}

/// Gives a processor no more records than may wait, and each of them clean.
#[derive(Debug)]
pub(crate) struct CleanLogs<P> {
    processor: P,
    redactor: Redactor,
    health: Arc<ExportHealth>,
    waiting: Arc<ExportQueue>,
    /// The SDK makes records through a logger alone, and changes no attribute of one.
    empty: SdkLogRecord,
}

impl<P: LogProcessor> CleanLogs<P> {
    pub(crate) fn new(processor: P, redactor: Redactor, health: Arc<ExportHealth>, waiting: Arc<ExportQueue>) -> Self {
        let maker: SdkLogger = SdkLoggerProvider::builder().build().logger("");
        Self { processor, redactor, health, waiting, empty: maker.create_log_record() }
    }

    /// The record without secrets, with bounded texts and the trace that its event names. The name that `tracing` gives an
    /// event is a position in the source, and left out.
    fn clean(&self, record: &SdkLogRecord) -> SdkLogRecord {
        let mut clean = self.empty.clone();
        let observed = record.observed_timestamp().unwrap_or_else(|| self.health.clock().wall());
        clean.set_observed_timestamp(observed);
        clean.set_timestamp(record.timestamp().unwrap_or(observed));
        if let Some(severity) = record.severity_number() {
            clean.set_severity_number(severity);
        }
        if let Some(text) = record.severity_text() {
            clean.set_severity_text(text);
        }
        if let Some(target) = record.target() {
            clean.set_target(target.clone());
        }
        if let Some(body) = record.body().and_then(|body| self.value(body)) {
            clean.set_body(body);
        }
        let attributes = record.attributes_iter().filter_map(|(key, value)| Some((key.clone(), self.value(value)?)));
        clean.add_attributes(attributes);
        if let Some(trace) = record.trace_context() {
            clean.set_trace_context(trace.trace_id, trace.span_id, trace.trace_flags);
        } else if let Some(trace_id) = named_trace(record) {
            clean.set_trace_context(trace_id, SpanId::INVALID, None);
        }
        clean
    }

    /// Events have texts, numbers and flags.
    fn value(&self, value: &AnyValue) -> Option<AnyValue> {
        match value {
            AnyValue::String(text) => Some(self.redactor.beginning(text.as_str(), MAX_TEXT).into_owned().into()),
            AnyValue::Int(_) | AnyValue::Double(_) | AnyValue::Boolean(_) => Some(value.clone()),
            _ => None,
        }
    }
}

/// The trace of a call, which the log names in a field.
fn named_trace(record: &SdkLogRecord) -> Option<TraceId> {
    let (_, value) = record.attributes_iter().find(|(key, _)| key.as_str() == TRACE_ID)?;
    let AnyValue::String(text) = value else { return None };
    TraceId::from_hex(text.as_str()).ok().filter(|id| *id != TraceId::INVALID)
}

impl<P: LogProcessor> LogProcessor for CleanLogs<P> {
    fn emit(&self, record: &mut SdkLogRecord, scope: &InstrumentationScope) {
        if self.waiting.enter() {
            *record = self.clean(record);
            self.processor.emit(record, scope);
        } else {
            self.health.lose(Loss::Logs, 1);
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

/// An exporter of log records whose failures are counted.
#[derive(Debug)]
pub(crate) struct WatchedLogs<E> {
    pub(crate) exporter: E,
    /// Endpoint that it sends to, without credentials.
    pub(crate) endpoint: String,
    pub(crate) health: Arc<ExportHealth>,
    pub(crate) waiting: Arc<ExportQueue>,
}

impl<E: LogExporter> LogExporter for WatchedLogs<E> {
    async fn export(&self, batch: LogBatch<'_>) -> OTelSdkResult {
        let count = batch.iter().count();
        self.waiting.leave(count);
        let exported = self.exporter.export(batch).await;
        match &exported {
            Ok(()) => self.health.exported(Loss::Logs),
            Err(error) => {
                self.health.lose(Loss::Logs, count);
                self.health.export_failed("logs", &self.endpoint, error);
            }
        }
        exported
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}
