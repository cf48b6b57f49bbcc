use schemars::generate::SchemaSettings;
use schemars::transform::RecursiveTransform;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

use super::envelope;
use crate::{
    AgentCard, AgentMessageBody, AgentTaskCancelRequest, AgentTaskError, AgentTaskRequest, AgentTaskResult,
    AgentTaskStatusUpdate, McpAnswerQuestionResponse, McpEchoed, McpGetPromptResponse, McpGetServiceDetailsRequest,
    McpGetServiceDetailsResponse, McpListResourcesResponse, McpMetadataRefreshRequest, McpReadResourceResponse,
    McpRegisterServerRequest, McpRegisterServerResponse, McpServersIndexed, McpUnregisterServerRequest,
    McpUnregisterServerResponse, Ping, Pong, ScheduledTaskMessage, ScriptInvokeRequest, ScriptInvokeResponse,
    SessionEnd, SubagentCancelMessage, SubagentProgressMessage, SubagentResultMessage, SubagentTaskMessage,
    ToolAnnouncement, ToolCancelRequest, ToolCancelResponse, ToolError, ToolHintsRequest, ToolHintsResponse,
    ToolInvokeRequest, ToolInvokeResponse, ToolListRequest, ToolListResponse, ToolProgress, ToolsChanged, message_type,
};

/// A type of messages.
pub(super) struct MessageSchema {
    /// The property `type`.
    pub(super) name: &'static str,
    schema: fn(&mut SchemaGenerator) -> Schema,
    /// Fields that must be there, of a message that a daemon reads; of what it only writes, all that it always writes.
    required: Option<&'static [&'static str]>,
}

impl MessageSchema {
    const fn read<T: JsonSchema>(name: &'static str, required: &'static [&'static str]) -> Self {
        Self { name, schema: SchemaGenerator::subschema_for::<T>, required: Some(required) }
    }

    const fn read_by_agents<T: JsonSchema + AgentMessageBody>(name: &'static str) -> Self {
        Self::read::<T>(name, T::REQUIRED)
    }

    const fn written<T: JsonSchema>(name: &'static str) -> Self {
        Self { name, schema: SchemaGenerator::subschema_for::<T>, required: None }
    }

    /// Whether a daemon reads it, as well as perhaps writing it.
    pub(super) const fn is_read(&self) -> bool {
        self.required.is_some()
    }

    /// The message's name among the definitions.
    pub(super) fn key(&self) -> &'static str {
        key(self.name)
    }
}

/// The last part of a type's name.
pub(super) fn key(name: &'static str) -> &'static str {
    name.rsplit('.').next().unwrap_or(name)
}

/// Every type of messages.
pub(super) const MESSAGES: &[MessageSchema] = &[
    MessageSchema::read::<ToolInvokeRequest>(message_type::TOOL_INVOKE_REQUEST, &["toolName"]),
    MessageSchema::written::<ToolInvokeResponse>(message_type::TOOL_INVOKE_RESPONSE),
    MessageSchema::written::<ToolError>(message_type::TOOL_ERROR),
    MessageSchema::written::<ToolProgress>(message_type::TOOL_PROGRESS),
    MessageSchema::read::<ToolCancelRequest>(message_type::TOOL_CANCEL_REQUEST, &["toolCallId"]),
    MessageSchema::written::<ToolCancelResponse>(message_type::TOOL_CANCEL_RESPONSE),
    MessageSchema::read::<ToolListRequest>(message_type::TOOL_LIST_REQUEST, &[]),
    MessageSchema::written::<ToolListResponse>(message_type::TOOL_LIST_RESPONSE),
    MessageSchema::read::<ToolHintsRequest>(message_type::TOOL_HINTS_REQUEST, &["text"]),
    MessageSchema::written::<ToolHintsResponse>(message_type::TOOL_HINTS_RESPONSE),
    MessageSchema::read::<Ping>(message_type::PING, &[]),
    MessageSchema::written::<Pong>(message_type::PONG),
    MessageSchema::read::<SessionEnd>(message_type::SESSION_END, &["sessionId"]),
    MessageSchema::read::<ToolAnnouncement>(message_type::TOOL_ANNOUNCEMENT, &[]),
    MessageSchema::written::<ToolsChanged>(message_type::TOOLS_CHANGED),
    MessageSchema::written::<ScheduledTaskMessage>(message_type::SCHEDULED_TASK_MESSAGE),
    MessageSchema::read_by_agents::<AgentCard>(message_type::AGENT_CARD),
    MessageSchema::read_by_agents::<AgentTaskRequest>(message_type::AGENT_TASK_REQUEST),
    MessageSchema::read_by_agents::<AgentTaskResult>(message_type::AGENT_TASK_RESULT),
    MessageSchema::read_by_agents::<AgentTaskStatusUpdate>(message_type::AGENT_TASK_STATUS_UPDATE),
    MessageSchema::read_by_agents::<AgentTaskError>(message_type::AGENT_TASK_ERROR),
    MessageSchema::read_by_agents::<AgentTaskCancelRequest>(message_type::AGENT_TASK_CANCEL_REQUEST),
    MessageSchema::written::<SubagentTaskMessage>(message_type::SUBAGENT_TASK_MESSAGE),
    MessageSchema::written::<SubagentCancelMessage>(message_type::SUBAGENT_CANCEL_MESSAGE),
    MessageSchema::read::<SubagentProgressMessage>(message_type::SUBAGENT_PROGRESS_MESSAGE, &["taskId"]),
    MessageSchema::read::<SubagentResultMessage>(message_type::SUBAGENT_RESULT_MESSAGE, &["taskId"]),
    MessageSchema::read::<ScriptInvokeRequest>(message_type::SCRIPT_INVOKE_REQUEST, &["script"]),
    MessageSchema::written::<ScriptInvokeResponse>(message_type::SCRIPT_INVOKE_RESPONSE),
    MessageSchema::written::<McpServersIndexed>(message_type::MCP_SERVERS_INDEXED),
    MessageSchema::read::<McpMetadataRefreshRequest>(message_type::MCP_METADATA_REFRESH_REQUEST, &[]),
    MessageSchema::read::<McpGetServiceDetailsRequest>(message_type::MCP_GET_SERVICE_DETAILS_REQUEST, &["serverName"]),
    MessageSchema::written::<McpGetServiceDetailsResponse>(message_type::MCP_GET_SERVICE_DETAILS_RESPONSE),
    MessageSchema::read::<McpRegisterServerRequest>(message_type::MCP_REGISTER_SERVER_REQUEST, &["serverName"]),
    MessageSchema::written::<McpRegisterServerResponse>(message_type::MCP_REGISTER_SERVER_RESPONSE),
    MessageSchema::read::<McpUnregisterServerRequest>(message_type::MCP_UNREGISTER_SERVER_REQUEST, &["serverName"]),
    MessageSchema::written::<McpUnregisterServerResponse>(message_type::MCP_UNREGISTER_SERVER_RESPONSE),
    MessageSchema::read::<McpEchoed>(message_type::MCP_GET_PROMPT_REQUEST, &[]),
    MessageSchema::written::<McpGetPromptResponse>(message_type::MCP_GET_PROMPT_RESPONSE),
    MessageSchema::read::<McpEchoed>(message_type::MCP_LIST_RESOURCES_REQUEST, &[]),
    MessageSchema::written::<McpListResourcesResponse>(message_type::MCP_LIST_RESOURCES_RESPONSE),
    MessageSchema::read::<McpEchoed>(message_type::MCP_READ_RESOURCE_REQUEST, &[]),
    MessageSchema::written::<McpReadResourceResponse>(message_type::MCP_READ_RESOURCE_RESPONSE),
    MessageSchema::read::<McpEchoed>(message_type::MCP_ANSWER_QUESTION_REQUEST, &[]),
    MessageSchema::written::<McpAnswerQuestionResponse>(message_type::MCP_ANSWER_QUESTION_RESPONSE),
    MessageSchema::read::<Map<String, Value>>(message_type::MCP_RELEASE_SESSION_QUESTIONS_REQUEST, &[]),
];

/// Builds the JSON Schemas of all messages, in `$defs` of one document by the last parts of their types' names, with
/// those of the properties of AMQP and of the headers.
#[must_use]
pub fn messages() -> Value {
    let settings = || SchemaSettings::draft2020_12().with_transform(RecursiveTransform(for_readers));
    let mut read = settings().for_deserialize().into_generator();
    let mut written = settings().for_serialize().into_generator();
    let mut definitions = envelope::definitions();
    for message in MESSAGES {
        let generator = if message.is_read() { &mut read } else { &mut written };
        definitions.insert(message.key().to_owned(), (message.schema)(generator).into());
    }
    // A message is a reference until here: to its own definition, or to one that it shares with others.
    definitions.extend(read.take_definitions(true));
    let mut written = written.take_definitions(true);
    written.values_mut().for_each(as_written);
    definitions.extend(written);
    for message in MESSAGES {
        if let (Some(required), Some(definition)) = (message.required, definitions.get_mut(message.key())) {
            require(definition, required);
        }
    }
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Messages of Toolbus",
        "description": "The body of a message whose AMQP property `type` is `RockBot.Tools.ToolError` is a `ToolError` here, and so on for each type. Of a message that Toolbus only writes, the schema says what is written; of one that it reads, what is accepted. Beyond that, it reads the names of fields in any case, takes a null for an absent field, ignores unknown fields, and refuses an object that names a field twice or is nested deeper than 64. The specification is docs/wire.md.",
        "$defs": definitions,
    })
}

/// Sets the required fields: types define those of written messages, and the parsers those of the rest.
fn require(definition: &mut Value, required: &[&str]) {
    for (_, field) in fields(definition).filter(|(name, _)| required.contains(&name.as_str())) {
        never_null(field);
    }
    if let Some(schema) = definition.as_object_mut().filter(|schema| schema.contains_key("properties")) {
        schema.remove("required");
        if !required.is_empty() {
            schema.insert("required".to_owned(), json!(required));
        }
    }
}

/// Distinguishes fields that are left out from those that are written as null, which the types do not.
fn as_written(definition: &mut Value) {
    let required = definition.get("required").cloned().unwrap_or_default();
    let is_required = |name: &str| required.as_array().is_some_and(|names| names.iter().any(|known| known == name));
    for (name, field) in fields(definition) {
        if is_required(name) {
            field.remove("default");
        } else {
            never_null(field);
        }
    }
}

fn fields(definition: &mut Value) -> impl Iterator<Item = (&String, &mut Map<String, Value>)> {
    let fields = definition.get_mut("properties").and_then(Value::as_object_mut).into_iter().flatten();
    fields.filter_map(|(name, field)| Some((name, field.as_object_mut()?)))
}

/// Makes a schema refuse null, and have no default.
fn never_null(field: &mut Map<String, Value>) {
    field.remove("default");
    if let Some(Value::Array(kinds)) = field.get_mut("type") {
        kinds.retain(|kind| kind != "null");
        if let [kind] = kinds.as_slice() {
            let kind = kind.clone();
            field.insert("type".to_owned(), kind);
        }
    }
    if let Some(Value::Array(alternatives)) = field.remove("anyOf") {
        let mut others = alternatives.into_iter().filter(|one| one.get("type").is_none_or(|kind| kind != "null"));
        if let Some(Value::Object(other)) = others.next() {
            field.extend(other);
        }
    }
}

/// Makes a schema fit for readers of other languages: without links of Rust's documentation, and with an enumeration
/// instead of alternative constants, of which generators of types make a type each.
fn for_readers(schema: &mut Schema) {
    if let Some(Value::String(description)) = schema.get_mut("description") {
        let paragraphs = description.split("\n\n").map(|paragraph| paragraph.replace('\n', " "));
        *description = paragraphs.collect::<Vec<_>>().join("\n\n").replace("[`", "`").replace("`]", "`");
    }
    let Some(Value::Array(alternatives)) = schema.get("oneOf") else { return };
    let Some(names) = alternatives.iter().map(|one| one.get("const").cloned()).collect::<Option<Vec<_>>>() else {
        return;
    };
    let text = |value: &Value, key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let meanings = alternatives.iter().map(|one| format!("\n* `{}`: {}", text(one, "const"), text(one, "description")));
    let description = text(schema.as_value(), "description") + "\n" + &meanings.collect::<String>();
    schema.remove("oneOf");
    schema.insert("type".to_owned(), json!("string"));
    schema.insert("enum".to_owned(), names.into());
    schema.insert("description".to_owned(), description.into());
}
