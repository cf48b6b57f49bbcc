//! Reading what a server sends.

use rmcp::model::{CustomResult, JsonRpcResponse, ServerJsonRpcMessage, ServerResult};
use serde_json::Value;

/// Reads one message.
///
/// The SDK takes a page of tools that has metadata, and a definition that it cannot read, for the empty result of a
/// call. Such a page is kept as it is.
///
/// # Errors
///
/// When it is no message of the protocol.
pub(crate) fn read(text: &[u8]) -> serde_json::Result<ServerJsonRpcMessage> {
    let message = serde_json::from_slice(text)?;
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

/// The same for a text that the SDK is going to read: such a page is returned without its metadata, which nobody needs.
pub(crate) fn readable(text: String) -> String {
    let is_suspect = ["\"tools\"", "\"_meta\""].iter().all(|member| text.contains(member));
    if is_suspect
        && let Ok(ServerJsonRpcMessage::Response(mut response)) = read(text.as_bytes())
        && let ServerResult::CustomResult(CustomResult(Value::Object(members))) = &mut response.result
        && members.remove("_meta").is_some()
        && let Ok(written) = serde_json::to_string(&ServerJsonRpcMessage::Response(response))
    {
        return written;
    }
    text
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
    fn a_page_with_a_tool_that_cannot_be_read_is_kept() {
        let page = json!({ "_meta": {}, "tools": [{ "name": "bad" }], "nextCursor": "2" });
        let ServerResult::CustomResult(kept) = result_of(page.clone()) else { panic!("it is not kept") };
        assert_eq!(kept.0, page);
    }

    #[test]
    fn everything_else_is_what_the_sdk_makes_of_it() {
        let tool = json!({ "name": "good", "inputSchema": {} });
        assert!(matches!(result_of(json!({ "_meta": {}, "tools": [tool] })), ServerResult::ListToolsResult(_)));
        assert!(matches!(result_of(json!({ "_meta": {} })), ServerResult::CallToolResult(_)));
        assert!(matches!(result_of(json!({ "_meta": {}, "content": [] })), ServerResult::CallToolResult(_)));
        assert!(read(b"{}").is_err());
    }

    #[test]
    fn what_the_sdk_reads_is_a_page_to_it_as_well() {
        let page = json!({ "tools": [{ "name": "bad" }], "resultType": "complete" });
        let message = |result: &Value| json!({ "jsonrpc": "2.0", "id": 1, "result": result }).to_string();
        let mut shadowed = page.clone();
        shadowed["_meta"] = json!({});
        let read: ServerJsonRpcMessage = serde_json::from_str(&readable(message(&shadowed))).unwrap();
        let ServerJsonRpcMessage::Response(response) = read else { panic!("{read:?}") };
        let ServerResult::CustomResult(kept) = response.result else { panic!("it is not kept") };
        assert_eq!(kept.0, page);

        let result = message(&json!({ "_meta": {}, "content": [], "structuredContent": { "tools": 1 } }));
        assert_eq!(readable(result.clone()), result);
    }
}
