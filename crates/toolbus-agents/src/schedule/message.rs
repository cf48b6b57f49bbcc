//! The message that an agent receives of a task.

use bytes::Bytes;
use toolbus_core::bus::{Outgoing, Target};
use toolbus_core::failure::{Effect, ToolFailure};
use toolbus_core::tool::ToolOutput;
use toolbus_core::{Clock, milliseconds};
use toolbus_protocol::{
    ContentBlock, Envelope, ScheduledTaskMessage, ToolError, ToolInvokeResponse, header, message_type, topic,
};

use super::task::Task;
use crate::texts::rfc3339;

/// The profile under which agents do what was scheduled, and under which scheduled calls run.
pub(super) const PROFILE: &str = "scheduled";

/// Result of a call.
pub(super) type CallResult = Result<ToolOutput, ToolFailure>;

/// The body for a time, with what became of the call of that time if the task makes calls.
pub(super) fn body(task: &Task, time: u64, result: Option<CallResult>) -> Bytes {
    let (tool_response, tool_error) = match result {
        None => (None, None),
        Some(Ok(output)) => (Some(response(task, time, output)), None),
        Some(Err(failure)) => (None, Some(error(task, time, failure))),
    };
    let message = ScheduledTaskMessage {
        task_name: task.name.clone(),
        description: task.description.clone(),
        due_at: Some(rfc3339(time)),
        tool_response,
        tool_error,
    };
    // Strings, numbers and enums, which cannot fail.
    serde_json::to_vec(&message).unwrap_or_default().into()
}

/// The message for a time, from the daemon of this name.
pub(super) fn message(task: &Task, time: u64, body: Bytes, source: &str, clock: Clock) -> Outgoing {
    let agent = task.agent.as_str();
    let kind = message_type::SCHEDULED_TASK_MESSAGE;
    let mut envelope =
        Envelope::outgoing(kind, source, task.fire_key(time), clock.wall()).with_header(header::TOOL_PROFILE, PROFILE);
    if task.tool.is_some() {
        envelope = envelope.with_header(header::CONTENT_TRUST, header::TRUST_TOOL_OUTPUT);
    }
    envelope.destination = Some(agent.to_owned());
    Outgoing {
        target: Target::Topic(topic::scheduled_task(agent)),
        mandatory: true,
        proven: false,
        properties: envelope.into_properties().into(),
        body,
    }
}

fn response(task: &Task, time: u64, output: ToolOutput) -> ToolInvokeResponse {
    let ToolOutput { content, mut blocks, is_error, .. } = output;
    blocks.retain(|block| !ContentBlock::is_structured(block));
    let content_blocks = (!blocks.is_empty()).then_some(blocks);
    ToolInvokeResponse {
        tool_call_id: task.fire_key(time),
        tool_name: tool_name(task),
        content,
        content_blocks,
        is_error,
    }
}

fn error(task: &Task, time: u64, failure: ToolFailure) -> ToolError {
    let verdict = failure.verdict(Effect::Undeclared, false);
    let ToolFailure { message, retry_after, .. } = failure;
    ToolError {
        tool_call_id: task.fire_key(time),
        tool_name: tool_name(task),
        code: verdict.code,
        message,
        is_retryable: verdict.is_retryable,
        retry_after_ms: retry_after.map(milliseconds),
        outcome: verdict.outcome,
    }
}

fn tool_name(task: &Task) -> String {
    task.tool.as_ref().map(|call| call.name.clone()).unwrap_or_default()
}
