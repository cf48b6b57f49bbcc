//! What is recorded of MCP servers, by the names of OpenTelemetry's conventions for MCP where there are some.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::metrics::{Histogram, Meter};

use crate::labels::{self, Labels, OTHER_NAME, among};
use crate::tools::MAX_SERIES;

/// Seconds, as the conventions for MCP advise.
pub(crate) const BOUNDS: [f64; 14] = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0];
/// Servers whose restarts have a series of their own.
const MAX_SERVERS: usize = 1_000;

/// Records requests to MCP servers, and connections to them. Without a collector it does nothing.
pub struct McpClientRecorder {
    instruments: Option<Instruments>,
}

struct Instruments {
    operation_duration: Histogram<f64>,
    session_duration: Histogram<f64>,
    operations: Labels<Kind>,
    sessions: Labels<Kind>,
}

/// One request to a server.
#[derive(Debug, Clone, Copy)]
pub struct McpClientOperation<'a> {
    /// The method, such as `tools/call`.
    pub method: &'a str,
    /// The tool of a `tools/call`.
    pub tool: Option<&'a str>,
    /// The server's name.
    pub server: &'a str,
    /// Version of the protocol; empty before one was agreed on.
    pub protocol_version: &'a str,
    /// `pipe` or `tcp`.
    pub transport: &'a str,
    /// From the request to its answer.
    pub duration: Duration,
    /// What went wrong, if anything did. What is not documented is recorded as `_OTHER`.
    pub error_type: Option<&'a str>,
}

/// One connection to a server, from its handshake to its end.
#[derive(Debug, Clone, Copy)]
pub struct McpClientSession<'a> {
    /// The server's name.
    pub server: &'a str,
    /// Version of the protocol.
    pub protocol_version: &'a str,
    /// `pipe` or `tcp`.
    pub transport: &'a str,
    /// How long it lasted.
    pub duration: Duration,
    /// Why it ended, unless it was closed in order.
    pub error_type: Option<&'a str>,
}

/// What is looked up at each export.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct McpServers {
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
        let histogram = |meter: &Meter, name: &'static str, description: &'static str| {
            let builder = meter.f64_histogram(name).with_unit("s").with_description(description);
            builder.with_boundaries(BOUNDS.to_vec()).build()
        };
        let instruments = |meter| Instruments {
            operation_duration: histogram(
                meter,
                "mcp.client.operation.duration",
                "From a request to an MCP server to its answer.",
            ),
            session_duration: histogram(
                meter,
                "mcp.client.session.duration",
                "From the handshake with an MCP server to the end of the connection.",
            ),
            operations: Labels::default(),
            sessions: Labels::default(),
        };
        Self { instruments: meter.map(instruments) }
    }

    /// Records a request that was answered, or not.
    pub fn operation(&self, operation: &McpClientOperation<'_>) {
        let Some(instruments) = &self.instruments else { return };
        let McpClientOperation { method, tool, server, protocol_version, transport, duration, error_type } = *operation;
        let kind = Kind::new(Some(method), protocol_version, transport, error_type);
        instruments.operation_duration.record(duration.as_secs_f64(), &instruments.operations.of(server, tool, kind));
    }

    /// Records a connection that ended.
    pub fn session(&self, session: &McpClientSession<'_>) {
        let Some(instruments) = &self.instruments else { return };
        let McpClientSession { server, protocol_version, transport, duration, error_type } = *session;
        let kind = Kind::new(None, protocol_version, transport, error_type);
        instruments.session_duration.record(duration.as_secs_f64(), &instruments.sessions.of(server, None, kind));
    }
}

/// Registers what is looked up at each export.
pub(crate) fn observe(meter: &Meter, look: impl Fn() -> McpServers + Send + Sync + 'static) {
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

/// The attribute that says which server.
const SERVER: &str = "toolbus.mcp.server";

const METHODS: [&str; 5] = ["initialize", "server/discover", "tools/list", "tools/call", "ping"];
const VERSIONS: [&str; 5] = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"];
const TRANSPORTS: [&str; 2] = ["pipe", "tcp"];
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
/// Combinations of the closed sets alone, each with its value for everything else; requests may also have no error.
const CLOSED: usize = (METHODS.len() + 1) * (VERSIONS.len() + 1) * (TRANSPORTS.len() + 1) * (ERRORS.len() + 2);

const _: () = assert!(MAX_OWN + CLOSED <= MAX_SERIES, "what comes late must find room, too");

/// What is labelled from closed sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Kind {
    method: Option<&'static str>,
    version: &'static str,
    transport: &'static str,
    error: Option<&'static str>,
}

impl Kind {
    /// `method` is absent for a session.
    fn new(method: Option<&str>, version: &str, transport: &str, error: Option<&str>) -> Self {
        Self {
            method: method.map(|method| among(&METHODS, method)),
            version: among(&VERSIONS, version),
            transport: among(&TRANSPORTS, transport),
            error: error.map(|error| among(&ERRORS, error)),
        }
    }
}

impl labels::Kind for Kind {
    const MAX_OWN: usize = MAX_OWN;

    fn labels(self, server: &str, tool: Option<&str>) -> Arc<[KeyValue]> {
        let fixed = [
            KeyValue::new(SERVER, server.to_owned()),
            KeyValue::new("mcp.protocol.version", self.version),
            KeyValue::new("network.transport", self.transport),
        ];
        let method = self.method.map(|method| KeyValue::new("mcp.method.name", method));
        let tool = tool.map(|tool| KeyValue::new("gen_ai.tool.name", tool.to_owned()));
        let error = self.error.map(|error| KeyValue::new("error.type", error));
        fixed.into_iter().chain(method).chain(tool).chain(error).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::labels::OTHER;

    #[test]
    fn the_counts_of_servers_that_are_too_many_are_one_sum() {
        let all = (0..MAX_SERVERS + 3).map(|number| (format!("server-{number:05}"), 2)).collect();
        let shown = bounded_servers(all);
        assert_eq!((shown.len(), shown["_other"]), (MAX_SERVERS + 1, 6));
        assert_eq!(bounded_servers(vec![("files".to_owned(), 1)]).len(), 1);
    }

    fn texts(labels: &[KeyValue]) -> BTreeSet<String> {
        labels.iter().map(|label| format!("{}={}", label.key, label.value)).collect()
    }

    #[test]
    fn what_a_server_makes_up_is_no_label() {
        let kind = Kind::new(Some("evil/method"), "3000-01-01", "pigeon", Some("-31999"));
        assert_eq!(kind, Kind { method: Some(OTHER), version: OTHER, transport: OTHER, error: Some(OTHER) });
    }

    #[test]
    fn combinations_beyond_the_limit_share_the_names_and_earlier_ones_keep_theirs() {
        let (labels, kind) = (Labels::<Kind>::default(), Kind::new(Some("tools/call"), "2025-11-25", "pipe", None));
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
        let kind = Kind::new(Some("tools/call"), "2025-11-25", "pipe", None);
        let labelled = labels.of(&"s".repeat(10_000), Some(&"t".repeat(10_000)), kind);
        assert!(labelled.iter().all(|label| label.value.as_str().len() <= 255));
    }
}
