//! Where in the arguments of a call the recipients stand.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use serde_json::{Map, Number, Value};

/// Longest path, in bytes: it is repeated to callers.
const MAX_LENGTH: usize = 256;
/// Deepest path, in steps.
const MAX_STEPS: usize = 16;

/// A JSON pointer (RFC 6901) into the arguments of a call, in which `*` stands for every element of a list: `/to`,
/// `/cc/*`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecipientPath {
    text: Arc<str>,
    argument: String,
    /// From that argument on.
    steps: Vec<PathStep>,
}

/// One step of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PathStep {
    Key(String),
    EveryElement,
}

/// Reason why a text is no path to recipients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RecipientPathError {
    /// No slash in front.
    #[error("expected a JSON pointer that begins with `/`, such as `/to` or `/cc/*`")]
    NoPointer,
    /// Two slashes in a row, or one at the end.
    #[error("has nothing between two slashes, or after the last one; no argument has an empty name")]
    EmptyStep,
    /// `*` within a name.
    #[error("has `*` within a name; it stands for every element of a list, and only alone, as in `/cc/*`")]
    StarWithinName,
    /// `*` in front: there is no list of all arguments.
    #[error("begins with `*`; expected the name of an argument, as in `/to`")]
    StarFirst,
    /// `~` that escapes nothing.
    #[error("has `~` without a `0` or `1` after it; write `~0` for `~` and `~1` for `/`")]
    BadEscape,
    /// Too long to be repeated to callers.
    #[error("has more than {MAX_LENGTH} bytes")]
    TooLong,
    /// Deeper than arguments are.
    #[error("has more than {MAX_STEPS} steps")]
    TooDeep,
}

/// Value at a recipient's path that is no recipient.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found<'a> {
    /// A text.
    Text(&'a str),
    /// An integer, such as the id of a chat.
    Integer(&'a Number),
    /// Anything else.
    Other,
}

impl RecipientPath {
    /// The argument that it begins with.
    pub(super) fn argument(&self) -> &str {
        &self.argument
    }

    /// The steps from that argument on.
    pub(super) fn steps(&self) -> &[PathStep] {
        &self.steps
    }

    /// Reads a path.
    ///
    /// # Errors
    ///
    /// If `text` is not a JSON Pointer to a field of the arguments.
    pub fn parse(text: &str) -> Result<Self, RecipientPathError> {
        if text.len() > MAX_LENGTH {
            return Err(RecipientPathError::TooLong);
        }
        let rest = text.strip_prefix('/').ok_or(RecipientPathError::NoPointer)?;
        let mut steps = rest.split('/').map(PathStep::parse).collect::<Result<VecDeque<_>, _>>()?;
        if steps.len() > MAX_STEPS {
            return Err(RecipientPathError::TooDeep);
        }
        let Some(PathStep::Key(argument)) = steps.pop_front() else { return Err(RecipientPathError::StarFirst) };
        Ok(Self { text: text.into(), argument, steps: steps.into() })
    }

    /// The path as it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Hands over everything that stands at this path, until `visit` fails.
    ///
    /// An argument that is absent, and a list without elements, hold nothing. A value that has another shape than the
    /// path holds something that is no recipient: a tool may well understand what this path does not.
    pub(super) fn visit<'a, E>(
        &self,
        arguments: &'a Map<String, Value>,
        visit: &mut impl FnMut(Found<'a>) -> Result<(), E>,
    ) -> Result<(), E> {
        arguments.get(&self.argument).map_or(Ok(()), |value| descend(&self.steps, value, visit))
    }
}

fn descend<'a, E>(
    steps: &[PathStep],
    value: &'a Value,
    visit: &mut impl FnMut(Found<'a>) -> Result<(), E>,
) -> Result<(), E> {
    match (steps.split_first(), value) {
        (None, Value::String(text)) => visit(Found::Text(text)),
        (None, Value::Number(number)) if number.is_i64() || number.is_u64() => visit(Found::Integer(number)),
        (Some((PathStep::Key(key), rest)), Value::Object(object)) => {
            object.get(key).map_or(Ok(()), |value| descend(rest, value, visit))
        }
        (Some((PathStep::EveryElement, rest)), Value::Array(elements)) => {
            elements.iter().try_for_each(|element| descend(rest, element, visit))
        }
        _ => visit(Found::Other),
    }
}

impl PathStep {
    fn parse(text: &str) -> Result<Self, RecipientPathError> {
        match text {
            "" => Err(RecipientPathError::EmptyStep),
            "*" => Ok(Self::EveryElement),
            _ if text.contains('*') => Err(RecipientPathError::StarWithinName),
            _ => unescaped(text).map(Self::Key).ok_or(RecipientPathError::BadEscape),
        }
    }
}

fn unescaped(text: &str) -> Option<String> {
    let mut parts = text.split('~');
    let mut name = parts.next()?.to_owned();
    for part in parts {
        let (escaped, rest) = match (part.strip_prefix('0'), part.strip_prefix('1')) {
            (Some(rest), _) => ('~', rest),
            (_, Some(rest)) => ('/', rest),
            _ => return None,
        };
        name.push(escaped);
        name.push_str(rest);
    }
    Some(name)
}

impl fmt::Display for RecipientPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use serde_json::json;

    use super::*;

    fn found(path: &str, arguments: &Value) -> Vec<String> {
        let mut all = Vec::new();
        let visited = RecipientPath::parse(path).unwrap().visit(arguments.as_object().unwrap(), &mut |found| {
            all.push(match found {
                Found::Text(text) => text.to_owned(),
                Found::Integer(number) => number.to_string(),
                Found::Other => "?".to_owned(),
            });
            Ok::<_, Infallible>(())
        });
        visited.unwrap();
        all
    }

    #[test]
    fn a_path_finds_every_recipient_and_every_value_that_is_none() {
        let arguments = json!({
            "to": "a", "cc": ["b", "c"], "none": [], "null": null, "nested": [{"to": ["d", 5, 1.5]}, {"other": 1}, {"to": "e"}, "f"],
            "a/b": "g", "~": "h", "~1": "i", "0": "j", "object": {"0": "k", "to": {"address": "l"}},
        });
        let table: [(&str, &[&str]); 16] = [
            ("/to", &["a"]),
            ("/to/*", &["?"]),
            ("/to/name", &["?"]),
            ("/cc/*", &["b", "c"]),
            ("/cc", &["?"]),
            ("/cc/0", &["?"]),
            ("/none/*", &[]),
            ("/null", &["?"]),
            ("/null/*", &["?"]),
            ("/absent", &[]),
            ("/absent/*/to", &[]),
            ("/nested/*/to/*", &["d", "5", "?", "?", "?"]),
            ("/a~1b", &["g"]),
            ("/~0", &["h"]),
            ("/~01", &["i"]),
            ("/object/to/address", &["l"]),
        ];
        for (path, expected) in table {
            assert_eq!(found(path, &arguments), expected, "{path}");
        }
    }

    #[test]
    fn the_longest_and_the_deepest_path_are_taken_and_shown_as_they_were_written() {
        for text in [format!("/{}", "x".repeat(MAX_LENGTH - 1)), "/x".repeat(MAX_STEPS)] {
            assert_eq!(RecipientPath::parse(&text).unwrap().as_str(), text);
        }
    }

    #[test]
    fn an_invalid_path_is_refused_with_the_expected_form() {
        let (long, deep) = (format!("/{}", "x".repeat(MAX_LENGTH)), "/x".repeat(MAX_STEPS + 1));
        let texts = ["", "to", "$.to", "/", "/*", "/to/", "/cc//to", "/cc*", "/a~b", "/a~", &long, &deep].map(|text| {
            let error = RecipientPath::parse(text).unwrap_err();
            format!("{:<10} {error}", text.chars().take(10).collect::<String>())
        });
        insta::assert_snapshot!(texts.join("\n"), @"
                   expected a JSON pointer that begins with `/`, such as `/to` or `/cc/*`
        to         expected a JSON pointer that begins with `/`, such as `/to` or `/cc/*`
        $.to       expected a JSON pointer that begins with `/`, such as `/to` or `/cc/*`
        /          has nothing between two slashes, or after the last one; no argument has an empty name
        /*         begins with `*`; expected the name of an argument, as in `/to`
        /to/       has nothing between two slashes, or after the last one; no argument has an empty name
        /cc//to    has nothing between two slashes, or after the last one; no argument has an empty name
        /cc*       has `*` within a name; it stands for every element of a list, and only alone, as in `/cc/*`
        /a~b       has `~` without a `0` or `1` after it; write `~0` for `~` and `~1` for `/`
        /a~        has `~` without a `0` or `1` after it; write `~0` for `~` and `~1` for `/`
        /xxxxxxxxx has more than 256 bytes
        /x/x/x/x/x has more than 16 steps
        ");
    }
}
