//! The telemetry of Toolbus: metrics, spans and log records over OTLP, and the log.
//!
//! The contract of names, units and attributes is `docs/telemetry.md`, which a test compares with what a collector
//! receives; the rules of the log are `docs/logging.md`.
//!
//! [`Exporters::start`] builds the exporters, [`logging::init`] sets up the log, which they export too,
//! [`Exporters::telemetry`] gives the dispatcher its [`Telemetry`](toolbus_core::telemetry::Telemetry), and
//! [`Exporters::shutdown`] exports pending data.

// Tests measure and spawn as they like.
#![cfg_attr(test, allow(clippy::disallowed_methods))]

mod agents;
mod attributes;
mod call;
mod config;
mod destination;
mod environment;
mod exemplars;
mod exporters;
mod health;
mod instruments;
mod labels;
pub mod logging;
mod logs;
mod mcp;
mod mcp_client;
mod mcp_server;
mod open_metrics;
mod process;
mod quarantine;
mod recent;
mod redacted;
mod remote;
mod resource;
mod scrape;
mod scripts;
mod settings;
mod spans;
mod subagents;
mod tools;
mod transport;
mod watched;
mod web;

pub use agents::AgentRecorder;
pub use config::TelemetryConfig;
pub use environment::EnvironmentError;
pub use exporters::{ExportTarget, Exporters, NotFlushed, SIGNALS, TelemetryError, targets};
pub use mcp_client::{McpClientRecorder, McpServerCounts};
pub use mcp_server::McpServerRecorder;
pub use quarantine::QuarantinedTools;
pub use recent::{RecentCall, RecentCalls, RecentEnd, RecentPayload, RecentStep};
pub use remote::RemoteSetCounts;
pub use scrape::{CallSeries, CallTotals, MetricsFormat, MetricsText};
pub use scripts::{ScriptLoad, ScriptRecorder};
pub use settings::{BusIdentity, Protocol, TelemetrySettings};
pub use subagents::SubagentRecorder;
pub use transport::TransportError;
pub use web::WebRecorder;
