//! Warnings about valid but suspicious rules for agents.

use std::ops::Bound;
use std::sync::Arc;

use serde_json::Value;
use toolbus_core::caller::AgentName;
use toolbus_core::caller::IdentitySource;
use toolbus_core::policy::{Profile, ProfileRole};
use toolbus_core::recipients::declared;

use super::mcp;
use crate::config::agents::is_default;
use crate::config::agents::{AllowedTools, BindingConfig, matches_either};
use crate::config::identity::sidecar_topic;
use crate::config::pattern_sites::{PatternSite, patterns};
use crate::config::tool_names::{KnownTool, KnownTools};
use crate::config::{AgentConfig, Config, DEFAULT_SECTION, OutboundConfig, daemon};

/// Warnings about valid but suspicious settings.
pub(super) fn warnings(config: &Config) -> Vec<String> {
    let known = config.known_tools();
    let mut warnings = identity(config);
    warnings.extend(dead_patterns(config, &known));
    warnings.extend(outbound(config, &known));
    let bound = |set: &String| config.agents.values().any(|agent| agent.toolsets.contains(set));
    let unbound = config.toolsets.keys().filter(|set| !bound(set));
    warnings.extend(unbound.map(|set| format!("toolsets.{set}: no agent has this tool set")));
    for (agent, section) in &config.agents {
        PolicyRules { config, known: &known, location: format!("agents.{agent}"), agent: section, binding: None }
            .warn(&mut warnings);
    }
    if !config.agents.contains_key(DEFAULT_SECTION) && !config.denies_unknown() {
        let unlisted = AgentConfig::default();
        let location = format!("agents.{DEFAULT_SECTION}");
        PolicyRules { config, known: &known, location, agent: &unlisted, binding: None }.recipients(&mut warnings);
    }
    warnings
}

fn identity(config: &Config) -> Vec<String> {
    let mut warnings = Vec::new();
    let identity = &config.identity;
    let restricting = config.agents.values().any(AgentConfig::is_restricting);
    if identity.source == IdentitySource::Header && identity.trust_headers && restricting {
        warnings.push(
            "identity.trust_headers: the rules for agents hold only while no sender on the bus claims to be another"
                .to_owned(),
        );
    }
    // Sections with rules are refused there.
    let is_claimed = identity.source == IdentitySource::Header && !identity.trust_headers && identity.agent.is_none();
    if is_claimed && config.denies_unknown() {
        warnings.push(
            "identity.source: callers without a section have no tool, but under \"header\" any sender can claim to be an \
             agent that has one; write \"broker\", or, on a bus whose senders are all trusted, \
             `identity.trust_headers = true`. For limits alone, write `identity.unknown = \"default\"`"
                .to_owned(),
        );
    }
    let under_broker = [("users", identity.users.is_empty()), ("delegates", identity.delegates.is_empty())];
    for (key, _) in under_broker.iter().filter(|(_, is_empty)| identity.source == IdentitySource::Header && !is_empty) {
        warnings.push(format!("identity.{key}: not used, because `identity.source` is \"header\""));
    }
    let may_have_peers = config.mcp.is_configured() || config.roles().contains(&daemon::Role::Scripts);
    if identity.source == IdentitySource::Broker
        && identity.agent.is_none()
        && identity.unknown.is_none()
        && may_have_peers
    {
        warnings.push(
            "identity.source: under \"broker\", agents that send no `user_id`, as RockBot's do, get no answer at all; \
             give each of them a sidecar with `identity.agent`, or have them set `user_id`. Where there are none, write \
             `identity.unknown`"
                .to_owned(),
        );
    }
    if identity.source == IdentitySource::Broker {
        // Reply topics end with the name of their agent.
        let ends_with = |longer: &AgentName, name: &AgentName| {
            longer.as_str().strip_suffix(name.as_str()).is_some_and(|before| before.ends_with('.'))
        };
        for longer in config.agents.keys() {
            for name in config.agents.keys().filter(|name| ends_with(longer, name)) {
                warnings.push(format!(
                    "agents.\"{longer}\": `{name}` may have answers sent to its topics; use a name without a dot"
                ));
            }
        }
    }
    if let Some(own) = &identity.agent {
        let is_other = |agent: &&AgentName| *agent != own && !is_default(agent);
        for agent in config.agents.keys().filter(is_other) {
            warnings.push(format!("agents.{agent}: not used, because this daemon is the sidecar of `{own}` alone"));
        }
        if config.bus.queue_prefix.as_deref() == Some("toolbus") {
            warnings.push(format!(
                "bus.queue_prefix: the queues of daemons that serve everybody; a sidecar drops what other agents ask \
                 there. Leave it out, or use the topic `{}` with queues of its own",
                sidecar_topic(own)
            ));
        }
    }
    for endpoint in config.rest.all().filter(|endpoint| endpoint.has_idle_credential()) {
        warnings.push(format!(
            "rest.endpoints: `{}` never sends its shared credential, because `per_agent` is there",
            endpoint.name
        ));
    }
    warnings
}

fn dead_patterns(config: &Config, known: &KnownTools) -> Vec<String> {
    let in_sets: Vec<_> = known.iter().filter(|(_, tool)| tool.set.is_some()).collect();
    let means_any = |site: &PatternSite<'_>| {
        // Names that begin as the pattern does stand together.
        let begins = site.pattern.literal_prefix();
        let near = known
            .range::<str, _>((Bound::Included(begins), Bound::Unbounded))
            .take_while(|(name, _)| name.starts_with(begins));
        near.chain(in_sets.iter().copied()).any(|(name, tool)| site.is_for(name, &tool.bare_name))
    };
    patterns(&config.agents, &config.outbound)
        .into_iter()
        .filter(|site| !means_any(site) && !config.may_be_of_a_server(site))
        .map(|site| {
            let list: Vec<&str> = site.path.iter().take(site.path.len() - 1).map(String::as_str).collect();
            let what = if config.mcp.is_configured() { mcp::UNKNOWN } else { "matches no tool" };
            format!("{}: `{}` {what}", list.join("."), site.pattern)
        })
        .collect()
}

/// Rules of an agent, or of one binding of it.
struct PolicyRules<'a> {
    config: &'a Config,
    known: &'a KnownTools,
    location: String,
    agent: &'a AgentConfig,
    binding: Option<&'a BindingConfig>,
}

impl PolicyRules<'_> {
    fn warn(&self, warnings: &mut Vec<String>) {
        if !self.may_use_servers() && !self.known.iter().any(|(name, tool)| self.may_use(name, tool)) {
            warnings.push(format!("{}: has no tool at all", self.location));
        }
        self.unbound(warnings);
        self.recipients(warnings);
        if self.binding.is_none() {
            for binding in &self.agent.bindings {
                let location = format!("{}.bindings ({}:{})", self.location, binding.channel, binding.account);
                PolicyRules { location, binding: Some(binding), ..*self }.warn(warnings);
            }
        }
    }

    /// Warns of allowed tools of sets that the agent does not have.
    fn unbound(&self, warnings: &mut Vec<String>) {
        let allowed = self.binding.map_or(&self.agent.allowed_tools, |binding| &binding.allowed_tools);
        for (set, config) in self.config.toolsets.iter().filter(|(set, _)| !self.agent.toolsets.contains(set)) {
            let start = format!("{}.", config.prefix(set));
            for pattern in allowed.patterns().iter().filter(|one| one.literal_prefix().starts_with(&start)) {
                warnings.push(format!(
                    "{}.allowed_tools: `{pattern}` is of the tool set `{set}`, which the agent does not have; add it \
                     to its `toolsets`",
                    self.location
                ));
            }
        }
    }

    /// Warns of channels on which any recipient may be addressed. A binding opens none that the agent has a list for.
    fn recipients(&self, warnings: &mut Vec<String>) {
        if self.binding.is_some() {
            return;
        }
        let lists = &self.agent.outbound_allowlist;
        for (channel, outbound) in self.config.outbound.iter().filter(|(channel, _)| !lists.contains_key(*channel)) {
            let is_for = |name: &str, tool: &KnownTool| matches_either(&outbound.tools, name, &tool.bare_name);
            if self.known.iter().any(|(name, tool)| is_for(name, tool) && self.may_use(name, tool)) {
                warnings.push(format!(
                    "{}: may address anybody on `{channel}`, because its `outbound_allowlist` has no list for it",
                    self.location
                ));
            }
        }
    }

    /// Whether the agent may have tools of MCP servers or other daemons, which are not known yet.
    fn may_use_servers(&self) -> bool {
        let lists = [Some(&self.agent.allowed_tools), self.binding.map(|binding| &binding.allowed_tools)];
        self.config.has_unknown_tools() && lists.into_iter().flatten().all(|list| *list != AllowedTools::None)
    }

    fn may_use(&self, name: &Arc<str>, tool: &KnownTool) -> bool {
        let passes = |allowed: &AllowedTools, denied: &[_]| {
            allowed.allows(name) && !matches_either(denied, name, &tool.bare_name)
        };
        let profile =
            Profile::all().into_iter().find(|one| self.agent.profile.as_deref().is_some_and(|name| one.is_named(name)));
        let role = profile.map(|profile| profile.judge(name, &tool.bare_name, &tool.source));
        tool.is_bound(self.agent)
            && role.is_none_or(|role| role == ProfileRole::Allowed)
            && passes(&self.agent.allowed_tools, &self.agent.denied_tools)
            && self.binding.is_none_or(|binding| passes(&binding.allowed_tools, &binding.denied_tools))
    }
}

/// Warnings about arguments that may name recipients and are not compared with a list, or are refused beside one.
fn outbound(config: &Config, known: &KnownTools) -> Vec<String> {
    let listed = config.outbound.iter().filter(|(channel, _)| config.agents.values().any(|agent| agent.lists(channel)));
    listed.flat_map(|(channel, outbound)| outbound.warnings(channel, known)).collect()
}

impl AgentConfig {
    /// Whether the agent lists recipients on a channel, be it for one binding alone.
    fn lists(&self, channel: &str) -> bool {
        let mut bindings = self.bindings.iter().filter_map(|binding| binding.outbound_allowlist.as_ref());
        self.outbound_allowlist.contains_key(channel) || bindings.any(|lists| lists.contains_key(channel))
    }
}

impl OutboundConfig {
    fn warnings<'a>(&'a self, channel: &'a str, known: &'a KnownTools) -> impl Iterator<Item = String> + 'a {
        let tools = known.iter().filter(|(name, tool)| matches_either(&self.tools, name, &tool.bare_name));
        tools.filter_map(move |(name, tool)| {
            let what = tool.unknown_arguments()?;
            Some(format!("outbound.{channel}: `{name}` {what}"))
        })
    }
}

impl KnownTool {
    /// Describes the treatment of arguments that no schema declares, if the tool may get any.
    fn unknown_arguments(&self) -> Option<&'static str> {
        let schema = self.parameters.as_ref();
        if schema.and_then(|schema| schema.get("additionalProperties")) == Some(&Value::Bool(false)) {
            None
        } else if schema.is_some_and(|schema| !declared(schema).is_empty()) {
            Some(
                "has an open schema; arguments that the schema does not declare are refused for agents with an \
                 `outbound_allowlist`",
            )
        } else {
            Some(
                "has no schema that declares its arguments; those that hold no recipient are refused for agents with an \
                 `outbound_allowlist`",
            )
        }
    }
}
