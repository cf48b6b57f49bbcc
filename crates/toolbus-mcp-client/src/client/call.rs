//! From a call to its request, and from the server's response to a result.

use std::io;

use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use base64::read::DecoderReader;
use rmcp::model::{
    CallToolRequest, CallToolRequestParams, CallToolResult, ClientRequest, ContentBlock as McpBlock, Extensions,
    RequestMetaObject, Resource, ResourceContents, ServerResult,
};
use serde::{Deserialize as _, Serialize};
use serde_json::{Map, Value};
use toolbus_core::failure::{Cause, ToolFailure};
use toolbus_core::text::shown;
use toolbus_core::tool::{ToolCall, ToolOutput};
use toolbus_core::turns::{SMALL, is_small};
use toolbus_protocol::{ContentBlock, header};

use super::notifications::ProgressMark;

/// The parameters of a call, as they are written.
#[derive(Serialize)]
pub(super) struct Params<'a> {
    name: &'a str,
    arguments: &'a Map<String, Value>,
    #[serde(rename = "_meta", skip_serializing_if = "Option::is_none")]
    meta: Option<RequestMetaObject>,
}

/// The parameters of a call. `common` is the `_meta` of every request.
pub(super) fn params<'a>(tool: &'a str, call: &'a ToolCall, common: Option<&RequestMetaObject>) -> Params<'a> {
    let meta = match (common.cloned(), meta(call)) {
        (Some(mut common), Some(own)) => {
            common.extend(own);
            Some(common)
        }
        (common, own) => common.or(own),
    };
    Params { name: tool, arguments: &call.arguments, meta }
}

/// The trace of a call, for the server to go on with, and the key by which it recognises a repetition.
fn meta(call: &ToolCall) -> Option<RequestMetaObject> {
    let mut meta = RequestMetaObject::new();
    if let Some(trace) = &call.trace {
        meta.set_traceparent(trace.traceparent());
        if let Some(state) = trace.tracestate() {
            meta.set_tracestate(state);
        }
    }
    if let Some(key) = &call.idempotency_key {
        meta.insert(header::IDEMPOTENCY_KEY.to_owned(), Value::from(&**key));
    }
    (!meta.is_empty()).then_some(meta)
}

/// The request of a call, for rmcp. `token` is its progress token.
pub(super) fn request(tool: &str, call: &ToolCall, token: Option<ProgressMark>) -> ClientRequest {
    let mut extensions = Extensions::new();
    if let Some(meta) = meta(call) {
        extensions.insert(meta);
    }
    if let Some(token) = token {
        extensions.insert(token);
    }
    let params = CallToolRequestParams::new(tool.to_owned()).with_arguments((*call.arguments).clone());
    let mut request = CallToolRequest::new(params);
    request.extensions = extensions;
    ClientRequest::CallToolRequest(request)
}

/// Whether a result is heavy to convert.
pub(super) fn is_large(result: &ServerResult) -> bool {
    let bytes = |block: &McpBlock| match block {
        McpBlock::Text(content) => content.text.len(),
        McpBlock::Image(image) => image.data.len(),
        McpBlock::Audio(audio) => audio.data.len(),
        McpBlock::Resource(embedded) => match &embedded.resource {
            ResourceContents::TextResourceContents { text, .. } => text.len(),
            ResourceContents::BlobResourceContents { blob, .. } => blob.len(),
            _ => 0,
        },
        _ => 0,
    };
    match result {
        ServerResult::CallToolResult(result) => {
            result.content.iter().map(bytes).sum::<usize>() > SMALL
                || result.structured_content.as_ref().is_some_and(|value| !is_small(value))
        }
        ServerResult::CustomResult(result) => !is_small(&result.0),
        _ => false,
    }
}

/// The result of a call.
pub(super) fn output(tool: &str, result: ServerResult) -> Result<ToolOutput, ToolFailure> {
    match result {
        ServerResult::CallToolResult(result) => Ok(from_result(result)),
        ServerResult::EmptyResult(_) | ServerResult::TaskAckResult(_) => Ok(from_result(CallToolResult::default())),
        ServerResult::InputRequiredResult(_) => Err(ToolFailure::new(
            Cause::Failed,
            format!("Tool '{tool}' needs input from a person, which this bridge does not relay."),
        )),
        ServerResult::CreateTaskResult(_) | ServerResult::GetTaskResult(_) => Err(ToolFailure::new(
            Cause::Failed,
            format!("Tool '{tool}' runs as a task that is asked for its result later, which this bridge does not do."),
        )),
        ServerResult::CustomResult(result) => from_value_result(result.0).ok_or_else(|| invalid(tool)),
        _ => Err(invalid(tool)),
    }
}

fn invalid(tool: &str) -> ToolFailure {
    let text = format!("Tool '{tool}' answered with something that is not the result of a call.");
    ToolFailure::new(Cause::InvalidResult, text)
}

/// The result of a tool: its text in `content`, and all of it in `blocks` if there is more than text.
pub(crate) fn from_result(result: CallToolResult) -> ToolOutput {
    let blocks = result.content.into_iter().map(from_mcp).collect();
    assembled(blocks, result.structured_content, result.is_error.unwrap_or_default())
}

/// The same of a result that does not keep to the protocol; `None` for what is no result of a tool.
pub(crate) fn from_value_result(mut result: Value) -> Option<ToolOutput> {
    let fields = result.as_object_mut()?;
    let is_complete = fields.get("resultType").is_none_or(|kind| kind == "complete");
    let is_result = ["content", "structuredContent", "isError"].iter().any(|name| fields.contains_key(*name));
    if !is_complete || !is_result {
        return None;
    }
    let blocks = match fields.get("content") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(blocks)) => blocks.iter().map(from_value).collect(),
        Some(Value::String(text)) => vec![ContentBlock::text(text)],
        Some(single) => vec![from_value(single)],
    };
    let is_error = fields.get("isError").and_then(Value::as_bool).unwrap_or_default();
    Some(assembled(blocks, fields.remove("structuredContent"), is_error))
}

fn assembled(mut blocks: Vec<ContentBlock>, structured: Option<Value>, is_error: bool) -> ToolOutput {
    let structured = structured.filter(|value| !value.is_null());
    if let Some(structured) = structured.as_ref().filter(|value| !is_content(&blocks, value)) {
        let texts = texts(&blocks);
        if texts.is_empty() {
            blocks.push(ContentBlock::text(structured.to_string()));
        } else if !is_said(&texts, structured) {
            blocks.push(ContentBlock::structured(structured.to_string()));
        }
    }
    let texts = texts(&blocks);
    let content = (!texts.is_empty()).then(|| texts.join("\n"));
    if texts.len() == blocks.len() {
        blocks.clear();
    }
    ToolOutput { content, blocks, is_error, structured: structured.map(Box::new), ..ToolOutput::default() }
}

fn texts(blocks: &[ContentBlock]) -> Vec<&str> {
    blocks.iter().filter(|block| block.kind == "text").filter_map(|block| block.text.as_deref()).collect()
}

/// Base64 as encoders write it, with padding or without.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// A piece of a kind that this daemon knows.
fn from_mcp(block: McpBlock) -> ContentBlock {
    match block {
        McpBlock::Text(content) => ContentBlock::text(content.text),
        McpBlock::Image(image) => binary_block("image", image.data, Some(image.mime_type)),
        McpBlock::Audio(audio) => binary_block("audio", audio.data, Some(audio.mime_type)),
        McpBlock::Resource(embedded) => resource_block(embedded.resource),
        McpBlock::ResourceLink(resource) => link_block(resource),
        _ => unsupported("unknown"),
    }
}

/// Converts a block of any kind. An unsupported one becomes a text block with an explanation.
fn from_value(block: &Value) -> ContentBlock {
    if let Ok(block) = McpBlock::deserialize(block) {
        return from_mcp(block);
    }
    let field = |name: &str| block.get(name).and_then(Value::as_str);
    match (field("type"), field("data")) {
        (Some(kind @ ("image" | "audio")), Some(data)) => {
            binary_block(kind, data.to_owned(), field("mimeType").map(ToOwned::to_owned))
        }
        (kind, _) => unsupported(kind.unwrap_or("unknown")),
    }
}

fn unsupported(kind: &str) -> ContentBlock {
    ContentBlock::text(format!("[unsupported content of type {}]", shown(kind)))
}

fn binary_block(kind: &str, data: String, mime_type: Option<String>) -> ContentBlock {
    if !is_base64(&data) {
        return ContentBlock::text(format!("[content of type {kind} that is not valid Base64]"));
    }
    ContentBlock { kind: kind.to_owned(), data: Some(data), mime_type, ..ContentBlock::default() }
}

fn resource_block(contents: ResourceContents) -> ContentBlock {
    match contents {
        ResourceContents::TextResourceContents { uri, mime_type, text, .. } => {
            let uri = Some(uri);
            ContentBlock { kind: "resource".to_owned(), text: Some(text), mime_type, uri, ..ContentBlock::default() }
        }
        ResourceContents::BlobResourceContents { uri, mime_type, blob, .. } => {
            let block = binary_block("resource", blob, mime_type);
            if block.kind == "resource" { ContentBlock { uri: Some(uri), ..block } } else { block }
        }
        _ => unsupported("resource"),
    }
}

/// A link carries no content: its name is the only text that there is.
fn link_block(resource: Resource) -> ContentBlock {
    ContentBlock {
        kind: "resource".to_owned(),
        text: Some(resource.name),
        mime_type: resource.mime_type,
        uri: Some(resource.uri),
        ..ContentBlock::default()
    }
}

fn is_base64(data: &str) -> bool {
    // Decoded in chunks and discarded: only the validity matters.
    io::copy(&mut DecoderReader::new(data.as_bytes(), &BASE64), &mut io::sink()).is_ok()
}

/// Whether `value` adds nothing to `texts`.
///
/// MCP asks servers to repeat structured content as JSON text. The common Python SDK wraps what is no object as
/// `{"result": …}`, writes strings as they are, and each item of a list as a text of its own. Servers of the reference
/// wrap their text as `{"content": …}`.
fn is_said(texts: &[&str], value: &Value) -> bool {
    let is_wrapped = |name| unwrapped(value, name).is_some_and(|inner| repeats(texts, inner));
    repeats(texts, value) || is_wrapped("result") || is_wrapped("content")
}

/// Whether `value` is all the content once more, as servers of the reference have it for images and sound.
fn is_content(blocks: &[ContentBlock], value: &Value) -> bool {
    let Some(Value::Array(items)) = unwrapped(value, "content") else { return false };
    !items.is_empty()
        && items.len() == blocks.len()
        && items.iter().zip(blocks).all(|(item, said)| from_value(item) == *said)
}

/// The only field of an object, if it has this name.
fn unwrapped<'a>(value: &'a Value, name: &str) -> Option<&'a Value> {
    value.as_object().filter(|fields| fields.len() == 1)?.get(name)
}

fn repeats(texts: &[&str], value: &Value) -> bool {
    if texts.iter().any(|text| is_text_of(text, value)) {
        return true;
    }
    match value {
        Value::Array(items) => {
            items.len() == texts.len() && texts.iter().zip(items).all(|(text, item)| is_text_of(text, item))
        }
        Value::Object(fields) if !fields.is_empty() => {
            let json = value.to_string();
            texts.iter().any(|text| text.contains(&json))
        }
        _ => false,
    }
}

fn is_text_of(text: &str, value: &Value) -> bool {
    let first = text.trim_start().bytes().next();
    // A text of another kind is not worth parsing.
    let may_be = match value {
        Value::String(string) => {
            return text == string || serde_json::from_str::<String>(text).is_ok_and(|t| t == *string);
        }
        Value::Object(_) => first == Some(b'{'),
        Value::Array(_) => first == Some(b'['),
        Value::Null | Value::Bool(_) | Value::Number(_) => first.is_some(),
    };
    may_be && serde_json::from_str::<Value>(text).is_ok_and(|parsed| parsed == *value)
}

#[cfg(test)]
mod tests {
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

    /// The reply on the wire, whichever way the result was read.
    fn reply(result: Value) -> String {
        let typed: CallToolResult = serde_json::from_value(result.clone()).unwrap();
        let reply = wire(from_result(typed));
        assert_eq!(reply, wire(from_value_result(result).unwrap()));
        reply
    }

    /// The reply to a result that the protocol does not know.
    fn lenient(result: Value) -> String {
        assert!(serde_json::from_value::<CallToolResult>(result.clone()).is_err(), "{result}");
        wire(from_value_result(result).unwrap())
    }

    #[test]
    fn texts_are_joined_with_one_newline_and_nothing_more_is_written() {
        insta::assert_snapshot!(reply(json!({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b\n"}, {"type": "text", "text": ""}]})), @r#"{"toolCallId":"1","toolName":"t","content":"a\nb\n\n","isError":false}"#);
    }

    #[test]
    fn a_result_is_heavy_by_any_of_its_parts() {
        let of = |text: &str| {
            [
                json!({"content": [{"type": "text", "text": text}]}),
                json!({"content": [{"type": "image", "data": text, "mimeType": "image/png"}]}),
                json!({"content": [{"type": "audio", "data": text, "mimeType": "audio/wav"}]}),
                json!({"content": [{"type": "resource", "resource": {"uri": "file:///a", "text": text}}]}),
                json!({"content": [{"type": "resource", "resource": {"uri": "file:///a", "blob": text}}]}),
                json!({"content": [], "structuredContent": {"text": text}}),
            ]
        };
        let typed = |result| is_large(&ServerResult::CallToolResult(serde_json::from_value(result).unwrap()));
        assert_eq!(of(&"x".repeat(SMALL + 1)).map(typed), [true; 6]);
        assert_eq!(of("x").map(typed), [false; 6]);
    }

    #[test]
    fn a_result_without_content_has_none() {
        insta::assert_snapshot!(reply(json!({"content": []})), @r#"{"toolCallId":"1","toolName":"t","content":null,"isError":false}"#);
        insta::assert_snapshot!(reply(json!({"content": [], "structuredContent": null, "isError": true})), @r#"{"toolCallId":"1","toolName":"t","content":null,"isError":true}"#);
    }

    #[test]
    fn other_content_is_written_in_order_with_the_texts() {
        insta::assert_snapshot!(reply(json!({"content": [
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
        insta::assert_snapshot!(reply(json!({"content": [{"type": "image", "data": "", "mimeType": "image/png"}]})), @r#"{"toolCallId":"1","toolName":"t","content":null,"contentBlocks":[{"type":"image","data":"","mimeType":"image/png"}],"isError":false}"#);
    }

    #[test]
    fn binary_content_that_is_not_base64_is_a_text_that_says_so() {
        insta::assert_snapshot!(reply(json!({"content": [
        {"type": "image", "data": "<svg/>", "mimeType": "image/svg+xml"},
        {"type": "audio", "data": "aGk=aGk=", "mimeType": "audio/wav"},
        {"type": "resource", "resource": {"uri": "file:///b", "blob": "a"}},
    ]})), @r#"{"toolCallId":"1","toolName":"t","content":"[content of type image that is not valid Base64]\n[content of type audio that is not valid Base64]\n[content of type resource that is not valid Base64]","isError":false}"#);
    }

    #[test]
    fn structured_content_without_text_is_the_text() {
        insta::assert_snapshot!(reply(json!({"content": [], "structuredContent": {"b": 1, "a": [true]}})), @r#"{"toolCallId":"1","toolName":"t","content":"{\"a\":[true],\"b\":1}","isError":false}"#);
        insta::assert_snapshot!(reply(json!({"content": [{"type": "image", "data": "aGk=", "mimeType": "image/png"}], "structuredContent": {"a": 1}})), @r#"{"toolCallId":"1","toolName":"t","content":"{\"a\":1}","contentBlocks":[{"type":"image","data":"aGk=","mimeType":"image/png"},{"type":"text","text":"{\"a\":1}"}],"isError":false}"#);
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
        insta::assert_snapshot!(reply(json!({"content": image, "structuredContent": {"content": image}})), @r#"{"toolCallId":"1","toolName":"t","content":null,"contentBlocks":[{"type":"image","data":"aGk=","mimeType":"image/png"}],"isError":false}"#);
        let text = json!([{"type": "text", "text": "a\nb"}]);
        insta::assert_snapshot!(reply(json!({"content": text, "structuredContent": {"content": "a\nb"}})), @r#"{"toolCallId":"1","toolName":"t","content":"a\nb","isError":false}"#);
        let others = json!([{"type": "image", "data": "eW8=", "mimeType": "image/png"}]);
        insta::assert_snapshot!(reply(json!({"content": image, "structuredContent": {"content": others}})), @r#"{"toolCallId":"1","toolName":"t","content":"{\"content\":[{\"data\":\"eW8=\",\"mimeType\":\"image/png\",\"type\":\"image\"}]}","contentBlocks":[{"type":"image","data":"aGk=","mimeType":"image/png"},{"type":"text","text":"{\"content\":[{\"data\":\"eW8=\",\"mimeType\":\"image/png\",\"type\":\"image\"}]}"}],"isError":false}"#);
    }

    #[test]
    fn structured_content_that_no_text_repeats_is_kept() {
        insta::assert_snapshot!(reply(json!({"content": [{"type": "text", "text": "15 apples"}], "structuredContent": {"result": 5}})), @r#"{"toolCallId":"1","toolName":"t","content":"15 apples","contentBlocks":[{"type":"text","text":"15 apples"},{"type":"resource","text":"{\"result\":5}","mimeType":"application/json","uri":"toolbus:structured-content"}],"isError":false}"#);
        insta::assert_snapshot!(reply(json!({"content": [{"type": "text", "text": "{}"}], "structuredContent": {"a": "{}"}})), @r#"{"toolCallId":"1","toolName":"t","content":"{}","contentBlocks":[{"type":"text","text":"{}"},{"type":"resource","text":"{\"a\":\"{}\"}","mimeType":"application/json","uri":"toolbus:structured-content"}],"isError":false}"#);
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
}
