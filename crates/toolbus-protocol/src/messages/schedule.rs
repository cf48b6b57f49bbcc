//! Tasks at times that agents gave.

use serde::{Deserialize, Serialize};

/// Tells an agent that a task that it scheduled is due.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ScheduledTaskMessage {
    /// Its name.
    pub task_name: String,
    /// What is to be done.
    pub description: String,
    /// The time that it was scheduled for, as RFC 3339 in UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due_at: Option<String>,
}
