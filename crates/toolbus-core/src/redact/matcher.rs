//! Finds every form of every secret in one pass.

use std::collections::BTreeMap;
use std::ops::Range;

use aho_corasick::{AhoCorasick, AhoCorasickKind, BuildError, Input, MatchKind};

use super::forms::{Edges, forms};
use super::{MIN_SECRET, REDACTED};

/// Longest part of a form that is compared as a whole, in bytes. Of a longer one this much is enough to know it by; it is
/// removed as far as it goes on.
const MAX_WHOLE: usize = 4096;
/// Most beginnings for which the fast kind of automaton is built, which takes some kilobytes for each.
const MAX_FAST: usize = 1_000;
/// Forms that may overlap in one place before the search goes on behind them: forms that repeat themselves would make it
/// slow.
const MAX_OVERLAPS: usize = 64;

/// Knows secrets by the first bytes of their forms, all of one length, and compares the rest.
pub(super) struct Matcher {
    beginnings: AhoCorasick,
    /// The forms of each beginning, the longest first.
    forms: Vec<Vec<Form>>,
}

struct Form {
    text: Box<[u8]>,
    edges: Edges,
}

impl Matcher {
    /// None for no secrets.
    pub(super) fn new<'a>(secrets: impl Iterator<Item = &'a String>) -> Result<Option<Self>, BuildError> {
        let mut by_beginning = BTreeMap::<[u8; MIN_SECRET], BTreeMap<String, Edges>>::new();
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
        let listed = |forms: BTreeMap<String, Edges>| {
            let form = |(text, edges): (String, Edges)| Form { text: text.into_bytes().into(), edges };
            let mut forms: Vec<_> = forms.into_iter().map(form).collect();
            forms.sort_by_key(|form| std::cmp::Reverse(form.text.len()));
            forms
        };
        Ok(Some(Self { beginnings, forms: by_beginning.into_values().map(listed).collect() }))
    }

    /// Whether any secret stands in `text`.
    pub(super) fn finds(&self, text: &[u8]) -> bool {
        self.next(text, 0).is_some()
    }

    /// The text without secrets; nothing when it has none.
    pub(super) fn replaced(&self, text: &[u8]) -> Option<Vec<u8>> {
        let mut place = self.next(text, 0)?;
        let (mut clean, mut done) = (Vec::with_capacity(text.len()), 0);
        loop {
            let next = self.widen(text, &mut place);
            clean.extend_from_slice(text.get(done..place.start).unwrap_or_default());
            clean.extend_from_slice(REDACTED.as_bytes());
            done = place.end;
            match next {
                Some(next) => place = next,
                None => break,
            }
        }
        clean.extend_from_slice(text.get(done..).unwrap_or_default());
        Some(clean)
    }

    /// Removes secrets from a text in its place. True if there were any.
    pub(super) fn clean(&self, text: &mut String) -> bool {
        let replaced = self.replaced(text.as_bytes());
        replaced.map(|bytes| *text = to_text(bytes)).is_some()
    }

    /// Takes into `place` what overlaps it: the end of one secret may be the beginning of another. Gives the next place.
    fn widen(&self, text: &[u8], place: &mut Range<usize>) -> Option<Range<usize>> {
        let mut from = place.start + 1;
        for _ in 0..MAX_OVERLAPS {
            let next = self.next(text, from)?;
            if next.start >= place.end {
                return Some(next);
            }
            from = next.start.max(from) + 1;
            place.end = place.end.max(next.end);
        }
        let next = self.next(text, place.end)?;
        Some(next.start.max(place.end)..next.end)
    }

    /// Where the first secret stands that begins at `from` or later.
    fn next(&self, text: &[u8], mut from: usize) -> Option<Range<usize>> {
        loop {
            let input = Input::new(text).range(from.min(text.len())..);
            let found = self.beginnings.find(input)?;
            let start = found.start();
            let (before, rest) = text.split_at_checked(start)?;
            let forms = self.forms.get(found.pattern().as_usize())?;
            let place = forms.iter().find_map(|form| form.place(before, rest));
            if place.is_some() {
                return place;
            }
            from = start + 1;
        }
    }
}

impl Form {
    /// Where it stands at the beginning of `rest`, with the edges that hold bits of it.
    fn place(&self, before: &[u8], rest: &[u8]) -> Option<Range<usize>> {
        let whole = self.text.get(..MAX_WHOLE).unwrap_or(&self.text);
        let behind = rest.strip_prefix(whole)?;
        let beyond = self.text.get(whole.len()..).unwrap_or_default();
        let further = beyond.iter().zip(behind).take_while(|(expected, byte)| expected == byte).count();
        let length = whole.len() + further;
        let is_digit = |byte: &&u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'-' | b'_');
        let left = before.iter().rev().take(self.edges.before).take_while(is_digit).count();
        let is_complete = length == self.text.len();
        let edge = if is_complete { self.edges.after } else { 0 };
        let right = rest.iter().skip(length).take(edge).take_while(is_digit).count();
        Some(before.len() - left..before.len() + length + right)
    }
}

/// What was a text before secrets were removed, and is one still: they begin and end at characters.
pub(super) fn to_text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}
