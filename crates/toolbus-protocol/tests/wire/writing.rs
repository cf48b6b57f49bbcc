//! Tests of what we write, as decoded JSON, properties and headers.

use serde::Serialize;
use toolbus_protocol::{
    Code, ContentBlock, Envelope, Outcome, ToolCancelResponse, ToolError, ToolInvokeRequest, ToolInvokeResponse,
    TraceContext, header, message_type, new_message_id,
};

use crate::round_trip;

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap()
}

fn response() -> ToolInvokeResponse {
    ToolInvokeResponse {
        tool_call_id: "call_1".to_owned(),
        tool_name: "web_search".to_owned(),
        content: Some("one\ntwo \"quoted\" ü".to_owned()),
        content_blocks: None,
        is_error: false,
    }
}

fn error() -> ToolError {
    ToolError {
        tool_call_id: "call_1".to_owned(),
        tool_name: "pay".to_owned(),
        code: Code::Timeout,
        message: "The deadline passed.".to_owned(),
        is_retryable: false,
        retry_after_ms: None,
        outcome: None,
    }
}

#[test]
fn a_request_is_written_with_nulls_in_the_order_of_the_wire() {
    let request = ToolInvokeRequest {
        tool_call_id: Some("call_1".to_owned()),
        tool_name: "web_search".to_owned(),
        arguments: Some(r#"{"query":"rust"}"#.to_owned()),
        ..ToolInvokeRequest::default()
    };
    insta::assert_snapshot!(
        json(&request),
        @r#"{"toolCallId":"call_1","toolName":"web_search","arguments":"{\"query\":\"rust\"}","sessionId":null,"batchId":null}"#
    );
}

#[test]
fn a_result_of_text_is_written_without_blocks() {
    insta::assert_snapshot!(
        json(&response()),
        @r#"{"toolCallId":"call_1","toolName":"web_search","content":"one\ntwo \"quoted\" ü","isError":false}"#
    );
}

#[test]
fn a_result_without_text_is_written_with_a_null() {
    let response = ToolInvokeResponse { content: None, is_error: true, ..response() };
    insta::assert_snapshot!(
        json(&response),
        @r#"{"toolCallId":"call_1","toolName":"web_search","content":null,"isError":true}"#
    );
}

#[test]
fn a_result_with_an_image_is_written_with_blocks() {
    let text = ContentBlock { kind: "text".to_owned(), text: Some("a map".to_owned()), ..ContentBlock::default() };
    let image = ContentBlock {
        kind: "image".to_owned(),
        data: Some("iVBO".to_owned()),
        mime_type: Some("image/png".to_owned()),
        ..ContentBlock::default()
    };
    let response = ToolInvokeResponse { content_blocks: Some(vec![text, image]), ..response() };
    insta::assert_snapshot!(
        json(&response.content_blocks),
        @r#"[{"type":"text","text":"a map"},{"type":"image","data":"iVBO","mimeType":"image/png"}]"#
    );
    let fields: serde_json::Value = serde_json::from_str(&round_trip(&response)).unwrap();
    assert_eq!(fields["contentBlocks"].as_array().map(Vec::len), Some(2));
}

#[test]
fn a_refusal_is_written_as_a_peer_expects_it() {
    insta::assert_snapshot!(
        json(&error()),
        @r#"{"toolCallId":"call_1","toolName":"pay","code":"timeout","message":"The deadline passed.","isRetryable":false}"#
    );
}

#[test]
fn a_refusal_has_a_retry_time_and_an_outcome() {
    let error = ToolError {
        code: Code::Overloaded,
        is_retryable: true,
        retry_after_ms: Some(250),
        outcome: Some(Outcome::NotStarted),
        ..error()
    };
    insta::assert_snapshot!(
        round_trip(&error),
        @r#"{"toolCallId":"call_1","toolName":"pay","code":"overloaded","message":"The deadline passed.","isRetryable":true,"retryAfterMs":250,"outcome":"not_started"}"#
    );
}

#[test]
fn a_reply_to_cancel_is_written() {
    let response = ToolCancelResponse { tool_call_id: "call_1".to_owned(), cancelled: true };
    insta::assert_snapshot!(json(&response), @r#"{"toolCallId":"call_1","cancelled":true}"#);
}

#[test]
fn every_code_is_written_as_the_wire_names_it() {
    let names: Vec<String> = Code::ALL.iter().map(json).collect();
    insta::assert_snapshot!(
        names.join(" "),
        @r#""tool_not_found" "invalid_arguments" "timeout" "execution_failed" "not_allowed" "rate_limited" "overloaded" "cancelled" "auth_required""#
    );
    for code in Code::ALL {
        assert_eq!(json(&code), format!("\"{code}\""));
        assert_eq!(code.as_str().parse::<Code>().unwrap(), code);
    }
    assert!("Timeout".parse::<Code>().is_err());
}

#[test]
fn every_outcome_is_written_as_the_wire_names_it() {
    insta::assert_snapshot!(
        json(&[Outcome::NotStarted, Outcome::Failed, Outcome::Unknown]),
        @r#"["not_started","failed","unknown"]"#
    );
}

#[test]
fn the_properties_of_a_reply_are_written_as_a_peer_expects_them() {
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let envelope = Envelope {
        message_id: Some("7c9e6679742540de944be07fc1f90ae7".to_owned()),
        message_type: message_type::TOOL_INVOKE_RESPONSE.to_owned(),
        correlation_id: "5b0f3c1e9a7d4c2f8e6b1a2d3c4f5061".to_owned(),
        timestamp: Some(1_772_057_704),
        source: Some("toolbus".to_owned()),
        destination: Some("RockBot".to_owned()),
        trace: TraceContext::parse(parent, Some("v=1")),
        headers: vec![
            (header::CONTENT_TRUST.to_owned(), header::TRUST_TOOL_OUTPUT.to_owned()),
            (header::TOOL_PROVIDER.to_owned(), "rest".to_owned()),
        ],
        ..Envelope::default()
    };
    let properties = envelope.into_properties();
    insta::assert_debug_snapshot!(properties, @r#"
    Properties {
        content_type: Some(
            "application/json",
        ),
        message_id: Some(
            "7c9e6679742540de944be07fc1f90ae7",
        ),
        message_type: Some(
            "RockBot.Tools.ToolInvokeResponse",
        ),
        correlation_id: Some(
            "5b0f3c1e9a7d4c2f8e6b1a2d3c4f5061",
        ),
        reply_to: Some(
            "",
        ),
        timestamp: Some(
            1772057704,
        ),
        user_id: None,
        expiration: None,
        persistent: true,
        headers: [
            (
                "rb-source",
                "toolbus",
            ),
            (
                "rb-destination",
                "RockBot",
            ),
            (
                "rb-rb-content-trust",
                "tool-output",
            ),
            (
                "rb-rb-tool-provider",
                "rest",
            ),
            (
                "rb-traceparent",
                "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            ),
            (
                "traceparent",
                "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            ),
            (
                "rb-tracestate",
                "v=1",
            ),
            (
                "tracestate",
                "v=1",
            ),
        ],
    }
    "#);
}

#[test]
fn a_bare_envelope_is_written_with_empty_strings_and_no_header() {
    let properties = Envelope::default().into_properties();
    assert_eq!(properties.correlation_id.as_deref(), Some(""));
    assert_eq!(properties.reply_to.as_deref(), Some(""));
    assert_eq!(properties.headers, []);
    assert!(properties.persistent);
}

#[test]
fn message_ids_are_fresh_and_of_the_peers_form() {
    let (one, other) = (new_message_id(), new_message_id());
    assert_ne!(one, other);
    assert!(one.len() == 32 && one.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte)));
}
