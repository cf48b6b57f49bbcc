//! `[breaker]`: tools and MCP servers that fail again and again.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolbus_config::HumanDuration;
use toolbus_core::breaker::BreakerRules;

/// When a tool or an MCP server that fails again and again gets no calls for a while.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct BreakerConfig {
    /// Failures in a row after which an endpoint, a command or an MCP server gets no calls; 0: never.
    #[schemars(range(max = 1_000_000))]
    pub failures: u32,
    /// Time until a call is tried again; doubled by each trial that fails.
    pub pause: HumanDuration,
    /// Longest time until a call is tried again.
    pub max_pause: HumanDuration,
}

impl Default for BreakerConfig {
    fn default() -> Self {
        Self { failures: 5, pause: HumanDuration::from_secs(5), max_pause: HumanDuration::from_secs(120) }
    }
}

impl BreakerConfig {
    /// The rules of this section.
    #[must_use]
    pub fn rules(&self) -> BreakerRules {
        BreakerRules { failures: self.failures, pause: self.pause.get(), max_pause: self.max_pause.get() }
    }
}
