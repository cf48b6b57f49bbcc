//! `[memory]`: how much agents keep in working memory, and for how long.

use std::sync::Arc;

use crate::working_memory::{MemoryLimits, WorkingMemory};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolbus_config::{ByteSize, HumanDuration};
use toolbus_core::Clock;

use crate::tools::MemoryTools;

/// Texts that agents keep for a while: the tools of working memory are there when this section is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct MemoryConfig {
    /// Time for which an entry is kept for which the agent says nothing else; at most 24 h.
    pub default_ttl: HumanDuration,
    /// Longest text of an entry.
    pub max_value: ByteSize,
    /// Entries of one namespace of an agent, such as those of a session.
    #[schemars(range(min = 1, max = 100_000))]
    pub max_entries_per_namespace: u64,
    /// Entries of one agent, and of all callers without a section together.
    #[schemars(range(min = 1, max = 100_000))]
    pub max_entries: u64,
    /// Texts of one agent, and of all callers without a section together, with 256 bytes for each entry.
    pub max_size: ByteSize,
    /// Texts of all agents, counted in the same way.
    pub max_total_size: ByteSize,
}

impl Default for MemoryConfig {
    fn default() -> Self {
        Self {
            default_ttl: HumanDuration::from_secs(20 * 60),
            max_value: ByteSize::from_mib(1),
            max_entries_per_namespace: 1000,
            max_entries: 10_000,
            max_size: ByteSize::from_mib(64),
            max_total_size: ByteSize::from_mib(256),
        }
    }
}

impl MemoryConfig {
    /// Builds the common parts of the tools, on `memory`; `is_volatile` if its entries are lost with the process.
    #[must_use]
    pub fn tools(&self, memory: Arc<dyn WorkingMemory>, is_volatile: bool, clock: Clock) -> MemoryTools {
        MemoryTools { memory, default_ttl: self.default_ttl.get(), is_volatile, clock }
    }

    /// Returns the limits on how much is kept.
    #[must_use]
    pub fn limits(&self) -> MemoryLimits {
        MemoryLimits {
            max_value: self.max_value.bytes(),
            max_entries_per_namespace: self.max_entries_per_namespace,
            max_entries: self.max_entries,
            max_size: self.max_size.bytes(),
            max_total_size: self.max_total_size.bytes(),
        }
    }
}
