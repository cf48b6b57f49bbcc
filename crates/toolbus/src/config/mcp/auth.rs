//! `auth` of an MCP server: how requests to it are authorised.

use std::collections::BTreeMap;

use axum::http::{HeaderName, HeaderValue};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolbus_core::caller::AgentName;
use toolbus_mcp_client::spec::{ClientCredentials, Credential, Credentials};

use super::{Mistake, http_url};
use crate::config::Secret;

/// Credentials by agent.
type PerAgent = BTreeMap<AgentName, ServerAgentCredential>;

/// Authorisation of requests to an MCP server. With `per_agent`, each agent has a credential of its own, and an agent
/// without one is refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum ServerAuth {
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
pub enum ServerAgentCredential {
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

impl ServerAuth {
    /// Returns the credentials, if they are complete and can be sent.
    pub(super) fn credentials(&self) -> Result<Credentials, Mistake> {
        let needed = match self {
            Self::Bearer { .. } => "`token`",
            Self::ApiKey { .. } => "`key`",
            Self::ClientCredentials { .. } => "`client_id` and `client_secret`",
        };
        let Some(agents) = self.agents() else {
            let shared = self.shared().map(|own| self.credential(&own)).transpose()?.flatten();
            return shared.map(Credentials::Shared).ok_or_else(|| {
                Mistake::new("auth", format!("{needed} is missing; expected it here, or in `per_agent` for each agent"))
            });
        };
        let of_agent = |(agent, own): (&AgentName, &ServerAgentCredential)| {
            let credential = self.credential(own)?.ok_or_else(|| {
                let what =
                    format!("expected {needed} for `{agent}` in `per_agent`, as the `type` of this `auth` needs");
                Mistake::new("auth", what)
            })?;
            Ok((agent.clone(), credential))
        };
        agents.iter().map(of_agent).collect::<Result<_, _>>().map(Credentials::PerAgent)
    }

    /// Whether there is a shared credential that is never sent, because agents have their own.
    pub(super) fn has_idle_credential(&self) -> bool {
        self.agents().is_some() && self.shared().is_some()
    }

    fn agents(&self) -> Option<&PerAgent> {
        match self {
            Self::Bearer { per_agent, .. }
            | Self::ApiKey { per_agent, .. }
            | Self::ClientCredentials { per_agent, .. } => per_agent.as_ref(),
        }
    }

    /// The credential of every caller, if it is complete.
    fn shared(&self) -> Option<ServerAgentCredential> {
        match self {
            Self::Bearer { token, .. } => token.clone().map(|token| ServerAgentCredential::Bearer { token }),
            Self::ApiKey { key, .. } => key.clone().map(|key| ServerAgentCredential::ApiKey { key }),
            Self::ClientCredentials { client_id, client_secret, .. } => {
                Some(ServerAgentCredential::ClientCredentials {
                    client_id: client_id.clone()?,
                    client_secret: client_secret.clone()?,
                })
            }
        }
    }

    /// Returns one credential as it is sent; `None` if it is of another form than the `type` needs.
    fn credential(&self, own: &ServerAgentCredential) -> Result<Option<Credential>, Mistake> {
        let credential = match (self, own) {
            (Self::Bearer { .. }, ServerAgentCredential::Bearer { token }) => {
                header_value(token.expose())?;
                Credential::Bearer(token.clone())
            }
            (Self::ApiKey { header, .. }, ServerAgentCredential::ApiKey { key }) => {
                header_value(key.expose())?;
                let name = HeaderName::from_bytes(header.as_bytes())
                    .map_err(|_| Mistake::new("auth", "`header` is a name that no header can have"))?;
                Credential::Header { name: name.as_str().to_owned(), value: key.clone() }
            }
            (
                Self::ClientCredentials { token_url, scopes, .. },
                ServerAgentCredential::ClientCredentials { client_id, client_secret },
            ) => {
                let is_scope = |scope: &String| !scope.is_empty() && scope.bytes().all(|byte| byte.is_ascii_graphic());
                if !scopes.iter().all(is_scope) {
                    let what = "`scopes` has an entry that is no scope: expected words without spaces";
                    return Err(Mistake::new("auth", what));
                }
                Credential::ClientCredentials(ClientCredentials {
                    token_url: http_url("token_url", token_url)
                        .map_err(|mistake| Mistake { key: "auth", ..mistake })?,
                    client_id: client_id.clone(),
                    client_secret: client_secret.clone(),
                    scopes: scopes.clone(),
                })
            }
            _ => return Ok(None),
        };
        Ok(Some(credential))
    }
}

/// A credential that travels in a header must fit there.
fn header_value(text: &str) -> Result<(), Mistake> {
    let refused = |_| Mistake::new("auth", "has a credential with characters that no header can have");
    HeaderValue::from_str(text).map(|_| ()).map_err(refused)
}
