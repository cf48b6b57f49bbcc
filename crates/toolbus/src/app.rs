//! The parts of a daemon, put together: built from a configuration, started, reloaded and drained.
//!
//! `toolbus serve` uses all of it. Commands that need a bus without another process use the same parts with nothing that
//! listens, records or writes.

mod assembly;
mod files;
mod listen;
mod other_daemons;
mod parts;
mod pins;
mod reload;
mod replicas;
mod store_files;
mod stores;
mod telemetry;
#[cfg(test)]
mod tests;
mod watch;
mod watched_ledger;

pub(crate) use self::files::is_of_another;
pub use self::files::unusable;
pub use self::parts::{bus, described, policy, redactor, subscriptions};
pub use self::telemetry::{Recording, logging, targets};

use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::{mpsc, watch as channel};
use tokio::task::{JoinSet, spawn_blocking};
use tokio_util::sync::CancellationToken;
use toolbus_broker::rabbitmq;
use toolbus_core::bus::{Bus, BusState};
use toolbus_core::policy::PolicyHandle;
use toolbus_core::redact::Redactor;
use toolbus_core::registry::RegistryError;
use toolbus_core::telemetry::Telemetry;
use toolbus_core::toolsets::SessionSets;
use toolbus_core::{Dispatcher, Drained, Gates, Service};
use toolbus_mcp_client::model_tools::Registrar;
use toolbus_store::{FileClaim, Redis, StoreOpenError};
use toolbus_telemetry::logging::LoggingError;
use toolbus_telemetry::{Exporters, RecentCalls, TelemetryError};
use toolbus_trust::pins::{PinFileError, Pins};

use self::reload::Change;
use self::replicas::{Announcement, Replicas};
use self::store_files::StoreFiles;
use self::watch::FileWatch;
use crate::audit::{AuditError, AuditLog};
use crate::config::{Config, PolicyError, Sources};
use crate::families::{self, AppServers, Commit, Contributions, FamilyError, ToolFamily};
use crate::http::admin::{DaemonAdmin, LoadError, ReloadRequest, SwitchStore};
use crate::http::{Health, HeardDaemons, HttpAuth, Listeners, ListenersError, McpAdmin, SharedState};
use crate::signals::{SignalRequest, Signals};

/// Time for the last audit records, metrics, spans and log records to leave.
const FLUSH_TIME: Duration = Duration::from_secs(5);

/// Purpose of an [`App`].
pub enum Mode<'a> {
    /// A daemon.
    Daemon {
        /// Where its configuration comes from.
        sources: &'a Sources,
        /// The log and the exporters.
        recording: Recording,
    },
    /// A command: the app listens on nothing, records nothing and writes nothing. It quarantines tools that differ from
    /// their pins in this file, if one is given.
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
    /// Content of the configuration's files when they were read last.
    files_read: Option<[u8; 32]>,
    /// Hash of the configuration, as `tool.ping` reports it.
    digest: channel::Sender<String>,
    /// The configuration in force, for its observers.
    in_force: channel::Sender<Arc<Config>>,
    redactor: Redactor,
    bus: Arc<dyn Bus>,
    policy: PolicyHandle,
    pins: Pins,
    /// The families of tools, in the order in which they start.
    families: Vec<Box<dyn ToolFamily>>,
    given: Contributions,
    /// Changes that families make once the app is started.
    commits: Vec<Commit>,
    calls: CallParts,
    is_consuming: bool,
    /// Other daemons that share the store or the broker.
    peers: Peers,
    /// Checks the files of the store, once it is run.
    store_files: Option<StoreFiles>,
    health: Arc<Health>,
    http_auth: Arc<HttpAuth>,
    reloads: mpsc::Receiver<ReloadRequest>,
    admin: DaemonAdmin,
    /// Absent in a command.
    daemon: Option<DaemonParts>,
    tasks: Tasks,
}

/// The parts that take calls and run them.
struct CallParts {
    gates: Arc<Gates>,
    sessions: SessionSets,
    dispatcher: Dispatcher,
    service: Arc<Service>,
    telemetry: Arc<dyn Telemetry>,
    /// Empty in a command.
    recent: RecentCalls,
}

/// Other daemons: replicas, which share the store, and those that take calls of this one.
struct Peers {
    /// State of a store that replicas share.
    shared: channel::Receiver<SharedState>,
    /// Keeps in step with other replicas, once it is run.
    replicas: Option<Replicas>,
    /// The announcement of this replica to the others.
    announcement: Option<Announcement>,
    /// Other daemons that take calls of this one.
    others: channel::Sender<HeardDaemons>,
}

/// The tasks of a process.
#[derive(Default)]
struct Tasks {
    consumers: JoinSet<()>,
    /// The consumers of messages for which running calls wait.
    inboxes: JoinSet<()>,
    /// Cancelled when no call waits any more.
    stop_receiving: CancellationToken,
    /// The announcements to other daemons, which this one's control queue receives, too: they end before its consumer.
    announcements: JoinSet<()>,
    stop_announcing: CancellationToken,
    /// Tasks that are stopped when the consumers have stopped.
    background: JoinSet<()>,
    serving: JoinSet<()>,
    stop_serving: CancellationToken,
}

/// Parts that a daemon has, and a command has not.
struct DaemonParts {
    audit: Arc<AuditLog>,
    exporters: Exporters,
    /// Keeps other daemons from the store's file.
    _claim: Option<FileClaim>,
    /// Taken once they are served.
    listeners: Option<(Listeners, Arc<SwitchStore>)>,
}

/// Reason why a valid configuration cannot be put into practice.
#[derive(Debug, thiserror::Error)]
pub enum AppError {
    /// The broker's settings, certificates included.
    #[error("[bus] {0}")]
    Bus(#[from] rabbitmq::SettingsError),
    /// The tools of a family.
    #[error(transparent)]
    Family(#[from] FamilyError),
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
    /// The tools that are disabled cannot be read.
    #[error(transparent)]
    SwitchStore(#[from] LoadError),
    /// The port or the socket cannot be had.
    #[error(transparent)]
    Listeners(#[from] ListenersError),
    /// The exporters of metrics, traces and logs.
    #[error("[telemetry] {0}")]
    Telemetry(#[from] TelemetryError),
    /// The log.
    #[error("[telemetry] {0}")]
    Logging(#[from] LoggingError),
}

/// Cause of the end of a daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shutdown {
    /// A signal of this name.
    Signal(&'static str),
    /// A mistake at the broker that no retry mends; the text names the next step.
    Fatal(String),
}

impl App {
    /// Opens and makes every part of the configuration. Nothing is consumed from the bus, no MCP server is started and
    /// no request is served before [`Self::start`] and [`Self::listen`].
    ///
    /// # Errors
    ///
    /// If the configuration cannot be put into practice, such as a port that is in use.
    pub async fn build(config: &Config, mode: Mode<'_>) -> Result<Self, AppError> {
        assembly::build(config, mode, families::all).await
    }

    /// Starts the backends of tools, such as the MCP servers of the configuration and of callers' registrations, and
    /// follows other daemons. Comes before [`Self::listen`], so that each call finds every tool.
    pub async fn start(&mut self) {
        self.commits.drain(..).for_each(|commit| commit());
        for family in &self.families {
            family.start().await;
        }
        if let Some(replicas) = &mut self.peers.replicas {
            replicas.step().await;
        }
    }

    /// Applies changes until a signal or a fatal error ends the daemon.
    pub async fn run(&mut self, signals: &mut Signals) -> Shutdown {
        // Watched before it is read again, so that no change since it was first read is missed.
        let mut file =
            self.config.mcp.servers_file.as_deref().filter(|_| self.given.servers.is_some()).map(FileWatch::start);
        if file.is_some() {
            self.reload_servers().await;
        }
        // `toolbus reload` takes over the edits of an operator.
        let mounted = self.sources.files.iter().filter(|file| file.is_symlink());
        let mut configuration: Vec<FileWatch> = mounted.map(|file| FileWatch::start(file)).collect();
        if !configuration.is_empty() {
            // Watched before it is compared, as above.
            self.take_over(Change::Files).await;
        }
        let mut fatal = pin!(fatal(self.bus.state()));
        let mut shared = self.peers.shared.clone();
        loop {
            let change = tokio::select! {
                signal = signals.next() => match signal {
                    SignalRequest::Stop(signal) => return Shutdown::Signal(signal),
                    SignalRequest::Reload => Change::Configuration(None),
                },
                Some(request) = self.reloads.recv() => Change::Configuration(Some(request)),
                () = watch::changed(&mut file) => Change::ServersFile,
                () = watch::any_changed(&mut configuration) => Change::Files,
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

    /// Stops taking calls, waits at most `patience` for those in progress, which still receive what they wait for, ends the
    /// rest, stops MCP servers and closes the bus.
    pub async fn drain(&mut self, patience: Duration) -> Drained {
        self.health.start_draining();
        // A reload that is requested from now on, or waits already, fails at once.
        self.reloads.close();
        while self.reloads.try_recv().is_ok() {}
        if self.is_consuming {
            join_all(self.families.iter().map(|family| family.leave())).await;
        }
        self.tasks.stop_announcing.cancel();
        while self.tasks.announcements.join_next().await.is_some() {}
        self.bus.stop_consuming().await;
        while self.tasks.consumers.join_next().await.is_some() {}
        self.tasks.background.abort_all();
        let drained = self.calls.service.drain(patience).await;
        self.tasks.stop_receiving.cancel();
        let received = async { while self.tasks.inboxes.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(FLUSH_TIME, received).await;
        if let Some(announcement) = self.peers.announcement.take() {
            announcement.end().await;
        }
        self.calls.sessions.shutdown().await;
        for family in self.families.iter().rev() {
            family.end(patience).await;
        }
        self.bus.close().await;
        drained
    }

    /// Ends the HTTP server, saves the pins, and flushes the audit and the exporters. Comes after [`Self::drain`].
    pub async fn close(mut self) {
        self.tasks.stop_serving.cancel();
        while self.tasks.serving.join_next().await.is_some() {}
        // Dropping tools frees their resources, such as the folder of the sandbox that converts pages.
        let _ = self.policy.registry().replace_all(Vec::new());
        self.policy.refresh();
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
        AppServers::shown(self.given.servers.as_ref())
    }

    /// Waits until every MCP server has started or failed, at most `patience`.
    pub async fn servers_settled(&self, patience: Duration) {
        if let Some(servers) = &self.given.servers {
            servers.bridge().settled(patience).await;
        }
    }
}

impl Peers {
    fn new(
        config: &Config,
        redis: Option<Arc<Redis>>,
        parts: (PolicyHandle, Arc<SwitchStore>, Option<Arc<Registrar>>),
        digest: channel::Receiver<String>,
    ) -> Self {
        let (state, shared) = channel::channel(SharedState::default());
        let replicas = redis.map(|redis| Replicas::new(redis, parts, digest, replicas::own(config), state));
        Self { shared, replicas, announcement: None, others: channel::Sender::default() }
    }
}

impl DaemonParts {
    async fn open(
        config: &Config,
        Recording { redactor, exporters }: Recording,
        claim: Option<FileClaim>,
        switches: &Arc<SwitchStore>,
        policy: &PolicyHandle,
    ) -> Result<Self, AppError> {
        // Stored switches apply before any call; those that replicas share are read later.
        if !switches.is_shared() {
            switches.follow(policy).await?;
        }
        let audit = AuditLog::open(&config.audit, &redactor)?;
        let listeners = Some((Listeners::bind(config).await?, Arc::clone(switches)));
        Ok(Self { audit, exporters, _claim: claim, listeners })
    }

    /// Saves the pins, and flushes the audit and the exporters. Each step that fails is logged.
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

/// Waits until the state that replicas share has been read.
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
