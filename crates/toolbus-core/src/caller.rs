//! Step 2: the caller.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
pub use toolbus_protocol::{AgentName, AgentNameError};
use toolbus_protocol::{Envelope, bounded, header};

/// Most daemons that pass a call on: one that comes from the last of them is run here, or nowhere.
pub const MAX_HOPS: u8 = 4;
/// Name of a caller whose message has no name.
const UNKNOWN_CALLER: &str = "unknown";
/// Start of the owner of an unknown caller. No agent has a colon in its name.
const UNKNOWN: &str = "unknown:";
/// The share of all callers without a section. No agent has a colon in its name.
const WITHOUT_SECTION: &str = "unknown:";

/// Source of the name of the agent that sent a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum IdentitySource {
    /// The header `rb-source`: any sender can write any name there.
    #[default]
    Header,
    /// The property `user_id`, which the broker compares with the sender's login.
    Broker,
}

/// Rules for distinguishing callers.
#[derive(Debug, Clone, Default)]
pub struct Identity {
    /// Where an agent's name is read.
    pub source: IdentitySource,
    /// Broker users and the agents that they are. A user that is not named here is the agent of its own name, unless
    /// another user was given that name.
    pub users: BTreeMap<String, AgentName>,
    /// Broker users that may speak for others: daemons, which name the agent whose call they pass on in `rb-source`.
    pub delegates: BTreeSet<String>,
    /// The one agent that this daemon serves, when it is a sidecar.
    pub sidecar: Option<Sidecar>,
}

/// The one agent that a daemon serves.
#[derive(Debug, Clone)]
pub struct Sidecar {
    /// The agent.
    pub agent: AgentName,
    /// The topic on which every request is this agent's.
    pub topic: String,
}

/// The sender of a request, with its binding, profile and session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// The agent; absent for a caller that is unknown.
    pub agent: Option<AgentName>,
    /// The name in logs and replies: the agent's, or the one that an unknown caller gives itself.
    pub name: Arc<str>,
    /// Key of the calls and sessions of this caller, distinct from that of every other. An unknown caller is never
    /// taken for an agent, also not for one of the name that it gives itself.
    pub owner: Arc<str>,
    /// The sender's login at the broker, where the message has it: the broker has compared the two.
    pub login: Option<Arc<str>>,
    /// Whether the policy has a section for the agent. Without one it is of the class of all others, which share what
    /// is bounded.
    pub has_section: bool,
    /// Whether the broker vouches for the agent.
    pub verified: bool,
    /// The binding that the request names, as `channel:account`.
    pub binding: Option<Arc<str>>,
    /// The profile that the request names.
    pub profile: Option<Arc<str>>,
    /// The caller's session.
    pub session: Option<Arc<str>>,
    /// Daemons that have passed the call on: at most [`MAX_HOPS`].
    pub hops: u8,
}

impl Identity {
    /// The sender of a message; `None` if this daemon does not serve that sender.
    #[must_use]
    pub fn identify(&self, user_id: Option<&str>, envelope: &Envelope, topic: &str) -> Option<Caller> {
        let claimed = envelope.source.as_deref().filter(|name| !name.is_empty());
        let agent = self.sender(user_id, envelope);
        let is_delegated = user_id.is_some_and(|user| self.delegates.contains(user));
        let verified = self.source == IdentitySource::Broker && agent.is_some() && !is_delegated;
        let (agent, verified) = match &self.sidecar {
            None => (agent, verified),
            Some(sidecar) if agent.as_ref() == Some(&sidecar.agent) => (agent, verified),
            Some(sidecar) if topic == sidecar.topic => (Some(sidecar.agent.clone()), false),
            Some(_) => return None,
        };
        let name = match &agent {
            Some(agent) => Arc::clone(agent.shared()),
            None => bounded(claimed.unwrap_or(UNKNOWN_CALLER)).into(),
        };
        // One that is empty is none that there is: what narrows a caller must not be lost on the way.
        let header = |name| envelope.header(name).map(Arc::from);
        let owner = match &agent {
            Some(agent) => Arc::clone(agent.shared()),
            // No name of an agent has a colon.
            None => {
                let user = bounded(user_id.unwrap_or_default());
                format!("{UNKNOWN}{}:{user}:{name}", user.len()).into()
            }
        };
        Some(Caller {
            agent,
            name,
            owner,
            login: user_id.map(|user| bounded(user).into()),
            has_section: false,
            verified,
            binding: header(header::BINDING),
            profile: header(header::TOOL_PROFILE),
            session: None,
            // What cannot be read has come a long way.
            hops: envelope.header(header::HOPS).map_or(0, |hops| hops.trim().parse().unwrap_or(MAX_HOPS).min(MAX_HOPS)),
        })
    }

    /// The agent that sent a message, whichever agents this daemon serves; `None` if it is unknown.
    #[must_use]
    pub fn sender(&self, user_id: Option<&str>, envelope: &Envelope) -> Option<AgentName> {
        match self.source {
            IdentitySource::Header => claimed(envelope),
            IdentitySource::Broker => match user_id? {
                user if self.delegates.contains(user) => claimed(envelope),
                user => self.user(user),
            },
        }
    }

    /// The agent that a user of the broker is.
    fn user(&self, user: &str) -> Option<AgentName> {
        if let Some(agent) = self.users.get(user) {
            return Some(agent.clone());
        }
        let agent = AgentName::parse(user).ok()?;
        // The agent to which the configuration gives this name must not share it with a login of the same name.
        (!self.users.values().any(|taken| *taken == agent)).then_some(agent)
    }
}

/// Whether a caller with this [`Caller::owner`] has this [`Caller::name`].
pub(crate) fn is_named(owner: &str, name: &str) -> bool {
    let Some(rest) = owner.strip_prefix(UNKNOWN) else { return owner == name };
    let of_unknown = rest.split_once(':').and_then(|(length, rest)| rest.get(length.parse().ok()?..));
    of_unknown.and_then(|rest| rest.strip_prefix(':')) == Some(name)
}

/// The agent that a sender claims to be, or acts for.
fn claimed(envelope: &Envelope) -> Option<AgentName> {
    envelope.source.as_deref().and_then(|name| AgentName::parse(name).ok())
}

impl Caller {
    /// Key that the caller shares limits under, as the transport shows it: the agent, the login at the broker, the name
    /// that the sender gives itself, or the reply address.
    #[must_use]
    pub fn sharer(&self, reply_to: &str) -> Arc<str> {
        match (&self.agent, &self.login) {
            (Some(_), _) => Arc::clone(&self.owner),
            // No name of an agent has a colon.
            (None, Some(login)) => format!("login:{login}").into(),
            (None, None) if *self.name == *UNKNOWN_CALLER => format!("reply:{reply_to}").into(),
            (None, None) => Arc::clone(&self.owner),
        }
    }

    /// Returns the name of its section; `None` if it has none.
    #[must_use]
    pub fn section(&self) -> Option<&Arc<str>> {
        self.agent.as_ref().filter(|_| self.has_section).map(AgentName::shared)
    }

    /// Whose part of what is limited by caller it uses. Callers without a section may choose their own names, so that
    /// they share one.
    #[must_use]
    pub fn share(&self) -> Arc<str> {
        if self.has_section { Arc::clone(&self.owner) } else { WITHOUT_SECTION.into() }
    }

    /// A caller that is unknown.
    #[must_use]
    pub fn unknown() -> Self {
        Self {
            agent: None,
            name: UNKNOWN_CALLER.into(),
            owner: "unknown:0::".into(),
            login: None,
            has_section: false,
            verified: false,
            binding: None,
            profile: None,
            session: None,
            hops: 0,
        }
    }

    /// A caller that is this agent, which has a section.
    #[must_use]
    pub fn agent(agent: AgentName) -> Self {
        let name = agent.shared();
        Self {
            name: Arc::clone(name),
            owner: Arc::clone(name),
            agent: Some(agent),
            has_section: true,
            ..Self::unknown()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agent(name: &str) -> AgentName {
        AgentName::parse(name).unwrap()
    }

    fn from(source: Option<&str>) -> Envelope {
        Envelope { source: source.map(str::to_owned), ..Envelope::default() }
    }

    fn broker(users: &[(&str, &str)]) -> Identity {
        let users = users.iter().map(|(user, name)| ((*user).to_owned(), agent(name))).collect();
        Identity { source: IdentitySource::Broker, users, ..Identity::default() }
    }

    fn name_of(identity: &Identity, user_id: Option<&str>, source: Option<&str>) -> Option<String> {
        identity.identify(user_id, &from(source), "tool.invoke")?.agent.map(|agent| agent.to_string())
    }

    #[test]
    fn hops_that_cannot_be_read_are_the_most_that_there_may_be() {
        let hops = |value: &str| {
            let headers = vec![(header::HOPS.to_owned(), value.to_owned())];
            let envelope = Envelope { headers, ..Envelope::default() };
            Identity::default().identify(None, &envelope, "tool.invoke").unwrap().hops
        };
        // The bus hands a header of another type over as a null character.
        assert_eq!(["", "0", "3", "9", "-1", "\u{0}"].map(hops), [MAX_HOPS, 0, 3, MAX_HOPS, MAX_HOPS, MAX_HOPS]);
        assert_eq!(Identity::default().identify(None, &from(None), "tool.invoke").unwrap().hops, 0);
    }

    #[test]
    fn a_trusted_header_names_the_agent_and_anything_else_is_unknown() {
        let identity = Identity::default();
        assert_eq!(name_of(&identity, None, Some("ana")).as_deref(), Some("ana"));
        assert_eq!(name_of(&identity, Some("bob"), Some("ana")).as_deref(), Some("ana"));
        for source in [None, Some(""), Some("ana "), Some("ANA\u{0}"), Some("аna")] {
            assert_eq!(name_of(&identity, Some("ana"), source), None, "{source:?}");
        }
    }

    #[test]
    fn the_login_names_the_agent_whatever_the_header_contains() {
        let identity = broker(&[("svc-ana", "ana")]);
        assert_eq!(name_of(&identity, Some("svc-ana"), Some("bob")).as_deref(), Some("ana"));
        assert_eq!(name_of(&identity, Some("bob"), Some("ana")).as_deref(), Some("bob"));
        for user in [None, Some(""), Some("bob smith")] {
            assert_eq!(name_of(&identity, user, Some("ana")), None, "{user:?}");
        }
    }

    #[test]
    fn a_login_with_the_name_of_an_agent_that_another_login_was_given_is_unknown() {
        assert_eq!(name_of(&broker(&[("svc-ana", "ana")]), Some("ana"), None), None);
    }

    #[test]
    fn a_sidecar_serves_one_agent_and_every_sender_on_its_own_topic() {
        let sidecar = Some(Sidecar { agent: agent("ana"), topic: "tool.invoke.agent.ana".to_owned() });
        let identity = Identity { sidecar, ..Identity::default() };
        let caller =
            |source, topic| identity.identify(None, &from(source), topic).map(|caller| caller.name.to_string());
        assert_eq!(caller(Some("ana"), "tool.invoke").as_deref(), Some("ana"));
        for source in [Some("bob"), Some("unknown"), None] {
            assert_eq!(caller(source, "tool.invoke"), None, "{source:?}");
            assert_eq!(caller(source, "tool.invoke.agent.ana").as_deref(), Some("ana"), "{source:?}");
        }
    }

    #[test]
    fn a_binding_or_profile_without_a_text_is_one_that_there_is_not() {
        let headers = vec![("rb-binding".to_owned(), String::new()), ("rb-tool-profile".to_owned(), String::new())];
        let envelope = Envelope { headers, ..from(Some("ana")) };
        let caller = Identity::default().identify(None, &envelope, "tool.invoke").unwrap();
        assert_eq!((caller.binding.as_deref(), caller.profile.as_deref()), (Some(""), Some("")));
    }

    #[test]
    fn an_unknown_caller_owns_nothing_of_an_agent() {
        let identity = broker(&[]);
        let known = identity.identify(Some("ana"), &from(None), "tool.invoke").unwrap();
        let claims = identity.identify(None, &from(Some("ana")), "tool.invoke").unwrap();
        assert_eq!(&*claims.name, "ana");
        assert_ne!(known.owner, claims.owner);
    }
}
