//! Reading a command with placeholders.

use super::{Element, Part, Template};

/// Marks a placeholder that stands for every item of a list.
const EACH: &str = "...";

/// What is wrong with a command. The texts continue "the command …".
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

impl Template {
    /// Reads a command: its program and its arguments.
    pub(in super::super) fn parse(command: &[String]) -> Result<Self, TemplateError> {
        let (program, arguments) = command.split_first().ok_or(TemplateError::Empty)?;
        let program = match element(program)? {
            Element::One(parts) => match parts.as_slice() {
                [Part::Literal(program)] => program.clone(),
                [] => return Err(TemplateError::Empty),
                _ => return Err(TemplateError::Program),
            },
            Element::Each(_) => return Err(TemplateError::Program),
        };
        let elements = arguments.iter().map(|text| element(text)).collect::<Result<_, _>>()?;
        Ok(Self { program, elements })
    }
}

fn element(text: &str) -> Result<Element, TemplateError> {
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
                return Ok(Element::Each(name.to_owned()));
            }
            if !literal.is_empty() {
                parts.push(Part::Literal(std::mem::take(&mut literal)));
            }
            parts.push(Part::Placeholder(name.to_owned()));
            rest = after;
        }
    }
    literal.push_str(rest);
    if !literal.is_empty() {
        parts.push(Part::Literal(literal));
    }
    Ok(Element::One(parts))
}
