//! The log, panics included; the exporters of telemetry; and the metrics of the parts.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::collections::BTreeMap;
use std::io::Write as _;
use std::sync::Arc;

use tokio::sync::watch;
use toolbus_core::Clock;
use toolbus_core::breaker::Breakers;
use toolbus_core::bus::BusState;
use toolbus_core::events::Discard;
use toolbus_core::ledger::{Ledger as _, LedgerLimits};
use toolbus_core::redact::Redactor;
use toolbus_core::telemetry::{Load, Telemetry};
use toolbus_protocol::new_message_id;
use toolbus_telemetry::{
    BusIdentity, EnvironmentError, ExportTarget, Exporters, QuarantinedTools, RecentCalls, TelemetrySettings, logging,
};
use toolbus_trust::pins::{Count, Pins};

use super::AppError;
use super::parts::redactor;
use super::watched_ledger::WatchedLedger;
use crate::config::{BusUrl, Config};
use crate::http::{Health, SharedIntake};

/// Parts that a daemon starts before everything else: its log, and the exporters of telemetry.
pub struct Recording {
    /// Removes the secrets of the configuration, from the log too.
    pub(super) redactor: Redactor,
    /// The exporters of metrics, traces and logs.
    pub(super) exporters: Exporters,
}

impl Recording {
    /// Starts the log and the exporters.
    ///
    /// # Errors
    ///
    /// If a setting cannot be honoured, or the process has a log already.
    pub fn start(config: &Config) -> Result<Self, AppError> {
        let redactor = redactor(config);
        // Before the log, which they export too. A problem with them is logged all the same.
        let exporters = exporters(config, &redactor);
        logging(config, &redactor, exporters.as_ref().ok())?;
        Ok(Self { redactor, exporters: exporters? })
    }
}

/// Starts the log without the secrets that `redactor` knows. `exporters` export it, too.
///
/// # Errors
///
/// If the filter cannot be parsed, or this process has a log already.
pub fn logging(config: &Config, redactor: &Redactor, exporters: Option<&Exporters>) -> Result<(), AppError> {
    let format = config.telemetry.log_format;
    log_panics(redactor.clone(), format);
    let coloured = anstream::AutoStream::choice(&std::io::stderr()) != anstream::ColorChoice::Never;
    let settings = logging::LogSettings { filter: config.telemetry.log.clone(), format, coloured };
    Ok(logging::init(&settings, redactor.clone(), exporters)?)
}

/// Writes panics to standard error in the usual form, but without secrets: their texts may quote anything. With JSON they
/// are lines of the log.
fn log_panics(redactor: Redactor, format: logging::LogFormat) {
    std::panic::set_hook(Box::new(move |panic| {
        let thread = std::thread::current();
        let text = format!("thread '{}' {panic}", thread.name().unwrap_or("<unnamed>"));
        let trace = Backtrace::capture();
        let trace = if trace.status() == BacktraceStatus::Captured { format!("\n{trace}") } else { String::new() };
        if format == logging::LogFormat::Json {
            return tracing::error!(panic = format!("{text}{trace}"), "a panic");
        }
        // Standard error is the last resort.
        let _ = writeln!(std::io::stderr(), "{}{trace}", redactor.text(&text));
    }));
}

/// The exporters of metrics and traces.
///
/// # Errors
///
/// If a setting or a variable of the environment cannot be honoured.
fn exporters(config: &Config, redactor: &Redactor) -> Result<Exporters, AppError> {
    Ok(Exporters::start(&settings(config, redactor), &|name| std::env::var(name).ok())?)
}

fn settings(config: &Config, redactor: &Redactor) -> TelemetrySettings {
    TelemetrySettings {
        otlp_endpoint: config.telemetry.otlp_endpoint.clone(),
        protocol: config.telemetry.protocol,
        scraped: config.http.has_metrics() || config.http.has_console(),
        service_name: config.bus.name.clone(),
        service_version: env!("CARGO_PKG_VERSION").to_owned(),
        service_instance: instance(config),
        redactor: redactor.clone(),
        clock: Clock::SYSTEM,
    }
}

/// The host, which in Kubernetes is the pod, and the port: no other running daemon has both, and a restarted one has them
/// again. A daemon whose port the system chooses is another one at each start.
fn instance(config: &Config) -> String {
    let host = rustix::system::uname();
    let host = host.nodename().to_string_lossy();
    match config.http.listen.port() {
        0 => format!("{host}:{}", new_message_id()),
        port => format!("{host}:{port}"),
    }
}

/// Where a daemon with this configuration and these variables would export to.
///
/// # Errors
///
/// Every variable with which it would not start.
pub fn targets(
    config: &Config,
    environment: &BTreeMap<String, String>,
) -> Result<Vec<ExportTarget>, Vec<EnvironmentError>> {
    toolbus_telemetry::targets(&settings(config, &Redactor::default()), &|name| environment.get(name).cloned())
}

/// Records calls; a command records nothing.
pub(super) fn of_calls(
    config: &Config,
    exporters: Option<&Exporters>,
    load: &Arc<Load>,
    bus: &watch::Receiver<BusState>,
    recent: &RecentCalls,
    redactor: &Redactor,
) -> Arc<dyn Telemetry> {
    let Some(exporters) = exporters else { return Arc::new(Discard) };
    let broker = match &config.bus.url {
        BusUrl::Embedded => None,
        BusUrl::Amqp(urls) => urls.first().map(|url| url.reveal()),
    };
    let identity = BusIdentity {
        system: if broker.is_some() { "rabbitmq" } else { "toolbus" },
        exchange: config.bus.exchange.clone(),
        client_id: config.bus.name.clone(),
        server_address: broker.and_then(|url| url.host_str()).map(str::to_owned),
        server_port: broker.map(|url| url.port().unwrap_or(if url.scheme() == "amqps" { 5671 } else { 5672 })),
    };
    let payloads = config.http.keeps_payloads().then(|| redactor.clone());
    recent.recording(exporters.telemetry(load, bus, identity), Clock::SYSTEM, payloads)
}

/// Registers what the exporters read at each export: pins, other daemons, reloads, clocks, breakers, the store and the
/// ledger.
pub(super) fn watch(
    exporters: &Exporters,
    pins: Pins,
    health: Arc<Health>,
    breakers: Breakers,
    ledger: Option<(LedgerLimits, Arc<WatchedLedger>)>,
) {
    exporters.watch_pins(move || {
        let of_source =
            |count: Count| QuarantinedTools { source: count.source, count: number(count.held), changes: count.changes };
        pins.counts().into_iter().map(of_source).collect()
    });
    if health.replica_counts().is_some() {
        let health = Arc::clone(&health);
        exporters.watch_replicas(move || {
            let counts = health.replica_counts().unwrap_or_default();
            [("same", number(counts.same)), ("different", number(counts.different))]
        });
    }
    let others = Arc::clone(&health);
    exporters.watch_other_daemons(move || {
        [SharedIntake::Queues, SharedIntake::Topics]
            .map(|shares| (shares.as_str(), number(others.other_daemons(shares))))
    });
    let of_reloads = Arc::clone(&health);
    exporters.watch_reloads(move || {
        let counts = of_reloads.reloads();
        [("applied", counts.applied), ("refused", counts.refused)]
    });
    let (of_store, of_clocks) = (Arc::clone(&health), health);
    exporters.watch_store(move || of_store.has_store(), move || of_clocks.clock_skews());
    if let Some((limits, ledger)) = ledger {
        exporters.watch_ledger(limits, move || ledger.usage());
    }
    let of_trips = breakers.clone();
    exporters.watch_breakers(move || number(breakers.open().len()), move || of_trips.trips());
}

fn number(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use toolbus_core::events::ScriptRun;
    use toolbus_mcp_client::status::PhaseName;

    use super::*;

    #[test]
    fn a_daemon_that_starts_again_is_the_same_instance_and_one_on_another_port_another() {
        let on = |port: u16| {
            let mut config = Config::default();
            config.http.listen.set_port(port);
            instance(&config)
        };
        assert_eq!(on(8471), on(8471));
        assert!(on(8471).ends_with(":8471") && on(8471) != on(8472));
        assert_ne!(on(0), on(0));
    }

    #[test]
    fn every_end_of_a_script_is_documented() {
        let page = include_str!("../../../../docs/telemetry.md");
        let row = page.lines().find(|line| line.starts_with("| *script outcome* |")).unwrap();
        let documented: Vec<&str> = row.split('`').skip(1).step_by(2).collect();
        let expected: Vec<&str> = ScriptRun::OUTCOMES.into_iter().chain(["_OTHER"]).collect();
        assert_eq!(documented, expected);
    }

    #[test]
    fn every_phase_is_documented() {
        let page = include_str!("../../../../docs/telemetry.md");
        let row = page.lines().find(|line| line.starts_with("| *mcp phase* |")).unwrap();
        let documented: Vec<&str> = row.split('`').skip(1).step_by(2).collect();
        assert_eq!(documented, PhaseName::ALL.map(PhaseName::as_str));
    }
}
