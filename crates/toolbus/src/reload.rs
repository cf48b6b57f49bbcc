//! Reading the configuration again: who may use what, limits and endpoints change in a running daemon; the rest does
//! not.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::sync::watch;
use tokio::task::{JoinError, spawn_blocking};
use toolbus_core::caller::AgentName;
use toolbus_core::policy::PolicyHandle;
use toolbus_core::redact::Redactor;
use toolbus_core::registry::RegistryError;
use toolbus_core::toolsets::SessionSets;
use toolbus_trust::pins::Pins;

use crate::assembly::{Scripts, ScriptsError, Servers, hide, in_sessions, is_same_server};
use crate::config::identity::Source;
use crate::config::toolsets::Kind;
use crate::config::{Agent, Config, McpConfig, PinsConfig, PolicyError, Problems, Sources, ToolsConfig, ToolsError};
use crate::http::{HttpAuth, ReloadReport};

/// Keeps the running configuration, and changes what can be changed.
pub struct Reloader {
    sources: Sources,
    running: Config,
    live: Live,
}

/// What runs, and changes with the configuration.
pub struct Live {
    /// Who may use what.
    pub access: PolicyHandle,
    /// Tool sets that are built for each session.
    pub sessions: SessionSets,
    /// MCP servers, if this process has any.
    pub servers: Option<Servers>,
    /// What runs scripts and commands.
    pub scripts: Scripts,
    /// Admits clients of the MCP server.
    pub http_auth: Arc<HttpAuth>,
    /// What is pinned.
    pub pins: Pins,
    /// The hash of what runs.
    pub digest: watch::Sender<String>,
    /// What removes the secrets of the configuration.
    pub redactor: Redactor,
}

/// Why everything stays as it was.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// The configuration has mistakes.
    #[error("{0}")]
    Problems(#[from] Problems),
    /// The configured tools cannot be made.
    #[error(transparent)]
    Tools(#[from] ToolsError),
    /// The configured commands cannot be run.
    #[error(transparent)]
    Scripts(#[from] ScriptsError),
    /// The rules cannot be made.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// Callers would be told apart in another way.
    #[error("identity.source and identity.agent change with a restart alone; put them back, or restart the daemon")]
    Identity,
    /// Callers without a section would get more than before, and nothing says that they shall.
    #[error("{0}")]
    Widening(String),
    /// Two tools of one name.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// Reading came to no end.
    #[error("the configuration could not be read: {0}")]
    Reading(#[from] JoinError),
}

impl Reloader {
    /// Reloads from `sources` what runs as `running`.
    #[must_use]
    pub const fn new(sources: Sources, running: Config, live: Live) -> Self {
        Self { sources, running, live }
    }

    /// Reads the configuration again and puts it into practice as far as that is possible while running. Calls under way
    /// keep what they began with.
    ///
    /// # Errors
    ///
    /// When anything is wrong with it; then nothing has changed. Nor has anything if the future is dropped early.
    pub async fn reload(&mut self) -> Result<ReloadReport, ReloadError> {
        let (sources, running) = (self.sources.clone(), self.running.clone());
        let loaded = spawn_blocking(move || Config::load_again(&sources, &running)).await??;
        let next = loaded.config;
        if identity(&self.running) != identity(&next) {
            return Err(ReloadError::Identity);
        }
        let Live { access, sessions, servers, scripts, pins, http_auth, digest, redactor } = &self.live;
        let agents = access.agents();
        let agents: Vec<&str> = agents.iter().map(AgentName::as_str).collect();
        if let Some(widening) = next.widening(access.unknown_callers(), &agents) {
            return Err(ReloadError::Widening(widening));
        }
        // First: what is refused below may have got as far as the log.
        hide(&next, redactor);
        let of_scripts = scripts.tools(&next).await?;
        let waiting = waiting(&self.running, &next, servers.is_some());
        let changed = changed(&self.running, &next, &waiting);
        let before = names(access);
        let unchanged = |name: &str| is_unchanged(name, &self.running, &next).then(|| sessions.get(name)).flatten();
        let (mut tools, mut sets) = in_sessions(&next, next.tools()?, unchanged);
        tools.extend(of_scripts);
        let (identity, policy) = (next.identity(), next.policy()?);
        let planned = servers.as_ref().map(|servers| (servers, servers.plan(&next, unchanged)));
        access.replace(identity, policy, |registry| {
            registry.replace_all(tools)?;
            pins.set_levels(next.pin_levels());
            Ok::<_, RegistryError>(())
        })?;
        let placed = planned.map(|(servers, (placed, of_servers))| {
            sets.extend(of_servers);
            (servers, placed)
        });
        sessions.replace(sets);
        http_auth.replace(&next.http);
        if let Some((servers, placed)) = placed {
            servers.apply(&next, placed);
        }
        self.running = Config {
            identity: next.identity,
            agents: next.agents,
            outbound: next.outbound,
            toolsets: next.toolsets,
            tools: ToolsConfig { required: self.running.tools.required.clone(), ..next.tools },
            rest: next.rest,
            commands: next.commands,
            given: next.given,
            http: self.running.http.with_live_parts_of(&next.http),
            pins: PinsConfig { file: self.running.pins.file.clone(), ..next.pins },
            mcp: McpConfig {
                servers_file: self.running.mcp.servers_file.clone(),
                required: self.running.mcp.required.clone(),
                unknown_server: self.running.mcp.unknown_server,
                register: self.running.mcp.register.clone(),
                ..next.mcp
            },
            ..self.running.clone()
        };
        digest.send_replace(self.running.digest());
        let now = names(access);
        let beyond = |these: &BTreeSet<String>, those: &BTreeSet<String>| these.difference(those).cloned().collect();
        Ok(ReloadReport {
            applied: true,
            changed,
            waiting: waiting.into_iter().map(str::to_owned).collect(),
            tools: access.current().len(),
            added: beyond(&now, &before),
            removed: beyond(&before, &now),
            warnings: loaded.warnings,
            error: None,
        })
    }

    /// Reads the file of MCP servers again, and nothing else. A file that cannot be read changes nothing; a server that
    /// cannot be used as it is written stays as it is.
    pub async fn reload_servers(&mut self) {
        let (environment, running) = (self.sources.environment.clone(), self.running.clone());
        let reading = spawn_blocking(move || {
            let mut next = running.clone();
            next.read_servers_file(&environment);
            next.keep_servers_of(&running);
            next
        });
        match reading.await {
            Ok(next) => self.take_servers(next),
            Err(error) => tracing::error!(%error, "the file of MCP servers could not be read"),
        }
    }

    /// Has the servers of `next`, which differs in its file of servers alone.
    fn take_servers(&mut self, next: Config) {
        let Live { access, sessions, servers: Some(servers), pins, digest, redactor, .. } = &self.live else { return };
        if next.mcp.file == self.running.mcp.file {
            return;
        }
        hide(&next, redactor);
        tell_news(&self.running, &next);
        let unchanged = |name: &str| is_unchanged(name, &self.running, &next).then(|| sessions.get(name)).flatten();
        let (placed, mut sets) = servers.plan(&next, unchanged);
        let of_endpoints = next.toolsets.iter().filter(|(_, set)| set.kind == Kind::Rest);
        sets.extend(of_endpoints.filter_map(|(name, _)| sessions.get(name)));
        let count = placed.len();
        sessions.replace(sets);
        // Before what is new is there, and for what stays at once.
        pins.set_levels(next.pin_levels());
        access.refresh();
        servers.apply(&next, placed);
        self.running = next;
        digest.send_replace(self.running.digest());
        if self.running.mcp.file.is_unread() {
            tracing::warn!(servers = count, "the file of MCP servers cannot be read: its servers stay as they are");
        } else {
            tracing::info!(servers = count, "read the file of MCP servers again");
        }
    }
}

/// Logs what is wrong with MCP servers now and was not before.
fn tell_news(running: &Config, next: &Config) {
    let (before, now) = (running.mcp_servers(), next.mcp_servers());
    for problem in now.problems.iter().filter(|problem| !before.problems.contains(problem)) {
        tracing::error!(problem, "MCP servers cannot be used as they are configured");
    }
    for warning in now.warnings.iter().filter(|warning| !before.warnings.contains(warning)) {
        tracing::warn!(warning, "a suspicious setting of an MCP server");
    }
}

/// How callers are told apart, which belongs to a daemon's queues and to what its rules were checked against.
fn identity(config: &Config) -> (Source, Option<&Agent>) {
    (config.identity.source, config.identity.agent.as_ref())
}

/// Whether a tool set is made of the same parts.
fn is_unchanged(name: &str, running: &Config, next: &Config) -> bool {
    let parts = |config: &Config| {
        let set = config.toolsets.get(name)?.clone();
        let endpoints = config.rest.endpoints.iter().filter(|endpoint| set.endpoints.contains(&endpoint.name));
        let endpoints: Vec<_> = endpoints.cloned().collect();
        Some((set, endpoints))
    };
    parts(running) == parts(next) && is_same_server(name, running, next)
}

/// Names of the tools that there are.
fn names(access: &PolicyHandle) -> BTreeSet<String> {
    access.current().tools().iter().map(|tool| tool.name.to_string()).collect()
}

/// The sections that differ in what a running daemon takes over.
fn changed(running: &Config, next: &Config, waiting: &[&str]) -> Vec<String> {
    let http = running.http.with_live_parts_of(&next.http) != running.http;
    let sections = [
        ("identity", running.identity != next.identity),
        ("agents", running.agents != next.agents),
        ("outbound", running.outbound != next.outbound),
        ("toolsets", running.toolsets != next.toolsets),
        ("tools", running.tools != next.tools && !waiting.contains(&"tools.required")),
        ("rest", running.rest != next.rest),
        ("commands", running.commands != next.commands),
        ("http", http),
        ("pins", running.pins != next.pins && !waiting.contains(&"pins.file")),
        ("mcp", running.mcp != next.mcp && !waiting.iter().any(|name| name.starts_with("mcp"))),
    ];
    sections.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name.to_owned()).collect()
}

/// The sections that differ in what a running daemon does not change.
fn waiting(running: &Config, next: &Config, has_servers: bool) -> Vec<&'static str> {
    let sections = [
        ("bus", running.bus != next.bus),
        ("invoke", running.invoke != next.invoke),
        ("daemon", running.daemon != next.daemon),
        ("http", running.http.with_live_parts_of(&next.http) != next.http),
        ("telemetry", running.telemetry != next.telemetry),
        ("store", running.store != next.store),
        ("audit", running.audit != next.audit),
        ("mcp", next.mcp.is_configured() && !has_servers),
        ("mcp.servers_file", running.mcp.servers_file != next.mcp.servers_file),
        ("mcp.required", running.mcp.required != next.mcp.required),
        ("mcp.unknown_server", running.mcp.unknown_server != next.mcp.unknown_server),
        ("mcp.register", running.mcp.register != next.mcp.register),
        ("script", running.script != next.script),
        ("pins.file", running.pins.file != next.pins.file),
        ("tools.required", running.tools.required != next.tools.required),
    ];
    sections.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name).collect()
}
