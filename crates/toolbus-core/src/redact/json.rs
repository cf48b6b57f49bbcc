//! Secrets within JSON: nothing but strings is changed.

use serde_json::{Map, Value};

use super::matcher::Matcher;

/// Removes secrets from every string of a value, the names of fields included.
pub(super) fn clean(matcher: &Matcher, value: &mut Value) {
    match value {
        Value::String(text) => drop(matcher.clean(text)),
        Value::Array(elements) => elements.iter_mut().for_each(|element| clean(matcher, element)),
        Value::Object(fields) => {
            if fields.keys().any(|name| matcher.finds(name.as_bytes())) {
                let renamed = |(mut name, value): (String, Value)| {
                    matcher.clean(&mut name);
                    (name, value)
                };
                *fields = std::mem::take(fields).into_iter().map(renamed).collect::<Map<_, _>>();
            }
            fields.values_mut().for_each(|value| clean(matcher, value));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// A JSON text without secrets; nothing when it has none. What is no JSON is treated as a text.
pub(super) fn replaced(matcher: &Matcher, text: &[u8]) -> Option<Vec<u8>> {
    // Of the forms some are as JSON escapes them, so that one look at all of it is enough.
    if !matcher.finds(text) {
        return None;
    }
    let (mut clean, mut rest, mut is_changed) = (Vec::with_capacity(text.len()), text, false);
    while let Some(quote) = rest.iter().position(|byte| *byte == b'"') {
        let (outside, from_quote) = rest.split_at_checked(quote)?;
        let Some(length) = string_length(from_quote) else { return matcher.replaced(text) };
        let (string, behind) = from_quote.split_at_checked(length)?;
        clean.extend_from_slice(outside);
        match cleaned_string(matcher, string) {
            Some(cleaned) => {
                is_changed = true;
                clean.extend_from_slice(&cleaned);
            }
            None => clean.extend_from_slice(string),
        }
        rest = behind;
    }
    clean.extend_from_slice(rest);
    is_changed.then_some(clean)
}

/// Bytes of the string at the beginning, both quotes included.
fn string_length(text: &[u8]) -> Option<usize> {
    let mut is_escaped = false;
    let inside = text.iter().skip(1).position(|byte| {
        let is_end = *byte == b'"' && !is_escaped;
        is_escaped = !is_escaped && *byte == b'\\';
        is_end
    })?;
    Some(inside + 2)
}

fn cleaned_string(matcher: &Matcher, string: &[u8]) -> Option<Vec<u8>> {
    let mut text: String = match serde_json::from_slice(string) {
        Ok(text) => text,
        Err(_) => return matcher.replaced(string),
    };
    matcher.clean(&mut text).then(|| serde_json::to_vec(&text).unwrap_or_default())
}
