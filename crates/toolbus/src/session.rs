//! A bus for one command: the configured broker, or the whole daemon inside this process.

use std::sync::Arc;
use std::time::Duration;

use toolbus_core::bus::Bus;
use toolbus_core::telemetry::{Load, Silent};

use crate::assembly::{self, AssemblyError};
use crate::config::{BusUrl, Config};
use crate::daemon::Daemon;

/// Time that calls under way get when the command is done with them.
const PATIENCE: Duration = Duration::from_secs(1);

/// A connected bus. On the embedded bus the daemon's parts run beside it, because nobody else could answer.
pub struct Session {
    bus: Arc<dyn Bus>,
    daemon: Option<Daemon>,
}

/// Why a command has no bus.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct SessionError(#[from] AssemblyError);

impl Session {
    /// Opens the bus of the configuration.
    ///
    /// # Errors
    ///
    /// When the configuration cannot be put into practice, such as a certificate that cannot be read.
    pub fn open(config: &Config) -> Result<Self, SessionError> {
        match config.bus.url {
            BusUrl::Embedded => Self::with_daemon(config),
            BusUrl::Amqp(_) => Ok(Self { bus: assembly::bus(config)?, daemon: None }),
        }
    }

    /// Opens the bus of the configuration, and runs the daemon's parts on it.
    ///
    /// # Errors
    ///
    /// As [`Self::open`].
    pub fn with_daemon(config: &Config) -> Result<Self, SessionError> {
        let bus = assembly::bus(config)?;
        let registry = assembly::registry(config)?;
        let daemon = Daemon::start(config, Arc::clone(&bus), registry, Arc::new(Silent), Arc::<Load>::default());
        Ok(Self { bus, daemon: Some(daemon) })
    }

    /// The bus.
    #[must_use]
    pub fn bus(&self) -> Arc<dyn Bus> {
        Arc::clone(&self.bus)
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
