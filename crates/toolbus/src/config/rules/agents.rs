//! Checks that the names in sections of agents exist.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use toolbus_config::{KeyPath, Part, expected};
use toolbus_core::caller::IdentitySource;
use toolbus_core::rate::{Rate, RateRule, RateRules};
use toolbus_core::recipients::AllowedRecipients;

use super::{RuleChecker, below, path};
use crate::config::OutboundConfig;
use crate::config::agents::{AgentConfig, Agents, Rates, Recipients};
use crate::config::identity::{IdentityConfig, Unknown};
use crate::config::pattern_sites::{PatternSite, patterns};
use crate::config::toolsets::{ToolsetConfig, Toolsets};

/// The sections that make up the rules, as far as they are in order.
pub(crate) struct Sections {
    pub(crate) agents: Agents,
    pub(crate) outbound: BTreeMap<String, OutboundConfig>,
    pub(crate) toolsets: Toolsets,
    /// Whether every tool set is in order.
    pub(crate) has_every_toolset: bool,
    /// Whether there can be MCP servers, whose tools are not known yet.
    pub(crate) has_servers: bool,
}

impl Sections {
    /// Whether there are tools for looking at MCP servers: those of this daemon, or of a bridge.
    pub(super) fn has_management_tools(&self) -> bool {
        self.has_servers || self.toolsets.values().any(ToolsetConfig::is_of_bridge)
    }

    pub(super) fn patterns(&self) -> Vec<PatternSite<'_>> {
        patterns(&self.agents, &self.outbound)
    }
}

impl RuleChecker<'_> {
    pub(super) fn sections(&self) -> Sections {
        let (toolsets, has_every_toolset) = self.entries("toolsets");
        Sections {
            agents: self.entries("agents").0,
            outbound: self.entries("outbound").0,
            toolsets,
            has_every_toolset,
            has_servers: self.has_servers(),
        }
    }

    /// Reports contradictions in the sections of agents: missing tool sets and channels, recipients and rates that cannot
    /// be used, and bindings that are given twice.
    pub(super) fn agents(&mut self, sections: &Sections) {
        for (agent, config) in &sections.agents {
            let here = ["agents", agent.as_str()].map(str::to_owned);
            self.bound(&here, config, sections);
            self.recipients(&here, &config.outbound_allowlist, sections);
            self.rates(&here, &config.tool_rate_limits);
            let mut bindings = BTreeSet::new();
            for (index, binding) in config.bindings.iter().enumerate() {
                let here = below(&here, &["bindings", &index.to_string()]);
                let (channel, account) = (&binding.channel, &binding.account);
                if !bindings.insert((channel, account)) {
                    let what = format!("the binding `{channel}:{account}` is given twice");
                    self.report_at(vec![here.clone()], Part::Value, what);
                }
                binding.tool_rate_limits.iter().for_each(|rates| self.rates(&here, rates));
                self.recipients(&here, binding.outbound_allowlist.as_ref().unwrap_or(&Recipients::new()), sections);
            }
        }
    }

    fn bound(&mut self, here: &[String], config: &AgentConfig, sections: &Sections) {
        let names: Vec<&str> = sections.toolsets.keys().map(String::as_str).collect();
        let missing = |(_, set): &(usize, &String)| !sections.toolsets.contains_key(*set);
        for (index, set) in config.toolsets.iter().enumerate().filter(missing) {
            let hint = if names.is_empty() { "there is none at all".to_owned() } else { expected(set, &names) };
            let at = below(here, &["toolsets", &index.to_string()]);
            // A tool set with a mistake exists all the same.
            if self.tree.get(&["toolsets".to_owned(), set.clone()]).is_none() {
                self.report_at(vec![at], Part::Value, format!("there is no tool set `{set}`; {hint}"));
            }
        }
    }

    fn recipients(&mut self, here: &[String], recipients: &Recipients, sections: &Sections) {
        self.entries_of(here, recipients, sections);
        let channels: Vec<&str> = sections.outbound.keys().map(String::as_str).collect();
        for channel in recipients.keys().filter(|channel| !sections.outbound.contains_key(*channel)) {
            // A channel with a mistake exists all the same.
            if self.tree.get(&["outbound".to_owned(), channel.clone()]).is_some() {
                continue;
            }
            let hint =
                if channels.is_empty() { "there is none at all".to_owned() } else { expected(channel, &channels) };
            let at = below(here, &["outbound_allowlist", channel]);
            let what = format!("no section `outbound.{channel}` says which tools address people there; {hint}");
            self.report_at(vec![at], Part::Key, what);
        }
    }

    /// Reports entries that no recipient can match.
    fn entries_of(&mut self, here: &[String], recipients: &Recipients, sections: &Sections) {
        for (channel, entries) in recipients {
            let Some(outbound) = sections.outbound.get(channel) else { continue };
            for (index, entry) in entries.iter().enumerate() {
                if let Err(error) = AllowedRecipients::new(outbound.compare, std::slice::from_ref(entry)) {
                    let at = below(here, &["outbound_allowlist", channel, &index.to_string()]);
                    self.report_at(vec![at], Part::Value, error.to_string());
                }
            }
        }
    }

    /// Reports invalid rates, and two rates for one tool.
    fn rates(&mut self, here: &[String], rates: &Rates) {
        let here = below(here, &["tool_rate_limits"]);
        let mut rules = Vec::new();
        for (pattern, rate) in rates {
            match Rate::new(rate.rps, rate.burst) {
                Ok(rate) => rules.push(RateRule::new(pattern.clone(), rate)),
                Err(error) => self.report_at(vec![below(&here, &[pattern.as_str()])], Part::Value, error.to_string()),
            }
        }
        if let Err(error) = RateRules::new(rules) {
            self.report_at(vec![here], Part::Value, error.to_string());
        }
    }
}

impl RuleChecker<'_> {
    /// Reports rules for single agents on a bus where any client can claim to be any agent.
    pub(super) fn identity(&mut self, identity: &IdentityConfig, sections: &Sections) {
        if identity.source == IdentitySource::Broker || identity.trust_headers || identity.agent.is_some() {
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
        self.report_at(vec![rule, path("identity.source"), path("identity.trust_headers")], Part::Key, what);
    }

    /// Where the first endpoint, MCP server or specification has credentials of single agents.
    fn credentials_of_agents(&self) -> Option<KeyPath> {
        let has_agents = |entry: &Value| entry.pointer("/auth/per_agent").is_some();
        let endpoints = self.tree.get(&path("rest.endpoints")).and_then(Value::as_array).into_iter().flatten();
        let servers = self.tree.get(&path("mcp.servers")).and_then(Value::as_object).into_iter().flatten();
        let specifications = self.tree.get(&path("rest.openapi")).and_then(Value::as_object).into_iter().flatten();
        let endpoint = endpoints.enumerate().find(|(_, endpoint)| has_agents(endpoint));
        let server = servers.into_iter().find(|(_, server)| has_agents(server));
        let endpoint = endpoint.map(|(index, _)| below(&path("rest.endpoints"), &[&index.to_string()]));
        let entry = endpoint.or_else(|| server.map(|(name, _)| below(&path("mcp.servers"), &[name])));
        // A specification has one credential for each of its security schemes.
        let scheme = specifications.into_iter().find_map(|(name, specification)| {
            let mut schemes = specification.get("auth")?.as_object()?.iter();
            let (scheme, _) = schemes.find(|(_, credential)| credential.get("per_agent").is_some())?;
            Some(below(&path("rest.openapi"), &[name, "auth", scheme, "per_agent"]))
        });
        entry.map(|entry| below(&entry, &["auth", "per_agent"])).or(scheme)
    }
}
