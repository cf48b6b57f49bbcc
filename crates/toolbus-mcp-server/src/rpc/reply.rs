use bytes::Bytes;
use serde::Serialize;
use serde_json::Value;

use super::{Id, RpcError};

#[derive(Serialize)]
struct Success<'a, R> {
    jsonrpc: &'static str,
    id: &'a Id,
    result: R,
}

#[derive(Serialize)]
struct Failure<'a> {
    jsonrpc: &'static str,
    id: Option<&'a Id>,
    error: Body<'a>,
}

#[derive(Serialize)]
struct Body<'a> {
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

/// The answer to a request that has a result.
pub(crate) fn success(id: &Id, result: impl Serialize) -> Bytes {
    written(&Success { jsonrpc: "2.0", id, result })
}

/// The answer to a request that has none.
pub(crate) fn failure(id: Option<&Id>, error: &RpcError) -> Bytes {
    let error = Body { code: error.code, message: &error.message, data: error.data.as_ref() };
    written(&Failure { jsonrpc: "2.0", id, error })
}

/// A message that is not answered.
pub(crate) fn notification(method: &str, params: Option<impl Serialize>) -> Bytes {
    written(&Notification { jsonrpc: "2.0", method, params })
}

fn written(message: &impl Serialize) -> Bytes {
    // What is written here are texts, numbers and JSON values, which serialise.
    serde_json::to_vec(message).unwrap_or_default().into()
}
