//! The headers that every request carries.

use std::collections::BTreeMap;

use reqwest::header::{
    ACCEPT, ACCEPT_ENCODING, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue, TE,
    TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use toolbus_core::secret::Secret;

/// Headers that the transport itself sets. Configurations written for other clients have some of them, so they are
/// passed over.
const OWN: [HeaderName; 10] =
    [ACCEPT, ACCEPT_ENCODING, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HOST, TE, TRAILER, TRANSFER_ENCODING, UPGRADE];
const OWN_OF_MCP: [&str; 3] = ["mcp-session-id", "mcp-protocol-version", "last-event-id"];

/// A header that cannot be sent. Its value is never shown.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HeaderError {
    /// Not a header's name.
    #[error("`{0}` is not a valid header name")]
    Name(String),
    /// Not a header's value.
    #[error("the value of header `{0}` has characters that a header cannot carry (a line break at its end?)")]
    Value(String),
}

/// Checks the headers of a configuration.
pub(super) fn configured(headers: &BTreeMap<String, Secret>) -> Result<HeaderMap, HeaderError> {
    let mut checked = HeaderMap::new();
    for (name, value) in headers {
        let name = parse_name(name)?;
        if OWN.contains(&name) || OWN_OF_MCP.contains(&name.as_str()) {
            tracing::warn!(header = %name, "a configured header is left out: the transport sets it itself");
            continue;
        }
        let value = parse_value(&name, value.expose())?;
        checked.insert(name, value);
    }
    Ok(checked)
}

pub(crate) fn parse_name(name: &str) -> Result<HeaderName, HeaderError> {
    HeaderName::from_bytes(name.as_bytes()).map_err(|_| HeaderError::Name(name.escape_debug().to_string()))
}

/// Marked as sensitive, so that no layer below prints it.
pub(crate) fn parse_value(name: &HeaderName, value: &str) -> Result<HeaderValue, HeaderError> {
    let mut value = HeaderValue::from_str(value).map_err(|_| HeaderError::Value(name.to_string()))?;
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str, value: &str) -> Result<HeaderMap, HeaderError> {
        configured(&BTreeMap::from([(name.to_owned(), Secret::from(value))]))
    }

    #[test]
    fn a_header_is_sent_as_configured_and_marked_as_sensitive() {
        let headers = of("X-Api-Key", "k3y").unwrap();
        assert_eq!(headers["x-api-key"], "k3y");
        assert!(headers["x-api-key"].is_sensitive());
    }

    #[test]
    fn a_header_that_the_transport_sets_is_left_out() {
        for name in ["Accept", "content-type", "Host", "Content-Length", "MCP-Session-Id", "Mcp-Protocol-Version"] {
            assert_eq!(of(name, "x"), Ok(HeaderMap::new()), "{name}");
        }
    }

    #[test]
    fn a_header_that_cannot_be_sent_is_refused_without_its_value() {
        assert_eq!(of("a b", "x"), Err(HeaderError::Name("a b".to_owned())));
        assert_eq!(of("x-a", "hunter2\r\nevil: 1"), Err(HeaderError::Value("x-a".to_owned())));
    }
}
