//! Names of payload types: the AMQP property `type`.

/// A request to run a tool.
pub const TOOL_INVOKE_REQUEST: &str = "RockBot.Tools.ToolInvokeRequest";
/// The result of a tool.
pub const TOOL_INVOKE_RESPONSE: &str = "RockBot.Tools.ToolInvokeResponse";
/// Failure of a call without a result.
pub const TOOL_ERROR: &str = "RockBot.Tools.ToolError";
/// Progress of a running call.
pub const TOOL_PROGRESS: &str = "Toolbus.ToolProgress";
/// A request to cancel a running call.
pub const TOOL_CANCEL_REQUEST: &str = "Toolbus.ToolCancelRequest";
/// Whether a call was cancelled.
pub const TOOL_CANCEL_RESPONSE: &str = "Toolbus.ToolCancelResponse";
/// Asks which tools the sender may use.
pub const TOOL_LIST_REQUEST: &str = "Toolbus.ToolListRequest";
/// The tools that a caller may use.
pub const TOOL_LIST_RESPONSE: &str = "Toolbus.ToolListResponse";
/// Asks which of the sender's services fit a text.
pub const TOOL_HINTS_REQUEST: &str = "Toolbus.ToolHintsRequest";
/// Services that fit a text.
pub const TOOL_HINTS_RESPONSE: &str = "Toolbus.ToolHintsResponse";
/// Requests the description of a daemon.
pub const PING: &str = "Toolbus.Ping";
/// Description of a daemon by itself.
pub const PONG: &str = "Toolbus.Pong";
/// Ends a session.
pub const SESSION_END: &str = "Toolbus.SessionEnd";
/// Notifies an agent that its tools changed.
pub const TOOLS_CHANGED: &str = "Toolbus.ToolsChanged";
/// Announces to daemons that the tools of the sender are there, or have changed.
pub const TOOL_ANNOUNCEMENT: &str = "Toolbus.ToolAnnouncement";

/// Notifies an agent that a task that it scheduled is due.
pub const SCHEDULED_TASK_MESSAGE: &str = "RockBot.Host.ScheduledTaskMessage";

/// Announces an agent to all others.
pub const AGENT_CARD: &str = "RockBot.A2A.AgentCard";
/// Gives an agent a task.
pub const AGENT_TASK_REQUEST: &str = "RockBot.A2A.AgentTaskRequest";
/// Ending of a task.
pub const AGENT_TASK_RESULT: &str = "RockBot.A2A.AgentTaskResult";
/// Progress of a task.
pub const AGENT_TASK_STATUS_UPDATE: &str = "RockBot.A2A.AgentTaskStatusUpdate";
/// Error of a task without a result.
pub const AGENT_TASK_ERROR: &str = "RockBot.A2A.AgentTaskError";
/// Requests that an agent gives up a task.
pub const AGENT_TASK_CANCEL_REQUEST: &str = "RockBot.A2A.AgentTaskCancelRequest";
/// A task for the agents that volunteer.
pub const SUBAGENT_TASK_MESSAGE: &str = "Toolbus.SubagentTaskMessage";
/// Withdraws a task from the agents that work on it.
pub const SUBAGENT_CANCEL_MESSAGE: &str = "Toolbus.SubagentCancelMessage";
/// Progress of a sub-agent.
pub const SUBAGENT_PROGRESS_MESSAGE: &str = "RockBot.Host.SubagentProgressMessage";
/// Outcome of the task of a sub-agent.
pub const SUBAGENT_RESULT_MESSAGE: &str = "RockBot.Host.SubagentResultMessage";

/// A request to run a Python script.
pub const SCRIPT_INVOKE_REQUEST: &str = "RockBot.Scripts.ScriptInvokeRequest";
/// Outcome of a Python script, also when the script was not run.
pub const SCRIPT_INVOKE_RESPONSE: &str = "RockBot.Scripts.ScriptInvokeResponse";

/// Lists for an agent the MCP servers that it may use.
pub const MCP_SERVERS_INDEXED: &str = "RockBot.Tools.Mcp.McpServersIndexed";
/// Requests the index of MCP servers again.
pub const MCP_METADATA_REFRESH_REQUEST: &str = "RockBot.Tools.Mcp.McpMetadataRefreshRequest";
/// Requests the tools of an MCP server.
pub const MCP_GET_SERVICE_DETAILS_REQUEST: &str = "RockBot.Tools.Mcp.McpGetServiceDetailsRequest";
/// The tools of an MCP server.
pub const MCP_GET_SERVICE_DETAILS_RESPONSE: &str = "RockBot.Tools.Mcp.McpGetServiceDetailsResponse";
/// Requests to add an MCP server.
pub const MCP_REGISTER_SERVER_REQUEST: &str = "RockBot.Tools.Mcp.McpRegisterServerRequest";
/// Whether an MCP server was added.
pub const MCP_REGISTER_SERVER_RESPONSE: &str = "RockBot.Tools.Mcp.McpRegisterServerResponse";
/// Requests to remove an MCP server.
pub const MCP_UNREGISTER_SERVER_REQUEST: &str = "RockBot.Tools.Mcp.McpUnregisterServerRequest";
/// Whether an MCP server was removed.
pub const MCP_UNREGISTER_SERVER_RESPONSE: &str = "RockBot.Tools.Mcp.McpUnregisterServerResponse";
/// Requests a prompt of an MCP server.
pub const MCP_GET_PROMPT_REQUEST: &str = "RockBot.Tools.Mcp.McpGetPromptRequest";
/// A prompt of an MCP server.
pub const MCP_GET_PROMPT_RESPONSE: &str = "RockBot.Tools.Mcp.McpGetPromptResponse";
/// Requests the resources of an MCP server.
pub const MCP_LIST_RESOURCES_REQUEST: &str = "RockBot.Tools.Mcp.McpListResourcesRequest";
/// The resources of an MCP server.
pub const MCP_LIST_RESOURCES_RESPONSE: &str = "RockBot.Tools.Mcp.McpListResourcesResponse";
/// Requests a resource of an MCP server.
pub const MCP_READ_RESOURCE_REQUEST: &str = "RockBot.Tools.Mcp.McpReadResourceRequest";
/// A resource of an MCP server.
pub const MCP_READ_RESOURCE_RESPONSE: &str = "RockBot.Tools.Mcp.McpReadResourceResponse";
/// Answers the question of an MCP server's tool.
pub const MCP_ANSWER_QUESTION_REQUEST: &str = "RockBot.Tools.Mcp.McpAnswerQuestionRequest";
/// Outcome of a call once its question was answered.
pub const MCP_ANSWER_QUESTION_RESPONSE: &str = "RockBot.Tools.Mcp.McpAnswerQuestionResponse";
/// Releases the questions of a session, which are not answered any more; it has no reply.
pub const MCP_RELEASE_SESSION_QUESTIONS_REQUEST: &str = "RockBot.Tools.Mcp.McpReleaseSessionQuestionsRequest";

/// Kind of a message on a request topic, judged by its `type` alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The request that this topic carries, sent by a peer.
    Request,
    /// No type, or a plain client's own: read as the request that this topic carries.
    Plain,
    /// A reply or an announcement: settled without a reply, so that two daemons cannot reply to each other for ever.
    Reply,
    /// A peer's type that does not belong here.
    Foreign,
}

/// Suffixes of payload types that have no reply.
const REPLY_SUFFIXES: [&str; 11] = [
    "Response",
    "Error",
    "Result",
    "Indexed",
    "Card",
    "Pong",
    "Progress",
    "Changed",
    "Update",
    "Reply",
    "Announcement",
];

/// Judges `message_type` on a topic that carries `expected`.
#[must_use]
pub fn kind(message_type: &str, expected: &str) -> Kind {
    if message_type.eq_ignore_ascii_case(expected) {
        Kind::Request
    } else if !is_peer(message_type) {
        Kind::Plain
    } else if REPLY_SUFFIXES.iter().any(|suffix| ends_with(message_type, suffix)) {
        Kind::Reply
    } else {
        Kind::Foreign
    }
}

/// Whether `name` ends with `suffix`, in any case.
fn ends_with(name: &str, suffix: &str) -> bool {
    let start = name.len().checked_sub(suffix.len());
    start.and_then(|start| name.get(start..)).is_some_and(|end| end.eq_ignore_ascii_case(suffix))
}

/// Whether the sender speaks the peers' envelope, in which `reply_to` is a topic.
#[must_use]
pub fn is_peer(message_type: &str) -> bool {
    let starts = |prefix: &str| message_type.get(..prefix.len()).is_some_and(|head| head.eq_ignore_ascii_case(prefix));
    starts("RockBot.") || starts("Toolbus.")
}

#[cfg(test)]
mod tests {
    use super::{Kind, TOOL_INVOKE_REQUEST, kind};

    #[test]
    fn the_type_decides_the_kind_of_a_message_on_a_request_topic() {
        let table = [
            ("RockBot.Tools.ToolInvokeRequest", Kind::Request),
            ("rockbot.tools.toolinvokerequest", Kind::Request),
            ("", Kind::Plain),
            ("my.own.Type", Kind::Plain),
            ("unknown", Kind::Plain),
            ("RockBot.Tools.ToolInvokeResponse", Kind::Reply),
            ("RockBot.Tools.ToolError", Kind::Reply),
            ("rockbot.tools.toolerror", Kind::Reply),
            ("TOOLBUS.TOOLRESULT", Kind::Reply),
            ("Toolbus.ü", Kind::Foreign),
            ("RockBot.Tools.Mcp.McpServersIndexed", Kind::Reply),
            ("RockBot.A2A.AgentCard", Kind::Reply),
            ("Toolbus.ToolProgress", Kind::Reply),
            ("Toolbus.ToolsChanged", Kind::Reply),
            ("Toolbus.ToolAnnouncement", Kind::Reply),
            ("RockBot.Scripts.ScriptInvokeRequest", Kind::Foreign),
            ("Toolbus.Ping", Kind::Foreign),
        ];
        for (name, expected) in table {
            assert_eq!(kind(name, TOOL_INVOKE_REQUEST), expected, "{name}");
        }
    }
}
