//! Texts that are repeated in logs and replies: shortened, and escaped where outsiders wrote them.

use std::borrow::Cow;

pub use toolbus_bus::with_dates;
use unicode_segmentation::GraphemeCursor;

/// Longest part of what outsiders wrote that is repeated, in characters.
const MAX_SHOWN: usize = 64;

/// Returns a text of outsiders as a log line or a reply may repeat it: at most 64 characters, escaped.
#[must_use]
pub fn shown(text: &str) -> String {
    excerpt(text, MAX_SHOWN)
}

/// The first `max` characters of what outsiders wrote, escaped, with `…` instead of the others.
#[must_use]
pub fn excerpt(text: &str, max: usize) -> String {
    let mut shown: String = text.chars().take(max).flat_map(char::escape_debug).collect();
    if text.chars().nth(max).is_some() {
        shown.push('…');
    }
    shown
}

/// The first `max` characters of a text, unchanged, with `…` instead of the others.
#[must_use]
pub fn shortened(text: &str, max: usize) -> Cow<'_, str> {
    match text.char_indices().nth(max) {
        Some((end, _)) => Cow::Owned(format!("{}…", text.get(..end).unwrap_or_default())),
        None => Cow::Borrowed(text),
    }
}

/// The first paragraph of a text after its Markdown headings, in one line; empty if there is none.
#[must_use]
pub fn first_paragraph(text: &str) -> String {
    let is_text = |line: &&str| !line.is_empty() && !line.starts_with('#');
    let lines = text.lines().map(str::trim).skip_while(|line| !is_text(line)).take_while(is_text);
    lines.collect::<Vec<_>>().join(" ")
}

/// At most `max` characters of the beginning of a text, and how many others there were, as RockBot's agents know it.
#[must_use]
pub fn truncated(text: &str, max: usize) -> String {
    let Some((end, _)) = text.char_indices().nth(max) else { return text.to_owned() };
    let (kept, rest) = text.split_at(between_graphemes(text, end));
    format!("{kept}\n[result truncated — {} chars omitted]", grouped(rest.chars().count()))
}

/// The last offset up to `at`, which is between two characters, that is between two graphemes.
#[must_use]
pub fn between_graphemes(text: &str, at: usize) -> usize {
    let mut cursor = GraphemeCursor::new(at, text.len(), true);
    match cursor.is_boundary(text, 0) {
        Ok(true) => at,
        _ => cursor.prev_boundary(text, 0).ok().flatten().unwrap_or(at),
    }
}

/// A number with commas between its thousands.
#[must_use]
pub fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let mut grouped = String::with_capacity(digits.len() * 4 / 3);
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// The first `max` names with commas between them, and `…` instead of the others.
#[must_use]
pub fn list<T: AsRef<str>>(names: &[T], max: usize) -> String {
    let mut text = names.iter().take(max).map(AsRef::as_ref).collect::<Vec<_>>().join(", ");
    if names.len() > max {
        text.push_str(", …");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shown_texts_are_short_and_without_control_characters() {
        assert_eq!(shown("a\u{1b}[2J\n"), "a\\u{1b}[2J\\n");
        assert_eq!(shown(&"x".repeat(100)).chars().count(), MAX_SHOWN + 1);
    }

    #[test]
    fn a_text_is_shortened_to_whole_characters_and_one_that_fits_is_not_copied() {
        assert_eq!(shortened("äöü", 2), "äö…");
        assert!(matches!(shortened("äöü", 3), Cow::Borrowed("äöü")));
        assert_eq!(excerpt("ä\nöü", 2), "ä\\n…");
    }

    #[test]
    fn the_first_paragraph_comes_after_headings_and_is_one_line() {
        assert_eq!(first_paragraph("\n# Notes\n\nFinds notes.\n Writes them.\n\nMore."), "Finds notes. Writes them.");
        assert_eq!(first_paragraph("# Notes\n\n"), "");
    }

    #[test]
    fn a_list_names_a_limited_number_and_marks_that_there_are_more() {
        assert_eq!(list(&["a", "b"], 2), "a, b");
        assert_eq!(list(&["a", "b", "c"], 2), "a, b, …");
        assert_eq!(list::<&str>(&[], 2), "");
    }

    #[test]
    fn a_long_text_is_truncated_between_graphemes_with_the_length_of_the_rest() {
        let text = format!("abc{}", "e\u{301}".repeat(1000));
        assert_eq!(truncated(&text, 4), "abc\n[result truncated — 2,000 chars omitted]");
        assert_eq!(truncated("äöü", 3), "äöü");
    }

    #[test]
    fn numbers_are_grouped_by_thousands() {
        for (number, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(grouped(number), text);
        }
    }
}
