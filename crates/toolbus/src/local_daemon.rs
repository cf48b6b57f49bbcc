//! A bus for one command: the configured broker, or the whole daemon inside this process.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use toolbus_core::bus::Bus;

use crate::app::{self, App, AppError, Mode};
use crate::config::{BusUrl, Config};
use crate::http::{McpAdmin, NoServers};

/// Time that calls under way get when the command is done with them.
const PATIENCE: Duration = Duration::from_secs(1);

/// A connected bus. On the embedded bus the daemon's parts run beside it, because no other process could reply.
pub struct LocalDaemon {
    bus: Arc<dyn Bus>,
    app: Option<App>,
}

/// Reason why a command has no bus.
#[derive(Debug, thiserror::Error)]
pub enum LocalDaemonError {
    /// The configuration cannot be put into practice.
    #[error(transparent)]
    App(#[from] AppError),
    /// The broker does not take part.
    #[error("not ready: {0}")]
    NotReady(String),
}

impl LocalDaemon {
    /// Opens the bus of the configuration. On the embedded bus, tools are quarantined by the file `pins`.
    ///
    /// # Errors
    ///
    /// If a part cannot be built, such as when a certificate cannot be read.
    pub async fn open(config: &Config, pins: Option<PathBuf>) -> Result<Self, LocalDaemonError> {
        match config.bus.url {
            BusUrl::Embedded => Self::with_daemon(config, pins).await,
            BusUrl::Amqp(_) => Ok(Self { bus: app::bus(config)?, app: None }),
        }
    }

    /// Opens the bus of the configuration, and runs the daemon's parts on it; tools are quarantined by the file `pins`.
    ///
    /// # Errors
    ///
    /// As [`Self::open`].
    pub async fn with_daemon(config: &Config, pins: Option<PathBuf>) -> Result<Self, LocalDaemonError> {
        let mut app = App::build(config, Mode::Command { pins }).await?;
        app.start().await;
        app.listen();
        Ok(Self { bus: app.bus(), app: Some(app) })
    }

    /// Waits until calls can be taken and replied to, at most `patience`.
    ///
    /// # Errors
    ///
    /// If the broker cannot be reached in time, or its objects conflict with the configuration.
    pub async fn ready(&self, patience: Duration) -> Result<(), LocalDaemonError> {
        let mut state = self.bus.state();
        let settled = state.wait_for(|state| state.is_ready() || state.refused.is_some() || state.fatal.is_some());
        let reached = tokio::time::timeout(patience, settled).await.is_ok();
        let state = self.bus.state().borrow().clone();
        if reached && state.is_ready() {
            if let Some(app) = &self.app {
                app.servers_settled(patience).await;
            }
            return Ok(());
        }
        let reason = state
            .fatal
            .or(state.refused)
            .or(state.last_error)
            .unwrap_or_else(|| "the broker does not answer".to_owned());
        Err(LocalDaemonError::NotReady(reason))
    }

    /// The MCP servers of this process.
    #[must_use]
    pub fn servers(&self) -> Arc<dyn McpAdmin> {
        self.app.as_ref().map_or_else(|| Arc::new(NoServers) as _, App::servers)
    }

    /// The bus.
    #[must_use]
    pub fn bus(&self) -> Arc<dyn Bus> {
        Arc::clone(&self.bus)
    }

    /// Deletes the queues that the session consumes, and the exchanges, from the broker, and closes the bus in order.
    pub async fn remove(self) {
        let queues: Vec<String> = self.bus.state().borrow().consumers.iter().map(|(queue, _)| queue.clone()).collect();
        // A consumer would declare its queue again.
        self.bus.stop_consuming().await;
        self.bus.remove(&queues).await;
        self.close().await;
    }

    /// Closes the bus in order.
    pub async fn close(self) {
        match self.app {
            Some(mut app) => {
                app.drain(PATIENCE).await;
                app.close().await;
            }
            None => self.bus.close().await,
        }
    }
}
