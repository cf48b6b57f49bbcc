//! `[daemon]`: what this process does.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What this process does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct DaemonConfig {
    /// The parts that run in this process; all by default.
    #[schemars(length(min = 1), extend("uniqueItems" = true))]
    pub roles: Vec<Role>,
}

/// A part of the daemon that can run alone in its own process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Role {
    /// Runs the tools that requests on `invoke.topics` ask for.
    Invoke,
}

impl Default for DaemonConfig {
    fn default() -> Self {
        Self { roles: vec![Role::Invoke] }
    }
}
