//! `tools/list`: what the caller may use.

use bytes::Bytes;
use serde::Serialize;

use super::{FRESH_MS, Listing, optional};
use crate::cursor::Cursor;
use crate::definition::{self, Tool};
use crate::door::Parts;
use crate::peer::Peer;
use crate::rpc::{self, Call, RpcError};
use crate::sessions::Listed;

/// The result of a list.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Tools<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    result_type: Option<&'static str>,
    tools: Vec<Tool<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ttl_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cache_scope: Option<&'static str>,
}

pub(super) async fn list(parts: &Parts, peer: &Peer, call: &Call<'_>) -> Result<Bytes, RpcError> {
    let listing: Listing = optional(call.params)?;
    let cursor = Cursor::read(listing.cursor.as_deref())?;
    if let Some(session) = peer.session.as_ref().filter(|_| listing.cursor.is_none()) {
        let (tools, _) = parts.backend.fingerprints(&peer.caller).await;
        session.lists(Listed { tools: Some(tools), texts: None });
    }
    let listed = parts.backend.list(&peer.caller).await;
    let listed = listed.map_err(|error| RpcError::new(RpcError::INTERNAL_ERROR, error.to_string()))?;
    let (tools, next_cursor) = cursor.page(&listed.tools, |tool| &tool.name, |tool| tool, definition::size);
    let is_alone = peer.is_alone();
    let result = Tools {
        result_type: is_alone.then_some("complete"),
        tools: tools.into_iter().map(|tool| Tool::new(tool, peer.version)).collect(),
        next_cursor,
        ttl_ms: is_alone.then_some(FRESH_MS),
        cache_scope: is_alone.then_some("private"),
    };
    Ok(rpc::success(&call.id, result))
}
