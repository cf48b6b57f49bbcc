//! Prompts, resources and questions: a bridge that offers none of them says so, and agents read these replies.

use serde::de::MapAccess;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::json::ParseError;
use crate::messages::fields::{MessageFields, read_fields, text};

/// The fields of a request that its reply repeats; those that it does not have are empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename_all = "camelCase", default))]
pub struct McpEchoed {
    /// A server, in any case.
    pub server_name: String,
    /// A prompt of the server.
    pub prompt_name: String,
    /// A resource of the server.
    pub uri: String,
    /// A question that was asked of a person.
    pub question_id: String,
}

/// A prompt of a server.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct McpGetPromptResponse {
    /// The server.
    pub server_name: String,
    /// The prompt.
    pub prompt_name: String,
    /// Purpose of the prompt.
    #[serde(default)]
    pub description: Option<String>,
    /// Messages of the prompt.
    #[serde(default)]
    pub messages: Vec<Value>,
    /// Why there are none.
    #[serde(default)]
    pub error: Option<String>,
}

/// The resources of a server.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct McpListResourcesResponse {
    /// The server.
    pub server_name: String,
    /// Resources of the server.
    #[serde(default)]
    pub resources: Vec<Value>,
    /// Templates of resources of the server.
    #[serde(default)]
    pub templates: Vec<Value>,
    /// Why there are none.
    #[serde(default)]
    pub error: Option<String>,
}

/// A resource of a server.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct McpReadResourceResponse {
    /// The server.
    pub server_name: String,
    /// The resource.
    pub uri: String,
    /// Contents of the resource.
    #[serde(default)]
    pub contents: Vec<Value>,
    /// Why that is not known.
    #[serde(default)]
    pub error: Option<String>,
}

/// Outcome of a call once its question was answered.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct McpAnswerQuestionResponse {
    /// The question.
    pub question_id: String,
    /// The server that asked.
    #[serde(default)]
    pub server_name: Option<String>,
    /// The tool that asked.
    #[serde(default)]
    pub tool_name: Option<String>,
    /// The tool's result.
    #[serde(default)]
    pub result: Option<crate::ToolInvokeResponse>,
    /// Why there is none.
    #[serde(default)]
    pub error: Option<String>,
}

impl McpEchoed {
    /// Reads a body as liberally as [`ToolInvokeRequest::parse`](crate::ToolInvokeRequest::parse) does.
    ///
    /// # Errors
    ///
    /// If the body is not a JSON object.
    pub fn parse(body: &[u8]) -> Result<Self, ParseError> {
        read_fields(body)
    }
}

impl MessageFields for McpEchoed {
    const NAMES: &'static [&'static str] = &["serverName", "promptName", "uri", "questionId"];

    fn read<'de, A: MapAccess<'de>>(&mut self, name: &str, fields: &mut A) -> Result<(), A::Error> {
        match name {
            "serverName" => self.server_name = text(fields)?,
            "promptName" => self.prompt_name = text(fields)?,
            "uri" => self.uri = text(fields)?,
            "questionId" => self.question_id = text(fields)?,
            _ => {}
        }
        Ok(())
    }
}
