//! The versions of MCP that the server supports.

use std::fmt;

/// A version of MCP, in order of age.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    /// 2024-11-05
    V20241105,
    /// 2025-03-26
    V20250326,
    /// 2025-06-18
    V20250618,
    /// 2025-11-25: the last with a handshake and sessions.
    V20251125,
    /// 2026-07-28: stateless; each request carries version and capabilities.
    V20260728,
}

impl Version {
    /// Every supported version, the newest first.
    pub const ALL: [Self; 5] = [Self::V20260728, Self::V20251125, Self::V20250618, Self::V20250326, Self::V20241105];

    /// The version of this date.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|version| version.as_str() == text)
    }

    /// The version of a session whose client requests this one.
    #[must_use]
    pub fn in_session(requested: &str) -> Self {
        Self::parse(requested).filter(|version| version.has_sessions()).unwrap_or(Self::V20251125)
    }

    /// Checks whether the version begins with a handshake.
    #[must_use]
    pub const fn has_sessions(self) -> bool {
        !matches!(self, Self::V20260728)
    }

    /// Returns the date of the version, which is its name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::V20241105 => "2024-11-05",
            Self::V20250326 => "2025-03-26",
            Self::V20250618 => "2025-06-18",
            Self::V20251125 => "2025-11-25",
            Self::V20260728 => "2026-07-28",
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_has_the_requested_version_or_the_newest_with_sessions() {
        for (requested, expected) in [
            ("2024-11-05", Version::V20241105),
            ("2025-06-18", Version::V20250618),
            ("2025-11-25", Version::V20251125),
            ("2026-07-28", Version::V20251125),
            ("1999-01-01", Version::V20251125),
            ("", Version::V20251125),
        ] {
            assert_eq!(Version::in_session(requested), expected, "{requested}");
        }
    }
}
