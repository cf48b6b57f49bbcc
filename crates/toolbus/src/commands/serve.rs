//! `toolbus serve`: the daemon.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;
use toolbus_core::Drained;
use toolbus_core::audit::Audit;
use toolbus_core::bus::BusState;
use toolbus_core::lifecycle;
use toolbus_core::policy::PolicyHandle;
use toolbus_core::telemetry::Load;
use toolbus_core::toolsets::SessionSets;
use toolbus_trust::pins::Pins;
use tracing::Instrument as _;
use tracing::field::Empty;

use super::Context;
use crate::assembly::{self, AssemblyError, Scripts, Servers};
use crate::audit::AuditLog;
use crate::config::BusUrl;
use crate::config::identity::Source;
use crate::daemon::{Daemon, Parts};
use crate::http::admin::{self, Admin, DaemonAdmin, LoadError, McpAdmin, NoServers, ReloadRequest, Switches};
use crate::http::{HttpAuth, HttpState, Listeners, ListenersError, ReloadReport};
use crate::limits;
use crate::observe::{self, DoorMetrics, McpMetrics, ScriptMetrics};
use crate::reload::{Live, ReloadError, Reloader};
use crate::signals::{Asked, Signals};
use crate::watch::FileWatch;

/// Time for the last metrics and spans to leave.
const FLUSH_TIME: Duration = Duration::from_secs(5);

/// Runs the daemon until it is told to stop.
///
/// SIGTERM and SIGINT end it in order: calls under way may finish within invoke.drain_timeout. A second signal ends it
/// at once.
#[derive(Debug, clap::Args)]
pub struct ServeArgs {}

/// Why the daemon did not start, or stopped by itself.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The configuration cannot be put into practice.
    #[error(transparent)]
    Assembly(#[from] AssemblyError),
    /// The daemon cannot listen.
    #[error(transparent)]
    Listeners(#[from] ListenersError),
    /// What was disabled is not known.
    #[error(transparent)]
    Switches(#[from] LoadError),
    /// Signals cannot be received.
    #[error("cannot listen for signals: {0}")]
    Signals(#[from] std::io::Error),
    /// The broker holds something that no retry mends.
    #[error("{0}")]
    Broker(String),
}

/// What ends the daemon.
enum Ending {
    Signal(&'static str),
    Fatal(String),
}

/// Runs the daemon.
///
/// # Errors
///
/// When it cannot start, or meets something that only a person can mend.
pub async fn run(_: ServeArgs, context: &Context) -> Result<ExitCode, ServeError> {
    let config = &context.config;
    let mut signals = Signals::listen()?;
    let redactor = assembly::redactor(config);
    // Before the log, which they export too; what is wrong with them is logged all the same.
    let exporters = assembly::telemetry(config, &redactor);
    assembly::logging(config, &redactor, exporters.as_ref().ok())?;
    let exporters = exporters?;
    if let Some(limit) = limits::raise().filter(|limit| *limit < limits::ENOUGH) {
        tracing::warn!(
            limit,
            needed = limits::ENOUGH,
            "the limit of open files is low; raise it to what is needed (LimitNOFILE= of systemd, ulimit -n)"
        );
    }
    for warning in &context.warnings {
        tracing::warn!(warning, "a suspicious setting");
    }
    let audit = AuditLog::open(&config.audit, &redactor).map_err(AssemblyError::from)?;
    let store = config.store.open().map_err(AssemblyError::from)?;
    let (registry, mut sets) = assembly::tools(config)?;
    let access = assembly::access(config, registry.clone())?;
    let switches = Switches::load(Arc::clone(&store), &access).await?;
    let listeners = Listeners::bind(config).await?;
    let load = Arc::<Load>::default();
    let scripts =
        Scripts::start(config, Arc::new(ScriptMetrics::new(&exporters))).await.map_err(AssemblyError::from)?;
    scripts.watch(&exporters);
    let of_scripts = scripts.tools(config).await.map_err(AssemblyError::from)?;
    registry.register_all(of_scripts).map_err(AssemblyError::from)?;
    // Calls that come right after the start must find these tools.
    access.refresh();
    let pins = pinned(context, &access).await?;
    observe::watch_pins(&exporters, pins.clone());
    let bus = assembly::bus(config)?;
    let servers = Servers::new(config, registry.clone(), Arc::new(McpMetrics::new(&exporters)), &redactor)?;
    let registrar = servers.as_ref().and_then(|servers| servers.registrar(config, Arc::clone(&store)));
    let mut placed = Vec::new();
    if let Some(servers) = &servers {
        let (planned, of_servers) = servers.plan(config, |_| None);
        sets.extend(of_servers);
        placed = planned;
    }
    let sessions = SessionSets::new(sets);
    let shown: Arc<dyn McpAdmin> =
        servers.clone().map_or_else(|| Arc::new(NoServers) as _, |servers| Arc::new(servers) as _);
    observe::watch(&exporters, Arc::clone(&shown));
    let telemetry = assembly::recorder(config, &exporters, &load, &bus.state());
    let state = bus.state();
    let health = assembly::health(config, state, &access, Arc::clone(&shown), &scripts, Arc::clone(&load));

    tracing::info!(
        version = crate::VERSION,
        bus = %config.bus.url,
        name = config.bus.name,
        tools = registry.snapshot().len(),
        "starting"
    );
    tracing::info!(callers = config.callers(), "who may use tools");
    if config.bus.url == BusUrl::Embedded {
        if config.http.takes_clients() {
            tracing::info!("the bus is embedded: MCP clients alone reach this daemon; set bus.url to use RabbitMQ");
        } else {
            tracing::warn!("the bus is embedded: no other process can reach this daemon; set bus.url to use RabbitMQ");
        }
        if config.identity.source == Source::Broker {
            tracing::warn!("no broker vouches for anybody on the embedded bus: every caller is unknown");
        }
    }
    if config.identity.source == Source::Broker && config.denies_unknown() {
        tracing::info!(
            "requests without user_id are refused every tool, as are those of logins without a section in agents"
        );
    }
    // Before calls are taken, so that each finds the servers that there are to be.
    if let Some(servers) = &servers {
        servers.apply(config, placed);
        if let Some(registrar) = &registrar {
            servers.bridge().restore(registrar.restore().await);
        }
    }
    let parts = Parts {
        bus: Arc::clone(&bus),
        access: access.clone(),
        sessions: sessions.clone(),
        servers: servers.clone(),
        scripts: scripts.clone(),
        pins: Some(pins.clone()),
        registrar: registrar.clone(),
        store,
        telemetry,
        audit: Arc::clone(&audit) as Arc<dyn Audit>,
        load,
        redactor: redactor.clone(),
    };
    let daemon = Daemon::start(config, parts);
    observe::watch_reloads(&exporters, Arc::clone(&health));
    exporters.export_now();
    let stop_doors = CancellationToken::new();
    let http_auth = HttpAuth::new(config, Arc::clone(&audit) as Arc<dyn Audit>, stop_doors.clone());
    let observer = Arc::new(DoorMetrics::new(&exporters));
    let (of_door, invoker, ours) = (access.clone(), Arc::clone(daemon.invoker()), sessions.clone());
    let door = assembly::door(config, of_door, invoker, ours, servers.clone(), observer, stop_doors.clone());
    observe::watch_door(&exporters, door.clone());
    let (admin, mut reloads) = DaemonAdmin::new(Arc::clone(&health), &context.sources.files);
    let admin = Admin::new(Arc::clone(daemon.gates()), switches).with_pins(pins.clone()).with_daemon(admin);
    let admin = Arc::new(admin);
    let token = config.http.admin_token.as_ref();
    let state = HttpState {
        health: Arc::clone(&health),
        admin: token.map(|token| admin::guarded(Arc::clone(&admin), Arc::clone(&shown), token.reveal())),
        auth: Arc::clone(&http_auth),
        mcp: toolbus_mcp_server::router(door.clone()),
        redactor: redactor.clone(),
    };
    let mut serving = listeners.serve(state, admin::open(admin, shown), &stop_doors);
    serving.spawn(door.run());
    // Before the file is read again below, so that no change since it was first read is missed.
    let mut file = config.mcp.servers_file.as_deref().filter(|_| servers.is_some()).map(FileWatch::start);
    let live = Live {
        access,
        sessions,
        servers: servers.clone(),
        scripts,
        pins: pins.clone(),
        http_auth,
        digest: daemon.digest().clone(),
        redactor,
    };
    let mut reloader = Reloader::new(context.sources.clone(), config.clone(), live);
    if file.is_some() {
        reloader.reload_servers().await;
    }
    let ending = wait(&mut signals, bus.state(), file.as_mut(), &mut reloads, async |what| match what {
        Changed::Configuration(asked) => {
            let report = reload(&mut reloader).await;
            audit.reopen();
            health.reloaded(report.clone());
            // An operator who no longer waits finds it in the status.
            if let Some(asked) = asked {
                let _ = asked.send(report);
            }
        }
        Changed::ServersFile => {
            let source = "servers_file";
            let span = tracing::info_span!(target: lifecycle::TARGET, "reload", toolbus.reload.source = source);
            reloader.reload_servers().instrument(span).await;
        }
    });
    let ending = ending.await;
    health.start_draining();

    let orderly = async {
        let result = end(daemon, ending, config.invoke.drain_timeout.get()).await;
        stop_doors.cancel();
        while serving.join_next().await.is_some() {}
        // What is wrong with the file was logged.
        let _ = tokio::time::timeout(FLUSH_TIME, spawn_blocking(move || pins.save().is_ok())).await;
        if let Err(error) = audit.close(FLUSH_TIME).await {
            tracing::error!(%error, "the last audit records were not written");
        }
        if let Err(error) = exporters.shutdown(FLUSH_TIME).await {
            tracing::warn!(%error, "the last metrics, spans and log records were not exported");
        }
        result
    };
    tokio::select! {
        result = orderly => result,
        signal = signals.stop() => {
            tracing::warn!(signal, "stopping at once: another signal came");
            Ok(ExitCode::from(130))
        }
    }
}

/// Quarantines what is not as it was pinned, before anybody calls anything. Where something is to be quarantined, what was
/// seen must be kept.
async fn pinned(context: &Context, access: &PolicyHandle) -> Result<Pins, AssemblyError> {
    let config = &context.config;
    let pins = assembly::pins(config, config.pin_file(&context.sources))?;
    access.vet(Arc::new(pins.clone()));
    let saving = pins.clone();
    let saved = spawn_blocking(move || saving.save()).await;
    match saved {
        Ok(Err(error)) if config.pin_levels().hold_anything() => return Err(error.into()),
        Ok(Ok(true)) => access.refresh(),
        _ => {}
    }
    let held = access.current().held();
    if held > 0 {
        tracing::warn!(held, "tools are quarantined; `toolbus pins` lists them");
    }
    Ok(pins)
}

/// Puts the configuration as it is now into practice, or says why not.
async fn reload(reloader: &mut Reloader) -> ReloadReport {
    let span = tracing::info_span!(
        target: lifecycle::TARGET,
        "reload",
        toolbus.reload.source = "configuration",
        otel.status_description = Empty
    );
    let reloading = async { logged(lifecycle::checked(&span, reloader.reload().await)) };
    reloading.instrument(span.clone()).await
}

fn logged(reloaded: Result<ReloadReport, ReloadError>) -> ReloadReport {
    match reloaded {
        Ok(report) => {
            for warning in &report.warnings {
                tracing::warn!(warning, "reload: a suspicious setting");
            }
            for section in &report.waiting {
                tracing::warn!(section, "reload: this section has changed, and waits for a restart");
            }
            tracing::info!(tools = report.tools, changed = report.changed.join(", "), "reload: done");
            report
        }
        Err(error) => {
            tracing::error!(%error, "reload: refused; everything stays as it was");
            ReloadReport { error: Some(error.to_string()), ..ReloadReport::default() }
        }
    }
}

/// What may have changed.
enum Changed {
    /// The configuration; by the request of an operator who waits for the report, or by a signal.
    Configuration(Option<ReloadRequest>),
    ServersFile,
}

/// Waits for what ends the daemon; until then, has every change put into practice.
async fn wait(
    signals: &mut Signals,
    mut bus: watch::Receiver<BusState>,
    mut file: Option<&mut FileWatch>,
    reloads: &mut mpsc::Receiver<ReloadRequest>,
    mut reload: impl AsyncFnMut(Changed),
) -> Ending {
    let fatal = async {
        let state = bus.wait_for(|state| state.fatal.is_some()).await.map(|state| state.fatal.clone());
        match state {
            Ok(Some(reason)) => reason,
            _ => std::future::pending().await,
        }
    };
    tokio::pin!(fatal);
    loop {
        let changed = async {
            match &mut file {
                Some(file) => file.changed().await,
                None => std::future::pending().await,
            }
        };
        let what = tokio::select! {
            asked = signals.next() => match asked {
                Asked::Stop(signal) => return Ending::Signal(signal),
                Asked::Reload => Changed::Configuration(None),
            },
            Some(asked) = reloads.recv() => Changed::Configuration(Some(asked)),
            () = changed => Changed::ServersFile,
            reason = &mut fatal => return Ending::Fatal(reason),
        };
        // Files that are slow to read hold no end up.
        tokio::select! {
            () = reload(what) => {}
            signal = signals.stop() => return Ending::Signal(signal),
            reason = &mut fatal => return Ending::Fatal(reason),
        }
    }
}

/// Ends the daemon as what ended it asks for.
async fn end(daemon: Daemon, ending: Ending, patience: Duration) -> Result<ExitCode, ServeError> {
    let span = tracing::info_span!(
        target: lifecycle::TARGET,
        "drain",
        toolbus.drain.cut = Empty,
        otel.status_description = Empty
    );
    let cut = |drained| {
        let calls = if let Drained::Cut(calls) = drained { calls } else { 0 };
        span.record("toolbus.drain.cut", lifecycle::count(calls));
    };
    let draining = async {
        match ending {
            Ending::Signal(signal) => {
                let timeout_ms = u64::try_from(patience.as_millis()).unwrap_or(u64::MAX);
                tracing::info!(signal, timeout_ms, "draining");
                let drained = daemon.drain(patience).await;
                match drained {
                    Drained::Finished => tracing::info!("drained: every call came to its end"),
                    Drained::Cut(calls) => tracing::warn!(calls, "drained: calls were put back or cancelled"),
                }
                cut(drained);
                Ok(ExitCode::SUCCESS)
            }
            Ending::Fatal(reason) => {
                lifecycle::fail(&span, &reason);
                cut(daemon.drain(Duration::ZERO).await);
                Err(ServeError::Broker(reason))
            }
        }
    };
    draining.instrument(span.clone()).await
}
