//! Where the parts meet: what the configuration says, made of the crates that can do it.

mod door;
mod scripts;
mod servers;
mod sessions;

pub use self::door::door;
pub use self::scripts::{Scripts, ScriptsError};
pub use self::servers::Servers;
pub(crate) use self::servers::is_same_server;
pub(crate) use self::sessions::{in_sessions, limits};

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::watch;
use toolbus_broker::embedded::Embedded;
use toolbus_broker::rabbitmq::{self, RabbitMq};
use toolbus_core::bus::{Bus, BusState};
use toolbus_core::policy::{Capacity, PolicyHandle};
use toolbus_core::redact::Redactor;
use toolbus_core::registry::{Registry, RegistryError};
use toolbus_core::telemetry::{Load, Telemetry};
use toolbus_core::toolsets::SessionSet;
use toolbus_protocol::new_message_id;
use toolbus_telemetry::{Exporters, Identity, TelemetryError, logging};
use toolbus_trust::pins::{PinFileError, Pins};
use toolbus_trust::scan::RulesError;

use crate::audit::AuditError;
use crate::config::daemon::Role;
use crate::config::store::StoreOpenError;
use crate::config::telemetry::{LogFormat, OtlpProtocol};
use crate::config::{BusUrl, Config, PolicyError, QueueType, ToolsError, confidential};
use crate::http::admin::McpAdmin;
use crate::http::{Build, Health};

/// What a configuration that reads well cannot be put into practice for.
#[derive(Debug, thiserror::Error)]
pub enum AssemblyError {
    /// The broker's settings, certificates included.
    #[error("[bus] {0}")]
    Bus(#[from] rabbitmq::SettingsError),
    /// The configured tools.
    #[error(transparent)]
    Tools(#[from] ToolsError),
    /// Two tools of one name.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// The rules for agents.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The file of audit records.
    #[error(transparent)]
    Audit(#[from] AuditError),
    /// What must outlive a restart.
    #[error(transparent)]
    Store(#[from] StoreOpenError),
    /// What is pinned.
    #[error("[pins] {0}")]
    Pins(#[from] PinFileError),
    /// The exporters of metrics, traces and logs.
    #[error("[telemetry] {0}")]
    Telemetry(#[from] TelemetryError),
    /// MCP servers.
    #[error("no MCP server can be started: {0}")]
    Servers(std::io::Error),
    /// The scan of what servers say.
    #[error(transparent)]
    Scan(RulesError),
    /// Scripts and commands.
    #[error(transparent)]
    Scripts(#[from] ScriptsError),
    /// The log.
    #[error("[telemetry] {0}")]
    Logging(#[from] logging::LoggingError),
}

/// The bus of this configuration; it connects by itself, for as long as it takes.
///
/// # Errors
///
/// When a URL or a certificate cannot be used.
pub fn bus(config: &Config) -> Result<Arc<dyn Bus>, AssemblyError> {
    let bus = &config.bus;
    match &bus.url {
        BusUrl::Embedded => Ok(Arc::new(Embedded::new())),
        BusUrl::Amqp(urls) => {
            let settings = rabbitmq::Settings {
                urls: urls.iter().map(|url| url.reveal().to_string()).collect(),
                name: bus.name.clone(),
                exchange: bus.exchange.clone(),
                dead_letter_exchange: bus.dead_letter_exchange.clone(),
                queue_type: match bus.queue_type {
                    QueueType::Quorum => rabbitmq::QueueType::Quorum,
                    QueueType::Classic => rabbitmq::QueueType::Classic,
                },
                tls: Some(rabbitmq::Tls {
                    ca: bus.tls.ca.clone(),
                    cert: bus.tls.cert.clone(),
                    key: bus.tls.key.clone(),
                }),
            };
            Ok(Arc::new(RabbitMq::start(settings)?))
        }
    }
}

/// Every configured tool, for those who only look: nothing ends the sessions of its tool sets.
///
/// # Errors
///
/// As [`tools`].
pub fn registry(config: &Config) -> Result<Registry, AssemblyError> {
    let registry = tools(config)?.0;
    registry.register_all(scripts::described(config)?)?;
    Ok(registry)
}

/// Every configured tool, and the tool sets that are built for each session; those of MCP servers, scripts and commands
/// come later.
///
/// # Errors
///
/// When a tool cannot be made, or a name is given twice.
pub fn tools(config: &Config) -> Result<(Registry, Vec<Arc<SessionSet>>), AssemblyError> {
    let (tools, sets) = in_sessions(config, config.tools()?, |_| None);
    let registry = Registry::new();
    registry.register_all(tools)?;
    Ok((registry, sets))
}

/// Who may use what of these tools.
///
/// # Errors
///
/// When rules contradict each other.
pub fn access(config: &Config, registry: Registry) -> Result<PolicyHandle, AssemblyError> {
    let invoke = &config.invoke;
    let capacity = Capacity { max_in_flight: invoke.max_in_flight, max_waiting: invoke.max_waiting };
    Ok(PolicyHandle::new(registry, config.identity(), config.policy()?, capacity))
}

/// What is pinned, as `file` has it.
///
/// # Errors
///
/// When the file is there and cannot be used.
pub fn pins(config: &Config, file: Option<PathBuf>) -> Result<Pins, AssemblyError> {
    Ok(Pins::open(file, config.pin_levels())?)
}

/// What removes the secrets of this configuration.
#[must_use]
pub fn redactor(config: &Config) -> Redactor {
    let redactor = Redactor::default();
    hide(config, &redactor);
    redactor
}

/// Has the secrets of this configuration removed from now on.
pub(crate) fn hide(config: &Config, redactor: &Redactor) {
    let of_exporter = confidential::of_exporter(|name| std::env::var(name).ok());
    redactor.configure(config.secrets().into_iter().map(|given| given.secret).chain(of_exporter));
}

/// Sets up the log of a process that stays, which `exporters`, if any, export too.
///
/// # Errors
///
/// If the filter cannot be read, or the process has a log already.
pub fn logging(config: &Config, redactor: &Redactor, exporters: Option<&Exporters>) -> Result<(), AssemblyError> {
    let format = match config.telemetry.log_format {
        LogFormat::Text => logging::Format::Text,
        LogFormat::Json => logging::Format::Json,
    };
    tell_panics(redactor.clone(), format);
    let coloured = anstream::AutoStream::choice(&std::io::stderr()) != anstream::ColorChoice::Never;
    let settings = logging::Settings { filter: config.telemetry.log.clone(), format, coloured };
    Ok(logging::init(&settings, redactor.clone(), exporters)?)
}

/// Has panics told on standard error as they usually are, but without secrets: their texts may quote anything. Under JSON
/// they are lines of the log.
fn tell_panics(redactor: Redactor, format: logging::Format) {
    std::panic::set_hook(Box::new(move |panic| {
        let thread = std::thread::current();
        let text = format!("thread '{}' {panic}", thread.name().unwrap_or("<unnamed>"));
        let trace = Backtrace::capture();
        let trace = if trace.status() == BacktraceStatus::Captured { format!("\n{trace}") } else { String::new() };
        if format == logging::Format::Json {
            return tracing::error!(panic = format!("{text}{trace}"), "a panic");
        }
        // There is nowhere else to say it.
        let _ = writeln!(std::io::stderr(), "{}{trace}", redactor.text(&text));
    }));
}

/// The exporters of metrics, traces and logs.
///
/// # Errors
///
/// When a setting or a variable of the environment cannot be honoured.
pub fn telemetry(config: &Config, redactor: &Redactor) -> Result<Exporters, AssemblyError> {
    let settings = toolbus_telemetry::Settings {
        otlp_endpoint: config.telemetry.otlp_endpoint.clone(),
        protocol: match config.telemetry.protocol {
            OtlpProtocol::Grpc => toolbus_telemetry::Protocol::Grpc,
            OtlpProtocol::HttpProtobuf => toolbus_telemetry::Protocol::HttpProtobuf,
        },
        service_name: config.bus.name.clone(),
        service_version: env!("CARGO_PKG_VERSION").to_owned(),
        service_instance: new_message_id(),
        redactor: redactor.clone(),
    };
    Ok(Exporters::start(&settings, &|name| std::env::var(name).ok())?)
}

/// What is told of calls on this bus.
#[must_use]
pub fn recorder(
    config: &Config,
    exporters: &Exporters,
    load: &Arc<Load>,
    bus: &watch::Receiver<BusState>,
) -> Arc<dyn Telemetry> {
    let broker = match &config.bus.url {
        BusUrl::Embedded => None,
        BusUrl::Amqp(urls) => urls.first().map(|url| url.reveal()),
    };
    let identity = Identity {
        system: if broker.is_some() { "rabbitmq" } else { "toolbus" },
        exchange: config.bus.exchange.clone(),
        client_id: config.bus.name.clone(),
        server_address: broker.and_then(|url| url.host_str()).map(str::to_owned),
        server_port: broker.map(|url| url.port().unwrap_or(if url.scheme() == "amqps" { 5671 } else { 5672 })),
    };
    exporters.telemetry(load, bus, identity)
}

/// What the HTTP server tells of this process.
#[must_use]
pub fn health(
    config: &Config,
    bus: watch::Receiver<BusState>,
    access: &PolicyHandle,
    servers: Arc<dyn McpAdmin>,
    scripts: &Scripts,
    load: Arc<Load>,
) -> Arc<Health> {
    let build = Build { version: env!("CARGO_PKG_VERSION").into(), commit: env!("TOOLBUS_COMMIT").into() };
    let health = Health::new(bus, access.registry().clone(), config.tools.required.clone(), servers, load, build);
    // Another process looks after the servers where this one has no part in them.
    let required = if config.roles().contains(&Role::Mcp) { config.mcp.required.clone() } else { Vec::new() };
    let health = health.with_scripts(Arc::new(scripts.clone())).with_access(access.clone());
    Arc::new(health.with_required_servers(required))
}
