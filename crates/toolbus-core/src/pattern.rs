//! Patterns of names: the one type behind every list of tools in a configuration.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// Longest pattern, in bytes: that of the longest name.
const MAX_LENGTH: usize = 255;
/// Characters that mean something in other languages of patterns, and nothing here.
const FOREIGN: [char; 9] = ['[', ']', '{', '}', '!', '^', '$', '|', '\\'];

/// An exact name, or a glob: `*` stands for any run of characters, `?` for one. Everything else, case included, stands
/// for itself.
///
/// Own code: libraries for patterns of paths give `[`, `{` and `/` a meaning that tool names do not know.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Pattern(Arc<str>);

/// Reason why a text is no pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// No text at all.
    #[error("is empty; expected a name, or a pattern with `*` and `?`")]
    Empty,
    /// Longer than any name.
    #[error("has more than {MAX_LENGTH} bytes, which no name has")]
    TooLong,
    /// A character that no name has, or spaces around it.
    #[error("has a control character, or begins or ends with a space, as no name does")]
    Unusable,
    /// A character of another language of patterns.
    #[error("has `{0}`, which means nothing in a pattern: there is `*` for any run of characters and `?` for one")]
    Foreign(char),
}

impl Pattern {
    /// Reads a pattern.
    ///
    /// # Errors
    ///
    /// If no name could match it, or it looks like a regular expression or a path pattern.
    pub fn parse(text: &str) -> Result<Self, PatternError> {
        if text.is_empty() {
            return Err(PatternError::Empty);
        }
        if text.len() > MAX_LENGTH {
            return Err(PatternError::TooLong);
        }
        if text.chars().any(char::is_control) || text.trim() != text {
            return Err(PatternError::Unusable);
        }
        match text.chars().find(|c| FOREIGN.contains(c)) {
            Some(foreign) => Err(PatternError::Foreign(foreign)),
            None => Ok(Self(text.into())),
        }
    }

    /// The pattern as it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether the pattern is a name, and stands for that alone.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        !self.0.contains(['*', '?'])
    }

    /// Literal prefix of every name that matches.
    #[must_use]
    pub fn literal_prefix(&self) -> &str {
        self.0.split(['*', '?']).next().unwrap_or_default()
    }

    /// Literal suffix of every name that matches.
    #[must_use]
    pub fn literal_suffix(&self) -> &str {
        self.0.rsplit(['*', '?']).next().unwrap_or_default()
    }

    /// Number of characters of a name that the pattern fixes: those other than `*` and `?`; a name without either fixes
    /// most.
    #[must_use]
    pub fn specificity(&self) -> usize {
        if self.is_exact() { usize::MAX } else { self.0.chars().filter(|c| !matches!(c, '*' | '?')).count() }
    }

    /// Whether the pattern matches a tool under its published name, or under its own within a tool set.
    #[must_use]
    pub fn matches_either(&self, published: &str, bare: &str) -> bool {
        self.matches(published) || self.matches(bare)
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
}

impl TryFrom<String> for Pattern {
    type Error = PatternError;

    fn try_from(text: String) -> Result<Self, PatternError> {
        Self::parse(&text)
    }
}

impl From<Pattern> for String {
    fn from(pattern: Pattern) -> Self {
        pattern.0.as_ref().to_owned()
    }
}

impl JsonSchema for Pattern {
    fn schema_name() -> Cow<'static, str> {
        "Pattern".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "format": "toolbus-pattern",
            "description": "Name of a tool, or a pattern: `*` any run, `?` one character.",
        })
    }
}

impl std::borrow::Borrow<str> for Pattern {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Pattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Self, PatternError> {
        Self::parse(text)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use toolbus_testing::mutation::check_inputs;

    use super::*;

    fn pattern(text: &str) -> Pattern {
        Pattern::parse(text).unwrap()
    }

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
            ("**", "abc", true),
            ("?", "é", true),
            ("?", "", false),
            ("a?c*e", "abcde", true),
            ("a?c*e", "abcd", false),
            ("*a*b", "xaxbxb", true),
            ("*ab", "aab", true),
            ("me*ry", "memory", true),
            ("*_store", "memory_store", true),
            ("fs.read_*", "fs.read_file", true),
            ("fs.read_*", "fsxread_file", false),
        ];
        for (text, name, expected) in table {
            assert_eq!(pattern(text).matches(name), expected, "{text} {name}");
        }
    }

    #[test]
    fn a_pattern_that_no_name_can_match_is_refused() {
        let long = "x".repeat(256);
        let table = [
            ("", PatternError::Empty),
            (&long, PatternError::TooLong),
            ("a\nb", PatternError::Unusable),
            (" a", PatternError::Unusable),
            ("a*\t", PatternError::Unusable),
            ("[ab]*", PatternError::Foreign('[')),
            ("{a,b}", PatternError::Foreign('{')),
            ("!web_*", PatternError::Foreign('!')),
            ("^web_.*$", PatternError::Foreign('^')),
            ("web_search|web_browse", PatternError::Foreign('|')),
            ("web\\_*", PatternError::Foreign('\\')),
        ];
        for (text, error) in table {
            assert_eq!(Pattern::parse(text), Err(error), "{text:?}");
        }
    }

    #[test]
    fn a_hostile_pattern_does_not_cost_more_than_its_length_allows() {
        assert!(!pattern(&"*a".repeat(127)).matches(&"a".repeat(126)));
    }

    #[test]
    fn the_literal_ends_of_a_pattern_are_what_every_match_has() {
        let table = [("web_*", "web_", ""), ("*_read", "", "_read"), ("a?b*c", "a", "c"), ("echo", "echo", "echo")];
        for (text, prefix, suffix) in table {
            assert_eq!((pattern(text).literal_prefix(), pattern(text).literal_suffix()), (prefix, suffix), "{text}");
        }
    }

    #[test]
    fn a_plain_name_is_the_most_specific() {
        assert!(pattern("a").specificity() > pattern("web_*").specificity());
        assert!(pattern("web_*").specificity() > pattern("w*").specificity());
    }

    proptest! {
        #[test]
        fn matching_agrees_with_its_definition(text in "[ab*?é]{1,8}", name in "[abé]{0,8}") {
            prop_assert_eq!(pattern(&text).matches(&name), matches_by_table(&text, &name));
        }
    }

    /// Matching as it is defined, with a table of all beginnings of the name.
    fn matches_by_table(pattern: &str, name: &str) -> bool {
        let name: Vec<char> = name.chars().collect();
        let mut row = vec![false; name.len() + 1];
        row[0] = true;
        for symbol in pattern.chars() {
            let before = row.clone();
            row[0] = before[0] && symbol == '*';
            for (index, letter) in name.iter().enumerate() {
                row[index + 1] = match symbol {
                    '*' => before[index + 1] || row[index],
                    '?' => before[index],
                    _ => before[index] && symbol == *letter,
                };
            }
        }
        row[name.len()]
    }

    const PATTERNS: &[&[u8]] = &[
        b"files.*\nfiles.list\nfiles.\nfile",
        b"*a*b?*\naab\nab\nxaxbx\n",
        b"get_weather\nget_weather\nget_weathers",
        b"?\xc3\xbc*\naxc\xc3\xbc\n\xc3\xbc\xc3\xbc",
    ];

    /// The first line is a pattern, the others are names.
    #[test]
    fn any_bytes_are_a_pattern_that_matches_as_defined_or_a_short_error() {
        check_inputs(PATTERNS, 2_000, |bytes| {
            let text = String::from_utf8_lossy(bytes);
            let mut lines = text.split('\n');
            let pattern = match Pattern::parse(lines.next().unwrap()) {
                Ok(pattern) => pattern,
                Err(error) => return assert!(error.to_string().len() <= 256, "{error}"),
            };
            assert_eq!(Pattern::parse(pattern.as_str()).as_ref(), Ok(&pattern));
            assert!(!pattern.is_exact() || pattern.matches(pattern.as_str()));
            for name in lines {
                let matches = pattern.matches(name);
                assert_eq!(matches, matches_by_table(pattern.as_str(), name), "{pattern} {name}");
                let ends = name.starts_with(pattern.literal_prefix()) && name.ends_with(pattern.literal_suffix());
                assert!(!matches || ends, "{pattern} {name}");
            }
        });
    }
}
