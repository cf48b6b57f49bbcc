//! Rates at which a caller may call tools.
//!
//! [`Rate`] and [`RateRules`] are parts of a configuration; `RateLimits` keeps count while calls come.

use std::cmp::Reverse;
use std::fmt;
use std::time::Duration;

use toolbus_protocol::topic;

use crate::failure::{Cause, ToolFailure};
use crate::pattern::Pattern;

/// The slowest rate, in calls per second: about one a day.
const MIN_RPS: f64 = 0.000_01;
/// The fastest rate, in calls per second. A token then takes whole microseconds, so that rounding it is no matter.
const MAX_RPS: f64 = 1_000_000.0;
/// Most calls at once.
const MAX_BURST: u32 = 1_000_000;
const NANOS_PER_SECOND: f64 = 1e9;

/// A token bucket: calls per second on average, and calls at once after a rest.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Rate {
    /// Calls per second, on average: 0.00001 to 1,000,000.
    pub rps: f64,
    /// Calls at once, after a rest: 1 to 1,000,000.
    pub burst: u32,
}

/// Reason why two numbers are no rate.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum RateError {
    /// Not a number, or infinite.
    #[error("`rps` is {0}; expected a finite number of calls per second")]
    NotFinite(f64),
    /// Nothing would ever pass.
    #[error("`rps` is {0}; expected more than 0 (to forbid a tool, list it in `denied_tools`)")]
    NotPositive(f64),
    /// Slower than one call a day.
    #[error("`rps` is {0}; expected at least {MIN_RPS}, which is about one call a day")]
    TooSlow(f64),
    /// Faster than is measured.
    #[error("`rps` is {0}; expected at most {MAX_RPS}")]
    TooFast(f64),
    /// Nothing would ever pass.
    #[error("`burst` is 0; expected at least 1, or no call would ever pass")]
    NoBurst,
    /// More than is measured.
    #[error("`burst` is {0}; expected at most {MAX_BURST}")]
    BurstTooLarge(u32),
}

impl Rate {
    /// A rate of `rps` calls per second on average, of which `burst` may come at once.
    ///
    /// # Errors
    ///
    /// If a number is out of its range; the text names the key of the configuration.
    pub fn new(rps: f64, burst: u32) -> Result<Self, RateError> {
        match rps {
            rps if !rps.is_finite() => Err(RateError::NotFinite(rps)),
            rps if rps <= 0.0 => Err(RateError::NotPositive(rps)),
            rps if rps < MIN_RPS => Err(RateError::TooSlow(rps)),
            rps if rps > MAX_RPS => Err(RateError::TooFast(rps)),
            _ if burst == 0 => Err(RateError::NoBurst),
            _ if burst > MAX_BURST => Err(RateError::BurstTooLarge(burst)),
            rps => Ok(Self { rps, burst }),
        }
    }

    /// Time in which one token comes, in whole nanoseconds: rounded up, so that the rate is never exceeded.
    pub(super) fn interval(&self) -> Duration {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "casts saturate, and rates are checked"
        )]
        let nanos = (NANOS_PER_SECOND / self.rps).ceil() as u64;
        Duration::from_nanos(nanos.max(1))
    }

    /// Time in which an empty bucket becomes full.
    pub(super) fn fill_time(&self) -> Duration {
        self.interval().saturating_mul(self.burst)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} per second, {} at once", self.rps, self.burst)
    }
}

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

    /// Rate of each of the tools.
    #[must_use]
    pub const fn rate(&self) -> &Rate {
        &self.rate
    }

    /// Order of rules: a name, then the longest literal beginning, then the most literal characters.
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

/// Reason why rules contradict each other.
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
    /// If two patterns are equally specific and can both match one name, or there are more than 1,024.
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
        self.rule_of_either(tool, tool)
    }

    /// Number of the rule that holds for a tool of these two names: the most specific one that matches either.
    #[must_use]
    pub fn rule_of_either(&self, name: &str, bare: &str) -> Option<u16> {
        let number = self.rules.iter().position(|rule| rule.pattern.matches(name) || rule.pattern.matches(bare))?;
        u16::try_from(number).ok()
    }

    /// The rule of this number.
    #[must_use]
    pub fn rule(&self, number: u16) -> Option<&RateRule> {
        self.rules.get(usize::from(number))
    }
}

/// The failure of a caller that calls a tool too often.
pub(super) fn exceeded(tool: &str, wait: Duration) -> ToolFailure {
    let text = format!("Tool '{tool}' was called too often. Try again later.");
    ToolFailure::new(Cause::RateLimited, text).with_retry_after(wait)
}

/// The failure of a caller that lists its tools, or requests hints, too often.
pub(super) fn exceeded_on(topic: &str, wait: Duration) -> ToolFailure {
    let text = match topic {
        topic::TOOL_HINTS => "Hints were asked for too often. Try again later.",
        _ => "The tools were listed too often. Try again later.",
    };
    ToolFailure::new(Cause::RateLimited, text).with_retry_after(wait)
}

/// Whether two patterns of one rank leave no tool to chance.
fn apart(one: &Pattern, other: &Pattern) -> Result<(), RateRulesError> {
    if one == other {
        return Err(RateRulesError::Twice(one.clone()));
    }
    // Of one length, beginnings that differ keep names and patterns apart, at less cost.
    if one.literal_prefix() != other.literal_prefix() || !can_both_match(one, other) {
        return Ok(());
    }
    Err(RateRulesError::Tie(one.clone(), other.clone()))
}

/// Whether there is a name that both patterns match. Costs the product of both lengths.
fn can_both_match(one: &Pattern, other: &Pattern) -> bool {
    let columns: Vec<char> = other.as_str().chars().rev().collect();
    // From the ends: entry `k` of a row is true if the rest of `one` and the last `k` characters of `other` have a name
    // in common. At first nothing is left of `one`, and only stars match nothing.
    let stars = columns.iter().take_while(|c| **c == '*').count();
    let mut row: Vec<bool> = (0..=columns.len()).map(|left| left <= stars).collect();
    for a in one.as_str().chars().rev() {
        let mut latest = a == '*' && row.first().is_some_and(|with_nothing| *with_nothing);
        let mut longer = Vec::with_capacity(row.len());
        longer.push(latest);
        for (b, (without_both, without_a)) in columns.iter().zip(row.iter().zip(row.iter().skip(1))) {
            latest = match (a, *b) {
                // A star ends here, or takes what the other pattern has next.
                ('*', _) | (_, '*') => *without_a || latest,
                ('?', _) | (_, '?') => *without_both,
                (a, b) => a == b && *without_both,
            };
            longer.push(latest);
        }
        row = longer;
    }
    row.last().is_some_and(|all| *all)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_rate_out_of_range_is_refused_with_the_key_to_change() {
        let table =
            [(f64::NAN, 1), (f64::INFINITY, 1), (0.0, 1), (-1.0, 1), (1e-9, 1), (1e9, 1), (1.0, 0), (1.0, u32::MAX)];
        let texts: Vec<String> =
            table.into_iter().map(|(rps, burst)| Rate::new(rps, burst).unwrap_err().to_string()).collect();
        insta::assert_snapshot!(texts.join("\n"), @"
        `rps` is NaN; expected a finite number of calls per second
        `rps` is inf; expected a finite number of calls per second
        `rps` is 0; expected more than 0 (to forbid a tool, list it in `denied_tools`)
        `rps` is -1; expected more than 0 (to forbid a tool, list it in `denied_tools`)
        `rps` is 0.000000001; expected at least 0.00001, which is about one call a day
        `rps` is 1000000000; expected at most 1000000
        `burst` is 0; expected at least 1, or no call would ever pass
        `burst` is 4294967295; expected at most 1000000
        ");
    }

    #[test]
    fn a_token_takes_whole_nanoseconds_and_never_too_few() {
        let interval = |rps| Rate::new(rps, 1).unwrap().interval();
        assert_eq!(interval(10.0), Duration::from_millis(100));
        assert_eq!(interval(0.5), Duration::from_secs(2));
        assert_eq!(interval(3.0), Duration::from_nanos(333_333_334));
        assert_eq!(interval(MAX_RPS), Duration::from_micros(1));
    }

    #[test]
    fn the_slowest_and_largest_bucket_fills_at_a_representable_time() {
        let rate = Rate::new(MIN_RPS, MAX_BURST).unwrap();
        assert_eq!(rate.fill_time(), rate.interval() * MAX_BURST);
    }

    #[test]
    fn a_rate_reads_as_its_two_numbers() {
        assert_eq!(Rate::new(1.5, 3).unwrap().to_string(), "1.5 per second, 3 at once");
    }

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
    fn a_rule_holds_for_either_name_of_a_tool() {
        let rules = rules(&["mcp_web_*", "search"]).unwrap();
        let numbers = [("mcp_web_search", "search"), ("mcp_web_fetch", "fetch"), ("mcp_x_search", "search")];
        let found = numbers.map(|(name, bare)| rules.rule_of_either(name, bare));
        assert_eq!(found, [Some(0), Some(1), Some(0)]);
        assert_eq!(rules.rule_of_either("mcp_x_fetch", "fetch"), None);
    }

    #[test]
    fn a_refusal_by_rate_names_the_topic() {
        let texts = [topic::TOOL_LIST, topic::TOOL_HINTS].map(|topic| exceeded_on(topic, Duration::ZERO).message);
        insta::assert_snapshot!(texts.join("\n"), @r"
        The tools were listed too often. Try again later.
        Hints were asked for too often. Try again later.
        ");
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

    fn overlap(one: &str, other: &str) -> bool {
        can_both_match(&Pattern::parse(one).unwrap(), &Pattern::parse(other).unwrap())
    }

    #[test]
    fn patterns_overlap_when_a_name_matches_both() {
        let table = [
            ("send", "send", true),
            ("send", "read", false),
            ("send_*", "*_message", true),
            ("send_*", "read_*", false),
            ("a*c", "a?c", true),
            ("a*c", "ab", false),
            ("a*b*", "ac*", true),
            ("*a", "*b", false),
            ("a?", "?b", true),
            ("a?", "?bc", false),
            ("*", "?", true),
            ("**", "*", true),
            ("é*", "?x", true),
        ];
        for (one, other, expected) in table {
            assert_eq!((overlap(one, other), overlap(other, one)), (expected, expected), "{one} {other}");
        }
    }

    /// Every name of at most `length` letters.
    fn names(length: usize) -> Vec<String> {
        let longer = |names: &[String]| names.iter().flat_map(|n| ["a", "b"].map(|c| format!("{n}{c}"))).collect();
        let mut all = vec![vec![String::new()]];
        for _ in 0..length {
            all.push(longer(all.last().unwrap()));
        }
        all.concat()
    }

    proptest! {
        /// Two patterns of four characters that overlap at all have a name of eight letters in common.
        #[test]
        fn overlap_agrees_with_a_search_for_the_name(one in "[ab*?]{1,4}", other in "[ab*?]{1,4}") {
            let [first, second] = [&one, &other].map(|text| Pattern::parse(text).unwrap());
            let found = names(8).iter().any(|name| first.matches(name) && second.matches(name));
            prop_assert_eq!(overlap(&one, &other), found);
        }
    }
}
