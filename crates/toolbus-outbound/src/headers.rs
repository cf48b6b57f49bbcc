//! Names and values of headers, checked before they are sent.

use reqwest::header::{
    ACCEPT_ENCODING, CONNECTION, CONTENT_LENGTH, EXPECT, HOST, HeaderMap, HeaderName, HeaderValue, PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use toolbus_core::secret::Secret;

/// Reason why a header cannot be sent. Values are never shown.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// An invalid name.
    #[error("`{0}` is not a valid header name")]
    Name(String),
    /// An invalid value.
    #[error("the value of header `{0}` has characters that a header cannot carry (a line break at its end?)")]
    Value(String),
    /// A header of the connection or of the daemon.
    #[error("header `{0}` is set by the daemon itself and cannot be configured")]
    Reserved(String),
    /// The same header again, in any case.
    #[error("header `{0}` is set twice")]
    Twice(String),
}

/// Reads the name of a header.
///
/// # Errors
///
/// If it is not a token of RFC 9110.
pub fn parse_name(name: &str) -> Result<HeaderName, HeaderError> {
    HeaderName::from_bytes(name.as_bytes()).map_err(|_| HeaderError::Name(name.escape_debug().to_string()))
}

/// Reads the value of the header `name`. It is marked as sensitive, so that no layer below prints it.
///
/// # Errors
///
/// If a header cannot carry it.
pub fn parse_value(name: &HeaderName, value: &str) -> Result<HeaderValue, HeaderError> {
    let mut value = HeaderValue::from_str(value).map_err(|_| HeaderError::Value(name.to_string()))?;
    value.set_sensitive(true);
    Ok(value)
}

/// The header of a credential, if there is one, with the configured headers.
///
/// # Errors
///
/// If a configured header is invalid or reserved, or a header is set twice.
pub fn with_configured<'a>(
    credential: Option<(HeaderName, HeaderValue)>,
    configured: impl IntoIterator<Item = (&'a String, &'a Secret)>,
) -> Result<HeaderMap, HeaderError> {
    let mut headers = HeaderMap::new();
    if let Some((name, value)) = credential {
        headers.insert(name, value);
    }
    for (name, value) in configured {
        let name = unreserved(parse_name(name)?)?;
        let value = parse_value(&name, value.expose())?;
        if headers.insert(&name, value).is_some() {
            return Err(HeaderError::Twice(name.to_string()));
        }
    }
    Ok(headers)
}

/// The same name, unless it is one of the connection or of the daemon.
///
/// # Errors
///
/// If it is.
pub fn unreserved(name: HeaderName) -> Result<HeaderName, HeaderError> {
    if is_reserved(&name) { Err(HeaderError::Reserved(name.to_string())) } else { Ok(name) }
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
    use super::*;
    use crate::Credential;

    fn headers(configured: &[(&str, &str)], credential: Option<Credential>) -> Result<HeaderMap, HeaderError> {
        let configured: Vec<_> =
            configured.iter().map(|(name, value)| ((*name).to_owned(), Secret::from(*value))).collect();
        let configured = configured.iter().map(|(name, value)| (name, value));
        with_configured(credential.map(|credential| credential.header().unwrap()), configured)
    }

    #[test]
    fn a_header_is_sent_as_configured_and_marked_as_sensitive() {
        let headers = headers(&[("X-Api-Key", "k3y")], None).unwrap();
        assert_eq!(headers["x-api-key"], "k3y");
        assert!(headers["x-api-key"].is_sensitive());
    }

    #[test]
    fn a_header_of_the_connection_cannot_be_configured() {
        for name in ["Host", "content-length", "Connection", "transfer-encoding", "TE", "Keep-Alive", "traceparent"] {
            let refused = Err(HeaderError::Reserved(name.to_lowercase()));
            assert_eq!(headers(&[(name, "x")], None), refused);
        }
    }

    #[test]
    fn a_name_or_value_that_no_header_can_carry_is_refused_without_showing_the_value() {
        for name in ["", "a b", "a:b", "ü"] {
            assert_eq!(headers(&[(name, "x")], None), Err(HeaderError::Name(name.to_owned())));
        }
        let refused = headers(&[("x-a", "hunter2\r\nevil: 1")], None).unwrap_err();
        assert_eq!(refused, HeaderError::Value("x-a".to_owned()));
    }

    #[test]
    fn a_header_is_set_once() {
        let twice = Err(HeaderError::Twice("authorization".to_owned()));
        let bearer = || Some(Credential::Bearer("t".into()));
        assert_eq!(headers(&[("Authorization", "Token x")], bearer()), twice);
        assert!(headers(&[("Authorization", "Token x")], None).is_ok());
        let accepts = [("Accept", "a/b"), ("accept", "c/d")];
        assert_eq!(headers(&accepts, None), Err(HeaderError::Twice("accept".to_owned())));
    }
}
