//! `${NAME}`, `${NAME:-default}` and the variables of editors in the texts of a file of servers.

use std::collections::BTreeMap;
use std::path::{Path, absolute};

use serde_json::Value;
use toolbus_core::text::shown;

/// Most bytes that the texts of one server have together.
const MAX_BYTES: usize = 1024 * 1024;
/// Longest name that is repeated, in characters.
const MAX_SHOWN: usize = 64;
/// Folders in which editors keep their settings for the folder above.
const OF_EDITORS: [&str; 3] = [".vscode", ".cursor", ".roo"];
/// Prefix of the variables that give the values of inputs.
pub const INPUT_PREFIX: &str = "TOOLBUS_INPUT_";

/// Reason why a text cannot be completed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum SubstitutionError {
    #[error("the environment variable `{0}` is not set; set it, or write `${{{0}:-default}}`")]
    Unset(String),
    #[error("`${{{0}}}` asks a person, which a daemon cannot do; set the environment variable `{1}`")]
    Input(String, String),
    #[error("`${{{0}}}` is no variable of the environment; expected `${{NAME}}` or `${{NAME:-default}}`")]
    Form(String),
    #[error("its texts have more than 1 MiB with the variables in them")]
    TooLarge,
}

/// Values of the variables of one file.
pub(super) struct Variables<'a> {
    environment: &'a BTreeMap<String, String>,
    /// Value of `${workspaceFolder}`: the folder of the file, or the one above if that is `.vscode` or the like.
    workspace: String,
    /// Defaults of inputs, by their ids.
    pub(super) inputs: BTreeMap<String, String>,
}

impl<'a> Variables<'a> {
    /// The variables of the file at `path`, without inputs.
    pub(super) fn new(path: &Path, environment: &'a BTreeMap<String, String>) -> Self {
        let path = absolute(path).unwrap_or_else(|_| path.to_owned());
        let folder = path.parent().unwrap_or(Path::new("/"));
        let is_of_editor = folder.file_name().is_some_and(|name| OF_EDITORS.iter().any(|of_editor| name == *of_editor));
        let workspace = folder.parent().filter(|_| is_of_editor).unwrap_or(folder);
        Self { environment, workspace: workspace.display().to_string(), inputs: BTreeMap::new() }
    }

    /// Returns the value of an editor's own variable that a daemon has, too.
    fn of_editor(&self, name: &str) -> Option<&str> {
        match name {
            "workspaceFolder" => Some(&self.workspace),
            "workspaceFolderBasename" => self.workspace.rsplit('/').next(),
            "userHome" => self.environment.get("HOME").map(String::as_str),
            "pathSeparator" | "/" => Some("/"),
            _ => None,
        }
    }

    /// Returns the value of an input, for which an editor would prompt.
    fn input(&self, id: &str) -> Result<&str, SubstitutionError> {
        let variable = input_variable(id);
        let given = self.environment.get(&variable).or_else(|| self.inputs.get(id));
        given.map(String::as_str).ok_or_else(|| SubstitutionError::Input(format!("input:{}", shown(id)), variable))
    }
}

/// The name of an environment variable, and what stands for it where it is not set.
fn name_and_default(variable: &str) -> (&str, Option<&str>) {
    let (name, default) = match variable.split_once(":-") {
        Some((name, default)) => (name, Some(default)),
        None => (variable, None),
    };
    // Some editors write the kind of a variable before its name.
    (name.strip_prefix("env:").unwrap_or(name), default)
}

/// The names of the environment variables in a text.
pub(super) fn names(text: &str) -> impl Iterator<Item = &str> {
    text.split("${").skip(1).filter_map(|rest| Some(name_and_default(rest.split_once('}')?.0).0))
}

/// The environment variable that holds the value of an input.
fn input_variable(id: &str) -> String {
    let id = id.chars().take(MAX_SHOWN).map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' });
    INPUT_PREFIX.chars().chain(id).collect()
}

/// Completes the texts of one server.
pub(super) struct Substitution<'a> {
    variables: &'a Variables<'a>,
    left: usize,
}

impl<'a> Substitution<'a> {
    pub(super) const fn new(variables: &'a Variables<'a>) -> Self {
        Self { variables, left: MAX_BYTES }
    }

    /// Completes every text in a value; what a variable holds is not looked at again.
    pub(super) fn apply(&mut self, value: &mut Value) -> Result<(), SubstitutionError> {
        match value {
            Value::String(text) => {
                *text = self.text(text)?;
                Ok(())
            }
            Value::Array(elements) => elements.iter_mut().try_for_each(|element| self.apply(element)),
            Value::Object(fields) => fields.values_mut().try_for_each(|field| self.apply(field)),
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
        if let Some(id) = variable.strip_prefix("input:") {
            return self.variables.input(id);
        }
        if let Some(value) = self.variables.of_editor(variable) {
            return Ok(value);
        }
        let (name, default) = name_and_default(variable);
        let begins = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
        if !begins || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
            return Err(SubstitutionError::Form(shown(variable)));
        }
        match (self.variables.environment.get(name), default) {
            (Some(value), Some(default)) if value.is_empty() => Ok(default),
            (Some(value), _) => Ok(value),
            (None, Some(default)) => Ok(default),
            (None, None) => Err(SubstitutionError::Unset(name.chars().take(MAX_SHOWN).collect())),
        }
    }
}
