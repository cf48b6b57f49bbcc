//! What is recorded of MCP clients and their requests, by the names of OpenTelemetry's conventions for MCP.

use std::sync::Arc;
use std::time::{Duration, Instant};

use opentelemetry::metrics::{Histogram, Meter};
use opentelemetry::trace::{Span as _, SpanBuilder, SpanKind, Status, TraceContextExt, Tracer};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::{SdkTracer, Span};
use toolbus_core::Clock;
use toolbus_protocol::{TraceContext, bounded};

use crate::labels::{self, Labels, among};
use crate::mcp_client::BOUNDS;
use crate::spans::{carried, remote};
use crate::tools::MAX_SERIES;

/// Records requests of MCP clients, and their sessions. Without a collector it does nothing. Cheap to clone.
#[derive(Clone)]
pub struct McpServerRecorder(Option<Arc<Shared>>);

struct Shared {
    tracer: Option<SdkTracer>,
    instruments: Option<Instruments>,
    clock: Clock,
}

struct Instruments {
    operation_duration: Histogram<f64>,
    session_duration: Histogram<f64>,
    operations: Labels<Kind>,
    sessions: Labels<Kind>,
}

/// A request of a client.
#[derive(Debug, Clone, Copy)]
pub struct McpServerOperation<'a> {
    /// The method, such as `tools/call`. What is not documented is recorded as `unknown`.
    pub method: &'a str,
    /// Revision of the protocol.
    pub protocol_version: &'a str,
    /// `pipe` or `tcp`.
    pub transport: &'a str,
    /// The client's session.
    pub session: Option<&'a str>,
    /// The request's id, as JSON.
    pub request: &'a str,
    /// The client's trace.
    pub parent: Option<&'a TraceContext>,
}

/// A request that is under way.
pub struct McpServerRequest {
    shared: Arc<Shared>,
    closed: Closed,
    started: Instant,
    span: Option<ServerSpan>,
    carried: Option<TraceContext>,
}

impl McpServerRecorder {
    pub(crate) fn new(tracer: Option<SdkTracer>, meter: Option<&Meter>, clock: Clock) -> Self {
        let histogram = |meter: &Meter, name: &'static str, description: &'static str| {
            let builder = meter.f64_histogram(name).with_unit("s").with_description(description);
            builder.with_boundaries(BOUNDS.to_vec()).build()
        };
        let instruments = |meter| Instruments {
            operation_duration: histogram(
                meter,
                "mcp.server.operation.duration",
                "From a request of an MCP client to its answer.",
            ),
            session_duration: histogram(
                meter,
                "mcp.server.session.duration",
                "From the handshake of an MCP client to the end of its session.",
            ),
            operations: Labels::default(),
            sessions: Labels::default(),
        };
        let is_recording = tracer.is_some() || meter.is_some();
        let shared = || Shared { tracer, instruments: meter.map(instruments), clock };
        Self(is_recording.then(shared).map(Arc::new))
    }

    /// Begins to record a request. None where nothing is recorded: then what it is part of goes on in its own trace.
    #[must_use]
    pub fn started(&self, operation: &McpServerOperation<'_>) -> Option<McpServerRequest> {
        let shared = Arc::clone(self.0.as_ref()?);
        let closed = Closed::new(operation);
        let (span, carried) = match &shared.tracer {
            Some(tracer) => begin_span(tracer, closed, operation),
            None => (None, operation.parent.cloned()),
        };
        let started = shared.clock.now();
        Some(McpServerRequest { shared, closed, started, span, carried })
    }

    /// Records a session that ended.
    pub fn session(&self, protocol_version: &str, transport: &str, duration: Duration) {
        let Some(instruments) = self.0.as_ref().and_then(|shared| shared.instruments.as_ref()) else { return };
        let kind = Kind::session(protocol_version, transport);
        instruments.session_duration.record(duration.as_secs_f64(), &instruments.sessions.of("", None, kind));
    }
}

impl McpServerRequest {
    /// The trace that goes on from here.
    #[must_use]
    pub const fn trace(&self) -> Option<&TraceContext> {
        self.carried.as_ref()
    }

    /// Records that it was answered. `tool` is the name of the tool that was called; what is not documented of `error_type` is
    /// recorded as `_OTHER`.
    pub fn finished(self, tool: Option<&str>, error_type: Option<&str>) {
        let kind = Kind::request(self.closed, error_type);
        if let Some(instruments) = &self.shared.instruments {
            let labels = instruments.operations.of("", tool, kind);
            let duration = self.shared.clock.since(self.started);
            instruments.operation_duration.record(duration.as_secs_f64(), &labels);
        }
        if let Some(span) = self.span {
            span.end(tool, kind);
        }
    }
}

/// Registers what is looked up at each export.
pub(crate) fn observe(meter: &Meter, sessions: impl Fn() -> u64 + Send + Sync + 'static) {
    let gauge = meter.u64_observable_gauge("toolbus.door.sessions").with_unit("{session}");
    let gauge = gauge.with_description("Sessions of MCP clients.");
    gauge.with_callback(move |gauge| gauge.observe(sessions(), &[])).build();
}

/// A span that is recorded.
struct ServerSpan {
    span: Span,
    method: &'static str,
}

/// Begins a span, if the trace is sampled, and returns the context that goes on. Attributes are made only then.
fn begin_span(
    tracer: &SdkTracer,
    closed: Closed,
    operation: &McpServerOperation<'_>,
) -> (Option<ServerSpan>, Option<TraceContext>) {
    let client = operation.parent.and_then(remote);
    let context = client.map_or_else(Context::new, |client| Context::new().with_remote_span_context(client));
    let builder = SpanBuilder::from_name(closed.method).with_kind(SpanKind::Server);
    let mut span = tracer.build_with_context(builder, &context);
    let carried = carried(span.span_context()).or_else(|| operation.parent.cloned());
    if !span.is_recording() {
        return (None, carried);
    }
    span.set_attributes(closed.attributes());
    let request = operation.request;
    let request = request.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(request);
    span.set_attribute(KeyValue::new("jsonrpc.request.id", bounded(request).to_owned()));
    if let Some(session) = operation.session {
        span.set_attribute(KeyValue::new("mcp.session.id", bounded(session).to_owned()));
    }
    (Some(ServerSpan { span, method: closed.method }), carried)
}

impl ServerSpan {
    fn end(mut self, tool: Option<&str>, kind: Kind) {
        // What a client writes is no name of a span before it is known to be a tool's.
        if let Some(tool) = tool.map(bounded) {
            self.span.update_name(format!("{} {tool}", self.method));
            self.span.set_attribute(KeyValue::new("gen_ai.tool.name", tool.to_owned()));
        }
        let mut failure = kind.failure().peekable();
        if failure.peek().is_some() {
            self.span.set_status(Status::error(""));
            self.span.set_attributes(failure);
        }
        self.span.end();
    }
}

/// The method that calls a tool.
const CALL: &str = "tools/call";
/// Stands for every method that there is not.
const UNKNOWN: &str = "unknown";

const METHODS: [&str; 9] = [
    "initialize",
    "server/discover",
    "ping",
    "tools/list",
    CALL,
    "resources/list",
    "resources/templates/list",
    "resources/read",
    "subscriptions/listen",
];
const VERSIONS: [&str; 5] = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"];
const TRANSPORTS: [&str; 2] = ["pipe", "tcp"];
/// Codes of the bus, ends of the MCP server's own, and codes of JSON-RPC and MCP.
const ERRORS: [&str; 15] = [
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
];

/// Combinations of a tool and the closed sets that have labels of their own.
const MAX_OWN: usize = 1_900;
/// Combinations of the closed sets alone, each with its value for everything else; requests may also have no error.
const CLOSED: usize = (METHODS.len() + 1) * (VERSIONS.len() + 1) * (TRANSPORTS.len() + 1) * (ERRORS.len() + 2);

const _: () = assert!(MAX_OWN + CLOSED <= MAX_SERIES, "what comes late must find room, too");

/// What is known of a request from its beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Closed {
    method: &'static str,
    version: &'static str,
    transport: &'static str,
}

impl Closed {
    fn new(operation: &McpServerOperation<'_>) -> Self {
        Self {
            method: METHODS.into_iter().find(|known| *known == operation.method).unwrap_or(UNKNOWN),
            version: among(&VERSIONS, operation.protocol_version),
            transport: among(&TRANSPORTS, operation.transport),
        }
    }

    /// The attributes that metrics and spans have in common.
    fn attributes(self) -> impl Iterator<Item = KeyValue> {
        let operation = (self.method == CALL).then(|| KeyValue::new("gen_ai.operation.name", "execute_tool"));
        [KeyValue::new("mcp.method.name", self.method)]
            .into_iter()
            .chain(connection_labels(self.version, self.transport))
            .chain(operation)
    }
}

/// How a request came.
fn connection_labels(version: &'static str, transport: &'static str) -> impl Iterator<Item = KeyValue> {
    let fixed = [KeyValue::new("mcp.protocol.version", version), KeyValue::new("network.transport", transport)];
    fixed.into_iter().chain((transport == "tcp").then(|| KeyValue::new("network.protocol.name", "http")))
}

/// What is labelled from closed sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A request, and what went wrong with it.
    Request(Closed, Option<&'static str>),
    /// A session, with its revision of the protocol and how it came.
    Session(&'static str, &'static str),
}

impl Kind {
    fn request(closed: Closed, error: Option<&str>) -> Self {
        Self::Request(closed, error.map(|error| among(&ERRORS, error)))
    }

    fn session(version: &str, transport: &str) -> Self {
        Self::Session(among(&VERSIONS, version), among(&TRANSPORTS, transport))
    }

    /// What went wrong, and the code of the answer, where that is an error of JSON-RPC.
    fn failure(self) -> impl Iterator<Item = KeyValue> {
        let error = match self {
            Self::Request(_, error) => error,
            Self::Session(..) => None,
        };
        let code = error.filter(|error| error.starts_with('-'));
        let error = error.map(|error| KeyValue::new("error.type", error));
        error.into_iter().chain(code.map(|code| KeyValue::new("rpc.response.status_code", code)))
    }
}

impl labels::Kind for Kind {
    const MAX_OWN: usize = MAX_OWN;

    fn labels(self, _: &str, tool: Option<&str>) -> Arc<[KeyValue]> {
        match self {
            Self::Request(closed, _) => {
                let tool = tool.map(|tool| KeyValue::new("gen_ai.tool.name", tool.to_owned()));
                closed.attributes().chain(tool).chain(self.failure()).collect()
            }
            Self::Session(version, transport) => connection_labels(version, transport).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use toolbus_protocol::Code;

    use super::*;
    use crate::labels::Labels;

    fn call(error: Option<&str>) -> Kind {
        let operation = McpServerOperation {
            method: CALL,
            protocol_version: "2025-11-25",
            transport: "tcp",
            session: None,
            request: "1",
            parent: None,
        };
        Kind::request(Closed::new(&operation), error)
    }

    fn texts(labels: &[KeyValue]) -> BTreeSet<String> {
        labels.iter().map(|label| format!("{}={}", label.key, label.value)).collect()
    }

    #[test]
    fn every_code_of_the_bus_is_a_label_except_the_one_that_clients_get_as_an_error_of_json_rpc() {
        let unlabelled: Vec<Code> = Code::ALL.into_iter().filter(|code| !ERRORS.contains(&code.as_str())).collect();
        assert_eq!(unlabelled, [Code::ToolNotFound]);
    }

    #[test]
    fn tools_beyond_the_limit_share_a_name_and_earlier_ones_keep_theirs() {
        let labels = Labels::default();
        let mut seen = BTreeSet::new();
        for number in 0..MAX_OWN + 500 {
            seen.insert(texts(&labels.of("", Some(&format!("tool_{number}")), call(None))));
        }
        assert_eq!(seen.len(), MAX_OWN + 1);
        assert!(texts(&labels.of("", Some("late"), call(Some("timeout")))).contains("gen_ai.tool.name=_other"));
        assert!(texts(&labels.of("", Some("tool_0"), call(None))).contains("gen_ai.tool.name=tool_0"));
        assert_eq!(texts(&labels.of("", None, call(Some("-31000")))).len(), 6, "what is about no tool has no name");
    }

    #[test]
    fn the_code_of_an_answer_is_told_where_it_is_an_error_of_json_rpc() {
        let told = |error| call(error).failure().map(|label| label.value.to_string()).collect::<Vec<_>>();
        assert_eq!(told(Some("-32602")), ["-32602", "-32602"]);
        assert_eq!(told(Some("timeout")), ["timeout"]);
        assert_eq!(told(Some("made up")), ["_OTHER"]);
        assert_eq!(told(None), [""; 0]);
    }
}
