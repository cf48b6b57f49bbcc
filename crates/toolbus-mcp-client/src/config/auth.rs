//! Credentials of an MCP server, from its `auth`.

use reqwest::header::{HeaderName, HeaderValue};
use toolbus_core::caller::AgentName;
use toolbus_outbound::{Auth, CredentialError};

use super::Mistake;
use crate::spec::{Credential, Credentials};

/// Returns the credentials, if they are complete and can be sent.
pub(super) fn credentials(auth: &Auth) -> Result<Credentials, Mistake> {
    if !auth.has_agents() {
        let missing = || {
            let keys = auth.missing().join("` and `");
            Mistake::new("auth", format!("`{keys}` is missing; expected it here, or in `per_agent` for each agent"))
        };
        return sendable(auth.shared())?.map(Credentials::Shared).ok_or_else(missing);
    }
    let needed = auth.needed();
    let of_agent = |(agent, own): (&AgentName, Result<Option<Credential>, CredentialError>)| {
        let credential = sendable(own)?.ok_or_else(|| {
            let what = format!("expected {needed} for `{agent}` in `per_agent`, as the `type` of this `auth` needs");
            Mistake::new("auth", what)
        })?;
        Ok((agent.clone(), credential))
    };
    auth.per_agent().map(of_agent).collect::<Result<_, _>>().map(Credentials::PerAgent)
}

/// A credential that travels in a header must fit there.
fn sendable(credential: Result<Option<Credential>, CredentialError>) -> Result<Option<Credential>, Mistake> {
    let mut credential = credential.map_err(|error| Mistake::new("auth", error.to_string()))?;
    let value = match &mut credential {
        Some(Credential::Bearer(token)) => Some(token),
        Some(Credential::Header { name, value }) => {
            let parsed = HeaderName::from_bytes(name.as_bytes())
                .map_err(|_| Mistake::new("auth", "`header` is a name that no header can have"))?;
            parsed.as_str().clone_into(name);
            Some(value)
        }
        Some(Credential::Basic { username, .. }) if username.contains(':') => {
            return Err(Mistake::new("auth", CredentialError::ColonInUserName.to_string()));
        }
        Some(Credential::Basic { .. } | Credential::ClientCredentials(_)) | None => None,
    };
    if value.is_some_and(|value| HeaderValue::from_str(value.expose()).is_err()) {
        return Err(Mistake::new("auth", "has a credential with characters that no header can have"));
    }
    Ok(credential)
}
