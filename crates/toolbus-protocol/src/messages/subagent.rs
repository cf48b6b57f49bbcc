//! Tasks of sub-agents.

use serde::de::MapAccess;
use serde::{Deserialize, Serialize};

use super::fields::{MessageFields, read_fields, required, text};
use crate::json::ParseError;

/// A task, for the agents that volunteer for its pool: one of them works on it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SubagentTaskMessage {
    /// Id of the task, which reports and the whiteboard take.
    pub task_id: String,
    /// The session to work in.
    pub subagent_session_id: String,
    /// The session that it was given in.
    pub primary_session_id: String,
    /// The agent that gave it.
    pub agent: String,
    /// Description of what is to be done.
    pub description: String,
    /// Knowledge of the agent about the task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
    /// When it has to have ended, as RFC 3339 in UTC.
    pub deadline: String,
}

/// Says that a task is not to be worked on any more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SubagentCancelMessage {
    /// Id of the task.
    pub task_id: String,
    /// Why, for people.
    pub reason: String,
}

/// Progress of a sub-agent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(default))]
#[serde(rename_all = "camelCase")]
pub struct SubagentProgressMessage {
    /// Id of the task.
    pub task_id: String,
    /// The session of the sub-agent.
    pub subagent_session_id: String,
    /// The session of the agent that gave the task.
    pub primary_session_id: String,
    /// Description of what the sub-agent is doing.
    pub message: String,
    /// When, as RFC 3339.
    pub timestamp: String,
}

/// Outcome of a task.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(default))]
#[serde(rename_all = "camelCase")]
pub struct SubagentResultMessage {
    /// Id of the task.
    pub task_id: String,
    /// The session of the sub-agent.
    pub subagent_session_id: String,
    /// The session of the agent that gave the task.
    pub primary_session_id: String,
    /// Text on what the sub-agent found or did.
    pub output: String,
    /// Whether the sub-agent did what it was to do.
    pub is_success: bool,
    /// Reason that the sub-agent failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// When, as RFC 3339.
    pub timestamp: String,
}

impl SubagentProgressMessage {
    /// Reads a body as liberally as [`ToolInvokeRequest::parse`](crate::ToolInvokeRequest::parse) does.
    ///
    /// # Errors
    ///
    /// If the body is not a JSON object with a `taskId`.
    pub fn parse(body: &[u8]) -> Result<Self, ParseError> {
        required(read_fields(body)?, |message: &Self| &message.task_id, "taskId")
    }
}

impl SubagentResultMessage {
    /// Reads a body as liberally as [`ToolInvokeRequest::parse`](crate::ToolInvokeRequest::parse) does.
    ///
    /// # Errors
    ///
    /// If the body is not a JSON object with a `taskId`.
    pub fn parse(body: &[u8]) -> Result<Self, ParseError> {
        required(read_fields(body)?, |message: &Self| &message.task_id, "taskId")
    }
}

impl MessageFields for SubagentProgressMessage {
    const NAMES: &'static [&'static str] = &["taskId", "subagentSessionId", "primarySessionId", "message", "timestamp"];

    fn read<'de, A: MapAccess<'de>>(&mut self, name: &str, fields: &mut A) -> Result<(), A::Error> {
        match name {
            "taskId" => self.task_id = text(fields)?,
            "subagentSessionId" => self.subagent_session_id = text(fields)?,
            "primarySessionId" => self.primary_session_id = text(fields)?,
            "message" => self.message = text(fields)?,
            "timestamp" => self.timestamp = text(fields)?,
            _ => {}
        }
        Ok(())
    }
}

impl MessageFields for SubagentResultMessage {
    const NAMES: &'static [&'static str] =
        &["taskId", "subagentSessionId", "primarySessionId", "output", "isSuccess", "error", "timestamp"];

    fn read<'de, A: MapAccess<'de>>(&mut self, name: &str, fields: &mut A) -> Result<(), A::Error> {
        match name {
            "taskId" => self.task_id = text(fields)?,
            "subagentSessionId" => self.subagent_session_id = text(fields)?,
            "primarySessionId" => self.primary_session_id = text(fields)?,
            "output" => self.output = text(fields)?,
            "isSuccess" => self.is_success = fields.next_value::<Option<bool>>()?.unwrap_or_default(),
            "error" => self.error = fields.next_value()?,
            "timestamp" => self.timestamp = text(fields)?,
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_read_as_the_peers_write_them_and_in_any_case() {
        let body =
            br#"{"TaskId":"t","subagentSessionId":"s","primarySessionId":null,"output":"42","isSuccess":true,"x":1}"#;
        let result = SubagentResultMessage::parse(body).unwrap();
        assert_eq!((&*result.task_id, &*result.output, result.is_success, result.error), ("t", "42", true, None));
        let body = br#"{"taskId":"t","message":"reading","timestamp":"2026-01-01T00:00:00Z"}"#;
        assert_eq!(SubagentProgressMessage::parse(body).unwrap().message, "reading");
        for body in [&b"{}"[..], br#"{"taskId":""}"#, b"[]", b"", br#"{"taskId":"a","TASKID":"b"}"#, br#"{"taskId":1}"#]
        {
            assert!(SubagentResultMessage::parse(body).is_err() && SubagentProgressMessage::parse(body).is_err());
        }
    }
}
