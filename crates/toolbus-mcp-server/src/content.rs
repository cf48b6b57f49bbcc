//! The response to `tools/call`.

use bytes::Bytes;
use serde::Serialize;
use serde_json::Value;
use toolbus_core::failure::{Cause, ToolFailure};
use toolbus_core::milliseconds;
use toolbus_core::tool::{Effect, ToolOutput};
use toolbus_protocol::{Code, ContentBlock, Outcome, header};

use crate::rpc::{self, Id, RpcError};
use crate::version::Version;

/// Largest result, in bytes of its texts and data, as on the bus.
const MAX_RESULT: usize = 16 * 1024 * 1024 - 64 * 1024;
/// URI of audio, for clients whose protocol version has no block for it.
const AUDIO_URI: &str = "toolbus:audio";

/// The result of `tools/call`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CallResult<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    result_type: Option<&'static str>,
    content: Vec<Block<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    structured_content: Option<&'a Value>,
    is_error: bool,
    #[serde(rename = "_meta")]
    meta: ResultMeta,
}

#[derive(Serialize)]
struct ResultMeta {
    /// Marks the tool's output as data, never an instruction.
    #[serde(rename = "toolbus/content-trust")]
    trust: &'static str,
    #[serde(rename = "toolbus/error", skip_serializing_if = "Option::is_none")]
    error: Option<ErrorMeta>,
}

/// Code and retry hint of a failure, as on the bus.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ErrorMeta {
    code: Code,
    is_retryable: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<Outcome>,
}

impl ErrorMeta {
    pub(crate) fn of(failure: &ToolFailure) -> Self {
        let verdict = failure.verdict(Effect::Undeclared, true);
        Self {
            code: verdict.code,
            is_retryable: verdict.is_retryable,
            retry_after_ms: failure.retry_after.map(milliseconds),
            outcome: verdict.outcome,
        }
    }
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Block<'a> {
    Text {
        text: &'a str,
    },
    Image {
        data: &'a str,
        #[serde(rename = "mimeType")]
        mime_type: &'a str,
    },
    Audio {
        data: &'a str,
        #[serde(rename = "mimeType")]
        mime_type: &'a str,
    },
    Resource {
        resource: Resource<'a>,
    },
    ResourceLink {
        uri: &'a str,
        name: &'a str,
        #[serde(skip_serializing_if = "str::is_empty")]
        title: &'a str,
        #[serde(rename = "mimeType", skip_serializing_if = "Option::is_none")]
        mime_type: Option<&'a str>,
    },
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Resource<'a> {
    uri: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    mime_type: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    blob: Option<&'a str>,
}

/// The response to a call.
pub(crate) struct Response {
    /// The response to the request.
    pub(crate) body: Bytes,
    /// Kind of what went wrong, as metrics have it.
    pub(crate) error_type: Option<&'static str>,
}

/// The response to a call for a client of this version: a result, possibly of a failure, or a JSON-RPC error.
pub(crate) fn response_to(id: &Id, result: &Result<ToolOutput, ToolFailure>, version: Version) -> Response {
    let too_large;
    let failure = match result {
        Ok(output) if output.size() <= MAX_RESULT => {
            let error_type = output.is_error.then_some("tool_error");
            return Response { body: rpc::success(id, of_output(output, version)), error_type };
        }
        Ok(output) => {
            let text = format!(
                "The result is too large to be sent: {} bytes, and the limit is {MAX_RESULT}. Ask the tool for less at a time.",
                output.size()
            );
            too_large = ToolFailure::new(Cause::ResultTooLarge, text);
            &too_large
        }
        Err(failure) => failure,
    };
    if matches!(failure.cause, Cause::UnknownTool | Cause::UnknownServer) {
        let error = RpcError::invalid_params(failure.message.clone());
        return Response { body: rpc::failure(Some(id), &error), error_type: Some("-32602") };
    }
    let error = ErrorMeta::of(failure);
    let error_type = Some(error.code.as_str());
    let result = CallResult {
        result_type: result_type(version),
        content: vec![Block::Text { text: &failure.message }],
        structured_content: None,
        is_error: true,
        meta: ResultMeta { trust: header::TRUST_TOOL_OUTPUT, error: Some(error) },
    };
    Response { body: rpc::success(id, result), error_type }
}

/// Clients of version 2026-07-28 expect a result type.
fn result_type(version: Version) -> Option<&'static str> {
    (!version.has_sessions()).then_some("complete")
}

fn of_output(output: &ToolOutput, version: Version) -> CallResult<'_> {
    // Clients with sessions accept only an object.
    let structured = output.structured.as_deref().filter(|value| value.is_object() || !version.has_sessions());
    let content = match (&*output.blocks, &output.content) {
        ([], Some(text)) => vec![Block::Text { text }],
        ([], None) => Vec::new(),
        (blocks, _) => {
            // The structured part has a field of its own here.
            let is_repeated = |block: &&ContentBlock| structured.is_some() && block.is_structured();
            // Clients of older versions find the keys in the text.
            let is_unknown = |block: &&ContentBlock| block.kind == ContentBlock::LINK && version < Version::V20250618;
            let shown = blocks.iter().filter(|block| !is_repeated(block) && !is_unknown(block));
            shown.map(|of| block(of, version)).collect()
        }
    };
    CallResult {
        result_type: result_type(version),
        content,
        structured_content: structured,
        is_error: output.is_error,
        meta: ResultMeta { trust: header::TRUST_TOOL_OUTPUT, error: None },
    }
}

fn block(block: &ContentBlock, version: Version) -> Block<'_> {
    let text = block.text.as_deref().unwrap_or_default();
    let mime_type = block.mime_type.as_deref().unwrap_or("application/octet-stream");
    match (&*block.kind, &block.data, &block.uri) {
        ("image", Some(data), _) => Block::Image { data, mime_type },
        ("audio", Some(data), _) if version < Version::V20250326 => Block::Resource {
            resource: Resource { uri: AUDIO_URI, mime_type: Some(mime_type), text: None, blob: Some(data) },
        },
        ("audio", Some(data), _) => Block::Audio { data, mime_type },
        (ContentBlock::LINK, _, Some(uri)) => {
            let name = uri.rsplit('/').next().unwrap_or_default();
            Block::ResourceLink { uri, name, title: text, mime_type: block.mime_type.as_deref() }
        }
        ("resource", data, Some(uri)) => Block::Resource {
            resource: Resource {
                uri,
                mime_type: block.mime_type.as_deref(),
                text: data.is_none().then_some(text),
                blob: data.as_deref(),
            },
        },
        _ => Block::Text { text },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_of_versions_without_links_get_the_table_alone() {
        let text = ContentBlock { kind: "text".to_owned(), text: Some("table".to_owned()), ..ContentBlock::default() };
        let output = ToolOutput { blocks: vec![text, ContentBlock::memory_link("a/b", "")], ..ToolOutput::default() };
        let shown = |version| serde_json::to_string(&of_output(&output, version).content).unwrap();
        insta::assert_snapshot!(shown(Version::V20250326), @r#"[{"type":"text","text":"table"}]"#);
        insta::assert_snapshot!(shown(Version::V20250618), @r#"[{"type":"text","text":"table"},{"type":"resource_link","uri":"toolbus://memory/a/b","name":"b","mimeType":"text/plain"}]"#);
    }
}
