use serde::Serialize;
use serde::de::{IgnoredAny, MapAccess};

use super::members::{Members, read_members};
use crate::json::ParseError;

/// A request to cancel a running call of the same caller.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
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
    /// When the body is not a JSON object with a `toolCallId`.
    pub fn parse(body: &[u8]) -> Result<Self, ParseError> {
        let request: Self = read_members(body)?;
        if request.tool_call_id.is_empty() {
            return Err(ParseError::Missing("toolCallId"));
        }
        Ok(request)
    }
}

impl Members for ToolCancelRequest {
    const NAMES: &'static [&'static str] = &["toolCallId"];

    fn read<'de, A: MapAccess<'de>>(&mut self, name: &str, members: &mut A) -> Result<(), A::Error> {
        match name {
            "toolCallId" => self.tool_call_id = members.next_value::<Option<String>>()?.unwrap_or_default(),
            _ => {
                members.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }
}

/// Whether a call was cancelled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ToolCancelResponse {
    /// Id of the call.
    pub tool_call_id: String,
    /// False when no such call of this caller was running here.
    pub cancelled: bool,
}
