//! The messages about MCP servers: `tool.meta.mcp`, `mcp.manage`.

use serde_json::json;
use toolbus_protocol::message_type::{self, Kind, kind};
use toolbus_protocol::{
    McpAnswerQuestionResponse, McpEchoed, McpGetPromptResponse, McpGetServiceDetailsRequest,
    McpGetServiceDetailsResponse, McpListResourcesResponse, McpMetadataRefreshRequest, McpReadResourceResponse,
    McpRegisterServerRequest, McpRegisterServerResponse, McpServerSummary, McpServersIndexed, McpToolDefinition,
    McpUnregisterServerRequest, McpUnregisterServerResponse, topic,
};

use crate::round_trip;

/// An index as a peer of the first version writes it.
const INDEX: &str = r#"{"servers":[{"serverName":"filesystem","displayName":null,"summary":"Provides 2 tool(s): read_file, list_directory.","toolCount":2,"toolNames":["read_file","list_directory"]}],"removedServers":[]}"#;

fn index() -> McpServersIndexed {
    let summary = McpServerSummary {
        server_name: "filesystem".to_owned(),
        display_name: None,
        summary: Some("Provides 2 tool(s): read_file, list_directory.".to_owned()),
        tool_count: 2,
        tool_names: vec!["read_file".to_owned(), "list_directory".to_owned()],
    };
    McpServersIndexed { servers: vec![summary], removed_servers: Vec::new() }
}

#[test]
fn an_index_is_written_byte_for_byte_as_peers_write_it() {
    assert_eq!(round_trip(&index()), INDEX);
}

#[test]
fn an_index_of_a_newer_peer_is_read_without_its_new_fields() {
    let newer = INDEX.replace(
        r#""toolNames""#,
        r#""promptCount":1,"promptNames":["p"],"resourceCount":0,"resourceNames":[],"serverId":"0123456789ab","fingerprint":"f","toolFingerprints":{"read_file":"a"},"version":null,"identityHash":null,"handback":false,"toolNames""#,
    );
    assert_eq!(serde_json::from_str::<McpServersIndexed>(&newer).unwrap(), index());
}

#[test]
fn a_request_for_the_index_names_a_server_or_none() {
    let read = |body: &str| McpMetadataRefreshRequest::parse(body.as_bytes()).unwrap().server_name;
    for body in ["{}", r#"{"serverName":null}"#, r#"{"serverName":""}"#, r#"{"other":[{}]}"#] {
        assert_eq!(read(body), None, "{body}");
    }
    for body in [r#"{"serverName":"Files"}"#, r#"{"ServerName":"Files"}"#, r#"{"x":1,"SERVERNAME":"Files"}"#] {
        assert_eq!(read(body).as_deref(), Some("Files"), "{body}");
    }
    assert_eq!(serde_json::to_string(&McpMetadataRefreshRequest::default()).unwrap(), r#"{"serverName":null}"#);
}

#[test]
fn details_carry_schemas_as_text() {
    let schema = json!({"type": "object", "properties": {"path": {"type": "string"}}}).to_string();
    let tool = McpToolDefinition {
        name: "read_file".to_owned(),
        description: "Reads a file.".to_owned(),
        parameters_schema: Some(schema),
    };
    let bare = McpToolDefinition { name: "now".to_owned(), ..McpToolDefinition::default() };
    let response = McpGetServiceDetailsResponse {
        server_name: "filesystem".to_owned(),
        tools: vec![tool, bare],
        ..McpGetServiceDetailsResponse::default()
    };
    insta::assert_snapshot!(round_trip(&response), @r#"{"serverName":"filesystem","tools":[{"name":"read_file","description":"Reads a file.","parametersSchema":"{\"properties\":{\"path\":{\"type\":\"string\"}},\"type\":\"object\"}"},{"name":"now","description":"","parametersSchema":null}],"error":null}"#);
}

#[test]
fn details_have_an_error_or_the_description_and_instructions_of_the_server() {
    let response = McpGetServiceDetailsResponse {
        server_name: "x".to_owned(),
        error: Some("Server 'x' is not connected".to_owned()),
        ..McpGetServiceDetailsResponse::default()
    };
    insta::assert_snapshot!(round_trip(&response), @r#"{"serverName":"x","tools":[],"error":"Server 'x' is not connected"}"#);
    let response = McpGetServiceDetailsResponse {
        server_name: "x".to_owned(),
        description: Some("Files.".to_owned()),
        instructions: Some("Read before writing.".to_owned()),
        ..McpGetServiceDetailsResponse::default()
    };
    insta::assert_snapshot!(round_trip(&response), @r#"{"serverName":"x","description":"Files.","instructions":"Read before writing.","tools":[],"error":null}"#);
}

#[test]
fn a_request_to_add_a_server_is_read_with_field_names_in_any_case() {
    let expected = McpRegisterServerRequest {
        server_name: "files".to_owned(),
        kind: "sse".to_owned(),
        url: Some("https://host/sse".to_owned()),
        command: None,
        args: vec!["a".to_owned()],
        env: [("K".to_owned(), "V".to_owned())].into(),
    };
    for body in [
        r#"{"serverName":"files","type":"sse","url":"https://host/sse","command":null,"args":["a"],"env":{"K":"V"}}"#,
        r#"{"ServerName":"files","Type":"sse","Url":"https://host/sse","Command":"","Args":["a"],"Env":{"K":"V"},"displayName":null}"#,
    ] {
        assert_eq!(McpRegisterServerRequest::parse(body.as_bytes()), Ok(expected.clone()), "{body}");
    }
    let bare = McpRegisterServerRequest::parse(br#"{"serverName":"files","args":null,"env":null}"#).unwrap();
    insta::assert_snapshot!(serde_json::to_string(&bare).unwrap(), @r#"{"serverName":"files","type":"","url":null,"command":null,"args":[],"env":{}}"#);
}

#[test]
fn a_request_about_a_server_must_name_it() {
    let refusals = |body: &[u8]| {
        [
            McpGetServiceDetailsRequest::parse(body).unwrap_err().to_string(),
            McpRegisterServerRequest::parse(body).unwrap_err().to_string(),
            McpUnregisterServerRequest::parse(body).unwrap_err().to_string(),
        ]
    };
    for body in ["{}", r#"{"serverName":null}"#, r#"{"serverName":""}"#] {
        assert_eq!(refusals(body.as_bytes()), ["missing member `serverName`"; 3], "{body}");
    }
    for body in ["[]", "nonsense", r#"{"serverName":"a","ServerName":"b"}"#, r#"{"serverName":7}"#] {
        assert!(refusals(body.as_bytes()).iter().all(|text| !text.contains("missing")), "{body}");
    }
}

#[test]
fn replies_to_requests_to_add_and_remove_have_their_success() {
    let added = McpRegisterServerResponse {
        server_name: "files".to_owned(),
        success: true,
        summary: Some("2 tool(s) available.".to_owned()),
        error: None,
    };
    insta::assert_snapshot!(round_trip(&added), @r#"{"serverName":"files","success":true,"summary":"2 tool(s) available.","error":null}"#);
    let removed = McpUnregisterServerResponse { server_name: "files".to_owned(), success: true, error: None };
    insta::assert_snapshot!(round_trip(&removed), @r#"{"serverName":"files","success":true,"error":null}"#);
}

#[test]
fn replies_to_unsupported_requests_have_the_fields_that_agents_need() {
    let error = Some("no".to_owned());
    let server_name = "files".to_owned();
    insta::assert_snapshot!(round_trip(&McpGetPromptResponse { server_name: server_name.clone(), prompt_name: "p".to_owned(), error: error.clone(), ..McpGetPromptResponse::default() }), @r#"{"serverName":"files","promptName":"p","description":null,"messages":[],"error":"no"}"#);
    insta::assert_snapshot!(round_trip(&McpListResourcesResponse { server_name: server_name.clone(), error: error.clone(), ..McpListResourcesResponse::default() }), @r#"{"serverName":"files","resources":[],"templates":[],"error":"no"}"#);
    insta::assert_snapshot!(round_trip(&McpReadResourceResponse { server_name, uri: "file:///a".to_owned(), error: error.clone(), ..McpReadResourceResponse::default() }), @r#"{"serverName":"files","uri":"file:///a","contents":[],"error":"no"}"#);
    insta::assert_snapshot!(round_trip(&McpAnswerQuestionResponse { question_id: "q".to_owned(), error, ..McpAnswerQuestionResponse::default() }), @r#"{"questionId":"q","serverName":null,"toolName":null,"result":null,"error":"no"}"#);
}

#[test]
fn fields_that_a_reply_repeats_are_read_from_any_request() {
    let echoed =
        McpEchoed::parse(br#"{"ServerName":"files","uri":"file:///a","answers":{"deep":[1]},"promptName":null}"#);
    let expected = McpEchoed { server_name: "files".to_owned(), uri: "file:///a".to_owned(), ..McpEchoed::default() };
    assert_eq!(echoed, Ok(expected));
}

#[test]
fn types_and_topics_are_spelled_as_peers_spell_them() {
    let types = [
        message_type::MCP_SERVERS_INDEXED,
        message_type::MCP_METADATA_REFRESH_REQUEST,
        message_type::MCP_GET_SERVICE_DETAILS_REQUEST,
        message_type::MCP_GET_SERVICE_DETAILS_RESPONSE,
        message_type::MCP_REGISTER_SERVER_REQUEST,
        message_type::MCP_REGISTER_SERVER_RESPONSE,
        message_type::MCP_UNREGISTER_SERVER_REQUEST,
        message_type::MCP_UNREGISTER_SERVER_RESPONSE,
        message_type::MCP_GET_PROMPT_REQUEST,
        message_type::MCP_GET_PROMPT_RESPONSE,
        message_type::MCP_LIST_RESOURCES_REQUEST,
        message_type::MCP_LIST_RESOURCES_RESPONSE,
        message_type::MCP_READ_RESOURCE_REQUEST,
        message_type::MCP_READ_RESOURCE_RESPONSE,
        message_type::MCP_ANSWER_QUESTION_REQUEST,
        message_type::MCP_ANSWER_QUESTION_RESPONSE,
        message_type::MCP_RELEASE_SESSION_QUESTIONS_REQUEST,
    ];
    let bare = types.map(|name| name.strip_prefix("RockBot.Tools.Mcp.Mcp").unwrap());
    insta::assert_snapshot!(bare.join(" "), @"ServersIndexed MetadataRefreshRequest GetServiceDetailsRequest GetServiceDetailsResponse RegisterServerRequest RegisterServerResponse UnregisterServerRequest UnregisterServerResponse GetPromptRequest GetPromptResponse ListResourcesRequest ListResourcesResponse ReadResourceRequest ReadResourceResponse AnswerQuestionRequest AnswerQuestionResponse ReleaseSessionQuestionsRequest");
    let topics = [
        topic::TOOL_INVOKE_MCP.to_owned(),
        topic::MCP_REFRESH.to_owned(),
        topic::MCP_MANAGE.to_owned(),
        topic::mcp_servers("ana"),
        topic::mcp_manage_response("ana"),
    ];
    insta::assert_snapshot!(topics.join(" "), @"tool.invoke.mcp tool.meta.mcp.refresh mcp.manage tool.meta.mcp.ana mcp.manage.response.ana");
}

#[test]
fn replies_about_servers_go_to_no_request_topic() {
    let carries_requests = |name: &str| topic::REQUEST_TOPICS.iter().any(|pattern| topic::matches(pattern, name));
    for name in [topic::TOOL_INVOKE_MCP, topic::MCP_REFRESH, topic::MCP_MANAGE] {
        assert!(carries_requests(name), "{name}");
    }
    for name in [topic::mcp_manage_response("ana"), topic::mcp_servers("ana")] {
        assert!(!carries_requests(&name), "{name}");
    }
}

#[test]
fn an_index_gets_no_reply() {
    assert_eq!(kind(message_type::MCP_SERVERS_INDEXED, message_type::MCP_METADATA_REFRESH_REQUEST), Kind::Reply);
    assert_eq!(kind(message_type::MCP_REGISTER_SERVER_RESPONSE, ""), Kind::Reply);
    assert_eq!(kind(message_type::MCP_REGISTER_SERVER_REQUEST, ""), Kind::Foreign);
}
