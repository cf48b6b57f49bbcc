//! Records of MCP servers, by the names of OpenTelemetry's conventions for MCP where there are some.

use std::collections::BTreeMap;
use std::sync::Arc;

use opentelemetry::KeyValue;
use opentelemetry::metrics::Meter;
use toolbus_core::events::{McpClientEvents, McpClientOperation, McpClientSession};

use crate::labels::{LabelSet, OTHER_NAME, among};
use crate::mcp::{CALL, Durations, Wire, combinations};
use crate::tools::MAX_SERIES;

/// Servers whose restarts have a series of their own.
const MAX_SERVERS: usize = 1_000;

/// Records requests to MCP servers, and connections to them. Without a collector it does nothing.
pub struct McpClientRecorder {
    durations: Option<Durations<ClientKind>>,
}

/// Counts that are looked up at each export.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct McpServerCounts {
    /// Every phase, with the number of servers in it.
    pub phases: Vec<(&'static str, u64)>,
    /// Every server's name, with the number of its restarts.
    pub restarts: Vec<(String, u64)>,
    /// Every server's name, with the number of its tools whose definitions are suspect.
    pub suspects: Vec<(String, u64)>,
    /// Every server's name, with the number of its tools whose names other sources have.
    pub shadowed: Vec<(String, u64)>,
}

impl McpClientRecorder {
    pub(crate) fn new(meter: Option<&Meter>) -> Self {
        let operation = ("mcp.client.operation.duration", "From a request to an MCP server to its answer.");
        let session =
            ("mcp.client.session.duration", "From the handshake with an MCP server to the end of the connection.");
        Self { durations: meter.map(|meter| Durations::new(meter, operation, session)) }
    }
}

impl McpClientEvents for McpClientRecorder {
    fn operation(&self, operation: &McpClientOperation<'_>) {
        let Some(durations) = &self.durations else { return };
        let McpClientOperation { method, tool, server, protocol_version, transport, duration, error_type } = *operation;
        let kind = ClientKind::new(Some(method), protocol_version, transport, error_type);
        durations.operation(duration, server, tool, kind);
    }

    fn session(&self, session: &McpClientSession<'_>) {
        let Some(durations) = &self.durations else { return };
        let McpClientSession { server, protocol_version, transport, duration, error_type } = *session;
        durations.session(duration, server, ClientKind::new(None, protocol_version, transport, error_type));
    }
}

/// Registers the instruments that are observed at each export.
pub(crate) fn observe(meter: &Meter, look: impl Fn() -> McpServerCounts + Send + Sync + 'static) {
    let look = Arc::new(look);
    let (of_restarts, of_suspects, of_shadowed) = (Arc::clone(&look), Arc::clone(&look), Arc::clone(&look));
    let servers = meter.u64_observable_gauge("toolbus.mcp.servers").with_unit("{server}");
    let servers = servers.with_description("MCP servers, by what they are doing.");
    let by_phase = servers.with_callback(move |gauge| {
        for (phase, count) in look().phases {
            gauge.observe(count, &[KeyValue::new("phase", phase)]);
        }
    });
    by_phase.build();
    let restarts = meter.u64_observable_counter("toolbus.mcp.restarts").with_unit("{restart}");
    let restarts = restarts.with_description("Starts of MCP servers that had ended by themselves.");
    let by_server = restarts.with_callback(move |counter| {
        for (server, count) in bounded_servers(of_restarts().restarts) {
            counter.observe(count, &[KeyValue::new(SERVER, server)]);
        }
    });
    by_server.build();
    let suspects = meter.u64_observable_gauge("toolbus.mcp.suspects").with_unit("{tool}");
    let suspects = suspects.with_description("Tools of MCP servers whose definitions are suspect.");
    let by_server = suspects.with_callback(move |gauge| {
        for (server, count) in bounded_servers(of_suspects().suspects) {
            gauge.observe(count, &[KeyValue::new(SERVER, server)]);
        }
    });
    by_server.build();
    let shadowed = meter.u64_observable_gauge("toolbus.mcp.shadowed").with_unit("{tool}");
    let shadowed = shadowed.with_description("Tools of MCP servers whose names other sources have.");
    let by_server = shadowed.with_callback(move |gauge| {
        for (server, count) in bounded_servers(of_shadowed().shadowed) {
            gauge.observe(count, &[KeyValue::new(SERVER, server)]);
        }
    });
    by_server.build();
}

/// The first servers by name, and one sum for those that are too many.
fn bounded_servers(counts: Vec<(String, u64)>) -> BTreeMap<String, u64> {
    let mut shown: BTreeMap<String, u64> = counts.into_iter().collect();
    if let Some((first_other, _)) = shown.iter().nth(MAX_SERVERS) {
        let others = shown.split_off(&first_other.clone());
        shown.insert(OTHER_NAME.to_owned(), others.values().sum());
    }
    shown
}

/// Attribute of the server.
const SERVER: &str = "toolbus.mcp.server";

const METHODS: [&str; 5] = ["initialize", "server/discover", "tools/list", CALL, "ping"];
/// Ends of our own, and the codes of JSON-RPC and MCP. Others are a server's own, and without number.
const ERRORS: [&str; 18] = [
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
];

/// Combinations of a server, a tool and the closed sets that have labels of their own.
const MAX_OWN: usize = 2_800;
const _: () =
    assert!(MAX_OWN + combinations(METHODS.len(), ERRORS.len()) <= MAX_SERIES, "late servers must find room, too");

/// Values that are labelled from closed sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ClientKind {
    method: Option<&'static str>,
    wire: Wire,
    error: Option<&'static str>,
}

impl ClientKind {
    /// `method` is absent for a session.
    fn new(method: Option<&str>, version: &str, transport: &str, error: Option<&str>) -> Self {
        Self {
            method: method.map(|method| among(&METHODS, method)),
            wire: Wire::new(version, transport),
            error: error.map(|error| among(&ERRORS, error)),
        }
    }
}

impl LabelSet for ClientKind {
    const MAX_OWN: usize = MAX_OWN;

    fn labels(self, server: &str, tool: Option<&str>) -> Arc<[KeyValue]> {
        let server = [KeyValue::new(SERVER, server.to_owned())];
        let method = self.method.map(|method| KeyValue::new("mcp.method.name", method));
        let tool = tool.map(|tool| KeyValue::new("gen_ai.tool.name", tool.to_owned()));
        let error = self.error.map(|error| KeyValue::new("error.type", error));
        server.into_iter().chain(self.wire.labels()).chain(method).chain(tool).chain(error).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::labels::{Labels, OTHER};

    #[test]
    fn the_counts_of_servers_beyond_the_limit_are_one_sum() {
        let all = (0..MAX_SERVERS + 3).map(|number| (format!("server-{number:05}"), 2)).collect();
        let shown = bounded_servers(all);
        assert_eq!((shown.len(), shown["_other"]), (MAX_SERVERS + 1, 6));
        assert_eq!(bounded_servers(vec![("files".to_owned(), 1)]).len(), 1);
    }

    fn texts(labels: &[KeyValue]) -> BTreeSet<String> {
        labels.iter().map(|label| format!("{}={}", label.key, label.value)).collect()
    }

    #[test]
    fn a_name_that_a_server_makes_up_is_no_label() {
        let kind = ClientKind::new(Some("evil/method"), "3000-01-01", "pigeon", Some("-31999"));
        assert_eq!(kind, ClientKind { method: Some(OTHER), wire: Wire::new(OTHER, OTHER), error: Some(OTHER) });
    }

    #[test]
    fn combinations_beyond_the_limit_share_the_names_and_earlier_ones_keep_theirs() {
        let (labels, kind) =
            (Labels::<ClientKind>::default(), ClientKind::new(Some("tools/call"), "2025-11-25", "pipe", None));
        let mut seen = BTreeSet::new();
        for number in 0..MAX_OWN + 500 {
            seen.insert(texts(&labels.of("files", Some(&format!("tool_{number}")), kind)));
        }
        assert_eq!(seen.len(), MAX_OWN + 1);
        let late = texts(&labels.of("git", None, kind));
        assert!(late.contains("toolbus.mcp.server=_other") && !late.iter().any(|label| label.starts_with("gen_ai")));
        let first = texts(&labels.of("files", Some("tool_0"), kind));
        assert!(first.contains("toolbus.mcp.server=files") && first.contains("gen_ai.tool.name=tool_0"), "{first:?}");
    }

    #[test]
    fn a_long_name_is_cut() {
        let labels = Labels::default();
        let kind = ClientKind::new(Some("tools/call"), "2025-11-25", "pipe", None);
        let labelled = labels.of(&"s".repeat(10_000), Some(&"t".repeat(10_000)), kind);
        assert!(labelled.iter().all(|label| label.value.as_str().len() <= 255));
    }
}
