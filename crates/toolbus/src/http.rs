//! HTTP: health and status without a token, the admin API for operators, and the MCP server.

pub mod admin;
mod auth;
mod bodies;
mod connections;
mod console;
mod entrance;
mod health;
mod listeners;
mod origin;
mod other_daemons;
mod readiness;
mod refusal;
mod reloads;
mod remote;
mod shared;
mod slots;

pub use auth::HttpAuth;
pub use console::{Console, LastHour, router as console};
pub use health::{
    BrokerStatus, Build, ConsumerStatus, Counts, DaemonHealth, Health, HealthSources, McpAdmin, McpServerHealth,
    NoServers, OpenBreaker, ScriptStatus,
};
pub use listeners::{AdminSocket, HttpServer, HttpState, ListenError, Listeners, ListenersError, SocketError};
pub use other_daemons::{HeardDaemons, OtherDaemon, SharedIntake};
pub use readiness::{Blocker, OUTDATED, Readiness};
pub(crate) use refusal::HttpRefusal;
pub use reloads::{LastReload, ReloadCounts, ReloadReport};
pub use remote::{RemotePhase, RemoteSetHealth};
pub use shared::{Replica, ReplicaCounts, ReplicaSummary, SharedState};

#[cfg(test)]
pub(crate) mod tests;
