//! HTTP: health and status for anybody, the admin API for operators, and the MCP server.

pub mod admin;
mod auth;
mod bodies;
mod connections;
mod health;
mod listeners;
mod origin;
mod refusal;
mod slots;

pub use auth::HttpAuth;
pub use health::{
    Blocker, BrokerStatus, Build, ConsumerStatus, Counts, Health, HealthSources, LastReload, McpAdmin,
    McpServerSummary, NoServers, Readiness, ReloadCounts, ReloadReport, ScriptStatus, Status,
};
pub use listeners::{AdminSocket, HttpError, HttpServer, HttpState, Listeners, ListenersError, SocketError};

#[cfg(test)]
pub(crate) mod tests;
