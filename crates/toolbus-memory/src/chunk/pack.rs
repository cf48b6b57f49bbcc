//! Cuts a text at positions that its structure offers.

use std::collections::VecDeque;
use std::iter::Peekable;

use memchr::memrchr;

/// Chunks that a text is cut into before chunks get larger than the least, as far as the limits allow.
const FEW_CHUNKS: usize = 500;

/// Lengths of chunks, in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkLimits {
    min: usize,
    max: usize,
}

impl ChunkLimits {
    /// Chunks of at most `max` characters, and at least one. A least above half of that is taken for half of it: a text
    /// a little longer than one chunk must give two.
    #[must_use]
    pub fn new(min: usize, max: usize) -> Self {
        let max = max.max(1);
        Self { min: min.min(max / 2), max }
    }

    /// The least length, in characters. Two kinds of chunks are shorter: the last of a text, and one before a fenced
    /// block or a table that would not fit otherwise.
    #[must_use]
    pub fn min(&self) -> usize {
        self.min
    }

    /// The greatest length, in characters.
    #[must_use]
    pub fn max(&self) -> usize {
        self.max
    }

    /// The least length in a text of `total` characters: more than [`Self::min`] in one that would give very many chunks.
    fn least(self, total: usize) -> usize {
        self.min.max((total / FEW_CHUNKS).min(self.max / 8 * 7)).clamp(1, self.max)
    }
}

/// A possible cut of a text, by its structure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CutMark {
    /// Offset in bytes, of the first character of a line or of an element.
    pub(super) at: usize,
    pub(super) kind: MarkKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MarkKind {
    /// A section or an element begins. Its rank is the level of a heading, or the depth of an element: the least is cut
    /// at first.
    Section(u8),
    /// A block begins, after a blank line.
    Block,
    /// A block begins that is kept whole up to `end`, if a chunk can hold it.
    Whole { end: usize },
}

/// Offsets where the chunks of `text` end, in bytes and in order. The last is that of the text.
pub(super) fn ends(text: &str, limits: ChunkLimits, marks: impl Iterator<Item = CutMark>) -> Vec<usize> {
    let least = limits.least(text.chars().count());
    let mut packer = Packer { text, marks: marks.peekable(), window: VecDeque::new(), max: limits.max };
    // A cut after this leaves less than the least for the last chunk.
    let tail = retreat(text, least);
    let (mut ends, mut start) = (Vec::new(), 0);
    loop {
        let low = advance(text, start, least);
        let high = advance(text, low, limits.max - least);
        if high == text.len() {
            // Who counts the marks gets those of the last chunk, too.
            packer.marks.for_each(drop);
            ends.push(high);
            return ends;
        }
        start = packer.cut(start, low, tail.clamp(low, high), high);
        ends.push(start);
    }
}

struct Packer<'t, M: Iterator<Item = CutMark>> {
    text: &'t str,
    marks: Peekable<M>,
    /// Marks after the last cut, as far as the next chunk can reach.
    window: VecDeque<CutMark>,
    max: usize,
}

impl<M: Iterator<Item = CutMark>> Packer<'_, M> {
    /// Returns the end of the chunk from `start`: between `low` and `high`, and before `wanted` if the structure allows
    /// it.
    fn cut(&mut self, start: usize, low: usize, wanted: usize, high: usize) -> usize {
        while self.window.front().is_some_and(|mark| mark.at <= start) {
            self.window.pop_front();
        }
        while let Some(mark) = self.marks.next_if(|mark| mark.at <= high) {
            if mark.at > start {
                self.window.push_back(mark);
            }
        }
        self.section(low, wanted)
            .or_else(|| self.blocks(low, wanted).next_back())
            .or_else(|| self.section(wanted, high))
            .or_else(|| self.blocks(wanted, high).next())
            .or_else(|| self.before_whole(high))
            .or_else(|| line(self.text, low, wanted))
            .unwrap_or_else(|| between_graphemes(self.text, start, low, wanted))
    }

    fn within(&self, low: usize, high: usize) -> impl DoubleEndedIterator<Item = &CutMark> {
        self.window.iter().filter(move |mark| (low..=high).contains(&mark.at))
    }

    /// The first section of the least rank.
    fn section(&self, low: usize, high: usize) -> Option<usize> {
        let sections = self.within(low, high).filter_map(|mark| match mark.kind {
            MarkKind::Section(rank) => Some((rank, mark.at)),
            MarkKind::Block | MarkKind::Whole { .. } => None,
        });
        sections.min().map(|(_, at)| at)
    }

    fn blocks(&self, low: usize, high: usize) -> impl DoubleEndedIterator<Item = usize> {
        self.within(low, high).map(|mark| mark.at)
    }

    /// The beginning of a block that goes on beyond `high`, and fits into a chunk of its own.
    fn before_whole(&self, high: usize) -> Option<usize> {
        self.window.iter().find_map(|mark| match mark.kind {
            MarkKind::Whole { end } if end > high && advance(self.text, mark.at, self.max) >= end => Some(mark.at),
            _ => None,
        })
    }
}

/// The last beginning of a line from `low` to `high`.
fn line(text: &str, low: usize, high: usize) -> Option<usize> {
    let from = low.checked_sub(1)?;
    let newline = memrchr(b'\n', text.as_bytes().get(from..high)?)?;
    Some(from + newline + 1)
}

/// The last offset up to `high` that is between two graphemes. A grapheme that begins before `low` is cut: it would not
/// end.
pub(super) fn between_graphemes(text: &str, start: usize, low: usize, high: usize) -> usize {
    let rest = text.get(start..).unwrap_or_default();
    let found = start + toolbus_core::text::between_graphemes(rest, high - start);
    if found >= low { found } else { high }
}

/// The offset `count` characters after `from`, or the end of the text.
pub(super) fn advance(text: &str, mut from: usize, mut count: usize) -> usize {
    while count > 0 && from < text.len() {
        // A character has a byte at least, so this does not go too far.
        let to = text.floor_char_boundary(from.saturating_add(count)).max(text.ceil_char_boundary(from + 1));
        count = count.saturating_sub(text.get(from..to).map_or(1, |passed| passed.chars().count()));
        from = to;
    }
    from
}

/// The offset `count` characters before the end of a text, or its beginning.
fn retreat(text: &str, mut count: usize) -> usize {
    let mut to = text.len();
    while count > 0 && to > 0 {
        let from = text.ceil_char_boundary(to.saturating_sub(count)).min(text.floor_char_boundary(to - 1));
        count = count.saturating_sub(text.get(from..to).map_or(1, |passed| passed.chars().count()));
        to = from;
    }
    to
}
