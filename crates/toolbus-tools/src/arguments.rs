//! Reading arguments that a schema has already checked.
//!
//! The checks here are for callers that run a tool without its schema; they return an error instead of guessing.

use serde_json::{Map, Value};
use toolbus_core::failure::ToolFailure;

/// The text of argument `name`.
pub(crate) fn text<'a>(arguments: &'a Map<String, Value>, name: &str) -> Result<&'a str, ToolFailure> {
    optional_text(arguments, name)?
        .ok_or_else(|| ToolFailure::invalid(format!("Argument `{name}` is missing. It must be a string.")))
}

/// The text of argument `name`; absent and null are the same.
pub(crate) fn optional_text<'a>(arguments: &'a Map<String, Value>, name: &str) -> Result<Option<&'a str>, ToolFailure> {
    match arguments.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(ToolFailure::invalid(format!("Argument `{name}` must be a string."))),
    }
}

/// Returns a text of the caller as it may be repeated in a message: short, and without control characters.
pub(crate) fn shown(text: &str) -> String {
    format!("`{}`", toolbus_core::text::shown(text))
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use toolbus_core::failure::Cause;

    use super::{optional_text, shown, text};

    #[test]
    fn a_missing_or_wrong_argument_is_named() {
        let arguments = json!({"n": 1, "nothing": null});
        let arguments = arguments.as_object().unwrap();
        for (name, expected) in [("absent", "is missing"), ("nothing", "is missing"), ("n", "must be a string")] {
            let failure = text(arguments, name).unwrap_err();
            assert_eq!(failure.cause, Cause::InvalidArguments);
            assert!(failure.message.contains(name) && failure.message.contains(expected), "{}", failure.message);
        }
        assert_eq!(optional_text(arguments, "nothing").unwrap(), None);
    }

    #[test]
    fn arguments_of_the_caller_are_shown_short_and_escaped() {
        assert_eq!(shown("a\nb"), r"`a\nb`");
        assert_eq!(shown(&"x".repeat(100)).chars().count(), 64 + 3);
    }
}
