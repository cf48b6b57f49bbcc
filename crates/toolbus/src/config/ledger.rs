//! `[ledger]`: the record of calls that must not run twice.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolbus_config::{ByteSize, HumanDuration};
use toolbus_core::ledger::LedgerLimits;

/// Record of calls that must not run twice, kept in the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LedgerConfig {
    /// Time for which a call is known, from its begin; longer than `invoke.max_timeout`.
    pub ttl: HumanDuration,
    /// Calls that are known. To know one more, the oldest answered one is forgotten.
    #[schemars(range(min = 1, max = 100_000_000))]
    pub max_entries: u64,
    /// Answers that are kept, with 256 bytes for each call. To keep one more, the oldest answered call is forgotten.
    pub max_size: ByteSize,
    /// Largest answer that is kept. Of a larger one is known that there was one.
    pub max_answer: ByteSize,
}

impl Default for LedgerConfig {
    fn default() -> Self {
        Self {
            ttl: HumanDuration::from_secs(24 * 60 * 60),
            max_entries: 1_000_000,
            max_size: ByteSize::from_mib(128),
            max_answer: ByteSize::from_mib(1),
        }
    }
}

impl LedgerConfig {
    /// Limits of the ledger.
    #[must_use]
    pub fn limits(&self) -> LedgerLimits {
        LedgerLimits { max_entries: self.max_entries, max_bytes: self.max_size.bytes() }
    }
}
