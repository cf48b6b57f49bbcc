//! `[[rest.endpoints]]`: HTTP endpoints as tools.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolbus_config::{ByteSize, HumanDuration, Secret};
use toolbus_core::ParametersError;
use toolbus_core::caller::AgentName;
use toolbus_core::tool::Effect;
use toolbus_outbound::{AgentCredential, Auth};

use super::routes::ArgumentRoutes;
use super::{CredentialError, HeaderError, UrlTemplateError};

/// HTTP endpoints that can be called as tools.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RestConfig {
    /// The endpoints, each a tool.
    #[schemars(length(max = 10_000))]
    pub endpoints: Vec<Endpoint>,
    /// JSON file with more endpoints, in the form `RestTools:Endpoints` of RockBot's agents; relative to the working
    /// directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoints_file: Option<PathBuf>,
    /// OpenAPI specifications whose operations are tools, by any name.
    #[schemars(extend("maxProperties" = 64, "propertyNames" = {"format": "toolbus-prefix"}))]
    pub openapi: BTreeMap<String, OpenApiConfig>,
    /// The endpoints of the file and of specifications, by the key that names their source.
    #[serde(skip)]
    pub described: BTreeMap<String, DescribedEndpoints>,
}

/// Endpoints that stand elsewhere than in the configuration.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DescribedEndpoints {
    /// The endpoints.
    pub endpoints: Vec<Endpoint>,
    /// Notes that are worth a warning.
    pub notes: Vec<String>,
}

impl RestConfig {
    /// Every endpoint, those of other sources included.
    pub fn all(&self) -> impl Iterator<Item = &Endpoint> {
        self.endpoints.iter().chain(self.described.values().flat_map(|described| &described.endpoints))
    }
}

/// The operations of an OpenAPI specification as tools.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OpenApiConfig {
    /// File with the specification, JSON or YAML; relative to the working directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
    /// Address of the specification, in place of `file`; it is read at the start and at each reload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "toolbus-service-url"))]
    pub url: Option<String>,
    /// Address that the paths of operations follow; absent: the first server of the specification, which must be of the
    /// public Internet, or have the host of `url`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "toolbus-service-url"))]
    pub server: Option<String>,
    /// Start of the names of its tools, before `_`; absent: they are named as the operations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "toolbus-prefix"))]
    pub prefix: Option<String>,
    /// The operations that become tools, by patterns of names, of paths (`/pets/*`) and of methods with paths (`GET *`);
    /// absent: all.
    #[serde(default = "everything")]
    #[schemars(length(min = 1, max = 1024), extend("items" = {"type": "string", "format": "toolbus-pattern"}))]
    pub include: Vec<String>,
    /// Operations that become none, whatever `include` says.
    #[serde(default)]
    #[schemars(length(max = 1024), extend("items" = {"type": "string", "format": "toolbus-pattern"}))]
    pub exclude: Vec<String>,
    /// Most tools that it may become: more are a mistake, as models choose badly among many.
    #[serde(default = "default_max_tools")]
    #[schemars(range(min = 1, max = 2000))]
    pub max_tools: usize,
    /// Credentials, by the name of a security scheme of the specification.
    #[serde(default)]
    #[schemars(extend("maxProperties" = 64))]
    pub auth: BTreeMap<String, SchemeCredential>,
    /// Headers of every request; a value may be a secret.
    #[serde(default)]
    #[schemars(extend("maxProperties" = 64))]
    pub headers: BTreeMap<String, Secret>,
    /// Longest run of one call.
    #[serde(default = "default_timeout")]
    pub timeout: HumanDuration,
    /// Largest response that is read; absent: as for `rest.endpoints`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_response: Option<ByteSize>,
    /// Header by which the service recognises a request that is sent again; "none": no header.
    #[serde(default = "default_idempotency_header")]
    #[schemars(length(min = 1, max = 64))]
    pub idempotency_header: String,
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
    pub per_agent: Option<BTreeMap<AgentName, AgentCredential>>,
}

fn everything() -> Vec<String> {
    vec!["*".to_owned()]
}

const fn default_max_tools() -> usize {
    100
}

/// An HTTP endpoint as a tool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Endpoint {
    /// Name of the tool.
    #[schemars(extend("format" = "toolbus-name"))]
    pub name: String,
    /// Description of what the endpoint does, for a model.
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
    /// Method by which the daemon proves to the endpoint who it is; absent: not at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auth: Option<Auth>,
    /// Headers of every request; a value may be a secret.
    #[serde(default)]
    #[schemars(extend("maxProperties" = 64))]
    pub headers: BTreeMap<String, Secret>,
    /// Treatment of arguments that the address does not use: "none" adds them to the query, "json" makes them the
    /// body.
    #[serde(default)]
    pub body: Body,
    /// Longest run of one call.
    #[serde(default = "default_timeout")]
    pub timeout: HumanDuration,
    /// Largest response that is read; absent: 1MiB, or `results.max_size` where a longer result is kept in parts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_response: Option<ByteSize>,
    /// Effect that repeating a call would have; absent: what the method says, nothing for POST and PATCH.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<Effect>,
    /// Header by which the endpoint recognises a request that is sent again, unless the tool is read-only; "none": no header.
    #[serde(default = "default_idempotency_header")]
    #[schemars(length(min = 1, max = 64))]
    pub idempotency_header: String,
    /// Where arguments go, if a specification says so.
    #[serde(skip)]
    pub(super) routes: Option<ArgumentRoutes>,
    /// Whether a specification chose the host, so that the rules for such hosts hold.
    #[serde(skip)]
    pub(super) is_guarded: bool,
}

/// Stands for no header.
pub(super) const NO_HEADER: &str = "none";

fn default_idempotency_header() -> String {
    "Idempotency-Key".to_owned()
}

const fn default_timeout() -> HumanDuration {
    HumanDuration::from_secs(10)
}

/// Largest response of an endpoint that has no limit of its own, where its result is not kept in parts.
const MAX_RESPONSE: ByteSize = ByteSize::from_mib(1);

impl Endpoint {
    /// An endpoint with the defaults of the configuration, for any arguments.
    #[must_use]
    pub fn new(name: impl Into<String>, url: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            description: String::new(),
            url: url.into(),
            method: Method::default(),
            parameters: None,
            auth: None,
            headers: BTreeMap::new(),
            body: Body::default(),
            timeout: default_timeout(),
            max_response: None,
            effect: None,
            idempotency_header: default_idempotency_header(),
            routes: None,
            is_guarded: false,
        }
    }

    /// Bytes of the largest response, and whether that of a result that is kept in parts may be larger.
    pub(super) fn response_limit(&self) -> (usize, bool) {
        let bytes = self.max_response.unwrap_or(MAX_RESPONSE).bytes();
        (usize::try_from(bytes).unwrap_or(usize::MAX), self.max_response.is_none())
    }

    /// Returns the effect of repeating a call: as declared, or else by the method.
    #[must_use]
    pub fn effect(&self) -> Effect {
        match self.effect.unwrap_or_default() {
            Effect::Undeclared => self.method.effect(),
            declared => declared,
        }
    }

    /// The header by which the endpoint recognises a request that is sent again, if it has one.
    pub(super) fn idempotency_header(&self) -> Option<&str> {
        Some(self.idempotency_header.as_str()).filter(|name| *name != NO_HEADER)
    }

    /// The credentials that every caller's requests carry.
    #[must_use]
    pub fn confidential(&self) -> Vec<Secret> {
        let shared = self.auth.as_ref().and_then(|auth| auth.shared().ok().flatten());
        shared.map(|credential| credential.confidential()).unwrap_or_default()
    }

    /// Checks whether the endpoint has a credential that is never sent, because agents have their own.
    #[must_use]
    pub fn has_idle_credential(&self) -> bool {
        self.auth.as_ref().is_some_and(Auth::has_idle_credential)
    }
}

/// Treatment of arguments that the address does not use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Body {
    /// They are added to the query; there is no body.
    #[default]
    None,
    /// They become the body, as a JSON object.
    Json,
}

/// HTTP method of an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
#[schemars(inline)]
#[expect(missing_docs, reason = "these are the methods of HTTP")]
pub enum Method {
    #[default]
    Get,
    Head,
    Post,
    Put,
    Patch,
    Delete,
}

impl Method {
    pub(super) const ALL: [Self; 6] = [Self::Get, Self::Post, Self::Put, Self::Patch, Self::Delete, Self::Head];

    /// The name, as requests carry it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Patch => "PATCH",
            Self::Delete => "DELETE",
            Self::Head => "HEAD",
        }
    }

    /// Returns the effect of repeating a request by the method's definition (RFC 9110, 9.2).
    pub(super) const fn effect(self) -> Effect {
        match self {
            Self::Get | Self::Head => Effect::ReadOnly,
            Self::Put | Self::Delete => Effect::Idempotent,
            Self::Post | Self::Patch => Effect::Undeclared,
        }
    }

    /// Whether a request may have a body that servers look at.
    pub(super) const fn takes_body(self) -> bool {
        matches!(self, Self::Post | Self::Put | Self::Patch | Self::Delete)
    }
}

impl From<Method> for reqwest::Method {
    fn from(method: Method) -> Self {
        match method {
            Method::Get => Self::GET,
            Method::Post => Self::POST,
            Method::Put => Self::PUT,
            Method::Patch => Self::PATCH,
            Method::Delete => Self::DELETE,
            Method::Head => Self::HEAD,
        }
    }
}

/// Not a method that endpoints may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a method: use GET, POST, PUT, PATCH, DELETE or HEAD")]
pub struct UnknownMethod;

impl FromStr for Method {
    type Err = UnknownMethod;

    /// Reads a name in any case.
    fn from_str(name: &str) -> Result<Self, UnknownMethod> {
        Self::ALL.into_iter().find(|method| method.as_str().eq_ignore_ascii_case(name)).ok_or(UnknownMethod)
    }
}

/// Mistake in an endpoint's section.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// No name.
    #[error("an endpoint needs a name")]
    Name,
    /// The URL template.
    #[error("the URL {0}")]
    Url(#[from] UrlTemplateError),
    /// A placeholder that no argument can fill.
    #[error("the URL has a placeholder `{{{placeholder}}}`, but `parameters` has no property of that name{hint}")]
    Undeclared {
        /// Name of the placeholder.
        placeholder: String,
        /// The nearest property's name, as part of the sentence.
        hint: String,
    },
    /// An argument that could never be sent.
    #[error("`parameters` has a property `{0}`, but the URL's query sets that already; rename or remove one")]
    Fixed(String),
    /// The schema of the arguments.
    #[error(transparent)]
    Parameters(#[from] ParametersError),
    /// The credentials.
    #[error("{0}")]
    Credential(CredentialError),
    /// The credentials of one agent.
    #[error("`per_agent.{agent}`: {error}")]
    AgentCredential {
        /// The agent.
        agent: AgentName,
        /// Mistake in the credentials.
        error: CredentialError,
    },
    /// The headers.
    #[error("{0}")]
    Headers(HeaderError),
    /// The header of the idempotency key.
    #[error("{0}; name a header, or \"none\"")]
    IdempotencyHeader(HeaderError),
    /// A body where servers expect none.
    #[error("{0} requests have no body; leave `body` out, or use POST, PUT, PATCH or DELETE")]
    Body(&'static str),
}

impl EndpointError {
    /// The configuration key that is wrong.
    #[must_use]
    pub const fn key(&self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Url(_) | Self::Undeclared { .. } => "url",
            Self::Fixed(_) | Self::Parameters(_) => "parameters",
            Self::Credential(_) | Self::AgentCredential { .. } => "auth",
            Self::Headers(_) => "headers",
            Self::IdempotencyHeader(_) => "idempotency_header",
            Self::Body(_) => "body",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Method, UnknownMethod};

    #[test]
    fn a_method_is_read_in_any_case() {
        for method in Method::ALL {
            assert_eq!(method.as_str().to_lowercase().parse(), Ok(method));
            assert_eq!(reqwest::Method::from(method).as_str(), method.as_str());
        }
        assert_eq!("TRACE".parse::<Method>(), Err(UnknownMethod));
    }
}
