//! Checks of list entries that become tools: HTTP endpoints and commands.

use serde::Deserialize;
use serde_json::{Map, Value};
use toolbus_config::{KeyPath, Part, key_path};
use toolbus_scripts::commands::{self, CommandConfig};
use toolbus_tools::rest::{self, Auth, Endpoint, RestClient};

use super::{RuleChecker, below};

/// A program that is there wherever this one runs, also where there is no shell.
const STAND_IN: &str = "/proc/self/exe";

/// Adds the required keys of an entry, so that the rest of it can be checked.
type Complete = fn(&mut Map<String, Value>);

/// The key of a mistake in an entry, and the mistake.
type KeyMistake = (&'static str, String);

impl RuleChecker<'_> {
    /// Lets the tools crate look at every endpoint, as far as that is in order by itself.
    pub(super) fn endpoints(&mut self) {
        let entries = self.list(&["rest", "endpoints"], complete_endpoint);
        if entries.is_empty() {
            return;
        }
        let client = match RestClient::new(Default::default()) {
            Ok(client) => client,
            Err(error) => return self.report(&["rest.endpoints"], format!("no HTTP client can be made: {error}")),
        };
        for (here, endpoint) in entries {
            self.auth(&here, &endpoint);
            self.entry(&here, endpoint, complete_endpoint, |endpoint| {
                let endpoint = Endpoint::deserialize(endpoint).ok()?;
                rest::tool(&endpoint, &client).err().map(|mistake| (mistake.key(), mistake.to_string()))
            });
        }
    }

    /// Reports files and specifications of endpoints that cannot be used.
    pub(super) fn described(&mut self) {
        for (at, what) in &self.described.problems {
            self.report_at(at.clone(), Part::Value, what.clone());
        }
    }

    /// Lets the scripts crate look at every command, as far as that is in order by itself.
    pub(super) fn commands(&mut self) {
        for (here, command) in self.list(&["commands"], complete_command) {
            self.entry(&here, command, complete_command, |command| {
                let command = CommandConfig::deserialize(command).ok()?;
                commands::described(&command).err().map(|mistake| (mistake.key(), mistake.to_string()))
            });
        }
    }

    /// The entries of a list, each with its path, without its wrong values and complete.
    fn list(&mut self, keys: &[&str], complete: Complete) -> Vec<(KeyPath, Value)> {
        let list = key_path(keys);
        let entries = self.tree.get(&list).and_then(Value::as_array);
        let mut found = Vec::new();
        for (index, entry) in entries.into_iter().flatten().enumerate() {
            let mut entry = entry.clone();
            let Some(table) = entry.as_object_mut() else { continue };
            let here = below(&list, &[&index.to_string()]);
            // A missing key is reported at the entry as a whole; the rest of it is checked all the same.
            self.wrong.retain(|wrong| *wrong != here);
            table.retain(|key, _| !self.wrong.iter().any(|w| w.starts_with(&here) && w.get(here.len()) == Some(key)));
            complete(table);
            found.push((here, entry));
        }
        found
    }

    /// Reports every mistake in an entry, at most one for each key. Removes each, so that the next one is found.
    fn entry(
        &mut self,
        here: &[String],
        mut entry: Value,
        complete: Complete,
        mistake: impl Fn(&Value) -> Option<KeyMistake>,
    ) {
        while let Some((key, what)) = mistake(&entry) {
            let related: &[&str] = match key {
                "url" => &["url", "parameters"],
                "body" => &["body", "method"],
                "command" => &["command", "parameters"],
                "allow_dash" => &["allow_dash", "command"],
                other => &[other],
            };
            let path = below(here, &[key]);
            // The stand-in for a wrong key may be wrong itself, such as without /proc.
            if self.wrong.contains(&path) {
                break;
            }
            self.report_at(related.iter().map(|key| below(here, &[*key])).collect(), Part::Value, what);
            self.wrong.push(path);
            let Some(table) = entry.as_object_mut() else { break };
            if table.remove(key).is_none() {
                break;
            }
            complete(table);
        }
    }

    /// Reports credentials that are incomplete, or not of the form that their `type` needs.
    fn auth(&mut self, here: &[String], endpoint: &Value) {
        let Some(auth) = endpoint.get("auth").and_then(|auth| Auth::deserialize(auth).ok()) else { return };
        let here = below(here, &["auth"]);
        for key in auth.missing() {
            let what = format!("`{key}` is missing; expected it here, or in `per_agent` for each agent");
            self.report_at(vec![here.clone()], Part::Value, what);
        }
        for agent in auth.misfits() {
            let at = below(&here, &["per_agent", agent.as_str()]);
            let what = format!("expected {}, as the `type` of this `auth` needs", auth.needed());
            self.report_at(vec![at], Part::Value, what);
        }
        if !auth.missing().is_empty() || !auth.misfits().is_empty() {
            self.wrong.push(here);
        }
    }
}

fn complete_endpoint(endpoint: &mut Map<String, Value>) {
    for (key, harmless) in [("name", "endpoint"), ("description", "endpoint"), ("url", "http://localhost/")] {
        endpoint.entry(key).or_insert_with(|| Value::from(harmless));
    }
}

fn complete_command(command: &mut Map<String, Value>) {
    for key in ["name", "description"] {
        command.entry(key).or_insert_with(|| Value::from("command"));
    }
    if !command.contains_key("command") {
        command.insert("command".to_owned(), Value::from(vec![STAND_IN]));
        // Settings of its missing arguments are not reported as unused.
        command.insert("stdin".to_owned(), Value::from("arguments"));
    }
}
