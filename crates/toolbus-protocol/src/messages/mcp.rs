//! Messages about MCP servers between agents and bridges.

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
