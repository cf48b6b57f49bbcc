//! The log, panics included; the exporters of telemetry; and what the parts record through them.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::collections::BTreeMap;
use std::io::Write as _;
use std::sync::Arc;

use tokio::sync::watch;
use toolbus_core::Clock;
use toolbus_core::breaker::Breakers;
use toolbus_core::bus::BusState;
use toolbus_core::events::{AgentEvents, Discard, McpClientEvents, ScriptEvents, SubagentEvents, WebEvents};
use toolbus_core::redact::Redactor;
use toolbus_core::telemetry::{Load, Telemetry};
use toolbus_mcp_client::status::{PhaseName, ServerStatus};
use toolbus_protocol::new_message_id;
use toolbus_telemetry::{
    BusIdentity, EnvironmentError, ExportTarget, Exporters, McpServerCounts, QuarantinedTools, ScriptLoad,
    TelemetrySettings, logging,
};
use toolbus_trust::pins::{Count, Pins};

use super::parts::redactor;
use super::{AppError, AppScripts};
use crate::config::{BusUrl, Config};
use crate::http::{Health, McpAdmin, ScriptStatus};

/// What a daemon starts before everything else: its log, and the exporters of telemetry.
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
        service_name: config.bus.name.clone(),
        service_version: env!("CARGO_PKG_VERSION").to_owned(),
        service_instance: new_message_id(),
        redactor: redactor.clone(),
        clock: Clock::SYSTEM,
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
    exporters.telemetry(load, bus, identity)
}

/// Records requests to MCP servers; a command records nothing.
pub(super) fn of_servers(exporters: Option<&Exporters>) -> Arc<dyn McpClientEvents> {
    match exporters {
        Some(exporters) => Arc::new(exporters.mcp_client()),
        None => Arc::new(Discard),
    }
}

/// Records runs of scripts; a command records nothing.
pub(super) fn of_scripts(exporters: Option<&Exporters>) -> Arc<dyn ScriptEvents> {
    match exporters {
        Some(exporters) => Arc::new(exporters.scripts()),
        None => Arc::new(Discard),
    }
}

/// Records other agents; a command records nothing.
pub(super) fn of_agents(exporters: Option<&Exporters>) -> Arc<dyn AgentEvents> {
    match exporters {
        Some(exporters) => Arc::new(exporters.agents()),
        None => Arc::new(Discard),
    }
}

/// Records pages and searches; a command records nothing.
pub(super) fn of_web(exporters: Option<&Exporters>) -> Arc<dyn WebEvents> {
    match exporters {
        Some(exporters) => Arc::new(exporters.web()),
        None => Arc::new(Discard),
    }
}

/// Records reports of sub-agents; a command records nothing.
pub(super) fn of_subagents(exporters: Option<&Exporters>) -> Arc<dyn SubagentEvents> {
    match exporters {
        Some(exporters) => Arc::new(exporters.subagents()),
        None => Arc::new(Discard),
    }
}

/// Has the exporters ask for what is measured at each export: scripts, pins, MCP servers and reloads.
pub(super) fn watch(
    exporters: &Exporters,
    scripts: AppScripts,
    pins: Pins,
    servers: Arc<dyn McpAdmin>,
    health: Arc<Health>,
) {
    if scripts.status().is_some() {
        let load = |ScriptStatus { runner, running, waiting, sessions }| ScriptLoad {
            waiting: number(waiting),
            running: number(running),
            warm: number(runner.warm),
            sessions: number(sessions),
        };
        exporters.watch_scripts(move || scripts.status().map(load).unwrap_or_default());
    }
    exporters.watch_pins(move || {
        let of_source =
            |count: Count| QuarantinedTools { source: count.source, count: number(count.held), changes: count.changes };
        pins.counts().into_iter().map(of_source).collect()
    });
    exporters.watch_mcp_client(move || counted(servers.status()));
    if health.replica_counts().is_some() {
        let health = Arc::clone(&health);
        exporters.watch_replicas(move || {
            let counts = health.replica_counts().unwrap_or_default();
            [("same", number(counts.same)), ("different", number(counts.different))]
        });
    }
    exporters.watch_reloads(move || {
        let counts = health.reloads();
        [("applied", counts.applied), ("refused", counts.refused)]
    });
}

/// Has what gets no calls because it fails looked at.
pub(super) fn watch_breakers(exporters: &Exporters, breakers: Breakers) {
    let of_trips = breakers.clone();
    exporters.watch_breakers(move || number(breakers.open().len()), move || of_trips.trips());
}

fn number(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

/// Every phase with its number of servers, also those that no server is in: so that a graph falls to zero.
fn counted(servers: Vec<ServerStatus>) -> McpServerCounts {
    let in_phase = |phase: PhaseName| servers.iter().filter(|server| server.phase == phase).count();
    let phases = PhaseName::ALL.map(|phase| (phase.as_str(), number(in_phase(phase))));
    let suspect = |server: &ServerStatus| (server.name.clone(), number(server.suspect_total));
    let shadowed = |server: &ServerStatus| (server.name.clone(), number(server.shadowed_total));
    McpServerCounts {
        phases: phases.to_vec(),
        suspects: servers.iter().map(suspect).collect(),
        shadowed: servers.iter().map(shadowed).collect(),
        restarts: servers.into_iter().map(|server| (server.name, server.restarts)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use toolbus_core::events::ScriptRun;

    use super::*;
    use crate::http::tests::example;

    #[test]
    fn every_phase_is_counted_and_every_servers_restarts_suspects_and_shadowed_tools() {
        let parked = ServerStatus {
            phase: PhaseName::Parked,
            restarts: 9,
            suspect_total: 2,
            shadowed_total: 7,
            ..example("git")
        };
        let counted = counted(vec![example("files"), example("time"), parked]);
        assert_eq!(counted.phases.len(), PhaseName::ALL.len());
        let of = |name: &str| counted.phases.iter().find(|(phase, _)| *phase == name).map(|(_, count)| *count);
        assert_eq!((of("ready"), of("parked"), of("idle")), (Some(2), Some(1), Some(0)));
        assert_eq!(counted.restarts, [("files".to_owned(), 0), ("time".to_owned(), 0), ("git".to_owned(), 9)]);
        assert_eq!(counted.suspects, [("files".to_owned(), 0), ("time".to_owned(), 0), ("git".to_owned(), 2)]);
        assert_eq!(counted.shadowed, [("files".to_owned(), 0), ("time".to_owned(), 0), ("git".to_owned(), 7)]);
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
