//! Reading what a server sends.

use rmcp::model::{CustomResult, JsonRpcResponse, ServerJsonRpcMessage, ServerResult};

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

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

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
}
