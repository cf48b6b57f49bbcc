//! Finds every form of every secret in one pass.

use std::collections::BTreeMap;
use std::ops::Range;

use aho_corasick::{AhoCorasick, AhoCorasickKind, BuildError, Input, MatchKind};

use super::candidates::Candidates;
use super::forms::forms;
use super::views::View;
use super::{MIN_SECRET, REDACTED};

/// Most beginnings for which the fast kind of automaton is built, which takes some kilobytes for each.
const MAX_FAST: usize = 1_000;
/// Forms that may overlap at one position before the search goes on behind them: forms that repeat themselves would
/// make it slow.
const MAX_OVERLAPS: usize = 64;
/// JSON within strings of JSON that is looked into.
const MAX_NESTED: usize = 3;

/// Knows secrets by the first bytes of their forms, all of one length, and compares the rest.
pub(super) struct Matcher {
    beginnings: AhoCorasick,
    /// The forms of each beginning.
    forms: Vec<Candidates>,
}

impl Matcher {
    /// None for no secrets.
    pub(super) fn new<'a>(secrets: impl Iterator<Item = &'a String>) -> Result<Option<Self>, BuildError> {
        let mut by_beginning = BTreeMap::<[u8; MIN_SECRET], BTreeMap<_, _>>::new();
        for (text, edges) in secrets.flat_map(|secret| forms(secret)) {
            if let Some(beginning) = text.as_bytes().first_chunk() {
                by_beginning.entry(*beginning).or_default().entry(text).or_insert(edges);
            }
        }
        if by_beginning.is_empty() {
            return Ok(None);
        }
        let kind = if by_beginning.len() <= MAX_FAST { AhoCorasickKind::DFA } else { AhoCorasickKind::ContiguousNFA };
        // All are of one length, so that none hides another; this kind alone has fast ways for few.
        let builder = &mut AhoCorasick::builder();
        let beginnings = builder.match_kind(MatchKind::LeftmostFirst).kind(Some(kind)).build(by_beginning.keys())?;
        let forms = by_beginning.into_values().map(Candidates::new).collect();
        Ok(Some(Self { beginnings, forms }))
    }

    /// Whether any secret stands in `text`.
    pub(super) fn finds(&self, text: &[u8]) -> bool {
        self.finds_within(text, &View::ALL, MAX_NESTED)
    }

    fn finds_within(&self, text: &[u8], views: &[View], nested: usize) -> bool {
        let has = |view: &View| {
            let Some((views, nested)) = view.within(views, nested) else { return false };
            view.decoded(text).is_some_and(|decoded| self.finds_within(&decoded, views, nested))
        };
        self.next(text, 0).is_some() || views.iter().any(has)
    }

    /// The text without secrets; nothing when it has none.
    pub(super) fn replaced(&self, text: &[u8]) -> Option<Vec<u8>> {
        self.beginning(text, text.len())
    }

    /// The first `length` bytes of the text without secrets, of those that go on behind them, too; nothing when all of
    /// the text has none.
    pub(super) fn beginning(&self, text: &[u8], length: usize) -> Option<Vec<u8>> {
        let ranges = self.ranges(text);
        if ranges.is_empty() {
            return None;
        }
        let (mut clean, mut done) = (Vec::with_capacity(length), 0);
        for range in ranges.into_iter().take_while(|range| range.start < length) {
            clean.extend_from_slice(text.get(done..range.start).unwrap_or_default());
            clean.extend_from_slice(REDACTED.as_bytes());
            done = range.end;
        }
        clean.extend_from_slice(text.get(done..length).unwrap_or_default());
        Some(clean)
    }

    /// Where secrets stand, in the text as it is and as it was before it was encoded, in order and apart from each
    /// other.
    fn ranges(&self, text: &[u8]) -> Vec<Range<usize>> {
        self.ranges_within(text, &View::ALL, MAX_NESTED)
    }

    fn ranges_within(&self, text: &[u8], views: &[View], nested: usize) -> Vec<Range<usize>> {
        let mut ranges = self.plain_ranges(text);
        let in_text = ranges.len();
        for view in views {
            let Some((views, nested)) = view.within(views, nested) else { continue };
            if let Some(decoded) = view.decoded(text) {
                ranges.extend(view.origins(text, self.ranges_within(&decoded, views, nested)));
            }
        }
        if ranges.len() == in_text {
            return ranges;
        }
        ranges.sort_by_key(|range| range.start);
        let mut apart: Vec<Range<usize>> = Vec::with_capacity(ranges.len());
        for range in ranges {
            match apart.last_mut() {
                Some(last) if range.start < last.end => last.end = last.end.max(range.end),
                _ => apart.push(range),
            }
        }
        apart
    }

    /// Where forms of secrets stand in the text as it is.
    fn plain_ranges(&self, text: &[u8]) -> Vec<Range<usize>> {
        let (mut ranges, mut next) = (Vec::new(), self.next(text, 0));
        while let Some(mut range) = next {
            next = self.widen(text, &mut range);
            ranges.push(range);
        }
        ranges
    }

    /// Removes secrets from a text in place. True if there were any.
    pub(super) fn clean(&self, text: &mut String) -> bool {
        let replaced = self.replaced(text.as_bytes());
        replaced.map(|bytes| *text = to_text(bytes)).is_some()
    }

    /// Extends `range` by those that overlap it: the end of one secret may be the beginning of another. Returns the
    /// next range.
    fn widen(&self, text: &[u8], range: &mut Range<usize>) -> Option<Range<usize>> {
        let mut from = range.start + 1;
        for _ in 0..MAX_OVERLAPS {
            let next = self.next(text, from)?;
            if next.start >= range.end {
                return Some(next);
            }
            from = next.start.max(from) + 1;
            range.end = range.end.max(next.end);
        }
        let next = self.next(text, range.end)?;
        Some(next.start.max(range.end)..next.end)
    }

    /// Where the first secret stands that begins at `from` or later.
    fn next(&self, text: &[u8], mut from: usize) -> Option<Range<usize>> {
        loop {
            let input = Input::new(text).range(from.min(text.len())..);
            let found = self.beginnings.find(input)?;
            let start = found.start();
            let (before, rest) = text.split_at_checked(start)?;
            let range = self.forms.get(found.pattern().as_usize())?.range(before, rest);
            if range.is_some() {
                return range;
            }
            from = start + 1;
        }
    }
}

/// Converts a text without its secrets back to a string: secrets begin and end at characters.
pub(super) fn to_text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}
