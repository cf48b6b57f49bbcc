//! Whether a result's text already says what its structured content says.

use serde_json::Value;

/// Whether `value` adds nothing to `texts`.
///
/// MCP asks servers to repeat structured content as JSON text. The common Python SDK wraps what is no object as
/// `{"result": …}`, writes strings as they are, and each item of a list as a text of its own.
pub(super) fn is_said(texts: &[&str], value: &Value) -> bool {
    repeats(texts, value) || unwrapped(value).is_some_and(|inner| repeats(texts, inner))
}

fn unwrapped(value: &Value) -> Option<&Value> {
    value.as_object().filter(|members| members.len() == 1)?.get("result")
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
