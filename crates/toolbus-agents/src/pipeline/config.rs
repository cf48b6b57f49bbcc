//! `[pipelines]`: how much a call of `spawn_wisps` may do, and how many run at a time.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolbus_config::ByteSize;

/// Pipelines of tool calls: the tool `spawn_wisps` is there when this section is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PipelinesConfig {
    /// Pipelines of one call.
    #[schemars(range(min = 1, max = 100))]
    pub max_pipelines: usize,
    /// Steps of one pipeline.
    #[schemars(range(min = 1, max = 1000))]
    pub max_steps: usize,
    /// Elements that a step with `for_each` calls its tool for.
    #[schemars(range(min = 1, max = 10_000))]
    pub max_items: usize,
    /// Tools that the pipelines of one call run at a time, together.
    #[schemars(range(min = 1, max = 100))]
    pub max_parallel: usize,
    /// Values that the steps of one call keep, together, as they are in memory.
    pub max_values: ByteSize,
    /// Calls of `spawn_wisps` that run at a time. A caller gets at most as many as are free then.
    #[schemars(range(min = 1, max = 10_000))]
    pub max_running: usize,
}

impl Default for PipelinesConfig {
    fn default() -> Self {
        Self {
            max_pipelines: 8,
            max_steps: 50,
            max_items: 100,
            max_parallel: 4,
            max_values: ByteSize::from_mib(16),
            max_running: 32,
        }
    }
}
