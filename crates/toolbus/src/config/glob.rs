//! Patterns of tool names: `*` stands for any run of characters, `?` for one. Everything else, case included, for itself.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// A pattern of tool names.
///
/// Own code: libraries for patterns of paths give `[`, `{` and `/` a meaning that tool names do not know.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Glob(String);

impl Glob {
    /// A pattern; every text is one.
    #[must_use]
    pub fn new(pattern: impl Into<String>) -> Self {
        Self(pattern.into())
    }

    /// Whether the pattern stands for all of `name`.
    ///
    /// Costs at most the product of both lengths: only the last `*` is ever returned to.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        let mut pattern = self.0.chars();
        let mut name = name.chars();
        let mut retry = None;
        loop {
            let (before_pattern, before_name) = (pattern.clone(), name.clone());
            match (pattern.next(), name.next()) {
                (None, None) => return true,
                (Some('*'), next) => {
                    if next.is_none() {
                        return pattern.all(|c| c == '*');
                    }
                    retry = Some((before_pattern, name));
                    name = before_name;
                }
                (Some('?'), Some(_)) => {}
                (Some(expected), Some(found)) if expected == found => {}
                _ => match retry.take() {
                    Some((star, rest)) => (pattern, name) = (star, rest),
                    None => return false,
                },
            }
        }
    }

    /// How much of a name the pattern fixes: its characters other than `*` and `?`; a name without either fixes most.
    #[must_use]
    pub fn specificity(&self) -> usize {
        let fixed = self.0.chars().filter(|c| !matches!(c, '*' | '?')).count();
        if self.0.contains(['*', '?']) { fixed } else { usize::MAX }
    }
}

impl fmt::Display for Glob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl JsonSchema for Glob {
    fn schema_name() -> Cow<'static, str> {
        "Glob".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "description": "Pattern of tool names: `*` any run, `?` one character."})
    }
}

#[cfg(test)]
mod tests {
    use super::Glob;

    #[test]
    fn patterns_match_whole_names() {
        let table = [
            ("echo", "echo", true),
            ("echo", "Echo", false),
            ("echo", "echoes", false),
            ("web_*", "web_search", true),
            ("web_*", "web_", true),
            ("web_*", "my_web_search", false),
            ("*", "", true),
            ("", "", true),
            ("", "a", false),
            ("**", "abc", true),
            ("?", "é", true),
            ("?", "", false),
            ("a?c*e", "abcde", true),
            ("a?c*e", "abcd", false),
            ("*a*b", "xaxbxb", true),
            ("*ab", "aab", true),
            ("fs.read_*", "fs.read_file", true),
            ("fs.read_*", "fsxread_file", false),
            ("[ab]", "a", false),
        ];
        for (pattern, name, expected) in table {
            assert_eq!(Glob::new(pattern).matches(name), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn a_hostile_pattern_does_not_cost_more_than_its_length_allows() {
        let pattern = Glob::new("*a".repeat(1000));
        assert!(!pattern.matches(&"a".repeat(999)));
    }

    #[test]
    fn a_plain_name_is_the_most_specific() {
        assert!(Glob::new("a").specificity() > Glob::new("web_*").specificity());
        assert!(Glob::new("web_*").specificity() > Glob::new("w*").specificity());
    }
}
