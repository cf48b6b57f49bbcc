//! `auth` of an endpoint or an MCP server: credentials of the daemon, or of the agent that it acts for.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolbus_core::caller::AgentName;
use toolbus_core::secret::Secret;
use url::Url;

use crate::credential::{ClientCredentials, Credential, CredentialError};

/// Credentials by agent.
type PerAgent = BTreeMap<AgentName, AgentCredential>;

/// Method by which the daemon proves to a server who it is. With `per_agent`, each agent has a credential of its own, and
/// an agent without one is refused.
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
    /// A header of the server's own.
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
    /// A token that is fetched by the OAuth client credentials grant.
    ClientCredentials {
        /// The token endpoint.
        token_url: String,
        /// The client's id.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schemars(length(min = 1))]
        client_id: Option<String>,
        /// The client's secret.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        client_secret: Option<Secret>,
        /// Scopes to ask for.
        #[serde(default)]
        #[schemars(length(max = 64))]
        scopes: Vec<String>,
        /// Clients of agents: `{ ana = { client_id = …, client_secret = … } }`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schemars(extend("minProperties" = 1, "maxProperties" = 10_000, "propertyNames" = {"format": "toolbus-agent"}))]
        per_agent: Option<PerAgent>,
    },
}

/// The credential of one agent, of the form that the `type` needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged, deny_unknown_fields)]
#[schemars(inline)]
pub enum AgentCredential {
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
    /// For "client_credentials".
    ClientCredentials {
        /// The client's id.
        #[schemars(length(min = 1))]
        client_id: String,
        /// The client's secret.
        client_secret: Secret,
    },
}

fn default_header() -> String {
    "X-Api-Key".to_owned()
}

impl Auth {
    /// Returns the credential of every caller; `None` if a part of it is missing.
    ///
    /// # Errors
    ///
    /// If the URL of the token endpoint or a scope is none.
    pub fn shared(&self) -> Result<Option<Credential>, CredentialError> {
        self.parts().map_or(Ok(None), |parts| self.credential(&parts))
    }

    /// Returns the credential of every agent; `None` for one of another form than the `type` needs.
    pub fn per_agent(&self) -> impl Iterator<Item = (&AgentName, Result<Option<Credential>, CredentialError>)> {
        self.agents().into_iter().flatten().map(|(agent, parts)| (agent, self.credential(parts)))
    }

    fn credential(&self, parts: &AgentCredential) -> Result<Option<Credential>, CredentialError> {
        Ok(Some(match (self, parts) {
            (Self::Bearer { .. }, AgentCredential::Bearer { token }) => Credential::Bearer(token.clone()),
            (Self::ApiKey { header, .. }, AgentCredential::ApiKey { key }) => {
                Credential::Header { name: header.clone(), value: key.clone() }
            }
            (Self::Basic { .. }, AgentCredential::Basic { username, password }) => {
                Credential::Basic { username: username.clone(), password: password.clone() }
            }
            (
                Self::ClientCredentials { token_url, scopes, .. },
                AgentCredential::ClientCredentials { client_id, client_secret },
            ) => {
                if !scopes.iter().all(|scope| is_scope(scope)) {
                    return Err(CredentialError::Scope);
                }
                Credential::ClientCredentials(ClientCredentials {
                    token_url: token_endpoint(token_url)?,
                    client_id: client_id.clone(),
                    client_secret: client_secret.clone(),
                    scopes: scopes.clone(),
                })
            }
            _ => return Ok(None),
        }))
    }

    /// The parts of the credential of every caller, if they are complete.
    fn parts(&self) -> Option<AgentCredential> {
        Some(match self {
            Self::Bearer { token, .. } => AgentCredential::Bearer { token: token.clone()? },
            Self::ApiKey { key, .. } => AgentCredential::ApiKey { key: key.clone()? },
            Self::Basic { username, password, .. } => {
                AgentCredential::Basic { username: username.clone()?, password: password.clone()? }
            }
            Self::ClientCredentials { client_id, client_secret, .. } => AgentCredential::ClientCredentials {
                client_id: client_id.clone()?,
                client_secret: client_secret.clone()?,
            },
        })
    }

    fn agents(&self) -> Option<&PerAgent> {
        match self {
            Self::Bearer { per_agent, .. }
            | Self::ApiKey { per_agent, .. }
            | Self::Basic { per_agent, .. }
            | Self::ClientCredentials { per_agent, .. } => per_agent.as_ref(),
        }
    }

    /// Whether agents have credentials of their own.
    #[must_use]
    pub fn has_agents(&self) -> bool {
        self.agents().is_some()
    }

    /// Whether there is a part of a credential for every caller that is never sent, because agents have their own.
    #[must_use]
    pub fn has_idle_credential(&self) -> bool {
        self.has_agents() && self.has_shared()
    }

    fn has_shared(&self) -> bool {
        self.keys().iter().any(|(_, is_there)| *is_there)
    }

    /// The keys of the credential of every caller, and whether they are there.
    fn keys(&self) -> Vec<(&'static str, bool)> {
        match self {
            Self::Bearer { token, .. } => vec![("token", token.is_some())],
            Self::ApiKey { key, .. } => vec![("key", key.is_some())],
            Self::Basic { username, password, .. } => {
                vec![("username", username.is_some()), ("password", password.is_some())]
            }
            Self::ClientCredentials { client_id, client_secret, .. } => {
                vec![("client_id", client_id.is_some()), ("client_secret", client_secret.is_some())]
            }
        }
    }

    /// Returns the keys that its `type` needs, of those that are not there.
    #[must_use]
    pub fn missing(&self) -> Vec<&'static str> {
        let is_needed = !self.has_agents() || self.has_shared();
        self.keys().into_iter().filter(|(_, is_there)| is_needed && !is_there).map(|(key, _)| key).collect()
    }

    /// The keys that a credential needs, as words of a sentence.
    #[must_use]
    pub const fn needed(&self) -> &'static str {
        match self {
            Self::Bearer { .. } => "`token`",
            Self::ApiKey { .. } => "`key`",
            Self::Basic { .. } => "`username` and `password`",
            Self::ClientCredentials { .. } => "`client_id` and `client_secret`",
        }
    }

    /// Returns the agents whose credential is of another form than the `type` needs.
    #[must_use]
    pub fn misfits(&self) -> Vec<&AgentName> {
        self.per_agent().filter(|(_, credential)| matches!(credential, Ok(None))).map(|(agent, _)| agent).collect()
    }
}

/// A scope-token of RFC 6749, section 3.3, as far as it matters: no space, and nothing that ends a form.
fn is_scope(scope: &str) -> bool {
    !scope.is_empty() && scope.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Reads the URL of a token endpoint. A user in it would be shown, and a fragment is never sent.
fn token_endpoint(text: &str) -> Result<Url, CredentialError> {
    let wrong = |why: &str| CredentialError::TokenUrl(why.to_owned());
    let url = Url::parse(text).map_err(|error| CredentialError::TokenUrl(format!("is no URL ({error})")))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(wrong("is no HTTP address"));
    }
    if url.fragment().is_some() {
        return Err(wrong("has a fragment (`#…`), which is never sent"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(wrong("has a user or a password, which would be shown"));
    }
    Ok(url)
}
