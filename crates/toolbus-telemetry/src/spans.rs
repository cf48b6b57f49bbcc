//! The spans of one call.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use opentelemetry::trace::{Span as _, SpanBuilder, SpanContext, SpanKind, Status, TraceContextExt, Tracer};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::{SdkTracer, Span};
use toolbus_core::bus::Delivery;
use toolbus_core::tool::ToolDescriptor;
use toolbus_protocol::{TraceContext, bounded};

use crate::attributes::Failure;
use crate::destination::Destination;
use crate::settings::Identity;
use crate::w3c;

/// The provider of tools of MCP servers.
const MCP: &str = "mcp";

/// The trace of one call.
pub(crate) enum Trace {
    /// Nothing is recorded; this context goes on to tools and answers.
    Carried(Option<TraceContext>),
    /// The trace is sampled.
    Recorded(Box<Recorded>),
}

/// A trace with spans. What is not ended in time ends with it.
pub(crate) struct Recorded {
    tracer: SdkTracer,
    /// The consumer's span; absent for a call within a call.
    process: Option<Span>,
    /// The consumer's span, or that of the call around this one, as parent of the others.
    context: Context,
    carried: Option<TraceContext>,
    tool: Option<(Span, SystemTime)>,
    reply: Option<Span>,
    /// What the spans of request and answer have in common.
    messaging: Vec<KeyValue>,
}

impl Trace {
    /// Begins with the arrival of a message. Attributes are made only once the trace is known to be sampled.
    pub(crate) fn begin(
        tracer: &SdkTracer,
        identity: &Identity,
        destination: &Destination,
        delivery: &Delivery,
        parent: Option<&TraceContext>,
    ) -> Self {
        let sender = parent.and_then(w3c::remote);
        let context = sender.map_or_else(Context::new, |sender| Context::new().with_remote_span_context(sender));
        let builder = SpanBuilder::from_name("process").with_kind(SpanKind::Consumer);
        let mut process = tracer.build_with_context(builder, &context);
        let carried = w3c::carried(process.span_context());
        if !process.is_recording() {
            return Self::Carried(carried.or_else(|| parent.cloned()));
        }
        process.update_name(destination.span_name.clone());
        let messaging = messaging(identity, delivery);
        process.set_attributes(messaging.iter().cloned());
        process.set_attributes(consumer(destination, delivery));
        let context = Context::new().with_remote_span_context(process.span_context().clone());
        let tracer = tracer.clone();
        let process = Some(process);
        Self::Recorded(Box::new(Recorded { tracer, process, context, carried, tool: None, reply: None, messaging }))
    }

    /// Begins within another call, whose trace is `parent`.
    pub(crate) fn within(tracer: &SdkTracer, parent: Option<&TraceContext>) -> Self {
        let carried = parent.cloned();
        let Some(around) = parent.and_then(w3c::remote).filter(SpanContext::is_sampled) else {
            return Self::Carried(carried);
        };
        let (tracer, context) = (tracer.clone(), Context::new().with_remote_span_context(around));
        let (process, messaging) = (None, Vec::new());
        Self::Recorded(Box::new(Recorded { tracer, process, context, carried, tool: None, reply: None, messaging }))
    }

    pub(crate) fn trace_id(&self) -> Option<&str> {
        let context = match self {
            Self::Carried(context) => context.as_ref(),
            Self::Recorded(recorded) => recorded.carried.as_ref(),
        };
        context.map(TraceContext::trace_id)
    }

    /// Begins the tool's span. Returns what the tool's own requests carry.
    pub(crate) fn execute(
        &mut self,
        tool: &ToolDescriptor,
        call_id: &str,
        session_id: Option<&str>,
    ) -> Option<TraceContext> {
        let recorded = match self {
            Self::Carried(context) => return context.clone(),
            Self::Recorded(recorded) => recorded,
        };
        let attributes = [
            KeyValue::new("gen_ai.operation.name", "execute_tool"),
            KeyValue::new("gen_ai.tool.name", Arc::clone(&tool.name)),
            KeyValue::new("gen_ai.tool.type", "function"),
            KeyValue::new("gen_ai.tool.call.id", bounded(call_id).to_owned()),
            KeyValue::new("toolbus.tool.source", Arc::clone(&tool.source)),
        ];
        let session = session_id.map(|id| KeyValue::new("gen_ai.conversation.id", bounded(id).to_owned()));
        // This span stands for the request to the server, too: the conventions advise against a second one.
        let method = (tool.provider == MCP).then(|| KeyValue::new("mcp.method.name", "tools/call"));
        let started = SystemTime::now();
        let builder = SpanBuilder::from_name(format!("execute_tool {}", tool.name))
            .with_kind(SpanKind::Internal)
            .with_start_time(started)
            .with_attributes(attributes.into_iter().chain(session).chain(method));
        let span = recorded.tracer.build_with_context(builder, &recorded.context);
        let carried = w3c::carried(span.span_context());
        recorded.tool = Some((span, started));
        carried
    }

    pub(crate) fn executed(&mut self, failure: Failure, duration: Duration) {
        if let Self::Recorded(recorded) = self
            && let Some((mut span, started)) = recorded.tool.take()
        {
            fail(&mut span, failure.as_str());
            // Building the answer came after the tool's end.
            span.end_with_timestamp(started + duration);
        }
    }

    /// Begins the span of the answer. Returns what the answer carries.
    pub(crate) fn publish(&mut self, message_id: &str) -> Option<TraceContext> {
        let recorded = match self {
            Self::Carried(context) => return context.clone(),
            Self::Recorded(recorded) => recorded,
        };
        let attributes = [
            KeyValue::new("messaging.operation.name", "publish"),
            KeyValue::new("messaging.operation.type", "send"),
            KeyValue::new("messaging.destination.template", "reply"),
            KeyValue::new("messaging.message.id", bounded(message_id).to_owned()),
        ];
        let builder = SpanBuilder::from_name("publish reply")
            .with_kind(SpanKind::Producer)
            .with_attributes(recorded.messaging.iter().cloned().chain(attributes));
        let span = recorded.tracer.build_with_context(builder, &recorded.context);
        let carried = w3c::carried(span.span_context());
        recorded.reply = Some(span);
        carried
    }

    /// Ends the span of the answer.
    pub(crate) fn published(&mut self, failure: Option<&'static str>) {
        if let Self::Recorded(recorded) = self
            && let Some(mut span) = recorded.reply.take()
        {
            fail(&mut span, failure);
            span.end();
        }
    }

    /// Ends the trace here.
    pub(crate) fn finish(&mut self, failure: Failure) {
        if let Self::Recorded(recorded) = self {
            // A tool whose call goes back to its queue was never told to have run.
            drop(recorded.tool.take());
            drop(recorded.reply.take());
            if let Some(process) = &mut recorded.process {
                fail(process, failure.as_str());
                process.end();
            }
        }
    }
}

fn fail(span: &mut Span, error_type: Option<&'static str>) {
    if let Some(error_type) = error_type {
        span.set_attribute(KeyValue::new("error.type", error_type));
        span.set_status(Status::error(""));
    }
}

fn messaging(identity: &Identity, delivery: &Delivery) -> Vec<KeyValue> {
    let fixed = [
        KeyValue::new("messaging.system", identity.system),
        KeyValue::new("messaging.client.id", identity.client_id.clone()),
    ];
    let correlation_id = delivery.properties.correlation_id.as_deref();
    let conversation =
        correlation_id.map(|id| KeyValue::new("messaging.message.conversation_id", bounded(id).to_owned()));
    let address = identity.server_address.clone().map(|address| KeyValue::new("server.address", address));
    let port = identity.server_port.map(|port| KeyValue::new("server.port", i64::from(port)));
    fixed.into_iter().chain(conversation).chain(address).chain(port).collect()
}

fn consumer(destination: &Destination, delivery: &Delivery) -> impl Iterator<Item = KeyValue> {
    let fixed = [
        KeyValue::new("messaging.operation.name", "process"),
        KeyValue::new("messaging.operation.type", "process"),
        KeyValue::new("messaging.destination.name", Arc::clone(&destination.name)),
        KeyValue::new("messaging.rabbitmq.destination.routing_key", bounded(&delivery.routing_key).to_owned()),
        // The broker counts deliveries from one, and far from the end of the range.
        KeyValue::new(
            "messaging.rabbitmq.message.delivery_tag",
            i64::try_from(delivery.delivery_tag).unwrap_or(i64::MAX),
        ),
    ];
    let message_id = delivery.properties.message_id.as_deref();
    fixed.into_iter().chain(message_id.map(|id| KeyValue::new("messaging.message.id", bounded(id).to_owned())))
}
