//! How much keeps a program in.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How much keeps a program in; more is greater.
///
/// The strongest is declared first, as the schema of a configuration lists them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(inline)]
pub enum Level {
    /// [`Self::NoNamespaces`], and namespaces of its own: files, processes and network of others do not exist for it.
    #[schemars(description = "Landlock, a filter of system calls, limits and namespaces.")]
    Full = 2,
    /// Landlock, a filter of system calls and limits. One process with threads; it sees that other files exist.
    #[schemars(description = "The same without namespaces.")]
    NoNamespaces = 1,
    /// Limits of resources, and the filter of system calls where there is one. Files that the daemon may read can be read.
    #[schemars(description = "Limits alone.")]
    LimitsOnly = 0,
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
