#![doc = include_str!("../README.md")]
//!
//! # Contents
//!
//! * [`Properties`] are the AMQP properties of a message, [`Envelope`] is their meaning.
//! * [`ToolInvokeRequest`], [`ToolInvokeResponse`], [`ToolError`] are the bodies of a call,
//!   [`ToolListRequest`] and its reply those of a listing.
//! * [`ScriptInvokeRequest`] and [`ScriptInvokeResponse`] are those of a script.
//! * [`ScheduledTaskMessage`] notifies an agent that a task that it scheduled is due.
//! * [`AgentCard`] announces an agent, and [`AgentTaskRequest`] gives it a task.
//! * [`SubagentTaskMessage`] is a task for another agent, [`SubagentResultMessage`] what became of it.
//! * [`McpServersIndexed`] lists MCP servers for agents, and the requests beside it are about them.
//! * [`llm_name`] is a tool's name as model providers accept it.
//! * [`topic`], [`header`] and [`message_type`] hold the names.

mod address;
mod agent_name;
mod code;
mod envelope;
pub mod header;
mod ids;
mod json;
mod llm_name;
pub mod message_type;
mod messages;
mod properties;
#[cfg(feature = "schema")]
pub mod schema;
pub mod topic;
mod trace;

pub use address::ReplyTo;
pub use agent_name::{AgentName, AgentNameError};
pub use code::{Code, Outcome, UnknownCode};
pub use envelope::Envelope;
pub use ids::{Random, derived_message_id, new_message_id};
pub use json::{MAX_DEPTH, ParseError, large_integers, parse_arguments, parse_object, with_large_integers_as_strings};
pub use llm_name::{gemini_name, is_alias, is_alias_of, llm_name, rest_of_alias};
pub use messages::{
    AgentArtifact, AgentCard, AgentMessage, AgentMessageBody, AgentMessagePart, AgentSkill, AgentTaskCancelRequest,
    AgentTaskError, AgentTaskRequest, AgentTaskResult, AgentTaskState, AgentTaskStatusUpdate, ContentBlock,
    DEFAULT_SCRIPT_SECONDS, DaemonIntake, EXECUTE_PYTHON_SCRIPT, Format, MAX_HINTED_TEXT, MAX_LISTED_NAMES,
    McpAnswerQuestionResponse, McpEchoed, McpGetPromptResponse, McpGetServiceDetailsRequest,
    McpGetServiceDetailsResponse, McpListResourcesResponse, McpMetadataRefreshRequest, McpReadResourceResponse,
    McpRegisterServerRequest, McpRegisterServerResponse, McpServerSummary, McpServersIndexed, McpToolDefinition,
    McpUnregisterServerRequest, McpUnregisterServerResponse, Ping, Pong, ScheduledTaskMessage, ScriptInvokeRequest,
    ScriptInvokeResponse, SessionEnd, SubagentCancelMessage, SubagentProgressMessage, SubagentResultMessage,
    SubagentTaskMessage, ToolAnnouncement, ToolCancelRequest, ToolCancelResponse, ToolError, ToolHintsRequest,
    ToolHintsResponse, ToolInvokeRequest, ToolInvokeResponse, ToolListRequest, ToolListResponse, ToolProgress,
    ToolsChanged, UnknownFormat,
};
pub use properties::{MAX_SHORT_STRING, Properties, bounded};
pub use trace::TraceContext;
