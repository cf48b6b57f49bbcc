//! The documents for other languages: as they are checked in, and as descriptions of what is sent.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::{Value, json};
use toolbus_protocol::{
    AgentCard, AgentMessage, AgentSkill, AgentTaskCancelRequest, AgentTaskError, AgentTaskRequest, AgentTaskResult,
    AgentTaskStatusUpdate, Code, ContentBlock, DaemonIntake, Format, McpAnswerQuestionResponse, McpGetPromptResponse,
    McpGetServiceDetailsRequest, McpGetServiceDetailsResponse, McpListResourcesResponse, McpMetadataRefreshRequest,
    McpReadResourceResponse, McpRegisterServerRequest, McpRegisterServerResponse, McpServerSummary, McpServersIndexed,
    McpToolDefinition, McpUnregisterServerRequest, McpUnregisterServerResponse, Outcome, Ping, Pong,
    ScheduledTaskMessage, ScriptInvokeRequest, ScriptInvokeResponse, SessionEnd, SubagentCancelMessage,
    SubagentProgressMessage, SubagentResultMessage, SubagentTaskMessage, ToolAnnouncement, ToolCancelRequest,
    ToolCancelResponse, ToolError, ToolHintsRequest, ToolHintsResponse, ToolInvokeRequest, ToolInvokeResponse,
    ToolListRequest, ToolListResponse, ToolProgress, ToolsChanged, message_type as types, schema,
};

use crate::examples;

/// Set to write the documents anew.
const UPDATE: &str = "TOOLBUS_UPDATE";

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
}

fn check(file: &str, document: &Value) {
    let path = docs().join("wire").join(file);
    let generated = format!("{document:#}\n");
    if std::env::var_os(UPDATE).is_some() {
        std::fs::write(&path, &generated).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == generated,
        "docs/wire/{file} is not what the types say. To write it anew: {UPDATE}=1 cargo test -p toolbus-protocol schema"
    );
}

#[test]
fn the_documents_are_those_of_the_types() {
    check("messages.schema.json", &schema::messages());
    check("asyncapi.json", &schema::asyncapi());
}

/// The values of the constants that are texts in a source file.
fn constants(source: &str) -> BTreeSet<&str> {
    let constants = source.lines().filter_map(|line| line.strip_prefix("pub const ")?.split_once(": &str = \""));
    constants.map(|(_, value)| value.trim_end_matches("\";")).collect()
}

#[test]
fn every_type_and_every_topic_is_described() {
    let asyncapi = schema::asyncapi();
    let messages = asyncapi["components"]["messages"].as_object().unwrap();
    let names: BTreeSet<&str> = messages.values().map(|message| message["name"].as_str().unwrap()).collect();
    assert_eq!(names, constants(include_str!("../../src/message_type.rs")));
    let channels = asyncapi["channels"].as_object().unwrap();
    let used = channels.values().filter_map(|channel| channel["messages"].as_object()).flatten();
    assert_eq!(used.map(|(name, _)| name).collect::<BTreeSet<_>>(), messages.keys().collect());
    let topics: BTreeSet<&str> = channels.values().filter_map(|channel| channel["address"].as_str()).collect();
    assert!(topics.is_superset(&constants(include_str!("../../src/topic.rs"))), "{topics:?}");
    for row in section("## Topics", "## Envelope").lines().filter(|line| line.starts_with("| `")) {
        let topic = row.split('`').nth(1).unwrap();
        assert!(topics.contains(topic), "{topic} is a topic of docs/wire.md, and no channel");
    }
    let specification = specification();
    for topic in topics {
        assert!(specification.contains(&format!("`{topic}`")), "{topic} is a channel, and no topic of docs/wire.md");
    }
}

#[test]
fn every_header_of_the_specification_is_described() {
    let schemas = schema::messages();
    let [read, written] = ["RequestHeaders", "ReplyHeaders"].map(|name| schemas["$defs"][name]["properties"].clone());
    let table = section("## Headers", "## Messages");
    for row in table.lines().filter(|line| line.starts_with("| `")) {
        let on = row.split('|').nth(2).unwrap();
        for header in row.split('|').nth(1).unwrap().split('`').skip(1).step_by(2) {
            let doubled = format!("rb-{header}");
            assert!(!on.contains("requests") || read.get(header).is_some(), "{header} is no header of requests");
            let is_written = [header, &doubled].into_iter().any(|name| written.get(name).is_some());
            assert!(!on.contains("replies") || is_written, "{header} is no header of replies");
        }
    }
}

/// The text of docs/wire.md between two headings.
fn section(from: &str, to: &str) -> String {
    let specification = specification();
    let (_, rest) = specification.split_once(&format!("{from}\n")).unwrap();
    rest.split_once(&format!("{to}\n")).unwrap().0.to_owned()
}

fn specification() -> String {
    std::fs::read_to_string(docs().join("wire.md")).unwrap()
}

/// The fields that docs/wire.md lists for each message, each with whether it may be absent.
fn specified() -> Vec<(String, Vec<(String, bool)>)> {
    let words = specification().split_whitespace().collect::<Vec<_>>().join(" ").replace("**", "");
    let mut found = Vec::new();
    for (at, _) in words.match_indices("` `{") {
        let name = words[..at].rsplit(['`', '.']).next().unwrap();
        let (list, _) = words[at + 4..].split_once('`').unwrap();
        let (mut depth, mut fields) = (1, vec![String::new()]);
        for c in list.chars() {
            match c {
                '{' | '[' => depth += 1,
                '}' | ']' => depth -= 1,
                ',' if depth == 1 => fields.push(String::new()),
                _ if depth == 1 => fields.last_mut().unwrap().push(c),
                _ => {}
            }
        }
        let field = |text: &String| {
            let name = text.split(':').next().unwrap().trim();
            (name.trim_end_matches('?').to_owned(), name.ends_with('?'))
        };
        found.push((name.to_owned(), fields.iter().map(field).collect()));
    }
    found
}

#[test]
fn the_fields_are_those_of_the_specification() {
    let schemas = schema::messages();
    let specified = specified();
    for (message, fields) in &specified {
        let Some(schema) = schemas["$defs"].get(message) else { continue };
        let known: BTreeSet<&String> = schema["properties"].as_object().unwrap().keys().collect();
        let names: BTreeSet<&String> = fields.iter().map(|(name, _)| name).collect();
        assert_eq!(known, names, "{message}");
        let required = schema["required"].as_array().cloned().unwrap_or_default();
        for (field, may_be_absent) in fields {
            assert!(!(*may_be_absent && required.contains(&json!(field))), "{message}: {field} may be absent");
        }
    }
    assert!(specified.len() > 25, "docs/wire.md lists fields in another way: {specified:?}");
}

/// The faults of a body by the schema of its type. With `is_ours`, also fields that the schema does not have.
fn faults(message_type: &str, body: &Value, is_ours: bool) -> Vec<String> {
    let mut schema = schema::messages();
    let name = message_type.rsplit('.').next().unwrap();
    if is_ours {
        for definition in schema["$defs"].as_object_mut().unwrap().values_mut() {
            let fields = definition.get("properties").is_some();
            let definition = definition.as_object_mut().unwrap();
            definition.entry("additionalProperties").or_insert(json!(!fields));
        }
    }
    assert!(schema["$defs"].get(name).is_some(), "{message_type} has no schema");
    schema["$ref"] = json!(format!("#/$defs/{name}"));
    let validator = jsonschema::draft202012::new(&schema).unwrap();
    validator.iter_errors(body).map(|error| format!("{message_type} {}: {error}", error.instance_path())).collect()
}

#[test]
fn messages_of_peers_and_plain_clients_are_valid() {
    let bodies = [
        (types::TOOL_INVOKE_REQUEST, examples::REQUEST_BODY),
        (types::TOOL_INVOKE_REQUEST, examples::MCP_REQUEST_BODY),
        (types::TOOL_INVOKE_RESPONSE, examples::RESULT_BODY),
        (types::TOOL_INVOKE_RESPONSE, examples::FAILED_BODY),
        (types::TOOL_INVOKE_RESPONSE, examples::MCP_RESULT_BODY),
        (types::TOOL_ERROR, examples::ERROR_BODY),
        (types::TOOL_ERROR, examples::MCP_TIMEOUT_BODY),
        (types::TOOL_INVOKE_REQUEST, r#"{"toolName": "echo", "arguments": {"text": "hello"}}"#),
        (types::TOOL_INVOKE_REQUEST, r#"{"toolName": "echo", "arguments": null, "more": 1}"#),
        (types::TOOL_LIST_REQUEST, r#"{"format": "openai-responses"}"#),
        (types::SCRIPT_INVOKE_REQUEST, r#"{"script": "print(1)"}"#),
        (types::SUBAGENT_RESULT_MESSAGE, r#"{"taskId": "1"}"#),
        (types::PING, "{}"),
    ];
    for (message_type, body) in bodies {
        assert_eq!(faults(message_type, &serde_json::from_str(body).unwrap(), false), [""; 0]);
    }
}

#[test]
fn a_body_that_a_daemon_refuses_is_invalid() {
    let bodies = [
        (types::TOOL_INVOKE_REQUEST, r#"{"arguments": {}}"#),
        (types::TOOL_INVOKE_REQUEST, r#"{"toolName": 1}"#),
        (types::TOOL_LIST_REQUEST, r#"{"format": "other"}"#),
        (types::SCRIPT_INVOKE_REQUEST, r#"{"script": null}"#),
        (types::AGENT_TASK_RESULT, r#"{"taskId": "1", "state": 6}"#),
        (types::PING, "[]"),
    ];
    for (message_type, body) in bodies {
        assert!(!faults(message_type, &serde_json::from_str(body).unwrap(), false).is_empty(), "{message_type} {body}");
    }
}

fn some() -> Option<String> {
    Some("text".to_owned())
}

fn valid(message_type: &str, message: impl Serialize) {
    let body = serde_json::to_value(message).unwrap();
    assert_eq!(faults(message_type, &body, true), [""; 0], "{body}");
}

#[test]
fn every_message_that_the_types_write_is_valid_and_has_no_other_field() {
    let response = ToolInvokeResponse {
        tool_call_id: String::new(),
        tool_name: String::new(),
        content: None,
        content_blocks: Some(vec![ContentBlock::memory_link("a", "b"), ContentBlock::text("c")]),
        is_error: true,
    };
    let error = ToolError {
        tool_call_id: String::new(),
        tool_name: String::new(),
        code: Code::Overloaded,
        message: String::new(),
        is_retryable: true,
        retry_after_ms: Some(u64::MAX),
        outcome: Some(Outcome::NotStarted),
    };
    valid(types::TOOL_INVOKE_REQUEST, ToolInvokeRequest::default());
    valid(types::TOOL_INVOKE_RESPONSE, &response);
    valid(types::TOOL_ERROR, &error);
    valid(types::TOOL_ERROR, ToolError { retry_after_ms: None, outcome: None, ..error.clone() });
    let (tool_call_id, tool_name) = (String::new(), String::new());
    let progress = ToolProgress { tool_call_id, tool_name, progress: 0.5, total: Some(1.0), message: some() };
    valid(types::TOOL_PROGRESS, &progress);
    valid(types::TOOL_PROGRESS, ToolProgress { total: None, message: None, ..progress });
    valid(types::TOOL_CANCEL_REQUEST, ToolCancelRequest::default());
    valid(types::TOOL_CANCEL_RESPONSE, ToolCancelResponse { tool_call_id: String::new(), cancelled: true });
    valid(types::TOOL_LIST_REQUEST, ToolListRequest::default());
    for format in Format::ALL {
        valid(types::TOOL_LIST_REQUEST, ToolListRequest { format: Some(format), ..ToolListRequest::default() });
    }
    let list = ToolListResponse { tools: vec![json!({"name": "echo"})], notice: some(), ..Default::default() };
    valid(types::TOOL_LIST_RESPONSE, ToolListResponse { not_modified: true, ..list });
    valid(types::TOOL_LIST_RESPONSE, ToolListResponse::<Vec<Value>>::default());
    valid(types::TOOL_HINTS_REQUEST, ToolHintsRequest::default());
    valid(types::TOOL_HINTS_RESPONSE, ToolHintsResponse::default());
    valid(types::PING, Ping {});
    let takes = DaemonIntake { instance: String::new(), queue_prefix: String::new(), topics: vec![], agent: some() };
    let pong = Pong {
        name: String::new(),
        version: String::new(),
        config_digest: String::new(),
        roles: vec!["invoke".to_owned()],
        uptime_seconds: 1,
        in_flight: 2,
        tools: 3,
        takes: None,
    };
    valid(types::PONG, &pong);
    valid(types::PONG, Pong { takes: Some(takes), ..pong });
    valid(types::SESSION_END, SessionEnd::default());
    valid(types::TOOL_ANNOUNCEMENT, ToolAnnouncement {});
    valid(types::TOOLS_CHANGED, ToolsChanged::default());
    let due = ScheduledTaskMessage {
        task_name: String::new(),
        description: String::new(),
        due_at: some(),
        tool_response: Some(response.clone()),
        tool_error: None,
    };
    valid(types::SCHEDULED_TASK_MESSAGE, &due);
    valid(types::SCHEDULED_TASK_MESSAGE, ScheduledTaskMessage { tool_response: None, tool_error: Some(error), ..due });
    valid(types::SCRIPT_INVOKE_REQUEST, ScriptInvokeRequest { script: some(), ..ScriptInvokeRequest::default() });
    valid(types::SCRIPT_INVOKE_RESPONSE, ScriptInvokeResponse::default());
    of_agents();
    of_mcp_servers(response);
}

fn of_agents() {
    let message = AgentMessage::text("agent", "text");
    let card = AgentCard { skills: vec![AgentSkill::default()], auth_header_name: some(), ..AgentCard::default() };
    valid(types::AGENT_CARD, card);
    let metadata = json!({"onBehalfOf": "ana"}).as_object().cloned();
    valid(types::AGENT_TASK_REQUEST, AgentTaskRequest { message: message.clone(), metadata, ..Default::default() });
    valid(types::AGENT_TASK_RESULT, AgentTaskResult { message: Some(message), ..Default::default() });
    valid(types::AGENT_TASK_STATUS_UPDATE, AgentTaskStatusUpdate::default());
    valid(types::AGENT_TASK_ERROR, AgentTaskError::default());
    valid(types::AGENT_TASK_CANCEL_REQUEST, AgentTaskCancelRequest::default());
    let task = SubagentTaskMessage {
        task_id: String::new(),
        subagent_session_id: String::new(),
        primary_session_id: String::new(),
        agent: String::new(),
        description: String::new(),
        context: None,
        deadline: String::new(),
    };
    valid(types::SUBAGENT_TASK_MESSAGE, task);
    let cancel = SubagentCancelMessage { task_id: String::new(), reason: String::new() };
    valid(types::SUBAGENT_CANCEL_MESSAGE, cancel);
    valid(types::SUBAGENT_PROGRESS_MESSAGE, SubagentProgressMessage::default());
    valid(types::SUBAGENT_RESULT_MESSAGE, SubagentResultMessage { error: some(), ..SubagentResultMessage::default() });
}

fn of_mcp_servers(response: ToolInvokeResponse) {
    let servers = vec![McpServerSummary::default()];
    valid(types::MCP_SERVERS_INDEXED, McpServersIndexed { servers, ..McpServersIndexed::default() });
    valid(types::MCP_METADATA_REFRESH_REQUEST, McpMetadataRefreshRequest::default());
    valid(types::MCP_GET_SERVICE_DETAILS_REQUEST, McpGetServiceDetailsRequest::default());
    let tools = vec![McpToolDefinition::default()];
    let details = McpGetServiceDetailsResponse { tools, instructions: some(), ..Default::default() };
    valid(types::MCP_GET_SERVICE_DETAILS_RESPONSE, details);
    valid(types::MCP_REGISTER_SERVER_REQUEST, McpRegisterServerRequest::default());
    valid(types::MCP_REGISTER_SERVER_RESPONSE, McpRegisterServerResponse::default());
    valid(types::MCP_UNREGISTER_SERVER_REQUEST, McpUnregisterServerRequest::default());
    valid(types::MCP_UNREGISTER_SERVER_RESPONSE, McpUnregisterServerResponse::default());
    valid(types::MCP_GET_PROMPT_RESPONSE, McpGetPromptResponse::default());
    valid(types::MCP_LIST_RESOURCES_RESPONSE, McpListResourcesResponse::default());
    valid(types::MCP_READ_RESOURCE_RESPONSE, McpReadResourceResponse::default());
    let answered = McpAnswerQuestionResponse { result: Some(response), error: some(), ..Default::default() };
    valid(types::MCP_ANSWER_QUESTION_RESPONSE, answered);
}
