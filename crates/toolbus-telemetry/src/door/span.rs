//! The span of one request of an MCP client.

use opentelemetry::trace::{Span as _, SpanBuilder, SpanKind, Status, TraceContextExt, Tracer};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::{SdkTracer, Span};
use toolbus_protocol::{TraceContext, bounded};

use super::DoorOperation;
use super::labels::{Closed, Kind};
use crate::w3c;

/// A span that is recorded.
pub(super) struct ServerSpan {
    span: Span,
    method: &'static str,
}

/// Begins a span, if the trace is sampled, and tells the context that goes on. Attributes are made only then.
pub(super) fn begin(
    tracer: &SdkTracer,
    closed: Closed,
    operation: &DoorOperation<'_>,
) -> (Option<ServerSpan>, Option<TraceContext>) {
    let client = operation.parent.and_then(w3c::remote);
    let context = client.map_or_else(Context::new, |client| Context::new().with_remote_span_context(client));
    let builder = SpanBuilder::from_name(closed.method).with_kind(SpanKind::Server);
    let mut span = tracer.build_with_context(builder, &context);
    let carried = w3c::carried(span.span_context()).or_else(|| operation.parent.cloned());
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
    pub(super) fn end(mut self, tool: Option<&str>, kind: Kind) {
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
