//! Treatment of changes, by source.

use std::borrow::Cow;
use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use toolbus_core::pattern::Pattern;
use toolbus_core::tool::Naming;

use super::definition::Digest;

/// Treatment of a changed tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Level {
    /// Logging of the change (`false` in the configuration).
    #[default]
    Record,
    /// The tool is quarantined until an operator approves it.
    Hold,
    /// Suspect tools are quarantined, too.
    Strict,
}

/// The forms that [`Level`] is written in.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum LevelForm {
    Flag(bool),
    Word(Word),
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Word {
    Strict,
}

impl Serialize for Level {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let written = match self {
            Self::Record => LevelForm::Flag(false),
            Self::Hold => LevelForm::Flag(true),
            Self::Strict => LevelForm::Word(Word::Strict),
        };
        written.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Level {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match LevelForm::deserialize(deserializer)? {
            LevelForm::Flag(false) => Self::Record,
            LevelForm::Flag(true) => Self::Hold,
            LevelForm::Word(Word::Strict) => Self::Strict,
        })
    }
}

impl JsonSchema for Level {
    fn schema_name() -> Cow<'static, str> {
        "Level".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"anyOf": [{"type": "boolean"}, {"type": "string", "enum": ["strict"]}]})
    }
}

/// A source that the configuration names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedSource {
    /// Name of the source.
    pub source: String,
    /// Naming of the source's tools.
    pub naming: Naming,
    /// Fingerprint of its command or URL, which identifies it under another name; `None` if it has none.
    pub reached: Option<Digest>,
}

/// The level of every source.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Levels {
    exact: BTreeMap<Box<str>, Level>,
    /// The most specific first.
    patterns: Vec<(Pattern, Level)>,
    /// The other settings of configured sources.
    named: BTreeMap<Box<str>, NamedSource>,
    /// Minimum levels of present sources that are no longer configured.
    kept: BTreeMap<Box<str>, Level>,
}

impl Level {
    /// Whether changed tools are quarantined.
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
        let exact = exact.into_iter().map(|(source, level)| (source.into(), level)).collect();
        Self { exact, patterns, ..Self::default() }
    }

    /// Adds configured sources with the names of their tools; their levels do not change.
    #[must_use]
    pub fn naming(mut self, sources: impl IntoIterator<Item = NamedSource>) -> Self {
        for named in sources {
            let level = self.of(&named.source);
            self.exact.insert(named.source.as_str().into(), level);
            self.named.insert(named.source.as_str().into(), named);
        }
        self
    }

    /// The name that a tool of a source is published under.
    pub(super) fn published(&self, source: &str, own: &str) -> String {
        self.named.get(source).map_or_else(|| own.to_owned(), |named| named.naming.published(own))
    }

    /// Fingerprint of how a source is reached; `None` if unknown.
    pub(super) fn reached(&self, source: &str) -> Option<Digest> {
        self.named.get(source)?.reached
    }

    /// Whether a source is neither configured nor present, or about to go.
    pub(super) fn is_gone(&self, source: &str, is_there: bool) -> bool {
        !self.exact.contains_key(source) && (!is_there || self.kept.contains_key(source))
    }

    /// The level of a source.
    #[must_use]
    pub fn of(&self, source: &str) -> Level {
        let by_pattern = || self.patterns.iter().find(|(pattern, _)| pattern.matches(source)).map(|(_, level)| *level);
        let level = self.exact.get(source).copied().or_else(by_pattern).unwrap_or_default();
        self.kept.get(source).copied().unwrap_or_default().max(level)
    }

    /// Whether the configuration names a source, not only by a wildcard.
    pub(super) fn name(&self, source: &str) -> bool {
        let is_name = |pattern: &Pattern| pattern.is_exact() && pattern.matches(source);
        self.exact.contains_key(source) || self.patterns.iter().any(|(pattern, _)| is_name(pattern))
    }

    /// Becomes `next`. A present source that is no longer configured keeps its level: its tools go later than its name,
    /// and must stay quarantined until then.
    pub(super) fn replace(&mut self, next: Self, is_there: impl Fn(&str) -> bool) {
        let before = std::mem::replace(self, next);
        let named = before.exact.keys().chain(before.kept.keys());
        let lost = named.filter(|source| !self.exact.contains_key(*source) && is_there(source));
        self.kept = lost.map(|source| (source.clone(), before.of(source))).collect();
    }

    /// Removes the levels of sources that are gone and no longer configured.
    pub(super) fn forget_gone(&mut self, is_there: impl Fn(&str) -> bool) {
        self.kept.retain(|source, _| is_there(source));
    }

    /// Whether tools of any source can be quarantined.
    #[must_use]
    pub fn hold_anything(&self) -> bool {
        self.exact.values().chain(self.patterns.iter().map(|(_, level)| level)).any(|level| level.holds())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn plainly(source: &str) -> NamedSource {
        NamedSource { source: source.to_owned(), naming: Naming::default(), reached: None }
    }

    #[test]
    fn a_level_is_written_as_it_is_read() {
        for (written, level) in
            [(json!(false), Level::Record), (json!(true), Level::Hold), (json!("strict"), Level::Strict)]
        {
            assert_eq!(serde_json::from_value::<Level>(written.clone()).unwrap(), level);
            assert_eq!(serde_json::to_value(level).unwrap(), written);
        }
        assert!(serde_json::from_value::<Level>(json!("true")).is_err());
    }

    #[test]
    fn the_name_of_a_source_decides_before_patterns_and_of_those_the_most_specific() {
        let pattern = |text: &str| Pattern::parse(text).unwrap();
        let levels = Levels::new(
            [("mcp:files".to_owned(), Level::Record)],
            [(pattern("*"), Level::Hold), (pattern("mcp:*"), Level::Strict)],
        );
        let of = ["mcp:files", "mcp:git", "rest"].map(|source| levels.of(source));
        assert_eq!(of, [Level::Record, Level::Strict, Level::Hold]);
        assert!(levels.hold_anything());
        assert_eq!(Levels::default().of("rest"), Level::Record);
        assert!(!Levels::new([("a".to_owned(), Level::Record)], []).hold_anything());
    }

    #[test]
    fn a_source_removed_from_the_configuration_keeps_its_level_until_it_is_gone() {
        let strict = || [(Pattern::parse("mcp:*").unwrap(), Level::Strict)];
        let mut levels = Levels::new([], strict()).naming(["mcp:files", "mcp:gone"].map(plainly));
        let of = |levels: &Levels| ["mcp:files", "mcp:gone", "mcp:registered"].map(|source| levels.of(source));
        let is_there = |source: &str| source != "mcp:gone";
        for _ in 0..2 {
            levels.replace(Levels::default(), is_there);
            assert_eq!(of(&levels), [Level::Strict, Level::Record, Level::Record]);
        }
        levels.forget_gone(|_| false);
        assert_eq!(of(&levels), [Level::Record; 3]);
    }

    #[test]
    fn a_level_set_for_a_present_source_applies_at_once() {
        let named = |level| Levels::new([("mcp:files".to_owned(), level)], []);
        let mut levels = named(Level::Strict);
        levels.replace(named(Level::Record), |_| true);
        assert_eq!(levels.of("mcp:files"), Level::Record);
        levels.replace(named(Level::Hold), |_| true);
        levels.replace(Levels::default().naming([plainly("mcp:files")]), |_| true);
        assert_eq!(levels.of("mcp:files"), Level::Record, "without a word of its own it has the default");
    }
}
