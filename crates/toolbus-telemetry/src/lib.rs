//! The telemetry of Toolbus: metrics and spans over OTLP, and the log.
//!
//! The contract of names, units and attributes is `docs/telemetry.md`, which a test compares with what a collector
//! receives; the rules of the log are `docs/logging.md`.
//!
//! [`Exporters::start`] opens the way to the collector, [`Exporters::telemetry`] gives the dispatcher its
//! [`Telemetry`](toolbus_core::telemetry::Telemetry), [`Exporters::shutdown`] sends what is left. [`logging::init`] is
//! independent of all three.

mod attributes;
mod call;
mod destination;
mod environment;
mod exporters;
mod health;
mod instruments;
mod labels;
pub mod logging;
mod logs;
mod mcp_client;
mod mcp_server;
mod redacted;
mod scripts;
mod settings;
mod spans;
mod tools;
mod transport;
mod trust;
mod watched;

pub use environment::EnvironmentError;
pub use exporters::{Exporters, NotFlushed, TelemetryError};
pub use mcp_client::{McpClientOperation, McpClientRecorder, McpClientSession, McpServers};
pub use mcp_server::{McpServerOperation, McpServerRecorder, McpServerRequest};
pub use scripts::{ScriptLoad, ScriptRecorder, ScriptRun};
pub use settings::{Identity, Protocol, Settings};
pub use transport::TransportError;
pub use trust::HeldTools;
