//! The layers over the files: environment and command line.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::Value;

use super::file;
use super::problem::{Origin, Part, Problem, expected};
use super::schema::Node;
use super::tree::{Path, Tree};

/// Start of the environment variables that change the configuration.
pub const ENVIRONMENT_PREFIX: &str = "TOOLBUS__";

/// Why the environment cannot do what a file can.
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

/// Lets the environment change keys that there are.
///
/// Those are the keys that the schema knows and the entries of maps and lists that the files have, whatever the case;
/// a variable that names none is a problem: upper case cannot say how a new entry should be spelt.
pub(crate) fn environment(tree: &mut Tree, schema: &Value, variables: &BTreeMap<String, String>) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (variable, text) in variables {
        let Some(keys) = variable.strip_prefix(ENVIRONMENT_PREFIX) else { continue };
        let origin = Origin::Environment(variable.clone());
        match existing(tree, schema, keys) {
            Ok((path, node)) => tree.set(&path, typed(node, text), origin),
            Err(what) => {
                let place = origin.place(Part::Key);
                problems.push(Problem { place, key: keys.to_lowercase().replace("__", "."), what });
            }
        }
    }
    problems
}

/// Finds the key that upper-case words stand for.
fn existing<'a>(tree: &Tree, schema: &'a Value, words: &str) -> Result<(Path, Node<'a>), String> {
    let mut path = Path::new();
    let mut node = Node::root(schema);
    for word in words.split("__") {
        let entries: Vec<String> = match tree.get(&path) {
            Some(Value::Object(members)) => members.keys().cloned().collect(),
            Some(Value::Array(elements)) => (0..elements.len()).map(|index| index.to_string()).collect(),
            _ => Vec::new(),
        };
        let mut known = node.keys();
        known.extend(entries.iter().map(String::as_str).filter(|entry| node.child(entry).is_some()));
        known.sort_unstable();
        known.dedup();
        // An entry in the very case comes first, so that entries that differ in case alone can be told apart.
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

fn unknown(tree: &Tree, path: &Path, word: &str, known: &[&str], is_section: bool) -> String {
    let parent = if path.is_empty() { String::new() } else { format!(" in `{}`", tree.written(path)) };
    match (known, is_section) {
        (_, true) => format!("unknown key{parent}; {}", expected(word, known)),
        ([], _) => format!("unknown key{parent}, which has no entries; {NO_NEW_ENTRIES}"),
        _ => format!("unknown key{parent}; {}; {NO_NEW_ENTRIES}", expected(word, known)),
    }
}

/// Puts the values of the command line over everything.
pub(crate) fn command_line(tree: &mut Tree, schema: &Value, overrides: &[Override]) -> Vec<Problem> {
    let mut problems = Vec::new();
    for Override { option, key, value } in overrides {
        let origin = Origin::CommandLine(option.clone());
        let Some(path) = file::key(key) else {
            let what = r#"not a key; expected section.key=value, such as invoke.drain_timeout=10s"#.to_owned();
            problems.push(Problem { place: origin.place(Part::Key), key: String::new(), what });
            continue;
        };
        let node = path.iter().try_fold(Node::root(schema), |node, key| node.child(key));
        let value = node.map_or_else(|| Value::String(value.clone()), |node| typed(node, value));
        tree.set(&path, value, origin);
    }
    problems
}

/// Reads a text as what its key takes: as it stands where that can be text, otherwise as TOML.
fn typed(node: Node<'_>, text: &str) -> Value {
    let as_it_stands = || Value::String(text.to_owned());
    let structured = (text.starts_with('[') && node.takes("array")) || (text.starts_with('{') && node.takes("object"));
    let is_flag = matches!(text, "true" | "false") && node.takes("boolean");
    if node.takes("string") && !structured && !is_flag {
        return as_it_stands();
    }
    file::value(text.trim()).unwrap_or_else(as_it_stands)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::config::schema::schema;

    fn after(files: Value, variables: &[(&str, &str)]) -> (Tree, Vec<String>) {
        let mut tree = Tree::new();
        tree.set(&[], files, Origin::Default);
        let variables = variables.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
        let problems = environment(&mut tree, &schema(), &variables);
        (tree, problems.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn the_environment_gives_values_of_the_type_that_the_key_takes() {
        let (tree, problems) = after(
            json!({}),
            &[
                ("TOOLBUS__BUS__URL", "amqp://broker"),
                ("TOOLBUS__BUS__REPLY_TOPICS", r#"["a.#"]"#),
                ("TOOLBUS__INVOKE__MAX_IN_FLIGHT", "7"),
                ("TOOLBUS__TOOLS__ECHO", "true"),
                ("TOOLBUS__BUS__NAME", "7"),
                ("PATH", "/bin"),
            ],
        );
        assert!(problems.is_empty(), "{problems:?}");
        let expected = json!({
            "bus": {"url": "amqp://broker", "reply_topics": ["a.#"], "name": "7"},
            "invoke": {"max_in_flight": 7},
            "tools": {"echo": true},
        });
        assert_eq!(tree.root(), &expected);
    }

    #[test]
    fn the_environment_finds_entries_of_the_files_whatever_their_case() {
        let files = json!({
            "tools": {"limits": {"Web_Search": {"timeout": "1s"}}},
            "rest": {"endpoints": [{"url": "http://a"}]},
        });
        let (tree, problems) = after(
            files,
            &[("TOOLBUS__TOOLS__LIMITS__WEB_SEARCH__TIMEOUT", "2s"), ("TOOLBUS__REST__ENDPOINTS__0__URL", "http://b")],
        );
        assert!(problems.is_empty(), "{problems:?}");
        assert_eq!(tree.root()["tools"]["limits"], json!({"Web_Search": {"timeout": "2s"}}));
        assert_eq!(tree.root()["rest"]["endpoints"], json!([{"url": "http://b"}]));
    }

    #[test]
    fn the_environment_creates_no_entries() {
        let files = json!({"tools": {"limits": {"web_search": {}}}});
        let (tree, problems) = after(
            files.clone(),
            &[
                ("TOOLBUS__BUS__ULR", "x"),
                ("TOOLBUS__REST__ENDPOINTS__0__URL", "x"),
                ("TOOLBUS__TOOLS__LIMITS__WEB_SAERCH__TIMEOUT", "2s"),
            ],
        );
        assert_eq!(tree.root(), &files);
        insta::assert_snapshot!(problems.join("\n"), @"
        environment TOOLBUS__BUS__ULR: `bus.ulr`: unknown key in `bus`; did you mean `url`? expected one of `compat_queues`, `dead_letter_exchange`, `exchange`, `name`, `queue_prefix`, `queue_type`, `reply_topics`, `tls`, `url`
        environment TOOLBUS__REST__ENDPOINTS__0__URL: `rest.endpoints.0.url`: unknown key in `rest.endpoints`, which has no entries; the environment changes entries and adds none: new ones belong in a file or --set
        environment TOOLBUS__TOOLS__LIMITS__WEB_SAERCH__TIMEOUT: `tools.limits.web_saerch.timeout`: unknown key in `tools.limits`; did you mean `web_search`? expected `web_search`; the environment changes entries and adds none: new ones belong in a file or --set
        ");
    }

    #[test]
    fn entries_that_differ_in_case_alone_are_told_apart_by_their_case() {
        let files = json!({"tools": {"limits": {"a": {}, "A": {}}}});
        let (tree, problems) = after(files, &[("TOOLBUS__TOOLS__LIMITS__A__TIMEOUT", "2s")]);
        assert!(problems.is_empty(), "{problems:?}");
        assert_eq!(tree.root()["tools"]["limits"], json!({"a": {}, "A": {"timeout": "2s"}}));
    }

    #[test]
    fn the_command_line_may_create_entries() {
        let mut tree = Tree::new();
        let overrides = [Override::new(r#"tools.limits."web_*".timeout"#, "5s"), Override::new("a b", "x")];
        let problems = command_line(&mut tree, &schema(), &overrides);
        assert_eq!(tree.root(), &json!({"tools": {"limits": {"web_*": {"timeout": "5s"}}}}));
        insta::assert_snapshot!(problems[0], @"command line --set a b: not a key; expected section.key=value, such as invoke.drain_timeout=10s");
    }
}
