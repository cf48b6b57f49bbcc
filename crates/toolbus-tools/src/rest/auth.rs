//! The headers that every request of an endpoint carries.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::header::{
    ACCEPT_ENCODING, AUTHORIZATION, CONNECTION, CONTENT_LENGTH, EXPECT, HOST, HeaderMap, HeaderName, HeaderValue,
    PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};

use crate::Secret;

/// How the daemon proves who it is.
#[derive(Debug, Clone, Default)]
pub enum Auth {
    /// It does not.
    #[default]
    None,
    /// `Authorization: Bearer {token}`.
    Bearer {
        /// The token.
        token: Secret,
    },
    /// The key in a header of its own.
    ApiKey {
        /// Name of the header; absent: [`Auth::API_KEY_HEADER`].
        header: Option<String>,
        /// The key.
        key: Secret,
    },
    /// `Authorization: Basic …` (RFC 7617).
    Basic {
        /// User name, without `:`.
        username: String,
        /// Password.
        password: Secret,
    },
}

/// Why a header or a credential cannot be sent. Values are never shown.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// A credential that is empty: an unset variable, most likely.
    #[error("the {0} is empty: is the variable or file that it comes from set?")]
    EmptyCredential(&'static str),
    /// No credential, where one is needed.
    #[error("there is no credential")]
    NoCredential,
    /// A colon would end the user name.
    #[error("the user name must not contain `:`")]
    ColonInUserName,
    /// Not a header's name.
    #[error("`{0}` is not a valid header name")]
    Name(String),
    /// Not a header's value.
    #[error("the value of header `{0}` has characters that a header cannot carry (a line break at its end?)")]
    Value(String),
    /// A header that belongs to the connection or to the daemon.
    #[error("header `{0}` is set by the daemon itself and cannot be configured")]
    Reserved(String),
    /// The same header again, in any case.
    #[error("header `{0}` is set twice")]
    Twice(String),
}

impl Auth {
    /// The header of an API key that names none.
    pub const API_KEY_HEADER: &'static str = "x-api-key";

    /// The name and value of its header.
    pub(super) fn header(&self) -> Result<Option<(HeaderName, HeaderValue)>, HeaderError> {
        let (name, value) = match self {
            Self::None => return Ok(None),
            Self::Bearer { token } => (AUTHORIZATION, format!("Bearer {}", filled("token", token.expose())?)),
            Self::ApiKey { header, key } => {
                let header = header.as_deref().unwrap_or(Self::API_KEY_HEADER);
                (checked_name(header)?, filled("key", key.expose())?.to_owned())
            }
            Self::Basic { username, password } => {
                if username.contains(':') {
                    return Err(HeaderError::ColonInUserName);
                }
                let (username, password) = (filled("user name", username)?, filled("password", password.expose())?);
                (AUTHORIZATION, format!("Basic {}", STANDARD.encode(format!("{username}:{password}"))))
            }
        };
        let value = checked_value(&name, &value)?;
        Ok(Some((name, value)))
    }

    /// The texts that must not come back in an answer.
    pub(super) fn confidential(&self) -> Vec<Secret> {
        match self {
            Self::None => Vec::new(),
            Self::Bearer { token: secret } | Self::ApiKey { key: secret, .. } => vec![secret.clone()],
            Self::Basic { username, password } => {
                let pair = STANDARD.encode(format!("{username}:{}", password.expose()));
                vec![Secret::new(pair), password.clone()]
            }
        }
    }
}

/// Puts the headers of an endpoint together, that of its [`Auth`] first.
pub(super) fn headers(
    auth: Option<(HeaderName, HeaderValue)>,
    configured: &[(String, Secret)],
) -> Result<HeaderMap, HeaderError> {
    let mut headers: HeaderMap = auth.into_iter().collect();
    for (name, value) in configured {
        let name = checked_name(name)?;
        let value = checked_value(&name, value.expose())?;
        if headers.insert(&name, value).is_some() {
            return Err(HeaderError::Twice(name.to_string()));
        }
    }
    Ok(headers)
}

fn filled<'a>(what: &'static str, text: &'a str) -> Result<&'a str, HeaderError> {
    if text.trim().is_empty() { Err(HeaderError::EmptyCredential(what)) } else { Ok(text) }
}

fn checked_name(name: &str) -> Result<HeaderName, HeaderError> {
    let parsed = HeaderName::from_bytes(name.as_bytes()).map_err(|_| HeaderError::Name(name.to_owned()))?;
    if is_reserved(&parsed) { Err(HeaderError::Reserved(parsed.to_string())) } else { Ok(parsed) }
}

/// Marked as sensitive, so that no layer below prints it.
fn checked_value(name: &HeaderName, value: &str) -> Result<HeaderValue, HeaderError> {
    let mut value = HeaderValue::from_str(value).map_err(|_| HeaderError::Value(name.to_string()))?;
    value.set_sensitive(true);
    Ok(value)
}

/// Hop-by-hop headers, those that frame the message, and those that carry a call's own trace.
fn is_reserved(name: &HeaderName) -> bool {
    let standard = [
        CONNECTION,
        PROXY_AUTHENTICATE,
        PROXY_AUTHORIZATION,
        TE,
        TRAILER,
        TRANSFER_ENCODING,
        UPGRADE,
        HOST,
        CONTENT_LENGTH,
        EXPECT,
        ACCEPT_ENCODING,
    ];
    standard.contains(name)
        || matches!(name.as_str(), "keep-alive" | "proxy-connection" | "http2-settings" | "traceparent" | "tracestate")
}

#[cfg(test)]
mod tests {
    use reqwest::header::HeaderMap;

    use super::{Auth, HeaderError};
    use crate::Secret;

    fn headers(configured: &[(String, Secret)], auth: &Auth) -> Result<HeaderMap, HeaderError> {
        super::headers(auth.header()?, configured)
    }

    fn bearer(token: &str) -> Auth {
        Auth::Bearer { token: token.into() }
    }

    fn with(name: &str, value: &str, auth: &Auth) -> Result<HeaderMap, HeaderError> {
        headers(&[(name.to_owned(), Secret::from(value))], auth)
    }

    #[test]
    fn every_kind_of_auth_becomes_its_header() {
        let table = [
            (bearer("t0ken"), "authorization", "Bearer t0ken"),
            (Auth::ApiKey { header: None, key: "k3y".into() }, "x-api-key", "k3y"),
            (Auth::ApiKey { header: Some("X-Other".into()), key: "k3y".into() }, "x-other", "k3y"),
            (
                Auth::Basic { username: "Aladdin".into(), password: "open sesame".into() },
                "authorization",
                "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==",
            ),
        ];
        for (auth, name, value) in table {
            let headers = headers(&[], &auth).unwrap();
            assert_eq!(headers[name], value);
            assert!(headers[name].is_sensitive());
            assert_eq!(headers.len(), 1);
        }
        assert!(headers(&[], &Auth::None).unwrap().is_empty());
    }

    #[test]
    fn an_empty_credential_is_refused() {
        let basic =
            |username: &str, password: &str| Auth::Basic { username: username.into(), password: password.into() };
        let table = [
            (bearer(""), "token"),
            (bearer(" \n"), "token"),
            (Auth::ApiKey { header: None, key: "".into() }, "key"),
            (basic("", "p"), "user name"),
            (basic("u", ""), "password"),
        ];
        for (auth, what) in table {
            assert_eq!(headers(&[], &auth), Err(HeaderError::EmptyCredential(what)));
        }
        assert_eq!(headers(&[], &basic("a:b", "p")), Err(HeaderError::ColonInUserName));
    }

    #[test]
    fn a_header_of_the_connection_cannot_be_configured() {
        for name in ["Host", "content-length", "Connection", "transfer-encoding", "TE", "Keep-Alive", "traceparent"] {
            let refused = Err(HeaderError::Reserved(name.to_lowercase()));
            assert_eq!(with(name, "x", &Auth::None), refused);
            assert_eq!(headers(&[], &Auth::ApiKey { header: Some(name.into()), key: "k".into() }), refused);
        }
    }

    #[test]
    fn a_name_or_value_that_no_header_can_carry_is_refused_without_showing_the_value() {
        for name in ["", "a b", "a:b", "ü"] {
            assert_eq!(with(name, "x", &Auth::None), Err(HeaderError::Name(name.to_owned())));
        }
        let refused = with("x-a", "hunter2\r\nevil: 1", &Auth::None).unwrap_err();
        assert_eq!(refused, HeaderError::Value("x-a".to_owned()));
        assert_eq!(headers(&[], &bearer("hunter2\n")), Err(HeaderError::Value("authorization".to_owned())));
    }

    #[test]
    fn a_header_is_set_once() {
        let twice = Err(HeaderError::Twice("authorization".to_owned()));
        assert_eq!(with("Authorization", "Token x", &bearer("t")), twice);
        assert!(with("Authorization", "Token x", &Auth::None).is_ok());
        let configured = [("Accept".to_owned(), "a/b".into()), ("accept".to_owned(), "c/d".into())];
        assert_eq!(headers(&configured, &Auth::None), Err(HeaderError::Twice("accept".to_owned())));
    }
}
