//! MCP servers in the admin API: their status, and restarts.

use toolbus_config::nearest;
use toolbus_core::text::shown;
use toolbus_mcp_client::status::{PhaseName, ServerStatus};

use super::Admin;
use super::view::{ApiError, McpRestart, McpServerList};

impl Admin {
    /// Returns every MCP server, and the mistakes in their configuration.
    #[must_use]
    pub fn servers(&self) -> McpServerList {
        McpServerList { servers: self.servers.status(), problems: self.servers.problems() }
    }

    /// Returns the MCP server of this name. Case is ignored.
    ///
    /// # Errors
    ///
    /// If there is none.
    pub fn server(&self, name: &str) -> Result<ServerStatus, ApiError> {
        let (all, folded) = (self.servers.status(), name.to_lowercase());
        let found = all.iter().find(|server| server.name.to_lowercase() == folded);
        found.cloned().ok_or_else(|| self.no_server(name, &all))
    }

    /// Begins to restart an MCP server, whatever it is doing.
    ///
    /// # Errors
    ///
    /// If there is none of this name, or it is disabled.
    pub(super) fn restart_server(&self, name: &str) -> Result<McpRestart, ApiError> {
        let server = self.server(name)?;
        if server.phase == PhaseName::Disabled {
            let name = &server.name;
            return Err(ApiError::conflict(format!(
                "the MCP server `{name}` is disabled in the configuration, so it is not started"
            )));
        }
        if !self.servers.restart(&server.name) {
            return Err(self.no_server(&server.name, &self.servers.status()));
        }
        tracing::info!(server = server.name, "admin: an MCP server is restarted");
        Ok(McpRestart { restarting: server.name })
    }

    fn no_server(&self, name: &str, all: &[ServerStatus]) -> ApiError {
        let quoted = format!("`{}`", name.to_lowercase());
        let problems = self.servers.problems();
        if let Some(problem) = problems.into_iter().find(|problem| problem.to_lowercase().contains(&quoted)) {
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
}
