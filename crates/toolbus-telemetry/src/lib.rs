//! The telemetry of Toolbus: metrics and spans over OTLP, and the log.
//!
//! The contract of names, units and attributes is `docs/telemetry.md`, which a test compares with what a collector
//! receives; the rules of the log are `docs/logging.md`.
//!
//! [`Pipeline::start`] opens the way to the collector, [`Pipeline::telemetry`] gives the dispatcher its
//! [`Telemetry`](toolbus_core::telemetry::Telemetry), [`Pipeline::shutdown`] sends what is left. [`logging::init`] is
//! independent of all three.

mod attributes;
mod call;
mod destination;
mod door;
mod environment;
mod exporter;
mod health;
mod instruments;
mod labels;
pub mod logging;
mod mcp;
mod pipeline;
mod redacted;
mod resource;
mod sampling;
mod scripts;
mod settings;
mod spans;
mod tools;
mod transport;
mod trust;
mod w3c;

pub use door::{DoorOperation, DoorRecorder, DoorRequest};
pub use environment::EnvironmentError;
pub use mcp::{McpOperation, McpRecorder, McpServers, McpSession};
pub use pipeline::{NotFlushed, Pipeline, TelemetryError};
pub use scripts::{ScriptLoad, ScriptRecorder, ScriptRun};
pub use settings::{Identity, Protocol, Settings};
pub use transport::TransportError;
pub use trust::HeldTools;
