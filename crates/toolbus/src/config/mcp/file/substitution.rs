//! `${NAME}` and `${NAME:-default}` in the texts of a file of servers.

use std::collections::BTreeMap;

use serde_json::Value;

/// Most bytes that the texts of one server have together.
const MAX_BYTES: usize = 1024 * 1024;
/// Longest name that is repeated, in characters.
const MAX_SHOWN: usize = 64;

/// Why a text cannot be completed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum SubstitutionError {
    #[error("the environment variable `{0}` is not set; set it, or write `${{{0}:-default}}`")]
    Unset(String),
    #[error("`${{{0}}}` asks a person, which a daemon cannot do; use a variable of the environment: `${{NAME}}`")]
    Input(String),
    #[error("`${{{0}}}` is no variable of the environment; expected `${{NAME}}` or `${{NAME:-default}}`")]
    Form(String),
    #[error("its texts have more than 1 MiB with the variables in them")]
    TooLarge,
}

/// Completes the texts of one server.
pub(super) struct Substitution<'a> {
    environment: &'a BTreeMap<String, String>,
    left: usize,
}

impl<'a> Substitution<'a> {
    pub(super) const fn new(environment: &'a BTreeMap<String, String>) -> Self {
        Self { environment, left: MAX_BYTES }
    }

    /// Completes every text in a value; what a variable holds is not looked at again.
    pub(super) fn apply(&mut self, value: &mut Value) -> Result<(), SubstitutionError> {
        match value {
            Value::String(text) => {
                *text = self.text(text)?;
                Ok(())
            }
            Value::Array(elements) => elements.iter_mut().try_for_each(|element| self.apply(element)),
            Value::Object(members) => members.values_mut().try_for_each(|member| self.apply(member)),
            _ => Ok(()),
        }
    }

    fn text(&mut self, text: &str) -> Result<String, SubstitutionError> {
        let mut done = String::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once("${")
            && let Some((variable, behind)) = after.split_once('}')
        {
            self.push(&mut done, before)?;
            let value = self.value(variable)?;
            self.push(&mut done, value)?;
            rest = behind;
        }
        self.push(&mut done, rest)?;
        Ok(done)
    }

    fn push(&mut self, done: &mut String, part: &str) -> Result<(), SubstitutionError> {
        self.left = self.left.checked_sub(part.len()).ok_or(SubstitutionError::TooLarge)?;
        done.push_str(part);
        Ok(())
    }

    fn value<'b>(&self, variable: &'b str) -> Result<&'b str, SubstitutionError>
    where
        'a: 'b,
    {
        let (name, default) = match variable.split_once(":-") {
            Some((name, default)) => (name, Some(default)),
            None => (variable, None),
        };
        // Some editors write the kind of a variable before its name.
        let name = name.strip_prefix("env:").unwrap_or(name);
        let begins = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
        if !begins || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
            let shown: String = variable.chars().take(MAX_SHOWN).flat_map(char::escape_debug).collect();
            let is_input = variable.starts_with("input:");
            return Err(if is_input { SubstitutionError::Input(shown) } else { SubstitutionError::Form(shown) });
        }
        match (self.environment.get(name), default) {
            (Some(value), Some(default)) if value.is_empty() => Ok(default),
            (Some(value), _) => Ok(value),
            (None, Some(default)) => Ok(default),
            (None, None) => Err(SubstitutionError::Unset(name.chars().take(MAX_SHOWN).collect())),
        }
    }
}
