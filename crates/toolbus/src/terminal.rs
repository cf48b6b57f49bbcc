//! Output of results, in which foreign texts are made safe.

use std::borrow::Cow;
use std::io::{self, BufRead, Read as _, Write};

use clap::ValueEnum;

/// Longest line of input that is read, in bytes.
const MAX_INPUT: u64 = 64;

/// Format of results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum OutputFormat {
    /// For people.
    #[default]
    Table,
    /// For programs.
    Json,
}

/// A text as a terminal may show it: control characters other than line break and tab are written as escapes.
#[must_use]
pub fn printable(text: &str) -> Cow<'_, str> {
    let is_control = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
    if !text.contains(is_control) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if is_control(c) { shown.extend(c.escape_default()) } else { shown.push(c) }
    }
    Cow::Owned(shown)
}

/// Writes a question, and returns whether the input is `y` or `yes`.
///
/// # Errors
///
/// If the question cannot be written, or the input not be read.
pub fn is_yes(question: &str, input: &mut impl BufRead, output: &mut impl Write) -> io::Result<bool> {
    write!(output, "{question}")?;
    output.flush()?;
    let mut line = String::new();
    input.take(MAX_INPUT).read_line(&mut line)?;
    Ok(matches!(line.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}

/// Treats `EPIPE` as success, so that `toolbus tools | head` exits with 0.
///
/// # Errors
///
/// Every other error, as it came.
pub fn ignore_broken_pipe(printed: io::Result<()>) -> io::Result<()> {
    match printed {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_shown_as_escapes() {
        assert_eq!(printable("a\tb\nü"), "a\tb\nü");
        assert_eq!(printable("\u{1b}[31mred\r\u{9b}\0"), "\\u{1b}[31mred\\r\\u{9b}\\u{0}");
    }

    #[test]
    fn only_a_broken_pipe_is_no_error() {
        assert!(ignore_broken_pipe(Err(io::ErrorKind::BrokenPipe.into())).is_ok());
        assert!(ignore_broken_pipe(Err(io::ErrorKind::StorageFull.into())).is_err());
    }
}
