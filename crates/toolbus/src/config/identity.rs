//! `[identity]`: how callers are distinguished.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolbus_core::caller::AgentName;
use toolbus_core::caller::{Identity, IdentitySource, Sidecar};
use toolbus_core::policy::UnknownCallers;
use toolbus_protocol::topic::{TOOL_INVOKE, TOOL_LIST, control_of};

use super::agents::is_default;
use super::{AgentConfig, Config, DEFAULT_SECTION};

/// Most agents that a text names.
const MAX_NAMED: usize = 10;

/// Identification of callers.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct IdentityConfig {
    /// Source of the name of the agent that sent a request.
    pub source: IdentitySource,
    /// Says that every sender on the bus may be believed: needed for rules about single agents under "header".
    pub trust_headers: bool,
    /// Treatment of callers that have no section in `agents`. Absent: "deny" as soon as any agent has a section, else
    /// "default".
    pub unknown: Option<Unknown>,
    /// The one agent that this daemon serves, as its sidecar; absent: it serves all.
    pub agent: Option<AgentName>,
    /// Users of the broker and the agents that they are, under "broker"; a user that is not listed is the agent of its
    /// own name.
    #[schemars(extend("maxProperties" = 10_000, "propertyNames" = {"format": "toolbus-name"}))]
    pub users: BTreeMap<String, AgentName>,
    /// Users of the broker, under "broker", that may speak for any agent: other daemons, which pass calls on and name the
    /// agent of each in `rb-source`.
    #[schemars(length(max = 1_000), extend("items" = {"type": "string", "format": "toolbus-name"}))]
    pub delegates: BTreeSet<String>,
}

/// Treatment of callers without a section.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Unknown {
    /// The rules of `agents.default`.
    Default,
    /// No tools at all.
    Deny,
}

impl Config {
    /// Returns the rules by which callers are identified.
    #[must_use]
    pub fn identity(&self) -> Identity {
        let topic = self.sidecar_topic();
        let agent = self.identity.agent.clone();
        Identity {
            source: self.identity.source,
            users: self.identity.users.clone(),
            delegates: self.identity.delegates.clone(),
            sidecar: agent.zip(topic).map(|(agent, topic)| Sidecar { agent, topic }),
        }
    }

    /// Whether a caller without a section has no tools at all.
    #[must_use]
    pub fn denies_unknown(&self) -> bool {
        match self.identity.unknown {
            Some(unknown) => unknown == Unknown::Deny,
            None => self.agents.keys().any(|agent| !is_default(agent)),
        }
    }

    /// Describes what a reload of this configuration would open to callers without a section, although
    /// `identity.unknown` is not set: for a daemon that gives them `running`, and whose `agents` have a section
    /// (`default` is no agent). `None` if it opens nothing, or `identity.unknown` is set.
    #[must_use]
    pub fn widening(&self, running: UnknownCallers, agents: &[&str]) -> Option<String> {
        let keeps_default = self.agents.contains_key(DEFAULT_SECTION);
        let opens = match running {
            UnknownCallers::Denied => true,
            UnknownCallers::Restricted => !keeps_default,
            UnknownCallers::Open => false,
        };
        if !opens || self.identity.unknown.is_some() || self.denies_unknown() {
            return None;
        }
        let (lost, before) = match running {
            UnknownCallers::Restricted => ("the section agents.default is gone".to_owned(), "are restricted"),
            _ if agents.is_empty() => ("identity.unknown is gone".to_owned(), "are denied every tool"),
            _ => (format!("the sections of agents are gone ({})", listed(agents)), "are denied every tool"),
        };
        let then = if keeps_default { "get what agents.default allows" } else { "get every tool" };
        Some(format!(
            "{lost}, so that callers without a section, who {before} now, would {then}; put back what is gone (a file may \
             be empty or half written), or write identity.unknown = \"default\" if this is meant"
        ))
    }

    /// Who may use tools, in one line: the agents with a section, and what every other caller gets.
    #[must_use]
    pub fn callers(&self) -> String {
        if let Some(agent) = &self.identity.agent {
            return format!("{agent} alone, as its sidecar");
        }
        let by = match self.identity.source {
            IdentitySource::Header => "the header rb-source",
            IdentitySource::Broker => "their login",
        };
        let is_restricting = self.agents.get(DEFAULT_SECTION).is_some_and(AgentConfig::is_restricting);
        let gets = match (self.denies_unknown(), is_restricting) {
            (true, _) => "is denied every tool",
            (false, true) => "has the rules of agents.default",
            (false, false) if self.toolsets.is_empty() => "may use every tool",
            (false, false) => "may use every tool that is in no tool set",
        };
        let named: Vec<&str> = self.agents.keys().filter(|name| !is_default(name)).map(|name| name.as_str()).collect();
        match named.len() {
            0 => format!("every caller {gets}"),
            count => format!("{count}, known by {by}: {}; every other caller {gets}", listed(&named)),
        }
    }

    /// Start of the name of every queue of the daemon; a sidecar has one of its own.
    #[must_use]
    pub fn queue_prefix(&self) -> String {
        match (&self.bus.queue_prefix, &self.identity.agent) {
            (Some(prefix), _) => prefix.clone(),
            (None, Some(agent)) => format!("{DEFAULT_PREFIX}.{agent}"),
            (None, None) => DEFAULT_PREFIX.to_owned(),
        }
    }

    /// Topics of requests: those that are configured and, for a sidecar, its own.
    #[must_use]
    pub fn invoke_topics(&self) -> Vec<String> {
        let own = self.sidecar_topic().filter(|topic| !self.invoke.topics.contains(topic));
        self.invoke.topics.iter().cloned().chain(own).collect()
    }

    /// Whether the daemon serves requests of agents to all daemons, such as on `tool.list`: if it takes calls from
    /// `tool.invoke`, where agents publish them, or serves one agent, or has no other topic for such requests.
    #[must_use]
    pub fn takes_agents_calls(&self) -> bool {
        let topics = &self.invoke.topics;
        topics.iter().any(|topic| topic == TOOL_INVOKE)
            || self.identity.agent.is_some()
            || topics.iter().all(|topic| control_of(TOOL_LIST, topic).is_none())
    }

    fn sidecar_topic(&self) -> Option<String> {
        self.identity.agent.as_ref().map(sidecar_topic)
    }
}

/// The first of these names, and whether there are more.
fn listed(names: &[&str]) -> String {
    let more = if names.len() > MAX_NAMED { ", …" } else { "" };
    format!("{}{more}", names.iter().take(MAX_NAMED).copied().collect::<Vec<_>>().join(", "))
}

/// Start of the names of queues, where none is configured.
pub(super) const DEFAULT_PREFIX: &str = "toolbus";

/// The topic on which every request is this agent's.
pub(crate) fn sidecar_topic(agent: &AgentName) -> String {
    format!("tool.invoke.agent.{agent}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sidecar_has_queues_and_a_topic_of_its_own() {
        let mut config = Config::default();
        assert_eq!((config.queue_prefix(), config.invoke_topics()), ("toolbus".into(), vec!["tool.invoke".into()]));
        assert!(config.identity().sidecar.is_none());
        config.identity.agent = Some(AgentName::parse("ana").unwrap());
        assert_eq!(config.queue_prefix(), "toolbus.ana");
        assert_eq!(config.invoke_topics(), ["tool.invoke", "tool.invoke.agent.ana"]);
        assert_eq!(config.identity().sidecar.unwrap().topic, "tool.invoke.agent.ana");
        config.bus.queue_prefix = Some("mine".to_owned());
        config.invoke.topics = config.invoke_topics();
        assert_eq!((config.queue_prefix(), config.invoke_topics().len()), ("mine".into(), 2));
    }

    #[test]
    fn unknown_callers_are_denied_as_soon_as_an_agent_has_a_section() {
        let mut config = Config::default();
        assert!(!config.denies_unknown());
        config.agents.insert(AgentName::parse("default").unwrap(), Default::default());
        assert!(!config.denies_unknown());
        config.agents.insert(AgentName::parse("ana").unwrap(), Default::default());
        assert!(config.denies_unknown());
        config.identity.unknown = Some(Unknown::Default);
        assert!(!config.denies_unknown());
    }

    fn of_agents(agents: &[&str]) -> Config {
        let mut config = Config::default();
        for agent in agents {
            config.agents.insert(AgentName::parse(agent).unwrap(), Default::default());
        }
        config
    }

    #[test]
    fn a_configuration_without_its_former_agents_opens_nothing_without_identity_unknown() {
        let denied = |next: &Config| next.widening(UnknownCallers::Denied, &["ana", "bruno"]);
        insta::assert_snapshot!(denied(&of_agents(&[])).unwrap(), @r#"the sections of agents are gone (ana, bruno), so that callers without a section, who are denied every tool now, would get every tool; put back what is gone (a file may be empty or half written), or write identity.unknown = "default" if this is meant"#);
        assert!(denied(&of_agents(&["default"])).unwrap().contains("would get what agents.default allows"));
        assert_eq!(denied(&of_agents(&["ana"])), None, "the others are denied");
        for written in [Unknown::Default, Unknown::Deny] {
            let mut next = of_agents(&[]);
            next.identity.unknown = Some(written);
            assert_eq!(denied(&next), None, "{written:?}");
        }
        let lost = of_agents(&[]).widening(UnknownCallers::Denied, &[]).unwrap();
        assert!(lost.starts_with("identity.unknown is gone"), "{lost}");
    }

    #[test]
    fn losing_the_rules_of_agents_default_is_reported() {
        let restricted = |next: &Config| next.widening(UnknownCallers::Restricted, &[]);
        assert!(restricted(&of_agents(&[])).unwrap().starts_with("the section agents.default is gone"));
        assert_eq!(restricted(&of_agents(&["default"])), None, "another rule is written");
        assert_eq!(restricted(&of_agents(&["ana"])), None, "the others are denied");
        assert_eq!(of_agents(&[]).widening(UnknownCallers::Open, &[]), None);
    }

    #[test]
    fn callers_are_summarised_in_one_line() {
        let mut config = of_agents(&[]);
        assert_eq!(config.callers(), "every caller may use every tool");
        config.agents = of_agents(&["ana", "bruno", "default"]).agents;
        config.identity.source = IdentitySource::Broker;
        assert_eq!(config.callers(), "2, known by their login: ana, bruno; every other caller is denied every tool");
        config.identity.agent = Some(AgentName::parse("ana").unwrap());
        assert_eq!(config.callers(), "ana alone, as its sidecar");
    }
}
