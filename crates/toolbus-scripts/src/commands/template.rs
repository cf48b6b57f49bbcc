//! A command whose arguments have placeholders, filled without a shell: each element stays one argument.
//!
//! `{name}` in an element stands for the caller's argument `name`; an element with an argument that is absent is left out.
//! `{name...}` alone stands for every item of a list. `{{` and `}}` are braces.

use serde_json::{Map, Value};

/// Bytes of all arguments together: what Linux takes as one argument.
const MAX_ARGUMENTS: usize = 128 * 1024;

/// A command, parsed once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CommandTemplate {
    /// The program, as it was written.
    pub(super) program: String,
    elements: Vec<ArgumentElement>,
}

/// Element of the command, as it becomes arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
enum ArgumentElement {
    /// One argument; absent if a value in it is absent.
    One(Vec<ArgumentPart>),
    /// An argument for each item of a list.
    Each(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum ArgumentPart {
    /// Literal text.
    Literal(String),
    /// Stands for the argument of this name.
    Placeholder(String),
}

/// Use of a placeholder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PlaceholderKind {
    /// For one value.
    Value,
    /// For every item of a list.
    List,
}

/// Reason why arguments do not make a command. The caller reads these.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum ArgumentError {
    #[error("Argument `{0}` must be a string, a number or a boolean.")]
    Kind(String),
    #[error("Argument `{0}` must be a list.")]
    NoList(String),
    #[error("Each item of argument `{0}` must be a string, a number or a boolean.")]
    ItemKind(String),
    #[error("Argument `{0}` must not begin with `-`: the program would take it for an option.")]
    Dash(String),
    #[error("Argument `{0}` must not contain a NUL character.")]
    Nul(String),
    #[error("The arguments are larger than {MAX_ARGUMENTS} bytes. Shorten them.")]
    TooLong,
}

impl CommandTemplate {
    /// Every placeholder's name and use; one that occurs twice comes twice.
    pub(super) fn placeholders(&self) -> impl Iterator<Item = (&str, PlaceholderKind)> {
        self.elements.iter().flat_map(|element| match element {
            ArgumentElement::Each(name) => vec![(name.as_str(), PlaceholderKind::List)],
            ArgumentElement::One(parts) => {
                parts.iter().filter_map(ArgumentPart::placeholder).map(|name| (name, PlaceholderKind::Value)).collect()
            }
        })
    }

    /// The arguments of the program. `may_dash` are the placeholders whose values may begin with `-` where an argument
    /// begins with them.
    pub(super) fn fill(
        &self,
        arguments: &Map<String, Value>,
        may_dash: &[String],
    ) -> Result<Vec<String>, ArgumentError> {
        let mut filled = Vec::with_capacity(self.elements.len());
        for element in &self.elements {
            match element {
                ArgumentElement::One(parts) => filled.extend(one(parts, arguments, may_dash)?),
                ArgumentElement::Each(name) => each(name, arguments, may_dash, &mut filled)?,
            }
        }
        let size: usize = filled.iter().map(|argument| argument.len() + 1).sum();
        if size > MAX_ARGUMENTS { Err(ArgumentError::TooLong) } else { Ok(filled) }
    }
}

impl ArgumentPart {
    fn placeholder(&self) -> Option<&str> {
        match self {
            Self::Literal(_) => None,
            Self::Placeholder(name) => Some(name),
        }
    }
}

/// One argument; `None` if a value in it is absent.
fn one(
    parts: &[ArgumentPart],
    arguments: &Map<String, Value>,
    may_dash: &[String],
) -> Result<Option<String>, ArgumentError> {
    let mut whole = String::new();
    // The placeholder with which the argument begins, for as long as nothing else stands before it.
    let mut first = None;
    for part in parts {
        match part {
            ArgumentPart::Literal(literal) => whole.push_str(literal),
            ArgumentPart::Placeholder(name) => {
                let Some(value) = present(arguments, name) else { return Ok(None) };
                if whole.is_empty() {
                    first = Some(name);
                }
                whole.push_str(&scalar(value, name)?.ok_or_else(|| ArgumentError::Kind(name.clone()))?);
            }
        }
    }
    match first {
        Some(name) if whole.starts_with('-') && !may_dash.contains(name) => Err(ArgumentError::Dash(name.clone())),
        _ => Ok(Some(whole)),
    }
}

fn each(
    name: &str,
    arguments: &Map<String, Value>,
    may_dash: &[String],
    filled: &mut Vec<String>,
) -> Result<(), ArgumentError> {
    let Some(value) = present(arguments, name) else { return Ok(()) };
    let items = value.as_array().ok_or_else(|| ArgumentError::NoList(name.to_owned()))?;
    let may_dash = may_dash.iter().any(|allowed| allowed == name);
    for item in items {
        let item = scalar(item, name)?.ok_or_else(|| ArgumentError::ItemKind(name.to_owned()))?;
        if item.starts_with('-') && !may_dash {
            return Err(ArgumentError::Dash(name.to_owned()));
        }
        filled.push(item);
    }
    Ok(())
}

/// The argument; null counts as absent.
fn present<'a>(arguments: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    arguments.get(name).filter(|value| !value.is_null())
}

/// The text of a value that is one; none for all others.
fn scalar(value: &Value, name: &str) -> Result<Option<String>, ArgumentError> {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Number(_) | Value::Bool(_) => value.to_string(),
        Value::Null | Value::Array(_) | Value::Object(_) => return Ok(None),
    };
    if text.contains('\0') { Err(ArgumentError::Nul(name.to_owned())) } else { Ok(Some(text)) }
}

/// Marks a placeholder that stands for every item of a list.
const EACH: &str = "...";

/// Fault of a command. The texts continue "the command …".
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// Nothing to run.
    #[error("is empty; give the program and its arguments, as [\"git\", \"status\"]")]
    Empty,
    /// A program that callers choose.
    #[error("has a placeholder in its program, which must be fixed")]
    Program,
    /// A brace without its other.
    #[error("has a single brace in `{0}`; write `{{{{` or `}}}}` for a brace, and `{{name}}` for an argument")]
    Brace(String),
    /// A placeholder without a name.
    #[error("has a placeholder without a name in `{0}`")]
    Nameless(String),
    /// A list in the middle of an argument.
    #[error("has a list in `{0}`; `{{{1}...}}` must be an element of its own")]
    List(String, String),
    /// No program can be given it.
    #[error("has a NUL character in `{}`", .0.escape_default())]
    Nul(String),
}

impl CommandTemplate {
    /// Reads a command: its program and its arguments.
    pub(super) fn parse(command: &[String]) -> Result<Self, TemplateError> {
        let (program, arguments) = command.split_first().ok_or(TemplateError::Empty)?;
        let program = match element(program)? {
            ArgumentElement::One(parts) => match parts.as_slice() {
                [ArgumentPart::Literal(program)] => program.clone(),
                [] => return Err(TemplateError::Empty),
                _ => return Err(TemplateError::Program),
            },
            ArgumentElement::Each(_) => return Err(TemplateError::Program),
        };
        let elements = arguments.iter().map(|text| element(text)).collect::<Result<_, _>>()?;
        Ok(Self { program, elements })
    }
}

fn element(text: &str) -> Result<ArgumentElement, TemplateError> {
    if text.contains('\0') {
        return Err(TemplateError::Nul(text.to_owned()));
    }
    let brace = || TemplateError::Brace(text.to_owned());
    let (mut parts, mut literal, mut rest) = (Vec::new(), String::new(), text);
    while let Some(at) = rest.find(['{', '}']) {
        let (before, from) = rest.split_at(at);
        literal.push_str(before);
        if let Some(after) = from.strip_prefix("{{") {
            literal.push('{');
            rest = after;
        } else if let Some(after) = from.strip_prefix("}}") {
            literal.push('}');
            rest = after;
        } else {
            let (name, after) = from.strip_prefix('{').and_then(|from| from.split_once('}')).ok_or_else(brace)?;
            let (name, is_list) = name.strip_suffix(EACH).map_or((name, false), |name| (name, true));
            if name.contains('{') {
                return Err(brace());
            }
            if name.is_empty() {
                return Err(TemplateError::Nameless(text.to_owned()));
            }
            if is_list && (at > 0 || rest.len() < text.len() || !after.is_empty()) {
                return Err(TemplateError::List(text.to_owned(), name.to_owned()));
            }
            if is_list {
                return Ok(ArgumentElement::Each(name.to_owned()));
            }
            if !literal.is_empty() {
                parts.push(ArgumentPart::Literal(std::mem::take(&mut literal)));
            }
            parts.push(ArgumentPart::Placeholder(name.to_owned()));
            rest = after;
        }
    }
    literal.push_str(rest);
    if !literal.is_empty() {
        parts.push(ArgumentPart::Literal(literal));
    }
    Ok(ArgumentElement::One(parts))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn template(command: &[&str]) -> Result<CommandTemplate, TemplateError> {
        CommandTemplate::parse(&command.iter().map(|element| (*element).to_owned()).collect::<Vec<_>>())
    }

    /// The arguments that elements make, with `-` allowed for `dash`.
    fn filled(elements: &[&str], arguments: &Value) -> Result<Vec<String>, String> {
        let command = [&["prog"], elements].concat();
        let arguments = arguments.as_object().unwrap();
        template(&command).unwrap().fill(arguments, &["dash".to_owned()]).map_err(|error| error.to_string())
    }

    #[test]
    fn each_element_becomes_one_argument() {
        let arguments = json!({
            "s": "two words; $(id) `x` 'q' \"d\" | > *\n", "n": 3, "f": 1.5, "b": true, "empty": "", "braces": "{s}", "nothing": null,
            "list": ["a", 1, false, "b c"], "none": [],
        });
        let hostile = "two words; $(id) `x` 'q' \"d\" | > *\n";
        let table: Vec<(&[&str], Vec<&str>)> = vec![
            (&["{s}"], vec![hostile]),
            (&["-n", "{n}", "{f}", "{b}"], vec!["-n", "3", "1.5", "true"]),
            (&["--max={n}-{b}"], vec!["--max=3-true"]),
            (&["{empty}"], vec![""]),
            (&[""], vec![""]),
            (&["{braces}"], vec!["{s}"]),
            (&["{{s}}", "{{{n}}}", "a}}b"], vec!["{s}", "{3}", "a}b"]),
            (&["a", "{absent}", "{nothing}", "b"], vec!["a", "b"]),
            (&["--since={absent}", "--n={n}"], vec!["--n=3"]),
            (&["{n}{absent}"], vec![]),
            (&["{list...}", "end"], vec!["a", "1", "false", "b c", "end"]),
            (&["{none...}", "{absent...}", "end"], vec!["end"]),
            (&["{with space}"], vec![]),
        ];
        for (elements, expected) in table {
            assert_eq!(filled(elements, &arguments).unwrap(), expected, "{elements:?}");
        }
    }

    #[test]
    fn a_value_that_would_be_taken_for_an_option_is_refused() {
        let refused = "Argument `s` must not begin with `-`: the program would take it for an option.";
        let table: Vec<(&[&str], Value)> = vec![
            (&["{s}"], json!({"s": "--output=/etc/passwd"})),
            (&["{s}"], json!({"s": "-"})),
            (&["{s}"], json!({"s": -5})),
            (&["{s}x"], json!({"s": "-x"})),
            (&["{s}-x"], json!({"s": ""})),
            (&["{s...}"], json!({"s": ["a", "-x"]})),
            (&["{e}{s}"], json!({"e": "", "s": "-x"})),
            (&["{dash}{s}"], json!({"dash": "", "s": "-x"})),
        ];
        for (elements, arguments) in table {
            assert_eq!(filled(elements, &arguments), Err(refused.to_owned()), "{elements:?} {arguments}");
        }
    }

    #[test]
    fn a_value_may_begin_with_a_dash_where_it_cannot_be_an_option_or_is_allowed() {
        let table: Vec<(&[&str], Value, &str)> = vec![
            (&["--text={s}"], json!({"s": "-x"}), "--text=-x"),
            (&["x{s}"], json!({"s": "-x"}), "x-x"),
            (&["{dash}"], json!({"dash": "-x"}), "-x"),
            (&["{dash...}"], json!({"dash": ["-x"]}), "-x"),
            (&["{n}-x"], json!({"n": 1}), "1-x"),
        ];
        for (elements, arguments, expected) in table {
            assert_eq!(filled(elements, &arguments).unwrap(), [expected], "{elements:?}");
        }
    }

    #[test]
    fn values_that_are_no_argument_are_refused() {
        let table: Vec<(&[&str], Value, &str)> = vec![
            (&["{s}"], json!({"s": ["a"]}), "Argument `s` must be a string, a number or a boolean."),
            (&["{s}"], json!({"s": {"a": 1}}), "Argument `s` must be a string, a number or a boolean."),
            (&["{s...}"], json!({"s": "a"}), "Argument `s` must be a list."),
            (&["{s...}"], json!({"s": [["a"]]}), "Each item of argument `s` must be a string, a number or a boolean."),
            (&["{s...}"], json!({"s": [null]}), "Each item of argument `s` must be a string, a number or a boolean."),
            (&["x{s}"], json!({"s": "a\0b"}), "Argument `s` must not contain a NUL character."),
            (&["{s...}"], json!({"s": ["\0"]}), "Argument `s` must not contain a NUL character."),
            (
                &["{s}"],
                json!({"s": "x".repeat(128 * 1024)}),
                "The arguments are larger than 131072 bytes. Shorten them.",
            ),
            (&["{s...}"], json!({"s": vec!["x"; 65537]}), "The arguments are larger than 131072 bytes. Shorten them."),
        ];
        for (elements, arguments, expected) in table {
            assert_eq!(filled(elements, &arguments), Err(expected.to_owned()), "{elements:?}");
        }
        assert!(filled(&["{s}"], &json!({"s": "x".repeat(128 * 1024 - 1)})).is_ok());
    }

    #[test]
    fn commands_with_a_mistake_are_refused() {
        let table: Vec<(&[&str], &str)> = vec![
            (&[], r#"is empty; give the program and its arguments, as ["git", "status"]"#),
            (&[""], r#"is empty; give the program and its arguments, as ["git", "status"]"#),
            (&["{p}"], "has a placeholder in its program, which must be fixed"),
            (&["/bin/{p}"], "has a placeholder in its program, which must be fixed"),
            (&["{p...}"], "has a placeholder in its program, which must be fixed"),
            (&["p", "{a"], "has a single brace in `{a`; write `{{` or `}}` for a brace, and `{name}` for an argument"),
            (&["p", "a}"], "has a single brace in `a}`; write `{{` or `}}` for a brace, and `{name}` for an argument"),
            (
                &["p", "{a{b}"],
                "has a single brace in `{a{b}`; write `{{` or `}}` for a brace, and `{name}` for an argument",
            ),
            (&["p", "x{}"], "has a placeholder without a name in `x{}`"),
            (&["p", "{...}"], "has a placeholder without a name in `{...}`"),
            (&["p", "x{a...}"], "has a list in `x{a...}`; `{a...}` must be an element of its own"),
            (&["p", "{a...}x"], "has a list in `{a...}x`; `{a...}` must be an element of its own"),
            (&["p", "{b}{a...}"], "has a list in `{b}{a...}`; `{a...}` must be an element of its own"),
            (&["p", "a\0"], r"has a NUL character in `a\u{0}`"),
        ];
        for (command, expected) in table {
            assert_eq!(template(command).unwrap_err().to_string(), expected, "{command:?}");
        }
    }

    #[test]
    fn the_placeholders_are_known_with_their_use() {
        let template = template(&["p", "--x={a}{b}", "{c...}", "{{d}}"]).unwrap();
        let placeholders: Vec<_> = template.placeholders().collect();
        assert_eq!(
            placeholders,
            [("a", PlaceholderKind::Value), ("b", PlaceholderKind::Value), ("c", PlaceholderKind::List)]
        );
    }

    proptest! {
        #[test]
        fn any_value_stays_within_its_argument(value in r"[^\x00]{0,20}") {
            let arguments = json!({"value": value, "dash": value});
            prop_assert_eq!(filled(&["a", "x={value}", "{dash}", "b"], &arguments).unwrap(), [
                "a".to_owned(), format!("x={value}"), value, "b".to_owned(),
            ]);
        }

        #[test]
        fn no_text_makes_the_parser_fail_in_another_way(text in r"[{}.ab]{0,8}") {
            let parsed = template(&["p", &text]);
            prop_assert!(parsed.is_ok() || matches!(
                parsed,
                Err(TemplateError::Brace(_) | TemplateError::Nameless(_) | TemplateError::List(..))
            ));
        }
    }
}
