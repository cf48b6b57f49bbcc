//! Requests, responses and errors of the admin API, as JSON.

use std::path::PathBuf;

use axum::Json;
use axum::extract::rejection::{BytesRejection, PathRejection, QueryRejection};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use toolbus_core::policy::UnknownCallers;
use toolbus_mcp_client::status::ServerStatus;
use toolbus_protocol::{ToolError, ToolInvokeResponse};
use toolbus_telemetry::CallTotals;
use toolbus_trust::pins::{Digest, ToolState};

use crate::http::health::{DaemonHealth, OpenBreaker};
use crate::http::readiness::Blocker;

/// Largest body of a request, in bytes.
pub const MAX_BODY: usize = 64 * 1024;

/// Every agent that has a section, and `default` for all other callers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentOverview {
    /// One entry each, `default` last.
    pub agents: Vec<AgentSummary>,
    /// Treatment of callers without a section.
    pub unknown: UnknownCallers,
    /// Switches that are off.
    pub disabled: Vec<Switched>,
}

/// One agent in short.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentSummary {
    /// Name of the agent.
    pub agent: String,
    /// Number of tools that it may use, without a binding.
    pub tools: usize,
    /// Number of tools that there are.
    pub total: usize,
    /// The profile that each of its requests has; absent: the request chooses.
    pub profile: Option<String>,
    /// Calls of it that may run at a time.
    pub max_in_flight: usize,
    /// Calls of it that may wait at a time.
    pub max_queued: usize,
    /// Calls of it that run now; absent for a configuration alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running: Option<usize>,
    /// Calls of it that wait now; absent for a configuration alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<usize>,
    /// Patterns of tools whose calls are limited in rate.
    pub rate_limits: Vec<String>,
    /// Bindings of the agent, as `channel:account`.
    pub bindings: Vec<String>,
    /// Whether the agent is switched off.
    pub disabled: bool,
}

/// Identity with which an agent calls.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CallerQuery {
    /// The binding, as `channel:account`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binding: Option<String>,
    /// The profile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// The session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
}

/// Tools that one agent may use, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentTools {
    /// Name of the agent.
    pub agent: String,
    /// Whether the agent has a section of its own; else `default` applies.
    pub configured: bool,
    /// Reason why it has no tools at all, if something takes them all away.
    pub nothing: Option<String>,
    /// Rules that apply beside that.
    pub rules: AppliedRules,
    /// Every tool that there is, by name.
    pub tools: Vec<ToolVerdict>,
}

/// Rules of an agent beside its tools, under the requested binding.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AppliedRules {
    /// The profile that each of its requests has; absent: the request chooses.
    pub profile: Option<String>,
    /// Tool sets of the agent.
    pub tool_sets: Vec<String>,
    /// Calls of it that run at a time.
    pub max_in_flight: usize,
    /// Calls of it that wait at a time.
    pub max_queued: usize,
    /// Rates by pattern of tools, the most specific first.
    pub rate_limits: Vec<NamedRule>,
    /// Number of people that the agent may address, by channel.
    pub recipients: Vec<NamedRule>,
    /// Arguments that are set for it, by pattern of tools.
    pub arguments: Vec<NamedRule>,
    /// Bindings of the agent, as `channel:account`.
    pub bindings: Vec<String>,
}

/// A rule, and its purpose.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedRule {
    /// Subject of the rule.
    pub name: String,
    /// The rule.
    pub value: String,
}

/// Verdict on one tool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolVerdict {
    /// Name of the tool.
    pub tool: String,
    /// Where it comes from.
    pub source: String,
    /// Whether the agent may use it.
    pub allowed: bool,
    /// Why, or why not.
    pub because: String,
    /// Sources that have a tool of this name, too, which is called by its server alone; absent: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shadows: Vec<String>,
    /// Rules of the scan that its definition meets; absent: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub suspect: Vec<String>,
}

/// A call to be explained, and not made.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Question {
    /// Who would call.
    pub agent: String,
    /// Which tool.
    pub tool: String,
    /// With which arguments: an object, or its text. Kept as it was written, so that it is read as a call's is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arguments: Option<Box<RawValue>>,
    /// Under which binding, as `channel:account`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binding: Option<String>,
    /// Under which profile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// In which session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
}

/// A call of an operator.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CallRequest {
    /// The caller; absent: one without a section.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// Which tool.
    pub tool: String,
    /// With which arguments: an object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arguments: Option<Box<RawValue>>,
    /// The MCP server that has the tool; absent: any tool of the name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// Under which binding, as `channel:account`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binding: Option<String>,
    /// Under which profile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// In which session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// Time that the call gets, in milliseconds; absent: that of daemon and tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
}

/// Outcome of a call, as a caller on the bus would get it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CallOutcome {
    /// The tool ran.
    Result(ToolInvokeResponse),
    /// There is no result.
    Error(ToolError),
}

/// The gates of a call, up to the first that refuses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explained {
    /// Who would call.
    pub agent: String,
    /// Which tool.
    pub tool: String,
    /// Whether every gate lets the call pass.
    pub passes: bool,
    /// The gates, in order.
    pub steps: Vec<GateResult>,
}

/// One gate of a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GateResult {
    /// Name of the step.
    pub step: String,
    /// Whether the call passes.
    pub passes: bool,
    /// Why, for an operator.
    pub text: String,
    /// The message for the caller, if it refuses.
    pub told: Option<String>,
}

/// Switches that are off.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disabled {
    /// Everything, sorted.
    pub disabled: Vec<Switched>,
}

/// A tool, an agent or a source that is switched off.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Switched {
    /// `tool`, `agent` or `source`.
    pub kind: String,
    /// Name of the tool, agent or source.
    pub name: String,
}

/// A switch after it was set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Switching {
    /// `tool`, `agent` or `source`.
    pub kind: String,
    /// Name of the tool, agent or source.
    pub name: String,
    /// Whether the switch is off now.
    pub disabled: bool,
    /// Whether that is different from before.
    pub changed: bool,
    /// Whether there is something of this name now.
    pub known: bool,
}

/// Tools and servers whose circuit breaker is open.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenBreakers {
    /// Everything, sorted by name.
    pub breakers: Vec<OpenBreaker>,
}

/// A breaker that was reset.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BreakerReset {
    /// The tool, or the server as `mcp:NAME`.
    pub name: String,
    /// Whether the circuit breaker was open before.
    pub was_open: bool,
}

/// The daemon as a whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DaemonStatus {
    /// Files of its configuration, as absolute paths.
    pub files: Vec<PathBuf>,
    /// Reason why it is not ready.
    pub blocked_by: Vec<Blocker>,
    /// Whether state is in memory, and lost when the daemon ends.
    #[serde(default)]
    pub state_in_memory: bool,
    /// The agents with the most calls, those with running and waiting ones first.
    #[serde(default)]
    pub busiest_agents: Vec<BusyAgent>,
    /// The tools with the most calls, those with running ones first.
    #[serde(default)]
    pub busiest_tools: Vec<BusyTool>,
    /// Tools, agents and sources that are switched off.
    #[serde(default)]
    pub disabled: Vec<Switched>,
    /// Public status, and the last reload as a whole.
    #[serde(flatten)]
    pub status: DaemonHealth,
}

/// Totals of calls at one moment. The rates between two moments are their differences.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CallRates {
    /// The moment, as RFC 3339 has it, to a millisecond.
    pub at: String,
    /// Totals since the start of the daemon.
    #[serde(flatten)]
    pub totals: CallTotals,
}

/// An agent with calls.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BusyAgent {
    /// Name of the agent; `default` stands for all callers without a section.
    pub agent: String,
    /// Calls of it that run now.
    pub running: usize,
    /// Calls of it that wait now.
    pub waiting: usize,
    /// Calls of it that ended in the last one to two minutes, refused ones included.
    pub recent: u64,
}

/// A tool with calls.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BusyTool {
    /// Name of the tool.
    pub tool: String,
    /// Calls of it that run now.
    pub running: usize,
    /// Calls of it that ended in the last one to two minutes, refused ones included.
    pub recent: u64,
}

/// Selection of tools; by default all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolsQuery {
    /// The tool of this name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Tools that this agent may use, as they are listed to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// The agent's binding.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binding: Option<String>,
    /// The profile that the agent's request names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
}

/// The tools that there are, or those of one agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolsFound {
    /// Reason why the agent has none, if something takes them all away.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nothing: Option<String>,
    /// The tools, by name.
    pub tools: Vec<ToolDetails>,
}

/// All that is known of a tool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ToolDetails {
    /// Name of the tool.
    pub name: String,
    /// Description of the tool.
    pub description: String,
    /// Where it comes from.
    pub source: String,
    /// The kind of backend.
    pub provider: String,
    /// Effect of repeating a call.
    pub effect: String,
    /// Longest run of one call, in milliseconds; absent: the daemon's.
    pub timeout_ms: Option<u64>,
    /// Calls that may run at a time; absent: the daemon's.
    pub max_in_flight: Option<usize>,
    /// Reason why it cannot be called now, such as being disabled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unavailable: Option<String>,
    /// JSON Schema of the arguments; absent: any object.
    pub parameters: Option<Value>,
}

/// The MCP servers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct McpServerList {
    /// Every server, by name.
    pub servers: Vec<ServerStatus>,
    /// Problems with servers as they are configured; absent: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
}

/// A server that is being restarted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct McpRestart {
    /// Name of the server, as the configuration has it.
    pub restarting: String,
}

/// Pinned tools.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PinnedTools {
    /// The file in which it is kept, where there is one.
    pub file: Option<String>,
    /// Reason why the file could not be used last, if it could not.
    pub problem: Option<String>,
    /// Every tool that is pinned or there, by source and name.
    pub tools: Vec<Pinned>,
}

/// State of one tool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pinned {
    /// Source of the tool.
    pub source: String,
    /// Name within the source.
    pub tool: String,
    /// The name that it is called by.
    pub name: String,
    /// State, compared with the pin.
    pub state: ToolState,
    /// Whether the tool is quarantined.
    pub held: bool,
    /// Since when it is like this; absent where that is not recorded, as of a missing tool.
    pub since: Option<String>,
    /// When its definition was pinned.
    #[serde(default)]
    pub pinned: Option<String>,
    /// Reason why it is quarantined.
    pub reason: Option<String>,
    /// The source that has its name, where that is another one: it is called by its server alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shadowed_by: Option<String>,
}

/// Differences of the tools of one name from their pins.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Changes {
    /// The name.
    pub name: String,
    /// Fingerprint of all that an approval would pin, which the approval names.
    pub digest: Digest,
    /// Each tool.
    pub changes: Vec<Changed>,
    /// Number of further tools, which are too many to be shown at a time.
    pub more: usize,
}

/// Difference of one tool from its pin.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Changed {
    /// State of the tool.
    pub is: Pinned,
    /// Pinned definition.
    pub before: Option<Box<RawValue>>,
    /// Present definition.
    pub after: Option<Box<RawValue>>,
}

/// Approval of changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Approval {
    /// The source of the tool; absent: its only one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Fingerprint of the shown changes.
    pub digest: Digest,
}

/// Result of an approval.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Approved {
    /// Each tool, in its state before.
    pub approved: Vec<Pinned>,
}

/// Reason why a request was refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApiRefusal {
    /// The reason, and the next step.
    pub error: String,
}

/// Reason why a request to the admin API is refused: a status, and a text for the operator.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub struct ApiError {
    status: StatusCode,
    text: String,
}

impl ApiError {
    pub(super) fn new(status: StatusCode, text: impl ToString) -> Self {
        Self { status, text: text.to_string() }
    }

    pub(in crate::http) fn bad_request(text: impl ToString) -> Self {
        Self::new(StatusCode::BAD_REQUEST, text)
    }

    pub(super) fn not_found(text: impl ToString) -> Self {
        Self::new(StatusCode::NOT_FOUND, text)
    }

    pub(super) fn conflict(text: impl ToString) -> Self {
        Self::new(StatusCode::CONFLICT, text)
    }

    pub(super) fn internal(text: impl ToString) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, text)
    }

    pub(super) fn unavailable(text: impl ToString) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, text)
    }

    /// Status of the response.
    pub(crate) const fn code(&self) -> StatusCode {
        self.status
    }

    /// Whether there is nothing wrong with the request, and it cannot be carried out as things are.
    pub(crate) fn is_failure(&self) -> bool {
        is_failure(self.status)
    }
}

/// Whether a status is that of a failed request, not of a refused one.
pub(super) fn is_failure(status: StatusCode) -> bool {
    status.is_server_error() || status == StatusCode::CONFLICT
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        (self.status, Json(ApiRefusal { error: self.text })).into_response()
    }
}

impl From<PathRejection> for ApiError {
    fn from(rejection: PathRejection) -> Self {
        Self::bad_request(rejection.body_text())
    }
}

impl From<QueryRejection> for ApiError {
    fn from(rejection: QueryRejection) -> Self {
        Self::bad_request(rejection.body_text())
    }
}

impl From<BytesRejection> for ApiError {
    fn from(rejection: BytesRejection) -> Self {
        match rejection.status() {
            StatusCode::PAYLOAD_TOO_LARGE => {
                Self::new(StatusCode::PAYLOAD_TOO_LARGE, format!("the body is larger than {} KiB", MAX_BODY / 1024))
            }
            _ => Self::bad_request(rejection.body_text()),
        }
    }
}
