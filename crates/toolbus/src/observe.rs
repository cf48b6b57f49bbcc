//! What happens with MCP servers, as metrics.

use std::sync::Arc;

use toolbus_mcp::observe::{Observer, Operation, Session};
use toolbus_mcp::status::{PhaseName, ServerStatus};
use toolbus_telemetry::{McpOperation, McpRecorder, McpServers, McpSession, Pipeline};

use crate::http::admin::McpAdmin;

/// Records requests to MCP servers, and connections to them.
pub struct McpMetrics(McpRecorder);

impl McpMetrics {
    /// Exports by this way.
    #[must_use]
    pub fn new(pipeline: &Pipeline) -> Self {
        Self(pipeline.mcp())
    }
}

impl Observer for McpMetrics {
    fn operation(&self, operation: &Operation<'_>) {
        let Operation { method, tool, server, protocol_version, transport, duration, error_type } = *operation;
        self.0.operation(&McpOperation { method, tool, server, protocol_version, transport, duration, error_type });
    }

    fn session(&self, session: &Session<'_>) {
        let Session { server, protocol_version, transport, duration, error_type } = *session;
        self.0.session(&McpSession { server, protocol_version, transport, duration, error_type });
    }
}

/// Has `servers` asked at each export how they are. To be called once.
pub fn watch(pipeline: &Pipeline, servers: Arc<dyn McpAdmin>) {
    pipeline.watch_mcp(move || counted(servers.status()));
}

/// Every phase with its number of servers, also those that no server is in: so that a graph falls to zero.
fn counted(servers: Vec<ServerStatus>) -> McpServers {
    let in_phase = |phase: PhaseName| servers.iter().filter(|server| server.phase == phase).count();
    let phases = PhaseName::ALL.map(|phase| (phase.as_str(), u64::try_from(in_phase(phase)).unwrap_or(u64::MAX)));
    McpServers {
        phases: phases.to_vec(),
        restarts: servers.into_iter().map(|server| (server.name, server.restarts)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::admin::example;

    #[test]
    fn every_phase_is_counted_and_every_servers_restarts() {
        let parked = ServerStatus { phase: PhaseName::Parked, restarts: 9, ..example("git") };
        let counted = counted(vec![example("files"), example("time"), parked]);
        assert_eq!(counted.phases.len(), PhaseName::ALL.len());
        let of = |name: &str| counted.phases.iter().find(|(phase, _)| *phase == name).map(|(_, count)| *count);
        assert_eq!((of("ready"), of("parked"), of("idle")), (Some(2), Some(1), Some(0)));
        assert_eq!(counted.restarts, [("files".to_owned(), 0), ("time".to_owned(), 0), ("git".to_owned(), 9)]);
    }

    #[test]
    fn every_phase_is_documented() {
        let page = include_str!("../../../docs/telemetry.md");
        let row = page.lines().find(|line| line.starts_with("| *mcp phase* |")).unwrap();
        let documented: Vec<&str> = row.split('`').skip(1).step_by(2).collect();
        assert_eq!(documented, PhaseName::ALL.map(PhaseName::as_str));
    }
}
