use serde::de::MapAccess;
use serde::{Deserialize, Serialize};

use crate::json::ParseError;
use crate::messages::fields::{MessageFields, optional_text, read_fields};

/// Tells an agent which servers there are for it: those that are new or changed, and those that are gone. What the agent
/// knows of others stays.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct McpServersIndexed {
    /// Servers that are new, or not what they were.
    pub servers: Vec<McpServerSummary>,
    /// Names of servers that are gone.
    #[serde(default)]
    pub removed_servers: Vec<String>,
}

/// One server, as an agent may use it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct McpServerSummary {
    /// Name of the server.
    pub server_name: String,
    /// Name of the server for people.
    #[serde(default)]
    pub display_name: Option<String>,
    /// Summary of what the server offers, in a sentence.
    #[serde(default)]
    pub summary: Option<String>,
    /// Number of its tools.
    #[serde(default)]
    pub tool_count: usize,
    /// Names of its tools.
    #[serde(default)]
    pub tool_names: Vec<String>,
}

/// Requests the index of servers again.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct McpMetadataRefreshRequest {
    /// The server that is asked for; absent: all.
    pub server_name: Option<String>,
}

impl McpMetadataRefreshRequest {
    /// Reads a body as liberally as [`ToolInvokeRequest::parse`](crate::ToolInvokeRequest::parse) does.
    ///
    /// # Errors
    ///
    /// If the body is not a JSON object.
    pub fn parse(body: &[u8]) -> Result<Self, ParseError> {
        read_fields(body)
    }
}

impl MessageFields for McpMetadataRefreshRequest {
    const NAMES: &'static [&'static str] = &["serverName"];

    fn read<'de, A: MapAccess<'de>>(&mut self, name: &str, fields: &mut A) -> Result<(), A::Error> {
        if name == "serverName" {
            self.server_name = optional_text(fields)?;
        }
        Ok(())
    }
}
