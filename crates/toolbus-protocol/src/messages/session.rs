use serde::Serialize;
use serde::de::{IgnoredAny, MapAccess};

use super::members::{Members, read_members};
use crate::json::ParseError;

/// Says that a session of the sender is over: what was kept for it alone is stopped.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
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
    /// When the body is not a JSON object with a `sessionId`.
    pub fn parse(body: &[u8]) -> Result<Self, ParseError> {
        let end: Self = read_members(body)?;
        if end.session_id.is_empty() {
            return Err(ParseError::Missing("sessionId"));
        }
        Ok(end)
    }
}

impl Members for SessionEnd {
    const NAMES: &'static [&'static str] = &["sessionId"];

    fn read<'de, A: MapAccess<'de>>(&mut self, name: &str, members: &mut A) -> Result<(), A::Error> {
        match name {
            "sessionId" => self.session_id = members.next_value::<Option<String>>()?.unwrap_or_default(),
            _ => {
                members.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }
}
