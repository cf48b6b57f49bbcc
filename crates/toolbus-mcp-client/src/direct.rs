//! A server that is called without the bridge: what the bridge is measured against.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use toolbus_core::failure::ToolFailure;
use toolbus_core::tool::{ToolCall, ToolOutput};

use crate::events::{Discard, Observer};
use crate::process::Launcher;
use crate::spec::ServerSpec;
use crate::supervise::connect::{Connected, Connector, STOP_TIME};

/// Longest time until the server takes calls.
const START_TIME: Duration = Duration::from_secs(60);

/// A server that is reached and spoken to as the bridge does, by the same transport and the same connection, with nothing
/// around them.
pub struct Direct(Connected);

/// Why a server cannot be called. The text is for an operator.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct DirectError(String);

impl Direct {
    /// Starts or connects the server, within 60 s.
    ///
    /// # Errors
    ///
    /// When it cannot be started or reached, or does not shake hands.
    pub async fn start(spec: &ServerSpec, launcher: &Launcher) -> Result<Self, DirectError> {
        let observer: Arc<dyn Observer> = Arc::new(Discard);
        let connected =
            Connector::new(spec, None, launcher, &observer).connect(START_TIME, &CancellationToken::new()).await;
        Ok(Self(connected.map_err(|error| DirectError(error.text))?))
    }

    /// Calls a tool by the server's own name of it.
    ///
    /// # Errors
    ///
    /// When there is no result.
    pub async fn call(&self, tool: &str, call: &ToolCall) -> Result<ToolOutput, ToolFailure> {
        self.0.connection.call(tool, call).await.map_err(|error| error.failure)
    }

    /// The process id of the server's supervisor, if it is a child process.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.0.pid()
    }

    /// Ends the server in order.
    pub async fn stop(self) {
        self.0.close(STOP_TIME).await;
    }
}
