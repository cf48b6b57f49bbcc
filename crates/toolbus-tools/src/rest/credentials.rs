//! The credentials and headers of requests, for every caller or by agent.

use std::collections::BTreeMap;

use reqwest::header::HeaderMap;
use toolbus_core::caller::{AgentName, Caller};
use toolbus_core::failure::{Cause, ToolFailure};
use toolbus_outbound::headers;

use super::mask::Mask;
use super::{Credential, CredentialError, EndpointError, Settings};

/// The credentials of an endpoint's requests.
pub(super) enum Credentials {
    /// The same for every caller.
    Shared(Carried),
    /// Each agent's own; nobody else is served.
    PerAgent(BTreeMap<AgentName, Carried>),
}

/// What a request carries.
pub(super) struct Carried {
    /// Its headers, credentials included.
    pub(super) headers: HeaderMap,
    /// A server that echoes its request must not hand these credentials to the caller.
    pub(super) mask: Mask,
}

impl Credentials {
    pub(super) fn new(settings: &Settings) -> Result<Self, EndpointError> {
        let carried = |credential: Option<&Credential>, header| {
            let headers = headers::with_configured(header, &settings.headers).map_err(EndpointError::Headers)?;
            let confidential = credential.map(Credential::confidential).unwrap_or_default();
            Ok(Carried { headers, mask: Mask::new(confidential, &settings.headers) })
        };
        let header_of = |credential: &Credential| {
            let (name, value) = credential.header()?;
            Ok::<_, CredentialError>((headers::unreserved(name)?, value))
        };
        let shared = settings.credential.as_ref();
        let header = shared.map(header_of).transpose().map_err(EndpointError::Credential)?;
        if settings.per_agent.is_empty() {
            return carried(shared, header).map(Self::Shared);
        }
        let of_agent = |(agent, credential): (&AgentName, &Option<Credential>)| {
            let wrong = |error| EndpointError::AgentCredential { agent: agent.clone(), error };
            let own = credential.as_ref().ok_or_else(|| wrong(CredentialError::Missing))?;
            let header = header_of(own).map_err(wrong)?;
            Ok((agent.clone(), carried(Some(own), Some(header))?))
        };
        settings.per_agent.iter().map(of_agent).collect::<Result<_, _>>().map(Self::PerAgent)
    }

    /// Those of `caller`, for the tool `name`.
    ///
    /// # Errors
    ///
    /// If its agent has no credential; the text names no agent that has one.
    pub(super) fn of(&self, name: &str, caller: &Caller) -> Result<&Carried, ToolFailure> {
        match self {
            Self::Shared(carried) => Ok(carried),
            Self::PerAgent(agents) => caller.agent.as_ref().and_then(|agent| agents.get(agent)).ok_or_else(|| {
                let message = format!(
                    "Tool '{name}' needs credentials of the agent that calls it, and has none for this one. Only an \
                     operator can add them."
                );
                ToolFailure::new(Cause::AuthRequired, message)
            }),
        }
    }
}
