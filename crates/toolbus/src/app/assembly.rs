//! An app, put together from its parts.

use std::sync::Arc;

use tokio::sync::watch;
use toolbus_core::audit::Audit;
use toolbus_core::events::Discard;
use toolbus_core::ledger::Ledger;
use toolbus_core::policy::PolicyHandle;
use toolbus_core::registry::Registry;
use toolbus_core::telemetry::Load;
use toolbus_core::toolsets::SessionSets;
use toolbus_core::{AllArrived, Clock, Dispatcher, Gates, Service};
use toolbus_telemetry::RecentCalls;

use super::stores::Stores;
use super::watched_ledger::WatchedLedger;
use super::{App, AppError, CallParts, DaemonParts, Mode, Peers, Tasks, listen, parts, pins, reload, telemetry};
use crate::config::daemon::Role;
use crate::config::{Config, Sources};
use crate::families::{
    self, AppServers, Contributions, DeferredInvoker, FamilyContext, FamilyError, Planned, Purpose, ToolFamily,
};
use crate::http::admin::{DaemonAdmin, SwitchStore};
use crate::http::{Build, Health, HealthSources, HttpAuth};

/// Builds an app with these families; see [`App::build`].
pub(super) async fn build(
    config: &Config,
    mode: Mode<'_>,
    families: impl FnOnce(&FamilyContext<'_>) -> Result<Vec<Box<dyn ToolFamily>>, FamilyError>,
) -> Result<App, AppError> {
    let (sources, recording, pin_file) = match mode {
        Mode::Daemon { sources, recording } => (sources.clone(), Some(recording), None),
        Mode::Command { pins } => (Sources::default(), None, pins),
    };
    let is_daemon = recording.is_some();
    let files_read = reload::fingerprint(&sources).await;
    let mut config = with_specifications(config).await;
    let redactor = recording.as_ref().map_or_else(|| parts::redactor(&config), |recording| recording.redactor.clone());
    let Stores { store, redis, claim, ledger, memory, is_fallback, files, unwritable } = match is_daemon {
        true => Stores::open(&config, &sources.holder()).await?,
        false => Stores::in_memory(&config),
    };
    if is_fallback {
        keep_in_memory(&mut config, &sources)?;
    }
    let pin_file = if is_daemon { config.pin_file(&sources) } else { pin_file };
    let switches = Arc::new(SwitchStore::new(Arc::clone(&store), redis.is_some()));
    let policy = parts::policy(&config, Registry::new())?;
    let daemon = match recording {
        Some(recording) => Some(DaemonParts::open(&config, recording, claim, &switches, &policy).await?),
        None => None,
    };
    let exporters = daemon.as_ref().map(|daemon| &daemon.exporters);
    let gates = Arc::new(Gates::new(policy.clone()));
    gates.breakers().configure(config.breaker.rules());
    let context = FamilyContext {
        config: &config,
        purpose: if is_daemon { Purpose::Daemon } else { Purpose::Command },
        exporters,
        redactor: redactor.clone(),
        bus: parts::bus(&config)?,
        store,
        memory,
        budget: config.results.budget(),
        gates,
        sandbox: Arc::default(),
        invoker: DeferredInvoker::default(),
    };
    let families = families(&context)?;
    let planned = register(&families, &config, &policy).await?;
    let pins = pins::open(&config, pin_file, is_daemon, &policy).await?;
    policy.refresh();
    let mut given = families::contributions(&families);
    let digest = watch::Sender::new(config.digest());
    let parts = (policy.clone(), switches, given.registrar.clone());
    let peers = Peers::new(&config, redis, parts, digest.subscribe());
    let load = Arc::<Load>::default();
    let health = Arc::new(Health::new(health_sources(&context, &peers, &mut given, &load, unwritable)));
    let audit =
        daemon.as_ref().map_or_else(|| Arc::new(Discard) as Arc<dyn Audit>, |daemon| Arc::clone(&daemon.audit) as _);
    let calls = calls(&context, &given, SessionSets::new(planned.sessions), load, ledger.clone(), Arc::clone(&audit));
    context.invoker.set(calls.dispatcher.clone());
    if let Some(exporters) = exporters {
        families.iter().for_each(|family| family.watch(exporters));
        let ledger = ledger.map(|ledger| (config.ledger.limits(), ledger));
        telemetry::watch(exporters, pins.clone(), Arc::clone(&health), calls.gates.breakers().clone(), ledger);
    }
    let (admin, reloads) = DaemonAdmin::new(Arc::clone(&health), &sources.files, &config);
    let tasks = Tasks::default();
    let (bus, http_auth) = (context.bus, HttpAuth::new(&config, audit, tasks.stop_serving.clone()));
    Ok(App {
        sources,
        files_read,
        digest,
        in_force: watch::Sender::new(Arc::new(config.clone())),
        redactor,
        bus,
        policy,
        pins,
        families,
        given,
        commits: planned.commits,
        calls,
        is_consuming: false,
        peers,
        store_files: Some(files),
        health,
        http_auth,
        reloads,
        admin,
        daemon,
        tasks,
        config,
    })
}

/// The configuration with the endpoints of its specifications. Mistakes in these are logged.
async fn with_specifications(config: &Config) -> Config {
    let (config, warnings) = families::with_specifications(config, None).await;
    for warning in warnings {
        tracing::warn!(warning, "a specification");
    }
    config
}

/// Takes the state folder from the configuration, which cannot be used; fails if pins would be lost with it.
fn keep_in_memory(config: &mut Config, sources: &Sources) -> Result<(), FamilyError> {
    config.store.state_file = None;
    match config.unkept_pins(sources) {
        Some(what) => Err(format!("pins.file {what}").into()),
        None => Ok(()),
    }
}

/// Has the families get ready, and registers their tools: calls right after the start must find them.
async fn register(
    families: &[Box<dyn ToolFamily>],
    config: &Config,
    policy: &PolicyHandle,
) -> Result<Planned, AppError> {
    families::prepare(families, config).await?;
    let mut planned = families::plan(families, config, &|_| None)?;
    policy.registry().register_all(std::mem::take(&mut planned.tools))?;
    policy.refresh();
    Ok(planned)
}

/// Builds the parts that take calls and run them.
fn calls(
    context: &FamilyContext<'_>,
    given: &Contributions,
    sessions: SessionSets,
    load: Arc<Load>,
    ledger: Option<Arc<WatchedLedger>>,
    audit: Arc<dyn Audit>,
) -> CallParts {
    let (config, gates, bus) = (context.config, Arc::clone(&context.gates), Arc::clone(&context.bus));
    let recent = RecentCalls::default();
    let redactor = &context.redactor;
    let telemetry = telemetry::of_calls(config, context.exporters, &load, &bus.state(), &recent, redactor);
    let ledger = ledger.map(|ledger| ledger as Arc<dyn Ledger>);
    let settings = listen::settings(config, redactor.clone(), ledger, context.memory.as_ref(), &context.budget);
    let pending = given.pending.clone().unwrap_or_else(|| Arc::new(AllArrived));
    let dispatcher = Dispatcher::new(settings, Arc::clone(&gates), bus, Arc::clone(&telemetry), audit, load, pending);
    CallParts { gates, sessions, service: Arc::new(Service::new(dispatcher.clone())), dispatcher, telemetry, recent }
}

/// The parts that health and status are read from.
fn health_sources(
    context: &FamilyContext<'_>,
    peers: &Peers,
    given: &mut Contributions,
    load: &Arc<Load>,
    store_files: watch::Receiver<Vec<String>>,
) -> HealthSources {
    let config = context.config;
    // Without the role `mcp`, the servers are those of another process.
    let has_servers = config.roles().contains(&Role::Mcp);
    HealthSources {
        bus: context.bus.state(),
        shared: peers.shared.clone(),
        other_daemons: peers.others.subscribe(),
        store_files,
        policy: context.policy().clone(),
        load: Arc::clone(load),
        breakers: context.gates.breakers().clone(),
        servers: AppServers::shown(given.servers.as_ref()),
        remote: given.remote.take().unwrap_or_else(|| Box::new(Vec::new)),
        scripts: given.scripts.take().unwrap_or_else(|| Box::new(|| None)),
        required_tools: config.tools.required.clone(),
        required_servers: if has_servers { config.mcp.required.clone() } else { Vec::new() },
        build: Build { version: env!("CARGO_PKG_VERSION").into(), commit: env!("TOOLBUS_COMMIT").into() },
        clock: Clock::SYSTEM,
    }
}
