use serde::Serialize;
use serde::de::MapAccess;

use super::fields::{MessageFields, read_fields, text};
use crate::json::ParseError;

/// Longest text of a [`ToolHintsRequest`], in bytes.
pub const MAX_HINTED_TEXT: usize = 32 * 1024;

/// Asks which of the sender's services fit a text, such as the message of a user.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ToolHintsRequest {
    /// The text, of at most 32 KiB.
    pub text: String,
    /// Namespace of the caller's session.
    pub session_id: Option<String>,
}

/// Which services fit a text.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ToolHintsResponse {
    /// A heading and at most two lines for a prompt; empty if nothing fits.
    pub hints: String,
}

impl ToolHintsRequest {
    /// Reads a body as liberally as [`ToolInvokeRequest::parse`](crate::ToolInvokeRequest::parse) does.
    ///
    /// # Errors
    ///
    /// If the body is not a JSON object, or its text or session is no string.
    pub fn parse(body: &[u8]) -> Result<Self, ParseError> {
        read_fields(body)
    }
}

impl MessageFields for ToolHintsRequest {
    const NAMES: &'static [&'static str] = &["text", "sessionId"];

    fn read<'de, A: MapAccess<'de>>(&mut self, name: &str, fields: &mut A) -> Result<(), A::Error> {
        match name {
            "text" => self.text = text(fields)?,
            "sessionId" => self.session_id = fields.next_value()?,
            _ => {}
        }
        Ok(())
    }
}
