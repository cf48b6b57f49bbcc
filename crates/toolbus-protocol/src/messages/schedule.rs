//! Tasks at times that agents gave.

use serde::{Deserialize, Serialize};

use super::{ToolError, ToolInvokeResponse};

/// Tells an agent that a task that it scheduled is due, or what became of the call that it scheduled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ScheduledTaskMessage {
    /// Name of the task.
    pub task_name: String,
    /// Description of what is to be done; of a task with a call, its purpose.
    pub description: String,
    /// The time that it was scheduled for, as RFC 3339 in UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due_at: Option<String>,
    /// The result of the call that was scheduled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_response: Option<ToolInvokeResponse>,
    /// Why that call has no result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_error: Option<ToolError>,
}
