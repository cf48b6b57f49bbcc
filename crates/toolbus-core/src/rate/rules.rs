//! Which rate holds for which tool.

use std::cmp::Reverse;

use super::Rate;
use super::overlap::can_both_match;
use crate::pattern::Pattern;

/// Most rules of one agent or binding.
const MAX_RULES: usize = 1024;

/// A rate for the tools that a pattern matches. Each of them has a bucket of its own.
#[derive(Debug, Clone, PartialEq)]
pub struct RateRule {
    pattern: Pattern,
    rate: Rate,
}

impl RateRule {
    /// `rate` for each tool that `pattern` matches.
    #[must_use]
    pub const fn new(pattern: Pattern, rate: Rate) -> Self {
        Self { pattern, rate }
    }

    /// The tools that it holds for.
    #[must_use]
    pub const fn pattern(&self) -> &Pattern {
        &self.pattern
    }

    /// How often each of them may be called.
    #[must_use]
    pub const fn rate(&self) -> &Rate {
        &self.rate
    }

    /// What ranks before what: a name, then the longest literal beginning, then the most literal characters.
    fn rank(&self) -> impl Ord + use<> {
        let prefix = self.pattern.literal_prefix().chars().count();
        Reverse((self.pattern.is_exact(), prefix, self.pattern.specificity()))
    }
}

/// The rates of one agent or binding: for each tool the most specific pattern wins, and nothing is left to chance.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RateRules {
    /// The most specific first.
    rules: Vec<RateRule>,
}

/// Why rules contradict each other.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RateRulesError {
    /// One pattern has two rates.
    #[error("`{0}` has two rates; keep one")]
    Twice(Pattern),
    /// Two patterns are equally specific where they meet.
    #[error("`{0}` and `{1}` are equally specific, and one tool can match both; make one of them more specific")]
    Tie(Pattern, Pattern),
    /// More than are kept.
    #[error("there are {0} rules; expected at most {MAX_RULES}")]
    TooMany(usize),
}

impl RateRules {
    /// Rules in any order.
    ///
    /// # Errors
    ///
    /// When two patterns are equally specific and can both match one name, and when there are more than 1,024.
    pub fn new(mut rules: Vec<RateRule>) -> Result<Self, RateRulesError> {
        if rules.len() > MAX_RULES {
            return Err(RateRulesError::TooMany(rules.len()));
        }
        rules.sort_by_cached_key(|rule| (rule.rank(), rule.pattern.clone()));
        for equals in rules.chunk_by(|one, other| one.rank() == other.rank()) {
            for (number, one) in equals.iter().enumerate() {
                for other in equals.iter().skip(number + 1) {
                    apart(&one.pattern, &other.pattern)?;
                }
            }
        }
        Ok(Self { rules })
    }

    /// The rules, the most specific first.
    #[must_use]
    pub fn rules(&self) -> &[RateRule] {
        &self.rules
    }

    /// Whether nothing is limited.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Number of the rule that holds for a tool of this name, for [`Self::rule`]; below 1,024.
    #[must_use]
    pub fn rule_of(&self, tool: &str) -> Option<u16> {
        let number = self.rules.iter().position(|rule| rule.pattern.matches(tool))?;
        u16::try_from(number).ok()
    }

    /// The rule of this number.
    #[must_use]
    pub fn rule(&self, number: u16) -> Option<&RateRule> {
        self.rules.get(usize::from(number))
    }
}

/// Whether two patterns of one rank leave no tool to chance.
fn apart(one: &Pattern, other: &Pattern) -> Result<(), RateRulesError> {
    if one == other {
        return Err(RateRulesError::Twice(one.clone()));
    }
    // Names are apart when they differ, and so are patterns whose beginnings, of one length, differ.
    if one.is_exact() || one.literal_prefix() != other.literal_prefix() || !can_both_match(one, other) {
        return Ok(());
    }
    Err(RateRulesError::Tie(one.clone(), other.clone()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rules(patterns: &[&str]) -> Result<RateRules, RateRulesError> {
        let rule = |pattern: &&str| RateRule::new(Pattern::parse(pattern).unwrap(), Rate::new(1.0, 1).unwrap());
        RateRules::new(patterns.iter().map(rule).collect())
    }

    fn winner(patterns: &[&str], tool: &str) -> Option<String> {
        let rules = rules(patterns).unwrap();
        Some(rules.rule(rules.rule_of(tool)?)?.pattern().to_string())
    }

    #[test]
    fn the_most_specific_pattern_wins_in_whatever_order_they_are_written() {
        let table: [(&[&str], &str, Option<&str>); 8] = [
            (&["*", "whatsapp_*", "whatsapp_send"], "whatsapp_send", Some("whatsapp_send")),
            (&["whatsapp_send", "whatsapp_*", "*"], "whatsapp_read", Some("whatsapp_*")),
            (&["*", "whatsapp_*"], "web_search", Some("*")),
            (&["whatsapp_*", "*_send_message_to"], "whatsapp_send_message_to", Some("whatsapp_*")),
            (&["web_*", "web_*_page"], "web_read_page", Some("web_*_page")),
            (&["*_page", "*"], "read_page", Some("*_page")),
            (&["whatsapp_*"], "web_search", None),
            (&[], "web_search", None),
        ];
        for (patterns, tool, expected) in table {
            assert_eq!(winner(patterns, tool).as_deref(), expected, "{patterns:?} {tool}");
        }
    }

    #[test]
    fn a_tie_names_both_patterns() {
        let texts = [["web_*b", "web_*c?"], ["*_a*", "b_*"], ["*a", "a*"], ["*", "**"], ["?b", "?b"]].map(|patterns| {
            rules(&patterns).map_or_else(|error| error.to_string(), |_| format!("{patterns:?} are apart"))
        });
        insta::assert_snapshot!(texts.join("\n"), @r#"
        `web_*b` and `web_*c?` are equally specific, and one tool can match both; make one of them more specific
        ["*_a*", "b_*"] are apart
        ["*a", "a*"] are apart
        `*` and `**` are equally specific, and one tool can match both; make one of them more specific
        `?b` has two rates; keep one
        "#);
    }

    #[test]
    fn patterns_that_never_meet_are_no_tie() {
        for patterns in [["send_*", "read_*"], ["*_a", "*_b"], ["a?", "a?c"], ["send", "read"]] {
            assert!(rules(&patterns).is_ok(), "{patterns:?}");
        }
    }

    #[test]
    fn rules_are_bounded_in_number() {
        let names: Vec<String> = (0..=MAX_RULES).map(|number| format!("tool_{number}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        assert!(rules(&names[1..]).is_ok());
        assert_eq!(rules(&names), Err(RateRulesError::TooMany(MAX_RULES + 1)));
    }

    proptest! {
        #[test]
        fn the_order_of_writing_decides_nothing(
            patterns in proptest::collection::vec("[ab*?]{1,4}", 1..6),
            names in proptest::collection::vec("[ab]{0,5}", 1..20),
        ) {
            let forwards: Vec<&str> = patterns.iter().map(String::as_str).collect();
            let backwards: Vec<&str> = forwards.iter().rev().copied().collect();
            let (Ok(one), Ok(other)) = (rules(&forwards), rules(&backwards)) else {
                prop_assert!(rules(&forwards).is_err() && rules(&backwards).is_err());
                return Ok(());
            };
            for name in names {
                prop_assert_eq!(one.rule_of(&name), other.rule_of(&name));
                let matched = forwards.iter().any(|text| Pattern::parse(text).unwrap().matches(&name));
                prop_assert_eq!(one.rule_of(&name).is_some(), matched);
            }
        }
    }
}
