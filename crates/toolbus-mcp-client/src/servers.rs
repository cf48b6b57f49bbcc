//! All MCP servers, and their tools in the registry.

mod control;
pub(crate) mod definition;
mod entry;
pub(crate) mod findings;
mod schema;
pub mod sessions;
#[cfg(test)]
mod tests;
mod tools;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard, RwLock};
use tokio_util::task::TaskTracker;
use toolbus_core::events::McpClientEvents;
use toolbus_core::registry::{Clash, Rank, Registry};
use toolbus_core::tool::{Tool, ToolDescriptor};
use toolbus_core::toolsets::SessionSet;
use toolbus_trust::scan::Scanner;

use self::entry::ServerEntry;
use self::tools::{QuotaExceeded, RegisterTools, ServerUsage, ToolQuota};
use crate::process::Launcher;
use crate::spec::{ServerName, ServerOrigin, ServerSpec};
use crate::status::ServerStatus;
use crate::supervise::Timeouts;

pub use self::control::{NoServers, ServerControl};
pub use self::definition::{Definitions, SourceToolset, ToolSource, definitions_elsewhere};
pub use crate::status::{MAX_SUMMARY, ServerDescription};

/// Timeout of the first attempts before names are kept.
const START_TIME: Duration = Duration::from_secs(10);
/// Timeout of ending all servers, which end concurrently.
const SHUTDOWN_TIME: Duration = Duration::from_secs(15);

/// A server and its tool set.
#[derive(Clone)]
pub struct ServerWithSet {
    /// The server.
    pub spec: ServerSpec,
    /// Tool set of the server; `None` for plain tools.
    pub set: Option<ServerToolset>,
}

/// The tool set that a server backs.
#[derive(Clone)]
pub struct ServerToolset {
    /// Name of the set.
    pub name: Arc<str>,
    /// Prefix of the tools' names, before a dot.
    pub prefix: Arc<str>,
    /// The sessions of a set of scope `session`; `None` for a shared set.
    pub sessions: Option<Arc<SessionSet>>,
}

/// Changes a tool's descriptor before it is registered: limits that are configured by name.
pub type Limits = Arc<dyn Fn(&mut ToolDescriptor) + Send + Sync>;

/// Supervises the MCP servers and registers their tools. Cheap to clone.
#[derive(Clone)]
pub struct Servers {
    shared: Arc<ServersState>,
}

/// Shared state of all servers.
pub(crate) struct ServersState {
    registry: Registry,
    launcher: Launcher,
    observer: Arc<dyn McpClientEvents>,
    /// Scans the texts of servers.
    scanner: Scanner,
    timeouts: Timeouts,
    limits: RwLock<Limits>,
    entries: RwLock<BTreeMap<ServerName, Arc<ServerEntry>>>,
    /// Serialises changes.
    changing: Mutex<()>,
    /// Clashes of names that the log knows of. Held while tools are registered, so that those of a server that is
    /// removed do not come back.
    clashes: Mutex<Vec<Clash>>,
    quota: Mutex<ToolQuota>,
    /// Whether names are kept, or will be once the servers of the start have been tried.
    is_keeping_names: AtomicBool,
    /// Number of changes of descriptions of servers.
    descriptions: AtomicU64,
    tasks: TaskTracker,
}

impl Servers {
    /// Creates an empty set of servers, whose tools go to `registry`.
    #[must_use]
    pub fn new(registry: Registry, launcher: Launcher, observer: Arc<dyn McpClientEvents>, scanner: Scanner) -> Self {
        Self::with_timeouts(registry, launcher, observer, scanner, Timeouts::DEFAULT)
    }

    fn with_timeouts(
        registry: Registry,
        launcher: Launcher,
        observer: Arc<dyn McpClientEvents>,
        scanner: Scanner,
        timeouts: Timeouts,
    ) -> Self {
        Self {
            shared: Arc::new(ServersState {
                registry,
                launcher,
                observer,
                scanner,
                timeouts,
                limits: RwLock::new(Arc::new(|_| {})),
                entries: RwLock::default(),
                changing: Mutex::default(),
                clashes: Mutex::default(),
                quota: Mutex::default(),
                is_keeping_names: AtomicBool::new(false),
                descriptions: AtomicU64::new(0),
                tasks: TaskTracker::new(),
            }),
        }
    }

    /// Replaces the configured servers; registered ones stay. Unchanged servers are not touched. Does not wait for
    /// connections.
    pub fn apply(&self, servers: Vec<ServerWithSet>, limits: Limits) {
        *self.shared.limits.write() = limits;
        let _one_at_a_time = self.changing();
        let mut gone: BTreeMap<ServerName, Arc<ServerEntry>> = self.entries();
        gone.retain(|_, entry| entry.spec().origin == ServerOrigin::Configuration);
        for server in servers {
            let name = server.spec.name.clone();
            match gone.remove(&name) {
                Some(entry) if entry.is(&server) => {
                    if entry.set_summary(server.spec.summary) {
                        self.shared.described();
                    }
                    self.shared.publish(&entry);
                }
                // A configured name replaces a registered one.
                Some(_) | None => drop(self.shared.add(server)),
            }
        }
        gone.values().for_each(|entry| self.shared.forget(entry));
        self.keep_names();
    }

    /// Keeps names with their servers once the servers of the start have been tried, so that their speed does not
    /// decide.
    fn keep_names(&self) {
        if self.shared.is_keeping_names.swap(true, Ordering::Relaxed) {
            return;
        }
        let bridge = self.clone();
        self.shared.tasks.spawn(async move {
            bridge.settled(START_TIME).await;
            bridge.shared.registry.keep_names();
        });
    }

    /// Adds servers that were registered before the daemon restarted.
    pub fn restore(&self, servers: Vec<ServerSpec>) {
        let _one_at_a_time = self.changing();
        for spec in servers {
            if self.shared.entry(spec.name.as_str()).is_none() {
                drop(self.shared.add(ServerWithSet { spec, set: None }));
            }
        }
    }

    /// Returns when every server that is not lazy has been tried, at most after `patience`.
    pub async fn settled(&self, patience: Duration) {
        let entries: Vec<_> = self.entries().into_values().filter(|entry| entry.starts_at_once()).collect();
        let all = futures_util::future::join_all(entries.iter().map(|entry| entry.arrival(false)));
        let _ = tokio::time::timeout(patience, all).await;
    }

    /// A number that changes whenever [`ServerControl::describe`] may return another description of a server whose
    /// tools are the same.
    #[must_use]
    pub fn descriptions(&self) -> u64 {
        self.shared.descriptions.load(Ordering::Acquire)
    }

    /// The status of each server, by name.
    #[must_use]
    pub fn status(&self) -> Vec<ServerStatus> {
        self.entries().values().map(|entry| entry.status()).collect()
    }

    /// Restarts a server. The name is case-insensitive. Returns `false` if there is no such server.
    #[must_use]
    pub fn restart(&self, name: &str) -> bool {
        let entry = self.shared.entry(name);
        entry.iter().for_each(|entry| entry.restart());
        entry.is_some()
    }

    /// Ends every server, and returns when they are gone, or soon after.
    pub async fn shutdown(&self) {
        {
            let _one_at_a_time = self.changing();
            self.entries().values().for_each(|entry| entry.stop());
        }
        self.shared.tasks.close();
        let _ = tokio::time::timeout(SHUTDOWN_TIME, self.shared.tasks.wait()).await;
    }

    fn entries(&self) -> BTreeMap<ServerName, Arc<ServerEntry>> {
        self.shared.entries.read().clone()
    }

    fn changing(&self) -> MutexGuard<'_, ()> {
        self.shared.changing.lock()
    }
}

impl ServersState {
    fn entry(&self, name: &str) -> Option<Arc<ServerEntry>> {
        let name = ServerName::parse(name).ok()?;
        self.entries.read().get(&name).cloned()
    }

    /// Notes that a server is described in another way.
    fn described(&self) {
        self.descriptions.fetch_add(1, Ordering::Release);
    }

    /// Adds a server, and replaces any of its name.
    fn add(self: &Arc<Self>, server: ServerWithSet) -> Arc<ServerEntry> {
        let before = self.entry(server.spec.name.as_str());
        if let Some(before) = &before {
            // Written in another case, it is another source.
            let is_same_source = before.spec().name.source() == server.spec.name.source();
            if is_same_source { self.remove(before) } else { self.forget(before) }
        }
        let name = server.spec.name.clone();
        let entry = ServerEntry::new(server, self.timeouts, &self.launcher, &self.observer);
        self.entries.write().insert(name, Arc::clone(&entry));
        entry.keep(self, before.as_ref(), |index| Arc::new(RegisterTools { entry: Arc::clone(&entry), index }));
        entry
    }

    /// Removes a server and its claim on names.
    fn forget(&self, entry: &Arc<ServerEntry>) {
        self.remove(entry);
        let mut known = self.clashes.lock();
        let source = entry.spec().name.source();
        self.registry.forget(source);
        known.retain(|clash| clash.kept != *source && clash.shadowed != *source);
    }

    /// Removes a server. Its names stay reserved for the next server of its source.
    fn remove(&self, entry: &Arc<ServerEntry>) {
        entry.stop();
        let mut known = self.clashes.lock();
        if self.has(entry) {
            self.entries.write().remove(&entry.spec().name);
            self.quota().release(&entry.spec().name);
            self.put(&mut known, entry.spec(), Vec::new());
        }
    }

    /// Replaces a server's tools in the registry, with the limits as they are now, unless it has been removed
    /// meanwhile.
    fn publish(&self, entry: &Arc<ServerEntry>) {
        let mut known = self.clashes.lock();
        if self.has(entry) {
            let limits = Arc::clone(&self.limits.read());
            self.put(&mut known, entry.spec(), entry.tools(&limits));
        }
    }

    /// Reserves quota for a server's tools, and replaces its previous reservation.
    fn admit(&self, entry: &Arc<ServerEntry>, tools: &[ToolDescriptor]) -> Result<(), QuotaExceeded> {
        let share = ServerUsage::of(tools);
        let mut quota = self.quota();
        // A removed server reserves nothing: its reservation would never be released.
        if self.has(entry) { quota.reserve(&entry.spec().name, share) } else { Ok(()) }
    }

    fn quota(&self) -> MutexGuard<'_, ToolQuota> {
        self.quota.lock()
    }

    fn has(&self, entry: &Arc<ServerEntry>) -> bool {
        let entries = self.entries.read();
        entries.get(&entry.spec().name).is_some_and(|present| Arc::ptr_eq(present, entry))
    }

    /// Publishes tools in the registry, and logs each new clash of names once.
    fn put(&self, known: &mut Vec<Clash>, spec: &ServerSpec, tools: Vec<Tool>) {
        let source = spec.name.source();
        let rank = match spec.origin {
            ServerOrigin::Configuration => Rank::Configured,
            ServerOrigin::Registration => Rank::Registered,
        };
        let clashes = match self.registry.publish(rank, source, tools) {
            Ok(clashes) => clashes,
            Err(error) => {
                tracing::error!(source = &**source, %error, "tools of an MCP server were not registered");
                return;
            }
        };
        known.retain(|clash| clash.kept != *source && clash.shadowed != *source || clashes.contains(clash));
        for clash in clashes {
            if !known.contains(&clash) {
                let Clash { name, kept, shadowed } = &clash;
                tracing::warn!(
                    tool = &**name,
                    kept = &**kept,
                    shadowed = &**shadowed,
                    "two sources have a tool of one name; the shadowed one is reached by its server alone"
                );
                known.push(clash);
            }
        }
    }
}
