//! Cuts a long text along its structure, so that a model can read the part that it needs.
//!
//! Markdown is cut before headings of the first three levels, then at blank lines, JSON at the elements of arrays and
//! objects, and anything between two graphemes where that is not enough. The chunks are the text: put together, they
//! give every byte of it.

mod json;
mod markdown;
mod pack;

use std::ops::Range;

pub use self::pack::ChunkLimits;
use self::pack::MarkKind;

/// Headings of a text that its outline names. Those after them are counted.
const MAX_HEADINGS: usize = 2000;
/// Headings of a chunk that its row names.
const MAX_NAMED: usize = 3;

/// A text in chunks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChunkedText {
    /// The chunks, in order.
    pub chunks: Vec<Chunk>,
    pub(crate) headings: Vec<SectionHeading>,
    /// Number of headings besides.
    pub(crate) more: usize,
}

/// A part of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    /// Position of the chunk, in bytes.
    pub range: Range<usize>,
    /// Subject of the chunk: its headings, or the paths of its elements. Empty if the text has neither.
    pub heading: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SectionHeading {
    pub(crate) level: u8,
    pub(crate) text: String,
    /// Index of the chunk that it is in.
    pub(crate) chunk: usize,
}

/// Cuts a text into chunks; a text that one chunk can hold is one chunk.
#[must_use]
pub fn chunk(text: &str, limits: ChunkLimits) -> ChunkedText {
    if json::is_document(text) {
        let ends = pack::ends(text, limits, json::JsonElements::new(text));
        let headings = json::paths(text, &ends);
        let chunks = ranges(&ends).zip(headings).map(|(range, heading)| Chunk { range, heading });
        return ChunkedText { chunks: chunks.collect(), headings: Vec::new(), more: 0 };
    }
    let (mut headings, mut more) = (Vec::new(), 0);
    let marks = markdown::Blocks::new(text).inspect(|mark| match mark.kind {
        MarkKind::Section(level) if headings.len() < MAX_HEADINGS => headings.push((level, mark.at)),
        MarkKind::Section(_) => more += 1,
        MarkKind::Block | MarkKind::Whole { .. } => {}
    });
    let ends = pack::ends(text, limits, marks);
    let headings = headings.into_iter().map(|(level, at)| {
        let chunk = ends.partition_point(|end| *end <= at);
        (at, SectionHeading { level, text: markdown::heading_text(text, at), chunk })
    });
    let (offsets, headings): (Vec<usize>, Vec<SectionHeading>) = headings.unzip();
    let mut names = ChunkNames { offsets: &offsets, headings: &headings, are_all: more == 0, continued: 0 };
    let chunks = ranges(&ends).map(|range| Chunk { heading: names.of(&range), range }).collect();
    ChunkedText { chunks, headings, more }
}

fn ranges(ends: &[usize]) -> impl Iterator<Item = Range<usize>> {
    let starts = std::iter::once(&0).chain(ends);
    starts.zip(ends).map(|(start, end)| *start..*end)
}

/// Names chunks, in order.
struct ChunkNames<'a> {
    offsets: &'a [usize],
    headings: &'a [SectionHeading],
    /// Whether there are no others, further on.
    are_all: bool,
    /// Number of chunks that went on with the section that the last one ended in.
    continued: usize,
}

impl ChunkNames<'_> {
    fn of(&mut self, range: &Range<usize>) -> String {
        let first = self.offsets.partition_point(|at| *at < range.start);
        let next = self.offsets.partition_point(|at| *at < range.end);
        let own = self.headings.get(first..next).unwrap_or_default();
        let mut names = Vec::new();
        if self.offsets.get(first) != Some(&range.start)
            && (self.are_all || first < self.offsets.len())
            && let Some(section) = first.checked_sub(1).and_then(|before| self.headings.get(before))
        {
            self.continued += 1;
            names.push(format!("{} (continued {})", section.text, self.continued));
        }
        if !own.is_empty() {
            self.continued = 0;
        }
        // The table of contents of the chunk, as far as it is short: the outline has all of it.
        let level = own.iter().map(|heading| heading.level).min();
        let own: Vec<&SectionHeading> = own.iter().filter(|heading| Some(heading.level) == level).collect();
        names.extend(own.iter().take(MAX_NAMED).map(|heading| heading.text.clone()));
        names.retain(|name| !name.is_empty());
        if let Some(others) = own.len().checked_sub(MAX_NAMED).filter(|others| *others > 0) {
            names.push(format!("{others} more"));
        }
        names.join("; ")
    }
}

#[cfg(test)]
mod tests;
