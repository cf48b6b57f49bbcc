use serde_json::{Value, json};

use crate::version::Version;

/// Longest part of a message that its answer repeats, in characters.
const MAX_SHOWN: usize = 200;

/// Why a request has no result.
///
/// Codes: JSON-RPC 2.0 §5.1, and MCP 2026-07-28 for those from -32020 on.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RpcError {
    /// What kind of error.
    pub(crate) code: i32,
    /// What is wrong, and what to do next.
    pub(crate) message: String,
    /// More of it, for programs.
    pub(crate) data: Option<Value>,
}

impl RpcError {
    /// The message is no JSON.
    pub(crate) const PARSE_ERROR: i32 = -32700;
    /// The message is no request.
    pub(crate) const INVALID_REQUEST: i32 = -32600;
    /// There is no such method.
    pub(crate) const METHOD_NOT_FOUND: i32 = -32601;
    /// The parameters are not what the method takes.
    pub(crate) const INVALID_PARAMS: i32 = -32602;
    /// Something is wrong here.
    pub(crate) const INTERNAL_ERROR: i32 = -32603;
    /// There is no such resource, to clients of revisions before 2026-07-28.
    pub(crate) const RESOURCE_NOT_FOUND: i32 = -32002;
    /// A header says something else than the message.
    pub(crate) const HEADER_MISMATCH: i32 = -32020;
    /// The revision is not spoken here.
    pub(crate) const UNSUPPORTED_PROTOCOL_VERSION: i32 = -32022;

    pub(crate) fn new(code: i32, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), data: None }
    }

    pub(crate) fn method_not_found(method: &str) -> Self {
        let shown = toolbus_core::text::shown(method);
        Self::new(Self::METHOD_NOT_FOUND, format!("There is no method `{shown}` here."))
    }

    /// The parameters cannot be read: what `error` says of them, which may repeat them.
    pub(crate) fn unreadable_params(error: &serde_json::Error) -> Self {
        Self::invalid_params(format!("The parameters are not what the method takes: {}.", bounded(error)))
    }

    pub(crate) fn invalid_params(message: impl Into<String>) -> Self {
        Self::new(Self::INVALID_PARAMS, message)
    }

    pub(crate) fn unsupported_version(asked: &str) -> Self {
        let supported = Version::ALL.map(Version::as_str);
        let asked = toolbus_core::text::shown(asked);
        Self {
            data: Some(json!({"supported": supported, "requested": asked})),
            ..Self::new(
                Self::UNSUPPORTED_PROTOCOL_VERSION,
                format!("Version {asked} of the protocol is not spoken here; supported: {}.", supported.join(", ")),
            )
        }
    }
}

/// What is wrong with JSON, cut to a length that an answer may have.
pub(super) fn bounded(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match text.char_indices().nth(MAX_SHOWN) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text,
    }
}
