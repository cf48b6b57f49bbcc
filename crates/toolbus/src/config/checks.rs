//! What the values of a configuration must be to each other: what no schema can say.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path as FilePath;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use toolbus_protocol::topic::{self, REQUEST_TOPICS};
use toolbus_tools::rest::Client;

use super::bus::BusConfig;
use super::invoke::InvokeConfig;
use super::problem::{Part, expected};
use super::registered;
use super::rest::Endpoint;
use super::tools::ToolsConfig;
use super::tree::{Path, Tree};
use super::validate::Difference;

/// Every contradiction between values that are, each for itself, in order.
///
/// Looks at the tree rather than at the finished configuration, because the rest of it may be wrong; what compares
/// itself with a wrong value (one in `wrong`) is left out.
pub(crate) fn contradictions(tree: &Tree, wrong: Vec<Path>) -> Vec<Difference> {
    let mut checker = Checker { tree, wrong, found: Vec::new() };
    let bus: Option<BusConfig> = checker.section("bus");
    let invoke: Option<InvokeConfig> = checker.section("invoke");
    if let Some(bus) = &bus {
        checker.bus(bus);
    }
    if let Some(invoke) = &invoke {
        checker.invoke(invoke);
    }
    if let (Some(bus), Some(invoke)) = (&bus, &invoke) {
        checker.topics(bus, invoke);
    }
    if let Some(tools) = checker.section("tools") {
        checker.tools(&tools);
    }
    checker.endpoints();
    checker.found
}

struct Checker<'a> {
    tree: &'a Tree,
    wrong: Vec<Path>,
    found: Vec<Difference>,
}

impl Checker<'_> {
    /// A section as far as it is in order: without its wrong values.
    fn section<T: DeserializeOwned>(&self, name: &str) -> Option<T> {
        let mut tree = self.tree.clone();
        for path in &self.wrong {
            // An element of a list takes its list along.
            let in_list = |depth: usize| path.get(..depth).and_then(|p| self.tree.get(p)).is_some_and(Value::is_array);
            let depth = (0..path.len()).find(|depth| in_list(*depth)).unwrap_or(path.len());
            tree.remove(path.get(..depth).unwrap_or_default());
        }
        let section = tree.get(&[name.to_owned()]).cloned().unwrap_or_else(|| Value::Object(Default::default()));
        serde_json::from_value(section).ok()
    }

    /// Tells of a contradiction between keys, at the first of them that was given; unless one of them is wrong anyway.
    fn tell(&mut self, keys: &[&str], what: impl Into<String>) {
        let paths: Vec<Path> = keys.iter().map(|key| key.split('.').map(str::to_owned).collect()).collect();
        let is_wrong = |path: &Path| self.wrong.iter().any(|wrong| wrong.starts_with(path) || path.starts_with(wrong));
        if paths.iter().any(is_wrong) {
            return;
        }
        let given = paths.iter().find(|path| self.tree.get(path).is_some());
        if let Some(path) = given.or(paths.first()) {
            self.found.push(Difference { path: path.clone(), part: Part::Value, what: what.into() });
        }
    }

    fn bus(&mut self, bus: &BusConfig) {
        if bus.exchange == bus.dead_letter_exchange {
            self.tell(
                &["bus.dead_letter_exchange", "bus.exchange"],
                "the same as `bus.exchange`; dead letters would come back as requests: expected another name",
            );
        }
        match (&bus.tls.cert, &bus.tls.key) {
            (Some(_), None) => self.tell(&["bus.tls.cert"], "needs `bus.tls.key`, the private key of this certificate"),
            (None, Some(_)) => self.tell(&["bus.tls.key"], "needs `bus.tls.cert`, the certificate of this key"),
            _ => {}
        }
        let files = [("bus.tls.ca", &bus.tls.ca), ("bus.tls.cert", &bus.tls.cert), ("bus.tls.key", &bus.tls.key)];
        for (key, file) in files {
            if let Some(error) = file.as_deref().and_then(unreadable) {
                self.tell(&[key], format!("the file cannot be read: {error}"));
            }
        }
    }

    fn invoke(&mut self, invoke: &InvokeConfig) {
        if invoke.max_timeout < invoke.default_timeout {
            self.tell(
                &["invoke.max_timeout", "invoke.default_timeout"],
                format!(
                    "max_timeout ({}) is shorter than default_timeout ({}); expected it to be at least as long",
                    invoke.max_timeout, invoke.default_timeout
                ),
            );
        }
        let prefetch = invoke.max_in_flight.saturating_add(invoke.max_waiting);
        if prefetch > usize::from(u16::MAX) {
            self.tell(
                &["invoke.max_waiting", "invoke.max_in_flight"],
                format!("max_in_flight + max_waiting is {prefetch}; AMQP hands over at most 65535 messages at a time"),
            );
        }
    }

    fn topics(&mut self, bus: &BusConfig, invoke: &InvokeConfig) {
        for pattern in &bus.reply_topics {
            let own = invoke.topics.iter().map(String::as_str).find(|request| overlap(pattern, request));
            let any = REQUEST_TOPICS.into_iter().find(|request| overlap(pattern, request));
            if let Some(request) = own.or(any) {
                self.tell(
                    &["bus.reply_topics", "invoke.topics"],
                    format!("`{pattern}` takes in requests (`{request}`); an answer there would be read as a request"),
                );
            }
        }
        let default = &invoke.default_reply_topic;
        let requests = invoke.topics.iter().map(String::as_str).chain(REQUEST_TOPICS);
        if let Some(request) = requests.into_iter().find(|request| topic::matches(request, default)) {
            self.tell(
                &["invoke.default_reply_topic", "invoke.topics"],
                format!("`{default}` is a topic of requests (`{request}`); an answer there would be read as a request"),
            );
        }
    }

    fn tools(&mut self, tools: &ToolsConfig) {
        let builtin = registered::builtin(tools);
        let mut names: BTreeMap<String, String> = BTreeMap::new();
        for tool in &builtin {
            let owner = "a tool that the daemon brings along (see `tools`)".to_owned();
            names.insert(tool.descriptor.name.to_string(), owner);
        }
        let endpoints = self.tree.get(&["rest".to_owned(), "endpoints".to_owned()]).and_then(Value::as_array);
        for (index, endpoint) in endpoints.into_iter().flatten().enumerate() {
            let Some(name) = endpoint.get("name").and_then(Value::as_str) else { continue };
            let key = format!("rest.endpoints.{index}.name");
            if let Some(owner) = names.get(name) {
                self.tell(&[&key], format!("`{name}` is also the name of {owner}; expected a name of its own"));
                continue;
            }
            let path: Path = key.split('.').map(str::to_owned).collect();
            names.insert(name.to_owned(), format!("the endpoint at {}", self.tree.origin(&path).place(Part::Value)));
        }
        // A wrong endpoint may be the missing tool.
        if self.wrong.iter().any(|path| path.first().is_some_and(|section| section == "rest")) {
            return;
        }
        let known: Vec<&str> = names.keys().map(String::as_str).collect();
        for (index, name) in tools.required.iter().enumerate().filter(|(_, name)| !known.contains(&name.as_str())) {
            let hint = if known.is_empty() { "there is none".to_owned() } else { expected(name, &known) };
            self.tell(
                &[&format!("tools.required.{index}")],
                format!("no tool `{name}` is configured, so the daemon would never be ready; {hint}"),
            );
        }
    }
}

impl Checker<'_> {
    /// Lets the tools crate look at every endpoint, as far as that is in order by itself.
    fn endpoints(&mut self) {
        let list = ["rest".to_owned(), "endpoints".to_owned()];
        let Some(endpoints) = self.tree.get(&list).and_then(Value::as_array).filter(|list| !list.is_empty()) else {
            return;
        };
        let client = match Client::new() {
            Ok(client) => client,
            Err(error) => return self.tell(&["rest.endpoints"], format!("no HTTP client can be made: {error}")),
        };
        for (index, endpoint) in endpoints.iter().enumerate() {
            let mut endpoint = endpoint.clone();
            let Some(members) = endpoint.as_object_mut() else { continue };
            let here: Path = list.iter().cloned().chain([index.to_string()]).collect();
            // What is missing stands for the endpoint as a whole; the rest of it is looked at all the same.
            self.wrong.retain(|wrong| *wrong != here);
            members.retain(|key, _| !self.wrong.iter().any(|w| w.starts_with(&here) && w.get(here.len()) == Some(key)));
            complete(members);
            // Each mistake is taken out, so that the next one is seen: at most one for every key.
            while let Ok(settings) = Endpoint::deserialize(&endpoint).map(|endpoint| endpoint.settings()) {
                let Err(mistake) = toolbus_tools::rest::tool(settings, &client) else { break };
                let key = |name: &str| format!("rest.endpoints.{index}.{name}");
                let related = match mistake.key() {
                    "url" => vec![key("url"), key("parameters")],
                    "body" => vec![key("body"), key("method")],
                    other => vec![key(other)],
                };
                self.tell(&related.iter().map(String::as_str).collect::<Vec<_>>(), mistake.to_string());
                let mistaken = here.iter().cloned().chain([mistake.key().to_owned()]).collect();
                self.wrong.push(mistaken);
                let Some(members) = endpoint.as_object_mut() else { break };
                if members.remove(mistake.key()).is_none() {
                    break;
                }
                complete(members);
            }
        }
    }
}

/// Gives an endpoint what it must have, so that the rest of it can be looked at.
fn complete(endpoint: &mut Map<String, Value>) {
    for (key, harmless) in [("name", "endpoint"), ("description", "endpoint"), ("url", "http://localhost/")] {
        endpoint.entry(key).or_insert_with(|| Value::from(harmless));
    }
}

fn unreadable(path: &FilePath) -> Option<std::io::Error> {
    File::open(path)
        .and_then(|file| file.metadata())
        .map_or_else(Some, |metadata| metadata.is_dir().then(|| std::io::Error::from(std::io::ErrorKind::IsADirectory)))
}

/// Whether there is a topic that both patterns match.
fn overlap(left: &str, right: &str) -> bool {
    let left: Vec<&str> = left.split('.').collect();
    let right: Vec<&str> = right.split('.').collect();
    // reachable[r]: whether the words of `left` so far and the first r words of `right` can stand for the same text.
    let mut reachable = vec![true];
    reachable.extend(right.iter().scan(true, |open, word| {
        *open = *open && *word == "#";
        Some(*open)
    }));
    for word in &left {
        let mut next = vec![*word == "#" && reachable.first() == Some(&true)];
        for (index, other) in right.iter().enumerate() {
            let at = |row: &[bool], index: usize| row.get(index).copied().unwrap_or(false);
            let same = *word == *other || *word == "*" || *other == "*";
            let either_takes_more = (*word == "#" && (at(&reachable, index + 1) || at(&next, index)))
                || (*other == "#" && (at(&next, index) || at(&reachable, index + 1)));
            next.push(either_takes_more || (same && at(&reachable, index)));
        }
        reachable = next;
    }
    reachable.last() == Some(&true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_overlap_when_a_topic_matches_both() {
        let table = [
            ("tool.result.#", "tool.invoke.#", false),
            ("tool.#", "tool.invoke.#", true),
            ("tool.*", "tool.invoke.#", true),
            ("#", "mcp.manage", true),
            ("mcp.manage.response.#", "mcp.manage", false),
            ("mcp.manage.#", "mcp.manage", true),
            ("*.manage", "mcp.*", true),
            ("#.end", "tool.#", true),
            ("#.end", "tool.*", true),
            ("a.b", "a.b.c", false),
            ("a.*", "a", false),
            ("a.#.b", "#.c", false),
        ];
        for (left, right, expected) in table {
            assert_eq!(overlap(left, right), expected, "{left} {right}");
            assert_eq!(overlap(right, left), expected, "{right} {left}");
        }
    }
}
