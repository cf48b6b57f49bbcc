//! Reading the arguments of management tools, which models give under several names.

use serde_json::{Map, Value};
use toolbus_core::failure::ToolFailure;
use toolbus_core::text::shown;

/// The names of a parameter: that of the schema, then its aliases.
pub(super) type Names = &'static [&'static str];

/// The server that is meant.
pub(super) const SERVER: Names = &["server_name", "name"];
/// The tool within the server.
pub(super) const TOOL: Names = &["tool_name"];
/// Arguments of the tool, or of the program.
pub(super) const ARGUMENTS: Names = &["arguments", "args", "params"];

/// The arguments of a call; null counts as absent.
#[derive(Clone, Copy)]
pub(super) struct Args<'a>(pub(super) &'a Map<String, Value>);

impl<'a> Args<'a> {
    /// The value of a parameter. Under two names it must be the same.
    pub(super) fn value(self, names: Names) -> Result<Option<&'a Value>, ToolFailure> {
        let mut args = names.iter().filter_map(|name| Some((*name, self.0.get(*name).filter(|it| !it.is_null())?)));
        let Some((first, value)) = args.next() else { return Ok(None) };
        match args.find(|(_, other)| *other != value) {
            None => Ok(Some(value)),
            Some((other, _)) => Err(ToolFailure::invalid(format!(
                "Parameters '{first}' and '{other}' mean the same here. Give one of them."
            ))),
        }
    }

    /// The text of a parameter; an empty one counts as absent.
    pub(super) fn text(self, names: Names) -> Result<Option<&'a str>, ToolFailure> {
        match self.value(names)? {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.as_str()).filter(|text| !text.is_empty())),
            Some(_) => Err(ToolFailure::invalid(format!("Parameter '{}' must be a string.", first(names)))),
        }
    }

    /// The text of a parameter that must be args.
    pub(super) fn required(self, names: Names) -> Result<&'a str, ToolFailure> {
        self.text(names)?.ok_or_else(|| ToolFailure::invalid(format!("Missing required parameter: {}", first(names))))
    }

    /// Refuses parameters that are none of these: they would be lost without a word. The text ends with what to do.
    pub(super) fn only(self, known: &[Names], advice: &str) -> Result<(), ToolFailure> {
        let is_known = |name: &str| known.iter().any(|names| names.contains(&name));
        let is_empty = |value: &Value| match value {
            Value::Null => true,
            Value::Object(fields) => fields.is_empty(),
            _ => false,
        };
        match self.0.iter().find(|(name, value)| !is_known(name) && !is_empty(value)) {
            None => Ok(()),
            Some((name, _)) => {
                Err(ToolFailure::invalid(format!("Parameter '{}' is none of this tool's. {advice}", shown(name))))
            }
        }
    }
}

fn first(names: Names) -> &'static str {
    names.first().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use toolbus_core::failure::Cause;

    use super::*;

    fn with<T>(arguments: Value, read: impl Fn(Args<'_>) -> Result<T, ToolFailure>) -> Result<T, String> {
        let Value::Object(arguments) = arguments else { panic!("arguments are an object") };
        read(Args(&arguments)).map_err(|failure| {
            assert_eq!(failure.cause, Cause::InvalidArguments);
            failure.message
        })
    }

    fn server(arguments: Value) -> Result<String, String> {
        with(arguments, |args| args.required(SERVER).map(str::to_owned))
    }

    #[test]
    fn a_parameter_is_found_by_any_of_its_names() {
        for arguments in [
            json!({"server_name": "a"}),
            json!({"name": "a"}),
            json!({"server_name": null, "name": "a"}),
            json!({"server_name": "a", "name": "a"}),
        ] {
            assert_eq!(server(arguments), Ok("a".to_owned()));
        }
    }

    #[test]
    fn missing_wrong_and_duplicate_parameters_are_named() {
        let texts = [
            json!({}),
            json!({"server_name": ""}),
            json!({"name": null}),
            json!({"name": 1}),
            json!({"server_name": "a", "name": "b"}),
        ]
        .map(|arguments| server(arguments).unwrap_err());
        insta::assert_snapshot!(texts.join("\n"), @"
        Missing required parameter: server_name
        Missing required parameter: server_name
        Missing required parameter: server_name
        Parameter 'server_name' must be a string.
        Parameters 'server_name' and 'name' mean the same here. Give one of them.
        ");
    }

    #[test]
    fn unknown_parameters_are_refused() {
        let only = |arguments| with(arguments, |args| args.only(&[SERVER], "Leave it out."));
        assert_eq!(only(json!({"name": "a", "env": {}, "cwd": null})), Ok(()));
        insta::assert_snapshot!(only(json!({"pa\nth": 1})).unwrap_err(), @r"Parameter 'pa\nth' is none of this tool's. Leave it out.");
    }
}
