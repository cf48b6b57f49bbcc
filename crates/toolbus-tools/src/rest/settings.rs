use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolbus_core::caller::AgentName;
use toolbus_core::tool::Effect;

use super::Credential;
use crate::Secret;

/// One endpoint, as configured. Nothing is checked yet: see [`tool`](super::tool).
#[derive(Debug, Clone)]
pub struct Settings {
    /// Name of the tool.
    pub name: String,
    /// What it does, for a model.
    pub description: String,
    /// URL template: `{name}` in path and query stands for argument `name`.
    pub url: String,
    /// HTTP method.
    pub method: Method,
    /// JSON Schema of the arguments, as text; absent: any object, and no placeholders.
    pub parameters: Option<String>,
    /// The credential of every caller.
    pub credential: Option<Credential>,
    /// Credentials by agent. If there is any, [`Self::credential`] is never sent, and agents without one are refused.
    pub per_agent: BTreeMap<AgentName, Option<Credential>>,
    /// Headers of every request. Values are secrets, because they may be.
    pub headers: Vec<(String, Secret)>,
    /// Where arguments go that the URL does not use.
    pub body: Body,
    /// Longest run of one call, from connecting to the last byte; absent: the daemon's.
    pub timeout: Option<Duration>,
    /// Largest answer, in bytes after decompression; at least 1.
    pub max_response: u64,
    /// What repeating a call would do; undeclared: what its method says.
    pub effect: Effect,
}

impl Settings {
    /// An endpoint with defaults: `GET`, no credentials, 1 MiB of answer, the effect that its method has.
    #[must_use]
    pub fn new(name: impl Into<String>, url: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            description: String::new(),
            url: url.into(),
            method: Method::default(),
            parameters: None,
            credential: None,
            per_agent: BTreeMap::new(),
            headers: Vec::new(),
            body: Body::default(),
            timeout: None,
            max_response: 1024 * 1024,
            effect: Effect::Undeclared,
        }
    }
}

/// What becomes of arguments that the address does not use.
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

    /// What repeating a request does by the method's definition (RFC 9110, 9.2).
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

#[cfg(test)]
mod tests {
    use super::{Credential, Method, Settings, UnknownMethod};
    use crate::Secret;

    #[test]
    fn a_method_is_read_in_any_case() {
        for method in Method::ALL {
            assert_eq!(method.as_str().to_lowercase().parse(), Ok(method));
            assert_eq!(reqwest::Method::from(method).as_str(), method.as_str());
        }
        assert_eq!("TRACE".parse::<Method>(), Err(UnknownMethod));
    }

    #[test]
    fn debug_shows_no_credential() {
        let mut settings = Settings::new("x", "http://h/");
        settings.headers.push(("authorization".to_owned(), Secret::new("hunter2-hunter2")));
        settings.credential = Some(Credential::Bearer(Secret::new("hunter2-hunter2")));
        assert!(!format!("{settings:?}").contains("hunter2"));
    }
}
