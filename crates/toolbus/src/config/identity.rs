//! `[identity]`: how callers are told apart.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolbus_core::caller::{Identity, IdentitySource, Sidecar};

use super::{Agent, Config};

/// How callers are told apart.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct IdentityConfig {
    /// What names the agent that sent a request.
    pub source: Source,
    /// Says that every sender on the bus may be believed: needed for rules about single agents under "header".
    pub trust_headers: bool,
    /// What a caller gets that has no section in `agents`. Absent: "deny" as soon as any agent has a section, else
    /// "default".
    pub unknown: Option<Unknown>,
    /// The one agent that this daemon serves, as its sidecar; absent: it serves all.
    pub agent: Option<Agent>,
    /// Users of the broker and the agents that they are, under "broker"; a user that is not listed is the agent of its
    /// own name.
    #[schemars(extend("maxProperties" = 10_000, "propertyNames" = {"format": "toolbus-name"}))]
    pub users: BTreeMap<String, Agent>,
}

/// What names the agent that sent a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Source {
    /// The header `rb-source`: any sender can write any name there.
    #[default]
    Header,
    /// The property `user_id`, which the broker compares with the sender's login.
    Broker,
}

/// What a caller gets that has no section.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Unknown {
    /// What `agents.default` says.
    Default,
    /// No tools at all.
    Deny,
}

impl Config {
    /// How callers are told apart.
    #[must_use]
    pub fn identity(&self) -> Identity {
        let topic = self.sidecar_topic();
        let agent = self.identity.agent.as_deref().cloned();
        Identity {
            source: match self.identity.source {
                Source::Header => IdentitySource::Header,
                Source::Broker => IdentitySource::Broker,
            },
            users: self.identity.users.iter().map(|(user, agent)| (user.clone(), (**agent).clone())).collect(),
            sidecar: agent.zip(topic).map(|(agent, topic)| Sidecar { agent, topic }),
        }
    }

    /// Whether a caller without a section has no tools at all.
    #[must_use]
    pub fn denies_unknown(&self) -> bool {
        match self.identity.unknown {
            Some(unknown) => unknown == Unknown::Deny,
            None => self.agents.keys().any(|agent| !agent.is_default()),
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

    fn sidecar_topic(&self) -> Option<String> {
        self.identity.agent.as_ref().map(sidecar_topic)
    }
}

/// Start of the names of queues, where none is configured.
const DEFAULT_PREFIX: &str = "toolbus";

/// The topic on which every request is this agent's.
pub(crate) fn sidecar_topic(agent: &Agent) -> String {
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
        config.identity.agent = Some(Agent::parse("ana").unwrap());
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
        config.agents.insert(Agent::parse("default").unwrap(), Default::default());
        assert!(!config.denies_unknown());
        config.agents.insert(Agent::parse("ana").unwrap(), Default::default());
        assert!(config.denies_unknown());
        config.identity.unknown = Some(Unknown::Default);
        assert!(!config.denies_unknown());
    }
}
