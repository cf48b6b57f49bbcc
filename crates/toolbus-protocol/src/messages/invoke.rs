use serde::de::MapAccess;
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

use super::fields::{MessageFields, optional_text, read_fields, text};
use crate::json::ParseError;
use crate::{Code, Outcome};

/// A request to run a tool.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename_all = "camelCase"))]
pub struct ToolInvokeRequest {
    /// The caller's id of this call; a plain client may leave it out.
    pub tool_call_id: Option<String>,
    /// Name of the tool.
    pub tool_name: String,
    /// The arguments as JSON text, whether they travelled as a string or as an object; unchecked.
    #[cfg_attr(feature = "schema", schemars(schema_with = "arguments_schema"))]
    pub arguments: Option<String>,
    /// Namespace of the caller's session.
    pub session_id: Option<String>,
    /// The caller's id of the batch that this call belongs to.
    pub batch_id: Option<String>,
}

impl ToolInvokeRequest {
    /// Reads a body: field names in any case, unknown fields ignored, a field named twice refused.
    ///
    /// # Errors
    ///
    /// If the body is not UTF-8, not JSON, not an object, too deep, or without a tool's name.
    pub fn parse(body: &[u8]) -> Result<Self, ParseError> {
        let request = Self::parse_unnamed(body)?;
        if request.tool_name.is_empty() {
            return Err(ParseError::Missing("toolName"));
        }
        Ok(request)
    }

    /// Reads a body like [`Self::parse`], and leaves a missing tool's name empty: for code that refuses such a request, and
    /// names the call when doing so.
    ///
    /// # Errors
    ///
    /// If the body is not UTF-8, not JSON, not an object, or too deep.
    pub fn parse_unnamed(body: &[u8]) -> Result<Self, ParseError> {
        read_fields(body)
    }
}

impl Serialize for ToolInvokeRequest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct as _;
        let mut request = serializer.serialize_struct("ToolInvokeRequest", 5)?;
        request.serialize_field("toolCallId", &self.tool_call_id)?;
        request.serialize_field("toolName", &self.tool_name)?;
        request.serialize_field("arguments", &self.arguments)?;
        request.serialize_field("sessionId", &self.session_id)?;
        request.serialize_field("batchId", &self.batch_id)?;
        request.end()
    }
}

impl MessageFields for ToolInvokeRequest {
    const NAMES: &'static [&'static str] = &["toolCallId", "toolName", "arguments", "sessionId", "batchId"];

    fn read<'de, A: MapAccess<'de>>(&mut self, name: &str, fields: &mut A) -> Result<(), A::Error> {
        match name {
            "toolCallId" => self.tool_call_id = optional_text(fields)?,
            "toolName" => self.tool_name = text(fields)?,
            "arguments" => self.arguments = fields.next_value::<Option<Box<RawValue>>>()?.and_then(arguments_text),
            "sessionId" => self.session_id = fields.next_value()?,
            "batchId" => self.batch_id = fields.next_value()?,
            _ => {}
        }
        Ok(())
    }
}

/// The JSON text that `arguments` holds, be it a string or a value.
fn arguments_text(raw: Box<RawValue>) -> Option<String> {
    match serde_json::from_str::<Option<String>>(raw.get()) {
        Ok(text) => text,
        Err(_) => Some(String::from(Box::<str>::from(raw))),
    }
}

#[cfg(feature = "schema")]
fn arguments_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": ["object", "string", "null"],
        "description": "The arguments: an object, or a string that holds one.",
    })
}

/// The result of a tool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, serde::Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ToolInvokeResponse {
    /// Id of the call.
    pub tool_call_id: String,
    /// The tool, as the caller named it.
    pub tool_name: String,
    /// The text of the result.
    pub content: Option<String>,
    /// All of the result, when there is more than text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_blocks: Option<Vec<ContentBlock>>,
    /// Whether the tool says that it tried and did not succeed.
    #[serde(default)]
    pub is_error: bool,
}

/// A piece of a result.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, serde::Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ContentBlock {
    /// `text`, `image`, `audio`, `resource` or, where links were asked for, `resource_link`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Text, for `text` and some resources.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Base64, for binary content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<String>,
    /// MIME type of the content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mime_type: Option<String>,
    /// Address of a resource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uri: Option<String>,
}

impl ContentBlock {
    /// Where the block with the structured part of a result says that it comes from.
    pub const STRUCTURED_URI: &str = "toolbus:structured-content";

    /// A piece of text.
    #[must_use]
    pub fn text(text: impl Into<String>) -> Self {
        Self { kind: "text".to_owned(), text: Some(text.into()), ..Self::default() }
    }

    /// The structured part of a result, as JSON text, in a block of its own.
    #[must_use]
    pub fn structured(json: String) -> Self {
        Self {
            kind: "resource".to_owned(),
            text: Some(json),
            mime_type: Some("application/json".to_owned()),
            uri: Some(Self::STRUCTURED_URI.to_owned()),
            ..Self::default()
        }
    }

    /// Beginning of the URI of an entry of working memory. The key of the entry follows, each byte of it that is no
    /// letter, digit, `-`, `.`, `_`, `~` or `/` as `%` and two hexadecimal digits.
    pub const MEMORY_URI: &str = "toolbus://memory/";

    /// The kind of [`Self::memory_link`].
    pub const LINK: &str = "resource_link";

    /// A link to an entry of working memory.
    #[must_use]
    pub fn memory_link(key: &str, title: &str) -> Self {
        let mut uri = Self::MEMORY_URI.to_owned();
        for byte in key.bytes() {
            match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                    uri.push(char::from(byte))
                }
                _ => uri.push_str(&format!("%{byte:02X}")),
            }
        }
        let (kind, text) = (Self::LINK.to_owned(), Some(title.to_owned()));
        Self { kind, text, mime_type: Some("text/plain".to_owned()), uri: Some(uri), ..Self::default() }
    }

    /// Checks whether the block holds the structured part of a result.
    #[must_use]
    pub fn is_structured(&self) -> bool {
        self.uri.as_deref() == Some(Self::STRUCTURED_URI)
    }
}

/// Why there is no result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, serde::Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ToolError {
    /// Id of the call.
    pub tool_call_id: String,
    /// The tool, as the caller named it.
    pub tool_name: String,
    /// Kind of failure.
    pub code: Code,
    /// Description of what happened and what to do next, for the caller.
    pub message: String,
    /// Whether the same call may succeed later.
    #[serde(default)]
    pub is_retryable: bool,
    /// Time to wait before repeating the call, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    /// Knowledge of side effects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
}

/// Progress of a running call, for a caller that asked to hear of it.
#[derive(Debug, Clone, PartialEq, Serialize, serde::Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ToolProgress {
    /// The call, as its sender named it.
    pub tool_call_id: String,
    /// The tool, as the sender named it.
    pub tool_name: String,
    /// Progress so far, in units of the tool's own.
    pub progress: f64,
    /// Value of `progress` at the end, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total: Option<f64>,
    /// Description of what the tool is doing, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}
