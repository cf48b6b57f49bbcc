//! `[subagents]`: who works on tasks of agents, and how many and how long.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolbus_config::HumanDuration;
use toolbus_core::caller::AgentName;

/// Tasks for other agents: the tools for them, and for the whiteboard, are there when this section is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SubagentsConfig {
    /// The agents that may work on tasks, by pool. A task without a pool is for the first one by name.
    #[schemars(extend("maxProperties" = 64, "propertyNames" = {"format": "toolbus-agent"}))]
    pub pools: BTreeMap<String, Vec<AgentName>>,
    /// Tasks that an agent may have under way, and all callers without a section together.
    #[schemars(range(min = 1, max = 100))]
    pub max_tasks: usize,
    /// Longest time for a task.
    pub max_timeout: HumanDuration,
    /// Entries of the whiteboard of an agent.
    #[schemars(range(min = 1, max = 1000))]
    pub max_entries: usize,
}

impl Default for SubagentsConfig {
    fn default() -> Self {
        Self { pools: BTreeMap::new(), max_tasks: 5, max_timeout: HumanDuration::from_secs(60 * 60), max_entries: 100 }
    }
}
