//! Credentials that a request carries to authenticate.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::header::{AUTHORIZATION, HeaderName, HeaderValue};
use toolbus_core::secret::Secret;
use url::Url;

use crate::headers::{HeaderError, parse_name, parse_value};

/// A credential for requests to a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Credential {
    /// `Authorization: Bearer …`.
    Bearer(Secret),
    /// A header of any name, such as `X-Api-Key`.
    Header {
        /// Name of the header.
        name: String,
        /// Value of the header.
        value: Secret,
    },
    /// `Authorization: Basic …` (RFC 7617).
    Basic {
        /// The user name, without `:`.
        username: String,
        /// The password.
        password: Secret,
    },
    /// A token that is fetched by the OAuth 2.1 client credentials grant.
    ClientCredentials(ClientCredentials),
}

/// Parameters for fetching a token by the OAuth 2.1 client credentials grant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientCredentials {
    /// The token endpoint.
    pub token_url: Url,
    /// The client's id.
    pub client_id: String,
    /// The client's secret.
    pub client_secret: Secret,
    /// Scopes to request.
    pub scopes: Vec<String>,
}

/// Reason why a credential cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CredentialError {
    /// An empty credential: an unset variable, most likely.
    #[error("the {0} is empty: is the variable or file that it comes from set?")]
    Empty(&'static str),
    /// No credential, where one is needed.
    #[error("there is no credential")]
    Missing,
    /// A colon would end the user name.
    #[error("the user name must not contain `:`")]
    ColonInUserName,
    /// A token that is fetched, where it must be known beforehand.
    #[error("a token that is fetched cannot be used here")]
    Fetched,
    /// A token endpoint that cannot be called.
    #[error("`token_url` {0}; expected \"https://host/path\"")]
    TokenUrl(String),
    /// A scope that cannot be requested.
    #[error("`scopes` has an entry that is no scope: expected words without spaces")]
    Scope,
    /// A header cannot carry it.
    #[error(transparent)]
    Header(#[from] HeaderError),
}

impl Credential {
    /// The header that carries the credential.
    ///
    /// # Errors
    ///
    /// If a header cannot carry it, or its value must be fetched first.
    pub fn header(&self) -> Result<(HeaderName, HeaderValue), CredentialError> {
        let (name, value) = match self {
            Self::Bearer(token) => (AUTHORIZATION, format!("Bearer {}", filled("token", token.expose())?)),
            Self::Header { name, value } => (parse_name(name)?, filled("key", value.expose())?.to_owned()),
            Self::Basic { username, password } => {
                if username.contains(':') {
                    return Err(CredentialError::ColonInUserName);
                }
                let (username, password) = (filled("user name", username)?, filled("password", password.expose())?);
                (AUTHORIZATION, format!("Basic {}", STANDARD.encode(format!("{username}:{password}"))))
            }
            Self::ClientCredentials(_) => return Err(CredentialError::Fetched),
        };
        let value = parse_value(&name, &value)?;
        Ok((name, value))
    }

    /// The strings that must not appear in a response that a caller sees.
    #[must_use]
    pub fn confidential(&self) -> Vec<Secret> {
        match self {
            Self::Bearer(secret) | Self::Header { value: secret, .. } => vec![secret.clone()],
            Self::Basic { username, password } => {
                let pair = STANDARD.encode(format!("{username}:{}", password.expose()));
                vec![Secret::new(pair), password.clone()]
            }
            Self::ClientCredentials(grant) => vec![grant.client_secret.clone()],
        }
    }
}

fn filled<'a>(what: &'static str, text: &'a str) -> Result<&'a str, CredentialError> {
    if text.trim().is_empty() { Err(CredentialError::Empty(what)) } else { Ok(text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn basic(username: &str, password: &str) -> Credential {
        Credential::Basic { username: username.into(), password: password.into() }
    }

    #[test]
    fn every_kind_of_credential_becomes_its_header() {
        let table = [
            (Credential::Bearer("t0ken".into()), "authorization", "Bearer t0ken"),
            (Credential::Header { name: "X-Other".into(), value: "k3y".into() }, "x-other", "k3y"),
            (basic("Aladdin", "open sesame"), "authorization", "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ=="),
        ];
        for (credential, name, value) in table {
            let (found, header) = credential.header().unwrap();
            assert_eq!((found.as_str(), header.to_str().unwrap()), (name, value));
            assert!(header.is_sensitive());
        }
    }

    #[test]
    fn an_empty_credential_is_refused() {
        let table = [
            (Credential::Bearer("".into()), "token"),
            (Credential::Bearer(" \n".into()), "token"),
            (Credential::Header { name: "x-api-key".into(), value: "".into() }, "key"),
            (basic("", "p"), "user name"),
            (basic("u", ""), "password"),
        ];
        for (credential, what) in table {
            assert_eq!(credential.header(), Err(CredentialError::Empty(what)));
        }
        assert_eq!(basic("a:b", "p").header(), Err(CredentialError::ColonInUserName));
    }

    #[test]
    fn a_value_that_no_header_can_carry_is_refused() {
        let refused = Credential::Bearer("hunter2\n".into()).header();
        assert_eq!(refused, Err(HeaderError::Value("authorization".to_owned()).into()));
    }
}
