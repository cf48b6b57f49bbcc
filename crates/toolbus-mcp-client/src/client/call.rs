//! From a call to its request, and from the server's response to a result.

use rmcp::model::{
    CallToolRequest, CallToolRequestParams, CallToolResult, ClientRequest, ContentBlock as McpBlock, Extensions,
    RequestMetaObject, Resource, ResourceContents, ServerResult,
};
use serde::Serialize;
use serde_json::{Map, Value};
use toolbus_core::failure::{Cause, ToolFailure};
use toolbus_core::tool::{ToolCall, ToolOutput};
use toolbus_protocol::{ContentBlock, header};

use super::notifications::ProgressMark;
use super::result::unsupported;

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
        _ => {
            let text = format!("Tool '{tool}' answered with something that is not the result of a call.");
            Err(ToolFailure::new(Cause::InvalidResult, text))
        }
    }
}

/// The result of a tool: its text in `content`, and all of it in `blocks` if there is more than text.
fn from_result(result: CallToolResult) -> ToolOutput {
    let mut blocks: Vec<_> = result.content.into_iter().map(from_mcp).collect();
    let content = match &mut *blocks {
        [ContentBlock { kind, text, .. }] if kind == "text" => text.take(),
        blocks => {
            let texts: Vec<_> =
                blocks.iter().filter(|block| block.kind == "text").filter_map(|block| block.text.as_deref()).collect();
            (!texts.is_empty()).then(|| texts.join("\n"))
        }
    };
    if blocks.iter().all(|block| block.kind == "text") {
        blocks.clear();
    }
    ToolOutput {
        content,
        blocks,
        is_error: result.is_error.unwrap_or_default(),
        structured: result.structured_content.map(Box::new),
        ..ToolOutput::default()
    }
}

/// A piece of a kind that this daemon knows.
fn from_mcp(block: McpBlock) -> ContentBlock {
    match block {
        McpBlock::Text(content) => ContentBlock::text(content.text),
        McpBlock::Image(image) => binary_block("image", image.data, image.mime_type),
        McpBlock::Audio(audio) => binary_block("audio", audio.data, audio.mime_type),
        McpBlock::Resource(embedded) => resource_block(embedded.resource),
        McpBlock::ResourceLink(resource) => link_block(resource),
        _ => ContentBlock::text(unsupported("unknown")),
    }
}

fn binary_block(kind: &str, data: String, mime_type: String) -> ContentBlock {
    let mime_type = Some(mime_type).filter(|kind| !kind.is_empty());
    ContentBlock { kind: kind.to_owned(), data: Some(data), mime_type, ..ContentBlock::default() }
}

fn resource_block(contents: ResourceContents) -> ContentBlock {
    match contents {
        ResourceContents::TextResourceContents { uri, mime_type, text, .. } => {
            let uri = Some(uri);
            ContentBlock { kind: "resource".to_owned(), text: Some(text), mime_type, uri, ..ContentBlock::default() }
        }
        ResourceContents::BlobResourceContents { uri, mime_type, blob, .. } => {
            ContentBlock { uri: Some(uri), ..binary_block("resource", blob, mime_type.unwrap_or_default()) }
        }
        _ => ContentBlock::text(unsupported("resource")),
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
