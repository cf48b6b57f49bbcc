use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// First bytes of what gzip has written.
const GZIP: [u8; 2] = [0x1f, 0x8b];
/// Deepest nesting of arrays and objects that is read.
pub const MAX_DEPTH: usize = 64;

/// Reason why a text is not as expected, for its sender.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// Not UTF-8.
    #[error("not UTF-8: invalid byte at offset {offset}")]
    NotUtf8 {
        /// Offset of the first invalid byte.
        offset: usize,
    },
    /// Compressed.
    #[error("compressed with gzip: send the JSON itself")]
    Compressed,
    /// Not JSON, or a value where another is needed; the text names line and column.
    #[error("{0}")]
    NotJson(String),
    /// JSON, but not an object.
    #[error("expected a JSON object, found {0}")]
    NotAnObject(&'static str),
    /// Deeper than [`MAX_DEPTH`].
    #[error("nested deeper than {MAX_DEPTH} levels at offset {offset}")]
    TooDeep {
        /// Offset of the bracket that is one too many.
        offset: usize,
    },
    /// A field that must be there.
    #[error("missing member `{0}`")]
    Missing(&'static str),
    /// An integer that would not arrive as it was sent.
    #[error(
        "the integer {0} has more than 64 bits, and its last digits would be lost; send it as a string, or with an exponent if it may be rounded"
    )]
    LargeInteger(String),
}

impl From<serde_json::Error> for ParseError {
    fn from(error: serde_json::Error) -> Self {
        Self::NotJson(error.to_string())
    }
}

/// Parses a text into an object, refusing duplicate fields at every level and nesting over [`MAX_DEPTH`].
///
/// # Errors
///
/// If the text is not UTF-8, not JSON, not an object, too deep, or names a field twice.
pub fn parse_object(bytes: &[u8]) -> Result<Map<String, Value>, ParseError> {
    let text = checked_text(bytes)?;
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let value = Strict.deserialize(&mut deserializer)?;
    deserializer.end()?;
    match value {
        Value::Object(fields) => Ok(fields),
        other => Err(ParseError::NotAnObject(kind_of(&other))),
    }
}

/// Parses the arguments of a call like [`parse_object`], and refuses integers that would be rounded.
///
/// # Errors
///
/// Those of [`parse_object`], and [`ParseError::LargeInteger`].
pub fn parse_arguments(text: &str) -> Result<Map<String, Value>, ParseError> {
    let fields = parse_object(text.as_bytes())?;
    match large_integers(text).next() {
        Some(integer) => Err(ParseError::LargeInteger(quoted(integer))),
        None => Ok(fields),
    }
}

/// A JSON object or array in which integers that 64 bits cannot hold are strings of their digits: a [`Value`] would have
/// them rounded.
#[must_use]
pub fn with_large_integers_as_strings(json: &str) -> Cow<'_, str> {
    let (mut written, mut rest) = (String::new(), json);
    while let Some((before, integer, behind)) = split_at_large_integer(rest) {
        written.extend([before, "\"", integer, "\""]);
        rest = behind;
    }
    if written.is_empty() { Cow::Borrowed(json) } else { Cow::Owned(written + rest) }
}

/// The integers of a JSON object or array that 64 bits cannot hold, as they are written there.
pub fn large_integers(json: &str) -> impl Iterator<Item = &str> {
    let mut rest = json;
    std::iter::from_fn(move || {
        let (_, integer, behind) = split_at_large_integer(rest)?;
        rest = behind;
        Some(integer)
    })
}

/// The text before the first large integer, that integer, and the text behind it.
fn split_at_large_integer(json: &str) -> Option<(&str, &str, &str)> {
    let (mut in_string, mut escaped, mut start) = (false, false, None);
    for (at, byte) in json.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            _ if in_string => {}
            b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E' => start = start.or(Some(at)),
            _ => {
                let Some(start) = start.take() else { continue };
                let (before, number, behind) = (json.get(..start)?, json.get(start..at)?, json.get(at..)?);
                if is_large(number) {
                    return Some((before, number, behind));
                }
            }
        }
    }
    None
}

fn is_large(number: &str) -> bool {
    let digits = number.strip_prefix('-').unwrap_or(number);
    digits.bytes().all(|byte| byte.is_ascii_digit())
        && digits.starts_with(|first| first != '0')
        && number.parse::<i64>().is_err()
        && number.parse::<u64>().is_err()
}

/// The text, once it is known to be UTF-8 and not too deep to parse; without the byte order mark that .NET writes.
pub(crate) fn checked_text(bytes: &[u8]) -> Result<&str, ParseError> {
    if bytes.starts_with(&GZIP) {
        return Err(ParseError::Compressed);
    }
    let text = std::str::from_utf8(bytes).map_err(|error| ParseError::NotUtf8 { offset: error.valid_up_to() })?;
    check_depth(bytes)?;
    Ok(text.strip_prefix('\u{feff}').unwrap_or(text))
}

/// Counts brackets outside strings, without matching them.
fn check_depth(bytes: &[u8]) -> Result<(), ParseError> {
    let (mut depth, mut in_string, mut escaped) = (0_usize, false, false);
    for (offset, byte) in bytes.iter().enumerate() {
        if in_string {
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => in_string = false,
                _ => {}
            }
            continue;
        }
        match byte {
            b'"' => in_string = true,
            b'{' | b'[' => {
                depth += 1;
                if depth > MAX_DEPTH {
                    return Err(ParseError::TooDeep { offset });
                }
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    Ok(())
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// Reads any JSON value; an object that names a field twice is an error.
struct Strict;

impl<'de> DeserializeSeed<'de> for Strict {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Value, A::Error> {
        let mut array = Vec::new();
        while let Some(element) = elements.next_element_seed(Strict)? {
            array.push(element);
        }
        Ok(Value::Array(array))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(name) = fields.next_key::<String>()? {
            if object.contains_key(&name) {
                return Err(A::Error::custom(format_args!("duplicate member {}", quoted(&name))));
            }
            let value = fields.next_value_seed(Strict)?;
            object.insert(name, value);
        }
        Ok(Value::Object(object))
    }
}

/// A field's name as it may be shown: short, and without control characters.
pub(crate) fn quoted(name: &str) -> String {
    let shown: String = name.chars().take(64).flat_map(char::escape_debug).collect();
    let ellipsis = if name.chars().nth(64).is_some() { "…" } else { "" };
    format!("`{shown}{ellipsis}`")
}
