//! `_meta` of requests.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;
use toolbus_protocol::TraceContext;

use crate::rpc::RpcError;
use crate::version::Version;

/// Longest progress token, in bytes: each report repeats it.
const MAX_TOKEN: usize = 256;
const PROTOCOL_VERSION: &str = "io.modelcontextprotocol/protocolVersion";
const CLIENT_CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";

/// `_meta` of a request. A field of a wrong type counts as absent.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Meta<'a> {
    #[serde(borrow, default, rename = "progressToken")]
    progress_token: Option<&'a RawValue>,
    #[serde(borrow, default, rename = "io.modelcontextprotocol/protocolVersion")]
    protocol_version: Option<&'a RawValue>,
    #[serde(borrow, default, rename = "io.modelcontextprotocol/clientCapabilities")]
    client_capabilities: Option<&'a RawValue>,
    #[serde(borrow, default)]
    traceparent: Option<&'a RawValue>,
    #[serde(borrow, default)]
    tracestate: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct AnyParams<'a> {
    #[serde(borrow, default, rename = "_meta")]
    meta: Option<&'a RawValue>,
}

impl<'a> Meta<'a> {
    /// Reads `_meta` of the parameters. An unreadable one counts as absent.
    pub(crate) fn of(params: Option<&'a RawValue>) -> Self {
        let params = params.and_then(|params| serde_json::from_str::<AnyParams<'a>>(params.get()).ok());
        let meta = params.and_then(|params| params.meta).filter(|meta| meta.get().starts_with('{'));
        meta.and_then(|meta| serde_json::from_str(meta.get()).ok()).unwrap_or_default()
    }

    /// Returns what reports of progress are to carry: a string or a whole number, as JSON.
    pub(crate) fn progress_token(&self) -> Option<&'a RawValue> {
        let is_token = |token: &&RawValue| {
            let text = token.get();
            text.len() <= MAX_TOKEN && (text.starts_with('"') || text.parse::<i64>().is_ok())
        };
        self.progress_token.filter(is_token)
    }

    /// The protocol version of the request.
    pub(crate) fn protocol_version(&self) -> Option<Cow<'a, str>> {
        text(self.protocol_version?)
    }

    /// Whether the request is stateless, as in version 2026-07-28, by its `_meta`.
    pub(crate) fn stands_alone(&self, method: &str) -> bool {
        let is_new = |text: &str| Version::parse(text).is_none_or(|version| !version.has_sessions());
        method == "server/discover" || self.protocol_version().is_some_and(|version| is_new(&version))
    }

    /// The protocol version that a stateless request states.
    ///
    /// # Errors
    ///
    /// If version or client capabilities are missing or malformed.
    pub(crate) fn stated_version(&self) -> Result<Cow<'a, str>, RpcError> {
        let missing = self.missing();
        self.protocol_version().filter(|_| missing.is_empty()).ok_or_else(|| {
            let text = format!("The request's `_meta` lacks, or has malformed: {}.", missing.join(", "));
            RpcError::invalid_params(text)
        })
    }

    /// Checks that a stateless request is complete, in a supported version.
    pub(crate) fn check_version(&self) -> Result<(), RpcError> {
        let version = self.stated_version()?;
        match Version::parse(&version) {
            Some(Version::V20260728) => Ok(()),
            _ => Err(RpcError::unsupported_version(&version)),
        }
    }

    /// The missing keys that version 2026-07-28 requires.
    fn missing(&self) -> Vec<&'static str> {
        let is_object = |value: &&RawValue| value.get().starts_with('{');
        let version = self.protocol_version().is_none().then_some(PROTOCOL_VERSION);
        let capabilities = self.client_capabilities.filter(is_object).is_none().then_some(CLIENT_CAPABILITIES);
        version.into_iter().chain(capabilities).collect()
    }

    /// The trace that the request belongs to.
    pub(crate) fn trace(&self) -> Option<TraceContext> {
        let state = self.tracestate.and_then(text);
        TraceContext::parse(&text(self.traceparent?)?, state.as_deref())
    }
}

fn text(raw: &RawValue) -> Option<Cow<'_, str>> {
    serde_json::from_str::<Text<'_>>(raw.get()).ok().map(|text| text.0)
}

#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(text: &str) -> Box<RawValue> {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn a_request_states_its_version_and_trace() {
        let params = raw(
            r#"{"_meta":{"progressToken":7,"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},"traceparent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01","other":[1]},"name":"x"}"#,
        );
        let meta = Meta::of(Some(&params));
        assert_eq!(meta.progress_token().map(RawValue::get), Some("7"));
        assert_eq!(meta.protocol_version().as_deref(), Some("2026-07-28"));
        assert_eq!(meta.missing(), [""; 0]);
        assert_eq!(meta.trace().unwrap().trace_id(), "0af7651916cd43dd8448eb211c80319c");
    }

    #[test]
    fn a_field_of_a_wrong_type_counts_as_absent() {
        for params in [
            "null",
            "[]",
            "{}",
            r#"{"_meta":7}"#,
            r#"{"_meta":[7,"2026-07-28",{},"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"]}"#,
            r#"{"_meta":{"progressToken":1.5,"traceparent":7,"io.modelcontextprotocol/protocolVersion":1,"io.modelcontextprotocol/clientCapabilities":null}}"#,
        ] {
            let params = raw(params);
            let meta = Meta::of(Some(&params));
            assert!(meta.progress_token().is_none() && meta.protocol_version().is_none() && meta.trace().is_none());
            assert_eq!(meta.missing(), [PROTOCOL_VERSION, CLIENT_CAPABILITIES]);
        }
    }
}
