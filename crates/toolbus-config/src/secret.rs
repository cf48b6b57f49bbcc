//! Values that are never shown.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::Read;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;

use crate::problem::Part;
use crate::schema::SchemaNode;
use crate::tree::{KeyPath, Tree};
use crate::validate::SchemaDifference;

/// Largest secret in a file, in bytes.
const MAX_SECRET: u64 = 64 * 1024;
/// Text that stands for a secret wherever one would be shown.
const REDACTED: &str = "[redacted]";

/// A secret, taken from where the configuration says when it was loaded.
///
/// Shown as `[redacted]` by `Debug`, `Display` and serialisation.
#[derive(Clone, PartialEq, Eq, Deserialize)]
pub struct Secret(String);

impl Secret {
    /// Keeps a value secret.
    #[must_use]
    pub fn new(value: impl Into<String>) -> Self {
        Self(value.into())
    }

    /// The secret itself, for where it is used.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl From<String> for Secret {
    fn from(value: String) -> Self {
        Self(value)
    }
}

impl From<&str> for Secret {
    fn from(value: &str) -> Self {
        Self(value.to_owned())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(REDACTED)
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(REDACTED)
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(REDACTED)
    }
}

impl JsonSchema for Secret {
    fn schema_name() -> Cow<'static, str> {
        "Secret".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let mut schema = secret_schema([json_schema!({"type": "string", "minLength": 1})]);
        let what = "A secret: from the environment, from a file, or, for development, in plain text.";
        schema.insert("description".to_owned(), what.into());
        schema
    }
}

/// The JSON Schema of a secret that comes from the environment, from a file, or is written in one of these forms.
#[must_use]
pub fn secret_schema(forms: impl IntoIterator<Item = Schema>) -> Schema {
    let source = |name: &str, what: &str| {
        json_schema!({
            "type": "object", "description": what, "required": [name], "additionalProperties": false,
            "properties": {name: {"type": "string", "minLength": 1}},
        })
    };
    let sources = [
        source("env", "Name of the environment variable that holds it; white space at its end is left off."),
        source("file", "File that holds it; a byte order mark and white space at its end are left off."),
    ];
    let forms: Vec<Schema> = forms.into_iter().chain(sources).collect();
    json_schema!({"writeOnly": true, "anyOf": forms})
}

/// Reason why a secret is not available.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SecretError {
    #[error("the environment variable `{0}` is not set, or is empty; set it, or name another source of this secret")]
    Variable(String),
    #[error("the file `{file}` of this secret cannot be read: {error}")]
    Unreadable { file: String, error: std::io::Error },
    #[error("the file `{0}` of this secret is empty")]
    Empty(String),
    #[error("the file `{0}` of this secret is larger than 64 KiB")]
    TooLarge(String),
}

/// Replaces `{ env = … }` and `{ file = … }` by their values; `None` for a secret in plain text, and for a table of
/// another form.
pub(crate) fn resolve(value: &Value, environment: &BTreeMap<String, String>) -> Option<Result<Value, SecretError>> {
    let table = value.as_object().filter(|table| table.len() == 1)?;
    let source = |name: &str| table.get(name)?.as_str().filter(|source| !source.is_empty());
    let secret = match (source("env"), source("file")) {
        (Some(variable), _) => environment
            .get(variable)
            .map(|value| bare(value))
            .filter(|value| !value.is_empty())
            .map(str::to_owned)
            .ok_or_else(|| SecretError::Variable(variable.to_owned())),
        (_, Some(file)) => read(file),
        _ => return None,
    };
    Some(secret.map(Value::String))
}

/// Replaces references to secrets in the tree by the secrets. Returns the path of each, and whether the tree had a
/// reference.
pub fn resolve_secrets(
    tree: &mut Tree,
    schema: &Value,
    environment: &BTreeMap<String, String>,
) -> (Vec<SchemaDifference>, Vec<(KeyPath, bool)>) {
    let mut secrets = Vec::new();
    find_secrets(tree.root(), SchemaNode::root(schema), &mut Vec::new(), &mut secrets);
    let (mut differences, mut given) = (Vec::new(), Vec::new());
    for path in secrets {
        match tree.get(&path).and_then(|value| resolve(value, environment)) {
            Some(Ok(value)) => {
                tree.replace(&path, value);
                given.push((path, true));
            }
            Some(Err(error)) => differences.push(SchemaDifference { path, part: Part::Value, what: error.to_string() }),
            None => given.push((path, false)),
        }
    }
    (differences, given)
}

fn find_secrets(value: &Value, node: SchemaNode<'_>, path: &mut KeyPath, found: &mut Vec<KeyPath>) {
    // A list of secrets may stand where one may.
    if node.is_secret() && !value.is_array() {
        found.push(path.clone());
        return;
    }
    let children: Vec<(String, &Value)> = match value {
        Value::Object(children) => children.iter().map(|(key, child)| (key.clone(), child)).collect(),
        Value::Array(elements) => elements.iter().enumerate().map(|(i, element)| (i.to_string(), element)).collect(),
        _ => Vec::new(),
    };
    for (key, value) in children {
        if let Some(child) = node.child(&key) {
            path.push(key);
            find_secrets(value, child, path, found);
            path.pop();
        }
    }
}

/// A text without what editors put around it: a byte order mark, and the end of the last line.
fn bare(text: &str) -> &str {
    text.trim_start_matches('\u{feff}').trim_end()
}

fn read(file: &str) -> Result<String, SecretError> {
    let mut text = String::new();
    File::open(file)
        .and_then(|open| open.take(MAX_SECRET + 1).read_to_string(&mut text))
        .map_err(|error| SecretError::Unreadable { file: file.to_owned(), error })?;
    if text.len() as u64 > MAX_SECRET {
        return Err(SecretError::TooLarge(file.to_owned()));
    }
    match bare(&text) {
        "" => Err(SecretError::Empty(file.to_owned())),
        secret => Ok(secret.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_secret_is_not_shown_in_any_way() {
        let secret = Secret::new("hunter2");
        let shown = format!("{secret} {secret:?} {:#?} {}", Some(&secret), serde_json::to_string(&secret).unwrap());
        assert!(!shown.contains("hunter2"), "{shown}");
        assert_eq!(secret.expose(), "hunter2");
    }

    #[test]
    fn a_secret_comes_from_the_environment_or_a_file() {
        let environment = BTreeMap::from([("TOKEN".to_owned(), "hunter2 \n".to_owned())]);
        assert_eq!(resolve(&json!({"env": "TOKEN"}), &environment).unwrap().unwrap(), json!("hunter2"));
        let file = tempfile::NamedTempFile::new().unwrap();
        for written in ["hunter3\n", "hunter3 \r\n", "\u{feff}hunter3"] {
            std::fs::write(file.path(), written).unwrap();
            let read = resolve(&json!({"file": file.path()}), &environment).unwrap().unwrap();
            assert_eq!(read, json!("hunter3"), "{written:?}");
        }
        assert!(resolve(&json!("plain"), &environment).is_none());
    }

    #[test]
    fn a_missing_or_endless_source_is_refused() {
        let environment = BTreeMap::from([("EMPTY".to_owned(), "\n".to_owned())]);
        let error = |value| resolve(&value, &environment).unwrap().unwrap_err().to_string();
        insta::assert_snapshot!(error(json!({"env": "EMPTY"})), @"the environment variable `EMPTY` is not set, or is empty; set it, or name another source of this secret");
        insta::assert_snapshot!(error(json!({"env": "ABSENT"})), @"the environment variable `ABSENT` is not set, or is empty; set it, or name another source of this secret");
        insta::assert_snapshot!(error(json!({"file": "/nonexistent/token"})), @"the file `/nonexistent/token` of this secret cannot be read: No such file or directory (os error 2)");
        insta::assert_snapshot!(error(json!({"file": "/dev/zero"})), @"the file `/dev/zero` of this secret is larger than 64 KiB");
        insta::assert_snapshot!(error(json!({"file": "/dev/null"})), @"the file `/dev/null` of this secret is empty");
    }
}
