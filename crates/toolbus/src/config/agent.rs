//! Names of agents that mean something else than one agent.

use toolbus_core::caller::AgentName;

/// The section for every agent that has none of its own.
pub const DEFAULT_AGENT: &str = "default";
/// What a caller is called that is no agent.
pub(crate) const UNKNOWN_AGENT: &str = "unknown";

/// Whether a section is for every agent that has none of its own.
#[must_use]
pub fn is_default(agent: &AgentName) -> bool {
    agent.as_str() == DEFAULT_AGENT
}
