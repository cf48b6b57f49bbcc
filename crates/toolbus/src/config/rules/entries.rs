//! What an HTTP endpoint must be.

use serde::Deserialize;
use serde_json::{Map, Value};
use toolbus_config::{KeyPath, Part};
use toolbus_tools::rest::Client;

use super::{Checker, below};
use crate::config::rest::{Auth, Endpoint};

impl Checker<'_> {
    /// Lets the tools crate look at every endpoint, as far as that is in order by itself.
    pub(super) fn endpoints(&mut self) {
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
            let here: KeyPath = list.iter().cloned().chain([index.to_string()]).collect();
            // What is missing stands for the endpoint as a whole; the rest of it is looked at all the same.
            self.wrong.retain(|wrong| *wrong != here);
            members.retain(|key, _| !self.wrong.iter().any(|w| w.starts_with(&here) && w.get(here.len()) == Some(key)));
            complete(members);
            self.auth(&here, &endpoint);
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

    /// Tells of credentials that are not complete, or of another form than their `type` needs.
    fn auth(&mut self, here: &[String], endpoint: &Value) {
        let Some(auth) = endpoint.get("auth").and_then(|auth| Auth::deserialize(auth).ok()) else { return };
        let here = below(here, &["auth"]);
        for key in auth.missing() {
            let what = format!("`{key}` is missing; expected it here, or in `per_agent` for each agent");
            self.tell_at(vec![here.clone()], Part::Value, what);
        }
        for (agent, needed) in auth.misfits() {
            let at = below(&here, &["per_agent", agent.as_str()]);
            self.tell_at(vec![at], Part::Value, format!("expected {needed}, as the `type` of this `auth` needs"));
        }
        if !auth.missing().is_empty() || !auth.misfits().is_empty() {
            self.wrong.push(here);
        }
    }
}

/// Gives an endpoint what it must have, so that the rest of it can be looked at.
fn complete(endpoint: &mut Map<String, Value>) {
    for (key, harmless) in [("name", "endpoint"), ("description", "endpoint"), ("url", "http://localhost/")] {
        endpoint.entry(key).or_insert_with(|| Value::from(harmless));
    }
}
