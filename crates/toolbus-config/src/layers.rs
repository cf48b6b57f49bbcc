//! The layers over the files: environment and command line.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::Value;

use crate::problem::{Origin, Part, Problem, expected, expected_key};
use crate::schema::SchemaNode;
use crate::toml;
use crate::tree::{KeyPath, Tree};

/// Reason why the environment cannot do as much as a file.
const NO_NEW_ENTRIES: &str = "the environment changes entries and adds none: new ones belong in a file or --set";

/// A value given on the command line. `Debug` does not show it: it may be a secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Override {
    /// The option, as problems name it: `--set bus.name`, `--bus-url`.
    pub option: String,
    /// The key, as it would be written in TOML.
    pub key: String,
    /// The value: plain text where the key takes text, otherwise TOML.
    pub value: String,
}

impl fmt::Debug for Override {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.option)
    }
}

impl Override {
    /// A value given by `--set`.
    #[must_use]
    pub fn new(key: &str, value: &str) -> Self {
        Self { option: format!("--set {key}"), key: key.to_owned(), value: value.to_owned() }
    }
}

/// Lets variables that start with `prefix` change keys that there are.
///
/// Those are the keys that the schema knows and the entries of maps and lists that the files have, whatever the case;
/// a variable that names none is a problem: upper case does not give the spelling of a new entry.
pub fn environment(
    tree: &mut Tree,
    schema: &Value,
    prefix: &str,
    variables: &BTreeMap<String, String>,
) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (variable, text) in variables {
        let Some(keys) = variable.strip_prefix(prefix) else { continue };
        let origin = Origin::Environment(variable.clone());
        match existing(tree, schema, keys) {
            Ok((path, node)) => tree.set(&path, typed(node, text), origin),
            Err(what) => {
                let location = origin.location(Part::Key);
                problems.push(Problem { location, key: keys.to_lowercase().replace("__", "."), what });
            }
        }
    }
    problems
}

/// Finds the key that upper-case words stand for.
fn existing<'a>(tree: &Tree, schema: &'a Value, words: &str) -> Result<(KeyPath, SchemaNode<'a>), String> {
    let mut path = KeyPath::new();
    let mut node = SchemaNode::root(schema);
    for word in words.split("__") {
        let entries: Vec<String> = match tree.get(&path) {
            Some(Value::Object(entries)) => entries.keys().cloned().collect(),
            Some(Value::Array(elements)) => (0..elements.len()).map(|index| index.to_string()).collect(),
            _ => Vec::new(),
        };
        let mut known = node.keys();
        known.extend(entries.iter().map(String::as_str).filter(|entry| node.child(entry).is_some()));
        known.sort_unstable();
        known.dedup();
        // An entry in the very case comes first, so that entries that differ in case alone stay distinct.
        let same = known.iter().find(|name| **name == word).or_else(|| {
            let mut matching = known.iter().filter(|name| name.eq_ignore_ascii_case(word));
            matching.next().filter(|_| matching.next().is_none())
        });
        let next = same.and_then(|name| Some(((*name).to_owned(), node.child(name)?)));
        let Some((name, child)) = next else {
            return Err(unknown(tree, &path, &word.to_lowercase(), &known, !node.keys().is_empty()));
        };
        path.push(name);
        node = child;
    }
    Ok((path, node))
}

fn unknown(tree: &Tree, path: &KeyPath, word: &str, known: &[&str], is_section: bool) -> String {
    let parent = if path.is_empty() { String::new() } else { format!(" in `{}`", tree.written(path)) };
    match (known, is_section) {
        (_, true) => format!("unknown key{parent}; {}", expected_key(word, known)),
        ([], _) => format!("unknown key{parent}, which has no entries; {NO_NEW_ENTRIES}"),
        _ => format!("unknown key{parent}; {}; {NO_NEW_ENTRIES}", expected(word, known)),
    }
}

/// Puts the values of the command line over everything. `example` is a `key=value` for errors.
pub fn command_line(tree: &mut Tree, schema: &Value, overrides: &[Override], example: &str) -> Vec<Problem> {
    let mut problems = Vec::new();
    for Override { option, key, value } in overrides {
        let origin = Origin::CommandLine(option.clone());
        let Some(path) = toml::key(key) else {
            let what = format!("not a key; expected section.key=value, such as {example}");
            problems.push(Problem { location: origin.location(Part::Key), key: String::new(), what });
            continue;
        };
        let node = path.iter().try_fold(SchemaNode::root(schema), |node, key| node.child(key));
        let value = node.map_or_else(|| Value::String(value.clone()), |node| typed(node, value));
        tree.set(&path, value, origin);
    }
    problems
}

/// Reads a text as what its key takes: as it stands where that can be text, otherwise as TOML.
fn typed(node: SchemaNode<'_>, text: &str) -> Value {
    let as_it_stands = || Value::String(text.to_owned());
    let structured = (text.starts_with('[') && node.takes("array")) || (text.starts_with('{') && node.takes("object"));
    let is_flag = matches!(text, "true" | "false") && node.takes("boolean");
    if node.takes("string") && !structured && !is_flag {
        return as_it_stands();
    }
    toml::value(text.trim()).unwrap_or_else(as_it_stands)
}
