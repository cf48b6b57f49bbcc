//! Pieces of a result, from MCP to ours.

use std::io;

use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use base64::read::DecoderReader;
use rmcp::model::{ContentBlock as McpBlock, Resource, ResourceContents};
use serde::Deserialize as _;
use serde_json::Value;
use toolbus_core::log::shown;
use toolbus_protocol::ContentBlock;

/// Base64 as encoders write it, with padding or without.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// A piece of text.
pub(super) fn text_block(text: impl Into<String>) -> ContentBlock {
    ContentBlock { kind: "text".to_owned(), text: Some(text.into()), ..ContentBlock::default() }
}

/// A piece of a kind that this daemon knows.
pub(super) fn from_mcp(block: McpBlock) -> ContentBlock {
    match block {
        McpBlock::Text(content) => text_block(content.text),
        McpBlock::Image(image) => binary_block("image", image.data, Some(image.mime_type)),
        McpBlock::Audio(audio) => binary_block("audio", audio.data, Some(audio.mime_type)),
        McpBlock::Resource(embedded) => resource_block(embedded.resource),
        McpBlock::ResourceLink(resource) => link_block(resource),
        _ => unsupported("unknown"),
    }
}

/// A piece of any kind: one that cannot be used becomes a text that says so.
pub(super) fn from_value(block: &Value) -> ContentBlock {
    if let Ok(block) = McpBlock::deserialize(block) {
        return from_mcp(block);
    }
    let member = |name: &str| block.get(name).and_then(Value::as_str);
    match (member("type"), member("data")) {
        (Some(kind @ ("image" | "audio")), Some(data)) => {
            binary_block(kind, data.to_owned(), member("mimeType").map(ToOwned::to_owned))
        }
        (kind, _) => unsupported(kind.unwrap_or("unknown")),
    }
}

fn unsupported(kind: &str) -> ContentBlock {
    text_block(format!("[unsupported content of type {}]", shown(kind)))
}

fn binary_block(kind: &str, data: String, mime_type: Option<String>) -> ContentBlock {
    if !is_base64(&data) {
        return text_block(format!("[content of type {kind} that is not valid Base64]"));
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
    // Decoded piece by piece: nobody needs the bytes.
    io::copy(&mut DecoderReader::new(data.as_bytes(), &BASE64), &mut io::sink()).is_ok()
}
