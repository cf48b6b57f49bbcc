//! Tool sets whose tools another daemon lists, as `/status` shows them.

use serde::{Deserialize, Serialize};

/// A tool set whose tools another daemon lists.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RemoteSetHealth {
    /// Name of the set.
    pub name: String,
    /// Phase of the other daemon.
    pub phase: RemotePhase,
    /// Tools that can be called.
    pub tools: usize,
    /// Tools that are listed and cannot be called; the log has the reason.
    pub hidden: usize,
    /// Tools whose definitions are suspect.
    pub suspect: usize,
    /// Seconds since the other daemon last listed its tools; absent: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub list_age_seconds: Option<u64>,
    /// Other bridges that have an MCP server of the same name, and run its calls, too; their replies are dropped.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rivals: Vec<String>,
    /// Last error, if there was one.
    pub last_error: Option<String>,
}

/// Phase of a daemon that lists its tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RemotePhase {
    /// The daemon has not listed its tools yet.
    Waiting,
    /// The daemon has listed its tools.
    Ready,
    /// The daemon listed its tools, and does not respond now: they may still be called.
    Away,
}

impl RemotePhase {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Waiting, Self::Ready, Self::Away];

    /// As it is written on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Ready => "ready",
            Self::Away => "away",
        }
    }
}
