//! All patterns of a policy, arranged by what they fix, so that one name is compared with few of them.

use std::collections::{BTreeSet, HashMap};

use crate::pattern::Pattern;

/// Number of a list of patterns.
pub(crate) type ListId = u32;

/// From a name to every list that has a pattern for it.
#[derive(Debug, Default)]
pub(crate) struct PatternIndex {
    exact: HashMap<Pattern, Vec<ListId>>,
    /// Patterns that fix how a name begins, by that.
    by_prefix: HashMap<Box<str>, Vec<IndexedPattern>>,
    prefix_lengths: BTreeSet<usize>,
    /// Patterns that fix only how a name ends, by that.
    by_suffix: HashMap<Box<str>, Vec<IndexedPattern>>,
    suffix_lengths: BTreeSet<usize>,
    /// Patterns that fix neither end.
    loose: Vec<IndexedPattern>,
}

#[derive(Debug)]
struct IndexedPattern {
    pattern: Pattern,
    lists: Vec<ListId>,
}

impl PatternIndex {
    /// Arranges the patterns of all lists.
    pub(crate) fn new<'a>(lists: impl IntoIterator<Item = (ListId, &'a [Pattern])>) -> Self {
        let mut by_pattern: HashMap<&Pattern, Vec<ListId>> = HashMap::new();
        for (list, patterns) in lists {
            for pattern in patterns {
                let known = by_pattern.entry(pattern).or_default();
                if known.last() != Some(&list) {
                    known.push(list);
                }
            }
        }
        let mut index = Self::default();
        for (pattern, lists) in by_pattern {
            index.insert(pattern.clone(), lists);
        }
        index
    }

    fn insert(&mut self, pattern: Pattern, lists: Vec<ListId>) {
        if pattern.is_exact() {
            self.exact.insert(pattern, lists);
            return;
        }
        let (prefix, suffix): (Box<str>, Box<str>) = (pattern.literal_prefix().into(), pattern.literal_suffix().into());
        let entry = IndexedPattern { pattern, lists };
        if !prefix.is_empty() {
            self.prefix_lengths.insert(prefix.len());
            self.by_prefix.entry(prefix).or_default().push(entry);
        } else if !suffix.is_empty() {
            self.suffix_lengths.insert(suffix.len());
            self.by_suffix.entry(suffix).or_default().push(entry);
        } else {
            self.loose.push(entry);
        }
    }

    /// Calls `found` with every list that has a pattern for this name; with some of them more than once.
    pub(crate) fn lists_of(&self, name: &str, mut found: impl FnMut(ListId)) {
        self.exact.get(name).into_iter().flatten().for_each(|list| found(*list));
        let begins = self.prefix_lengths.iter().filter_map(|length| self.by_prefix.get(name.get(..*length)?));
        let start = |length: &usize| name.len().checked_sub(*length);
        let ends = self.suffix_lengths.iter().filter_map(|length| self.by_suffix.get(name.get(start(length)?..)?));
        for entry in begins.chain(ends).flatten().chain(&self.loose) {
            if entry.pattern.matches(name) {
                entry.lists.iter().for_each(|list| found(*list));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_index_finds_what_comparing_with_every_pattern_finds(
            lists in prop::collection::vec(prop::collection::vec("[ab*?é]{1,5}", 0..5), 0..6),
            names in prop::collection::vec("[abé]{0,6}", 1..10),
        ) {
            let lists: Vec<Vec<Pattern>> =
                lists.iter().map(|list| list.iter().map(|text| Pattern::parse(text).unwrap()).collect()).collect();
            let index = PatternIndex::new((0..).zip(lists.iter().map(Vec::as_slice)));
            for name in &names {
                let mut found = BTreeSet::new();
                index.lists_of(name, |list| {
                    found.insert(list);
                });
                let matching = |list: &Vec<Pattern>| list.iter().any(|pattern| pattern.matches(name));
                let expected: BTreeSet<ListId> =
                    (0..).zip(&lists).filter(|(_, list)| matching(list)).map(|(id, _)| id).collect();
                prop_assert_eq!(found, expected, "{}", name);
            }
        }
    }
}
