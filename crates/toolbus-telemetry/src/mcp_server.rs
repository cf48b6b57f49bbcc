//! Records of MCP clients and their requests, by the names of OpenTelemetry's conventions for MCP.

use std::sync::Arc;
use std::time::{Duration, Instant};

use opentelemetry::metrics::Meter;
use opentelemetry::trace::{Span as _, SpanBuilder, SpanKind, Status, TraceContextExt, Tracer};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::{SdkTracer, Span};
use toolbus_core::Clock;
use toolbus_core::events::{Discard, McpServerEvents, McpServerOperation, McpServerRequest};
use toolbus_protocol::{TraceContext, bounded};

use crate::labels::{LabelSet, among};
use crate::mcp::{CALL, Durations, Wire, combinations};
use crate::spans::{carried, remote};
use crate::tools::MAX_SERIES;

/// Records requests of MCP clients, and their sessions. Without a collector it does nothing. Cheap to clone.
#[derive(Clone)]
pub struct McpServerRecorder(Option<Arc<McpServerShared>>);

struct McpServerShared {
    tracer: Option<SdkTracer>,
    durations: Option<Durations<RequestLabels>>,
    clock: Clock,
}

/// A request that is recorded.
struct RecordedRequest {
    shared: Arc<McpServerShared>,
    known: KnownRequest,
    began: Instant,
    span: Option<ServerSpan>,
    carried: Option<TraceContext>,
}

impl McpServerRecorder {
    pub(crate) fn new(tracer: Option<SdkTracer>, meter: Option<&Meter>, clock: Clock) -> Self {
        let operation = ("mcp.server.operation.duration", "From a request of an MCP client to its answer.");
        let session = ("mcp.server.session.duration", "From the handshake of an MCP client to the end of its session.");
        let durations = meter.map(|meter| Durations::new(meter, operation, session));
        let is_recording = tracer.is_some() || durations.is_some();
        Self(is_recording.then(|| Arc::new(McpServerShared { tracer, durations, clock })))
    }
}

impl McpServerEvents for McpServerRecorder {
    fn started(&self, operation: &McpServerOperation<'_>) -> Box<dyn McpServerRequest> {
        let Some(shared) = self.0.clone() else { return Box::new(Discard) };
        let known = KnownRequest::new(operation);
        let (span, carried) = match &shared.tracer {
            Some(tracer) => begin_span(tracer, known, operation),
            None => (None, operation.parent.cloned()),
        };
        let began = shared.clock.now();
        Box::new(RecordedRequest { shared, known, began, span, carried })
    }

    fn session_ended(&self, protocol_version: &str, transport: &str, duration: Duration) {
        let Some(durations) = self.0.as_ref().and_then(|shared| shared.durations.as_ref()) else { return };
        durations.session(duration, "", RequestLabels::Session(Wire::new(protocol_version, transport)));
    }
}

impl McpServerRequest for RecordedRequest {
    fn trace(&self) -> Option<TraceContext> {
        self.carried.clone()
    }

    fn finished(self: Box<Self>, tool: Option<&str>, error_type: Option<&str>) {
        let kind = RequestLabels::request(self.known, error_type);
        if let Some(durations) = &self.shared.durations {
            durations.operation(self.shared.clock.since(self.began), "", tool, kind);
        }
        if let Some(span) = self.span {
            span.end(tool, kind);
        }
    }
}

/// Registers the instruments that are observed at each export.
pub(crate) fn observe(meter: &Meter, sessions: impl Fn() -> u64 + Send + Sync + 'static) {
    let sessions = Arc::new(sessions);
    // The second is the name of version 0.1, kept for one more.
    for name in ["toolbus.mcp_server.sessions", "toolbus.door.sessions"] {
        let sessions = Arc::clone(&sessions);
        let gauge =
            meter.u64_observable_gauge(name).with_unit("{session}").with_description("Sessions of MCP clients.");
        gauge.with_callback(move |gauge| gauge.observe(sessions(), &[])).build();
    }
}

/// A span that is recorded.
struct ServerSpan {
    span: Span,
    method: &'static str,
}

/// Begins a span, if the trace is sampled, and returns the context that goes on. Attributes are made only then.
fn begin_span(
    tracer: &SdkTracer,
    known: KnownRequest,
    operation: &McpServerOperation<'_>,
) -> (Option<ServerSpan>, Option<TraceContext>) {
    let client = operation.parent.and_then(remote);
    let context = client.map_or_else(Context::new, |client| Context::new().with_remote_span_context(client));
    let builder = SpanBuilder::from_name(known.method).with_kind(SpanKind::Server);
    let mut span = tracer.build_with_context(builder, &context);
    let carried = carried(span.span_context()).or_else(|| operation.parent.cloned());
    if !span.is_recording() {
        return (None, carried);
    }
    span.set_attributes(known.attributes());
    let request = operation.request;
    let request = request.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(request);
    span.set_attribute(KeyValue::new("jsonrpc.request.id", bounded(request).to_owned()));
    if let Some(session) = operation.session {
        span.set_attribute(KeyValue::new("mcp.session.id", bounded(session).to_owned()));
    }
    (Some(ServerSpan { span, method: known.method }), carried)
}

impl ServerSpan {
    fn end(mut self, tool: Option<&str>, kind: RequestLabels) {
        // A name from a client is part of a span's name only once it is known to be a tool's.
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
const _: () =
    assert!(MAX_OWN + combinations(METHODS.len(), ERRORS.len()) <= MAX_SERIES, "late tools must find room, too");

/// Facts of a request that are known from its beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct KnownRequest {
    method: &'static str,
    wire: Wire,
}

impl KnownRequest {
    fn new(operation: &McpServerOperation<'_>) -> Self {
        Self {
            method: METHODS.into_iter().find(|known| *known == operation.method).unwrap_or(UNKNOWN),
            wire: Wire::new(operation.protocol_version, operation.transport),
        }
    }

    /// The attributes that metrics and spans have in common.
    fn attributes(self) -> impl Iterator<Item = KeyValue> {
        let operation = (self.method == CALL).then(|| KeyValue::new("gen_ai.operation.name", "execute_tool"));
        [KeyValue::new("mcp.method.name", self.method)].into_iter().chain(connection_labels(self.wire)).chain(operation)
    }
}

/// Returns the labels of the way in which a request came.
fn connection_labels(wire: Wire) -> impl Iterator<Item = KeyValue> {
    wire.labels().into_iter().chain(wire.is_tcp().then(|| KeyValue::new("network.protocol.name", "http")))
}

/// Values that are labelled from closed sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RequestLabels {
    /// A request, and what went wrong with it.
    Request(KnownRequest, Option<&'static str>),
    /// A session.
    Session(Wire),
}

impl RequestLabels {
    fn request(known: KnownRequest, error: Option<&str>) -> Self {
        Self::Request(known, error.map(|error| among(&ERRORS, error)))
    }

    /// Returns the labels of what went wrong, and the code of the response, where that is an error of JSON-RPC.
    fn failure(self) -> impl Iterator<Item = KeyValue> {
        let error = match self {
            Self::Request(_, error) => error,
            Self::Session(_) => None,
        };
        let code = error.filter(|error| error.starts_with('-'));
        let error = error.map(|error| KeyValue::new("error.type", error));
        error.into_iter().chain(code.map(|code| KeyValue::new("rpc.response.status_code", code)))
    }
}

impl LabelSet for RequestLabels {
    const MAX_OWN: usize = MAX_OWN;

    fn labels(self, _: &str, tool: Option<&str>) -> Arc<[KeyValue]> {
        match self {
            Self::Request(known, _) => {
                let tool = tool.map(|tool| KeyValue::new("gen_ai.tool.name", tool.to_owned()));
                known.attributes().chain(tool).chain(self.failure()).collect()
            }
            Self::Session(wire) => connection_labels(wire).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use toolbus_protocol::Code;

    use super::*;
    use crate::labels::Labels;

    fn call(error: Option<&str>) -> RequestLabels {
        let operation = McpServerOperation {
            method: CALL,
            protocol_version: "2025-11-25",
            transport: "tcp",
            session: None,
            request: "1",
            parent: None,
        };
        RequestLabels::request(KnownRequest::new(&operation), error)
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
    fn an_error_code_of_json_rpc_is_a_label_and_other_texts_are_not() {
        let labels = |error| call(error).failure().map(|label| label.value.to_string()).collect::<Vec<_>>();
        assert_eq!(labels(Some("-32602")), ["-32602", "-32602"]);
        assert_eq!(labels(Some("timeout")), ["timeout"]);
        assert_eq!(labels(Some("made up")), ["_OTHER"]);
        assert_eq!(labels(None), [""; 0]);
    }
}
