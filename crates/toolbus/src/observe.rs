//! What happens with MCP servers, MCP clients and scripts, as metrics and spans.

use std::sync::Arc;
use std::time::Duration;

use toolbus_mcp_client::events::{Observer, Operation, Session};
use toolbus_mcp_client::status::{PhaseName, ServerStatus};
use toolbus_mcp_server::{
    Discard, McpServer, Observer as DoorObserver, Operation as McpServerOperation, Started as DoorStarted, Version,
};
use toolbus_protocol::TraceContext;
use toolbus_scripts::observe::{Observer as ScriptObserver, Run};
use toolbus_scripts::queue::FairQueue;
use toolbus_scripts::runner::Runner;
use toolbus_telemetry::{
    Exporters, HeldTools, McpClientOperation, McpClientRecorder, McpClientSession, McpServerRecorder, McpServerRequest,
    McpServers, ScriptLoad, ScriptRecorder, ScriptRun,
};
use toolbus_trust::pins::{Count, Pins};

use crate::http::Health;
use crate::http::admin::McpAdmin;

/// Records requests to MCP servers, and connections to them.
pub struct McpMetrics(McpClientRecorder);

impl McpMetrics {
    /// Exports by this way.
    #[must_use]
    pub fn new(exporters: &Exporters) -> Self {
        Self(exporters.mcp_client())
    }
}

impl Observer for McpMetrics {
    fn operation(&self, operation: &Operation<'_>) {
        let Operation { method, tool, server, protocol_version, transport, duration, error_type } = *operation;
        self.0.operation(&McpClientOperation {
            method,
            tool,
            server,
            protocol_version,
            transport,
            duration,
            error_type,
        });
    }

    fn session(&self, session: &Session<'_>) {
        let Session { server, protocol_version, transport, duration, error_type } = *session;
        self.0.session(&McpClientSession { server, protocol_version, transport, duration, error_type });
    }
}

/// Records requests of MCP clients, and their sessions.
pub struct DoorMetrics(McpServerRecorder);

impl DoorMetrics {
    /// Exports by this way.
    #[must_use]
    pub fn new(exporters: &Exporters) -> Self {
        Self(exporters.mcp_server())
    }
}

/// A request of an MCP client that is under way.
struct Recorded(McpServerRequest);

impl DoorObserver for DoorMetrics {
    fn started(&self, operation: &McpServerOperation<'_>) -> Box<dyn DoorStarted> {
        let McpServerOperation { method, version, transport, session, request, parent } = *operation;
        let recorded = self.0.started(&toolbus_telemetry::McpServerOperation {
            method,
            protocol_version: version.as_str(),
            transport,
            session,
            request,
            parent,
        });
        match recorded {
            Some(request) => Box::new(Recorded(request)),
            None => Box::new(Discard),
        }
    }

    fn session_ended(&self, version: Version, transport: &'static str, duration: Duration) {
        self.0.session(version.as_str(), transport, duration);
    }
}

impl DoorStarted for Recorded {
    fn trace(&self) -> Option<TraceContext> {
        self.0.trace().cloned()
    }

    fn finished(self: Box<Self>, tool: Option<&str>, error_type: Option<&str>) {
        self.0.finished(tool, error_type);
    }
}

/// Has `door` asked at each export how many sessions it has. To be called once.
pub fn watch_door(exporters: &Exporters, door: McpServer) {
    exporters.watch_mcp_server(move || u64::try_from(door.sessions()).unwrap_or(u64::MAX));
}

/// Records runs of scripts.
pub struct ScriptMetrics(ScriptRecorder);

impl ScriptMetrics {
    /// Exports by this way.
    #[must_use]
    pub fn new(exporters: &Exporters) -> Self {
        Self(exporters.scripts())
    }
}

impl ScriptObserver for ScriptMetrics {
    fn run(&self, run: &Run) {
        self.0.run(&recorded(run));
    }
}

/// What is recorded of a run. What nobody measured is nought there, and nothing here.
fn recorded(run: &Run) -> ScriptRun<'static> {
    ScriptRun {
        outcome: run.end.as_str(),
        start: run.ran.map(|ran| ran.start.as_str()),
        duration: run.duration,
        waited: run.waited,
        cpu: run.ran.map(|ran| ran.cpu).filter(|cpu| !cpu.is_zero()),
        peak_memory: run.ran.map(|ran| ran.peak_memory).filter(|bytes| *bytes > 0),
    }
}

/// Has `queue` and `runner` asked at each export how many scripts there are. To be called once.
pub fn watch_scripts(exporters: &Exporters, queue: FairQueue, runner: Arc<dyn Runner>) {
    let number = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
    exporters.watch_scripts(move || ScriptLoad {
        waiting: number(queue.waiting()),
        running: number(queue.running()),
        warm: number(runner.status().warm),
    });
}

/// Has `servers` asked at each export how they are. To be called once.
pub fn watch(exporters: &Exporters, servers: Arc<dyn McpAdmin>) {
    exporters.watch_mcp_client(move || counted(servers.status()));
}

/// Has `pins` asked at each export what is held back. To be called once.
pub fn watch_pins(exporters: &Exporters, pins: Pins) {
    let number = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
    exporters.watch_pins(move || {
        let of_source =
            |count: Count| HeldTools { source: count.source, held: number(count.held), changes: count.changes };
        pins.counts().into_iter().map(of_source).collect()
    });
}

/// Has `health` asked at each export how many reloads there were. To be called once.
pub fn watch_reloads(exporters: &Exporters, health: Arc<Health>) {
    exporters.watch_reloads(move || {
        let counts = health.reloads();
        [("applied", counts.applied), ("refused", counts.refused)]
    });
}

/// Every phase with its number of servers, also those that no server is in: so that a graph falls to zero.
fn counted(servers: Vec<ServerStatus>) -> McpServers {
    let in_phase = |phase: PhaseName| servers.iter().filter(|server| server.phase == phase).count();
    let phases = PhaseName::ALL.map(|phase| (phase.as_str(), u64::try_from(in_phase(phase)).unwrap_or(u64::MAX)));
    let number = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
    let suspect = |server: &ServerStatus| (server.name.clone(), number(server.suspect_total));
    let shadowed = |server: &ServerStatus| (server.name.clone(), number(server.shadowed_total));
    McpServers {
        phases: phases.to_vec(),
        suspects: servers.iter().map(suspect).collect(),
        shadowed: servers.iter().map(shadowed).collect(),
        restarts: servers.into_iter().map(|server| (server.name, server.restarts)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use toolbus_scripts::observe::{End, Ran};
    use toolbus_scripts::runner::StartKind;

    use super::*;
    use crate::http::admin::example;

    #[test]
    fn every_phase_is_counted_and_every_servers_restarts_suspects_and_shadowed_tools() {
        let parked = ServerStatus {
            phase: PhaseName::Parked,
            restarts: 9,
            suspect_total: 2,
            shadowed_total: 7,
            ..example("git")
        };
        let counted = counted(vec![example("files"), example("time"), parked]);
        assert_eq!(counted.phases.len(), PhaseName::ALL.len());
        let of = |name: &str| counted.phases.iter().find(|(phase, _)| *phase == name).map(|(_, count)| *count);
        assert_eq!((of("ready"), of("parked"), of("idle")), (Some(2), Some(1), Some(0)));
        assert_eq!(counted.restarts, [("files".to_owned(), 0), ("time".to_owned(), 0), ("git".to_owned(), 9)]);
        assert_eq!(counted.suspects, [("files".to_owned(), 0), ("time".to_owned(), 0), ("git".to_owned(), 2)]);
        assert_eq!(counted.shadowed, [("files".to_owned(), 0), ("time".to_owned(), 0), ("git".to_owned(), 7)]);
    }

    #[test]
    fn what_was_not_measured_of_a_script_is_not_recorded() {
        let ran = Ran {
            start: StartKind::Warm,
            installing: Duration::ZERO,
            cpu: Duration::from_millis(20),
            peak_memory: 1 << 20,
            artifacts: 1,
        };
        let run = Run {
            runner: "sandbox",
            level: None,
            end: End::Failed,
            signal: None,
            waited: Duration::ZERO,
            duration: Duration::from_millis(30),
            ran: Some(ran),
        };
        let measured = recorded(&run);
        assert_eq!((measured.outcome, measured.start), ("failed", Some("warm")));
        assert_eq!((measured.cpu, measured.peak_memory), (Some(Duration::from_millis(20)), Some(1 << 20)));
        let ran = Ran { cpu: Duration::ZERO, peak_memory: 0, ..ran };
        for run in [Run { ran: Some(ran), ..run }, Run { ran: None, ..run }] {
            let recorded = recorded(&run);
            assert_eq!((recorded.cpu, recorded.peak_memory), (None, None));
        }
    }

    #[test]
    fn every_end_of_a_script_is_documented() {
        let page = include_str!("../../../docs/telemetry.md");
        let row = page.lines().find(|line| line.starts_with("| *script outcome* |")).unwrap();
        let documented: Vec<&str> = row.split('`').skip(1).step_by(2).collect();
        let expected: Vec<&str> = End::ALL.map(End::as_str).into_iter().chain(["_OTHER"]).collect();
        assert_eq!(documented, expected);
    }

    #[test]
    fn every_phase_is_documented() {
        let page = include_str!("../../../docs/telemetry.md");
        let row = page.lines().find(|line| line.starts_with("| *mcp phase* |")).unwrap();
        let documented: Vec<&str> = row.split('`').skip(1).step_by(2).collect();
        assert_eq!(documented, PhaseName::ALL.map(PhaseName::as_str));
    }
}
