//! The parts of a daemon, put together: built from a configuration, started, reloaded and drained.
//!
//! `toolbus serve` uses all of it. Commands that need a bus without another process use the same parts with nothing that
//! listens, records or writes.

mod agents;
mod files;
mod guides;
mod listen;
mod memory;
mod parts;
mod pins;
mod pipelines;
mod reload;
mod remote;
mod replicas;
mod schedule;
mod scripts;
mod servers;
mod specifications;
mod store_files;
mod subagents;
mod telemetry;
#[cfg(test)]
mod tests;
mod toolsets;
mod watch;

pub use self::files::unusable;
pub use self::guides::GuidesError;
pub use self::parts::{broker_settings, bus, policy, redactor, registry};
pub use self::scripts::{AppScripts, ScriptsError};
pub use self::servers::AppServers;
pub use self::telemetry::{Recording, logging, targets};

use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use tokio::sync::{mpsc, watch as channel};
use tokio::task::{JoinSet, spawn_blocking};
use tokio_util::sync::CancellationToken;
use toolbus_agents::a2a::{AgentsError, Announcer};
use toolbus_agents::schedule::TaskStore;
use toolbus_agents::{AgentService, Pipelines, Subagents};
use toolbus_broker::rabbitmq;
use toolbus_client::RemoteDaemons;
use toolbus_core::audit::Audit;
use toolbus_core::bus::{Bus, BusState};
use toolbus_core::events::{Discard, WebEvents};
use toolbus_core::policy::PolicyHandle;
use toolbus_core::redact::Redactor;
use toolbus_core::registry::RegistryError;
use toolbus_core::store::Store;
use toolbus_core::telemetry::{Load, Telemetry};
use toolbus_core::toolsets::SessionSets;
use toolbus_core::working_memory::WorkingMemory;
use toolbus_core::{AllArrived, Clock, Dispatcher, Drained, Gates, PendingTools, Service};
use toolbus_mcp_client::model_tools::Registrar;
use toolbus_store::FileClaim;
use toolbus_telemetry::logging::LoggingError;
use toolbus_telemetry::{Exporters, TelemetryError};
use toolbus_trust::pins::{PinFileError, Pins};
use toolbus_trust::scan::RulesError;

use self::guides::{CurrentGuides, CurrentSearch};
use self::parts::shown;
use self::reload::Change;
use self::remote::RemoteSets;
use self::replicas::{Announcement, Replicas};
use self::store_files::StoreFiles;
use self::watch::FileWatch;
use crate::audit::{AuditError, AuditLog};
use crate::config::daemon::Role;
use crate::config::store::{OpenMemory, OpenStore, StoreOpenError};
use crate::config::{Config, PolicyError, Sources, ToolsError};
use crate::http::admin::{DaemonAdmin, LoadError, ReloadRequest, SwitchStore};
use crate::http::{Build, Health, HealthSources, HttpAuth, Listeners, ListenersError, McpAdmin, SharedState};
use crate::signals::{SignalRequest, Signals};

/// Time for the last audit records, metrics, spans and log records to leave.
const FLUSH_TIME: Duration = Duration::from_secs(5);

/// What an [`App`] is built for.
pub enum Mode<'a> {
    /// A daemon.
    Daemon {
        /// Where its configuration comes from.
        sources: &'a Sources,
        /// Its log and its exporters.
        recording: Recording,
    },
    /// A command: the app listens on nothing, records nothing and writes nothing. It quarantines what is not as this
    /// file has it, if one is given.
    Command {
        /// The file of pins.
        pins: Option<PathBuf>,
    },
}

/// The parts of a daemon.
pub struct App {
    /// The configuration that is in force.
    config: Config,
    sources: Sources,
    redactor: Redactor,
    bus: Arc<dyn Bus>,
    store: Arc<dyn Store>,
    _claim: Option<FileClaim>,
    /// What is known of a store that replicas share.
    shared: channel::Receiver<SharedState>,
    /// Keeps in step with other replicas, once it is run.
    replicas: Option<Replicas>,
    /// What other replicas know of this one.
    announcement: Option<Announcement>,
    is_consuming: bool,
    policy: PolicyHandle,
    sessions: SessionSets,
    scripts: AppScripts,
    /// Records pages and searches, also of tools that a reload makes.
    web_events: Arc<dyn WebEvents>,
    /// What keeps the entries of working memory; absent where there is none.
    memory: Option<Arc<dyn WorkingMemory>>,
    tasks: TaskStore,
    guides: CurrentGuides,
    search: CurrentSearch,
    pipelines: Option<Pipelines>,
    /// Other agents; absent where the configuration has none.
    agents: Option<AgentService>,
    /// Announces this daemon as an agent; absent where it does not.
    announcer: Option<Announcer>,
    subagents: Option<Subagents>,
    daemons: RemoteDaemons,
    remote: RemoteSets,
    /// Cancelled when tasks are published no more.
    stop_scheduling: CancellationToken,
    scheduler: JoinSet<()>,
    /// Checks the files of the store, once it is run.
    store_files: Option<StoreFiles>,
    pins: Pins,
    servers: Option<AppServers>,
    registrar: Option<Arc<Registrar>>,
    telemetry: Arc<dyn Telemetry>,
    gates: Arc<Gates>,
    dispatcher: Dispatcher,
    service: Arc<Service>,
    /// Hash of the configuration, as `tool.ping` reports it.
    digest: channel::Sender<String>,
    health: Arc<Health>,
    http_auth: Arc<HttpAuth>,
    reloads: mpsc::Receiver<ReloadRequest>,
    admin: DaemonAdmin,
    /// Absent in a command.
    daemon: Option<DaemonParts>,
    consumers: JoinSet<()>,
    /// What is stopped when the consumers have stopped.
    background: JoinSet<()>,
    serving: JoinSet<()>,
    stop_serving: CancellationToken,
}

/// What a daemon has, and a command has not.
struct DaemonParts {
    audit: Arc<AuditLog>,
    exporters: Exporters,
    /// Taken once they are served.
    listeners: Option<(Listeners, Arc<SwitchStore>)>,
}

/// Why a valid configuration cannot be put into practice.
#[derive(Debug, thiserror::Error)]
pub enum AppError {
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
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreOpenError),
    /// The file of pins.
    #[error("[pins] {0}")]
    Pins(#[from] PinFileError),
    /// What is disabled cannot be read.
    #[error(transparent)]
    SwitchStore(#[from] LoadError),
    /// The port or the socket cannot be had.
    #[error(transparent)]
    Listeners(#[from] ListenersError),
    /// The exporters of metrics, traces and logs.
    #[error("[telemetry] {0}")]
    Telemetry(#[from] TelemetryError),
    /// MCP servers.
    #[error("no MCP server can be started: {0}")]
    Servers(std::io::Error),
    /// The rules of the scan of definitions.
    #[error(transparent)]
    Scan(RulesError),
    /// The folder of guides.
    #[error(transparent)]
    Guides(#[from] GuidesError),
    /// Other agents.
    #[error(transparent)]
    Agents(#[from] AgentsError),
    /// Scripts and commands.
    #[error(transparent)]
    Scripts(#[from] ScriptsError),
    /// The log.
    #[error("[telemetry] {0}")]
    Logging(#[from] LoggingError),
}

/// What ended a daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shutdown {
    /// A signal of this name.
    Signal(&'static str),
    /// A mistake at the broker that no retry mends; the text says what to do.
    Fatal(String),
}

impl App {
    /// Opens and makes everything that the configuration asks for. Nothing is taken from the bus, no MCP server is
    /// started and no request is answered before [`Self::start_servers`] and [`Self::listen`].
    ///
    /// # Errors
    ///
    /// If the configuration cannot be put into practice, such as a port that is in use.
    pub async fn build(config: &Config, mode: Mode<'_>) -> Result<Self, AppError> {
        let (sources, recording, pin_file) = match mode {
            Mode::Daemon { sources, recording } => (sources.clone(), Some(recording), config.pin_file(sources)),
            Mode::Command { pins } => (Sources::default(), None, pins),
        };
        let is_daemon = recording.is_some();
        let (config, told) = specifications::with_specifications(config, None).await;
        let config = &config;
        for warning in told {
            tracing::warn!(warning, "a specification");
        }
        let redactor = match &recording {
            Some(recording) => recording.redactor.clone(),
            None => parts::redactor(config),
        };
        let open = match is_daemon {
            true => config.store.open(&config.queue_prefix(), &sources.holder())?,
            false => OpenStore::in_memory(),
        };
        let ledger = if is_daemon { Some(config.store.open_ledger(config.ledger.limits(), &open)?) } else { None };
        let budget = config.results.budget();
        let memory = match is_daemon {
            true => memory::open(config, &open)?,
            false => memory::of_command(config).map(|memory| OpenMemory { memory, file: None }),
        };
        let (memory, file) = memory.map(|OpenMemory { memory, file }| (memory, file)).unzip();
        let (store_files, unwritable) = StoreFiles::new(ledger.clone(), file.flatten());
        let OpenStore { store, shared: redis, claim } = open;
        let switches = Arc::new(SwitchStore::new(Arc::clone(&store), redis.is_some()));
        let web_events = telemetry::of_web(recording.as_ref().map(|recording| &recording.exporters));
        let (registry, mut sets) = parts::tools(config, &web_events)?;
        let policy = parts::policy(config, registry.clone())?;
        let daemon = match recording {
            Some(recording) => {
                // What was disabled is disabled again before anything can be called; what replicas share is read later.
                if redis.is_none() {
                    switches.follow(&policy).await?;
                }
                Some(DaemonParts::open(config, recording, Arc::clone(&switches)).await?)
            }
            None => None,
        };
        let exporters = daemon.as_ref().map(|daemon| &daemon.exporters);
        let scripts = AppScripts::start(config, memory.as_ref(), telemetry::of_scripts(exporters)).await?;
        registry.register_all(scripts.tools(config).await?)?;
        registry.register_all(memory::tools(config, memory.as_ref()))?;
        let bus = parts::bus(config)?;
        let daemons = parts::daemons(config, &bus);
        registry.register_all(config.remote_tools(&daemons)?)?;
        let tasks = schedule::tasks(&store);
        let of_results = memory.as_ref().map(|_| budget.clone());
        let observer = telemetry::of_servers(exporters);
        let servers = AppServers::new(config, registry.clone(), observer, &redactor, of_results)?;
        let loaded = guides::load(config, servers.as_ref())?;
        let agents = agents::service(config, &store, Arc::clone(&bus), telemetry::of_agents(exporters), &redactor)?;
        let agent_tools = agents::of_rules(config, agents.as_ref())?;
        registry.register_all(agents::tools(config, agent_tools.as_ref()))?;
        let search = guides::searching(&policy, servers.as_ref(), agent_tools);
        registry.register_all(guides::tools(config, loaded.as_ref(), &policy, &search))?;
        let announcer = agents::announcer(config, &policy, Arc::clone(&bus))?;
        // Calls right after the start must find these tools.
        policy.refresh();
        let pins = pins::open(config, pin_file, is_daemon, &policy).await?;
        let subagents = subagents::new(config, &store, &bus, || telemetry::of_subagents(exporters));
        registry.register_all(subagents::tools(config, subagents.as_ref()))?;
        let registrar =
            servers.as_ref().filter(|_| is_daemon).and_then(|servers| servers.registrar(config, Arc::clone(&store)));
        let (_, of_servers) = servers.as_ref().map(|servers| servers.plan(config, |_| None)).unwrap_or_default();
        sets.extend(of_servers);
        sets.extend(scripts.sessions());
        let sessions = SessionSets::new(sets);
        let load = Arc::<Load>::default();
        let recorder = telemetry::of_calls(config, exporters, &load, &bus.state());
        let gates = Arc::new(Gates::new(policy.clone()));
        gates.breakers().configure(config.breaker.rules());
        policy.registry().register_all(schedule::tools(config, &tasks, &gates))?;
        let of_scripts = scripts.clone();
        // Without the role `mcp`, the servers are those of another process.
        let has_servers = config.roles().contains(&Role::Mcp);
        let digest = channel::Sender::new(config.digest());
        let (state, shared) = channel::channel(SharedState::default());
        let replicas = redis.map(|redis| {
            let own = replicas::own(config);
            let parts = (policy.clone(), switches, registrar.clone());
            Replicas::new(redis, parts, digest.subscribe(), own, state)
        });
        let others: Arc<dyn PendingTools> = match &servers {
            Some(servers) => Arc::new(servers.bridge().clone()),
            None => Arc::new(AllArrived),
        };
        let remote = RemoteSets::new(policy.registry().clone(), daemons.clone(), others);
        let of_remote = remote.clone();
        let health = Arc::new(Health::new(HealthSources {
            bus: bus.state(),
            shared: shared.clone(),
            store_files: unwritable,
            policy: policy.clone(),
            load: Arc::clone(&load),
            breakers: gates.breakers().clone(),
            servers: shown(servers.as_ref()),
            remote: Box::new(move || of_remote.status()),
            scripts: Box::new(move || of_scripts.status()),
            required_tools: config.tools.required.clone(),
            required_servers: if has_servers { config.mcp.required.clone() } else { Vec::new() },
            build: Build { version: env!("CARGO_PKG_VERSION").into(), commit: env!("TOOLBUS_COMMIT").into() },
            clock: Clock::SYSTEM,
        }));
        let audit: Arc<dyn Audit> = match &daemon {
            Some(daemon) => Arc::clone(&daemon.audit) as Arc<dyn Audit>,
            None => Arc::new(Discard),
        };
        let dispatcher = Dispatcher::new(
            listen::settings(config, redactor.clone(), ledger.clone(), memory.as_ref(), &budget),
            Arc::clone(&gates),
            Arc::clone(&bus),
            Arc::clone(&recorder),
            Arc::clone(&audit),
            load,
            Arc::new(remote.clone()),
        );
        let pipelines = pipelines::new(config, &policy, Arc::new(dispatcher.clone()));
        policy.registry().register_all(pipelines::tool(config, pipelines.as_ref()).into_iter().collect())?;
        policy.refresh();
        let (admin, reloads) = DaemonAdmin::new(Arc::clone(&health), &sources.files);
        let stop_serving = CancellationToken::new();
        let app = Self {
            config: config.clone(),
            sources,
            redactor,
            bus,
            store,
            _claim: claim,
            shared,
            replicas,
            announcement: None,
            is_consuming: false,
            policy,
            sessions,
            scripts,
            web_events,
            memory,
            tasks,
            guides: Arc::new(RwLock::new(loaded)),
            search: CurrentSearch(Arc::new(RwLock::new(search))),
            pipelines,
            agents,
            announcer,
            subagents,
            daemons,
            remote,
            stop_scheduling: CancellationToken::new(),
            scheduler: JoinSet::new(),
            store_files: Some(store_files),
            pins,
            servers,
            registrar,
            telemetry: recorder,
            gates,
            service: Arc::new(Service::new(dispatcher.clone())),
            dispatcher,
            digest,
            health,
            http_auth: HttpAuth::new(config, audit, stop_serving.clone()),
            reloads,
            admin,
            daemon,
            consumers: JoinSet::new(),
            background: JoinSet::new(),
            serving: JoinSet::new(),
            stop_serving,
        };
        if let Some(DaemonParts { exporters, .. }) = &app.daemon {
            let (servers, health) = (app.servers(), Arc::clone(&app.health));
            telemetry::watch(exporters, app.scripts.clone(), app.pins.clone(), servers, health);
            if let Some(ledger) = ledger {
                exporters.watch_ledger(move || ledger.usage());
            }
            let remote = app.remote.clone();
            exporters.watch_remote(move || remote.counts());
            telemetry::watch_breakers(exporters, app.gates.breakers().clone());
        }
        Ok(app)
    }

    /// Starts the MCP servers of the configuration, and those that callers have registered, and follows other daemons. Comes
    /// before [`Self::listen`], so that each call finds the servers that there are to be.
    pub async fn start_servers(&mut self) {
        self.remote.apply(&self.config);
        if let Some(servers) = &self.servers {
            servers.apply(&self.config, self.plan(&self.config).0);
        }
        match (&mut self.replicas, &self.servers, &self.registrar) {
            (Some(replicas), ..) => replicas.step().await,
            (None, Some(servers), Some(registrar)) => servers.bridge().restore(registrar.restore().await),
            _ => {}
        }
    }

    /// Reloads what changes until a signal or a fatal error ends the daemon.
    pub async fn run(&mut self, signals: &mut Signals) -> Shutdown {
        // Watched before it is read again, so that no change since it was first read is missed.
        let mut file = self.config.mcp.servers_file.as_deref().filter(|_| self.servers.is_some()).map(FileWatch::start);
        if file.is_some() {
            self.reload_servers().await;
        }
        let mut fatal = pin!(fatal(self.bus.state()));
        let mut shared = self.shared.clone();
        loop {
            let change = tokio::select! {
                asked = signals.next() => match asked {
                    SignalRequest::Stop(signal) => return Shutdown::Signal(signal),
                    SignalRequest::Reload => Change::Configuration(None),
                },
                Some(request) = self.reloads.recv() => Change::Configuration(Some(request)),
                () = watch::changed(&mut file) => Change::ServersFile,
                () = read(&mut shared), if !self.is_consuming => {
                    self.consume();
                    continue;
                }
                reason = &mut fatal => return Shutdown::Fatal(reason),
            };
            // A file that is slow to read does not delay the end.
            tokio::select! {
                () = self.take_over(change) => {}
                signal = signals.stop() => return Shutdown::Signal(signal),
                reason = &mut fatal => return Shutdown::Fatal(reason),
            }
        }
    }

    /// Stops taking calls, waits at most `patience` for those in progress, ends the rest, stops MCP servers and closes the
    /// bus.
    pub async fn drain(&mut self, patience: Duration) -> Drained {
        self.health.start_draining();
        // A reload that is requested from now on, or waits already, fails at once.
        self.reloads.close();
        while self.reloads.try_recv().is_ok() {}
        self.stop_scheduling.cancel();
        if let Some(announcer) = self.announcer.as_ref().filter(|_| self.is_consuming) {
            announcer.leave().await;
        }
        self.bus.stop_consuming().await;
        while self.consumers.join_next().await.is_some() {}
        self.background.abort_all();
        let drained = self.service.drain(patience).await;
        // A message that is being published has its time.
        let _ = tokio::time::timeout(FLUSH_TIME.min(patience), self.scheduler.join_next()).await;
        self.scheduler.abort_all();
        if let Some(announcement) = self.announcement.take() {
            announcement.end().await;
        }
        self.remote.stop();
        self.sessions.shutdown().await;
        if let Some(servers) = &self.servers {
            servers.bridge().shutdown().await;
        }
        self.scripts.shutdown().await;
        self.bus.close().await;
        drained
    }

    /// Ends the HTTP server, and writes and exports what is left. Comes after [`Self::drain`].
    pub async fn close(mut self) {
        self.stop_serving.cancel();
        while self.serving.join_next().await.is_some() {}
        if let Some(daemon) = self.daemon {
            daemon.close(self.pins).await;
        }
    }

    /// The number of tools.
    #[must_use]
    pub fn tools(&self) -> usize {
        self.policy.registry().snapshot().len()
    }

    /// The bus.
    #[must_use]
    pub fn bus(&self) -> Arc<dyn Bus> {
        Arc::clone(&self.bus)
    }

    /// The MCP servers of this process.
    #[must_use]
    pub fn servers(&self) -> Arc<dyn McpAdmin> {
        shown(self.servers.as_ref())
    }

    /// Waits until every MCP server has started or failed, at most `patience`.
    pub async fn servers_settled(&self, patience: Duration) {
        if let Some(servers) = &self.servers {
            servers.bridge().settled(patience).await;
        }
    }
}

impl DaemonParts {
    async fn open(
        config: &Config,
        Recording { redactor, exporters }: Recording,
        switches: Arc<SwitchStore>,
    ) -> Result<Self, AppError> {
        let audit = AuditLog::open(&config.audit, &redactor)?;
        let listeners = Some((Listeners::bind(config).await?, switches));
        Ok(Self { audit, exporters, listeners })
    }

    /// Writes and exports what is left. Each step that fails is logged.
    async fn close(self, pins: Pins) {
        // A problem of the file was logged.
        let _ = tokio::time::timeout(FLUSH_TIME, spawn_blocking(move || pins.save().is_ok())).await;
        if let Err(error) = self.audit.close(FLUSH_TIME).await {
            tracing::error!(%error, "the last audit records were not written");
        }
        if let Err(error) = self.exporters.shutdown(FLUSH_TIME).await {
            tracing::warn!(%error, "the last metrics, spans and log records were not exported");
        }
    }
}

/// Waits until what replicas share has been read.
async fn read(shared: &mut channel::Receiver<SharedState>) {
    if shared.wait_for(|state| !state.is_unread).await.is_err() {
        std::future::pending().await
    }
}

/// The mistake at the broker that no retry mends, once there is one.
async fn fatal(mut bus: channel::Receiver<BusState>) -> String {
    let state = bus.wait_for(|state| state.fatal.is_some()).await.map(|state| state.fatal.clone());
    match state {
        Ok(Some(reason)) => reason,
        _ => std::future::pending().await,
    }
}
