use std::fmt;
use std::str::FromStr;

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde::{Serialize, Serializer};
use serde_json::Value;

use super::fields::{MessageFields, optional_text, read_fields};
use crate::json::ParseError;

/// Most names in a [`ToolListRequest`].
pub const MAX_LISTED_NAMES: usize = 1000;

/// Form in which tools are described in a [`ToolListResponse`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename_all = "camelCase"))]
pub enum Format {
    /// As an agent registers tools: name, description, schema as text, source, hints.
    #[default]
    Registration,
    /// As a request to OpenAI's chat completions takes them.
    #[cfg_attr(feature = "schema", schemars(rename = "openai"))]
    OpenAi,
    /// As a request to OpenAI's Responses takes them.
    #[cfg_attr(feature = "schema", schemars(rename = "openai-responses"))]
    OpenAiResponses,
    /// As a request to Anthropic's messages takes them.
    Anthropic,
    /// As the `functionDeclarations` of a request to Gemini take them.
    Gemini,
    /// As the `toolConfig.tools` of a request to Bedrock's Converse take them.
    Bedrock,
    /// As an MCP server lists them.
    Mcp,
}

/// A text that names none of the formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown format; expected `registration`, `openai`, `openai-responses`, `anthropic`, `gemini`, `bedrock` or `mcp`"
)]
pub struct UnknownFormat;

impl Format {
    /// Every format.
    pub const ALL: [Self; 7] = [
        Self::Registration,
        Self::OpenAi,
        Self::OpenAiResponses,
        Self::Anthropic,
        Self::Gemini,
        Self::Bedrock,
        Self::Mcp,
    ];

    /// The format as written on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Registration => "registration",
            Self::OpenAi => "openai",
            Self::OpenAiResponses => "openai-responses",
            Self::Anthropic => "anthropic",
            Self::Gemini => "gemini",
            Self::Bedrock => "bedrock",
            Self::Mcp => "mcp",
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Format {
    type Err = UnknownFormat;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|format| format.as_str() == text).ok_or(UnknownFormat)
    }
}

impl Serialize for Format {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

/// Asks which tools the sender may use.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ToolListRequest {
    /// Namespace of the caller's session.
    pub session_id: Option<String>,
    /// The profile that the caller asks for.
    pub profile: Option<String>,
    /// The binding that the caller asks for, as `channel:account`.
    pub binding: Option<String>,
    /// Form in which the tools are described; absent: `registration`.
    pub format: Option<Format>,
    /// The tools that are asked for; absent: all. An empty list is read as absent.
    #[cfg_attr(feature = "schema", schemars(length(max = MAX_LISTED_NAMES)))]
    pub names: Option<Vec<String>>,
    /// The version that the caller has: if it is still the same, no tools are sent.
    pub if_version: Option<String>,
}

impl ToolListRequest {
    /// Reads a body as liberally as [`ToolInvokeRequest::parse`](crate::ToolInvokeRequest::parse) does.
    ///
    /// # Errors
    ///
    /// If the body is not a JSON object, names an unknown format, or has more than [`MAX_LISTED_NAMES`] names.
    pub fn parse(body: &[u8]) -> Result<Self, ParseError> {
        read_fields(body)
    }
}

impl MessageFields for ToolListRequest {
    const NAMES: &'static [&'static str] = &["sessionId", "profile", "binding", "format", "names", "ifVersion"];

    fn read<'de, A: MapAccess<'de>>(&mut self, name: &str, fields: &mut A) -> Result<(), A::Error> {
        match name {
            "sessionId" => self.session_id = optional_text(fields)?,
            "profile" => self.profile = optional_text(fields)?,
            "binding" => self.binding = optional_text(fields)?,
            "format" => {
                self.format = optional_text(fields)?.map(|name| name.parse()).transpose().map_err(A::Error::custom)?;
            }
            "names" => {
                let names = fields.next_value::<Option<BoundedNames>>()?.map(|BoundedNames(names)| names);
                self.names = names.filter(|names| !names.is_empty());
            }
            "ifVersion" => self.if_version = optional_text(fields)?,
            _ => {}
        }
        Ok(())
    }
}

/// A list of names that stops being read where it gets too long.
struct BoundedNames(Vec<String>);

impl<'de> Deserialize<'de> for BoundedNames {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NamesVisitor).map(BoundedNames)
    }
}

struct NamesVisitor;

impl<'de> Visitor<'de> for NamesVisitor {
    type Value = Vec<String>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a list of names")
    }

    /// The parser's own message would repeat the text.
    fn visit_str<E: serde::de::Error>(self, _: &str) -> Result<Vec<String>, E> {
        Err(E::custom("expected a list of names, found a string"))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Vec<String>, A::Error> {
        let mut names = Vec::new();
        while let Some(name) = elements.next_element()? {
            if names.len() == MAX_LISTED_NAMES {
                return Err(A::Error::custom(format_args!("more than {MAX_LISTED_NAMES} names")));
            }
            names.push(name);
        }
        Ok(names)
    }
}

/// The tools that a caller may use.
// `T` is how they are held: as values, or as the text of a JSON array.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, serde::Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "ToolListResponse"))]
#[serde(rename_all = "camelCase")]
pub struct ToolListResponse<T = Vec<Value>> {
    /// The agent whose tools these are.
    pub agent: String,
    /// Digest of all of them: equal as long as nothing about them changes.
    pub version: String,
    /// The tools, in the format that was asked for.
    #[cfg_attr(feature = "schema", schemars(with = "Vec<serde_json::Map<String, Value>>"))]
    pub tools: T,
    /// Notice for the agent's developer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notice: Option<String>,
    /// Whether `tools` is empty because the caller has this version already.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub not_modified: bool,
}

/// Tells an agent that what it may use is not what it was.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, serde::Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ToolsChanged {
    /// Digest of all that it may use now.
    pub version: String,
    /// Names that are new.
    pub added: Vec<String>,
    /// Names that are gone.
    pub removed: Vec<String>,
}
