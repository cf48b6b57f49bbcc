//! Reads the arguments of a call: accepts other spellings of what is unambiguous, refuses the rest with a message.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde_json::{Map, Value};
use toolbus_core::failure::{Cause, ToolFailure};
use toolbus_core::text::shown;
use toolbus_sandbox::Limits;

use super::Settings;
use crate::requirement::Requirement;
use crate::text::size;

/// The names of the arguments.
pub(super) const SCRIPT: &str = "script";
pub(super) const INPUT_DATA: &str = "input_data";
pub(super) const INPUT_FILES: &str = "input_files";
pub(super) const TIMEOUT_SECONDS: &str = "timeout_seconds";
pub(super) const PIP_PACKAGES: &str = "pip_packages";
pub(super) const SESSION: &str = "session";
pub(super) const INPUT_KEYS: &str = "input_keys";
pub(super) const OUTPUT_KEYS: &str = "output_keys";
const NAMES: [&str; 4] = [SCRIPT, INPUT_DATA, INPUT_FILES, TIMEOUT_SECONDS];
/// Further arguments of scripts in Python.
const OF_PYTHON: [&str; 2] = [PIP_PACKAGES, SESSION];
/// Further arguments with working memory.
const KEYS: [&str; 2] = [INPUT_KEYS, OUTPUT_KEYS];
/// Fence of code in Markdown.
const FENCE: &str = "```";
/// Most files that one script is given.
pub(super) const MAX_FILES: usize = 64;
/// Longest name of one, in bytes.
pub(super) const MAX_NAME: usize = 200;
/// The key of a file that is not text.
const BASE64: &str = "base64";

/// The arguments of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ScriptArguments {
    pub(super) script: String,
    pub(super) input: Option<String>,
    pub(super) files: Vec<(String, Bytes)>,
    pub(super) time: Duration,
    pub(super) packages: Vec<Requirement>,
    /// Whether the script runs in the interpreter of the caller's session.
    pub(super) session: bool,
    /// Entries of working memory that are files of the script.
    pub(super) input_keys: Vec<String>,
    /// Entries of working memory that files of the script become.
    pub(super) output_keys: Vec<String>,
}

impl ScriptArguments {
    /// Reads the arguments. What is `null` is not given.
    pub(super) fn read(arguments: &Map<String, Value>, settings: &Settings) -> Result<Self, ToolFailure> {
        let of_memory: &[&str] = if settings.memory.is_some() { &KEYS } else { &[] };
        let of_python: &[&str] = if settings.language.is_none() { &OF_PYTHON } else { &[] };
        let names = [&NAMES[..], of_python, of_memory].concat();
        if let Some(name) = arguments.keys().find(|name| !names.contains(&name.as_str())) {
            return Err(ToolFailure::invalid(format!(
                "There is no argument `{}`. There are: {}.",
                shown(name),
                names.join(", ")
            )));
        }
        let given = |name| arguments.get(name).filter(|value| !value.is_null());
        let script = match given(SCRIPT) {
            Some(Value::String(script)) => without_fence(script).to_owned(),
            Some(_) => {
                return Err(ToolFailure::invalid("Argument `script` must be a string: the text of the program."));
            }
            // Peers know these words.
            None => return Err(ToolFailure::invalid("Missing 'script' argument")),
        };
        let requested = packages(given(PIP_PACKAGES))?;
        let requested =
            Requirement::parse_all(&requested).map_err(|error| ToolFailure::invalid(sentence(&error.to_string())))?;
        let packages = settings.packages.admit(&requested);
        let packages = packages.map_err(|error| ToolFailure::new(Cause::NotAllowed, sentence(&error.to_string())))?;
        Ok(Self {
            script,
            input: given(INPUT_DATA).map(text),
            files: files(given(INPUT_FILES), settings)?,
            time: time(given(TIMEOUT_SECONDS), settings)?,
            packages,
            session: flag(given(SESSION))?,
            input_keys: keys(given(INPUT_KEYS), INPUT_KEYS)?,
            output_keys: keys(given(OUTPUT_KEYS), OUTPUT_KEYS)?,
        })
    }
}

/// A script without the fence of Markdown around it, in which a model may have put it.
fn without_fence(script: &str) -> &str {
    let fenced = script.trim().strip_prefix(FENCE).and_then(|rest| rest.strip_suffix(FENCE)?.split_once('\n'));
    match fenced {
        Some((language, code)) if !language.contains('`') && code.ends_with('\n') => code,
        _ => script,
    }
}

/// A truth value, also one in a string.
fn flag(value: Option<&Value>) -> Result<bool, ToolFailure> {
    match value {
        None => Ok(false),
        Some(Value::Bool(is_set)) => Ok(*is_set),
        Some(Value::String(text)) if text.trim().is_empty() => Ok(false),
        Some(Value::String(text)) if text.trim().eq_ignore_ascii_case("true") => Ok(true),
        Some(Value::String(text)) if text.trim().eq_ignore_ascii_case("false") => Ok(false),
        Some(_) => Err(ToolFailure::invalid("Argument `session` must be true or false.")),
    }
}

/// A text as it is, and anything else as JSON.
fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned)
}

/// Files by name, from an object of texts and of bytes in Base64, also in a string.
fn files(value: Option<&Value>, settings: &Settings) -> Result<Vec<(String, Bytes)>, ToolFailure> {
    let parsed = match value {
        None => return Ok(Vec::new()),
        Some(Value::String(text)) if text.trim().is_empty() => return Ok(Vec::new()),
        Some(Value::String(text)) => serde_json::from_str(text).ok(),
        Some(value) => Some(value.clone()),
    };
    let Some(Value::Object(given)) = parsed else {
        let example = r#"{"data.csv": "a,b\n1,2\n", "logo.png": {"base64": "iVBORw0K…"}}"#;
        return Err(ToolFailure::invalid(format!(
            "Argument `input_files` must be an object of files by name, such as {example}."
        )));
    };
    if given.len() > MAX_FILES {
        return Err(ToolFailure::invalid(format!("Argument `input_files` has more than {MAX_FILES} files.")));
    }
    let files = given.into_iter().map(|(name, content)| match content {
        _ if !is_name(&name) => Err(ToolFailure::invalid(format!(
            "`{}` in `input_files` is no name of a file: give one without folders, of at most {MAX_NAME} bytes.",
            shown(&name)
        ))),
        Value::String(text) => Ok((name, text.into())),
        Value::Object(encoded) if encoded.len() == 1 && encoded.contains_key(BASE64) => {
            let bytes = encoded.get(BASE64).and_then(Value::as_str).and_then(|text| STANDARD.decode(text.trim()).ok());
            let bytes = bytes.ok_or_else(|| {
                ToolFailure::invalid(format!("`{}` in `input_files` is not in Base64.", shown(&name)))
            })?;
            Ok((name, bytes.into()))
        }
        content => Ok((name, content.to_string().into())),
    });
    let files: Vec<(String, Bytes)> = files.collect::<Result<_, _>>()?;
    let most = max_input(&settings.limits);
    if total(&files) > most {
        return Err(ToolFailure::invalid(format!("Files in `input_files` may have {} together.", size(most))));
    }
    Ok(files)
}

/// Most bytes of the files that a script is given, which leaves room for what it writes.
pub(super) fn max_input(limits: &Limits) -> u64 {
    (limits.disk / 2).min(limits.file_size)
}

/// Bytes of files.
pub(super) fn total(files: &[(String, Bytes)]) -> u64 {
    files.iter().map(|(_, bytes)| bytes.len() as u64).sum()
}

pub(super) fn is_name(name: &str) -> bool {
    !matches!(name, "" | "." | "..")
        && name.len() <= MAX_NAME
        && !name.contains(['/', '\\'])
        && !name.chars().any(char::is_control)
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
    let whole =
        whole.ok_or_else(|| ToolFailure::invalid("Argument `timeout_seconds` must be a whole number of seconds."))?;
    let most = settings.max_timeout;
    Ok(Duration::try_from_secs_f64(whole.max(1.0)).unwrap_or(most).min(most))
}

fn packages(value: Option<&Value>) -> Result<Vec<String>, ToolFailure> {
    let refused = || {
        ToolFailure::invalid(
            "Argument `pip_packages` must be an array of strings, such as [\"requests\", \"numpy==2.1.0\"], or a string \
             that holds such an array as JSON.",
        )
    };
    strings(value, refused)
}

/// Keys of working memory.
fn keys(value: Option<&Value>, argument: &str) -> Result<Vec<String>, ToolFailure> {
    let refused = || {
        ToolFailure::invalid(format!(
            "Argument `{argument}` must be an array of keys of working memory, such as [\"plan\", \"report.csv\"], or a \
             string that holds such an array as JSON."
        ))
    };
    let keys = strings(value, refused)?;
    if keys.len() > MAX_FILES {
        return Err(ToolFailure::invalid(format!("Argument `{argument}` has more than {MAX_FILES} keys.")));
    }
    Ok(keys)
}

/// An array of strings, or a string that holds one as JSON.
fn strings(value: Option<&Value>, refused: impl Fn() -> ToolFailure) -> Result<Vec<String>, ToolFailure> {
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
            json!({"script": "pass", "input_data": null, "input_files": null, "timeout_seconds": null, "pip_packages": null, "session": null}),
        ] {
            let expected = ScriptArguments {
                script: "pass".to_owned(),
                input: None,
                files: Vec::new(),
                time: Duration::from_secs(30),
                packages: Vec::new(),
                session: false,
                input_keys: Vec::new(),
                output_keys: Vec::new(),
            };
            assert_eq!(read(&arguments).unwrap(), expected);
        }
    }

    #[test]
    fn a_session_is_true_or_false_also_in_a_string() {
        for (given, expected) in
            [(json!(true), true), (json!("True"), true), (json!("false"), false), (json!(""), false)]
        {
            assert_eq!(with(SESSION, &given).unwrap().session, expected, "{given}");
        }
        for given in [json!(1), json!("yes"), json!("s-1"), json!([])] {
            insta::allow_duplicates! {
                insta::assert_snapshot!(with(SESSION, &given).unwrap_err().message, @"Argument `session` must be true or false.");
            }
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
    fn a_time_that_is_no_whole_number_is_refused() {
        for value in
            [json!(1.5), json!("1.5"), json!("soon"), json!(""), json!("inf"), json!("NaN"), json!(true), json!([5])]
        {
            let failure = with("timeout_seconds", &value).unwrap_err();
            assert_eq!(failure.cause, Cause::InvalidArguments, "{value}");
            assert_eq!(failure.message, "Argument `timeout_seconds` must be a whole number of seconds.", "{value}");
        }
    }

    #[test]
    fn an_input_is_its_text_or_else_json() {
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
    fn the_fence_of_markdown_around_a_script_is_taken_off() {
        for (given, expected) in [
            ("```python\nprint(1)\n```", "print(1)\n"),
            ("\n```\nprint(1)\n```\n", "print(1)\n"),
            ("text = \"\n```\n\"", "text = \"\n```\n\""),
            ("```python\nprint(1)", "```python\nprint(1)"),
        ] {
            assert_eq!(read(&json!({"script": given})).unwrap().script, expected);
        }
    }

    #[test]
    fn files_are_texts_bytes_in_base64_and_json() {
        let files = json!({"a.csv": "a,b\n", "b.bin": {"base64": "AP8="}, "c.json": {"n": [1]}, "d.json": 7});
        for given in [files.clone(), json!(files.to_string())] {
            let files = with("input_files", &given).unwrap().files;
            let files: Vec<(&str, &[u8])> = files.iter().map(|(name, bytes)| (name.as_str(), &bytes[..])).collect();
            let expected: [(&str, &[u8]); 4] =
                [("a.csv", b"a,b\n"), ("b.bin", b"\0\xff"), ("c.json", b"{\"n\":[1]}"), ("d.json", b"7")];
            assert_eq!(files, expected);
        }
        for nothing in [json!({}), json!(" "), json!("{}")] {
            assert_eq!(with("input_files", &nothing).unwrap().files, []);
        }
    }

    #[test]
    fn invalid_files_are_refused_with_advice() {
        let refused = |files: Value| {
            let failure = with("input_files", &files).unwrap_err();
            assert_eq!(failure.cause, Cause::InvalidArguments);
            failure.message
        };
        for name in ["", ".", "..", "a/b", "/etc/passwd", "a\\b", "a\nb", &"n".repeat(201)] {
            assert!(refused(json!({name: "x"})).contains("is no name of a file"), "{name}");
        }
        let many: Map<String, Value> = (0..65).map(|number| (number.to_string(), json!(""))).collect();
        let large = "x".repeat(33 << 20);
        insta::assert_snapshot!(refused(json!({"a/b": ""})), @"`a/b` in `input_files` is no name of a file: give one without folders, of at most 200 bytes.");
        insta::assert_snapshot!(refused(json!(["a.csv"])), @r#"Argument `input_files` must be an object of files by name, such as {"data.csv": "a,b\n1,2\n", "logo.png": {"base64": "iVBORw0K…"}}."#);
        insta::assert_snapshot!(refused(json!("a.csv")), @r#"Argument `input_files` must be an object of files by name, such as {"data.csv": "a,b\n1,2\n", "logo.png": {"base64": "iVBORw0K…"}}."#);
        insta::assert_snapshot!(refused(json!({"a": {"base64": "?"}})), @"`a` in `input_files` is not in Base64.");
        insta::assert_snapshot!(refused(many.into()), @"Argument `input_files` has more than 64 files.");
        insta::assert_snapshot!(refused(json!({"a": large})), @"Files in `input_files` may have 32 MiB together.");
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
    fn a_value_that_is_no_list_of_packages_is_refused_with_an_example() {
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
    fn refusals_have_advice() {
        let refused = |arguments: Value| {
            let failure = read(&arguments).unwrap_err();
            format!("{:?}: {}", failure.cause, failure.message)
        };
        let pip = |package: &str| refused(json!({"script": "", "pip_packages": [package]}));
        insta::assert_snapshot!(refused(json!({})), @"InvalidArguments: Missing 'script' argument");
        insta::assert_snapshot!(refused(json!({"script": null})), @"InvalidArguments: Missing 'script' argument");
        insta::assert_snapshot!(refused(json!({"script": ["pass"]})), @"InvalidArguments: Argument `script` must be a string: the text of the program.");
        insta::assert_snapshot!(refused(json!({"script": "", "timeout": 5})), @"InvalidArguments: There is no argument `timeout`. There are: script, input_data, input_files, timeout_seconds, pip_packages, session.");
        insta::assert_snapshot!(pip("--index-url"), @"InvalidArguments: Package `--index-url` is an option of pip; give names and versions of packages alone.");
        insta::assert_snapshot!(pip("evil"), @"NotAllowed: Package 'evil' is not allowed here; allowed are: numpy, requests.");
    }
}
