//! Reading the configuration again: who may use what, limits and endpoints change in a running daemon; the rest does
//! not.

use tokio::sync::watch;
use toolbus_core::policy::Access;
use toolbus_core::registry::RegistryError;
use toolbus_core::toolsets::SessionSets;

use crate::assembly::in_sessions;
use crate::config::identity::Source;
use crate::config::{Agent, Config, PolicyError, Problems, Sources, ToolsConfig, ToolsError};

/// Keeps the running configuration, and changes what can be changed.
pub struct Reloader {
    sources: Sources,
    running: Config,
    access: Access,
    sessions: SessionSets,
    digest: watch::Sender<String>,
}

/// What a reload did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reloaded {
    /// Number of tools that there are now.
    pub tools: usize,
    /// Sections that differ and wait for a restart.
    pub waiting: Vec<&'static str>,
    /// What is allowed and yet hardly meant, in words.
    pub warnings: Vec<String>,
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
    /// The rules cannot be made.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// Callers would be told apart in another way.
    #[error("identity.source and identity.agent change with a restart alone; put them back, or restart the daemon")]
    Identity,
    /// Two tools of one name.
    #[error(transparent)]
    Registry(#[from] RegistryError),
}

impl Reloader {
    /// Reloads from `sources` what runs as `running`, and gives `digest` the hash of what runs then.
    #[must_use]
    pub const fn new(
        sources: Sources,
        running: Config,
        access: Access,
        sessions: SessionSets,
        digest: watch::Sender<String>,
    ) -> Self {
        Self { sources, running, access, sessions, digest }
    }

    /// Reads the configuration again and puts it into practice as far as that is possible while running. Calls under way
    /// keep what they began with.
    ///
    /// # Errors
    ///
    /// When anything is wrong with it; then nothing has changed.
    pub fn reload(&mut self) -> Result<Reloaded, ReloadError> {
        let loaded = Config::load(&self.sources)?;
        let next = loaded.config;
        if identity(&self.running) != identity(&next) {
            return Err(ReloadError::Identity);
        }
        let waiting = waiting(&self.running, &next);
        let unchanged =
            |name: &str| is_unchanged(name, &self.running, &next).then(|| self.sessions.get(name)).flatten();
        let (tools, sets) = in_sessions(&next, next.tools()?, unchanged);
        let (identity, policy) = (next.identity(), next.policy()?);
        self.access.replace(identity, policy, |registry| registry.replace_all(tools))?;
        self.sessions.replace(sets);
        self.running = Config {
            identity: next.identity,
            agents: next.agents,
            outbound: next.outbound,
            toolsets: next.toolsets,
            tools: ToolsConfig { required: self.running.tools.required.clone(), ..next.tools },
            rest: next.rest,
            ..self.running.clone()
        };
        self.digest.send_replace(self.running.digest());
        Ok(Reloaded { tools: self.access.current().len(), waiting, warnings: loaded.warnings })
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
    parts(running) == parts(next)
}

/// The sections that differ in what a running daemon does not change.
fn waiting(running: &Config, next: &Config) -> Vec<&'static str> {
    let sections = [
        ("bus", running.bus != next.bus),
        ("invoke", running.invoke != next.invoke),
        ("daemon", running.daemon != next.daemon),
        ("http", running.http != next.http),
        ("telemetry", running.telemetry != next.telemetry),
        ("store", running.store != next.store),
        ("audit", running.audit != next.audit),
        ("tools.required", running.tools.required != next.tools.required),
    ];
    sections.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name).collect()
}
