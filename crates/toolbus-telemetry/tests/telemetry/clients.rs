//! Telemetry of MCP clients.

use std::time::Duration;

use toolbus_core::events::{McpServerEvents as _, McpServerOperation};
use toolbus_telemetry::Exporters;
use toolbus_testing::otlp::proto::trace::v1::status::StatusCode;

use crate::observed::{attributes, hex, kind, metrics, span};
use crate::support::{Daemon, OK, SAMPLED, UNSAMPLED, agent, parent, tool};

const METHODS: [&str; 10] = [
    "initialize",
    "server/discover",
    "ping",
    "tools/list",
    "tools/call",
    "resources/list",
    "resources/templates/list",
    "resources/read",
    "subscriptions/listen",
    "made/up",
];
const VERSIONS: [&str; 6] = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28", "3000-01-01"];
const ERRORS: [&str; 16] = [
    "tool_error",
    "invalid_arguments",
    "timeout",
    "execution_failed",
    "not_allowed",
    "rate_limited",
    "overloaded",
    "cancelled",
    "auth_required",
    "client_gone",
    "-32600",
    "-32601",
    "-32602",
    "-32603",
    "-32002",
    "exploded",
];

pub(crate) fn call() -> McpServerOperation<'static> {
    McpServerOperation {
        method: "tools/call",
        protocol_version: "2025-11-25",
        transport: "tcp",
        session: Some("session-1"),
        request: "7",
        parent: None,
    }
}

/// Every request and every end of a session that the contract knows, and more.
pub(crate) fn ask_in_every_way(exporters: &Exporters) {
    let recorder = exporters.mcp_server();
    let ask = |operation: McpServerOperation<'_>, tool, error| {
        recorder.started(&operation).finished(tool, error);
    };
    for method in METHODS {
        ask(McpServerOperation { method, ..call() }, None, None);
    }
    for protocol_version in VERSIONS {
        ask(McpServerOperation { protocol_version, ..call() }, Some("weather"), None);
        recorder.session_ended(protocol_version, "tcp", Duration::from_secs(60));
    }
    for transport in ["pipe", "tcp", "pigeon"] {
        ask(McpServerOperation { transport, session: None, ..call() }, Some("weather"), None);
        recorder.session_ended("2025-11-25", transport, Duration::from_secs(60));
    }
    for error in ERRORS {
        ask(call(), Some("weather"), Some(error));
    }
    exporters.watch_mcp_server(|| 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_of_a_client_goes_on_in_its_trace_and_the_tool_runs_within_it() {
    let (receiver, daemon) = Daemon::with_receiver(&[]).await;
    let sender = parent(SAMPLED);
    let request = McpServerOperation { request: r#""a-7""#, parent: Some(&sender), ..call() };
    let request = daemon.exporters.mcp_server().started(&request);
    let mut inner = daemon.telemetry.nested(request.trace().as_ref(), None);
    inner.executing(&tool("weather"), "call-1", &agent("ana"));
    inner.executed(&OK, Duration::from_millis(20));
    let carried = request.trace().unwrap();
    request.finished(Some("weather"), None);
    drop(inner);
    daemon.end().await;

    let spans = receiver.spans();
    assert_eq!(spans.len(), 2);
    let (server, execute) = (span(&spans, "tools/call weather"), span(&spans, "execute_tool weather"));
    assert_eq!(kind(server), "server");
    assert_eq!(
        (hex(&server.trace_id), hex(&server.parent_span_id)),
        (sender.trace_id().to_owned(), sender.span_id().to_owned())
    );
    assert_eq!(execute.parent_span_id, server.span_id);
    assert_eq!(carried.span_id(), hex(&server.span_id));
    assert_eq!(carried.tracestate(), Some("vendor=1"));
    let attributes = attributes(server.attributes.clone());
    assert_eq!(
        (attributes["jsonrpc.request.id"].as_str(), attributes["mcp.session.id"].as_str()),
        ("a-7", "session-1")
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unsampled_request_has_no_span_and_its_context_goes_on() {
    let (receiver, daemon) = Daemon::with_receiver(&[]).await;
    let sender = parent(UNSAMPLED);
    let request = daemon.exporters.mcp_server().started(&McpServerOperation { parent: Some(&sender), ..call() });
    let carried = request.trace().unwrap();
    request.finished(Some("weather"), None);
    daemon.end().await;

    assert_eq!(receiver.spans(), []);
    assert_eq!(carried.trace_id(), sender.trace_id());
    assert!(carried.traceparent().ends_with("-00"), "{carried:?}");
    assert_eq!(
        metrics(&receiver)["mcp.server.operation.duration"].value(&[("gen_ai.tool.name", "weather")]),
        Some(1.0)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_request_marks_its_span_and_an_unknown_method_is_no_span_name() {
    let (receiver, daemon) = Daemon::with_receiver(&[]).await;
    let recorder = daemon.exporters.mcp_server();
    let (long, made_up) = ("x".repeat(1_000_000), "y".repeat(1_000_000));
    let operation = McpServerOperation { method: &made_up, session: Some(&long), request: &long, ..call() };
    recorder.started(&operation).finished(None, Some("-32601"));
    recorder.started(&call()).finished(None, Some("-32602"));
    daemon.end().await;

    let spans = receiver.spans();
    for (name, code) in [("unknown", "-32601"), ("tools/call", "-32602")] {
        let span = span(&spans, name);
        assert_eq!((span.name.as_str(), span.status.as_ref().unwrap().code()), (name, StatusCode::Error));
        let attributes = attributes(span.attributes.clone());
        assert_eq!((&*attributes["error.type"], &*attributes["rpc.response.status_code"]), (code, code));
        assert!(attributes.values().all(|value| value.len() <= 255));
        assert!(!attributes.contains_key("gen_ai.tool.name"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_calls_many_tools_stays_below_the_limit_of_series() {
    let (receiver, daemon) = Daemon::with_receiver(&[("OTEL_TRACES_EXPORTER", "none")]).await;
    let recorder = daemon.exporters.mcp_server();
    for number in 0..6_000 {
        let (tool, code) = (format!("tool_{number}"), (-40_000 - number).to_string());
        recorder.started(&call()).finished(Some(&tool), Some(&code));
    }
    daemon.end().await;

    let operations = &metrics(&receiver)["mcp.server.operation.duration"];
    assert!(operations.values("otel.metric.overflow").is_empty());
    assert_eq!(operations.value(&[]), Some(6_000.0));
    assert_eq!(operations.values("gen_ai.tool.name").len(), 1_901);
    assert_eq!(operations.values("error.type"), ["_OTHER"].into());
}
