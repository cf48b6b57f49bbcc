//! Reply to the sender of a small request.

use std::sync::Arc;

use toolbus_protocol::{Code, Envelope, Random, ToolError, bounded, header, message_type};

use super::{ControlRefusal, ControlReply, ControlRequest};
use crate::bus::Delivery;
use crate::failure::{Status, verdict};
use crate::reply::{Reply, destination, whole_milliseconds};
use crate::telemetry::CallEnd;
use crate::tool::Effect;

/// The reply to a request, from the daemon of this name.
pub(super) fn message(source: &str, random: Random, request: &ControlRequest, content: ControlReply) -> Reply {
    let envelope = &request.envelope;
    let mut reply = Envelope::outgoing(content.message_type, source, random.id(), request.clock.wall())
        .replying_to(envelope, destination(envelope, &request.caller))
        .with_header(header::CONTENT_TRUST, header::TRUST_TOOL_OUTPUT);
    if let Some(provider) = content.provider {
        reply = reply.with_header(header::TOOL_PROVIDER, provider);
    }
    reply.trace.clone_from(&envelope.trace);
    let mut properties = reply.into_properties();
    properties.persistent = content.persistent;
    Reply {
        properties: properties.into(),
        body: content.body.into(),
        end: CallEnd { status: Status::Ok, cause: None },
        outcome: None,
        call_id: Arc::default(),
    }
}

/// The reply to a request that is refused.
pub(super) fn refusal(request: &ControlRequest, delivery: &Delivery, refused: &ControlRefusal) -> ControlReply {
    let id = request.envelope.message_id.as_deref().unwrap_or(&request.envelope.correlation_id);
    let error = ToolError {
        tool_call_id: bounded(id).to_owned(),
        tool_name: delivery.routing_key.to_string(),
        code: Code::InvalidArguments,
        message: format!("The request is not usable: {refused}."),
        is_retryable: false,
        retry_after_ms: None,
        outcome: None,
    };
    let error = match refused {
        ControlRefusal::Failed(failure) => {
            let verdict = verdict(failure.cause, Effect::ReadOnly, false);
            ToolError {
                code: verdict.code,
                message: failure.message.clone(),
                is_retryable: verdict.is_retryable,
                retry_after_ms: failure.retry_after.map(whole_milliseconds),
                outcome: verdict.outcome,
                ..error
            }
        }
        _ => error,
    };
    ControlReply::new(message_type::TOOL_ERROR, &error)
}
