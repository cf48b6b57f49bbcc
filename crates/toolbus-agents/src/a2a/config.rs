//! `[a2a]`: which agents are known, and the limits of their tasks.

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolbus_config::{HumanDuration, Secret};
use toolbus_core::caller::AgentName;

/// Other agents, and tasks for them: the tools for them are there when this section is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct A2aConfig {
    /// Agents that are known, whatever is announced.
    #[schemars(length(max = 1000))]
    pub agents: Vec<WellKnownAgent>,
    /// More of them, as RockBot's agents write them: `well-known-agents.json`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agents_file: Option<PathBuf>,
    /// Time for which an agent is known after it has announced itself.
    pub ttl: HumanDuration,
    /// Agents that are known by their announcements.
    #[schemars(range(min = 1, max = 10_000))]
    pub max_agents: usize,
    /// Tasks of one agent, and of all callers without a section together; also those that have ended.
    #[schemars(range(min = 1, max = 1000))]
    pub max_tasks: usize,
    /// Longest time that a task may have.
    pub max_timeout: HumanDuration,
    /// Time for which a task is kept after it has ended.
    pub keep: HumanDuration,
    /// Tools that this daemon announces as skills of an agent, by pattern of their names; `[]`: it announces nothing.
    #[schemars(length(max = 1000), extend("items" = {"type": "string", "format": "toolbus-pattern"}))]
    pub announce: Vec<String>,
}

/// An agent that is known, whatever is announced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WellKnownAgent {
    /// Name of the agent.
    pub name: AgentName,
    /// Description of the agent, for models.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1000))]
    pub description: Option<String>,
    /// Where it speaks A2A over HTTP; absent: it is reached over the bus.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "toolbus-http-url"))]
    pub url: Option<String>,
    /// Headers of every request to it; a value may be a secret.
    #[serde(default)]
    #[schemars(extend("maxProperties" = 64))]
    pub headers: BTreeMap<String, Secret>,
    /// Skills of the agent; `[]`: what its own card says, or anything.
    #[serde(default)]
    #[schemars(length(max = 50))]
    pub skills: Vec<WellKnownSkill>,
}

/// Skill of an agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WellKnownSkill {
    /// The name that tasks give.
    #[schemars(length(min = 1, max = 100))]
    pub id: String,
    /// Description of the skill.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1000))]
    pub description: Option<String>,
    /// Words that it is found by.
    #[serde(default)]
    #[schemars(length(max = 20))]
    pub tags: Vec<String>,
}

impl Default for A2aConfig {
    fn default() -> Self {
        Self {
            agents: Vec::new(),
            agents_file: None,
            ttl: HumanDuration::from_secs(10 * 60),
            max_agents: 1000,
            max_tasks: 100,
            max_timeout: HumanDuration::from_secs(60 * 60),
            keep: HumanDuration::from_secs(60 * 60),
            announce: Vec::new(),
        }
    }
}
