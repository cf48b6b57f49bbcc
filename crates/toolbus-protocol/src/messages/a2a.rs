//! Agents and the tasks that they give each other.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::json::{ParseError, parse_object};

/// Tells all others of an agent: on `discovery.announce`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct AgentCard {
    /// The agent's name.
    pub agent_name: String,
    /// Description of the agent.
    pub description: Option<String>,
    /// Version of the agent.
    pub version: Option<String>,
    /// Skills of the agent.
    pub skills: Vec<AgentSkill>,
    /// Whether the agent goes away.
    pub is_deregistering: bool,
    /// Where it is reached over HTTP, in lists that an operator writes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(skip))]
    pub url: Option<String>,
    /// The header by which it is told who calls, in lists that an operator writes.
    #[serde(skip_serializing)]
    #[cfg_attr(feature = "schema", schemars(skip))]
    pub auth_header_name: Option<String>,
    /// That header's value in Base64.
    #[serde(skip_serializing)]
    #[cfg_attr(feature = "schema", schemars(skip))]
    pub auth_header_value_base64: Option<String>,
}

/// Skill of an agent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct AgentSkill {
    /// The name that tasks give.
    pub id: String,
    /// The name for people.
    pub name: String,
    /// Description of what the skill does.
    pub description: Option<String>,
    /// Words that it is found by.
    pub tags: Vec<String>,
    /// Examples of messages.
    pub examples: Vec<String>,
}

/// Gives an agent a task: on `agent.task.{agent}`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct AgentTaskRequest {
    /// Id of the task.
    pub task_id: String,
    /// The conversation that it belongs to.
    pub context_id: Option<String>,
    /// The skill that is asked for.
    pub skill: String,
    /// Message that says what is to be done.
    pub message: AgentMessage,
    /// Further details.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Map<String, Value>>,
}

/// Message to an agent, or by it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct AgentMessage {
    /// `user` or `agent`.
    pub role: String,
    /// Parts of the message.
    pub parts: Vec<AgentMessagePart>,
}

/// A part of a message or of a result.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct AgentMessagePart {
    /// `text` or `data`.
    pub kind: String,
    /// The text of a `text`.
    pub text: Option<String>,
    /// The data of a `data`, as a string.
    pub data: Option<String>,
    /// Type of the data.
    pub mime_type: Option<String>,
}

/// A named part of a result.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct AgentArtifact {
    /// Name of the artifact.
    pub name: String,
    /// Description of the artifact.
    pub description: Option<String>,
    /// Parts of the artifact.
    pub parts: Vec<AgentMessagePart>,
}

/// Ending of a task, or notice that the task waits for input: to the topic of the request's `reply_to`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct AgentTaskResult {
    /// Id of the task.
    pub task_id: String,
    /// The conversation that it belongs to.
    pub context_id: Option<String>,
    /// State of the task.
    pub state: AgentTaskState,
    /// Artifacts that were made.
    pub artifacts: Vec<AgentArtifact>,
    /// Message of the agent about the task.
    pub message: Option<AgentMessage>,
}

/// Progress of a task: on `agent.task.status`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct AgentTaskStatusUpdate {
    /// Id of the task.
    pub task_id: String,
    /// The conversation that it belongs to.
    pub context_id: Option<String>,
    /// State of the task.
    pub state: AgentTaskState,
    /// Message of the agent about the task.
    pub message: Option<AgentMessage>,
}

/// Why a task has no result, or is not cancelled.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct AgentTaskError {
    /// Id of the task.
    pub task_id: String,
    /// The conversation that it belongs to.
    pub context_id: Option<String>,
    /// `task_not_found`, `task_not_cancelable`, `skill_not_supported`, `execution_failed`, `invalid_request`, or one that
    /// is not known.
    pub code: String,
    /// Why.
    pub message: String,
    /// Whether the same task may succeed later.
    pub is_retryable: bool,
}

/// Asks an agent to give up a task: on `agent.task.cancel.{agent}`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct AgentTaskCancelRequest {
    /// Id of the task.
    pub task_id: String,
    /// The conversation that it belongs to.
    pub context_id: Option<String>,
}

/// The state of a task, on the wire a number: 0 submitted, 1 working, 2 input required, 3 completed, 4 failed, 5 canceled.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(extend("enum" = [0, 1, 2, 3, 4, 5])))]
#[serde(try_from = "u8", into = "u8")]
pub enum AgentTaskState {
    /// The agent has not begun.
    #[default]
    Submitted,
    /// The agent works on it.
    Working,
    /// The agent waits for input.
    InputRequired,
    /// Task that is done.
    Completed,
    /// Task that failed.
    Failed,
    /// Task that was cancelled.
    Canceled,
}

impl AgentTaskError {
    /// There is no such task.
    pub const TASK_NOT_FOUND: &'static str = "task_not_found";
    /// The agent does not cancel it.
    pub const TASK_NOT_CANCELABLE: &'static str = "task_not_cancelable";
    /// The agent has no such skill.
    pub const SKILL_NOT_SUPPORTED: &'static str = "skill_not_supported";
    /// The agent tried, and failed.
    pub const EXECUTION_FAILED: &'static str = "execution_failed";
    /// The request cannot be read.
    pub const INVALID_REQUEST: &'static str = "invalid_request";
}

impl AgentTaskState {
    const ALL: [Self; 6] =
        [Self::Submitted, Self::Working, Self::InputRequired, Self::Completed, Self::Failed, Self::Canceled];

    /// Whether nothing comes after it.
    #[must_use]
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Canceled)
    }

    /// Returns the name of the state in texts.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Submitted => "submitted",
            Self::Working => "working",
            Self::InputRequired => "input required",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Canceled => "canceled",
        }
    }
}

impl From<AgentTaskState> for u8 {
    fn from(state: AgentTaskState) -> Self {
        state as Self
    }
}

impl TryFrom<u8> for AgentTaskState {
    type Error = String;

    fn try_from(number: u8) -> Result<Self, String> {
        Self::ALL.get(usize::from(number)).copied().ok_or_else(|| format!("{number} is no state of a task"))
    }
}

impl AgentMessage {
    /// A message of one text.
    #[must_use]
    pub fn text(role: &str, text: impl Into<String>) -> Self {
        Self { role: role.to_owned(), parts: vec![AgentMessagePart::text(text)] }
    }
}

impl AgentMessagePart {
    /// A text.
    #[must_use]
    pub fn text(text: impl Into<String>) -> Self {
        Self { kind: "text".to_owned(), text: Some(text.into()), ..Self::default() }
    }
}

impl AgentTaskResult {
    /// Returns the agent's message and the parts of its artifacts as one text. Empty if there is neither.
    #[must_use]
    pub fn text(&self) -> String {
        let message = self.message.iter().flat_map(|message| &message.parts);
        let made = self.artifacts.iter().flat_map(|artifact| &artifact.parts);
        let texts: Vec<&str> =
            message.chain(made).filter_map(|part| part.text.as_deref().or(part.data.as_deref())).collect();
        texts.join("\n\n")
    }
}

/// A message between agents, which is read with names of fields in any case, unknown fields and nulls ignored.
pub trait AgentMessageBody: DeserializeOwned {
    /// The fields that must be there and not be empty.
    const REQUIRED: &'static [&'static str];

    /// Reads a body.
    ///
    /// # Errors
    ///
    /// If it is not a JSON object, is too deep, names a field twice, lacks one, or has one of another type.
    fn parse(body: &[u8]) -> Result<Self, ParseError> {
        let mut value = Value::Object(parse_object(body)?);
        fold(&mut value)?;
        for name in Self::REQUIRED {
            if value.get(name).is_none_or(|field| field.as_str() == Some("")) {
                return Err(ParseError::Missing(name));
            }
        }
        Ok(serde_json::from_value(value)?)
    }
}

impl AgentMessageBody for AgentCard {
    const REQUIRED: &'static [&'static str] = &["agentName"];
}

impl AgentMessageBody for AgentTaskRequest {
    const REQUIRED: &'static [&'static str] = &["taskId", "skill", "message"];
}

impl AgentMessageBody for AgentTaskResult {
    const REQUIRED: &'static [&'static str] = &["taskId", "state"];
}

impl AgentMessageBody for AgentTaskStatusUpdate {
    const REQUIRED: &'static [&'static str] = &["taskId", "state"];
}

impl AgentMessageBody for AgentTaskError {
    const REQUIRED: &'static [&'static str] = &["taskId", "code"];
}

impl AgentMessageBody for AgentTaskCancelRequest {
    const REQUIRED: &'static [&'static str] = &["taskId"];
}

/// Fields that are known, as they are written.
const KNOWN: [&str; 25] = [
    "agentName",
    "artifacts",
    "authHeaderName",
    "authHeaderValueBase64",
    "code",
    "contextId",
    "data",
    "description",
    "examples",
    "id",
    "isDeregistering",
    "isRetryable",
    "kind",
    "message",
    "metadata",
    "mimeType",
    "name",
    "parts",
    "role",
    "skill",
    "skills",
    "state",
    "tags",
    "taskId",
    "text",
];
/// Further fields of a card.
const OF_CARDS: [&str; 2] = ["url", "version"];

/// Writes known fields as they are known, and drops those that are null.
fn fold(value: &mut Value) -> Result<(), ParseError> {
    match value {
        Value::Array(items) => items.iter_mut().try_for_each(fold),
        Value::Object(fields) => {
            for (name, mut field) in std::mem::take(fields) {
                if field.is_null() {
                    continue;
                }
                let known = KNOWN.iter().chain(&OF_CARDS).find(|known| known.eq_ignore_ascii_case(&name));
                // What is in it is the agents' own.
                if known != Some(&"metadata") {
                    fold(&mut field)?;
                }
                let name = known.map_or(name, |known| (*known).to_owned());
                if fields.contains_key(&name) {
                    return Err(ParseError::NotJson(format!("duplicate member `{name}`")));
                }
                fields.insert(name, field);
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;

    use super::*;

    fn written(message: &impl Serialize) -> String {
        serde_json::to_string(message).unwrap()
    }

    #[test]
    fn a_card_is_read_in_any_case_without_null_and_unknown_fields() {
        let body = br#"{"AgentName":"Bob","description":null,"skills":[{"Id":"sum","name":"Sum","tags":null,"X":1}],"isDeregistering":false,"supportsStreaming":true}"#;
        let card = AgentCard::parse(body).unwrap();
        assert_snapshot!(written(&card), @r#"{"agentName":"Bob","description":null,"version":null,"skills":[{"id":"sum","name":"Sum","description":null,"tags":[],"examples":[]}],"isDeregistering":false}"#);
    }

    #[test]
    fn a_body_with_a_duplicate_or_missing_field_is_refused() {
        let error = |body: &str| AgentCard::parse(body.as_bytes()).unwrap_err().to_string();
        assert_eq!(error(r#"{"agentName":"a","AgentName":"b"}"#), "duplicate member `agentName`");
        assert_eq!(error(r#"{"agentName":""}"#), "missing member `agentName`");
        assert_eq!(error("[]"), "expected a JSON object, found an array");
        let result = AgentTaskResult::parse(br#"{"taskId":"1","state":9}"#).unwrap_err().to_string();
        assert!(result.contains("9 is no state of a task"), "{result}");
    }

    #[test]
    fn states_are_numbers_and_nulls_are_written() {
        let update =
            AgentTaskStatusUpdate { task_id: "1".into(), state: AgentTaskState::Working, ..Default::default() };
        assert_snapshot!(written(&update), @r#"{"taskId":"1","contextId":null,"state":1,"message":null}"#);
        let request = AgentTaskRequest {
            task_id: "1".into(),
            skill: "sum".into(),
            message: AgentMessage::text("user", "Add"),
            ..Default::default()
        };
        assert_snapshot!(written(&request), @r#"{"taskId":"1","contextId":null,"skill":"sum","message":{"role":"user","parts":[{"kind":"text","text":"Add","data":null,"mimeType":null}]}}"#);
        assert_eq!(AgentTaskRequest::parse(written(&request).as_bytes()), Ok(request));
    }

    #[test]
    fn a_credential_of_a_card_is_never_written() {
        let body = br#"{"agentName":"Bob","url":"https://a.example","authHeaderName":"x-key","authHeaderValueBase64":"czNjcmV0"}"#;
        let card = AgentCard::parse(body).unwrap();
        assert_eq!(card.auth_header_name.as_deref(), Some("x-key"));
        assert!(!written(&card).contains("key"), "{}", written(&card));
    }
}
