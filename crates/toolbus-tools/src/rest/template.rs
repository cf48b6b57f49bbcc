//! URL templates: parsed once, filled in one pass.

mod parse;

use std::fmt::Write as _;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Map, Value};
use url::Url;

pub use self::parse::TemplateError;
use super::path::has_dot_segment;

/// Everything but the unreserved characters of RFC 3986.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Longest URL that is sent, in bytes: servers refuse longer ones anyway.
const MAX_URL: usize = 16 * 1024;

/// A URL with placeholders in its path and query.
///
/// Scheme, host and port are fixed when the template is parsed; nothing that is filled in can reach them.
#[derive(Debug)]
pub(super) struct Template {
    /// Scheme, host and port.
    origin: Url,
    /// What `/` separates, without the empty text before the first.
    path: Vec<Parts>,
    /// What `&` separates.
    query: Vec<Pair>,
}

/// Literal texts and placeholders, in their order.
#[derive(Debug, Default)]
struct Parts(Vec<Part>);

#[derive(Debug)]
enum Part {
    /// As it stands in the URL.
    Literal(String),
    /// Stands for the argument of this name.
    Placeholder(String),
}

/// `name=value`.
#[derive(Debug)]
struct Pair {
    /// The name, decoded, when it has no placeholder.
    name: Option<String>,
    parts: Parts,
}

/// Why arguments do not make a URL. The caller reads these.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum FillError {
    #[error("Argument `{0}` is missing: it is part of the address.")]
    Missing(String),
    #[error("Argument `{0}` is empty: it is part of the address, and must not be.")]
    Empty(String),
    #[error("Argument `{0}` must not contain `.` or `..` as a step of a path.")]
    DotSegment(String),
    #[error("Argument `{0}` has a fixed value in this tool. Leave it out.")]
    Fixed(String),
    #[error("The arguments make an address of more than {MAX_URL} bytes. Shorten them.")]
    TooLong,
    #[error("The arguments do not make a usable address.")]
    Unusable,
}

impl Template {
    /// Every placeholder's name; one that occurs twice comes twice.
    pub(super) fn placeholders(&self) -> impl Iterator<Item = &str> {
        self.path.iter().chain(self.query.iter().map(|pair| &pair.parts)).flat_map(Parts::placeholders)
    }

    /// Whether the query has a pair of this name already.
    pub(super) fn fixes(&self, name: &str) -> bool {
        self.query.iter().any(|pair| pair.name.as_deref() == Some(name))
    }

    /// The URL for `arguments`; `extra` are those that go to the query beside the placeholders.
    pub(super) fn fill<'a>(
        &self,
        arguments: &Map<String, Value>,
        extra: impl IntoIterator<Item = (&'a String, &'a Value)>,
    ) -> Result<Url, FillError> {
        let mut path = String::new();
        for segment in &self.path {
            path.push('/');
            segment.fill_path(arguments, &mut path)?;
        }
        let mut query = Vec::new();
        for pair in &self.query {
            query.extend(pair.parts.fill_query(arguments));
        }
        for (name, value) in extra {
            if self.fixes(name) {
                return Err(FillError::Fixed(name.clone()));
            }
            query.extend(values(value).map(|value| format!("{}={}", encoded(name), encoded(&text(value)))));
        }
        let query = query.join("&");
        if path.len() + query.len() > MAX_URL {
            return Err(FillError::TooLong);
        }
        let mut url = self.origin.clone();
        url.set_path(&path);
        url.set_query((!query.is_empty()).then_some(&query));
        // What is checked above cannot fail here; a difference between that and the parser must not become a request.
        let segments = url.path_segments().map_or(0, Iterator::count);
        (segments == self.path.len()).then_some(url).ok_or(FillError::Unusable)
    }
}

impl Parts {
    fn placeholders(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|part| match part {
            Part::Literal(_) => None,
            Part::Placeholder(name) => Some(name.as_str()),
        })
    }

    fn fill_path(&self, arguments: &Map<String, Value>, path: &mut String) -> Result<(), FillError> {
        let start = path.len();
        for part in &self.0 {
            match part {
                Part::Literal(literal) => path.push_str(literal),
                Part::Placeholder(name) => {
                    let value = argument(arguments, name).ok_or_else(|| FillError::Missing(name.clone()))?;
                    let value = text(value);
                    if value.is_empty() {
                        return Err(FillError::Empty(name.clone()));
                    }
                    path.push_str(&encoded(&value));
                }
            }
        }
        match self.placeholders().next() {
            Some(name) if path.get(start..).is_some_and(has_dot_segment) => Err(FillError::DotSegment(name.to_owned())),
            _ => Ok(()),
        }
    }

    /// Nothing when an argument is absent: the whole pair goes with it.
    fn fill_query(&self, arguments: &Map<String, Value>) -> Option<String> {
        let mut pair = String::new();
        for part in &self.0 {
            match part {
                Part::Literal(literal) => pair.push_str(literal),
                Part::Placeholder(name) => {
                    let value = text(argument(arguments, name)?);
                    // Writing to a string cannot fail.
                    let _ = write!(pair, "{}", utf8_percent_encode(&value, RESERVED));
                }
            }
        }
        Some(pair)
    }
}

/// The argument; null counts as absent.
fn argument<'a>(arguments: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    arguments.get(name).filter(|value| !value.is_null())
}

/// A value as it stands in a URL, before encoding: strings raw, all else as JSON.
fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// The values that a query repeats its name for: an array's elements, or the value alone; none for null.
fn values(value: &Value) -> impl Iterator<Item = &Value> {
    let (many, one) = match value {
        Value::Array(elements) => (elements.as_slice(), None),
        other => (&[][..], Some(other)),
    };
    many.iter().chain(one).filter(|value| !value.is_null())
}

fn encoded(text: &str) -> String {
    utf8_percent_encode(text, RESERVED).to_string()
}

#[cfg(test)]
mod tests;
