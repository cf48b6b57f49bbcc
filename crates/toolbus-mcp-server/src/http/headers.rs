//! Headers of a request, and whether they agree with the message.

use std::sync::Arc;

use axum::http::HeaderMap;
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::value::RawValue;
use toolbus_core::caller::Caller;
use toolbus_protocol::{TraceContext, header};

use crate::meta::Meta;
use crate::rpc::{RpcError, RpcRequest};
use crate::version::Version;

pub(super) const SESSION_ID: &str = "mcp-session-id";
pub(super) const PROTOCOL_VERSION: &str = "mcp-protocol-version";
const METHOD: &str = "mcp-method";
const NAME: &str = "mcp-name";
const JSON: &str = "application/json";
pub(super) const EVENTS: &str = "text/event-stream";

/// Whether a client accepts responses of this kind.
pub(super) fn accepts(headers: &HeaderMap, kind: &str) -> bool {
    let family = kind.split('/').next().unwrap_or_default();
    let values = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let mut kinds =
        values.flat_map(|value| value.split(',')).map(|entry| entry.split(';').next().unwrap_or_default().trim());
    kinds.any(|entry| entry == "*/*" || entry.eq_ignore_ascii_case(kind) || entry.strip_suffix("/*") == Some(family))
}

/// Whether a client takes both kinds of responses, as it must.
pub(super) fn accepts_both(headers: &HeaderMap) -> bool {
    accepts(headers, JSON) && accepts(headers, EVENTS)
}

/// Whether the content type is JSON.
pub(super) fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    kind.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case(JSON)
}

/// The one value of a header; an error when there are several, or when it is no text.
pub(super) fn one<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<&'a str>, RpcError> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    let text = value.to_str().ok().filter(|_| values.next().is_none());
    let refused =
        || RpcError::new(RpcError::INVALID_REQUEST, format!("The header {name} must have one value, of ASCII."));
    text.map(Some).ok_or_else(refused)
}

/// Restrictions by the headers of what an agent may use.
#[derive(Debug, Clone, Copy)]
pub(super) struct Narrowed<'a> {
    pub(super) binding: Option<&'a str>,
    pub(super) profile: Option<&'a str>,
}

impl<'a> Narrowed<'a> {
    /// Reads the headers. An unreadable header is refused: without it, the caller could use more.
    pub(super) fn read(headers: &'a HeaderMap) -> Result<Self, RpcError> {
        Ok(Self { binding: one(headers, header::BINDING)?, profile: one(headers, header::TOOL_PROFILE)? })
    }

    /// Whether a caller has these values already. An absent header matches any value.
    pub(super) fn is_of(self, caller: &Caller) -> bool {
        let is = |stated: Option<&str>, has: &Option<Arc<str>>| stated.is_none() || stated == has.as_deref();
        is(self.binding, &caller.binding) && is(self.profile, &caller.profile)
    }
}

/// The protocol version in the headers, if it is supported.
pub(super) fn known_version(headers: &HeaderMap) -> Result<Option<Version>, RpcError> {
    match one(headers, PROTOCOL_VERSION)? {
        None => Ok(None),
        Some(text) => Version::parse(text).map(Some).ok_or_else(|| RpcError::unsupported_version(text)),
    }
}

/// The trace that the headers name. What cannot be read names none.
pub(super) fn trace(headers: &HeaderMap) -> Option<TraceContext> {
    let text = |name| one(headers, name).ok().flatten();
    TraceContext::parse(text("traceparent")?, text("tracestate"))
}

/// Whether a request is stateless, as in version 2026-07-28.
pub(super) fn stands_alone(headers: &HeaderMap, call: &RpcRequest<'_>, meta: &Meta<'_>) -> bool {
    meta.stands_alone(&call.method)
        || headers.get(PROTOCOL_VERSION).and_then(|value| value.to_str().ok()) == Some(Version::V20260728.as_str())
}

/// Checks that the headers of a stateless request are complete and agree with the message.
pub(super) fn agree(headers: &HeaderMap, call: &RpcRequest<'_>, meta: &Meta<'_>) -> Result<(), RpcError> {
    let version = meta.stated_version()?;
    let mismatch = |text: String| RpcError::new(RpcError::HEADER_MISMATCH, text);
    match one(headers, PROTOCOL_VERSION)? {
        Some(header) if header == version => {}
        Some(_) => {
            return Err(mismatch(
                "The header MCP-Protocol-Version names another version than the request's `_meta`.".to_owned(),
            ));
        }
        None => return Err(mismatch("The header MCP-Protocol-Version is missing.".to_owned())),
    }
    meta.check_version()?;
    match one(headers, METHOD)? {
        Some(header) if header == call.method => {}
        Some(_) => return Err(mismatch("The header Mcp-Method names another method than the request.".to_owned())),
        None => return Err(mismatch("The header Mcp-Method is missing.".to_owned())),
    }
    let Some(expected) = name_of(call) else { return Ok(()) };
    match one(headers, NAME)?.map(decoded) {
        Some(Some(header)) if header == expected => Ok(()),
        Some(Some(_)) => Err(mismatch("The header Mcp-Name names something else than the request.".to_owned())),
        Some(None) => Err(mismatch("The header Mcp-Name is not valid Base64.".to_owned())),
        None => Err(mismatch("The header Mcp-Name is missing.".to_owned())),
    }
}

/// Returns what the header `Mcp-Name` has to repeat.
fn name_of(call: &RpcRequest<'_>) -> Option<String> {
    #[derive(Deserialize)]
    struct NamedParams {
        name: String,
    }
    #[derive(Deserialize)]
    struct Addressed {
        uri: String,
    }
    // Parsed as the methods parse them, so that both see the same name.
    let params = call.params.map(RawValue::get)?;
    match &*call.method {
        "tools/call" => serde_json::from_str(params).ok().map(|NamedParams { name }| name),
        "resources/read" => serde_json::from_str(params).ok().map(|Addressed { uri }| uri),
        _ => None,
    }
}

/// A value as it was before it was made fit for a header.
fn decoded(value: &str) -> Option<String> {
    match value.strip_prefix("=?base64?").and_then(|rest| rest.strip_suffix("?=")) {
        Some(encoded) => String::from_utf8(STANDARD.decode(encoded).ok()?).ok(),
        None => Some(value.to_owned()),
    }
}
