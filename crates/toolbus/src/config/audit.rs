//! `[audit]`: the record of refused calls, of calls with effects and of operators' actions.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Secret;

/// The record of what was refused and what was done. It is part of the log, too.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AuditConfig {
    /// File that records are appended to, one JSON object per line; absent: they are in the log only.
    #[schemars(length(min = 1))]
    pub file: Option<PathBuf>,
    /// Key of the hashes by which equal arguments are recognised, at least 16 bytes; absent: a random one at each start.
    pub key: Option<Secret>,
}
