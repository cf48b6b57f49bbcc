//! Small requests beside calls.

use serde::de::MapAccess;
use serde::{Deserialize, Serialize};

use super::fields::{MessageFields, read_fields, required, text};
use crate::json::ParseError;

/// Asks a daemon whether it is there, and what it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Ping {}

impl Ping {
    /// Reads a body: none, or any JSON object.
    ///
    /// # Errors
    ///
    /// If there is a body that is not a JSON object, or is too deep.
    pub fn parse(body: &[u8]) -> Result<Self, ParseError> {
        if body.trim_ascii().is_empty() {
            return Ok(Self {});
        }
        read_fields(body)
    }
}

impl MessageFields for Ping {
    const NAMES: &'static [&'static str] = &[];

    fn read<'de, A: MapAccess<'de>>(&mut self, _: &str, _: &mut A) -> Result<(), A::Error> {
        Ok(())
    }
}

/// Description of a daemon by itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Pong {
    /// The daemon's name: `rb-source` of its replies.
    pub name: String,
    /// Version of the program.
    pub version: String,
    /// Digest of the configuration: replicas of a fleet have the same.
    pub config_digest: String,
    /// Roles of this process: `invoke`, `mcp`, …
    pub roles: Vec<String>,
    /// Seconds since it began.
    pub uptime_seconds: u64,
    /// Calls that run now.
    pub in_flight: u64,
    /// Tools that are registered.
    pub tools: u64,
    /// Queues and topics that the daemon takes calls from, in what it publishes of itself; absent in replies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub takes: Option<DaemonIntake>,
}

/// Where a daemon takes calls from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct DaemonIntake {
    /// Tells this run of a daemon from all others.
    pub instance: String,
    /// Start of the names of its queues.
    pub queue_prefix: String,
    /// Topics of calls.
    pub topics: Vec<String>,
    /// The one agent that it serves; absent: it serves all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
}

/// A request to cancel a running call of the same caller.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ToolCancelRequest {
    /// Id of the call.
    pub tool_call_id: String,
}

impl ToolCancelRequest {
    /// Reads a body as liberally as [`ToolInvokeRequest::parse`](crate::ToolInvokeRequest::parse) does.
    ///
    /// # Errors
    ///
    /// If the body is not a JSON object with a `toolCallId`.
    pub fn parse(body: &[u8]) -> Result<Self, ParseError> {
        required(read_fields(body)?, |request: &Self| &request.tool_call_id, "toolCallId")
    }
}

impl MessageFields for ToolCancelRequest {
    const NAMES: &'static [&'static str] = &["toolCallId"];

    fn read<'de, A: MapAccess<'de>>(&mut self, name: &str, fields: &mut A) -> Result<(), A::Error> {
        if name == "toolCallId" {
            self.tool_call_id = text(fields)?;
        }
        Ok(())
    }
}

/// Whether a call was cancelled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ToolCancelResponse {
    /// Id of the call.
    pub tool_call_id: String,
    /// False when no such call of this caller was running here.
    pub cancelled: bool,
}

/// Says that the tools that the sender provides are there, or have changed: daemons then ask for them. Its body has no
/// fields that count.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ToolAnnouncement {}

/// Says that a session of the sender is over: what was kept for it alone is stopped.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SessionEnd {
    /// Namespace of the session.
    pub session_id: String,
}

impl SessionEnd {
    /// Reads a body as liberally as [`ToolInvokeRequest::parse`](crate::ToolInvokeRequest::parse) does.
    ///
    /// # Errors
    ///
    /// If the body is not a JSON object with a `sessionId`.
    pub fn parse(body: &[u8]) -> Result<Self, ParseError> {
        required(read_fields(body)?, |end: &Self| &end.session_id, "sessionId")
    }
}

impl MessageFields for SessionEnd {
    const NAMES: &'static [&'static str] = &["sessionId"];

    fn read<'de, A: MapAccess<'de>>(&mut self, name: &str, fields: &mut A) -> Result<(), A::Error> {
        if name == "sessionId" {
            self.session_id = text(fields)?;
        }
        Ok(())
    }
}
