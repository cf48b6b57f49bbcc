//! How much keeps a program in.

use std::fmt;

use serde::{Deserialize, Serialize};

/// How much keeps a program in; more is greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Level {
    /// Limits of resources, and the filter of system calls where there is one. Files that the daemon may read can be read.
    LimitsOnly,
    /// Landlock, a filter of system calls and limits. One process with threads; it sees that other files exist.
    NoNamespaces,
    /// That, and namespaces of its own: files, processes and network of others do not exist for it.
    Full,
}

impl Level {
    /// Every level, the weakest first.
    pub const ALL: [Self; 3] = [Self::LimitsOnly, Self::NoNamespaces, Self::Full];

    /// Its name in configuration, status and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::LimitsOnly => "limits-only",
            Self::NoNamespaces => "no-namespaces",
            Self::Full => "full",
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
