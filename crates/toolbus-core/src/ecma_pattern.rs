//! Patterns of JSON Schema, which are regular expressions of ECMA-262.
//!
//! Most are compared in linear time. Lookaround and references back need an engine that backtracks; how much, and over
//! how long a text, is bounded, and what is beyond is not decided.

use fancy_regex::RegexBuilder as BacktrackingBuilder;
use jsonschema_regex::{is_valid_ecma_regex, to_rust_regex};
use regex::RegexBuilder;

/// Most times that one comparison goes back. An e-mail address needs some tens.
pub(crate) const MAX_BACKTRACKS: usize = 5_000;
/// Longest text that is compared with a pattern that backtracks, in bytes. Between two steps back, all of it may be
/// read.
pub(crate) const MAX_BACKTRACKED: usize = 4096;
/// Largest compiled form of a pattern that models are shown, in bytes.
const MAX_SHOWN: usize = 256 * 1024;

/// Beginnings of constructs that linear engines do not have.
const LOOKAROUND: [&str; 4] = ["(?=", "(?!", "(?<=", "(?<!"];

/// A compiled pattern.
pub(crate) enum EcmaPattern {
    Linear(regex::Regex),
    Backtracking(fancy_regex::Regex),
}

impl EcmaPattern {
    /// Compiles a pattern, with each of its parts at most `size` bytes large, and `states` for its comparisons; `None`
    /// if it is no pattern or too large.
    pub(crate) fn new(source: &str, size: usize, states: usize) -> Option<Self> {
        if !backtracks(source) {
            let translated = to_rust_regex(source).ok()?;
            let built = RegexBuilder::new(&translated).size_limit(size).dfa_size_limit(states).build();
            return built.ok().map(Self::Linear);
        }
        let mut builder = BacktrackingBuilder::new(source);
        builder.backtrack_limit(MAX_BACKTRACKS).delegate_size_limit(size).delegate_dfa_size_limit(states);
        builder.build().ok().map(Self::Backtracking)
    }

    /// Whether a text matches; `None` if that is not decided, because it would take too much work.
    pub(crate) fn is_match(&self, text: &str) -> Option<bool> {
        match self {
            Self::Linear(pattern) => Some(pattern.is_match(text)),
            Self::Backtracking(_) if text.len() > MAX_BACKTRACKED => None,
            Self::Backtracking(pattern) => pattern.is_match(text).ok(),
        }
    }
}

/// Whether a pattern looks around or refers back. Also true of a few that only look as if they did.
pub(crate) fn backtracks(source: &str) -> bool {
    LOOKAROUND.iter().any(|construct| source.contains(construct)) || references_back(source) > 0
}

/// The parts that an engine compiles of a pattern, one by one, at the most.
pub(crate) fn parts(source: &str) -> usize {
    if !backtracks(source) {
        return 1;
    }
    1 + source.matches("(?").count() + source.matches('|').count() + references_back(source)
}

fn references_back(source: &str) -> usize {
    let mut escaped = false;
    let mut count = 0;
    for character in source.chars() {
        count += usize::from(escaped && matches!(character, '1'..='9' | 'k'));
        escaped = !escaped && character == '\\';
    }
    count
}

/// Whether every provider of models can read a pattern: one of ECMA-262 that needs no backtracking and is not large.
pub(crate) fn is_portable(source: &str) -> bool {
    is_valid_ecma_regex(source) && !backtracks(source) && EcmaPattern::new(source, MAX_SHOWN, MAX_SHOWN).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(source: &str, text: &str) -> Option<bool> {
        EcmaPattern::new(source, 64 * 1024, 64 * 1024).unwrap().is_match(text)
    }

    #[test]
    fn lookaround_and_references_back_are_compared() {
        let email = r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$";
        for (pattern, text, expected) in [
            (email, "ana@example.com", true),
            (email, ".ana@example.com", false),
            (email, "ana..b@example.com", false),
            (r"^(?=.*[A-Z])(?=.*[0-9]).{8,}$", "Geheim123", true),
            (r"^(?=.*[A-Z])(?=.*[0-9]).{8,}$", "geheim123", false),
            (r#"^(['"]).*\1$"#, "'x'", true),
            (r#"^(['"]).*\1$"#, "'x\"", false),
            (r"^(?<quote>['_]).*\k<quote>$", "_x_", true),
            ("(?<=a)b", "ab", true),
            (r"^[\w]+$", "abc", true),
        ] {
            assert_eq!(matches(pattern, text), Some(expected), "{pattern} {text}");
        }
    }

    #[test]
    fn a_pattern_with_endless_backtracking_is_left_undecided() {
        let endless = r"^(a|a)*\1b";
        assert_eq!(matches(endless, &"a".repeat(60)), None);
        assert_eq!(matches("(?=a)a", &"a".repeat(100_000)), None);
        assert_eq!(matches(r"^(a|b|ab)*c", &"ab".repeat(50_000)), Some(false), "linear");
    }

    #[test]
    fn providers_read_patterns_of_ecma_262_without_lookaround() {
        for portable in ["^[a-z]+$", r"\d{4}-\d{2}", r"^\\1$", "(?:a|b)"] {
            assert!(is_portable(portable), "{portable}");
        }
        for other in ["(?!a)", r"(a)\1", "(?<=a)b", "(", "^(.{1,1000}){1,20}$", r"(?P<year>\d+)"] {
            assert!(!is_portable(other), "{other}");
        }
    }
}
