use crate::message_type::{
    AGENT_CARD, AGENT_TASK_CANCEL_REQUEST, AGENT_TASK_ERROR, AGENT_TASK_REQUEST, AGENT_TASK_RESULT,
    AGENT_TASK_STATUS_UPDATE, MCP_ANSWER_QUESTION_REQUEST, MCP_ANSWER_QUESTION_RESPONSE, MCP_GET_PROMPT_REQUEST,
    MCP_GET_PROMPT_RESPONSE, MCP_GET_SERVICE_DETAILS_REQUEST, MCP_GET_SERVICE_DETAILS_RESPONSE,
    MCP_LIST_RESOURCES_REQUEST, MCP_LIST_RESOURCES_RESPONSE, MCP_METADATA_REFRESH_REQUEST, MCP_READ_RESOURCE_REQUEST,
    MCP_READ_RESOURCE_RESPONSE, MCP_REGISTER_SERVER_REQUEST, MCP_REGISTER_SERVER_RESPONSE,
    MCP_RELEASE_SESSION_QUESTIONS_REQUEST, MCP_SERVERS_INDEXED, MCP_UNREGISTER_SERVER_REQUEST,
    MCP_UNREGISTER_SERVER_RESPONSE, PING, PONG, SCHEDULED_TASK_MESSAGE, SCRIPT_INVOKE_REQUEST, SCRIPT_INVOKE_RESPONSE,
    SESSION_END, SUBAGENT_CANCEL_MESSAGE, SUBAGENT_PROGRESS_MESSAGE, SUBAGENT_RESULT_MESSAGE, SUBAGENT_TASK_MESSAGE,
    TOOL_ANNOUNCEMENT, TOOL_CANCEL_REQUEST, TOOL_CANCEL_RESPONSE, TOOL_ERROR, TOOL_HINTS_REQUEST, TOOL_HINTS_RESPONSE,
    TOOL_INVOKE_REQUEST, TOOL_INVOKE_RESPONSE, TOOL_LIST_REQUEST, TOOL_LIST_RESPONSE, TOOL_PROGRESS, TOOLS_CHANGED,
};
use crate::topic;

/// Direction of a message, as a daemon sees it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    /// The daemon consumes it.
    Receive,
    /// The daemon publishes it.
    Send,
}

/// Use that a daemon makes of a topic.
pub(super) struct Operation {
    pub(super) id: &'static str,
    pub(super) action: Action,
    /// The topic, with parameters in braces.
    pub(super) topic: String,
    pub(super) messages: &'static [&'static str],
    /// Messages that the daemon publishes on the request's `reply_to`.
    pub(super) replies: &'static [&'static str],
    pub(super) summary: &'static str,
}

/// Types of messages.
type Types = &'static [&'static str];

fn receive(
    id: &'static str,
    topic: impl Into<String>,
    messages: Types,
    replies: Types,
    summary: &'static str,
) -> Operation {
    Operation { id, action: Action::Receive, topic: topic.into(), messages, replies, summary }
}

fn send(id: &'static str, topic: impl Into<String>, messages: Types, summary: &'static str) -> Operation {
    Operation { id, action: Action::Send, topic: topic.into(), messages, replies: &[], summary }
}

/// Messages about a call, to its sender.
const OF_CALLS: Types = &[TOOL_INVOKE_RESPONSE, TOOL_ERROR, TOOL_PROGRESS];
/// Ends of a task of an agent.
const ENDS: Types = &[AGENT_TASK_RESULT, AGENT_TASK_ERROR];

/// Everything that a daemon does on the bus.
pub(super) fn operations() -> Vec<Operation> {
    [calls(), control(), mcp_servers(), agents()].into_iter().flatten().collect()
}

fn calls() -> Vec<Operation> {
    vec![
        receive("invokeTool", topic::TOOL_INVOKE, &[TOOL_INVOKE_REQUEST], OF_CALLS, "Runs a tool."),
        receive(
            "invokeMcpTool",
            topic::TOOL_INVOKE_MCP,
            &[TOOL_INVOKE_REQUEST],
            OF_CALLS,
            "Runs a tool of an MCP server.",
        ),
        receive(
            "invokeScript",
            topic::SCRIPT_INVOKE,
            &[SCRIPT_INVOKE_REQUEST],
            &[SCRIPT_INVOKE_RESPONSE],
            "Runs a Python script.",
        ),
        receive(
            "cancelCall",
            topic::TOOL_CANCEL,
            &[TOOL_CANCEL_REQUEST],
            &[TOOL_CANCEL_RESPONSE],
            "Cancels a call of the sender; replies only if there is a `reply_to`.",
        ),
        send("sendToolResult", topic::TOOL_RESULT, OF_CALLS, "Replies to a call without `reply_to`."),
        send(
            "sendMcpToolResult",
            format!("{}.{{agent}}", topic::TOOL_RESULT),
            OF_CALLS,
            "Replies to a call of an MCP server's tool without `reply_to`.",
        ),
        send(
            "sendScriptResult",
            topic::SCRIPT_RESULT,
            &[SCRIPT_INVOKE_RESPONSE],
            "Replies to a script without `reply_to`.",
        ),
    ]
}

fn control() -> Vec<Operation> {
    vec![
        receive(
            "listTools",
            topic::TOOL_LIST,
            &[TOOL_LIST_REQUEST],
            &[TOOL_LIST_RESPONSE, TOOL_ERROR],
            "Lists the tools that the sender may use.",
        ),
        receive(
            "hint",
            topic::TOOL_HINTS,
            &[TOOL_HINTS_REQUEST],
            &[TOOL_HINTS_RESPONSE, TOOL_ERROR],
            "Says which services of the sender fit a text.",
        ),
        receive("ping", topic::TOOL_PING, &[PING], &[PONG], "Says what the daemon is."),
        receive("receiveDaemon", topic::TOOL_PING, &[PONG], &[], "Compares another daemon with this one."),
        send("sendDaemon", topic::TOOL_PING, &[PONG], "Tells other daemons where this one takes calls from."),
        receive(
            "endSession",
            topic::TOOL_SESSION_END,
            &[SESSION_END],
            &[],
            "Ends a session of the sender and everything started for it.",
        ),
        receive(
            "receiveProvider",
            topic::TOOL_ANNOUNCE,
            &[TOOL_ANNOUNCEMENT],
            &[],
            "Learns that the tools of a provider are there, or have changed.",
        ),
        send(
            "announceTools",
            topic::tools_changed("{agent}"),
            &[TOOLS_CHANGED],
            "Tells an agent that its tools have changed.",
        ),
        send(
            "sendScheduledTask",
            topic::scheduled_task("{agent}"),
            &[SCHEDULED_TASK_MESSAGE],
            "Tells an agent that a task is due, or how a call ended that it has scheduled.",
        ),
    ]
}

fn mcp_servers() -> Vec<Operation> {
    let manage = |id, message, replies, summary| receive(id, topic::MCP_MANAGE, message, replies, summary);
    vec![
        receive(
            "refreshMcpServers",
            topic::MCP_REFRESH,
            &[MCP_METADATA_REFRESH_REQUEST],
            &[],
            "Announces all MCP servers to the sender again.",
        ),
        send(
            "announceMcpServers",
            topic::mcp_servers("{agent}"),
            &[MCP_SERVERS_INDEXED],
            "Tells an agent which MCP servers it may use.",
        ),
        manage(
            "getServiceDetails",
            &[MCP_GET_SERVICE_DETAILS_REQUEST],
            &[MCP_GET_SERVICE_DETAILS_RESPONSE],
            "Describes the tools of an MCP server.",
        ),
        manage(
            "registerServer",
            &[MCP_REGISTER_SERVER_REQUEST],
            &[MCP_REGISTER_SERVER_RESPONSE],
            "Adds an MCP server.",
        ),
        manage(
            "unregisterServer",
            &[MCP_UNREGISTER_SERVER_REQUEST],
            &[MCP_UNREGISTER_SERVER_RESPONSE],
            "Removes an MCP server.",
        ),
        manage("getPrompt", &[MCP_GET_PROMPT_REQUEST], &[MCP_GET_PROMPT_RESPONSE], "Refuses: prompts are not served."),
        manage(
            "listResources",
            &[MCP_LIST_RESOURCES_REQUEST],
            &[MCP_LIST_RESOURCES_RESPONSE],
            "Refuses: resources are not served.",
        ),
        manage(
            "readResource",
            &[MCP_READ_RESOURCE_REQUEST],
            &[MCP_READ_RESOURCE_RESPONSE],
            "Refuses: resources are not served.",
        ),
        manage(
            "answerQuestion",
            &[MCP_ANSWER_QUESTION_REQUEST],
            &[MCP_ANSWER_QUESTION_RESPONSE],
            "Refuses: questions are not served.",
        ),
        manage(
            "releaseQuestions",
            &[MCP_RELEASE_SESSION_QUESTIONS_REQUEST],
            &[],
            "Does nothing: questions are not served.",
        ),
        send(
            "sendMcpManageResponse",
            topic::mcp_manage_response("{agent}"),
            &[
                MCP_GET_SERVICE_DETAILS_RESPONSE,
                MCP_REGISTER_SERVER_RESPONSE,
                MCP_UNREGISTER_SERVER_RESPONSE,
                MCP_GET_PROMPT_RESPONSE,
                MCP_LIST_RESOURCES_RESPONSE,
                MCP_READ_RESOURCE_RESPONSE,
                MCP_ANSWER_QUESTION_RESPONSE,
            ],
            "Replies where RockBot's agents hear replies to requests on `mcp.manage`: as their `reply_to` says.",
        ),
    ]
}

fn agents() -> Vec<Operation> {
    vec![
        receive("receiveAgentCard", topic::DISCOVERY_ANNOUNCE, &[AGENT_CARD], &[], "Learns of an agent."),
        send("announceAgent", topic::DISCOVERY_ANNOUNCE, &[AGENT_CARD], "Announces the daemon as an agent."),
        send("giveTask", topic::agent_task("{agent}"), &[AGENT_TASK_REQUEST], "Gives an agent a task."),
        receive(
            "takeTask",
            topic::agent_task("{agent}"),
            &[AGENT_TASK_REQUEST],
            ENDS,
            "Takes a task, as the agent that the daemon announces itself as.",
        ),
        send(
            "cancelTask",
            topic::agent_task_cancel("{agent}"),
            &[AGENT_TASK_CANCEL_REQUEST],
            "Asks an agent to give up a task.",
        ),
        receive(
            "giveUpTask",
            topic::agent_task_cancel("{agent}"),
            &[AGENT_TASK_CANCEL_REQUEST],
            ENDS,
            "Gives up a task.",
        ),
        receive(
            "receiveTaskStatus",
            topic::AGENT_TASK_STATUS,
            &[AGENT_TASK_STATUS_UPDATE],
            &[],
            "Learns how far an agent's task is.",
        ),
        send(
            "sendTaskStatus",
            topic::AGENT_TASK_STATUS,
            &[AGENT_TASK_STATUS_UPDATE],
            "Says how far a task is that the daemon has taken.",
        ),
        receive("receiveTaskEnd", topic::agent_response("{agent}"), ENDS, &[], "Learns how a task ended."),
        send(
            "sendTaskEnd",
            topic::agent_response("{agent}"),
            ENDS,
            "Tells an agent how a task ended that it has given.",
        ),
        send(
            "offerSubagentTask",
            topic::subagent_task("{pool}"),
            &[SUBAGENT_TASK_MESSAGE],
            "Gives a task to one of the agents of a pool.",
        ),
        send(
            "cancelSubagentTask",
            topic::subagent_cancel("{pool}"),
            &[SUBAGENT_CANCEL_MESSAGE],
            "Tells the agents of a pool that a task is over.",
        ),
        receive(
            "receiveSubagentReport",
            topic::SUBAGENT_REPORT,
            &[SUBAGENT_PROGRESS_MESSAGE, SUBAGENT_RESULT_MESSAGE],
            &[],
            "Takes a report on a task from an agent of its pool.",
        ),
        send(
            "sendSubagentProgress",
            topic::subagent_progress("{agent}"),
            &[SUBAGENT_PROGRESS_MESSAGE],
            "Tells an agent how far its sub-agent is.",
        ),
        send(
            "sendSubagentResult",
            topic::subagent_result("{agent}"),
            &[SUBAGENT_RESULT_MESSAGE],
            "Tells an agent how the task of its sub-agent ended.",
        ),
    ]
}
