//! Telemetry of MCP servers.

use std::time::Duration;

use toolbus_core::events::{McpClientEvents as _, McpClientOperation, McpClientSession};
use toolbus_telemetry::{Exporters, McpServerCounts};

use crate::observed::metrics;
use crate::support::Daemon;

const METHODS: [&str; 6] = ["initialize", "server/discover", "tools/list", "tools/call", "ping", "a/b"];
const VERSIONS: [&str; 6] = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28", ""];
const ERRORS: [&str; 19] = [
    "tool_error",
    "timeout",
    "cancelled",
    "connect_failed",
    "connection_lost",
    "auth_required",
    "-32700",
    "-32600",
    "-32601",
    "-32602",
    "-32603",
    "-32000",
    "-32001",
    "-32002",
    "-32020",
    "-32021",
    "-32022",
    "-32042",
    "-31999",
];
const PHASES: [&str; 8] = ["disabled", "idle", "connecting", "ready", "waiting", "parked", "auth-required", "stopped"];

fn call(tool: &str) -> McpClientOperation<'_> {
    McpClientOperation {
        method: "tools/call",
        tool: Some(tool),
        server: "files",
        protocol_version: "2025-11-25",
        transport: "pipe",
        duration: Duration::from_millis(3),
        error_type: None,
    }
}

fn session() -> McpClientSession<'static> {
    McpClientSession {
        server: "files",
        protocol_version: "2025-11-25",
        transport: "pipe",
        duration: Duration::from_secs(60),
        error_type: None,
    }
}

/// Every request and every end of a connection that the contract knows, and more.
pub(crate) fn ask_in_every_way(exporters: &Exporters) {
    let recorder = exporters.mcp_client();
    for method in METHODS {
        let tool = (method == "tools/call").then_some("read_file");
        recorder.operation(&McpClientOperation { method, tool, ..call("read_file") });
    }
    for protocol_version in VERSIONS {
        recorder.operation(&McpClientOperation { protocol_version, ..call("read_file") });
        recorder.session(&McpClientSession { protocol_version, ..session() });
    }
    for transport in ["pipe", "tcp", "pigeon"] {
        recorder.operation(&McpClientOperation { transport, ..call("read_file") });
        recorder.session(&McpClientSession { transport, ..session() });
    }
    for error in ERRORS {
        recorder.operation(&McpClientOperation { error_type: Some(error), ..call("read_file") });
        recorder.session(&McpClientSession { error_type: Some(error), ..session() });
    }
    exporters.watch_mcp_client(|| McpServerCounts {
        phases: PHASES.into_iter().map(|phase| (phase, 1)).collect(),
        restarts: vec![("files".to_owned(), 2)],
        suspects: vec![("files".to_owned(), 1)],
        shadowed: vec![("files".to_owned(), 1)],
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_makes_up_names_and_codes_stays_below_the_limit_of_series() {
    let (receiver, daemon) = Daemon::with_receiver(&[("OTEL_TRACES_EXPORTER", "none")]).await;
    let recorder = daemon.exporters.mcp_client();
    for number in 0..6_000 {
        let (tool, code) = (format!("tool_{number}"), (-40_000 - number).to_string());
        recorder.operation(&McpClientOperation { error_type: Some(&code), ..call(&tool) });
    }
    recorder.operation(&McpClientOperation { server: "git", ..call("log") });
    recorder.operation(&call("tool_0"));
    daemon.end().await;

    let operations = &metrics(&receiver)["mcp.client.operation.duration"];
    assert!(operations.values("otel.metric.overflow").is_empty());
    assert_eq!(operations.value(&[]), Some(6_002.0));
    assert_eq!(operations.values("gen_ai.tool.name").len(), 2_801);
    assert_eq!(operations.value(&[("gen_ai.tool.name", "tool_0"), ("toolbus.mcp.server", "files")]), Some(1.0));
    assert_eq!(operations.values("error.type"), ["_OTHER"].into());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn phases_restarts_suspects_and_shadowed_tools_are_looked_up_at_each_export() {
    let (receiver, daemon) = Daemon::with_receiver(&[("OTEL_TRACES_EXPORTER", "none")]).await;
    daemon.exporters.watch_mcp_client(|| McpServerCounts {
        phases: vec![("ready", 2), ("parked", 0)],
        restarts: vec![("files".to_owned(), 7), ("git".to_owned(), 0)],
        suspects: vec![("files".to_owned(), 3), ("git".to_owned(), 0)],
        shadowed: vec![("files".to_owned(), 0), ("git".to_owned(), 7)],
    });
    daemon.end().await;

    let metrics = metrics(&receiver);
    assert_eq!(metrics["toolbus.mcp.servers"].value(&[("phase", "ready")]), Some(2.0));
    assert_eq!(metrics["toolbus.mcp.servers"].value(&[("phase", "parked")]), Some(0.0));
    assert_eq!(metrics["toolbus.mcp.restarts"].value(&[("toolbus.mcp.server", "files")]), Some(7.0));
    assert_eq!(metrics["toolbus.mcp.suspects"].value(&[("toolbus.mcp.server", "files")]), Some(3.0));
    assert_eq!(metrics["toolbus.mcp.suspects"].value(&[("toolbus.mcp.server", "git")]), Some(0.0));
    assert_eq!(metrics["toolbus.mcp.shadowed"].value(&[("toolbus.mcp.server", "files")]), Some(0.0));
    assert_eq!(metrics["toolbus.mcp.shadowed"].value(&[("toolbus.mcp.server", "git")]), Some(7.0));
}
