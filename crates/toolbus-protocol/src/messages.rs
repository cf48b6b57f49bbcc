//! Bodies of messages.

mod cancel;
mod invoke;
mod list;
mod mcp;
mod members;
mod ping;
mod progress;
mod script;
mod session;

pub use cancel::{ToolCancelRequest, ToolCancelResponse};
pub use invoke::{ContentBlock, ToolError, ToolInvokeRequest, ToolInvokeResponse};
pub use list::{Format, MAX_LISTED_NAMES, ToolListRequest, ToolListResponse, ToolsChanged, UnknownFormat};
pub use mcp::{
    McpAnswerQuestionResponse, McpEchoed, McpGetPromptResponse, McpGetServiceDetailsRequest,
    McpGetServiceDetailsResponse, McpListResourcesResponse, McpMetadataRefreshRequest, McpReadResourceResponse,
    McpRegisterServerRequest, McpRegisterServerResponse, McpServerSummary, McpServersIndexed, McpToolDefinition,
    McpUnregisterServerRequest, McpUnregisterServerResponse,
};
pub use ping::{Ping, Pong};
pub use progress::ToolProgress;
pub use script::{DEFAULT_SCRIPT_SECONDS, EXECUTE_PYTHON_SCRIPT, ScriptInvokeRequest, ScriptInvokeResponse};
pub use session::SessionEnd;
