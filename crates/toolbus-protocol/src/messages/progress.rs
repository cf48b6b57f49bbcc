use serde::{Deserialize, Serialize};

/// How far a running call is, for a caller that asked to hear of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ToolProgress {
    /// The call, as its sender named it.
    pub tool_call_id: String,
    /// The tool, as the sender named it.
    pub tool_name: String,
    /// How far, in units of the tool's own.
    pub progress: f64,
    /// What `progress` is at the end, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total: Option<f64>,
    /// What the tool is doing, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}
