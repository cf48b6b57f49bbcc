//! Pins, as the door for operators answers.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use toolbus_trust::pins::{Digest, State};

/// What is pinned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PinnedTools {
    /// The file in which it is kept, where there is one.
    pub file: Option<String>,
    /// Why the file could not be used last, if it could not.
    pub problem: Option<String>,
    /// Every tool that is pinned or there, by source and name.
    pub tools: Vec<Pinned>,
}

/// How one tool is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pinned {
    /// Its source.
    pub source: String,
    /// Its name within the source.
    pub tool: String,
    /// The name that it is called by.
    pub name: String,
    /// How it is, compared with what is pinned.
    pub state: State,
    /// Whether it is quarantined.
    pub held: bool,
    /// Since when it is like this.
    pub since: String,
    /// Why it is quarantined.
    pub reason: Option<String>,
    /// The source that has its name, where that is another one: it is called by its server alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shadowed_by: Option<String>,
}

/// How what a name means differs from what is pinned.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Changes {
    /// The name.
    pub name: String,
    /// Fingerprint of all that an approval would pin: what an approval names.
    pub digest: Digest,
    /// Each tool.
    pub changes: Vec<Changed>,
    /// How many more there are, which are too many to be shown at a time.
    pub more: usize,
}

/// How one tool differs from what is pinned.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Changed {
    /// How it is.
    pub is: Pinned,
    /// What is pinned.
    pub before: Option<Box<RawValue>>,
    /// What it is now.
    pub after: Option<Box<RawValue>>,
}

/// What is to be let through.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Approval {
    /// The source of the tool; absent: the only one that is meant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Fingerprint of what was shown.
    pub digest: Digest,
}

/// What was let through.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Approved {
    /// Each tool, as it was until then.
    pub approved: Vec<Pinned>,
}
