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
