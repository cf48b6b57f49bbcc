use std::collections::BTreeMap;

use serde::de::MapAccess;
use serde::{Deserialize, Serialize};

use crate::json::ParseError;
use crate::messages::fields::{MessageFields, optional_text, read_fields, required, text};

/// Asks what the tools of a server are.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct McpGetServiceDetailsRequest {
    /// The server, in any case.
    pub server_name: String,
}

/// The tools of a server.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct McpGetServiceDetailsResponse {
    /// The server.
    pub server_name: String,
    /// Description of the server by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Instructions of the server for its use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instructions: Option<String>,
    /// Tools of the server.
    #[serde(default)]
    pub tools: Vec<McpToolDefinition>,
    /// Why there are none.
    #[serde(default)]
    pub error: Option<String>,
}

/// One tool of a server.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct McpToolDefinition {
    /// Name of the tool within the server.
    pub name: String,
    /// Description of what the tool does, for a model.
    pub description: String,
    /// JSON Schema of its arguments, as text.
    #[serde(default)]
    pub parameters_schema: Option<String>,
}

/// Asks to add a server.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(default))]
#[serde(rename_all = "camelCase")]
pub struct McpRegisterServerRequest {
    /// Name of the server.
    pub server_name: String,
    /// Transport to the server: `stdio`, `http`, `sse`, …
    #[serde(rename = "type")]
    pub kind: String,
    /// Address of a server that is reached by HTTP.
    pub url: Option<String>,
    /// The program, of a server that is started.
    pub command: Option<String>,
    /// The program's arguments.
    pub args: Vec<String>,
    /// The program's environment.
    pub env: BTreeMap<String, String>,
}

/// Outcome of a request to add a server.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct McpRegisterServerResponse {
    /// The server.
    pub server_name: String,
    /// Whether the server was added.
    pub success: bool,
    /// Summary of what the server offers.
    #[serde(default)]
    pub summary: Option<String>,
    /// Why it was not added.
    #[serde(default)]
    pub error: Option<String>,
}

/// Asks to remove a server.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct McpUnregisterServerRequest {
    /// The server, in any case.
    pub server_name: String,
}

/// Outcome of a request to remove a server.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct McpUnregisterServerResponse {
    /// The server.
    pub server_name: String,
    /// Whether the server was removed.
    pub success: bool,
    /// Why it was not removed.
    #[serde(default)]
    pub error: Option<String>,
}

impl McpGetServiceDetailsRequest {
    /// Reads a body as liberally as [`ToolInvokeRequest::parse`](crate::ToolInvokeRequest::parse) does.
    ///
    /// # Errors
    ///
    /// If the body is not a JSON object with a `serverName`.
    pub fn parse(body: &[u8]) -> Result<Self, ParseError> {
        required(read_fields(body)?, |request: &Self| &request.server_name, "serverName")
    }
}

impl McpRegisterServerRequest {
    /// Reads a body as liberally as [`ToolInvokeRequest::parse`](crate::ToolInvokeRequest::parse) does.
    ///
    /// # Errors
    ///
    /// If the body is not a JSON object with a `serverName`.
    pub fn parse(body: &[u8]) -> Result<Self, ParseError> {
        required(read_fields(body)?, |request: &Self| &request.server_name, "serverName")
    }
}

impl McpUnregisterServerRequest {
    /// Reads a body as liberally as [`ToolInvokeRequest::parse`](crate::ToolInvokeRequest::parse) does.
    ///
    /// # Errors
    ///
    /// If the body is not a JSON object with a `serverName`.
    pub fn parse(body: &[u8]) -> Result<Self, ParseError> {
        required(read_fields(body)?, |request: &Self| &request.server_name, "serverName")
    }
}

impl MessageFields for McpGetServiceDetailsRequest {
    const NAMES: &'static [&'static str] = &["serverName"];

    fn read<'de, A: MapAccess<'de>>(&mut self, name: &str, fields: &mut A) -> Result<(), A::Error> {
        if name == "serverName" {
            self.server_name = text(fields)?;
        }
        Ok(())
    }
}

impl MessageFields for McpUnregisterServerRequest {
    const NAMES: &'static [&'static str] = &["serverName"];

    fn read<'de, A: MapAccess<'de>>(&mut self, name: &str, fields: &mut A) -> Result<(), A::Error> {
        if name == "serverName" {
            self.server_name = text(fields)?;
        }
        Ok(())
    }
}

impl MessageFields for McpRegisterServerRequest {
    const NAMES: &'static [&'static str] = &["serverName", "type", "url", "command", "args", "env"];

    fn read<'de, A: MapAccess<'de>>(&mut self, name: &str, fields: &mut A) -> Result<(), A::Error> {
        match name {
            "serverName" => self.server_name = text(fields)?,
            "type" => self.kind = text(fields)?,
            "url" => self.url = optional_text(fields)?,
            "command" => self.command = optional_text(fields)?,
            "args" => self.args = fields.next_value::<Option<Vec<String>>>()?.unwrap_or_default(),
            "env" => self.env = fields.next_value::<Option<BTreeMap<String, String>>>()?.unwrap_or_default(),
            _ => {}
        }
        Ok(())
    }
}
