//! A bus for one command: the configured broker, or the whole daemon inside this process.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use toolbus_core::audit;
use toolbus_core::bus::Bus;
use toolbus_core::telemetry::{self, Load};
use toolbus_core::toolsets::SessionSets;
use toolbus_mcp_client::events::Discard;
use toolbus_scripts::observe;
use toolbus_store::Memory;

use crate::assembly::{self, AssemblyError, Scripts, Servers};
use crate::config::{BusUrl, Config};
use crate::daemon::{Daemon, Parts};
use crate::http::admin::{McpAdmin, NoServers};

/// Time that calls under way get when the command is done with them.
const PATIENCE: Duration = Duration::from_secs(1);

/// A connected bus. On the embedded bus the daemon's parts run beside it, because nobody else could answer.
pub struct Session {
    bus: Arc<dyn Bus>,
    daemon: Option<Daemon>,
    servers: Option<Servers>,
}

/// Why a command has no bus.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The configuration cannot be put into practice.
    #[error(transparent)]
    Assembly(#[from] AssemblyError),
    /// The broker does not take part.
    #[error("not ready: {0}")]
    NotReady(String),
}

impl Session {
    /// Opens the bus of the configuration. On the embedded bus, what the file `pins` says is held back.
    ///
    /// # Errors
    ///
    /// When the configuration cannot be put into practice, such as a certificate that cannot be read.
    pub async fn open(config: &Config, pins: Option<PathBuf>) -> Result<Self, SessionError> {
        match config.bus.url {
            BusUrl::Embedded => Self::with_daemon(config, pins).await,
            BusUrl::Amqp(_) => Ok(Self { bus: assembly::bus(config)?, daemon: None, servers: None }),
        }
    }

    /// Opens the bus of the configuration, and runs the daemon's parts on it; what the file `pins` says is held back.
    ///
    /// # Errors
    ///
    /// As [`Self::open`].
    pub async fn with_daemon(config: &Config, pins: Option<PathBuf>) -> Result<Self, SessionError> {
        let redactor = assembly::redactor(config);
        let bus = assembly::bus(config)?;
        let (registry, mut sets) = assembly::tools(config)?;
        let scripts = Scripts::start(config, Arc::new(observe::Silent)).await.map_err(AssemblyError::from)?;
        let of_scripts = scripts.tools(config).await.map_err(AssemblyError::from)?;
        registry.register_all(of_scripts).map_err(AssemblyError::from)?;
        // After the registrations: a call right after the start must find their tools.
        let access = assembly::access(config, registry.clone())?;
        if let Some(file) = pins {
            // A command looks, and leaves nothing behind.
            access.vet(Arc::new(assembly::pins(config, Some(file))?));
        }
        let servers = Servers::new(config, registry, Arc::new(Discard), &redactor)?;
        if let Some(servers) = &servers {
            let (placed, of_servers) = servers.plan(config, |_| None);
            sets.extend(of_servers);
            servers.apply(config, placed);
        }
        let parts = Parts {
            bus: Arc::clone(&bus),
            access,
            sessions: SessionSets::new(sets),
            servers: servers.clone(),
            scripts,
            pins: None,
            registrar: None,
            store: Arc::new(Memory::default()),
            telemetry: Arc::new(telemetry::Silent),
            audit: Arc::new(audit::Silent),
            load: Arc::<Load>::default(),
            redactor,
        };
        let daemon = Daemon::start(config, parts);
        Ok(Self { bus, daemon: Some(daemon), servers })
    }

    /// Waits until calls can be taken and answered, at most `patience`.
    ///
    /// # Errors
    ///
    /// When the broker cannot be reached in time, or holds something that no retry mends.
    pub async fn ready(&self, patience: Duration) -> Result<(), SessionError> {
        let mut state = self.bus.state();
        let settled = state.wait_for(|state| state.is_ready() || state.refused.is_some() || state.fatal.is_some());
        let reached = tokio::time::timeout(patience, settled).await.is_ok();
        let state = self.bus.state().borrow().clone();
        if reached && state.is_ready() {
            if let Some(servers) = &self.servers {
                servers.bridge().settled(patience).await;
            }
            return Ok(());
        }
        let reason = state
            .fatal
            .or(state.refused)
            .or(state.last_error)
            .unwrap_or_else(|| "the broker does not answer".to_owned());
        Err(SessionError::NotReady(reason))
    }

    /// The MCP servers of this process.
    #[must_use]
    pub fn servers(&self) -> Arc<dyn McpAdmin> {
        self.servers.clone().map_or_else(|| Arc::new(NoServers) as _, |servers| Arc::new(servers) as _)
    }

    /// The bus.
    #[must_use]
    pub fn bus(&self) -> Arc<dyn Bus> {
        Arc::clone(&self.bus)
    }

    /// Deletes the queues that the session consumes, and the exchanges, from the broker, and closes the bus in order.
    pub async fn remove(self) {
        let queues: Vec<String> = self.bus.state().borrow().consumers.iter().map(|(queue, _)| queue.clone()).collect();
        // What is consumed would be declared again.
        self.bus.stop_consuming().await;
        self.bus.remove(&queues).await;
        self.close().await;
    }

    /// Closes the bus in order.
    pub async fn close(self) {
        match self.daemon {
            Some(daemon) => {
                daemon.drain(PATIENCE).await;
            }
            None => self.bus.close().await,
        }
    }
}
