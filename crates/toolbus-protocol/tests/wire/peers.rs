//! Tests that what peers send is read exactly.

use toolbus_protocol::{
    Code, Envelope, ReplyTo, ToolError, ToolInvokeRequest, ToolInvokeResponse, header, message_type, parse_object,
};

use crate::amqp::{Publish, content_header, frames, publish};
use crate::examples;

const CORRELATION_ID: &str = "5b0f3c1e9a7d4c2f8e6b1a2d3c4f5061";
const REQUEST_ID: &str = "0f8fad5bd9cb469fa16570867728950e";
/// Content type, headers, delivery mode, correlation id, address, message id, timestamp, type.
const PEER_FLAGS: u16 = 0xb6e0;

fn published(topic: &str) -> Publish {
    Publish { exchange: "rockbot".to_owned(), routing_key: topic.to_owned(), mandatory: false, immediate: false }
}

/// Reads the content header in `hex`, which must announce `body`.
fn envelope_of(hex: &str, body: &str) -> Envelope {
    let frames = frames(hex);
    let header = content_header(frames.last().unwrap());
    assert_eq!(header.flags, PEER_FLAGS);
    assert_eq!(header.body_size, body.len() as u64);
    assert_eq!(header.properties.content_type.as_deref(), Some("application/json"));
    assert!(header.properties.persistent);
    Envelope::read(&header.properties)
}

fn reply_envelope(message_id: &str, payload: &str, source: &str, headers: &[(&str, &str)]) -> Envelope {
    Envelope {
        message_id: Some(message_id.to_owned()),
        message_type: payload.to_owned(),
        correlation_id: CORRELATION_ID.to_owned(),
        reply_to: String::new(),
        timestamp: Some(1_772_057_704),
        source: Some(source.to_owned()),
        destination: None,
        trace: None,
        headers: owned(headers),
    }
}

fn owned(headers: &[(&str, &str)]) -> Vec<(String, String)> {
    headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

#[test]
fn a_request_is_read_exactly() {
    assert_eq!(publish(&frames(examples::REQUEST)[0]), published("tool.invoke"));
    let envelope = envelope_of(examples::REQUEST, examples::REQUEST_BODY);
    let expected = Envelope {
        message_id: Some(REQUEST_ID.to_owned()),
        message_type: message_type::TOOL_INVOKE_REQUEST.to_owned(),
        correlation_id: CORRELATION_ID.to_owned(),
        reply_to: "tool.result.RockBot".to_owned(),
        timestamp: Some(1_772_057_703),
        source: Some("RockBot".to_owned()),
        ..Envelope::default()
    };
    assert_eq!(envelope, expected);
    let address = ReplyTo::read(&envelope.reply_to, &envelope.message_type);
    assert_eq!(address, ReplyTo::TopicFirst("tool.result.RockBot"));
}

#[test]
fn the_body_of_a_request_is_read_exactly() {
    let request = ToolInvokeRequest::parse(examples::REQUEST_BODY.as_bytes()).unwrap();
    let expected = ToolInvokeRequest {
        tool_call_id: Some("call_1".to_owned()),
        tool_name: "web_search".to_owned(),
        arguments: Some(r#"{"query":"rust amqp","count":3}"#.to_owned()),
        session_id: Some("session/abc123".to_owned()),
        batch_id: None,
    };
    assert_eq!(request, expected);
    let arguments = parse_object(request.arguments.unwrap().as_bytes()).unwrap();
    assert_eq!(serde_json::Value::from(arguments), serde_json::json!({"query": "rust amqp", "count": 3}));
}

#[test]
fn the_body_of_a_newer_peer_reads_the_same() {
    let newer = examples::REQUEST_BODY.replace("\"}", "\",\"batchId\":null}").replace("}\",\"batchId\":null}", "}\"}");
    assert_eq!(newer.len(), 167);
    assert_eq!(ToolInvokeRequest::parse(newer.as_bytes()), ToolInvokeRequest::parse(examples::REQUEST_BODY.as_bytes()));
    let batched = newer.replace("null", "\"batch-9\"");
    assert_eq!(ToolInvokeRequest::parse(batched.as_bytes()).unwrap().batch_id.as_deref(), Some("batch-9"));
}

#[test]
fn a_result_is_read_exactly() {
    assert_eq!(publish(&frames(examples::RESULT)[0]), published("tool.result.RockBot"));
    let expected =
        reply_envelope("7c9e6679742540de944be07fc1f90ae7", message_type::TOOL_INVOKE_RESPONSE, "tool-agent", &[]);
    assert_eq!(envelope_of(examples::RESULT, examples::RESULT_BODY), expected);
    let expected = ToolInvokeResponse {
        tool_call_id: "call_1".to_owned(),
        tool_name: "web_search".to_owned(),
        content: Some("1. [lapin](https://docs.rs/lapin)\n   AMQP client for Rust".to_owned()),
        content_blocks: None,
        is_error: false,
    };
    assert_eq!(serde_json::from_str::<ToolInvokeResponse>(examples::RESULT_BODY).unwrap(), expected);
    let newer = examples::RESULT_BODY.replace(",\"isError\"", ",\"contentBlocks\":null,\"isError\"");
    assert_eq!(newer.len(), 155);
    assert_eq!(serde_json::from_str::<ToolInvokeResponse>(&newer).unwrap(), expected);
}

#[test]
fn a_failed_result_is_read_exactly() {
    let hex = examples::RESULT.replace("00 00 86 b6 e0", "00 00 a2 b6 e0").replace("30 61 65 37", "30 61 65 38");
    let envelope = envelope_of(&hex, examples::FAILED_BODY);
    assert_eq!(envelope.message_id.as_deref(), Some("7c9e6679742540de944be07fc1f90ae8"));
    assert_eq!(envelope.message_type, message_type::TOOL_INVOKE_RESPONSE);
    let response: ToolInvokeResponse = serde_json::from_str(examples::FAILED_BODY).unwrap();
    assert!(response.is_error);
    assert_eq!(
        response.content.as_deref(),
        Some("Search failed: Response status code does not indicate success: 429 (Too Many Requests).")
    );
}

#[test]
fn a_refusal_is_read_exactly() {
    let expected = reply_envelope("7c9e6679742540de944be07fc1f90ae9", message_type::TOOL_ERROR, "tool-agent", &[]);
    assert_eq!(envelope_of(examples::ERROR, examples::ERROR_BODY), expected);
    let expected = ToolError {
        tool_call_id: "call_1".to_owned(),
        tool_name: "no_such_tool".to_owned(),
        code: Code::ToolNotFound,
        message: "Tool 'no_such_tool' is not registered.".to_owned(),
        is_retryable: false,
        retry_after_ms: None,
        outcome: None,
    };
    assert_eq!(serde_json::from_str::<ToolError>(examples::ERROR_BODY).unwrap(), expected);
}

#[test]
fn a_request_with_every_header_is_read_exactly() {
    assert_eq!(publish(&frames(examples::MCP_REQUEST)[0]), published("tool.invoke.mcp"));
    let envelope = envelope_of(examples::MCP_REQUEST, examples::MCP_REQUEST_BODY);
    let headers = [
        ("rb-content-trust", "tool-request"),
        ("rb-tool-provider", "mcp"),
        ("rb-timeout-ms", "60000"),
        ("rb-mcp-server", "filesystem"),
    ];
    assert_eq!(envelope.headers, owned(&headers));
    assert_eq!(envelope.source.as_deref(), Some("RockBot"));
    assert_eq!(envelope.header(header::TIMEOUT_MS), Some("60000"));
    assert_eq!(envelope.header(header::CONTENT_TRUST), Some(header::TRUST_TOOL_REQUEST));
    let request = ToolInvokeRequest::parse(examples::MCP_REQUEST_BODY.as_bytes()).unwrap();
    assert_eq!(request.tool_name, "read_file");
    assert_eq!(request.arguments.as_deref(), Some(r#"{"path":"/data/a.txt"}"#));
    assert_eq!(request.session_id, None);
}

#[test]
fn a_reply_with_headers_is_read_exactly() {
    let expected = reply_envelope(
        "7c9e6679742540de944be07fc1f90aea",
        message_type::TOOL_INVOKE_RESPONSE,
        "mcp-bridge.RockBot",
        &[("rb-content-trust", "tool-output"), ("rb-tool-provider", "mcp")],
    );
    assert_eq!(envelope_of(examples::MCP_RESULT, examples::MCP_RESULT_BODY), expected);
    let response: ToolInvokeResponse = serde_json::from_str(examples::MCP_RESULT_BODY).unwrap();
    assert_eq!(response.content.as_deref(), Some("hello"));
}

#[test]
fn a_refusal_that_may_be_repeated_is_read_exactly() {
    assert_eq!(examples::MCP_TIMEOUT_BODY.len(), 224);
    let error: ToolError = serde_json::from_str(examples::MCP_TIMEOUT_BODY).unwrap();
    assert_eq!(error.code, Code::Timeout);
    assert!(error.is_retryable);
    assert_eq!(
        error.message,
        "MCP server 'filesystem' timed out after 60000ms. This is a transient error — retry the same tool call to continue."
    );
}
