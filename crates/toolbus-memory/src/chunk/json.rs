//! The elements of a JSON document, and their paths.

use memchr::memchr2;
use serde::de::IgnoredAny;

use super::pack::{CutMark, MarkKind};

/// Deepest element that a chunk can begin with, and that a path names.
const MAX_DEPTH: usize = 16;
/// Longest key and longest path that are shown, in characters.
const MAX_KEY: usize = 40;
const MAX_PATH: usize = 120;

/// Whether a text is one JSON object or array.
pub(super) fn is_document(text: &str) -> bool {
    text.trim_start().starts_with(['{', '[']) && serde_json::from_str::<IgnoredAny>(text).is_ok()
}

/// Positions at which the elements of a valid document begin, save the first of each array and object. The rank is the
/// depth: an element is cut where a chunk cannot hold it.
pub(super) struct JsonElements<'t> {
    bytes: &'t [u8],
    at: usize,
    depth: usize,
}

impl<'t> JsonElements<'t> {
    pub(super) fn new(text: &'t str) -> Self {
        Self { bytes: text.as_bytes(), at: 0, depth: 0 }
    }
}

impl Iterator for JsonElements<'_> {
    type Item = CutMark;

    fn next(&mut self) -> Option<CutMark> {
        while let Some(byte) = self.bytes.get(self.at) {
            match byte {
                b'"' => self.at = string_end(self.bytes, self.at),
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => self.depth = self.depth.saturating_sub(1),
                b',' if self.depth <= MAX_DEPTH => {
                    self.at = after_space(self.bytes, self.at + 1);
                    let rank = u8::try_from(self.depth).unwrap_or(u8::MAX);
                    return Some(CutMark { at: self.at, kind: MarkKind::Section(rank) });
                }
                _ => {}
            }
            if *byte != b'"' {
                self.at += 1;
            }
        }
        None
    }
}

/// The offset after the string that begins at `at`.
fn string_end(bytes: &[u8], at: usize) -> usize {
    let mut at = at + 1;
    while let Some(found) = bytes.get(at..).and_then(|rest| memchr2(b'"', b'\\', rest)) {
        at += found;
        if bytes.get(at) == Some(&b'"') {
            return at + 1;
        }
        at += 2;
    }
    bytes.len()
}

fn after_space(bytes: &[u8], at: usize) -> usize {
    let space = bytes.get(at..).into_iter().flatten().take_while(|byte| byte.is_ascii_whitespace());
    at + space.count()
}

/// The paths of the chunks that end at these offsets of a valid document: of the first element, and of the last.
pub(super) fn paths(text: &str, ends: &[usize]) -> Vec<String> {
    let mut cursor = Cursor { text, at: 0, frames: Vec::new(), deeper: 0 };
    cursor.step_in();
    let paths = ends.iter().map(|end| {
        let first = cursor.path();
        cursor.go_on(*end);
        let last = cursor.path();
        cursor.step_over();
        if first == last || *end == text.len() { first } else { format!("{first} to {last}") }
    });
    paths.collect()
}

/// A position in a document.
struct Cursor<'t> {
    text: &'t str,
    at: usize,
    frames: Vec<Frame>,
    /// Depth below that of the last frame.
    deeper: usize,
}

/// An array or object that is open, and the element of it.
enum Frame {
    Array { index: usize },
    Object { key: Option<(usize, usize)> },
}

impl Cursor<'_> {
    fn byte(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    /// Goes to the first element of a document.
    fn step_in(&mut self) {
        self.at = after_space(self.text.as_bytes(), 0);
        self.token();
        self.at = after_space(self.text.as_bytes(), self.at);
        self.read_key();
    }

    /// Goes on to `end`, or to the comma before the element that begins there.
    fn go_on(&mut self, end: usize) {
        while self.at < end {
            if self.byte() == Some(b',') && after_space(self.text.as_bytes(), self.at + 1) >= end {
                return;
            }
            self.token();
        }
    }

    /// Goes to the next element, from a comma.
    fn step_over(&mut self) {
        if self.byte() == Some(b',') {
            self.token();
            self.at = after_space(self.text.as_bytes(), self.at);
            self.read_key();
        }
    }

    /// Reads the key at the cursor, if it is before one.
    fn read_key(&mut self) {
        if self.byte() == Some(b'"') && matches!(self.frames.last(), Some(Frame::Object { key: None })) {
            self.token();
        }
    }

    fn token(&mut self) {
        let start = self.at;
        self.at += 1;
        match self.text.as_bytes().get(start) {
            Some(b'"') => {
                self.at = string_end(self.text.as_bytes(), start);
                if self.deeper == 0
                    && let Some(Frame::Object { key: key @ None }) = self.frames.last_mut()
                {
                    *key = Some((start, self.at));
                }
            }
            Some(b'{' | b'[') if self.frames.len() == MAX_DEPTH => self.deeper += 1,
            Some(b'{') => self.frames.push(Frame::Object { key: None }),
            Some(b'[') => self.frames.push(Frame::Array { index: 0 }),
            Some(b'}' | b']') if self.deeper > 0 => self.deeper -= 1,
            Some(b'}' | b']') => drop(self.frames.pop()),
            Some(b',') if self.deeper == 0 => match self.frames.last_mut() {
                Some(Frame::Array { index }) => *index += 1,
                Some(Frame::Object { key }) => *key = None,
                None => {}
            },
            _ => {}
        }
    }

    /// The path as JSONPath has it, shortened.
    fn path(&self) -> String {
        let mut path = "$".to_owned();
        for frame in &self.frames {
            let step = match frame {
                Frame::Array { index } => format!("[{index}]"),
                Frame::Object { key: Some((start, end)) } => key_step(self.text.get(*start..*end).unwrap_or_default()),
                Frame::Object { key: None } => break,
            };
            if path.chars().count() + step.chars().count() > MAX_PATH {
                path.push('…');
                break;
            }
            path.push_str(&step);
        }
        path
    }
}

/// One step of a path, by the key as the document has it, with its quotes.
fn key_step(quoted: &str) -> String {
    let key = quoted.trim_matches('"');
    match key.char_indices().nth(MAX_KEY) {
        Some((end, _)) => format!("[\"{}…\"]", key.get(..end).unwrap_or_default()),
        None if !key.is_empty() && key.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-')) => {
            format!(".{key}")
        }
        None => format!("[{quoted}]"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_begin_after_commas_and_not_in_strings() {
        let text = r#"{"a": "x, \" y", "b": [1, {"c": 2, "d": 3}], "e\\": 4}"#;
        let found: Vec<(u8, &str)> = JsonElements::new(text)
            .map(|mark| match mark.kind {
                MarkKind::Section(rank) => (rank, text.get(mark.at..mark.at + 3).unwrap()),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(found, [(1, r#""b""#), (2, r#"{"c"#), (3, r#""d""#), (1, r#""e\"#)]);
    }

    #[test]
    fn paths_name_the_first_and_the_last_element_of_a_chunk() {
        let text = r#"{"a": 1, "list": [10, {"x y": 2}, 30], "last": {"long": "abcdefgh"}}"#;
        let at = |part: &str| text.find(part).unwrap();
        let ends = [at(r#"{"x"#), at("30"), at(r#""last"#), at("efgh"), text.len()];
        let paths = paths(text, &ends);
        let expected = ["$.a to $.list[0]", "$.list[1]", "$.list[2] to $.list", "$.last to $.last.long", "$.last.long"];
        assert_eq!(paths, expected);
    }

    #[test]
    fn only_valid_objects_and_arrays_are_documents() {
        for text in ["{}", " [1, 2]\n", "[[[]]]"] {
            assert!(is_document(text), "{text}");
        }
        for text in ["", "1", "\"a\"", "{", "[1,]", "{} {}", "# a"] {
            assert!(!is_document(text), "{text}");
        }
        assert!(is_document(&("[".repeat(1_000_000) + &"]".repeat(1_000_000))), "however deep");
    }
}
