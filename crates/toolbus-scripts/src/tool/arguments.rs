//! Reads the arguments of a call: accepts other spellings of what is unambiguous, refuses the rest with a message.

use std::time::Duration;

use serde_json::{Map, Value};
use toolbus_core::failure::{Cause, ToolFailure};
use toolbus_core::text::shown;

use super::Settings;
use crate::requirement::Requirement;

/// The names of the arguments.
pub(super) const SCRIPT: &str = "script";
pub(super) const INPUT_DATA: &str = "input_data";
pub(super) const TIMEOUT_SECONDS: &str = "timeout_seconds";
pub(super) const PIP_PACKAGES: &str = "pip_packages";
const NAMES: [&str; 4] = [SCRIPT, INPUT_DATA, TIMEOUT_SECONDS, PIP_PACKAGES];

/// The arguments of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ScriptArguments {
    pub(super) script: String,
    pub(super) input: Option<String>,
    pub(super) time: Duration,
    pub(super) packages: Vec<Requirement>,
}

impl ScriptArguments {
    /// Reads the arguments. What is `null` is not given.
    pub(super) fn read(arguments: &Map<String, Value>, settings: &Settings) -> Result<Self, ToolFailure> {
        if let Some(name) = arguments.keys().find(|name| !NAMES.contains(&name.as_str())) {
            return Err(invalid(format!("There is no argument `{}`. There are: {}.", shown(name), NAMES.join(", "))));
        }
        let given = |name| arguments.get(name).filter(|value| !value.is_null());
        let script = match given(SCRIPT) {
            Some(Value::String(script)) => script.clone(),
            Some(_) => return Err(invalid("Argument `script` must be a string: the text of the program.")),
            // Peers know these words.
            None => return Err(invalid("Missing 'script' argument")),
        };
        let asked = packages(given(PIP_PACKAGES))?;
        let asked = Requirement::parse_all(&asked).map_err(|error| invalid(sentence(&error.to_string())))?;
        let packages = settings.packages.admit(&asked);
        let packages = packages.map_err(|error| ToolFailure::new(Cause::NotAllowed, sentence(&error.to_string())))?;
        Ok(Self { script, input: given(INPUT_DATA).map(text), time: time(given(TIMEOUT_SECONDS), settings)?, packages })
    }
}

/// A text as it is, and anything else as JSON.
fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned)
}

/// A whole number, also one in a string, brought within what is allowed.
fn time(value: Option<&Value>, settings: &Settings) -> Result<Duration, ToolFailure> {
    let Some(value) = value else { return Ok(settings.timeout.min(settings.max_timeout)) };
    let seconds = match value {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => text.trim().parse::<f64>().ok(),
        _ => None,
    };
    let whole = seconds.filter(|seconds| seconds.is_finite() && seconds.fract() == 0.0);
    let whole = whole.ok_or_else(|| invalid("Argument `timeout_seconds` must be a whole number of seconds."))?;
    let most = settings.max_timeout;
    Ok(Duration::try_from_secs_f64(whole.max(1.0)).unwrap_or(most).min(most))
}

fn packages(value: Option<&Value>) -> Result<Vec<String>, ToolFailure> {
    let refused = || {
        invalid(
            "Argument `pip_packages` must be an array of strings, such as [\"requests\", \"numpy==2.1.0\"], or a string \
             that holds such an array as JSON.",
        )
    };
    let items = match value {
        None => return Ok(Vec::new()),
        Some(Value::Array(items)) => items.clone(),
        Some(Value::String(text)) if text.trim().is_empty() => return Ok(Vec::new()),
        Some(Value::String(text)) => serde_json::from_str(text).map_err(|_| refused())?,
        Some(_) => return Err(refused()),
    };
    let texts = items.into_iter().map(|item| match item {
        Value::String(text) => Ok(text),
        _ => Err(refused()),
    });
    texts.collect()
}

fn invalid(message: impl Into<String>) -> ToolFailure {
    ToolFailure::new(Cause::InvalidArguments, message)
}

/// A text of an error as a sentence.
pub(super) fn sentence(text: &str) -> String {
    let mut chars = text.chars();
    let first = chars.next().map(|first| first.to_uppercase().collect::<String>()).unwrap_or_default();
    let end = if text.ends_with(['.', '!', '?']) { "" } else { "." };
    format!("{first}{}{end}", chars.as_str())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::tool::tests::settings;

    fn read(arguments: &Value) -> Result<ScriptArguments, ToolFailure> {
        ScriptArguments::read(arguments.as_object().unwrap(), &settings())
    }

    fn with(name: &str, value: &Value) -> Result<ScriptArguments, ToolFailure> {
        read(&json!({"script": "pass", name: value}))
    }

    #[test]
    fn a_script_alone_gets_the_defaults() {
        for arguments in [
            json!({"script": "pass"}),
            json!({"script": "pass", "input_data": null, "timeout_seconds": null, "pip_packages": null}),
        ] {
            let ScriptArguments { script, input, time, packages } = read(&arguments).unwrap();
            assert_eq!((&*script, input, time, packages), ("pass", None, Duration::from_secs(30), Vec::new()));
        }
    }

    #[test]
    fn a_time_is_a_whole_number_brought_within_bounds() {
        let table = [
            (json!(5), 5),
            (json!("5"), 5),
            (json!(" 5 "), 5),
            (json!(5.0), 5),
            (json!(1), 1),
            (json!(0), 1),
            (json!(-7), 1),
            (json!("-7"), 1),
            (json!(300), 300),
            (json!(301), 300),
            (json!("99999999999999999999999"), 300),
            (json!(u64::MAX), 300),
            (json!(i64::MIN), 1),
        ];
        for (value, seconds) in table {
            assert_eq!(with("timeout_seconds", &value).unwrap().time, Duration::from_secs(seconds), "{value}");
        }
    }

    #[test]
    fn what_is_no_whole_number_is_no_time() {
        for value in
            [json!(1.5), json!("1.5"), json!("soon"), json!(""), json!("inf"), json!("NaN"), json!(true), json!([5])]
        {
            let failure = with("timeout_seconds", &value).unwrap_err();
            assert_eq!(failure.cause, Cause::InvalidArguments, "{value}");
            assert_eq!(failure.message, "Argument `timeout_seconds` must be a whole number of seconds.", "{value}");
        }
    }

    #[test]
    fn an_input_is_its_text_and_what_is_no_text_is_json() {
        let table = [
            (json!("as it is"), "as it is"),
            (json!(""), ""),
            (json!({"n": [1, "ä"]}), r#"{"n":[1,"ä"]}"#),
            (json!(7), "7"),
        ];
        for (value, expected) in table {
            assert_eq!(with("input_data", &value).unwrap().input.as_deref(), Some(expected));
        }
    }

    #[test]
    fn packages_are_an_array_or_a_string_that_holds_one() {
        let table = [
            (json!(["Requests", "numpy==2.1.0"]), vec!["numpy==2.1.0", "requests"]),
            (json!(r#"["requests"]"#), vec!["requests"]),
            (json!([]), vec![]),
            (json!("[]"), vec![]),
            (json!(" "), vec![]),
        ];
        for (value, expected) in table {
            let packages = with("pip_packages", &value).unwrap().packages;
            assert_eq!(packages.iter().map(Requirement::as_str).collect::<Vec<_>>(), expected, "{value}");
        }
    }

    #[test]
    fn what_is_no_list_of_packages_is_refused_with_an_example() {
        for value in [
            json!("requests"),
            json!("requests numpy"),
            json!([1]),
            json!("[1]"),
            json!({"requests": "1"}),
            json!("null"),
        ] {
            let failure = with("pip_packages", &value).unwrap_err();
            assert_eq!(failure.cause, Cause::InvalidArguments, "{value}");
            assert!(failure.message.contains(r#"["requests", "numpy==2.1.0"]"#), "{}", failure.message);
        }
    }

    #[test]
    fn refusals_say_what_to_do() {
        let refused = |arguments: Value| {
            let failure = read(&arguments).unwrap_err();
            format!("{:?}: {}", failure.cause, failure.message)
        };
        let pip = |package: &str| refused(json!({"script": "", "pip_packages": [package]}));
        insta::assert_snapshot!(refused(json!({})), @"InvalidArguments: Missing 'script' argument");
        insta::assert_snapshot!(refused(json!({"script": null})), @"InvalidArguments: Missing 'script' argument");
        insta::assert_snapshot!(refused(json!({"script": ["pass"]})), @"InvalidArguments: Argument `script` must be a string: the text of the program.");
        insta::assert_snapshot!(refused(json!({"script": "", "timeout": 5})), @"InvalidArguments: There is no argument `timeout`. There are: script, input_data, timeout_seconds, pip_packages.");
        insta::assert_snapshot!(pip("--index-url"), @"InvalidArguments: Package `--index-url` is an option of pip; give names and versions of packages alone.");
        insta::assert_snapshot!(pip("evil"), @"NotAllowed: Package 'evil' is not allowed here; allowed are: numpy, requests.");
    }
}
