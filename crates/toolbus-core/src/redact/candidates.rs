//! Search among the forms with one beginning: secrets of one kind, such as JSON Web Tokens, share theirs.

use std::collections::BTreeMap;
use std::ops::Range;

use super::forms::Edges;

/// Bytes of a long form that are enough to know it by; it is removed as far as it goes on.
const ENOUGH: usize = 4096;

/// Forms with one beginning, in the order of their bytes, in which a few comparisons find the one.
pub(super) struct Candidates(Vec<Form>);

struct Form {
    text: Box<[u8]>,
    edges: Edges,
    /// The longest of the others that this one begins with.
    shorter: Option<usize>,
}

impl Candidates {
    pub(super) fn new(forms: BTreeMap<String, Edges>) -> Self {
        let mut sorted: Vec<Form> = Vec::with_capacity(forms.len());
        for (text, edges) in forms {
            let text: Box<[u8]> = text.into_bytes().into();
            // It stands right before this one, or is what that one begins with, and so on.
            let mut shorter = sorted.len().checked_sub(1);
            while let Some(other) = shorter.and_then(|index| sorted.get(index)) {
                if text.starts_with(&other.text) {
                    break;
                }
                shorter = other.shorter;
            }
            sorted.push(Form { text, edges, shorter });
        }
        Self(sorted)
    }

    /// Where the longest form stands at the beginning of `rest`, with the edges that hold bits of it.
    pub(super) fn range(&self, before: &[u8], rest: &[u8]) -> Option<Range<usize>> {
        let (form, length) = self.longest(rest)?;
        let Edges { before: has_left, after: has_right } = form.edges;
        let is_complete = length == form.text.len();
        let left = usize::from(has_left && before.last().is_some_and(is_digit));
        let right = usize::from(has_right && is_complete && rest.get(length).is_some_and(is_digit));
        Some(before.len() - left..before.len() + length + right)
    }

    /// The form of which most stands at the beginning of `rest`, and how much: all of it, or enough.
    fn longest(&self, rest: &[u8]) -> Option<(&Form, usize)> {
        let position = self.0.partition_point(|form| *form.text <= *rest);
        let neighbour = |index: Option<usize>| {
            let form = self.0.get(index?)?;
            Some((form, form.shared(rest)))
        };
        // No other form shares more with `rest` than its neighbours.
        let [before, behind] = [position.checked_sub(1), Some(position)].map(neighbour);
        let long = [behind, before].into_iter().flatten().filter(|(_, shared)| *shared >= ENOUGH);
        if let Some(longest) = long.max_by_key(|(_, shared)| *shared) {
            return Some(longest);
        }
        // What `rest` begins with, the form before it begins with, too.
        let (mut form, shared) = before?;
        while form.text.len() > shared {
            form = self.0.get(form.shorter?)?;
        }
        Some((form, form.text.len()))
    }
}

impl Form {
    /// Number of bytes at the beginning that are the same.
    fn shared(&self, rest: &[u8]) -> usize {
        if rest.starts_with(&self.text) {
            return self.text.len();
        }
        self.text.iter().zip(rest).take_while(|(one, other)| one == other).count()
    }
}

pub(super) fn is_digit(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'-' | b'_')
}
