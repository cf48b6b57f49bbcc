//! Reason why there are no figures.

use std::io;

use crate::broker::site::BrokerError;
use crate::exchange::ExchangeError;
use crate::usage::UsageError;

/// Reason why there are no figures.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MeasureError {
    /// The embedded bus has no floor to compare with.
    #[error("a measurement needs a RabbitMQ broker: give --bus-url amqp://USER:PASSWORD@HOST:5672/%2f")]
    NoBroker,
    /// Certificates that neither side would use.
    #[error("bench does not use bus.tls: measure on a broker without certificates of its own")]
    Tls,
    /// Ended by the user.
    #[error("interrupted")]
    Interrupted,
    /// A share that is none.
    #[error("--trace-ratio takes a number from 0 to 1")]
    Ratio,
    /// A side did not start.
    #[error("{0} did not start: {1}")]
    Start(&'static str, String),
    /// The broker or a side did not take part.
    #[error(transparent)]
    Bench(#[from] BrokerError),
    /// A process could not be measured.
    #[error(transparent)]
    Usage(#[from] UsageError),
    /// An MCP server or the daemon beside it.
    #[error("MCP servers cannot be measured: {0}")]
    Mcp(String),
    /// The interpreter or the sandbox.
    #[error("scripts cannot be measured: {0}")]
    Script(String),
    /// The MCP server, or one of the other proxies.
    #[error("the MCP server cannot be measured: {0}")]
    McpServer(String),
    /// A response over HTTP that is none.
    #[error("the MCP server cannot be measured: {0}")]
    Exchange(#[from] ExchangeError),
    /// Nothing can be printed or started.
    #[error("{0}")]
    Io(#[from] io::Error),
}
