//! MCP servers in the admin API.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use toolbus_core::text::shown;
use toolbus_mcp_client::status::{PhaseName, ServerStatus};

use super::routes::{ApiError, ApiResult, NameInPath};
use super::view::{McpRestart, McpServers};
use toolbus_config::nearest;

/// The MCP servers of the daemon.
pub trait McpAdmin: Send + Sync + 'static {
    /// The status of every server, by name.
    fn status(&self) -> Vec<ServerStatus>;

    /// Problems in the configuration of servers, a line each: the servers are left out, or go on as they were.
    fn problems(&self) -> Vec<String> {
        Vec::new()
    }

    /// Begins to restart a server, whatever it is doing; returns false if there is none of this name. Case is ignored.
    fn restart(&self, name: &str) -> bool;
}

/// A daemon without MCP servers.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoServers;

impl McpAdmin for NoServers {
    fn status(&self) -> Vec<ServerStatus> {
        Vec::new()
    }

    fn restart(&self, _: &str) -> bool {
        false
    }
}

/// The routes below `/v1/mcp`.
pub(super) fn routes(servers: Arc<dyn McpAdmin>) -> Router {
    Router::new()
        .route("/mcp", get(list))
        .route("/mcp/{name}", get(one))
        .route("/mcp/{name}/restart", post(restart))
        .with_state(servers)
}

type ServersState = State<Arc<dyn McpAdmin>>;

async fn list(State(servers): ServersState) -> Json<McpServers> {
    Json(McpServers { servers: servers.status(), problems: servers.problems() })
}

async fn one(State(servers): ServersState, name: NameInPath) -> ApiResult<ServerStatus> {
    Ok(Json(find(&*servers, name)?))
}

async fn restart(State(servers): ServersState, name: NameInPath) -> Result<(StatusCode, Json<McpRestart>), ApiError> {
    let server = find(&*servers, name)?;
    if server.phase == PhaseName::Disabled {
        let name = &server.name;
        return Err(ApiError::conflict(format!(
            "the MCP server `{name}` is disabled in the configuration, so it is not started"
        )));
    }
    if !servers.restart(&server.name) {
        return Err(unknown(&server.name, &servers.status(), &*servers));
    }
    tracing::info!(server = server.name, "admin: an MCP server is restarted");
    Ok((StatusCode::ACCEPTED, Json(McpRestart { restarting: server.name })))
}

fn find(servers: &dyn McpAdmin, name: NameInPath) -> Result<ServerStatus, ApiError> {
    let Path(name) = name?;
    let (all, folded) = (servers.status(), name.to_lowercase());
    let found = all.iter().find(|server| server.name.to_lowercase() == folded);
    found.cloned().ok_or_else(|| unknown(&name, &all, servers))
}

fn unknown(name: &str, all: &[ServerStatus], servers: &dyn McpAdmin) -> ApiError {
    let quoted = format!("`{}`", name.to_lowercase());
    if let Some(problem) = servers.problems().into_iter().find(|problem| problem.to_lowercase().contains(&quoted)) {
        return ApiError::not_found(problem);
    }
    if all.is_empty() {
        return ApiError::not_found(
            "the daemon has no MCP servers: add one to its configuration, under mcp.servers or in mcp.servers_file",
        );
    }
    let near = nearest(name, all.iter().map(|server| server.name.as_str()));
    let others = match near {
        Some(near) => format!("did you mean `{}`?", shown(near)),
        None => "`toolbus mcp list` shows all".to_owned(),
    };
    ApiError::not_found(format!("there is no MCP server `{}`: {others}", shown(name)))
}

/// A server that serves, as tests need one.
#[cfg(test)]
pub(crate) fn example(name: &str) -> ServerStatus {
    use toolbus_mcp_client::status::HiddenTool;

    ServerStatus {
        name: name.to_owned(),
        transport: "stdio".to_owned(),
        phase: PhaseName::Ready,
        last_error: None,
        protocol_version: Some("2025-11-25".to_owned()),
        implementation: Some("example 1.0".to_owned()),
        tools: vec!["read_file".to_owned(), "write_file".to_owned()],
        hidden: vec![HiddenTool { name: "move_file".to_owned(), reason: "denied by deniedTools".to_owned() }],
        shadowed: Vec::new(),
        shadowed_total: 0,
        suspect: Vec::new(),
        suspect_total: 0,
        cleaned: Vec::new(),
        cleaned_total: 0,
        pid: Some(4242),
        restarts: 0,
        ready_seconds: Some(3_725),
        in_flight: 1,
        latency_us: Some(1_234),
        stderr: vec!["listening".to_owned()],
        origin: "configuration".to_owned(),
        toolset: None,
        sessions: 0,
    }
}
