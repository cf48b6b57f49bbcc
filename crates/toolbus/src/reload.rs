//! Reading the configuration again: who may use what, limits and endpoints change in a running daemon; the rest does
//! not.

use tokio::sync::watch;
use toolbus_core::policy::Access;
use toolbus_core::registry::RegistryError;
use toolbus_core::toolsets::SessionSets;

use crate::assembly::in_sessions;
use crate::config::{Config, PolicyError, Problems, Sources, ToolsConfig, ToolsError};

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
        let waiting = waiting(&self.running, &next);
        // Who a daemon is, and how it is told who calls, belongs to its queues.
        let identity = crate::config::identity::IdentityConfig {
            source: self.running.identity.source,
            agent: self.running.identity.agent.clone(),
            ..next.identity.clone()
        };
        let next = Config { identity, ..next };
        let (tools, sets) = in_sessions(&next, next.tools()?);
        let (identity, policy) = (next.identity(), next.policy()?);
        self.access.replace(identity, policy, |registry| registry.replace_all(tools))?;
        let before = self.sessions.replace(sets);
        tokio::spawn(async move { before.shutdown().await });
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

/// The sections that differ in what a running daemon does not change.
fn waiting(running: &Config, next: &Config) -> Vec<&'static str> {
    let identity = |config: &Config| (config.identity.source, config.identity.agent.clone());
    let sections = [
        ("bus", running.bus != next.bus),
        ("invoke", running.invoke != next.invoke),
        ("daemon", running.daemon != next.daemon),
        ("http", running.http != next.http),
        ("telemetry", running.telemetry != next.telemetry),
        ("store", running.store != next.store),
        ("audit", running.audit != next.audit),
        ("identity", identity(running) != identity(next)),
        ("tools.required", running.tools.required != next.tools.required),
    ];
    sections.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name).collect()
}
