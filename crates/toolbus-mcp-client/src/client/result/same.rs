//! Whether a result's content already says what its structured content says.

use serde_json::Value;
use toolbus_protocol::ContentBlock;

use super::block;

/// Whether `value` adds nothing to `texts`.
///
/// MCP asks servers to repeat structured content as JSON text. The common Python SDK wraps what is no object as
/// `{"result": …}`, writes strings as they are, and each item of a list as a text of its own. Servers of the reference
/// wrap their text as `{"content": …}`.
pub(super) fn is_said(texts: &[&str], value: &Value) -> bool {
    let is_wrapped = |name| unwrapped(value, name).is_some_and(|inner| repeats(texts, inner));
    repeats(texts, value) || is_wrapped("result") || is_wrapped("content")
}

/// Whether `value` is all the content once more, as servers of the reference have it for images and sound.
pub(super) fn is_content(blocks: &[ContentBlock], value: &Value) -> bool {
    let Some(Value::Array(items)) = unwrapped(value, "content") else { return false };
    !items.is_empty()
        && items.len() == blocks.len()
        && items.iter().zip(blocks).all(|(item, said)| block::from_value(item) == *said)
}

/// The only member of an object, if it has this name.
fn unwrapped<'a>(value: &'a Value, name: &str) -> Option<&'a Value> {
    value.as_object().filter(|members| members.len() == 1)?.get(name)
}

fn repeats(texts: &[&str], value: &Value) -> bool {
    if texts.iter().any(|text| is_text_of(text, value)) {
        return true;
    }
    match value {
        Value::Array(items) => {
            items.len() == texts.len() && texts.iter().zip(items).all(|(text, item)| is_text_of(text, item))
        }
        Value::Object(members) if !members.is_empty() => {
            let json = value.to_string();
            texts.iter().any(|text| text.contains(&json))
        }
        _ => false,
    }
}

fn is_text_of(text: &str, value: &Value) -> bool {
    let first = text.trim_start().bytes().next();
    // A text of another kind is not worth parsing.
    let may_be = match value {
        Value::String(string) => {
            return text == string || serde_json::from_str::<String>(text).is_ok_and(|t| t == *string);
        }
        Value::Object(_) => first == Some(b'{'),
        Value::Array(_) => first == Some(b'['),
        Value::Null | Value::Bool(_) | Value::Number(_) => first.is_some(),
    };
    may_be && serde_json::from_str::<Value>(text).is_ok_and(|parsed| parsed == *value)
}
