//! The scan for texts that address the model against the user.
//!
//! It looks for known phrases. A finding is a sign and no proof, and no finding is no proof either: an attack in new words
//! passes. The phrases are data: `scan/rules.toml`.

mod encoded;
mod haystack;
mod normal;
mod passages;
mod rules;

use std::collections::HashSet;
use std::sync::Arc;

use toolbus_core::tool::{Suspicion, ToolDescriptor};

use self::haystack::{Haystack, TextSource};
pub use self::passages::SuspectPassage;
pub use self::rules::RulesError;
use self::rules::{CheckKind, RuleSet, Weight};
use crate::schema::{TextPath, TextRole, each_text};
use crate::text::Removed;

/// Most findings of one tool that are reported.
const MAX_FINDINGS: usize = 8;

/// Searches texts by rules. Made once, for all scans; a clone shares them.
#[derive(Debug, Clone)]
pub struct Scanner(Arc<RuleSet>);

struct Finding {
    rule: Arc<str>,
    weight: Weight,
    suspicion: Suspicion,
}

impl Scanner {
    /// A scanner with the built-in rules.
    ///
    /// # Errors
    ///
    /// If they cannot be parsed.
    pub fn new() -> Result<Self, RulesError> {
        RuleSet::parse(include_str!("scan/rules.toml")).map(|rules| Self(Arc::new(rules)))
    }

    /// Reasons that a tool is suspect; empty when nothing was found. `removed` is what cleaning its texts took out.
    #[must_use]
    pub fn tool(&self, tool: &ToolDescriptor, removed: &Removed) -> Arc<[Suspicion]> {
        self.scan(&ToolTexts(tool), removed)
    }

    /// Reasons that related texts are suspect, such as a server's descriptions, each with the name of its path.
    #[must_use]
    pub fn texts(&self, texts: &[(&str, &str)], removed: &Removed) -> Arc<[Suspicion]> {
        self.scan(&texts, removed)
    }

    /// Purpose of a rule, by its id.
    #[must_use]
    pub fn why(&self, rule: &str) -> Option<&str> {
        self.0.why(rule)
    }

    fn scan(&self, texts: &impl TextSource, removed: &Removed) -> Arc<[Suspicion]> {
        let haystack = Haystack::of(texts);
        let mut findings = Vec::new();
        for (rule, at) in self.0.matches(haystack.bytes()) {
            let (place, excerpt) = haystack.located(texts, at);
            findings.push(Finding::new(&rule.id, rule.weight, place, excerpt));
        }
        self.check(&haystack, texts, removed, &mut findings);
        let mut rules = HashSet::new();
        findings.retain(|finding| rules.insert(Arc::clone(&finding.rule)));
        let is_suspect = findings.iter().any(|finding| finding.weight == Weight::High) || findings.len() > 1;
        findings.sort_by_key(|finding| finding.weight);
        findings.truncate(MAX_FINDINGS);
        findings.into_iter().filter(|_| is_suspect).map(|finding| finding.suspicion).collect()
    }

    fn check(&self, haystack: &Haystack, texts: &impl TextSource, removed: &Removed, findings: &mut Vec<Finding>) {
        for (check, rule) in self.0.checks() {
            let found = match check {
                CheckKind::Deliberate if removed.deliberate > 0 => Some(("texts".to_owned(), removed.to_string())),
                CheckKind::Deliberate => None,
                CheckKind::UnseenName => haystack.unseen_name(texts),
                CheckKind::FarAway => haystack.far_away(texts),
                CheckKind::LeftOut => haystack.left_out(texts),
                CheckKind::Encoded => encoded::decoded(texts).find_map(|decoded| {
                    let is_suspect =
                        |text: &str| self.0.matches(text.as_bytes()).any(|(rule, _)| rule.weight == Weight::High);
                    let normal = normal::of(&decoded.text);
                    is_suspect(&normal).then(|| (decoded.place, haystack::shortened(&normal)))
                }),
            };
            if let Some((place, excerpt)) = found {
                findings.push(Finding::new(&rule.id, rule.weight, place, excerpt));
            }
        }
    }
}

impl Finding {
    fn new(rule: &Arc<str>, weight: Weight, place: String, excerpt: String) -> Self {
        Self { rule: Arc::clone(rule), weight, suspicion: Suspicion { rule: Arc::clone(rule), place, excerpt } }
    }
}

/// The texts of a tool that a model reads.
struct ToolTexts<'a>(&'a ToolDescriptor);

impl TextSource for ToolTexts<'_> {
    fn each<'v>(&'v self, visit: &mut dyn FnMut(&TextPath<'_>, TextRole, &'v str)) {
        let ToolDescriptor { title, description, parameters, output_schema, .. } = self.0;
        visit(&TextPath::root("name"), TextRole::Name, self.0.bare_name());
        if let Some(title) = title {
            visit(&TextPath::root("title"), TextRole::Prose, title);
        }
        visit(&TextPath::root("description"), TextRole::Prose, description);
        for (place, schema) in [("parameters", parameters), ("outputSchema", output_schema)] {
            if let Some(schema) = schema {
                each_text(schema, &TextPath::root(place), visit);
            }
        }
    }
}

impl TextSource for &[(&str, &str)] {
    fn each<'v>(&'v self, visit: &mut dyn FnMut(&TextPath<'_>, TextRole, &'v str)) {
        for (place, text) in *self {
            visit(&TextPath::root(place), TextRole::Prose, text);
        }
    }
}

#[cfg(test)]
mod tests;
