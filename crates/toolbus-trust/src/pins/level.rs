//! How much is done about changes, by source.

use std::collections::BTreeMap;

use toolbus_core::pattern::Pattern;

/// What is done when a tool is not what it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Level {
    /// It is told.
    #[default]
    Watch,
    /// The tool is held back until an operator has approved it.
    Hold,
    /// So are tools whose texts look as if they spoke to the model against its user.
    Strict,
}

/// The level of every source.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Levels {
    exact: BTreeMap<Box<str>, Level>,
    /// The most specific first.
    patterns: Vec<(Pattern, Level)>,
}

impl Level {
    /// Whether what changed is held back.
    #[must_use]
    pub fn holds(self) -> bool {
        self >= Self::Hold
    }
}

impl Levels {
    /// Levels of sources by name, and by patterns for all others, of which the most specific counts.
    pub fn new(
        exact: impl IntoIterator<Item = (String, Level)>,
        patterns: impl IntoIterator<Item = (Pattern, Level)>,
    ) -> Self {
        let mut patterns: Vec<_> = patterns.into_iter().collect();
        patterns.sort_by_key(|(pattern, _)| std::cmp::Reverse(pattern.specificity()));
        Self { exact: exact.into_iter().map(|(source, level)| (source.into(), level)).collect(), patterns }
    }

    /// The level of a source.
    #[must_use]
    pub fn of(&self, source: &str) -> Level {
        let by_pattern = || self.patterns.iter().find(|(pattern, _)| pattern.matches(source)).map(|(_, level)| *level);
        self.exact.get(source).copied().or_else(by_pattern).unwrap_or_default()
    }

    /// Whether any source may have something held back.
    #[must_use]
    pub fn hold_anything(&self) -> bool {
        self.exact.values().chain(self.patterns.iter().map(|(_, level)| level)).any(|level| level.holds())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_source_decides_before_patterns_and_of_those_the_most_specific() {
        let pattern = |text: &str| Pattern::parse(text).unwrap();
        let levels = Levels::new(
            [("mcp:files".to_owned(), Level::Watch)],
            [(pattern("*"), Level::Hold), (pattern("mcp:*"), Level::Strict)],
        );
        let of = ["mcp:files", "mcp:git", "rest"].map(|source| levels.of(source));
        assert_eq!(of, [Level::Watch, Level::Strict, Level::Hold]);
        assert!(levels.hold_anything());
        assert_eq!(Levels::default().of("rest"), Level::Watch);
        assert!(!Levels::new([("a".to_owned(), Level::Watch)], []).hold_anything());
    }
}
