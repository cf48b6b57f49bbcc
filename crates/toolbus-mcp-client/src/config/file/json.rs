//! JSON with the position of every value, and with fields that are given twice.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

/// The fields of an object, in their order.
pub(super) struct JsonFields<'a>(pub(super) Vec<(String, &'a RawValue)>);

impl<'a> JsonFields<'a> {
    /// Those of an object; `None` for anything else.
    pub(super) fn of(text: &'a RawValue) -> Option<Self> {
        serde_json::from_str(text.get()).ok()
    }
}

impl<'de> Deserialize<'de> for JsonFields<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(InOrder)
    }
}

struct InOrder;

impl<'de> Visitor<'de> for InOrder {
    type Value = JsonFields<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut fields = Vec::new();
        while let Some(field) = map.next_entry()? {
            fields.push(field);
        }
        Ok(JsonFields(fields))
    }
}

/// The elements of a list; `None` for anything else.
pub(super) fn elements(text: &RawValue) -> Option<Vec<&RawValue>> {
    serde_json::from_str(text.get()).ok()
}

/// Line and column of a part of a text, from one.
pub(super) fn position(text: &str, part: &RawValue) -> String {
    let offset = (part.get().as_ptr() as usize).saturating_sub(text.as_ptr() as usize);
    let before = text.get(..offset).unwrap_or_default();
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    format!("{line}:{column}")
}

/// A text of JSON without the comments and the commas after the last element that VS Code and Zed allow. Each character of
/// them is a space then, so that everything else keeps its line and column.
pub(super) fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    // Position of a comma that nothing but space and comments has followed.
    let mut comma = None;
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        match (c, rest.peek()) {
            ('"', _) => {
                comma = None;
                plain.push(c);
                while let Some(c) = rest.next() {
                    plain.push(c);
                    match c {
                        '"' => break,
                        '\\' => plain.extend(rest.next()),
                        _ => {}
                    }
                }
            }
            ('/', Some('/')) => {
                plain.push(' ');
                while let Some(c) = rest.next_if(|c| *c != '\n') {
                    plain.push(blank(c));
                }
            }
            ('/', Some('*')) => {
                plain.push(' ');
                let mut before = ' ';
                // The star of the beginning ends nothing.
                plain.extend(rest.next().map(blank));
                for c in rest.by_ref() {
                    plain.push(blank(c));
                    if (before, c) == ('*', '/') {
                        break;
                    }
                    before = c;
                }
            }
            (',', _) => {
                comma = Some(plain.len());
                plain.push(c);
            }
            ('}' | ']', _) => {
                if let Some(index) = comma.take() {
                    plain.replace_range(index..=index, " ");
                }
                plain.push(c);
            }
            _ => {
                comma = comma.filter(|_| c.is_whitespace());
                plain.push(c);
            }
        }
    }
    plain
}

/// Replacement of a character of a comment.
const fn blank(c: char) -> char {
    if c == '\n' { c } else { ' ' }
}

/// Reason why a text is no JSON, with its location.
pub(super) fn problem(file: &str, error: &serde_json::Error) -> String {
    let text = error.to_string();
    let what = text.split(" at line ").next().unwrap_or_default();
    format!("{file}:{}:{}: not JSON: {what}", error.line(), error.column())
}

#[cfg(test)]
mod tests {
    use super::plain;

    #[test]
    fn comments_and_last_commas_become_spaces_of_the_same_width() {
        for (text, expected) in [
            ("[1, // one\n 2]", "[1,       \n 2]"),
            ("[1,]", "[1 ]"),
            ("{\"a\": [1, /* é,] */ ], }", "{\"a\": [1            ]  }"),
            ("[1 /* a\n * b */, 2]", "[1     \n       , 2]"),
            // A comment that is empty, one that ends with stars, and one that does not end.
            ("[/**/1/***/]/*", "[    1     ]  "),
            ("[\"//, /* ]\", \"\\\",]\"]", "[\"//, /* ]\", \"\\\",]\"]"),
            // Commas that no dialect allows stay what they are.
            ("[,1,,]", "[,1, ]"),
            ("[1 / 2]", "[1 / 2]"),
            ("\"open", "\"open"),
        ] {
            assert_eq!(plain(text), expected, "{text}");
        }
    }
}
