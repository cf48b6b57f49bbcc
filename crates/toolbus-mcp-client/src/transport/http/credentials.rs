//! How requests to an HTTP server are authorised.

mod token;

use reqwest::header::{AUTHORIZATION, HeaderName, HeaderValue};
use toolbus_core::redact::Redactor;

use self::token::TokenSource;
use super::headers::{HeaderError, parse_name, parse_value};
use crate::spec::Credential;

pub(crate) use self::token::TokenError;

/// Gives the header that authorises a request. It is asked for each request, because tokens expire while a session
/// lives.
pub(crate) enum Authorizer {
    /// Requests need none.
    None,
    /// Always the same.
    Fixed(HeaderName, HeaderValue),
    /// A token that is fetched.
    Fetched(Box<TokenSource>),
}

/// Why a credential cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CredentialError {
    /// An unset variable, most likely.
    #[error("the credential is empty: is the variable or file that it comes from set?")]
    Empty,
    /// A header cannot carry it.
    #[error(transparent)]
    Header(#[from] HeaderError),
}

impl Authorizer {
    /// Prepares a credential. `http` fetches its tokens, which `redactor` learns.
    pub(crate) fn new(
        credential: Option<Credential>,
        http: &reqwest::Client,
        redactor: &Redactor,
    ) -> Result<Self, CredentialError> {
        let (name, value) = match credential {
            None => return Ok(Self::None),
            Some(Credential::Bearer(token)) => (AUTHORIZATION, format!("Bearer {}", filled(token.expose())?)),
            Some(Credential::Header { name, value }) => (parse_name(&name)?, filled(value.expose())?.to_owned()),
            Some(Credential::ClientCredentials(grant)) => {
                filled(&grant.client_id)?;
                filled(grant.client_secret.expose())?;
                return Ok(Self::Fetched(Box::new(TokenSource::new(grant, http.clone(), redactor.clone()))));
            }
        };
        let value = parse_value(&name, &value)?;
        Ok(Self::Fixed(name, value))
    }

    /// Whether requests carry a credential.
    pub(crate) const fn has_credential(&self) -> bool {
        !matches!(self, Self::None)
    }

    /// The header of a request. Fetches a token where that is needed.
    pub(crate) async fn header(&self) -> Result<Option<(HeaderName, HeaderValue)>, TokenError> {
        match self {
            Self::None => Ok(None),
            Self::Fixed(name, value) => Ok(Some((name.clone(), value.clone()))),
            Self::Fetched(source) => Ok(Some((AUTHORIZATION, source.value().await?))),
        }
    }

    /// Hears that the server does not accept `value`. True if another one can be had.
    pub(crate) async fn forget(&self, value: &HeaderValue) -> bool {
        let Self::Fetched(source) = self else { return false };
        source.forget(value).await;
        true
    }
}

fn filled(text: &str) -> Result<&str, CredentialError> {
    if text.trim().is_empty() { Err(CredentialError::Empty) } else { Ok(text) }
}
