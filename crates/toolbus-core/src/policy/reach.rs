//! What a caller could use of a source whose tools nobody knows yet.

use std::sync::Arc;

use super::agent_rules::List;
use super::effective::{EffectiveTools, Grant};
use crate::pattern::Pattern;

impl EffectiveTools {
    /// Whether the caller could use some tool of this source, as part of the tool set `set` or by itself, if it had one of
    /// a fitting name. Where the rules depend on names, this says yes rather than no.
    #[must_use]
    pub fn could_have(&self, source: &Arc<str>, set: Option<&Arc<str>>) -> bool {
        let (section, cell, catalogue) = (self.rules(), self.cell(), &self.catalogue);
        if matches!(self.grant, Grant::Denied(_)) || catalogue.switches.has_source(source) {
            return false;
        }
        if set.is_some_and(|set| !section.toolsets.contains(set) || !self.is_in_session(set)) {
            return false;
        }
        let prefix = set.and_then(|set| catalogue.rules.policy.toolsets.get(set));
        let beginning = prefix.map(|prefix| format!("{prefix}.")).unwrap_or_default();
        let patterns = |list| match list {
            List::Only(number) => catalogue.rules.lists.get(number as usize).map(|list| list.patterns.as_slice()),
            List::All | List::None => None,
        };
        let allows = |list| match list {
            List::All => true,
            List::None => false,
            List::Only(_) => patterns(list).is_some_and(|all| all.iter().any(|pattern| some(pattern, &beginning))),
        };
        let denies = |list| patterns(list).is_some_and(|all| all.iter().any(|pattern| every(pattern, &beginning)));
        [section.tools, cell.tools].into_iter().all(allows)
            && ![section.denied, cell.denied].into_iter().any(denies)
            && self.profiles().all(|profile| profile.could_allow(source))
    }
}

/// Whether a pattern may stand for some name that begins so.
fn some(pattern: &Pattern, beginning: &str) -> bool {
    let fixed = pattern.literal_prefix();
    fixed.starts_with(beginning) || (!pattern.is_exact() && beginning.starts_with(fixed))
}

/// Whether a pattern stands for every name that begins so.
fn every(pattern: &Pattern, beginning: &str) -> bool {
    let fixed = pattern.literal_prefix();
    let is_open = pattern.as_str().len() > fixed.len() && pattern.as_str().trim_end_matches('*') == fixed;
    is_open && beginning.starts_with(fixed)
}
