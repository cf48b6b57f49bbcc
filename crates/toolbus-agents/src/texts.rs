//! Functions by which tools of several kinds read from a call and write what they found.

use jiff::Timestamp;
use serde::Serialize;
use toolbus_core::caller::AgentName;
use toolbus_core::failure::{Cause, ToolFailure};
use toolbus_core::tool::{ToolCall, ToolOutput};

/// The agent that calls, to which tasks belong.
///
/// # Errors
///
/// If the request names none.
pub(crate) fn agent(call: &ToolCall) -> Result<AgentName, ToolFailure> {
    call.caller.agent.clone().ok_or_else(|| {
        let text = "Tasks belong to an agent, and this request names none: send the agent's name in `rb-source`, or log in \
                    to the broker as the agent.";
        ToolFailure::new(Cause::NotAllowed, text)
    })
}

/// Formats results of a search as JSON in one line.
///
/// # Errors
///
/// If it cannot be written, which is a defect.
pub(crate) fn as_json(found: &impl Serialize) -> Result<ToolOutput, ToolFailure> {
    serde_json::to_string(found)
        .map(ToolOutput::text)
        .map_err(|error| ToolFailure::new(Cause::Failed, "The result could not be written.").with_detail(error))
}

/// Seconds since 1970 as RFC 3339; a time beyond its range is the last one.
pub(crate) fn rfc3339(seconds: u64) -> String {
    let time = i64::try_from(seconds).ok().and_then(|seconds| Timestamp::from_second(seconds).ok());
    time.unwrap_or(Timestamp::MAX).to_string()
}
