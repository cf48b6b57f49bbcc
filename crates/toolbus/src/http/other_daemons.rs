//! Other daemons that take calls of this one, as the status shows them.

use serde::{Deserialize, Serialize};

/// Part of the bus that two daemons share and should not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SharedIntake {
    /// Queues: each call is run by one of them, under its own rules.
    Queues,
    /// Topics: each call is run by both.
    Topics,
}

impl SharedIntake {
    /// Name of the part, as the status and the metric write it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Queues => "queues",
            Self::Topics => "topics",
        }
    }
}

/// Announcements of other daemons on the broker, as far as they concern this one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HeardDaemons {
    /// Daemons that take calls of this one under another configuration.
    pub conflicts: Vec<OtherDaemon>,
    /// Seconds by which the clock of this daemon is ahead of the most different one; `None` without another daemon.
    pub clock_skew: Option<i64>,
}

/// Another daemon that takes calls of this one, for the status.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OtherDaemon {
    /// `bus.name`.
    pub name: String,
    /// Version of the program.
    pub version: String,
    /// Digest of its configuration.
    pub config_digest: String,
    /// Start of the names of its queues.
    pub queue_prefix: String,
    /// Topics that it takes calls from.
    pub topics: Vec<String>,
    /// Part of the bus that this daemon shares with it.
    pub shares: SharedIntake,
}
