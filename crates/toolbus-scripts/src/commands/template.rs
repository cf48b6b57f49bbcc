//! A command whose arguments have placeholders, filled without a shell: each element stays one argument.

mod parse;
#[cfg(test)]
mod tests;

use serde_json::{Map, Value};

pub use self::parse::TemplateError;

/// Bytes of all arguments together: what Linux takes as one argument.
const MAX_ARGUMENTS: usize = 128 * 1024;

/// A command, parsed once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Template {
    /// The program, as it was written.
    pub(super) program: String,
    elements: Vec<Element>,
}

/// What becomes of one element of the command.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Element {
    /// One argument, or none where something is absent that it consists of.
    One(Vec<Part>),
    /// An argument for each item of a list.
    Each(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    /// As it stands.
    Literal(String),
    /// Stands for the argument of this name.
    Placeholder(String),
}

/// How a placeholder is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    /// For one value.
    Value,
    /// For every item of a list.
    List,
}

/// Why arguments do not make a command. The caller reads these.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum FillError {
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

impl Template {
    /// Every placeholder's name and use; one that occurs twice comes twice.
    pub(super) fn placeholders(&self) -> impl Iterator<Item = (&str, Use)> {
        self.elements.iter().flat_map(|element| match element {
            Element::Each(name) => vec![(name.as_str(), Use::List)],
            Element::One(parts) => parts.iter().filter_map(Part::placeholder).map(|name| (name, Use::Value)).collect(),
        })
    }

    /// The arguments of the program. `may_dash` are the placeholders whose values may begin with `-` where an argument
    /// begins with them.
    pub(super) fn fill(&self, arguments: &Map<String, Value>, may_dash: &[String]) -> Result<Vec<String>, FillError> {
        let mut filled = Vec::with_capacity(self.elements.len());
        for element in &self.elements {
            match element {
                Element::One(parts) => filled.extend(one(parts, arguments, may_dash)?),
                Element::Each(name) => each(name, arguments, may_dash, &mut filled)?,
            }
        }
        let size: usize = filled.iter().map(|argument| argument.len() + 1).sum();
        if size > MAX_ARGUMENTS { Err(FillError::TooLong) } else { Ok(filled) }
    }
}

impl Part {
    fn placeholder(&self) -> Option<&str> {
        match self {
            Self::Literal(_) => None,
            Self::Placeholder(name) => Some(name),
        }
    }
}

/// One argument; none where something is absent that it consists of.
fn one(parts: &[Part], arguments: &Map<String, Value>, may_dash: &[String]) -> Result<Option<String>, FillError> {
    let mut whole = String::new();
    // The placeholder with which the argument begins, for as long as nothing else stands before it.
    let mut first = None;
    for part in parts {
        match part {
            Part::Literal(literal) => whole.push_str(literal),
            Part::Placeholder(name) => {
                let Some(value) = present(arguments, name) else { return Ok(None) };
                if whole.is_empty() {
                    first = Some(name);
                }
                whole.push_str(&scalar(value, name)?.ok_or_else(|| FillError::Kind(name.clone()))?);
            }
        }
    }
    match first {
        Some(name) if whole.starts_with('-') && !may_dash.contains(name) => Err(FillError::Dash(name.clone())),
        _ => Ok(Some(whole)),
    }
}

fn each(
    name: &str,
    arguments: &Map<String, Value>,
    may_dash: &[String],
    filled: &mut Vec<String>,
) -> Result<(), FillError> {
    let Some(value) = present(arguments, name) else { return Ok(()) };
    let items = value.as_array().ok_or_else(|| FillError::NoList(name.to_owned()))?;
    let may_dash = may_dash.iter().any(|allowed| allowed == name);
    for item in items {
        let item = scalar(item, name)?.ok_or_else(|| FillError::ItemKind(name.to_owned()))?;
        if item.starts_with('-') && !may_dash {
            return Err(FillError::Dash(name.to_owned()));
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
fn scalar(value: &Value, name: &str) -> Result<Option<String>, FillError> {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Number(_) | Value::Bool(_) => value.to_string(),
        Value::Null | Value::Array(_) | Value::Object(_) => return Ok(None),
    };
    if text.contains('\0') { Err(FillError::Nul(name.to_owned())) } else { Ok(Some(text)) }
}
