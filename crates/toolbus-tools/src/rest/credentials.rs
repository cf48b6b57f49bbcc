//! Whose credentials a request carries.

use std::collections::BTreeMap;

use reqwest::header::HeaderMap;
use toolbus_core::caller::{AgentName, Caller};
use toolbus_core::failure::{Cause, ToolFailure};

use super::mask::Mask;
use super::{Auth, EndpointError, HeaderError, Settings, auth};

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
        let carried = |auth: &Auth, header| {
            let headers = auth::headers(header, &settings.headers).map_err(EndpointError::Headers)?;
            Ok(Carried { headers, mask: Mask::new(auth.confidential(), &settings.headers) })
        };
        let shared = settings.auth.header().map_err(EndpointError::Auth)?;
        if settings.per_agent.is_empty() {
            return carried(&settings.auth, shared).map(Self::Shared);
        }
        let of_agent = |(agent, auth): (&AgentName, &Auth)| {
            let wrong = |error| EndpointError::AgentAuth { agent: agent.clone(), error };
            let own = auth.header().map_err(wrong)?.ok_or_else(|| wrong(HeaderError::NoCredential))?;
            Ok((agent.clone(), carried(auth, Some(own))?))
        };
        settings.per_agent.iter().map(of_agent).collect::<Result<_, _>>().map(Self::PerAgent)
    }

    /// Those of one caller; `name` is the tool's. Who has none is not told who has.
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
