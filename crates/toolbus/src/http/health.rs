//! Health and status of the daemon in `/readyz`, `/status` and the admin API.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use toolbus_core::breaker::{BreakerStatus, Breakers};
use toolbus_core::bus::BusState;
use toolbus_core::policy::PolicyHandle;
use toolbus_core::telemetry::{BusyTool, Load};
use toolbus_core::{Clock, milliseconds};
use toolbus_mcp_client::status::{PhaseName, ServerStatus};
use toolbus_scripts::runner::RunnerStatus;

use super::other_daemons::{HeardDaemons, OtherDaemon, SharedIntake};
use super::readiness::{Blocker, Readiness, bus_blockers, shown, without_mistake};
use super::reloads::{LastReload, ReloadCounts, ReloadReport};
use super::remote::RemoteSetHealth;
use super::shared::{Replica, ReplicaCounts, ReplicaSummary, SharedState};

/// Version and commit that this program was built from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Build {
    /// Version of the package.
    pub version: Cow<'static, str>,
    /// Commit of the source, or `unknown`.
    pub commit: Cow<'static, str>,
}

/// The parts that health and status are read from.
pub struct HealthSources {
    /// The state of the connection to the broker.
    pub bus: watch::Receiver<BusState>,
    /// Knows the tools, and which of them are quarantined.
    pub policy: PolicyHandle,
    /// The state of the store that replicas share.
    pub shared: watch::Receiver<SharedState>,
    /// Other daemons that take calls of this one.
    pub other_daemons: watch::Receiver<HeardDaemons>,
    /// Reason why files of the store cannot be written, a line for each that cannot.
    pub store_files: watch::Receiver<Vec<String>>,
    /// Calls in progress.
    pub load: Arc<Load>,
    /// Tools and servers that get no calls because they fail.
    pub breakers: Breakers,
    /// The MCP servers.
    pub servers: Arc<dyn McpAdmin>,
    /// The tool sets whose tools other daemons list.
    pub remote: Box<dyn Fn() -> Vec<RemoteSetHealth> + Send + Sync>,
    /// The state of the runner of scripts; `None` where this process runs none.
    pub scripts: Box<dyn Fn() -> Option<ScriptStatus> + Send + Sync>,
    /// Tools without which the daemon is not ready.
    pub required_tools: Vec<String>,
    /// MCP servers without which the daemon is not ready. ASCII case does not count.
    pub required_servers: Vec<String>,
    /// Build of this program.
    pub build: Build,
    /// Measures uptime and the age of reloads.
    pub clock: Clock,
}

/// Health of the daemon.
pub struct Health {
    sources: HealthSources,
    draining: AtomicBool,
    started: Instant,
    reloads: Mutex<Reloads>,
}

/// The reloads of the configuration since the start.
#[derive(Debug, Default)]
struct Reloads {
    last: Option<(Instant, ReloadReport)>,
    counts: ReloadCounts,
}

/// The MCP servers of the daemon.
pub trait McpAdmin: Send + Sync + 'static {
    /// The status of every server, by name.
    fn status(&self) -> Vec<ServerStatus>;

    /// Problems in the configuration of servers, a line each: the servers are left out, or go on as they were.
    fn problems(&self) -> Vec<String> {
        Vec::new()
    }

    /// Begins to restart a server, whatever it is doing; returns false if there is none of this name. Case is ignored.
    fn restart(&self, name: &str) -> bool;
}

/// A daemon without MCP servers.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoServers;

impl McpAdmin for NoServers {
    fn status(&self) -> Vec<ServerStatus> {
        Vec::new()
    }

    fn restart(&self, _: &str) -> bool {
        false
    }
}

/// The daemon at one moment, without the rules of agents.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DaemonHealth {
    /// Build of this program.
    pub build: Build,
    /// Seconds since the start.
    pub uptime_seconds: u64,
    /// Whether `/readyz` reports the daemon as ready.
    pub ready: bool,
    /// Whether the daemon finishes its calls and takes no new ones.
    pub draining: bool,
    /// The connection to the broker.
    pub broker: BrokerStatus,
    /// Numbers of tools and calls.
    pub counts: Counts,
    /// The replicas, where they share a store.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub replicas: Vec<ReplicaSummary>,
    /// Other daemons that take calls of this one under another configuration.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub other_daemons: Vec<OtherDaemon>,
    /// Tools and servers that get no calls for now because they fail again and again.
    #[serde(default)]
    pub breakers: Vec<OpenBreaker>,
    /// The MCP servers.
    pub mcp: Vec<McpServerHealth>,
    /// Problems with MCP servers as they are configured: a file that cannot be read, servers that are left out.
    pub mcp_problems: Vec<String>,
    /// The tool sets whose tools other daemons list.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remote: Vec<RemoteSetHealth>,
    /// State of the runner of scripts, if there is one.
    #[serde(skip_serializing_if = "Option::is_none", skip_deserializing)]
    pub script: Option<ScriptStatus>,
    /// The last reload of the configuration, where there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reload: Option<LastReload>,
}

/// A tool or server that gets no calls for now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OpenBreaker {
    /// The tool, or the server as `mcp:NAME`.
    pub name: String,
    /// Failures in a row.
    pub failures: u32,
    /// Milliseconds since it got its last call but for trials.
    pub open_ms: u64,
    /// Milliseconds to the next trial; 0: with the next call.
    pub next_trial_ms: u64,
    /// Whether a trial is under way.
    pub on_trial: bool,
}

impl From<BreakerStatus> for OpenBreaker {
    fn from(status: BreakerStatus) -> Self {
        let BreakerStatus { name, failures, open_for, next_trial, on_trial } = status;
        let (open_ms, next_trial_ms) = (milliseconds(open_for), milliseconds(next_trial));
        Self { name: name.to_string(), failures, open_ms, next_trial_ms, on_trial }
    }
}

/// An MCP server in short.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct McpServerHealth {
    /// Name of the server.
    pub name: String,
    /// Phase of the connection.
    pub phase: PhaseName,
    /// Number of restarts after the server ended by itself.
    pub restarts: u64,
    /// Tools whose definitions are suspect.
    pub suspect: usize,
    /// Tools that are called by this server alone, because other sources have their names.
    pub shadowed: usize,
    /// Last error, if there was one.
    pub last_error: Option<String>,
}

/// The connection to the broker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BrokerStatus {
    /// Whether the connection is open.
    pub connected: bool,
    /// Reason why the broker takes no messages now, if it does not.
    pub blocked: Option<String>,
    /// Connections lost since the start.
    pub reconnects: u64,
    /// The last reason for being unconnected.
    pub last_error: Option<String>,
    /// Every queue that the daemon should consume.
    pub consumers: Vec<ConsumerStatus>,
    /// Messages in the dead-letter queues beside those, as the broker last reported; absent while no count is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dead_letters: Option<u64>,
}

/// A queue that the daemon should consume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConsumerStatus {
    /// Name of the queue.
    pub queue: String,
    /// Whether the broker has confirmed it.
    pub confirmed: bool,
}

/// Numbers of tools and calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Counts {
    /// Registered tools.
    pub tools: usize,
    /// Tools of these that are quarantined until an operator approves them.
    pub held_back: usize,
    /// Calls running now.
    pub in_flight: usize,
    /// Calls waiting for a permit now.
    pub waiting: usize,
}

/// The state of the runner of scripts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ScriptStatus {
    /// The runner, and how strongly it isolates scripts.
    #[serde(flatten)]
    pub runner: RunnerStatus,
    /// Scripts that run now.
    pub running: usize,
    /// Scripts that are queued.
    pub waiting: usize,
    /// Sessions that keep an interpreter.
    pub sessions: usize,
}

impl Health {
    /// Reads from `sources`; uptime counts from now.
    #[must_use]
    pub fn new(sources: HealthSources) -> Self {
        let started = sources.clock.now();
        Self { sources, draining: AtomicBool::new(false), started, reloads: Mutex::default() }
    }

    /// Not ready from now on.
    pub fn start_draining(&self) {
        self.draining.store(true, Ordering::Release);
    }

    /// Whether the daemon finishes its calls and takes no new ones.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// Whether requests can be taken and served now, and if not, why.
    #[must_use]
    pub fn readiness(&self) -> Readiness {
        let mut blocked_by = Vec::new();
        if self.is_draining() {
            blocked_by.push(Blocker::Draining);
        }
        let HealthSources { bus, policy, required_tools, .. } = &self.sources;
        // Without a sender the state is the last one there was, and would stay green.
        if bus.has_changed().is_err() {
            blocked_by.push(Blocker::BusClosed);
        }
        blocked_by.extend(bus_blockers(&bus.borrow()));
        blocked_by.extend(self.store_failures().into_iter().map(|detail| Blocker::StoreAway { detail }));
        let (tools, current) = (policy.registry().snapshot(), policy.current());
        let (there, missing): (Vec<&String>, Vec<_>) =
            required_tools.iter().partition(|name| tools.get(name).is_some());
        blocked_by.extend(missing.into_iter().map(|name| Blocker::ToolMissing { tool: name.clone() }));
        let held = there.into_iter().filter(|name| current.held_back(name).is_some());
        blocked_by.extend(held.map(|name| Blocker::ToolHeldBack { tool: name.clone() }));
        blocked_by.extend(self.server_blockers());
        Readiness { ready: blocked_by.is_empty(), blocked_by }
    }

    /// Returns why the store cannot be used, a line for each part of it; none if it can be.
    fn store_failures(&self) -> Vec<String> {
        let (shared, files) = (self.sources.shared.borrow(), self.sources.store_files.borrow());
        shared.away.iter().chain(&*files).map(|detail| shown(detail)).collect()
    }

    /// Whether the store can be used.
    #[must_use]
    pub fn has_store(&self) -> bool {
        self.store_failures().is_empty()
    }

    /// Seconds by which the clock of this daemon is ahead of those of other daemons and of the store's server, where
    /// there are any.
    #[must_use]
    pub fn clock_skews(&self) -> [(&'static str, Option<i64>); 2] {
        let HealthSources { other_daemons, shared, .. } = &self.sources;
        [("daemons", other_daemons.borrow().clock_skew), ("store", shared.borrow().clock_skew)]
    }

    /// The daemon at this moment.
    #[must_use]
    pub fn status(&self) -> DaemonHealth {
        let ready = self.readiness().ready;
        let HealthSources { bus, policy, load, breakers, servers, remote, scripts, build, clock, .. } = &self.sources;
        let bus = bus.borrow().clone();
        DaemonHealth {
            build: build.clone(),
            uptime_seconds: clock.since(self.started).as_secs(),
            ready,
            draining: self.is_draining(),
            broker: BrokerStatus {
                connected: bus.connected,
                blocked: bus.blocked.as_deref().map(shown),
                reconnects: bus.reconnects,
                last_error: bus.last_error.as_deref().map(shown),
                consumers: bus
                    .consumers
                    .into_iter()
                    .map(|(queue, confirmed)| ConsumerStatus { queue, confirmed })
                    .collect(),
                dead_letters: bus.dead_letters.into_values().map(u64::from).reduce(|sum, count| sum + count),
            },
            counts: Counts {
                tools: policy.registry().snapshot().len(),
                held_back: policy.current().held(),
                in_flight: load.in_flight(),
                waiting: load.waiting(),
            },
            replicas: self.replicas(),
            other_daemons: self.sources.other_daemons.borrow().conflicts.clone(),
            breakers: breakers.open().into_iter().map(Into::into).collect(),
            mcp: servers.status().into_iter().map(in_short).collect(),
            mcp_problems: servers.problems().iter().map(|problem| shown(problem)).collect(),
            remote: remote(),
            script: scripts(),
            reload: self.last_reload(),
        }
    }

    /// The policy for callers.
    pub(super) fn policy(&self) -> &PolicyHandle {
        &self.sources.policy
    }

    /// Calls that ended lately, by agent.
    pub(super) fn recent_by_agent(&self) -> HashMap<Arc<str>, u64> {
        self.sources.load.recent_by_agent(self.sources.clock.now())
    }

    /// Tools with calls that run now or ended lately.
    pub(super) fn busy_tools(&self) -> Vec<BusyTool> {
        self.sources.load.busy_tools(self.sources.clock.now())
    }

    /// The replicas, by name.
    fn replicas(&self) -> Vec<ReplicaSummary> {
        let state = self.sources.shared.borrow();
        let now = self.sources.clock.since_epoch().as_secs();
        let summary = |replica: &Replica| ReplicaSummary {
            name: shown(&replica.name),
            version: shown(&replica.version),
            config_digest: shown(&replica.config_digest),
            roles: replica.roles.iter().map(|role| shown(role)).collect(),
            uptime_seconds: now.saturating_sub(replica.started),
            differs: state.differs(replica),
        };
        state.replicas.iter().map(summary).collect()
    }

    /// Number of other daemons that share queues or topics with this one.
    #[must_use]
    pub fn other_daemons(&self, shares: SharedIntake) -> usize {
        self.sources.other_daemons.borrow().conflicts.iter().filter(|other| other.shares == shares).count()
    }

    /// Returns the numbers of replicas; `None` without a store that they share.
    #[must_use]
    pub fn replica_counts(&self) -> Option<ReplicaCounts> {
        let state = self.sources.shared.borrow();
        (!state.own.is_empty()).then(|| state.counts())
    }

    /// The MCP servers that are required and do not take calls.
    fn server_blockers(&self) -> Vec<Blocker> {
        let HealthSources { servers, required_servers, .. } = &self.sources;
        if required_servers.is_empty() {
            return Vec::new();
        }
        let servers = servers.status();
        let blocker = |name: &String| {
            let server = servers.iter().find(|server| server.name.eq_ignore_ascii_case(name));
            let Some(server) = server else { return Some(Blocker::McpServerMissing { server: name.clone() }) };
            // A server that is started by its first call, or for each session, is ready for one.
            let takes_calls = matches!(server.phase, PhaseName::Ready | PhaseName::Idle);
            (!takes_calls).then(|| Blocker::McpServerNotReady {
                server: name.clone(),
                phase: server.phase,
                detail: server.last_error.as_deref().map(shown),
            })
        };
        required_servers.iter().filter_map(blocker).collect()
    }

    /// Remembers the report of a reload that has just ended.
    pub fn reloaded(&self, report: ReloadReport) {
        let mut reloads = self.reloads.lock();
        let counts = &mut reloads.counts;
        let count = if report.applied { &mut counts.applied } else { &mut counts.refused };
        *count += 1;
        reloads.last = Some((self.sources.clock.now(), report));
    }

    /// Returns the numbers of reloads since the start.
    #[must_use]
    pub fn reloads(&self) -> ReloadCounts {
        self.reloads.lock().counts
    }

    fn last_reload(&self) -> Option<LastReload> {
        let reloads = self.reloads.lock();
        let (ended, report) = reloads.last.as_ref()?;
        Some(LastReload { seconds_ago: self.sources.clock.since(*ended).as_secs(), report: report.clone() })
    }
}

/// Replaces the error of an MCP server in public parts.
const NOT_PUBLIC: &str = "an MCP server cannot be used as it is configured: `toolbus status` says which, and why";

impl DaemonHealth {
    /// The public parts: no text about the configuration, which names files and variables.
    #[must_use]
    pub fn public(self) -> Self {
        let public = |last: LastReload| LastReload { report: last.report.public(), ..last };
        let mcp_problems = self.mcp_problems.iter().map(|_| NOT_PUBLIC.to_owned()).collect();
        let server = |one: McpServerHealth| McpServerHealth { last_error: one.last_error.map(without_mistake), ..one };
        let mcp = self.mcp.into_iter().map(server).collect();
        Self { reload: self.reload.map(public), mcp, mcp_problems, ..self }
    }
}

fn in_short(server: ServerStatus) -> McpServerHealth {
    let ServerStatus { name, phase, restarts, suspect_total: suspect, shadowed_total: shadowed, last_error, .. } =
        server;
    McpServerHealth { name, phase, restarts, suspect, shadowed, last_error: last_error.as_deref().map(shown) }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::sync::watch;
    use toolbus_core::Clock;
    use toolbus_core::bus::BusState;
    use toolbus_core::registry::Registry;

    use super::{Health, HealthSources, ReloadReport};
    use crate::http::tests::sources;

    #[test]
    fn uptime_and_the_age_of_a_reload_are_in_seconds() {
        let clock = Clock::manual();
        let (_bus, state) = watch::channel(BusState::default());
        let health = Health::new(HealthSources { clock, ..sources(state, Registry::new()) });
        clock.advance(Duration::from_secs(60));
        health.reloaded(ReloadReport::default());
        clock.advance(Duration::from_secs(5));
        let status = health.status();
        assert_eq!((status.uptime_seconds, status.reload.unwrap().seconds_ago), (65, 5));
    }
}
