//! JSON-RPC 2.0, as MCP uses it.

use std::borrow::Cow;

use bytes::Bytes;
use serde::ser::Error as _;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use toolbus_core::text::shortened;

use crate::version::Version;

/// Longest part of a message that its response repeats, in characters.
const MAX_SHOWN: usize = 200;

/// Reason why a request has no result.
///
/// Codes: JSON-RPC 2.0 §5.1, and MCP 2026-07-28 for those from -32020 on.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RpcError {
    /// Kind of error.
    pub(crate) code: i32,
    /// Text with the mistake, and advice.
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
    /// There is no such resource, to clients of versions before 2026-07-28.
    pub(crate) const RESOURCE_NOT_FOUND: i32 = -32002;
    /// A header disagrees with the message.
    pub(crate) const HEADER_MISMATCH: i32 = -32020;
    /// The protocol version is not supported.
    pub(crate) const UNSUPPORTED_PROTOCOL_VERSION: i32 = -32022;

    pub(crate) fn new(code: i32, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), data: None }
    }

    pub(crate) fn method_not_found(method: &str) -> Self {
        let shown = toolbus_core::text::shown(method);
        Self::new(Self::METHOD_NOT_FOUND, format!("There is no method `{shown}` here."))
    }

    /// The parameters cannot be parsed. The text of `error`, which may quote them, is shortened.
    pub(crate) fn unreadable_params(error: &serde_json::Error) -> Self {
        Self::invalid_params(format!(
            "The parameters are not what the method takes: {}.",
            shortened(&error.to_string(), MAX_SHOWN)
        ))
    }

    pub(crate) fn invalid_params(message: impl Into<String>) -> Self {
        Self::new(Self::INVALID_PARAMS, message)
    }

    pub(crate) fn unsupported_version(requested: &str) -> Self {
        let supported = Version::ALL.map(Version::as_str);
        let requested = toolbus_core::text::shown(requested);
        Self {
            data: Some(json!({"supported": supported, "requested": requested})),
            ..Self::new(
                Self::UNSUPPORTED_PROTOCOL_VERSION,
                format!("Version {requested} of the protocol is not spoken here; supported: {}.", supported.join(", ")),
            )
        }
    }
}

/// Longest id of a request, in bytes: responses repeat it.
const MAX_ID: usize = 256;

/// The id of a request, as the client wrote it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Id(Box<str>);

/// A request.
#[derive(Debug)]
pub(crate) struct RpcRequest<'a> {
    /// Id of the request.
    pub(crate) id: Id,
    /// Requested method.
    pub(crate) method: Cow<'a, str>,
    /// Parameters of the method.
    pub(crate) params: Option<&'a RawValue>,
}

/// Message that a client sent.
#[derive(Debug)]
pub(crate) enum Message<'a> {
    Request(RpcRequest<'a>),
    Notification {
        method: Cow<'a, str>,
        params: Option<&'a RawValue>,
    },
    /// A response. The server sends no requests, so that it is not read.
    Response,
}

#[derive(Deserialize)]
#[serde(expecting = "an object")]
struct Raw<'a> {
    #[serde(borrow)]
    jsonrpc: Option<Cow<'a, str>>,
    #[serde(borrow, default, deserialize_with = "present")]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    method: Option<Cow<'a, str>>,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
    #[serde(borrow)]
    result: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}

/// Distinguishes `null` from an absent field.
fn present<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

/// Whether fields are found by their names: of a list, they would be read by their positions.
fn is_object(value: &RawValue) -> bool {
    value.get().starts_with('{')
}

impl Id {
    /// Reads an id: a string or a whole number. Equal ones are equal, however their letters are written.
    fn read(raw: &RawValue) -> Option<Self> {
        let text = raw.get();
        let is_number = || text.strip_prefix('-').unwrap_or(text).bytes().all(|byte| byte.is_ascii_digit());
        if text.len() > MAX_ID || !(text.starts_with('"') || is_number()) {
            return None;
        }
        if text.contains('\\') {
            let letters: String = serde_json::from_str(text).ok()?;
            return serde_json::to_string(&letters).ok().map(|text| Self(text.into()));
        }
        Some(Self(text.into()))
    }

    /// The id as JSON.
    pub(crate) fn as_json(&self) -> &str {
        &self.0
    }

    /// The id of a field of parameters that names another request.
    pub(crate) fn of(raw: &RawValue) -> Option<Self> {
        Self::read(raw)
    }
}

impl Serialize for Id {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // An id that was read is JSON. As it was written, because a number may be larger than any that is known here.
        let raw: &RawValue = serde_json::from_str(&self.0).map_err(S::Error::custom)?;
        raw.serialize(serializer)
    }
}

impl<'a> Message<'a> {
    /// Reads a message.
    ///
    /// # Errors
    ///
    /// If `body` is not a JSON-RPC message; with the id, if it can be read.
    pub(crate) fn read(body: &'a [u8]) -> Result<Self, (Option<Id>, RpcError)> {
        let first = body.iter().find(|byte| !byte.is_ascii_whitespace());
        if first == Some(&b'[') {
            let text = "Batches are not taken: send one message at a time.";
            return Err((None, RpcError::new(RpcError::INVALID_REQUEST, text)));
        }
        let raw: Raw<'a> = serde_json::from_slice(body).map_err(|error| {
            let (code, what) = match error.classify() {
                serde_json::error::Category::Data => (RpcError::INVALID_REQUEST, "no JSON-RPC message"),
                _ => (RpcError::PARSE_ERROR, "no JSON"),
            };
            (None, RpcError::new(code, format!("The message is {what}: {}.", shortened(&error.to_string(), MAX_SHOWN))))
        })?;
        let invalid = |id, text: &str| (id, RpcError::new(RpcError::INVALID_REQUEST, text));
        let id = raw.id.map(|id| Id::read(id).ok_or(id));
        if raw.jsonrpc.as_deref() != Some("2.0") {
            return Err(invalid(
                id.and_then(Result::ok),
                "The message has no member `jsonrpc` with the value \"2.0\".",
            ));
        }
        match (id, raw.method) {
            (Some(Err(_)), Some(_)) => {
                Err(invalid(None, "The id of a request is a string or a whole number, of at most 256 bytes."))
            }
            (Some(Ok(id)), Some(_)) if raw.params.is_some_and(|params| !is_object(params)) => {
                Err((Some(id), RpcError::invalid_params("The parameters are no JSON object.")))
            }
            (Some(Ok(id)), Some(method)) => Ok(Self::Request(RpcRequest { id, method, params: raw.params })),
            (None, Some(method)) => {
                Ok(Self::Notification { method, params: raw.params.filter(|params| is_object(params)) })
            }
            (Some(_), None) if raw.result.is_some() || raw.error.is_some() => Ok(Self::Response),
            (id, None) => Err(invalid(id.and_then(Result::ok), "The message has no member `method`.")),
        }
    }
}

#[derive(Serialize)]
struct Success<'a, R> {
    jsonrpc: &'static str,
    id: &'a Id,
    result: R,
}

#[derive(Serialize)]
struct RpcFailure<'a> {
    jsonrpc: &'static str,
    id: Option<&'a Id>,
    error: RpcBody<'a>,
}

#[derive(Serialize)]
struct RpcBody<'a> {
    code: i32,
    message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<&'a Value>,
}

#[derive(Serialize)]
struct Notification<'a, P> {
    jsonrpc: &'static str,
    method: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    params: Option<P>,
}

/// The response to a request that has a result.
pub(crate) fn success(id: &Id, result: impl Serialize) -> Bytes {
    written(&Success { jsonrpc: "2.0", id, result })
}

/// The response to a request that has none.
pub(crate) fn failure(id: Option<&Id>, error: &RpcError) -> Bytes {
    let error = RpcBody { code: error.code, message: &error.message, data: error.data.as_ref() };
    written(&RpcFailure { jsonrpc: "2.0", id, error })
}

/// A notification.
pub(crate) fn notification(method: &str, params: Option<impl Serialize>) -> Bytes {
    written(&Notification { jsonrpc: "2.0", method, params })
}

fn written(message: &impl Serialize) -> Bytes {
    // Strings, numbers and JSON values always serialise.
    serde_json::to_vec(message).unwrap_or_default().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> String {
        match Message::read(text.as_bytes()) {
            Ok(Message::Request(call)) => {
                format!("request {} {} {}", call.id.as_json(), call.method, call.params.map_or("-", RawValue::get))
            }
            Ok(Message::Notification { method, params }) => {
                format!("notification {method}{}", params.map_or("", RawValue::get))
            }
            Ok(Message::Response) => "response".to_owned(),
            Err((id, error)) => {
                format!("{} {} {}", id.map_or("-".to_owned(), |id| id.0.into()), error.code, error.message)
            }
        }
    }

    #[test]
    fn requests_notifications_and_responses_are_distinguished() {
        let request = read(r#" {"jsonrpc":"2.0","id":"a\"b","method":"tools/call","params":{"name":"x"}}"#);
        assert_eq!(request, r#"request "a\"b" tools/call {"name":"x"}"#);
        assert_eq!(read(r#"{"jsonrpc":"2.0","id":-7,"method":"ping"}"#), "request -7 ping -");
        assert_eq!(
            read(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#),
            "notification notifications/initialized"
        );
        assert_eq!(read(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#), "response");
        assert_eq!(read(r#"{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":""}}"#), "response");
    }

    #[test]
    fn invalid_messages_are_refused_with_the_reason() {
        insta::assert_snapshot!(read("[]"), @"- -32600 Batches are not taken: send one message at a time.");
        insta::assert_snapshot!(read(r#" [{"jsonrpc":"2.0","id":1,"method":"ping"}]"#), @"- -32600 Batches are not taken: send one message at a time.");
        insta::assert_snapshot!(read("{"), @"- -32700 The message is no JSON: EOF while parsing an object at line 1 column 1.");
        insta::assert_snapshot!(read("7"), @"- -32600 The message is no JSON-RPC message: invalid type: integer `7`, expected an object at line 1 column 1.");
        insta::assert_snapshot!(read(r#"{"id":1,"method":"ping"}"#), @r#"1 -32600 The message has no member `jsonrpc` with the value "2.0"."#);
        insta::assert_snapshot!(read(r#"{"jsonrpc":"2.0","id":1}"#), @"1 -32600 The message has no member `method`.");
        for id in ["null", "1.5", "1e3", "{}", "[1]", "true", &format!("{:?}", "x".repeat(300)), &"9".repeat(300)] {
            let text = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"ping"}}"#);
            assert_eq!(
                read(&text),
                "- -32600 The id of a request is a string or a whole number, of at most 256 bytes.",
                "{id}"
            );
        }
        for twice in [
            r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"ping","method":"tools/list"}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":{},"params":{"name":"x"}}"#,
        ] {
            let refusal = read(twice);
            let text = "- -32600 The message is no JSON-RPC message: duplicate field `";
            assert!(refusal.starts_with(text), "{refusal}");
        }
    }

    #[test]
    fn parameters_have_names() {
        for params in ["[]", r#"["echo"]"#, "7", "\"name\"", "true"] {
            let request = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{params}}}"#);
            assert_eq!(read(&request), "1 -32602 The parameters are no JSON object.", "{params}");
            let notification = format!(r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{params}}}"#);
            assert_eq!(read(&notification), "notification notifications/cancelled", "{params}");
        }
        assert_eq!(read(r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":null}"#), "request 1 ping -");
    }
}
