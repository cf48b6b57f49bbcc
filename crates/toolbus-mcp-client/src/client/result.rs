//! What a server answered, as the result of a tool.

mod block;
mod same;
#[cfg(test)]
mod tests;

use rmcp::model::CallToolResult;
use serde_json::Value;
use toolbus_core::tool::ToolOutput;
use toolbus_protocol::ContentBlock;

/// The result of a tool: its text in `content`, and all of it in `blocks` if there is more than text.
pub(crate) fn from_result(result: CallToolResult) -> ToolOutput {
    let blocks = result.content.into_iter().map(block::from_mcp).collect();
    assembled(blocks, result.structured_content, result.is_error.unwrap_or_default())
}

/// The same of a result that does not keep to the protocol; `None` for what is no result of a tool.
pub(crate) fn from_value_result(mut result: Value) -> Option<ToolOutput> {
    let members = result.as_object_mut()?;
    let is_complete = members.get("resultType").is_none_or(|kind| kind == "complete");
    let is_result = ["content", "structuredContent", "isError"].iter().any(|name| members.contains_key(*name));
    if !is_complete || !is_result {
        return None;
    }
    let blocks = match members.get("content") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(blocks)) => blocks.iter().map(block::from_value).collect(),
        Some(Value::String(text)) => vec![block::text_block(text)],
        Some(single) => vec![block::from_value(single)],
    };
    let is_error = members.get("isError").and_then(Value::as_bool).unwrap_or_default();
    Some(assembled(blocks, members.remove("structuredContent"), is_error))
}

fn assembled(mut blocks: Vec<ContentBlock>, structured: Option<Value>, is_error: bool) -> ToolOutput {
    let structured = structured.filter(|value| !value.is_null());
    if let Some(structured) = structured.as_ref().filter(|value| !same::is_content(&blocks, value)) {
        let texts = texts(&blocks);
        if texts.is_empty() {
            blocks.push(block::text_block(structured.to_string()));
        } else if !same::is_said(&texts, structured) {
            blocks.push(ContentBlock::structured(structured.to_string()));
        }
    }
    let texts = texts(&blocks);
    let content = (!texts.is_empty()).then(|| texts.join("\n"));
    if texts.len() == blocks.len() {
        blocks.clear();
    }
    ToolOutput { content, blocks, is_error, structured: structured.map(Box::new), program: None }
}

fn texts(blocks: &[ContentBlock]) -> Vec<&str> {
    blocks.iter().filter(|block| block.kind == "text").filter_map(|block| block.text.as_deref()).collect()
}
