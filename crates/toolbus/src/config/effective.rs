//! The values of a configuration, key by key, with where each was given.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;
use toolbus_config::{KeyPath, Origin, Part, Tree, push_key};

use super::{Config, KeyedSecret};

/// Stands for a value with a secret in it.
const SECRET: &str = "(secret)";

/// Text that replaces a forced argument.
const NOT_SHOWN: &str = "(not shown)";

/// A value that is in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EffectiveValue {
    /// The key, as it is written in TOML.
    pub key: String,
    /// The value as JSON, without secrets.
    pub value: String,
    /// Where it was given, such as `toolbus.toml:3:1`; `None`: it is the default.
    pub origin: Option<String>,
}

/// Locations of the values that the sources gave, by key. They do not count in a comparison: the same values may be
/// written elsewhere.
#[derive(Debug, Clone, Default)]
pub(crate) struct Origins(Arc<BTreeMap<String, String>>);

impl PartialEq for Origins {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Origins {
    /// The locations of the values in a tree.
    pub(crate) fn of_tree(tree: &Tree) -> Self {
        let mut found = BTreeMap::new();
        each_value(tree.root(), &mut KeyPath::new(), "", &mut |path, key, value| {
            let origin = tree.origin(path);
            // An empty table gives no value: its keys have their defaults.
            if *origin != Origin::Default && !value.is_object() {
                found.insert(key.to_owned(), origin.location(Part::Value));
            }
        });
        Self(Arc::new(found))
    }

    /// The location of the value of a key, or of the value that it is a part of.
    fn of(&self, key: &str) -> Option<&str> {
        let around = key.rmatch_indices(['.', '[']).filter_map(|(end, _)| key.get(..end));
        let found = std::iter::once(key).chain(around).find_map(|key| self.0.get(key));
        found.map(String::as_str)
    }
}

impl Config {
    /// Returns the values in force that `is_meant` selects by key and location, in the order of the sections. Tables of
    /// the file of MCP servers, and of specifications, are not among them.
    #[must_use]
    pub fn effective(&self, is_meant: impl Fn(&str, Option<&str>) -> bool) -> Vec<EffectiveValue> {
        let (mut found, secrets) = (Vec::new(), self.secrets());
        let whole = serde_json::to_value(self).unwrap_or_default();
        each_value(&whole, &mut KeyPath::new(), "", &mut |path, key, value| {
            let origin = self.origins.of(key);
            if value.is_null() || !is_meant(key, origin) {
                return;
            }
            let value = if is_forced(path) { NOT_SHOWN.to_owned() } else { without_secrets(value, &secrets) };
            found.push(EffectiveValue { key: key.to_owned(), value, origin: origin.map(str::to_owned) });
        });
        found
    }
}

/// Whether a value is of forced arguments, which may be for the tool alone.
fn is_forced(path: &[String]) -> bool {
    path.first().is_some_and(|section| section == "agents") && path.iter().any(|part| part == "arguments")
}

/// Visits every value that is no table, and every list without tables, with its path and its key.
fn each_value(value: &Value, path: &mut KeyPath, text: &str, visit: &mut impl FnMut(&[String], &str, &Value)) {
    let mut below = |key: String, value: &Value, is_element: bool| {
        let mut text = text.to_owned();
        push_key(&mut text, &key, is_element);
        path.push(key);
        each_value(value, path, &text, visit);
        path.pop();
    };
    match value {
        Value::Object(entries) if !entries.is_empty() => {
            entries.iter().for_each(|(key, value)| below(key.clone(), value, false));
        }
        Value::Array(elements) if elements.iter().any(Value::is_object) => {
            elements.iter().enumerate().for_each(|(index, value)| below(index.to_string(), value, true));
        }
        value => visit(path, text, value),
    }
}

/// A value as JSON, unless it contains a secret, even one that is too short to be removed from texts.
fn without_secrets(value: &Value, secrets: &[KeyedSecret]) -> String {
    // A secret may be the value of several keys, and has one of them.
    let is_secret = secrets.iter().any(|given| has_text(value, given.secret.expose()));
    if is_secret { SECRET.to_owned() } else { value.to_string() }
}

fn has_text(value: &Value, text: &str) -> bool {
    match value {
        Value::String(whole) => whole.contains(text),
        Value::Array(elements) => elements.iter().any(|element| has_text(element, text)),
        Value::Object(entries) => entries.values().any(|entry| has_text(entry, text)),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Override, Sources};

    fn effective(file: &str, overrides: Vec<Override>) -> Vec<EffectiveValue> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.toml");
        std::fs::write(&path, file).unwrap();
        let environment = [("PASSWORD".to_owned(), "xyz".to_owned())].into();
        let sources = Sources { files: vec![path], environment, overrides };
        let folder = format!("{}/", folder.path().display());
        let without_folder = |mut value: EffectiveValue| {
            value.origin = value.origin.map(|origin| origin.replace(&folder, ""));
            value
        };
        Config::load(&sources).unwrap().config.effective(|_, _| true).into_iter().map(without_folder).collect()
    }

    #[test]
    fn every_value_is_shown_with_its_origin() {
        let file = "[invoke]\nmax_in_flight = 7\n[agents.ana]\nallowed_tools = ['one']\n[[commands]]\nname = 'one'\n\
                    description = 'x'\ncommand = ['true']\nsandbox = false\n[agents.bea]\n[identity]\n\
                    trust_headers = true\n";
        let all = effective(file, vec![Override::new("invoke.drain_timeout", "3s")]);
        let of = |key: &str| {
            let found = all.iter().find(|value| value.key == key).unwrap_or_else(|| panic!("{key}: {all:#?}"));
            (found.value.as_str(), found.origin.as_deref())
        };
        assert_eq!(of("invoke.max_in_flight"), ("7", Some("a.toml:2:17")));
        assert_eq!(of("invoke.drain_timeout"), ("\"3s\"", Some("command line --set invoke.drain_timeout")));
        assert_eq!(of("commands[0].name"), ("\"one\"", Some("a.toml:6:8")));
        assert_eq!(of("agents.ana.allowed_tools"), ("[\"one\"]", Some("a.toml:4:17")));
        assert_eq!(of("invoke.max_waiting").1, None);
        assert_eq!(of("agents.bea.denied_tools").1, None);
    }

    #[test]
    fn no_secret_is_shown_however_short() {
        let file = "[store]\nurl = 'redis://:xyz@localhost/0'\n\
                    [mcp.servers.files]\ncommand = 'x'\nargs = ['--token', 'xyz']\n\
                    env = { API_KEY = { env = 'PASSWORD' } }\n\
                    [agents.ana.arguments.'crm.*']\nkey = 'xyz-of-ana'\n[identity]\ntrust_headers = true\n\
                    [[rest.endpoints]]\nname = 'a'\ndescription = 'x'\nurl = 'http://localhost/?api_key=xyz&key=%78yz%2F'\n";
        let all = effective(file, vec![]);
        assert!(all.iter().any(|value| value.value == SECRET), "{all:#?}");
        assert!(!all.iter().any(|value| value.value.contains("yz")), "{all:#?}");
    }
}
