//! Whose credentials a request carries.

use std::collections::BTreeMap;

use reqwest::header::HeaderMap;
use toolbus_core::caller::{AgentName, Caller};
use toolbus_core::failure::{Cause, ToolFailure};

use super::{Auth, EndpointError, HeaderError, Settings, auth};

/// The headers of an endpoint's requests, credentials included.
pub(super) enum Credentials {
    /// The same for every caller.
    Shared(HeaderMap),
    /// Each agent's own; nobody else is served.
    PerAgent(BTreeMap<AgentName, HeaderMap>),
}

impl Credentials {
    pub(super) fn new(settings: &Settings) -> Result<Self, EndpointError> {
        let shared = settings.auth.header().map_err(EndpointError::Auth)?;
        if settings.per_agent.is_empty() {
            let headers = auth::headers(shared, &settings.headers).map_err(EndpointError::Headers)?;
            return Ok(Self::Shared(headers));
        }
        let of_agent = |(agent, auth): (&AgentName, &Auth)| {
            let wrong = |error| EndpointError::AgentAuth { agent: agent.clone(), error };
            let own = auth.header().map_err(wrong)?.ok_or_else(|| wrong(HeaderError::NoCredential))?;
            let headers = auth::headers(Some(own), &settings.headers).map_err(EndpointError::Headers)?;
            Ok((agent.clone(), headers))
        };
        settings.per_agent.iter().map(of_agent).collect::<Result<_, _>>().map(Self::PerAgent)
    }

    /// The headers for one caller; `name` is the tool's. Who has no credentials is not told who has.
    pub(super) fn headers(&self, name: &str, caller: &Caller) -> Result<&HeaderMap, ToolFailure> {
        match self {
            Self::Shared(headers) => Ok(headers),
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
