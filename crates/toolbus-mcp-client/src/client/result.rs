//! Makes the result of a call complete while its message is read: large ones are read in a turn for heavy work, and
//! nothing is left to compare, check or write afterwards.

use std::io;

use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use base64::read::DecoderReader;
use rmcp::model::{CallToolResult, ContentBlock, ResourceContents};
use serde::Deserialize as _;
use serde_json::Value;
use toolbus_core::text::shown;
use toolbus_protocol::ContentBlock as WireBlock;

/// Reads a result that does not keep to the protocol; `None` if it is no result of a call.
pub(super) fn lenient(result: &mut Value) -> Option<CallToolResult> {
    let fields = result.as_object_mut()?;
    let is_complete = fields.get("resultType").is_none_or(|kind| kind == "complete");
    let is_result = ["content", "structuredContent", "isError"].iter().any(|name| fields.contains_key(*name));
    if !is_complete || !is_result || fields.contains_key("tools") {
        return None;
    }
    let mut read = CallToolResult::default();
    read.content = match fields.get("content") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(blocks)) => blocks.iter().map(block).collect(),
        Some(Value::String(text)) => vec![ContentBlock::text(text)],
        Some(single) => vec![block(single)],
    };
    read.is_error = fields.get("isError").and_then(Value::as_bool);
    read.structured_content = fields.remove("structuredContent");
    Some(read)
}

/// Converts a block of any kind. An unsupported one becomes a text with an explanation.
fn block(block: &Value) -> ContentBlock {
    if let Ok(block) = ContentBlock::deserialize(block) {
        return block;
    }
    let field = |name: &str| block.get(name).and_then(Value::as_str);
    match (field("type"), field("data")) {
        (Some("image"), Some(data)) => ContentBlock::image(data, field("mimeType").unwrap_or_default()),
        (Some("audio"), Some(data)) => ContentBlock::audio(data, field("mimeType").unwrap_or_default()),
        (kind, _) => ContentBlock::text(unsupported(kind.unwrap_or("unknown"))),
    }
}

/// The text that replaces a block of a kind that this daemon does not know.
pub(super) fn unsupported(kind: &str) -> String {
    format!("[unsupported content of type {}]", shown(kind))
}

/// Replaces binary content that is not Base64, and adds structured content that the content does not repeat.
pub(super) fn complete(result: &mut CallToolResult) {
    let structured = result.structured_content.take().filter(|value| !value.is_null());
    let is_repeated = structured.as_ref().is_some_and(|value| is_content(&result.content, value));
    result.content.iter_mut().for_each(check_base64);
    if let Some(value) = structured.as_ref().filter(|_| !is_repeated) {
        let texts = result.content.iter().filter_map(ContentBlock::as_text);
        let texts: Vec<_> = texts.map(|content| &*content.text).collect();
        if texts.is_empty() {
            result.content.push(ContentBlock::text(value.to_string()));
        } else if !is_repeated_in(&texts, value) {
            result.content.push(structured_block(value));
        }
    }
    result.structured_content = structured;
}

/// The structured content of a result, beside texts that do not repeat it.
fn structured_block(value: &Value) -> ContentBlock {
    let WireBlock { uri, mime_type, text, .. } = WireBlock::structured(value.to_string());
    let (uri, text) = (uri.unwrap_or_default(), text.unwrap_or_default());
    ContentBlock::resource(ResourceContents::TextResourceContents { uri, mime_type, text, meta: None })
}

/// Base64 as encoders write it, with padding or without.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Replaces a block whose data is not Base64 with a text that reports it.
fn check_base64(block: &mut ContentBlock) {
    let (kind, data) = match block {
        ContentBlock::Image(image) => ("image", &image.data),
        ContentBlock::Audio(audio) => ("audio", &audio.data),
        ContentBlock::Resource(embedded) => match &embedded.resource {
            ResourceContents::BlobResourceContents { blob, .. } => ("resource", blob),
            _ => return,
        },
        _ => return,
    };
    // Decoded in chunks and discarded: only the validity matters.
    if io::copy(&mut DecoderReader::new(data.as_bytes(), &BASE64), &mut io::sink()).is_err() {
        *block = ContentBlock::text(format!("[content of type {kind} that is not valid Base64]"));
    }
}

/// Whether `value` adds nothing to `texts`.
///
/// MCP recommends that servers repeat structured content as JSON text. The common Python SDK wraps what is no object as
/// `{"result": …}`, writes strings as they are, and each item of a list as a text of its own. Servers of the reference
/// wrap their text as `{"content": …}`.
fn is_repeated_in(texts: &[&str], value: &Value) -> bool {
    let is_wrapped = |name| unwrapped(value, name).is_some_and(|inner| repeats(texts, inner));
    repeats(texts, value) || is_wrapped("result") || is_wrapped("content")
}

/// Whether `value` is all the content once more, as servers of the reference have it for images and sound.
fn is_content(blocks: &[ContentBlock], value: &Value) -> bool {
    let Some(Value::Array(items)) = unwrapped(value, "content") else { return false };
    !items.is_empty()
        && items.len() == blocks.len()
        && items.iter().zip(blocks).all(|(item, text)| block(item) == *text)
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
    use rmcp::model::ServerResult;
    use serde_json::json;
    use toolbus_core::tool::ToolOutput;
    use toolbus_protocol::ToolInvokeResponse;

    use super::super::call;
    use super::*;

    fn output(mut result: CallToolResult) -> ToolOutput {
        complete(&mut result);
        call::output("t", ServerResult::CallToolResult(result)).unwrap()
    }

    fn wire(result: CallToolResult) -> String {
        let output = output(result);
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
    fn reply(mut result: Value) -> String {
        let reply = wire(serde_json::from_value(result.clone()).unwrap());
        assert_eq!(reply, wire(lenient(&mut result).unwrap()));
        reply
    }

    /// The reply to a result that the protocol does not know.
    fn lenient_reply(mut result: Value) -> String {
        assert!(serde_json::from_value::<CallToolResult>(result.clone()).is_err(), "{result}");
        wire(lenient(&mut result).unwrap())
    }

    #[test]
    fn texts_are_joined_with_one_newline_and_nothing_more_is_written() {
        insta::assert_snapshot!(reply(json!({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b\n"}, {"type": "text", "text": ""}]})), @r#"{"toolCallId":"1","toolName":"t","content":"a\nb\n\n","isError":false}"#);
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
    fn binary_content_that_is_not_base64_is_replaced_by_a_text() {
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
            let result = output(lenient(&mut json!({"content": content, "structuredContent": structured})).unwrap());
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
    fn content_of_unknown_types_is_replaced_by_a_text() {
        insta::assert_snapshot!(lenient_reply(json!({"content": [
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
        insta::assert_snapshot!(lenient_reply(json!({"content": "a", "structuredContent": {"a": 1}})), @r#"{"toolCallId":"1","toolName":"t","content":"a","contentBlocks":[{"type":"text","text":"a"},{"type":"resource","text":"{\"a\":1}","mimeType":"application/json","uri":"toolbus:structured-content"}],"isError":false}"#);
        insta::assert_snapshot!(lenient_reply(json!({"content": {"type": "text", "text": "a"}})), @r#"{"toolCallId":"1","toolName":"t","content":"a","isError":false}"#);
    }

    #[test]
    fn a_result_of_another_kind_is_no_tool_result() {
        for value in [
            json!(null),
            json!([]),
            json!({}),
            json!({"tools": []}),
            json!({"resultType": "input_required", "content": []}),
        ] {
            assert_eq!(lenient(&mut value.clone()), None, "{value}");
        }
    }
}
