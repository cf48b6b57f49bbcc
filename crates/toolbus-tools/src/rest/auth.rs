//! `auth` of an endpoint: how the daemon proves who it is, or for whom it asks.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolbus_core::caller::AgentName;
use toolbus_outbound::Credential;

use crate::Secret;

/// Credentials by agent.
type PerAgent = BTreeMap<AgentName, EndpointAgentCredential>;

/// Method by which the daemon proves to an endpoint who it is. With `per_agent`, each agent has a credential of its
/// own, and an agent without one is refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum Auth {
    /// `Authorization: Bearer …`
    Bearer {
        /// The token.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        token: Option<Secret>,
        /// Tokens of agents: `{ ana = { token = … } }`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schemars(extend("minProperties" = 1, "maxProperties" = 10_000, "propertyNames" = {"format": "toolbus-agent"}))]
        per_agent: Option<PerAgent>,
    },
    /// A header of the endpoint's own.
    ApiKey {
        /// Name of the header.
        #[serde(default = "default_header")]
        header: String,
        /// The key.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        key: Option<Secret>,
        /// Keys of agents: `{ ana = { key = … } }`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schemars(extend("minProperties" = 1, "maxProperties" = 10_000, "propertyNames" = {"format": "toolbus-agent"}))]
        per_agent: Option<PerAgent>,
    },
    /// `Authorization: Basic …`
    Basic {
        /// The user.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schemars(length(min = 1))]
        username: Option<String>,
        /// The password.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        password: Option<Secret>,
        /// Users of agents: `{ ana = { username = …, password = … } }`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schemars(extend("minProperties" = 1, "maxProperties" = 10_000, "propertyNames" = {"format": "toolbus-agent"}))]
        per_agent: Option<PerAgent>,
    },
}

/// The credential of one agent, of the form that the `type` needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged, deny_unknown_fields)]
#[schemars(inline)]
pub enum EndpointAgentCredential {
    /// For "bearer".
    Bearer {
        /// The token.
        token: Secret,
    },
    /// For "api_key".
    ApiKey {
        /// The key.
        key: Secret,
    },
    /// For "basic".
    Basic {
        /// The user.
        #[schemars(length(min = 1))]
        username: String,
        /// The password.
        password: Secret,
    },
}

/// The credential of a security scheme: a `token` for bearer tokens, OAuth 2 and OpenID Connect, a `key` for API keys, a
/// `username` and a `password` for Basic.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SchemeCredential {
    /// The token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<Secret>,
    /// The key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<Secret>,
    /// The user.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub username: Option<String>,
    /// The password.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password: Option<Secret>,
    /// Credentials of agents; one without is refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minProperties" = 1, "maxProperties" = 10_000, "propertyNames" = {"format": "toolbus-agent"}))]
    pub per_agent: Option<PerAgent>,
}

fn default_header() -> String {
    "X-Api-Key".to_owned()
}

impl Auth {
    /// The credential of every caller.
    pub(super) fn shared(&self) -> Option<Credential> {
        match self {
            Self::Bearer { token: Some(token), .. } => Some(Credential::Bearer(token.clone())),
            Self::ApiKey { header, key: Some(key), .. } => {
                Some(Credential::Header { name: header.clone(), value: key.clone() })
            }
            Self::Basic { username: Some(username), password: Some(password), .. } => {
                Some(Credential::Basic { username: username.clone(), password: password.clone() })
            }
            _ => None,
        }
    }

    /// The credential of every agent; none in place of one of another form than the `type` needs.
    pub(super) fn per_agent(&self) -> impl Iterator<Item = (&AgentName, Option<Credential>)> {
        self.agents().into_iter().flatten().map(|(agent, credential)| (agent, self.of_agent(credential)))
    }

    fn of_agent(&self, credential: &EndpointAgentCredential) -> Option<Credential> {
        match (self, credential) {
            (Self::Bearer { .. }, EndpointAgentCredential::Bearer { token }) => Some(Credential::Bearer(token.clone())),
            (Self::ApiKey { header, .. }, EndpointAgentCredential::ApiKey { key }) => {
                Some(Credential::Header { name: header.clone(), value: key.clone() })
            }
            (Self::Basic { .. }, EndpointAgentCredential::Basic { username, password }) => {
                Some(Credential::Basic { username: username.clone(), password: password.clone() })
            }
            _ => None,
        }
    }

    fn agents(&self) -> Option<&PerAgent> {
        match self {
            Self::Bearer { per_agent, .. } | Self::ApiKey { per_agent, .. } | Self::Basic { per_agent, .. } => {
                per_agent.as_ref()
            }
        }
    }

    /// Whether agents have credentials of their own.
    pub(super) fn has_agents(&self) -> bool {
        self.agents().is_some()
    }

    /// Whether there is any part of a credential for every caller.
    pub(super) fn has_shared(&self) -> bool {
        match self {
            Self::Bearer { token, .. } => token.is_some(),
            Self::ApiKey { key, .. } => key.is_some(),
            Self::Basic { username, password, .. } => username.is_some() || password.is_some(),
        }
    }

    /// The keys that its `type` needs, of those that are not there.
    #[must_use]
    pub fn missing(&self) -> Vec<&'static str> {
        let needed: &[(&'static str, bool)] = match self {
            Self::Bearer { token, .. } => &[("token", token.is_some())],
            Self::ApiKey { key, .. } => &[("key", key.is_some())],
            Self::Basic { username, password, .. } => {
                &[("username", username.is_some()), ("password", password.is_some())]
            }
        };
        let is_needed = !self.has_agents() || self.has_shared();
        needed.iter().filter(|(_, is_there)| is_needed && !is_there).map(|(key, _)| *key).collect()
    }

    /// The keys that the credential of an agent needs, for every agent whose credential is of another form.
    #[must_use]
    pub fn misfits(&self) -> Vec<(&AgentName, &'static str)> {
        let needed = match self {
            Self::Bearer { .. } => "`token`",
            Self::ApiKey { .. } => "`key`",
            Self::Basic { .. } => "`username` and `password`",
        };
        let is_misfit = |(_, credential): &(&AgentName, &EndpointAgentCredential)| self.of_agent(credential).is_none();
        self.agents().into_iter().flatten().filter(is_misfit).map(|(agent, _)| (agent, needed)).collect()
    }
}
