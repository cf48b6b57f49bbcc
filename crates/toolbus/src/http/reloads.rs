//! Reloads of the configuration, as the status shows them.

use serde::{Deserialize, Serialize};

/// Numbers of reloads of the configuration since the start, by outcome.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReloadCounts {
    /// Applied reloads.
    pub applied: u64,
    /// Refused reloads.
    pub refused: u64,
}

/// Outcome of a reload of the configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReloadReport {
    /// Whether the configuration was applied; otherwise everything stayed as it was.
    pub applied: bool,
    /// Sections that differ from before, and are in force now.
    pub changed: Vec<String>,
    /// Sections that differ, and wait for a restart.
    pub waiting: Vec<String>,
    /// Number of tools that there are now.
    pub tools: usize,
    /// Names of tools that there were not before. MCP servers that start have theirs later.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub added: Vec<String>,
    /// Names of tools that are gone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub removed: Vec<String>,
    /// Warnings about valid but suspicious settings.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// Reason why it was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl ReloadReport {
    /// The public parts: no name of a tool, and no text about the configuration.
    pub(super) fn public(self) -> Self {
        let Self { applied, changed, waiting, tools, .. } = self;
        Self { applied, changed, waiting, tools, ..Self::default() }
    }
}

/// The last reload of the configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LastReload {
    /// Seconds since it ended.
    pub seconds_ago: u64,
    /// Outcome of the reload.
    #[serde(flatten)]
    pub report: ReloadReport,
}
