//! Whether agents are recognised well enough for the rules that are made for them.

use serde_json::Value;
use toolbus_config::{KeyPath, Part};

use super::agents::Sections;
use super::{Checker, below, path};
use crate::config::identity::{IdentityConfig, Source, Unknown};

impl Checker<'_> {
    /// Tells of rules for single agents on a bus where anybody can claim to be any agent.
    pub(super) fn identity(&mut self, identity: &IdentityConfig, sections: &Sections) {
        if identity.source == Source::Broker || identity.trust_headers || identity.agent.is_some() {
            return;
        }
        let section = sections.agents.iter().find(|(_, config)| config.is_restricting());
        let rule: KeyPath = match (identity.unknown, section) {
            (_, Some((agent, _))) => vec!["agents".to_owned(), agent.to_string()],
            (Some(Unknown::Deny), None) => path("identity.unknown"),
            (_, None) => match self.credentials_of_agents() {
                Some(path) => path,
                None => return,
            },
        };
        let what = "cannot be relied on: under `source = \"header\"`, any sender can claim to be any agent; set \
                    `identity.source = \"broker\"`, or, on a bus whose senders are all trusted, \
                    `identity.trust_headers = true`";
        self.tell_at(vec![rule, path("identity.source"), path("identity.trust_headers")], Part::Key, what);
    }

    /// Where the first endpoint or MCP server has credentials of single agents.
    fn credentials_of_agents(&self) -> Option<KeyPath> {
        let has_agents = |entry: &Value| entry.pointer("/auth/per_agent").is_some();
        let endpoints = self.tree.get(&path("rest.endpoints")).and_then(Value::as_array).into_iter().flatten();
        let servers = self.tree.get(&path("mcp.servers")).and_then(Value::as_object).into_iter().flatten();
        let endpoint = endpoints.enumerate().find(|(_, endpoint)| has_agents(endpoint));
        let server = servers.into_iter().find(|(_, server)| has_agents(server));
        let endpoint = endpoint.map(|(index, _)| below(&path("rest.endpoints"), &[&index.to_string()]));
        let entry = endpoint.or_else(|| server.map(|(name, _)| below(&path("mcp.servers"), &[name])))?;
        Some(below(&entry, &["auth", "per_agent"]))
    }
}
