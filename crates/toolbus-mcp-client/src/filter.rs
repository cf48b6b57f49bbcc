//! Which tools of a server are offered.

use toolbus_core::pattern::Pattern;

/// Lists of tools, ASCII case ignored. Deny wins over allow; no list of allowed tools allows all.
///
/// An entry is a name, or a glob as [`Pattern`] has it: `*` stands for any run of characters, `?` for one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ToolFilter {
    allowed: Vec<Entry>,
    denied: Vec<Entry>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Entry {
    Pattern(Pattern),
    /// A text that is no pattern. A server may still have a tool of exactly that name.
    Name(String),
}

impl Entry {
    fn new(text: &str) -> Self {
        let folded = text.trim().to_ascii_lowercase();
        Pattern::parse(&folded).map_or(Self::Name(folded), Self::Pattern)
    }

    fn matches(&self, folded: &str) -> bool {
        match self {
            Self::Pattern(pattern) => pattern.matches(folded),
            Self::Name(name) => name == folded,
        }
    }
}

impl ToolFilter {
    /// A filter of two lists; spaces around an entry do not count.
    #[must_use]
    pub fn new(allowed: Vec<String>, denied: Vec<String>) -> Self {
        let entries = |texts: Vec<String>| texts.iter().map(|text| Entry::new(text)).collect();
        Self { allowed: entries(allowed), denied: entries(denied) }
    }

    /// Whether the tool of this name is offered.
    #[must_use]
    pub fn admits(&self, name: &str) -> bool {
        let folded = name.to_ascii_lowercase();
        let is_in = |entries: &[Entry]| entries.iter().any(|entry| entry.matches(&folded));
        !is_in(&self.denied) && (self.allowed.is_empty() || is_in(&self.allowed))
    }

    /// Whether both lists are given, of which one is most likely a leftover.
    #[must_use]
    pub fn is_contradictory(&self) -> bool {
        !self.allowed.is_empty() && !self.denied.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(allowed: &[&str], denied: &[&str]) -> ToolFilter {
        let owned = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect();
        ToolFilter::new(owned(allowed), owned(denied))
    }

    #[test]
    fn tools_are_admitted_by_both_lists() {
        let table: [(&[&str], &[&str], &str, bool); 16] = [
            (&[], &[], "echo", true),
            (&["echo"], &[], "echo", true),
            (&["echo"], &[], "echoes", false),
            (&["ECHO"], &[], "Echo", true),
            (&["echo"], &["Echo"], "echo", false),
            (&[], &["delete_*"], "Delete_File", false),
            (&[], &["delete_*"], "read_file", true),
            (&["*_file"], &["delete_*"], "read_file", true),
            (&["*_file"], &["delete_*"], "delete_file", false),
            (&["get_?"], &[], "get_a", true),
            (&["get_?"], &[], "get_ab", false),
            (&[" echo "], &[], "echo", true),
            (&[""], &[], "echo", false),
            // Only the case of ASCII letters is ignored.
            (&["ÄRGER"], &[], "ärger", false),
            // No pattern, and yet a name.
            (&[], &["a|b"], "A|B", false),
            (&[], &["a|b"], "a", true),
        ];
        for (allowed, denied, name, expected) in table {
            assert_eq!(filter(allowed, denied).admits(name), expected, "{allowed:?} {denied:?} {name}");
        }
    }

    #[test]
    fn two_lists_contradict_each_other() {
        assert!(filter(&["a"], &["b"]).is_contradictory());
        assert!(!filter(&["a"], &[]).is_contradictory() && !filter(&[], &["b"]).is_contradictory());
    }

    #[test]
    fn lists_that_differ_in_case_alone_are_equal() {
        assert_eq!(filter(&["Echo"], &["X*"]), filter(&["echo"], &["x*"]));
    }
}
