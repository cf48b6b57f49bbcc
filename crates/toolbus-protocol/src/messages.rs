//! Bodies of messages.

mod a2a;
mod control;
mod fields;
mod hints;
mod invoke;
mod list;
mod mcp;
mod schedule;
mod script;
mod subagent;

pub use a2a::{
    AgentArtifact, AgentCard, AgentMessage, AgentMessageBody, AgentMessagePart, AgentSkill, AgentTaskCancelRequest,
    AgentTaskError, AgentTaskRequest, AgentTaskResult, AgentTaskState, AgentTaskStatusUpdate,
};
pub use control::{DaemonIntake, Ping, Pong, SessionEnd, ToolAnnouncement, ToolCancelRequest, ToolCancelResponse};
pub use hints::{MAX_HINTED_TEXT, ToolHintsRequest, ToolHintsResponse};
pub use invoke::{ContentBlock, ToolError, ToolInvokeRequest, ToolInvokeResponse, ToolProgress};
pub use list::{Format, MAX_LISTED_NAMES, ToolListRequest, ToolListResponse, ToolsChanged, UnknownFormat};
pub use mcp::{
    McpAnswerQuestionResponse, McpEchoed, McpGetPromptResponse, McpGetServiceDetailsRequest,
    McpGetServiceDetailsResponse, McpListResourcesResponse, McpMetadataRefreshRequest, McpReadResourceResponse,
    McpRegisterServerRequest, McpRegisterServerResponse, McpServerSummary, McpServersIndexed, McpToolDefinition,
    McpUnregisterServerRequest, McpUnregisterServerResponse,
};
pub use schedule::ScheduledTaskMessage;
pub use script::{DEFAULT_SCRIPT_SECONDS, EXECUTE_PYTHON_SCRIPT, ScriptInvokeRequest, ScriptInvokeResponse};
pub use subagent::{SubagentCancelMessage, SubagentProgressMessage, SubagentResultMessage, SubagentTaskMessage};
