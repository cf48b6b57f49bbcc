//! The spans of one call, and the trace context that messages carry.

use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use opentelemetry::trace::{
    Span as _, SpanBuilder, SpanContext, SpanId, SpanKind, Status, TraceContextExt, TraceFlags, TraceId, TraceState,
    Tracer,
};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::{SdkTracer, Span};
use toolbus_core::Clock;
use toolbus_core::bus::Delivery;
use toolbus_core::caller::Caller;
use toolbus_core::tool::ToolDescriptor;
use toolbus_protocol::{TraceContext, bounded};

use crate::attributes::ErrorLabel;
use crate::destination::Destination;
use crate::settings::BusIdentity;

/// The provider of tools of MCP servers.
const MCP: &str = "mcp";

/// The trace of one call.
pub(crate) enum Trace {
    /// Nothing is recorded; this context goes on to tools and replies.
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
    /// Attributes that the spans of request and reply have in common.
    messaging: Vec<KeyValue>,
}

impl Trace {
    /// Begins with the arrival of a message. Attributes are made only once the trace is known to be sampled.
    pub(crate) fn begin(
        tracer: &SdkTracer,
        identity: &BusIdentity,
        destination: &Destination,
        delivery: &Delivery,
        parent: Option<&TraceContext>,
    ) -> Self {
        let sender = parent.and_then(remote);
        let context = sender.map_or_else(Context::new, |sender| Context::new().with_remote_span_context(sender));
        let builder = SpanBuilder::from_name("process").with_kind(SpanKind::Consumer);
        let mut process = tracer.build_with_context(builder, &context);
        let carried = carried(process.span_context());
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
        let Some(around) = parent.and_then(remote).filter(SpanContext::is_sampled) else {
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

    /// The id of a trace whose spans are exported.
    pub(crate) fn sampled_id(&self) -> Option<&str> {
        self.trace_id().filter(|_| matches!(self, Self::Recorded(_)))
    }

    /// Begins the tool's span. Returns what the tool's own requests carry.
    pub(crate) fn execute(
        &mut self,
        tool: &ToolDescriptor,
        call_id: &str,
        caller: &Caller,
        clock: Clock,
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
        let session = caller.session.as_deref();
        let session = session.map(|id| KeyValue::new("gen_ai.conversation.id", bounded(id).to_owned()));
        // This span stands for the request to the server, too: the conventions advise against a second one.
        let method = (tool.provider == MCP).then(|| KeyValue::new("mcp.method.name", "tools/call"));
        let started = clock.wall();
        let builder = SpanBuilder::from_name(format!("execute_tool {}", tool.name))
            .with_kind(SpanKind::Internal)
            .with_start_time(started)
            .with_attributes(attributes.into_iter().chain(session).chain(method).chain(agent(caller)));
        let span = recorded.tracer.build_with_context(builder, &recorded.context);
        let carried = carried(span.span_context());
        recorded.tool = Some((span, started));
        carried
    }

    pub(crate) fn executed(&mut self, failure: ErrorLabel, duration: Duration) {
        if let Self::Recorded(recorded) = self
            && let Some((mut span, started)) = recorded.tool.take()
        {
            fail(&mut span, failure.as_str());
            // Building the reply came after the tool's end.
            span.end_with_timestamp(started + duration);
        }
    }

    /// Begins the span of the reply. Returns the trace context of the reply.
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
        let carried = carried(span.span_context());
        recorded.reply = Some(span);
        carried
    }

    /// Ends the span of the reply.
    pub(crate) fn published(&mut self, failure: Option<&'static str>) {
        if let Self::Recorded(recorded) = self
            && let Some(mut span) = recorded.reply.take()
        {
            fail(&mut span, failure);
            span.end();
        }
    }

    /// Ends the trace here.
    pub(crate) fn finish(&mut self, failure: ErrorLabel, caller: Option<&Caller>) {
        if let Self::Recorded(recorded) = self {
            // The dispatcher reports no end of a tool whose call is requeued.
            drop(recorded.tool.take());
            drop(recorded.reply.take());
            if let Some(process) = &mut recorded.process {
                process.set_attributes(caller.and_then(agent));
                fail(process, failure.as_str());
                process.end();
            }
        }
    }
}

/// The agent that calls, if it is known.
fn agent(caller: &Caller) -> Option<KeyValue> {
    caller.agent.as_ref().map(|agent| KeyValue::new("gen_ai.agent.name", agent.as_str().to_owned()))
}

fn fail(span: &mut Span, error_type: Option<&'static str>) {
    if let Some(error_type) = error_type {
        span.set_attribute(KeyValue::new("error.type", error_type));
        span.set_status(Status::error(""));
    }
}

fn messaging(identity: &BusIdentity, delivery: &Delivery) -> Vec<KeyValue> {
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

/// The sender's span, as a remote parent.
pub(crate) fn remote(context: &TraceContext) -> Option<SpanContext> {
    let trace_id = TraceId::from_hex(context.trace_id()).ok()?;
    let span_id = SpanId::from_hex(context.span_id()).ok()?;
    let (_, flags) = context.traceparent().rsplit_once('-')?;
    let flags = TraceFlags::new(u8::from_str_radix(flags, 16).ok()?);
    // Vendor data that cannot be read is no reason to lose the parent.
    let state = context.tracestate().and_then(|state| TraceState::from_str(state).ok()).unwrap_or_default();
    let remote = SpanContext::new(trace_id, span_id, flags, true, state);
    remote.is_valid().then_some(remote)
}

/// Returns the trace context that a message carries to continue `span`.
pub(crate) fn carried(span: &SpanContext) -> Option<TraceContext> {
    let flags = span.trace_flags().to_u8();
    let parent = format!("00-{}-{}-{flags:02x}", span.trace_id(), span.span_id());
    let state = span.trace_state().header();
    TraceContext::parse(&parent, Some(&state))
}

#[cfg(test)]
mod tests {
    use toolbus_protocol::TraceContext;

    use super::{carried, remote};

    #[test]
    fn a_context_survives_the_way_in_and_out() {
        for flags in ["00", "01", "03"] {
            let parent = format!("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-{flags}");
            let context = TraceContext::parse(&parent, Some("vendor=1,other=2")).unwrap();
            assert_eq!(carried(&remote(&context).unwrap()), Some(context));
        }
    }

    #[test]
    fn unreadable_vendor_data_is_dropped_and_the_parent_kept() {
        let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let context = TraceContext::parse(parent, Some("no equals sign")).unwrap();
        assert_eq!(carried(&remote(&context).unwrap()), TraceContext::parse(parent, None));
    }
}
