//! The arguments of a call, as they are written on the command line.

use std::fs::File;
use std::io::{self, Read};

use serde_json::{Map, Value};
use toolbus_protocol::{Code, ParseError};

/// Most that is read from standard input or a file, in bytes.
const MAX_INPUT: u64 = 64 * 1024 * 1024;
/// The value that stands for standard input.
const STDIN: &str = "@-";

/// Reason why the arguments cannot be sent.
#[derive(Debug, thiserror::Error)]
pub enum ArgumentsError {
    /// Neither of the forms.
    #[error("`{0}` is neither a JSON object nor key=value")]
    Form(String),
    /// Both forms.
    #[error("give one JSON object or key=value pairs, not both")]
    Mixed,
    /// A key again.
    #[error("`{0}` is given twice; give every key once")]
    Repeated(String),
    /// The file after `=@`.
    #[error("the file `{file}` for `{key}` cannot be read: {error}; if a text is meant: {key}:='{text}'", text = Value::from(format!("@{file}")))]
    File {
        /// The key.
        key: String,
        /// The file.
        file: String,
        /// Why.
        error: io::Error,
    },
    /// Standard input for several keys.
    #[error("standard input can be read once; give `@-` for one key")]
    Again,
    /// The value after `:=`.
    #[error("the value of `{0}` is not JSON: {1}")]
    Value(String, serde_json::Error),
    /// The JSON object.
    #[error("the arguments are not usable: {0}")]
    Object(#[from] ParseError),
    /// Standard input.
    #[error("standard input cannot be read: {0}")]
    Input(#[from] io::Error),
}

/// Reads the arguments; nothing when there are none.
pub(super) fn parse(words: &[String]) -> Result<Option<Map<String, Value>>, ArgumentsError> {
    match words {
        [] => Ok(None),
        [dash] if dash == "-" => Ok(Some(toolbus_protocol::parse_arguments(&text(io::stdin())?)?)),
        [text] if is_object(text) => Ok(Some(toolbus_protocol::parse_arguments(text)?)),
        words if words.iter().any(|word| word == "-" || is_object(word)) => Err(ArgumentsError::Mixed),
        pairs => {
            let mut fields = Map::new();
            if pairs.iter().filter(|pair| pair.split_once('=').is_some_and(|(_, value)| value == STDIN)).count() > 1 {
                return Err(ArgumentsError::Again);
            }
            for pair in pairs {
                let (key, value) = parse_pair(pair, &mut io::stdin())?;
                if fields.insert(key.clone(), value).is_some() {
                    return Err(ArgumentsError::Repeated(key));
                }
            }
            Ok(Some(fields))
        }
    }
}

/// Suggests `KEY:='TEXT'` when the tool wants a string for an argument that was given as a pair and, because it looks
/// like JSON, was sent as JSON.
pub(super) fn hint(words: &[String], code: Code, refusal: &str) -> Option<String> {
    if code != Code::InvalidArguments || words.iter().any(|word| is_object(word)) {
        return None;
    }
    let wants_string = |key: &str| {
        let violations = refusal.split([';', ' ']).skip_while(|word| *word != format!("/{key}:"));
        violations.skip(1).take_while(|word| !word.starts_with('/')).any(|word| word.contains("\"string\""))
    };
    let guessed = words.iter().filter_map(|word| word.split_once('=')).find(|(key, value)| {
        let is_json = || serde_json::from_str(value).is_ok_and(|value: Value| !value.is_string());
        !key.ends_with(':') && wants_string(key) && is_json()
    });
    guessed.map(|(key, value)| {
        let text = Value::from(value);
        format!("`{key}={value}` was sent as JSON; if a text is meant: {key}:='{text}'")
    })
}

/// Everything that is read there, as it stands.
fn text(source: impl Read) -> io::Result<String> {
    let mut bytes = Vec::new();
    // One byte more: a part of a text must not be taken for the whole.
    source.take(MAX_INPUT + 1).read_to_end(&mut bytes)?;
    if u64::try_from(bytes.len()).is_ok_and(|size| size > MAX_INPUT) {
        return Err(io::Error::other(format!("it is larger than {} MiB", MAX_INPUT >> 20)));
    }
    String::from_utf8(bytes).map_err(|_| io::Error::other("it is not text in UTF-8"))
}

fn is_object(word: &str) -> bool {
    word.trim_start().starts_with('{')
}

fn parse_pair(pair: &str, stdin: &mut impl Read) -> Result<(String, Value), ArgumentsError> {
    let (key, value) = pair.split_once('=').ok_or_else(|| ArgumentsError::Form(pair.to_owned()))?;
    match key.strip_suffix(':') {
        Some(key) => match serde_json::from_str(value) {
            Ok(value) => Ok((key.to_owned(), value)),
            Err(error) => Err(ArgumentsError::Value(key.to_owned(), error)),
        },
        None if value == STDIN => Ok((key.to_owned(), Value::from(text(stdin)?))),
        None => {
            if let Some(file) = value.strip_prefix('@') {
                let failed = |error| ArgumentsError::File { key: key.to_owned(), file: file.to_owned(), error };
                return Ok((key.to_owned(), Value::from(File::open(file).and_then(text).map_err(failed)?)));
            }
            let value = serde_json::from_str(value).unwrap_or_else(|_| Value::String(value.to_owned()));
            Ok((key.to_owned(), value))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(ToString::to_string).collect()
    }

    fn parsed(given: &[&str]) -> Value {
        parse(&words(given)).unwrap().map_or(Value::Null, Value::Object)
    }

    #[test]
    fn arguments_are_an_object_or_pairs() {
        assert_eq!(parsed(&[]), Value::Null);
        assert_eq!(parsed(&[r#"{"a": 1}"#]), json!({"a": 1}));
        assert_eq!(
            parsed(&["city=Bogotá", "days=3", "exact=true", "zip:=\"0123\"", "note=a=b", "empty="]),
            json!({"city": "Bogotá", "days": 3, "exact": true, "zip": "0123", "note": "a=b", "empty": ""})
        );
    }

    #[test]
    fn a_text_is_taken_from_a_file_or_from_standard_input_as_it_stands() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "{\"n\": 1}\n").unwrap();
        let at = file.path().display();
        assert_eq!(parsed(&[&format!("script=@{at}"), "n=1"]), json!({"script": "{\"n\": 1}\n", "n": 1}));
        let mut stdin: &[u8] = b"print(1)\n";
        assert_eq!(parse_pair("script=@-", &mut stdin).unwrap(), ("script".to_owned(), json!("print(1)\n")));
        assert_eq!(parsed(&["to:=\"@ana\"", "mail=ana@host"]), json!({"to": "@ana", "mail": "ana@host"}));
    }

    #[test]
    fn a_text_that_is_too_long_is_refused_and_never_cut() {
        let length = usize::try_from(MAX_INPUT).unwrap();
        assert_eq!(text(io::repeat(b'x').take(MAX_INPUT)).unwrap().len(), length);
        assert_eq!(text(io::repeat(b'x')).unwrap_err().to_string(), "it is larger than 64 MiB");
        assert_eq!(text(&b"\xff"[..]).unwrap_err().to_string(), "it is not text in UTF-8");
    }

    #[test]
    fn mistakes_are_reported() {
        let refused = |given: &[&str]| parse(&words(given)).unwrap_err().to_string();
        insta::assert_snapshot!(refused(&["city"]), @"`city` is neither a JSON object nor key=value");
        insta::assert_snapshot!(refused(&["{city"]), @"the arguments are not usable: key must be a string at line 1 column 2");
        insta::assert_snapshot!(refused(&["days:=x"]), @"the value of `days` is not JSON: expected value at line 1 column 1");
        insta::assert_snapshot!(refused(&["{}", "days=3"]), @"give one JSON object or key=value pairs, not both");
        insta::assert_snapshot!(refused(&["days=3", "-"]), @"give one JSON object or key=value pairs, not both");
        insta::assert_snapshot!(refused(&["to=@ana's"]), @r#"the file `ana's` for `to` cannot be read: No such file or directory (os error 2); if a text is meant: to:='"@ana's"'"#);
        insta::assert_snapshot!(refused(&["a=@-", "b=@-"]), @"standard input can be read once; give `@-` for one key");
        insta::assert_snapshot!(refused(&["days=3", "days:=4"]), @"`days` is given twice; give every key once");
    }

    #[test]
    fn a_refusal_of_a_json_argument_explains_how_to_send_text_where_text_is_expected() {
        let hinted = |given: &[&str], violations: &str| {
            let refusal = format!("The arguments do not fit the tool's parameters: {violations}");
            hint(&words(given), Code::InvalidArguments, &refusal)
        };
        let zip = r#"/zip: value is not of type "string""#;
        let text = hinted(&["city=x", "zip=5"], zip).unwrap();
        assert_eq!(text, r#"`zip=5` was sent as JSON; if a text is meant: zip:='"5"'"#);
        for other in [&["city=x"][..], &["zip:=5"], &["{\"zip\": 5}"], &["days=5"], &[]] {
            assert_eq!(hinted(other, zip), None, "{other:?}");
        }
        let wants_other = r#"/zip: value is greater than 4; /city: value is not of type "string""#;
        assert_eq!(hinted(&["zip=5"], wants_other), None);
        assert!(
            hinted(&["zip=5"], r#"/city: value is too long; /zip: value is not of types "null", "string""#).is_some()
        );
        assert_eq!(hint(&words(&["zip=5"]), Code::Timeout, zip), None);
    }
}
