use rmcp::model::CallToolResult;
use serde_json::{Value, json};
use toolbus_protocol::ToolInvokeResponse;

use super::*;

fn wire(output: ToolOutput) -> String {
    let response = ToolInvokeResponse {
        tool_call_id: "1".to_owned(),
        tool_name: "t".to_owned(),
        content: output.content,
        content_blocks: (!output.blocks.is_empty()).then_some(output.blocks),
        is_error: output.is_error,
    };
    serde_json::to_string(&response).unwrap()
}

/// The answer on the wire, whichever way the result was read.
fn answer(result: Value) -> String {
    let typed: CallToolResult = serde_json::from_value(result.clone()).unwrap();
    let answer = wire(from_result(typed));
    assert_eq!(answer, wire(from_value_result(result).unwrap()));
    answer
}

/// The answer to a result that the protocol does not know.
fn lenient(result: Value) -> String {
    assert!(serde_json::from_value::<CallToolResult>(result.clone()).is_err(), "{result}");
    wire(from_value_result(result).unwrap())
}

#[test]
fn texts_are_joined_with_one_newline_and_nothing_more_is_written() {
    insta::assert_snapshot!(answer(json!({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b\n"}, {"type": "text", "text": ""}]})), @r#"{"toolCallId":"1","toolName":"t","content":"a\nb\n\n","isError":false}"#);
}

#[test]
fn a_result_without_content_has_none() {
    insta::assert_snapshot!(answer(json!({"content": []})), @r#"{"toolCallId":"1","toolName":"t","content":null,"isError":false}"#);
    insta::assert_snapshot!(answer(json!({"content": [], "structuredContent": null, "isError": true})), @r#"{"toolCallId":"1","toolName":"t","content":null,"isError":true}"#);
}

#[test]
fn other_content_is_written_in_order_with_the_texts() {
    insta::assert_snapshot!(answer(json!({"content": [
        {"type": "text", "text": "a map"},
        {"type": "image", "data": "aGk=", "mimeType": "image/png", "annotations": {"priority": 1.0}},
        {"type": "audio", "data": "aGk", "mimeType": "audio/wav"},
        {"type": "text", "text": "of here"},
        {"type": "resource", "resource": {"uri": "file:///a", "mimeType": "text/plain", "text": "hi"}},
        {"type": "resource", "resource": {"uri": "file:///b", "blob": "aGk="}},
        {"type": "resource_link", "uri": "file:///c", "name": "c", "mimeType": "text/css"},
    ]})), @r#"{"toolCallId":"1","toolName":"t","content":"a map\nof here","contentBlocks":[{"type":"text","text":"a map"},{"type":"image","data":"aGk=","mimeType":"image/png"},{"type":"audio","data":"aGk","mimeType":"audio/wav"},{"type":"text","text":"of here"},{"type":"resource","text":"hi","mimeType":"text/plain","uri":"file:///a"},{"type":"resource","data":"aGk=","uri":"file:///b"},{"type":"resource","text":"c","mimeType":"text/css","uri":"file:///c"}],"isError":false}"#);
}

#[test]
fn only_content_without_text_leaves_the_text_out() {
    insta::assert_snapshot!(answer(json!({"content": [{"type": "image", "data": "", "mimeType": "image/png"}]})), @r#"{"toolCallId":"1","toolName":"t","content":null,"contentBlocks":[{"type":"image","data":"","mimeType":"image/png"}],"isError":false}"#);
}

#[test]
fn binary_content_that_is_not_base64_is_a_text_that_says_so() {
    insta::assert_snapshot!(answer(json!({"content": [
        {"type": "image", "data": "<svg/>", "mimeType": "image/svg+xml"},
        {"type": "audio", "data": "aGk=aGk=", "mimeType": "audio/wav"},
        {"type": "resource", "resource": {"uri": "file:///b", "blob": "a"}},
    ]})), @r#"{"toolCallId":"1","toolName":"t","content":"[content of type image that is not valid Base64]\n[content of type audio that is not valid Base64]\n[content of type resource that is not valid Base64]","isError":false}"#);
}

#[test]
fn structured_content_without_text_is_the_text() {
    insta::assert_snapshot!(answer(json!({"content": [], "structuredContent": {"b": 1, "a": [true]}})), @r#"{"toolCallId":"1","toolName":"t","content":"{\"a\":[true],\"b\":1}","isError":false}"#);
    insta::assert_snapshot!(answer(json!({"content": [{"type": "image", "data": "aGk=", "mimeType": "image/png"}], "structuredContent": {"a": 1}})), @r#"{"toolCallId":"1","toolName":"t","content":"{\"a\":1}","contentBlocks":[{"type":"image","data":"aGk=","mimeType":"image/png"},{"type":"text","text":"{\"a\":1}"}],"isError":false}"#);
}

#[test]
fn structured_content_that_a_text_repeats_adds_nothing() {
    let table: [(&[&str], Value); 11] = [
        (&[r#"{"a":1,"b":[2]}"#], json!({"b": [2], "a": 1})),
        (&["{\n  \"a\": 1\n}"], json!({"a": 1})),
        (&["Found:", r#"{"a": 1}"#], json!({"a": 1})),
        (&[r#"Found {"a":1}."#], json!({"a": 1})),
        (&["hello"], json!({"result": "hello"})),
        (&[r#""hello""#], json!({"result": "hello"})),
        (&["5"], json!({"result": 5})),
        (&["false"], json!({"result": false})),
        (&["a", r#"{"b": 1}"#], json!({"result": ["a", {"b": 1}]})),
        (&["[1, 2]"], json!([1, 2])),
        (&["{}"], json!({})),
    ];
    for (texts, structured) in table {
        let content: Vec<Value> = texts.iter().map(|text| json!({"type": "text", "text": text})).collect();
        let result = from_value_result(json!({"content": content, "structuredContent": structured})).unwrap();
        assert_eq!(result.structured.as_deref(), Some(&structured));
        assert_eq!(ToolOutput { structured: None, ..result }, ToolOutput::text(texts.join("\n")));
    }
}

#[test]
fn structured_content_that_is_the_content_once_more_adds_nothing() {
    let image = json!([{"type": "image", "data": "aGk=", "mimeType": "image/png"}]);
    insta::assert_snapshot!(answer(json!({"content": image, "structuredContent": {"content": image}})), @r#"{"toolCallId":"1","toolName":"t","content":null,"contentBlocks":[{"type":"image","data":"aGk=","mimeType":"image/png"}],"isError":false}"#);
    let text = json!([{"type": "text", "text": "a\nb"}]);
    insta::assert_snapshot!(answer(json!({"content": text, "structuredContent": {"content": "a\nb"}})), @r#"{"toolCallId":"1","toolName":"t","content":"a\nb","isError":false}"#);
    let others = json!([{"type": "image", "data": "eW8=", "mimeType": "image/png"}]);
    insta::assert_snapshot!(answer(json!({"content": image, "structuredContent": {"content": others}})), @r#"{"toolCallId":"1","toolName":"t","content":"{\"content\":[{\"data\":\"eW8=\",\"mimeType\":\"image/png\",\"type\":\"image\"}]}","contentBlocks":[{"type":"image","data":"aGk=","mimeType":"image/png"},{"type":"text","text":"{\"content\":[{\"data\":\"eW8=\",\"mimeType\":\"image/png\",\"type\":\"image\"}]}"}],"isError":false}"#);
}

#[test]
fn structured_content_that_no_text_repeats_is_kept() {
    insta::assert_snapshot!(answer(json!({"content": [{"type": "text", "text": "15 apples"}], "structuredContent": {"result": 5}})), @r#"{"toolCallId":"1","toolName":"t","content":"15 apples","contentBlocks":[{"type":"text","text":"15 apples"},{"type":"resource","text":"{\"result\":5}","mimeType":"application/json","uri":"toolbus:structured-content"}],"isError":false}"#);
    insta::assert_snapshot!(answer(json!({"content": [{"type": "text", "text": "{}"}], "structuredContent": {"a": "{}"}})), @r#"{"toolCallId":"1","toolName":"t","content":"{}","contentBlocks":[{"type":"text","text":"{}"},{"type":"resource","text":"{\"a\":\"{}\"}","mimeType":"application/json","uri":"toolbus:structured-content"}],"isError":false}"#);
}

#[test]
fn content_of_unknown_types_is_a_text_that_says_so() {
    insta::assert_snapshot!(lenient(json!({"content": [
        {"type": "text", "text": "a"},
        {"type": "video\n", "data": "aGk="},
        {"type": "image", "data": "aGk="},
        {"type": "text", "text": 5},
        {"type": "resource", "resource": {"uri": "file:///b"}},
        "b",
    ], "isError": true})), @r#"{"toolCallId":"1","toolName":"t","content":"a\n[unsupported content of type video\\n]\n[unsupported content of type text]\n[unsupported content of type resource]\n[unsupported content of type unknown]","contentBlocks":[{"type":"text","text":"a"},{"type":"text","text":"[unsupported content of type video\\n]"},{"type":"image","data":"aGk="},{"type":"text","text":"[unsupported content of type text]"},{"type":"text","text":"[unsupported content of type resource]"},{"type":"text","text":"[unsupported content of type unknown]"}],"isError":true}"#);
}

#[test]
fn content_that_is_no_list_is_read_as_one_piece() {
    insta::assert_snapshot!(lenient(json!({"content": "a", "structuredContent": {"a": 1}})), @r#"{"toolCallId":"1","toolName":"t","content":"a","contentBlocks":[{"type":"text","text":"a"},{"type":"resource","text":"{\"a\":1}","mimeType":"application/json","uri":"toolbus:structured-content"}],"isError":false}"#);
    insta::assert_snapshot!(lenient(json!({"content": {"type": "text", "text": "a"}})), @r#"{"toolCallId":"1","toolName":"t","content":"a","isError":false}"#);
}

#[test]
fn what_is_no_result_of_a_tool_is_none() {
    for value in [
        json!(null),
        json!([]),
        json!({}),
        json!({"tools": []}),
        json!({"resultType": "input_required", "content": []}),
    ] {
        assert_eq!(from_value_result(value.clone()), None, "{value}");
    }
}
