//! `[[rest.endpoints]]`: HTTP endpoints as tools.

mod auth;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolbus_config::{ByteSize, HumanDuration, Secret};
use toolbus_core::tool::Effect;
use toolbus_tools::rest::{self as runs, Body, Method};

use self::auth::exposed;
pub use self::auth::{AgentCredential, Auth};

/// HTTP endpoints that can be called as tools.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RestConfig {
    /// The endpoints, each a tool.
    #[schemars(length(max = 10_000))]
    pub endpoints: Vec<Endpoint>,
}

/// An HTTP endpoint as a tool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Endpoint {
    /// Name of the tool.
    #[schemars(extend("format" = "toolbus-name"))]
    pub name: String,
    /// What it does, for a model.
    #[schemars(length(min = 1, max = 65_536))]
    pub description: String,
    /// Address, with arguments in braces in its path and query: `https://host/v1/{city}?units={units}`.
    pub url: String,
    /// HTTP method.
    #[serde(default)]
    pub method: Method,
    /// JSON Schema of the arguments, as JSON text; absent: any object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameters: Option<String>,
    /// How the daemon proves to the endpoint who it is; absent: not at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auth: Option<Auth>,
    /// Headers of every request; a value may be a secret.
    #[serde(default)]
    #[schemars(extend("maxProperties" = 64))]
    pub headers: BTreeMap<String, Secret>,
    /// What becomes of arguments that the address does not use: "none" adds them to the query, "json" makes them the
    /// body.
    #[serde(default)]
    pub body: Body,
    /// Longest run of one call.
    #[serde(default = "default_timeout")]
    pub timeout: HumanDuration,
    /// Largest response that is read.
    #[serde(default = "default_max_response")]
    pub max_response: ByteSize,
    /// What repeating a call would do; absent: what the method says, nothing for POST and PATCH.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<Effect>,
}

const fn default_timeout() -> HumanDuration {
    HumanDuration::from_secs(10)
}

const fn default_max_response() -> ByteSize {
    ByteSize::from_mib(1)
}

impl Endpoint {
    /// Whether it has a credential that is never sent, because agents have their own.
    pub(crate) fn has_idle_credential(&self) -> bool {
        self.auth.as_ref().is_some_and(|auth| auth.has_agents() && auth.has_shared())
    }

    /// The endpoint as the tools crate takes it, which checks what goes beyond a single key.
    #[must_use]
    pub fn settings(&self) -> runs::Settings {
        runs::Settings {
            name: self.name.clone(),
            description: self.description.clone(),
            url: self.url.clone(),
            method: self.method,
            parameters: self.parameters.clone(),
            credential: self.auth.as_ref().and_then(Auth::shared),
            per_agent: self.auth.as_ref().map(Auth::per_agent).unwrap_or_default(),
            headers: self.headers.iter().map(|(name, value)| (name.clone(), exposed(value))).collect(),
            body: self.body,
            timeout: Some(self.timeout.get()),
            max_response: self.max_response.bytes(),
            effect: self.effect.unwrap_or_default(),
        }
    }
}
