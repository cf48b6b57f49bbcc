//! Reading what a server sends.

use rmcp::model::{
    CallToolResult, ContentBlock, CustomResult, JsonRpcResponse, JsonRpcVersion2_0, MetaObject, RequestId, ResultType,
    ServerJsonRpcMessage, ServerResult,
};
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use toolbus_protocol::large_integers;

use super::result;

/// Reads one message.
///
/// rmcp takes a page of tools that has metadata, and a definition that it cannot read, for the empty result of a call.
/// Such a page is kept as it is. An unreadable response becomes one without a result, so that its request fails at
/// once.
///
/// # Errors
///
/// If `text` is not an MCP message.
pub(crate) fn read(text: &[u8]) -> serde_json::Result<ServerJsonRpcMessage> {
    let mut message = parse(text)?;
    if let Some(result) = result_of_call(&mut message) {
        keep_large_integers(text, result);
        result::complete(result);
    }
    Ok(message)
}

fn parse(text: &[u8]) -> serde_json::Result<ServerJsonRpcMessage> {
    if let Ok(response) = serde_json::from_slice::<CallResponse>(text)
        && let Some(message) = response.message()
    {
        return Ok(message);
    }
    if let Some(result) = without_null_error(text) {
        return parse(&result);
    }
    let message = match serde_json::from_slice(text) {
        Ok(message) => message,
        Err(error) => return salvaged(text).ok_or(error),
    };
    if let ServerJsonRpcMessage::Response(response) = &message
        && let ServerResult::CallToolResult(result) = &response.result
        && result.content.is_empty()
        && result.structured_content.is_none()
        && result.is_error.is_none()
    {
        let JsonRpcResponse::<CustomResult> { id, result, .. } = serde_json::from_slice(text)?;
        if result.0.get("tools").is_some() {
            return Ok(ServerJsonRpcMessage::response(ServerResult::CustomResult(result), id));
        }
    }
    Ok(message)
}

/// The result of a call in the response to one.
fn result_of_call(message: &mut ServerJsonRpcMessage) -> Option<&mut CallToolResult> {
    let ServerJsonRpcMessage::Response(JsonRpcResponse { result, .. }) = message else { return None };
    if let ServerResult::CustomResult(CustomResult(value)) = result
        && let Some(read) = result::lenient(value)
    {
        *result = ServerResult::CallToolResult(read);
    }
    match result {
        ServerResult::CallToolResult(result) => Some(result),
        _ => None,
    }
}

/// Adds the structured part of a result as a text, as its server wrote it, if it has an integer that no text of the result
/// has: a [`Value`] cannot hold more than 64 bits, and has it rounded.
fn keep_large_integers(text: &[u8], result: &mut CallToolResult) {
    #[derive(Deserialize)]
    struct StructuredResponse<'a> {
        #[serde(borrow)]
        result: StructuredResult<'a>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct StructuredResult<'a> {
        #[serde(borrow)]
        structured_content: &'a RawValue,
    }
    if !result.structured_content.as_ref().is_some_and(has_rounded) {
        return;
    }
    let Ok(StructuredResponse { result: StructuredResult { structured_content } }) = serde_json::from_slice(text)
    else {
        return;
    };
    let texts = || result.content.iter().filter_map(ContentBlock::as_text);
    let is_shown = |integer: &str| texts().any(|block| block.text.contains(integer));
    let mut integers = large_integers(structured_content.get());
    let is_missing = !integers.by_ref().take(MAX_COMPARED).all(is_shown) || integers.next().is_some();
    if is_missing {
        result.content.push(ContentBlock::text(structured_content.get()));
    }
}

/// Whether a value has a number that may have been an integer of more than 64 bits.
fn has_rounded(value: &Value) -> bool {
    match value {
        Value::Number(number) => number.is_f64() && number.as_f64().is_some_and(|number| number.abs() >= MAX_SIGNED),
        Value::Array(elements) => elements.iter().any(has_rounded),
        Value::Object(fields) => fields.values().any(has_rounded),
        Value::Null | Value::Bool(_) | Value::String(_) => false,
    }
}

/// Large integers that are looked for in the texts of a result. Where there are more, none is looked for.
const MAX_COMPARED: usize = 16;
/// 2⁶³.
const MAX_SIGNED: f64 = 9_223_372_036_854_775_808.0;

/// Longest notification that is read, in bytes: none that is of use comes near it.
pub(crate) const MAX_NOTIFICATION: usize = 64 * 1024;

/// Whether a text is a notification that is too long to be of use. Finding that out costs a small part of reading it.
pub(crate) fn is_long_notification(text: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Head {
        method: Option<IgnoredAny>,
        id: Option<IgnoredAny>,
    }
    text.len() > MAX_NOTIFICATION
        && matches!(serde_json::from_slice(text), Ok(Head { method: Some(IgnoredAny), id: None }))
}

/// The response to a call, as servers write it. rmcp tries one kind of message and of result after the other, which takes
/// several times as long; a message with exactly these fields means the same to it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CallResponse {
    #[serde(rename = "jsonrpc")]
    _version: JsonRpcVersion2_0,
    id: RequestId,
    result: Called,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Called {
    result_type: Option<ResultType>,
    content: Vec<ContentBlock>,
    #[serde(default, deserialize_with = "present")]
    structured_content: Option<Value>,
    is_error: Option<bool>,
    #[serde(rename = "_meta")]
    meta: Option<MetaObject>,
}

impl CallResponse {
    fn message(self) -> Option<ServerJsonRpcMessage> {
        let Called { result_type, content, structured_content, is_error, meta } = self.result;
        if result_type.as_ref().is_some_and(|kind| !kind.is_complete()) {
            return None;
        }
        let mut result = CallToolResult::default();
        (result.result_type, result.content, result.structured_content) = (result_type, content, structured_content);
        (result.is_error, result.meta) = (is_error, meta);
        Some(ServerJsonRpcMessage::response(ServerResult::CallToolResult(result), self.id))
    }
}

/// Distinguishes `null` from an absent field.
fn present<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

/// A message whose result is not read; with a method it is no response.
#[derive(Deserialize)]
struct RawResponse<'a> {
    id: RequestId,
    method: Option<IgnoredAny>,
    #[serde(borrow)]
    result: Option<&'a RawValue>,
    #[serde(default, deserialize_with = "present")]
    error: Option<Value>,
}

/// A response with a result and a null `error`, without the latter; `None` for any other message.
fn without_null_error(text: &[u8]) -> Option<Vec<u8>> {
    #[derive(Serialize)]
    struct ResultResponse<'a> {
        jsonrpc: JsonRpcVersion2_0,
        id: RequestId,
        result: &'a RawValue,
    }
    memchr::memmem::find(text, b"\"error\"")?;
    let RawResponse { id, method: None, result: Some(result), error: Some(Value::Null) } =
        serde_json::from_slice(text).ok()?
    else {
        return None;
    };
    serde_json::to_vec(&ResultResponse { jsonrpc: JsonRpcVersion2_0, id, result }).ok()
}

/// Reads as much as possible of a response that cannot be read as a whole, most likely because it is nested too deep:
/// its id, and the valid tools of a page.
fn salvaged(text: &[u8]) -> Option<ServerJsonRpcMessage> {
    let RawResponse { id, method: None, result, .. } = serde_json::from_slice(text).ok()? else { return None };
    let result = result.and_then(salvaged_page).unwrap_or_default();
    Some(ServerJsonRpcMessage::response(ServerResult::CustomResult(CustomResult(result)), id))
}

fn salvaged_page(result: &RawValue) -> Option<Value> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct ListPage<'a> {
        #[serde(borrow)]
        tools: Vec<&'a RawValue>,
        next_cursor: Option<String>,
    }
    #[derive(Deserialize)]
    struct NamedTool {
        name: Option<String>,
    }
    let ListPage { tools, next_cursor } = serde_json::from_str(result.get()).ok()?;
    let read = |tool: &RawValue| {
        let name = || serde_json::from_str(tool.get()).ok().and_then(|NamedTool { name }| name);
        serde_json::from_str(tool.get()).unwrap_or_else(|_| json!({ "name": name() }))
    };
    let tools: Vec<Value> = tools.into_iter().map(read).collect();
    Some(json!({ "tools": tools, "nextCursor": next_cursor }))
}

/// The id of the request that a message responds to, if any. The response itself is not read.
pub(crate) fn response_id(text: &[u8]) -> Option<RequestId> {
    let RawResponse { id, method: None, .. } = serde_json::from_slice(text).ok()? else { return None };
    Some(id)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn result_of(result: Value) -> ServerResult {
        let message = json!({ "jsonrpc": "2.0", "id": 1, "result": result });
        match read(message.to_string().as_bytes()) {
            Ok(ServerJsonRpcMessage::Response(response)) => response.result,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_call_response_is_read_as_by_the_sdk() {
        let text =
            json!({ "type": "text", "text": "a\u{e9}", "annotations": { "priority": 1.0 }, "_meta": { "a": 1 } });
        let image = json!({ "type": "image", "data": "AA==", "mimeType": "image/png", "more": 1 });
        let table = [
            (true, json!({ "content": [text, image] })),
            (true, json!({ "content": [], "isError": false, "resultType": "complete" })),
            (true, json!({ "content": [text], "structuredContent": null, "isError": true, "_meta": { "b": [] } })),
            (true, json!({ "content": [], "structuredContent": { "tools": [1.5] } })),
            (false, json!({ "content": [], "tools": [] })),
            (false, json!({ "content": [], "resultType": "input_required", "inputRequests": {} })),
            (false, json!({ "content": [], "resultType": "other" })),
            (false, json!({ "content": [{ "type": "hologram" }] })),
            (false, json!({ "content": null })),
            (false, json!({ "isError": true })),
            (false, json!({})),
        ];
        for id in [json!(7), json!("7")] {
            for (is_read_at_once, result) in &table {
                let message = json!({ "jsonrpc": "2.0", "id": id, "result": result }).to_string();
                let at_once = serde_json::from_str::<CallResponse>(&message).ok().and_then(CallResponse::message);
                assert_eq!(at_once.is_some(), *is_read_at_once, "{message}");
                let Some(at_once) = at_once else { continue };
                let by_the_sdk: ServerJsonRpcMessage = serde_json::from_str(&message).unwrap();
                assert_eq!(format!("{at_once:?}"), format!("{by_the_sdk:?}"));
            }
        }
    }

    #[test]
    fn only_notifications_over_the_length_count_as_long() {
        let text = |length: usize| "x".repeat(length);
        let notice =
            |length| json!({"jsonrpc": "2.0", "method": "notifications/x", "params": {"id": 1, "t": text(length)}});
        let request =
            json!({"jsonrpc": "2.0", "id": 1, "method": "roots/list", "params": {"t": text(MAX_NOTIFICATION)}});
        let response = json!({"jsonrpc": "2.0", "id": 1, "result": {"method": text(MAX_NOTIFICATION)}});
        let table = [(true, notice(MAX_NOTIFICATION)), (false, notice(60_000)), (false, request), (false, response)];
        for (is_long, message) in table {
            assert_eq!(is_long_notification(message.to_string().as_bytes()), is_long);
        }
        assert!(!is_long_notification("x".repeat(2 * MAX_NOTIFICATION).as_bytes()));
    }

    #[test]
    fn a_page_with_a_tool_that_cannot_be_read_is_kept() {
        let page = json!({ "_meta": {}, "tools": [{ "name": "bad" }], "nextCursor": "2" });
        let ServerResult::CustomResult(kept) = result_of(page.clone()) else { panic!("it is not kept") };
        assert_eq!(kept.0, page);
    }

    #[test]
    fn other_messages_are_read_as_by_the_sdk() {
        let tool = json!({ "name": "good", "inputSchema": {} });
        assert!(matches!(result_of(json!({ "_meta": {}, "tools": [tool] })), ServerResult::ListToolsResult(_)));
        assert!(matches!(result_of(json!({ "_meta": {} })), ServerResult::CallToolResult(_)));
        assert!(matches!(result_of(json!({ "_meta": {}, "content": [] })), ServerResult::CallToolResult(_)));
        assert!(read(b"{}").is_err());
    }

    #[test]
    fn an_unreadable_response_is_one_without_a_result() {
        let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        let response = |result: &str| format!(r#"{{"jsonrpc":"2.0","id":7,"result":{result}}}"#);
        for text in [response(&deep), response(r#"{"content":"\ud800"}"#), r#"{"jsonrpc":"2.0","id":7}"#.to_owned()] {
            let Ok(ServerJsonRpcMessage::Response(response)) = read(text.as_bytes()) else { panic!("{text:.80}") };
            assert_eq!(response.id, RequestId::Number(7));
            let ServerResult::CustomResult(result) = response.result else { panic!("{text:.80}") };
            assert_eq!(result.0, Value::Null);
        }
        let request = response(&deep).replace("result", "method");
        assert!(read(request.as_bytes()).is_err());
    }

    #[test]
    fn a_null_error_beside_a_result_is_ignored() {
        let result = json!({ "content": [{ "type": "text", "text": "x" }] });
        let text = json!({ "jsonrpc": "2.0", "id": 7, "result": result, "error": null }).to_string();
        let plain = json!({ "jsonrpc": "2.0", "id": 7, "result": result }).to_string();
        let [with, without] = [&text, &plain].map(|text| format!("{:?}", read(text.as_bytes()).unwrap()));
        assert_eq!(with, without);
    }

    #[test]
    fn one_definition_that_is_nested_too_deep_does_not_hide_the_others() {
        let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
        let page = format!(r#"{{"tools":[{{"name":"bad","inputSchema":{deep}}},{{"name":"good"}}],"nextCursor":"2"}}"#);
        let text = format!(r#"{{"jsonrpc":"2.0","id":7,"result":{page}}}"#);
        let Ok(ServerJsonRpcMessage::Response(response)) = read(text.as_bytes()) else { panic!("no response") };
        let ServerResult::CustomResult(kept) = response.result else { panic!("it is not kept") };
        assert_eq!(kept.0, json!({ "tools": [{ "name": "bad" }, { "name": "good" }], "nextCursor": "2" }));
    }

    #[test]
    fn large_integers_of_structured_content_are_in_a_text_with_all_their_digits() {
        const IDS: &str = r#"{"ids": [12345678901234567890123, -99999999999999999999]}"#;
        let texts = |content: &str, other: &str| {
            let result = format!(r#"{{"content": [{content}], "structuredContent": {IDS}{other}}}"#);
            let message = format!(r#"{{"jsonrpc": "2.0", "id": 1, "result": {result}}}"#);
            let message = read(message.as_bytes()).unwrap();
            let ServerJsonRpcMessage::Response(JsonRpcResponse {
                result: ServerResult::CallToolResult(result), ..
            }) = message
            else {
                panic!("{message:?}")
            };
            result.content.iter().filter_map(ContentBlock::as_text).map(|block| block.text.clone()).collect::<Vec<_>>()
        };
        assert_eq!(texts("", ""), [IDS]);
        assert_eq!(texts("", r#", "more": 1"#), [IDS]);
        assert_eq!(texts(r#"{"type": "text", "text": "15 apples"}"#, ""), ["15 apples", IDS]);
        let text = r#"{"type": "text", "text": "12345678901234567890123 and -99999999999999999999"}"#;
        assert_eq!(texts(text, ""), ["12345678901234567890123 and -99999999999999999999"]);
        let one = r#"{"type": "text", "text": "id 12345678901234567890123"}"#;
        assert_eq!(texts(one, ""), ["id 12345678901234567890123", IDS]);
    }
}
