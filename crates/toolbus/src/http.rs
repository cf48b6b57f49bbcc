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
    Blocker, BrokerStatus, Build, ConsumerStatus, Counts, Health, LastReload, McpServerSummary, Readiness,
    ReloadCounts, ReloadReport, ScriptState, ScriptStatus, Status,
};
pub use listeners::{HttpError, HttpServer, HttpState, Listeners, ListenersError};

#[cfg(test)]
mod tests;
