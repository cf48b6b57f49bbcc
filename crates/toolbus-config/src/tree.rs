//! The layers of a configuration, merged into one tree that knows where each value was given.

use std::collections::BTreeMap;
use std::ops::Bound;

use serde_json::{Map, Value};

use crate::problem::{Origin, Span};

/// A path in the tree: the keys from the root; elements of lists are numbers.
pub type KeyPath = Vec<String>;

/// The path of these keys.
#[must_use]
pub fn key_path(keys: &[&str]) -> KeyPath {
    keys.iter().map(|key| (*key).to_owned()).collect()
}

/// Reads a JSON pointer.
pub(crate) fn from_pointer(pointer: &str) -> KeyPath {
    pointer.split('/').skip(1).map(|key| key.replace("~1", "/").replace("~0", "~")).collect()
}

/// Content of one file, with the positions of its keys and values where its format keeps them.
#[derive(Debug)]
pub(crate) struct ParsedFile {
    /// The file, as it was named.
    pub(crate) file: String,
    /// Values of the file; a table.
    pub(crate) root: Value,
    pub(crate) spans: BTreeMap<KeyPath, Span>,
}

impl ParsedFile {
    /// The origin of a value: its own position, or that of the nearest value around it that has one.
    fn origin(&self, path: &[String]) -> Origin {
        let span = (0..=path.len()).rev().find_map(|depth| self.spans.get(path.get(..depth)?)).copied();
        Origin::File { file: self.file.clone(), span }
    }
}

/// Appends a key to the text of a path, as TOML writes it: `."web_*"`, `[0]`.
pub fn push_key(text: &mut String, key: &str, is_element: bool) {
    if is_element {
        text.push_str(&format!("[{key}]"));
        return;
    }
    if !text.is_empty() {
        text.push('.');
    }
    let bare = !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
    text.push_str(&if bare { key.to_owned() } else { format!("{key:?}") });
}

/// Values and their origins.
#[derive(Debug, Clone)]
pub struct Tree {
    root: Value,
    origins: BTreeMap<KeyPath, Origin>,
}

impl Default for Tree {
    fn default() -> Self {
        Self { root: Value::Object(Map::new()), origins: BTreeMap::new() }
    }
}

impl Tree {
    /// The whole.
    pub fn root(&self) -> &Value {
        &self.root
    }

    /// The value at a path.
    pub fn get(&self, path: &[String]) -> Option<&Value> {
        path.iter().try_fold(&self.root, |value, key| match value {
            Value::Object(entries) => entries.get(key),
            Value::Array(elements) => elements.get(key.parse::<usize>().ok()?),
            _ => None,
        })
    }

    fn get_mut(&mut self, path: &[String]) -> Option<&mut Value> {
        path.iter().try_fold(&mut self.root, |value, key| match value {
            Value::Object(entries) => entries.get_mut(key),
            Value::Array(elements) => elements.get_mut(key.parse::<usize>().ok()?),
            _ => None,
        })
    }

    /// Origin of the value at a path, or of the nearest value around it, or else the first one in it: a table may be
    /// there because of a single option.
    pub fn origin(&self, path: &[String]) -> &Origin {
        let around = (0..=path.len()).rev().find_map(|depth| self.origins.get(path.get(..depth)?));
        let within = || self.origins.range(path.to_vec()..).next().filter(|(known, _)| known.starts_with(path));
        around.or_else(|| within().map(|(_, origin)| origin)).unwrap_or(&Origin::Default)
    }

    /// A path as its key is written in TOML: `tools.limits."web_*".timeout`, `rest.endpoints[0].url`.
    pub fn written(&self, path: &[String]) -> String {
        let mut text = String::new();
        for (depth, key) in path.iter().enumerate() {
            let is_element = path.get(..depth).and_then(|parent| self.get(parent)).is_some_and(Value::is_array);
            push_key(&mut text, key, is_element);
        }
        text
    }

    /// Lays a file over the present values: tables are merged, everything else is replaced.
    pub(crate) fn lay(&mut self, mut document: ParsedFile) {
        if let Value::Object(entries) = document.root.take() {
            self.lay_table(&document, &mut KeyPath::new(), entries);
        }
    }

    fn lay_table(&mut self, document: &ParsedFile, path: &mut KeyPath, entries: Map<String, Value>) {
        for (key, value) in entries {
            path.push(key);
            let origin = document.origin(path);
            if let Value::Object(below) = value {
                self.set(path, Value::Object(Map::new()), origin.clone());
                self.note(path, origin);
                self.lay_table(document, path, below);
            } else {
                self.set(path, value, origin);
                // Paths below it follow it in this order.
                let below = document.spans.range::<KeyPath, _>((Bound::Excluded(&*path), Bound::Unbounded));
                for (below, span) in below.take_while(|(below, _)| below.starts_with(path)) {
                    self.note(below, Origin::File { file: document.file.clone(), span: Some(*span) });
                }
            }
            path.pop();
        }
    }

    /// Puts a value at a path, over the present values: tables are merged, everything else is replaced.
    ///
    /// A path below something that is no table replaces that.
    pub fn set(&mut self, path: &[String], value: Value, origin: Origin) {
        match value {
            Value::Object(entries) if !entries.is_empty() => {
                if !self.get(path).is_some_and(Value::is_object) {
                    self.put(path, Value::Object(Map::new()), origin.clone());
                }
                for (key, entry) in entries {
                    let mut below = path.to_vec();
                    below.push(key);
                    self.set(&below, entry, origin.clone());
                }
            }
            value if value.is_object() && self.get(path).is_some_and(Value::is_object) => {}
            value => self.put(path, value, origin),
        }
    }

    fn put(&mut self, path: &[String], value: Value, origin: Origin) {
        // Paths below it follow it in this order.
        let below =
            self.origins.range(path.to_vec()..).map(|(known, _)| known).take_while(|known| known.starts_with(path));
        for known in below.cloned().collect::<Vec<_>>() {
            self.origins.remove(&known);
        }
        self.origins.insert(path.to_vec(), origin);
        let mut target = &mut self.root;
        for key in path {
            // A list is entered only where the element exists; everything else becomes a table on the way.
            let is_element = matches!(&*target, Value::Array(elements)
                if key.parse::<usize>().is_ok_and(|index| index < elements.len()));
            if !is_element && !target.is_object() {
                *target = Value::Object(Map::new());
            }
            target = match target {
                Value::Object(entries) => entries.entry(key.clone()).or_insert(Value::Null),
                Value::Array(elements) => match key.parse::<usize>().ok().and_then(|index| elements.get_mut(index)) {
                    Some(element) => element,
                    None => return,
                },
                _ => return,
            };
        }
        *target = value;
    }

    /// Notes where a value that is already there was given.
    pub fn note(&mut self, path: &[String], origin: Origin) {
        self.origins.insert(path.to_vec(), origin);
    }

    /// Replaces a value; its origin stays.
    pub fn replace(&mut self, path: &[String], value: Value) {
        if let Some(target) = self.get_mut(path) {
            *target = value;
        }
    }

    /// Removes an entry of a table; elements of lists stay, so that their numbers hold.
    pub fn remove(&mut self, path: &[String]) {
        if let Some((key, parent)) = path.split_last()
            && let Some(Value::Object(entries)) = self.get_mut(parent)
        {
            entries.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn path(text: &str) -> KeyPath {
        text.split('.').map(str::to_owned).collect()
    }

    #[test]
    fn tables_are_merged_and_everything_else_is_replaced() {
        let mut tree = Tree::default();
        tree.set(&[], json!({"bus": {"name": "a", "reply_topics": ["x", "y"]}}), Origin::Default);
        let later = Origin::CommandLine("--set".into());
        tree.set(&path("bus"), json!({"reply_topics": ["z"], "queue_prefix": "p"}), later.clone());
        assert_eq!(tree.root(), &json!({"bus": {"name": "a", "reply_topics": ["z"], "queue_prefix": "p"}}));
        assert_eq!(tree.origin(&path("bus.reply_topics")), &later);
        assert_eq!(tree.origin(&path("bus.name")), &Origin::Default);
    }

    #[test]
    fn a_table_that_an_option_made_is_given_by_that_option() {
        let mut tree = Tree::default();
        let option = Origin::CommandLine("--set a.b".into());
        tree.set(&path("a.b"), json!(1), option.clone());
        assert_eq!((tree.origin(&path("a")), tree.origin(&path("aa"))), (&option, &Origin::Default));
    }

    #[test]
    fn an_element_of_a_list_can_be_changed_but_not_added() {
        let mut tree = Tree::default();
        tree.set(&[], json!({"list": [{"a": 1}]}), Origin::Default);
        tree.set(&path("list.0.a"), json!(2), Origin::Default);
        assert_eq!(tree.root(), &json!({"list": [{"a": 2}]}));
    }

    #[test]
    fn keys_are_written_as_in_toml() {
        let mut tree = Tree::default();
        tree.set(&[], json!({"rest": {"endpoints": [{"url": "u"}]}}), Origin::Default);
        assert_eq!(tree.written(&path("tools.limits.web_*.0")), r#"tools.limits."web_*".0"#);
        assert_eq!(tree.written(&path("rest.endpoints.0.url")), "rest.endpoints[0].url");
        assert_eq!(tree.written(&[String::new()]), r#""""#);
    }

    #[test]
    fn pointers_are_unescaped() {
        assert_eq!(from_pointer("/a~1b/~0/0"), ["a/b", "~", "0"]);
        assert!(from_pointer("").is_empty());
    }
}
