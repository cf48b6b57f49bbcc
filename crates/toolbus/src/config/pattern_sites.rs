//! Every site in a configuration that holds a pattern of tool names for agents.

use std::collections::BTreeMap;

use toolbus_config::{KeyPath, Part, key_path};
use toolbus_core::pattern::Pattern;
use toolbus_protocol::topic;

use super::OutboundConfig;
use super::agents::{AgentConfig, Agents, AllowedTools, Rates};

/// A pattern and where it stands.
pub(crate) struct PatternSite<'a> {
    pub(crate) path: KeyPath,
    /// Whether the pattern is a key there.
    pub(crate) part: Part,
    pub(crate) pattern: &'a Pattern,
    names: PatternNames,
}

/// The names of tools that a pattern is compared with.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PatternNames {
    /// Published names: a pattern that allows must match no further tool.
    Published,
    /// Names within their tool sets as well: a prefix is no way around a restriction.
    Either,
}

impl PatternSite<'_> {
    /// Whether the pattern means a tool of these names.
    pub(crate) fn is_for(&self, published: &str, bare: &str) -> bool {
        match self.names {
            PatternNames::Published => self.pattern.matches(published),
            PatternNames::Either => self.pattern.matches_either(published, bare),
        }
    }

    /// Whether the pattern also matches names within tool sets.
    pub(crate) fn takes_bare_names(&self) -> bool {
        self.names == PatternNames::Either
    }
}

/// All patterns in the sections of agents and of channels.
pub(crate) fn patterns<'a>(agents: &'a Agents, outbound: &'a BTreeMap<String, OutboundConfig>) -> Vec<PatternSite<'a>> {
    let mut sites = PatternSites(Vec::new());
    for (agent, config) in agents {
        sites.of_agent(&["agents", agent.as_str()], config);
    }
    for (channel, config) in outbound {
        sites.list(&["outbound", channel, "tools"], &config.tools, PatternNames::Either);
    }
    sites.0
}

struct PatternSites<'a>(Vec<PatternSite<'a>>);

impl<'a> PatternSites<'a> {
    fn of_agent(&mut self, here: &[&str], config: &'a AgentConfig) {
        self.allowed(here, &config.allowed_tools);
        self.list(&[here, &["denied_tools"]].concat(), &config.denied_tools, PatternNames::Either);
        self.rates(here, &config.tool_rate_limits);
        self.keys(&[here, &["arguments"]].concat(), config.arguments.keys());
        for (index, binding) in config.bindings.iter().enumerate() {
            let index = index.to_string();
            let here = [here, &["bindings", &index]].concat();
            self.allowed(&here, &binding.allowed_tools);
            self.list(&[&here, ["denied_tools"].as_slice()].concat(), &binding.denied_tools, PatternNames::Either);
            binding.tool_rate_limits.iter().for_each(|rates| self.rates(&here, rates));
        }
    }

    fn allowed(&mut self, here: &[&str], allowed: &'a AllowedTools) {
        self.list(&[here, &["allowed_tools"]].concat(), allowed.patterns(), PatternNames::Published);
    }

    /// A pattern that is the topic of lists or of hints is no tool name: it limits these requests.
    fn rates(&mut self, here: &[&str], rates: &'a Rates) {
        let of_tools =
            rates.keys().filter(|pattern| ![topic::TOOL_LIST, topic::TOOL_HINTS].contains(&pattern.as_str()));
        self.keys(&[here, &["tool_rate_limits"]].concat(), of_tools);
    }

    fn list(&mut self, here: &[&str], patterns: &'a [Pattern], names: PatternNames) {
        for (index, pattern) in patterns.iter().enumerate() {
            let path = key_path(&[here, &[&index.to_string()]].concat());
            self.0.push(PatternSite { path, part: Part::Value, pattern, names });
        }
    }

    fn keys(&mut self, here: &[&str], patterns: impl Iterator<Item = &'a Pattern>) {
        for pattern in patterns {
            let path = key_path(&[here, &[pattern.as_str()]].concat());
            self.0.push(PatternSite { path, part: Part::Key, pattern, names: PatternNames::Either });
        }
    }
}
