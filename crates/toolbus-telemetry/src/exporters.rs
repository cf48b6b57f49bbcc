use std::sync::Arc;
use std::time::Duration;

use opentelemetry::metrics::{Meter, MeterProvider};
use opentelemetry::trace::TracerProvider;
use opentelemetry_prometheus::PrometheusExporter;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
use opentelemetry_sdk::logs::{self as sdk_logs, BatchLogProcessor, SdkLoggerProvider};
use opentelemetry_sdk::metrics::reader::MetricReader;
use opentelemetry_sdk::metrics::{Instrument, PeriodicReader, SdkMeterProvider, Stream};
use opentelemetry_sdk::trace::{BatchConfig, BatchConfigBuilder, BatchSpanProcessor, SdkTracerProvider};
use tokio::sync::{oneshot, watch};
use toolbus_core::bus::BusState;
use toolbus_core::ledger::{LedgerLimits, LedgerUsage};
use toolbus_core::lifecycle;
use toolbus_core::redact::Redactor;
use toolbus_core::telemetry::{Load, Telemetry};
use tracing::Subscriber;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::registry::LookupSpan;

use crate::agents::AgentRecorder;
use crate::call::CallRecorder;
use crate::environment::{Environment, EnvironmentError, ExportRoute, Signal, sampler};
use crate::health::ExportHealth;
use crate::instruments::{self, CallInstruments};
use crate::logs::{self, CleanLogs, WatchedLogs};
use crate::mcp_client::{self, McpClientRecorder, McpServerCounts};
use crate::mcp_server::{self, McpServerRecorder};
use crate::quarantine::{self, QuarantinedTools};
use crate::remote::{self, RemoteSetCounts};
use crate::resource::resource;
use crate::scrape::MetricsText;
use crate::scripts::{self, ScriptLoad, ScriptRecorder};
use crate::settings::{BusIdentity, TelemetrySettings};
use crate::subagents::SubagentRecorder;
use crate::tools::MAX_SERIES;
use crate::transport::{self, TransportError};
use crate::watched::{Bounded, ExportQueue, WatchedMetrics, WatchedSpans};
use crate::web::WebRecorder;

/// Name of the instrumentation scope.
const SCOPE: &str = "toolbus";

/// The exporters of metrics, spans and log records. Without an endpoint and a scraper there are none, and they cost
/// nothing.
pub struct Exporters {
    tracing: Option<SdkTracerProvider>,
    metering: Option<SdkMeterProvider>,
    logging: Option<SdkLoggerProvider>,
    text: Option<MetricsText>,
    health: Arc<ExportHealth>,
}

/// Reason why telemetry could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// A variable or a setting is not valid.
    #[error(transparent)]
    Environment(#[from] EnvironmentError),
    /// An exporter could not be built.
    #[error("no exporter of {signal} could be built: {source}")]
    Exporter {
        /// `traces`, `metrics` or `logs`.
        signal: &'static str,
        /// The reason.
        source: TransportError,
    },
    /// Metrics could not be offered to scrapers.
    #[error("metrics cannot be scraped: {0}")]
    Scrape(#[from] OTelSdkError),
    /// Exporting needs an asynchronous runtime.
    #[error("telemetry must be started inside a tokio runtime")]
    NoRuntime,
}

/// Number of signals.
pub const SIGNALS: usize = Signal::ALL.len();

/// Target of the export of a signal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportTarget {
    /// `traces`, `metrics` or `logs`.
    pub signal: String,
    /// The address, without credentials and query.
    pub endpoint: String,
    /// The variable or setting that names it.
    pub origin: String,
}

/// Returns the export target of each signal, without exporting any.
///
/// # Errors
///
/// Every variable or setting that [`Exporters::start`] would refuse.
pub fn targets(
    settings: &TelemetrySettings,
    look_up: &dyn Fn(&str) -> Option<String>,
) -> Result<Vec<ExportTarget>, Vec<EnvironmentError>> {
    let environment = Environment::new(look_up);
    let (mut targets, mut errors) = (Vec::new(), Vec::<EnvironmentError>::new());
    for signal in Signal::ALL {
        match environment.route(signal, settings) {
            Ok(Some(route)) => {
                let read = match signal {
                    Signal::Traces => sampler(&environment).and_then(|_| span_batches(&environment)).map(drop),
                    Signal::Metrics => export_interval(&environment).map(drop),
                    Signal::Logs => log_batches(&environment).map(drop),
                };
                errors.extend(read.err());
                let (signal, endpoint) = (signal.name().to_lowercase(), route.shown());
                targets.push(ExportTarget { signal, endpoint, origin: route.origin });
            }
            Ok(None) => {}
            // One variable may be wrong for every signal.
            Err(error) if errors.contains(&error) => {}
            Err(error) => errors.push(error),
        }
    }
    errors.extend(resource(settings, &environment).err());
    if errors.is_empty() { Ok(targets) } else { Err(errors) }
}

/// Telemetry that may not have reached the collector before the end.
#[derive(Debug, thiserror::Error)]
#[error("telemetry was not all exported: {0}")]
pub struct NotFlushed(String);

impl Exporters {
    /// Builds the exporters; the first export connects. `look_up` gives the value of an
    /// environment variable: `&|name| std::env::var(name).ok()` in a real process.
    ///
    /// # Errors
    ///
    /// If a variable or a setting is not valid, or there is no tokio runtime.
    pub fn start(
        settings: &TelemetrySettings,
        look_up: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, TelemetryError> {
        let environment = Environment::new(look_up);
        let traces = environment.route(Signal::Traces, settings)?;
        let metrics = environment.route(Signal::Metrics, settings)?;
        let logs = environment.route(Signal::Logs, settings)?;
        let resource = resource(settings, &environment)?;
        let is_exporting = traces.is_some() || metrics.is_some() || logs.is_some();
        if is_exporting && tokio::runtime::Handle::try_current().is_err() {
            return Err(TelemetryError::NoRuntime);
        }
        let health = Arc::new(ExportHealth::new(settings.clock));
        let redactor = &settings.redactor;
        let tracing =
            traces.map(|route| tracing(&route, resource.clone(), &environment, &health, redactor)).transpose()?;
        let logging =
            logs.map(|route| logging(&route, resource.clone(), &environment, &health, redactor)).transpose()?;
        let exported = metrics.map(|route| exported(&route, &environment, &health)).transpose()?;
        let scraped = settings.scraped.then(|| MetricsText::new(settings.clock)).transpose()?;
        let (text, scraped) = scraped.unzip();
        let metering = metering(resource, exported, scraped);
        Ok(Self { tracing, metering, logging, text, health })
    }

    /// Whether anything is exported.
    #[must_use]
    pub fn is_exporting(&self) -> bool {
        self.tracing.is_some() || self.metering.is_some() || self.logging.is_some()
    }

    /// The metrics as they are scraped, if they are.
    #[must_use]
    pub fn text(&self) -> Option<MetricsText> {
        self.text.clone()
    }

    /// Whether [`lifecycle_layer`](Self::lifecycle_layer) or [`log_layer`](Self::log_layer) gives one.
    pub(crate) fn has_layers(&self) -> bool {
        self.tracing.is_some() || self.logging.is_some()
    }

    /// A layer that exports lifecycle spans and nothing else, if spans are exported. `tracing` disables every other
    /// callsite for it when the callsite is registered, so that the events of a call cost what they cost without it.
    pub(crate) fn lifecycle_layer<S>(&self) -> Option<impl Layer<S> + use<S>>
    where
        S: Subscriber + for<'span> LookupSpan<'span>,
    {
        let provider = self.tracing.as_ref()?;
        let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer(SCOPE)).with_location(false);
        let layer = layer.with_threads(false).with_tracked_inactivity(false).with_level(false).with_target(false);
        Some(layer.with_filter(Targets::new().with_target(lifecycle::TARGET, LevelFilter::INFO)))
    }

    /// Exports log records, if log records are exported.
    pub(crate) fn log_layer<S>(&self) -> Option<impl Layer<S> + use<S>>
    where
        S: Subscriber + for<'span> LookupSpan<'span>,
    {
        self.logging.as_ref().map(logs::layer)
    }

    /// The recorder of calls, and the instruments that are observed at each export. To be called once.
    #[must_use]
    pub fn telemetry(
        &self,
        load: &Arc<Load>,
        bus: &watch::Receiver<BusState>,
        identity: BusIdentity,
    ) -> Arc<dyn Telemetry> {
        let tracer = self.tracing.as_ref().map(|provider| provider.tracer(SCOPE));
        let instruments = self.meter().map(|meter| {
            instruments::observe(&meter, load, bus, &self.health);
            CallInstruments::new(&meter)
        });
        let exemplars = self.text.as_ref().map(MetricsText::exemplars);
        Arc::new(CallRecorder::new(identity, tracer, instruments, exemplars, self.health.clock()))
    }

    fn meter(&self) -> Option<Meter> {
        self.metering.as_ref().map(|provider| provider.meter(SCOPE))
    }

    /// The recorder of requests to MCP servers.
    #[must_use]
    pub fn mcp_client(&self) -> McpClientRecorder {
        McpClientRecorder::new(self.meter().as_ref())
    }

    /// Calls `look` at each export for the MCP servers that there are. To be called once; `look` is kept until the
    /// exporter ends.
    pub fn watch_mcp_client(&self, look: impl Fn() -> McpServerCounts + Send + Sync + 'static) {
        if let Some(meter) = self.meter() {
            mcp_client::observe(&meter, look);
        }
    }

    /// The recorder of scripts.
    #[must_use]
    pub fn scripts(&self) -> ScriptRecorder {
        ScriptRecorder::new(self.meter().as_ref())
    }

    /// Calls `look` at each export for the number of scripts. To be called once; `look` is kept until the exporter ends.
    pub fn watch_scripts(&self, look: impl Fn() -> ScriptLoad + Send + Sync + 'static) {
        if let Some(meter) = self.meter() {
            scripts::observe(&meter, look);
        }
    }

    /// Calls `look` at each export for the level of the sandbox; there is none where nothing runs in it. To be called once.
    pub fn watch_sandbox(&self, look: impl Fn() -> Option<&'static str> + Send + Sync + 'static) {
        if let Some(meter) = self.meter() {
            scripts::observe_sandbox(&meter, look);
        }
    }

    /// The recorder of other agents.
    #[must_use]
    pub fn agents(&self) -> AgentRecorder {
        AgentRecorder::new(self.meter().as_ref())
    }

    /// The recorder of the web tools.
    #[must_use]
    pub fn web(&self) -> WebRecorder {
        WebRecorder::new(self.meter().as_ref())
    }

    /// The recorder of sub-agents.
    #[must_use]
    pub fn subagents(&self) -> SubagentRecorder {
        SubagentRecorder::new(self.meter().as_ref())
    }

    /// The recorder of requests from MCP clients.
    #[must_use]
    pub fn mcp_server(&self) -> McpServerRecorder {
        let tracer = self.tracing.as_ref().map(|provider| provider.tracer(SCOPE));
        let meter = self.meter();
        McpServerRecorder::new(tracer, meter.as_ref(), self.health.clock())
    }

    /// Calls `sessions` at each export for the number of sessions of MCP clients. To be called once; `sessions` is kept
    /// until the exporter ends.
    pub fn watch_mcp_server(&self, sessions: impl Fn() -> u64 + Send + Sync + 'static) {
        if let Some(meter) = self.meter() {
            mcp_server::observe(&meter, sessions);
        }
    }

    /// Calls `look` at each export for the sources with quarantined tools. To be called once; `look` is kept until the
    /// exporter ends.
    pub fn watch_pins(&self, look: impl Fn() -> Vec<QuarantinedTools> + Send + Sync + 'static) {
        if let Some(meter) = self.meter() {
            quarantine::observe(&meter, look);
        }
    }

    /// Calls `look` at each export for the tool sets whose tools other daemons list. To be called once; `look` is kept
    /// until the exporter ends.
    pub fn watch_remote(&self, look: impl Fn() -> RemoteSetCounts + Send + Sync + 'static) {
        if let Some(meter) = self.meter() {
            remote::observe(&meter, look);
        }
    }

    /// Exports what there is so far, without being waited for: a counter that begins at zero has been seen at zero when it
    /// first grows, which the first regular export would be too late for.
    pub fn export_now(&self) {
        if let Some(provider) = self.metering.clone() {
            drop(apart("metrics", move || provider.force_flush()));
        }
    }

    /// Calls `look` at each export for the reloads of the configuration, by outcome. To be called once; `look` is kept
    /// until the exporter ends.
    pub fn watch_reloads(&self, look: impl Fn() -> [(&'static str, u64); 2] + Send + Sync + 'static) {
        if let Some(meter) = self.meter() {
            instruments::observe_reloads(&meter, look);
        }
    }

    /// Calls `look` at each export for the usage and the limits of the ledger. To be called once; `look` is kept until
    /// the exporter ends.
    pub fn watch_ledger(&self, limits: LedgerLimits, look: impl Fn() -> LedgerUsage + Send + Sync + 'static) {
        if let Some(meter) = self.meter() {
            instruments::observe_ledger(&meter, limits, look);
        }
    }

    /// Calls `look` at each export for the other daemons that take calls of this one, by what they share. To be called
    /// once; `look` is not to wait.
    pub fn watch_other_daemons(&self, look: impl Fn() -> [(&'static str, u64); 2] + Send + Sync + 'static) {
        if let Some(meter) = self.meter() {
            instruments::observe_other_daemons(&meter, look);
        }
    }

    /// Calls `has_store` at each export for whether the store can be used, and `skews` for the seconds by which the
    /// clock of this daemon is ahead of others. To be called once; both are kept until the exporter ends.
    pub fn watch_store(
        &self,
        has_store: impl Fn() -> bool + Send + Sync + 'static,
        skews: impl Fn() -> [(&'static str, Option<i64>); 2] + Send + Sync + 'static,
    ) {
        if let Some(meter) = self.meter() {
            instruments::observe_store(&meter, has_store, skews);
        }
    }

    /// Calls `look` at each export for the replicas that share a store, by configuration. To be called once; `look` is
    /// kept until the exporter ends.
    pub fn watch_replicas(&self, look: impl Fn() -> [(&'static str, u64); 2] + Send + Sync + 'static) {
        if let Some(meter) = self.meter() {
            instruments::observe_replicas(&meter, look);
        }
    }

    /// Calls `open` at each export for the tools and servers that get no calls because they fail, and `trips` for how often
    /// that began since the start. To be called once; both are kept until the exporter ends.
    pub fn watch_breakers(
        &self,
        open: impl Fn() -> u64 + Send + Sync + 'static,
        trips: impl Fn() -> u64 + Send + Sync + 'static,
    ) {
        if let Some(meter) = self.meter() {
            instruments::observe_breakers(&meter, open, trips);
        }
    }

    /// Exports pending data, for `limit` at most. Calls that go on meanwhile are no longer recorded.
    ///
    /// # Errors
    ///
    /// If something was not exported within `limit`.
    pub async fn shutdown(mut self, limit: Duration) -> Result<(), NotFlushed> {
        let signals = self.flush(limit);
        let all = async {
            for signal in signals.into_iter().flatten() {
                signal.await.map_err(|_| NotFlushed("an exporter's thread ended early".to_owned()))??;
            }
            Ok(())
        };
        let late = NotFlushed(format!("the collector took longer than {} ms", limit.as_millis()));
        tokio::time::timeout(limit, all).await.unwrap_or(Err(late))
    }

    /// Begins to export the pending data of all signals at once.
    fn flush(&mut self, limit: Duration) -> [Option<oneshot::Receiver<Result<(), NotFlushed>>>; 3] {
        let traces = self.tracing.take();
        let metrics = self.metering.take();
        let logs = self.logging.take();
        [
            traces.map(|provider| apart("traces", move || provider.shutdown_with_timeout(limit))),
            metrics.map(|provider| apart("metrics", move || provider.shutdown_with_timeout(limit))),
            logs.map(|provider| apart("logs", move || provider.shutdown_with_timeout(limit))),
        ]
    }
}

impl Drop for Exporters {
    /// The SDK's own end waits for the collector, here on a thread of the runtime. Exporters that were not shut down
    /// try to export without being waited for.
    fn drop(&mut self) {
        drop(self.flush(Duration::ZERO));
    }
}

/// Runs a blocking shutdown on a thread of its own. A pool's thread would hold the runtime's end up when the collector
/// hangs; this one ends with the process.
fn apart(
    signal: &'static str,
    shutdown: impl FnOnce() -> OTelSdkResult + Send + 'static,
) -> oneshot::Receiver<Result<(), NotFlushed>> {
    let (done, waits) = oneshot::channel();
    let work = move || {
        let result = shutdown().map_err(|error| NotFlushed(format!("{signal}: {error}")));
        // The receiver is gone once the limit has passed.
        drop(done.send(result));
    };
    // Without a thread `done` is dropped, which the waiting side takes for a failure.
    drop(std::thread::Builder::new().name(format!("flush-{signal}")).spawn(work));
    waits
}

fn tracing(
    route: &ExportRoute,
    resource: Resource,
    environment: &Environment<'_>,
    health: &Arc<ExportHealth>,
    redactor: &Redactor,
) -> Result<SdkTracerProvider, TelemetryError> {
    let sampler = sampler(environment)?;
    let (queue, config) = span_batches(environment)?;
    let exporter = transport::spans(route).map_err(|source| TelemetryError::Exporter { signal: "traces", source })?;
    let waiting = ExportQueue::new(queue);
    let (redactor, health_of_spans) = (redactor.clone(), Arc::clone(health));
    let exporter = WatchedSpans {
        exporter,
        endpoint: route.shown(),
        redactor,
        health: health_of_spans,
        waiting: Arc::clone(&waiting),
    };
    let processor = BatchSpanProcessor::builder(exporter).with_batch_config(config).build();
    let processor = Bounded { processor, health: Arc::clone(health), waiting };
    let builder = SdkTracerProvider::builder().with_sampler(sampler).with_resource(resource);
    Ok(builder.with_span_processor(processor).build())
}

fn logging(
    route: &ExportRoute,
    resource: Resource,
    environment: &Environment<'_>,
    health: &Arc<ExportHealth>,
    redactor: &Redactor,
) -> Result<SdkLoggerProvider, TelemetryError> {
    let (queue, config) = log_batches(environment)?;
    let exporter = transport::logs(route).map_err(|source| TelemetryError::Exporter { signal: "logs", source })?;
    let waiting = ExportQueue::new(queue);
    let (endpoint, of_exporter) = (route.shown(), Arc::clone(health));
    let exporter = WatchedLogs { exporter, endpoint, health: of_exporter, waiting: Arc::clone(&waiting) };
    let processor = BatchLogProcessor::builder(exporter).with_batch_config(config).build();
    let processor = CleanLogs::new(processor, redactor.clone(), Arc::clone(health), waiting);
    Ok(SdkLoggerProvider::builder().with_resource(resource).with_log_processor(processor).build())
}

/// The reader that exports metrics.
fn exported(
    route: &ExportRoute,
    environment: &Environment<'_>,
    health: &Arc<ExportHealth>,
) -> Result<impl MetricReader + use<>, TelemetryError> {
    let interval = export_interval(environment)?;
    let exporter =
        transport::metrics(route).map_err(|source| TelemetryError::Exporter { signal: "metrics", source })?;
    let exporter = WatchedMetrics { exporter, endpoint: route.shown(), health: Arc::clone(health) };
    Ok(PeriodicReader::builder(exporter).with_interval(interval).build())
}

/// The meters, if anything reads them.
fn metering(
    resource: Resource,
    exported: Option<impl MetricReader>,
    scraped: Option<PrometheusExporter>,
) -> Option<SdkMeterProvider> {
    if exported.is_none() && scraped.is_none() {
        return None;
    }
    let limited = |_: &Instrument| Stream::builder().with_cardinality_limit(MAX_SERIES).build().ok();
    let mut builder = SdkMeterProvider::builder().with_resource(resource).with_view(limited);
    if let Some(reader) = exported {
        builder = builder.with_reader(reader);
    }
    if let Some(reader) = scraped {
        builder = builder.with_reader(reader);
    }
    Some(builder.build())
}

/// The queue of spans, in spans, and its batches.
fn span_batches(environment: &Environment<'_>) -> Result<(usize, BatchConfig), EnvironmentError> {
    let queue = size(environment.number("OTEL_BSP_MAX_QUEUE_SIZE", 1..=1_000_000, 2_048)?);
    let batch = size(environment.number("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", 1..=1_000_000, 512)?).min(queue);
    let delay = environment.number("OTEL_BSP_SCHEDULE_DELAY", 1..=3_600_000, 5_000)?;
    let config = BatchConfigBuilder::default()
        .with_max_queue_size(queue)
        .with_max_export_batch_size(batch)
        .with_scheduled_delay(Duration::from_millis(delay))
        .build();
    Ok((queue, config))
}

/// The queue of log records, in records, and its batches.
fn log_batches(environment: &Environment<'_>) -> Result<(usize, sdk_logs::BatchConfig), EnvironmentError> {
    let queue = size(environment.number("OTEL_BLRP_MAX_QUEUE_SIZE", 1..=1_000_000, 2_048)?);
    let batch = size(environment.number("OTEL_BLRP_MAX_EXPORT_BATCH_SIZE", 1..=1_000_000, 512)?).min(queue);
    let delay = environment.number("OTEL_BLRP_SCHEDULE_DELAY", 1..=3_600_000, 1_000)?;
    let config = sdk_logs::BatchConfigBuilder::default()
        .with_max_queue_size(queue)
        .with_max_export_batch_size(batch)
        .with_scheduled_delay(Duration::from_millis(delay))
        .build();
    Ok((queue, config))
}

/// The time between two exports of metrics.
fn export_interval(environment: &Environment<'_>) -> Result<Duration, EnvironmentError> {
    Ok(Duration::from_millis(environment.number("OTEL_METRIC_EXPORT_INTERVAL", 1..=3_600_000, 60_000)?))
}

fn size(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
