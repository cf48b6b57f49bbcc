//! Outline of a text in chunks, which a model is shown instead of the text.

use std::fmt::Write as _;

use crate::chunk::ChunkedText;

/// Rows of a table, each a chunk. The outline names all of them.
pub(crate) const MAX_ROWS: usize = 200;
/// Room for the line after a table that counts the chunks that it leaves out, in characters.
const LEFT_OUT: usize = 60;

impl ChunkedText {
    /// The nested headings of the text, each with the key of its chunk. Every chunk is named.
    #[must_use]
    pub fn outline(&self, key: impl Fn(usize) -> String) -> String {
        let mut outline = "## Document Outline\n\n".to_owned();
        let mut line = |level: u8, text: &str, index: usize| {
            let indent = 2 * usize::from(level.saturating_sub(1));
            let text = if text.is_empty() { format!("Part {index}") } else { one_line(text) };
            let _ = writeln!(outline, "{:indent$}- **{text}** → `{}`", "", key(index));
        };
        let mut headings = self.headings.iter().peekable();
        for (index, chunk) in self.chunks.iter().enumerate() {
            let mut own = std::iter::from_fn(|| headings.next_if(|heading| heading.chunk == index)).peekable();
            // A section goes on in it, or the text has no headings.
            if own.peek().is_none() {
                line(1, &chunk.heading, index);
            }
            own.for_each(|heading| line(heading.level, &heading.text, index));
        }
        if self.more > 0 {
            let _ = writeln!(outline, "\n{} more headings are not listed.", self.more);
        }
        outline
    }

    /// The table of the chunks: number, heading and key of each, as far as `room` characters have room for.
    #[must_use]
    pub fn table(&self, key: impl Fn(usize) -> String, room: usize) -> String {
        let mut table = "| # | Heading | Key |\n|---|---------|-----|\n".to_owned();
        let mut left = room.saturating_sub(table.len() + LEFT_OUT);
        let mut rows = 0;
        for (index, chunk) in self.chunks.iter().enumerate().take(MAX_ROWS) {
            let heading = if chunk.heading.is_empty() { format!("Part {index}") } else { cell(&chunk.heading) };
            let row = format!("| {index} | {heading} | `{}` |\n", cell(&key(index)));
            let Some(rest) = left.checked_sub(row.chars().count()) else { break };
            (left, rows) = (rest, index + 1);
            table += &row;
        }
        if let Some(others) = self.chunks.len().checked_sub(rows).filter(|others| *others > 0) {
            let _ = writeln!(table, "\n{others} more chunks are in the outline.");
        }
        table
    }
}

/// A text without what would end its line.
fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Returns a text as a cell of a table.
fn cell(text: &str) -> String {
    one_line(text).replace('\\', "\\\\").replace('|', "\\|")
}
