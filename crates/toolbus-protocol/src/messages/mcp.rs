//! What agents and bridges say to each other about MCP servers.

mod further;
mod index;
mod manage;

pub use further::{
    McpAnswerQuestionResponse, McpEchoed, McpGetPromptResponse, McpListResourcesResponse, McpReadResourceResponse,
};
pub use index::{McpMetadataRefreshRequest, McpServerSummary, McpServersIndexed};
pub use manage::{
    McpGetServiceDetailsRequest, McpGetServiceDetailsResponse, McpRegisterServerRequest, McpRegisterServerResponse,
    McpToolDefinition, McpUnregisterServerRequest, McpUnregisterServerResponse,
};

use serde::de::MapAccess;

/// The text of a member; null is as good as an empty one.
fn text<'de, A: MapAccess<'de>>(members: &mut A) -> Result<String, A::Error> {
    Ok(members.next_value::<Option<String>>()?.unwrap_or_default())
}

/// The text of a member; an empty one is as good as none.
fn optional_text<'de, A: MapAccess<'de>>(members: &mut A) -> Result<Option<String>, A::Error> {
    Ok(members.next_value::<Option<String>>()?.filter(|text| !text.is_empty()))
}
