//! The rules, read from data.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use regex::bytes::{Regex, RegexBuilder, RegexSet, RegexSetBuilder};
use serde::Deserialize;

/// Most memory of the patterns, in bytes.
const MAX_SIZE: usize = 64 * 1024 * 1024;
/// Most memory of the cache while they are matched, in bytes; when it is full it is emptied.
const MAX_CACHE: usize = 8 * 1024 * 1024;

/// Most matches of one pattern that are none of the rule's.
const MAX_EXCEPTIONS: usize = 32;

/// Reason why rules cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RulesError {
    /// The text does not have the form of rules.
    #[error("the rules of the scan cannot be read: {0}")]
    Syntax(#[from] toml::de::Error),
    /// A pattern is none.
    #[error("a pattern of the scan cannot be used: {0}")]
    RulePattern(#[from] regex::Error),
    /// A pattern names a word that there is not.
    #[error("rule `{rule}` of the scan names %{word}%, which is no entry of [words]")]
    Word {
        /// Id of the rule.
        rule: String,
        /// The word.
        word: String,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RulesFile {
    words: BTreeMap<String, String>,
    rules: Vec<WrittenRule>,
    checks: Vec<WrittenCheck>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenRule {
    id: String,
    weight: Weight,
    why: String,
    patterns: Vec<String>,
    #[serde(default)]
    unless: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenCheck {
    id: String,
    weight: Weight,
    why: String,
    check: CheckKind,
}

/// Weight of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Weight {
    /// Enough by itself.
    High,
    /// Something together with another.
    Low,
}

/// Kind of thing that is looked for other than by patterns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum CheckKind {
    Deliberate,
    UnseenName,
    FarAway,
    LeftOut,
    Encoded,
}

/// Data of a rule.
#[derive(Debug)]
pub(super) struct Rule {
    pub(super) id: Arc<str>,
    pub(super) weight: Weight,
    why: String,
    /// A sentence that matches one of these is none of the rule's.
    unless: Vec<Regex>,
}

/// One pattern. Few ever match, so that each is compiled by itself when it does.
#[derive(Debug)]
struct RulePattern {
    text: String,
    compiled: OnceLock<Option<Regex>>,
    /// Number of its rule.
    rule: usize,
}

/// All rules, ready to be used.
#[derive(Debug)]
pub(super) struct RuleSet {
    rules: Vec<Rule>,
    /// Finds quickly which patterns match at all.
    set: RegexSet,
    /// Each pattern.
    patterns: Vec<RulePattern>,
    checks: Vec<(CheckKind, Rule)>,
}

impl RuleSet {
    pub(super) fn parse(text: &str) -> Result<Self, RulesError> {
        let RulesFile { words, rules: written, checks } = toml::from_str(text)?;
        let (mut rules, mut patterns) = (Vec::new(), Vec::new());
        for WrittenRule { id, weight, why, patterns: of_rule, unless } in written {
            for pattern in of_rule {
                let text = spelled_out(&pattern, &words, &id)?;
                patterns.push(RulePattern { text, compiled: OnceLock::new(), rule: rules.len() });
            }
            let unless = unless.iter().map(|pattern| Ok(regex(&spelled_out(pattern, &words, &id)?)?));
            let unless = unless.collect::<Result<_, RulesError>>()?;
            rules.push(Rule { id: id.into(), weight, why, unless });
        }
        let texts = patterns.iter().map(|pattern| &pattern.text);
        let set = RegexSetBuilder::new(texts).unicode(false).size_limit(MAX_SIZE).dfa_size_limit(MAX_CACHE).build()?;
        let checks = checks.into_iter().map(|WrittenCheck { id, weight, why, check }| {
            (check, Rule { id: id.into(), weight, why, unless: Vec::new() })
        });
        Ok(Self { rules, set, patterns, checks: checks.collect() })
    }

    /// Every pattern's first match that counts, with its rule.
    pub(super) fn matches(&self, text: &[u8]) -> impl Iterator<Item = (&Rule, (usize, usize))> {
        self.set.matches(text).into_iter().filter_map(move |number| {
            let pattern = self.patterns.get(number)?;
            let rule = self.rules.get(pattern.rule)?;
            let compiled = pattern.compiled.get_or_init(|| regex(&pattern.text).ok()).as_ref();
            // One that the set has can be compiled by itself as well.
            let found = compiled?.find_iter(text).map(|found| (found.start(), found.end()));
            // So many exceptions in one definition are no accident.
            let found = found.enumerate().find(|(number, found)| {
                let sentence = sentence(text, *found);
                *number >= MAX_EXCEPTIONS || !rule.unless.iter().any(|unless| unless.is_match(sentence))
            });
            Some((rule, found?.1))
        })
    }

    pub(super) fn checks(&self) -> impl Iterator<Item = (CheckKind, &Rule)> {
        self.checks.iter().map(|(check, rule)| (*check, rule))
    }

    pub(super) fn why(&self, id: &str) -> Option<&str> {
        let all = self.rules.iter().chain(self.checks.iter().map(|(_, rule)| rule));
        all.into_iter().find(|rule| *rule.id == *id).map(|rule| rule.why.as_str())
    }
}

/// The line, or lines, of a match.
fn sentence(text: &[u8], (start, end): (usize, usize)) -> &[u8] {
    // A match may begin with the end of the line before.
    let first = start + usize::from(text.get(start) == Some(&b'\n'));
    let is_break = |byte: &u8| *byte == b'\n';
    let from = text.get(..first).and_then(|before| before.iter().rposition(is_break)).map_or(0, |at| at + 1);
    let to = text.get(end..).and_then(|after| after.iter().position(is_break)).map_or(text.len(), |at| end + at);
    text.get(from..to).unwrap_or_default()
}

/// The pattern with entries of [words] instead of their names.
fn spelled_out(pattern: &str, words: &BTreeMap<String, String>, rule: &str) -> Result<String, RulesError> {
    let mut spelled = String::new();
    for (number, part) in pattern.split('%').enumerate() {
        match number % 2 {
            0 => spelled.push_str(part),
            _ => {
                let (rule, word) = (rule.to_owned(), part.to_owned());
                spelled.push_str(words.get(part).ok_or(RulesError::Word { rule, word })?);
            }
        }
    }
    Ok(spelled)
}

fn regex(pattern: &str) -> Result<Regex, regex::Error> {
    RegexBuilder::new(pattern).unicode(false).size_limit(MAX_SIZE).dfa_size_limit(MAX_CACHE).build()
}
