//! `resources/list` and `resources/read`: the instructions of the servers behind the tools. Entries of the caller's
//! working memory, which results link to, can be read as well.

use std::sync::Arc;

use bytes::Bytes;
use percent_encoding::percent_decode_str;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use toolbus_core::failure::{Cause, ToolFailure};
use toolbus_core::results::READER;
use toolbus_protocol::ContentBlock;

use super::ServerParts;
use super::{Cursor, FRESH_MS, ListParams, optional, required};
use crate::backend::{BackendCall, Document};
use crate::content::ErrorMeta;
use crate::rpc::{self, RpcError, RpcRequest};
use crate::session::{ListFingerprints, Peer};

/// Characters of an entry that are read: more than the longest part of a result has.
const MAX_READ: usize = 1_000_000;

#[derive(Deserialize)]
#[serde(expecting = "an object")]
struct Read {
    uri: String,
}

pub(super) async fn list(parts: &ServerParts, peer: &Peer, call: &RpcRequest<'_>) -> Result<Bytes, RpcError> {
    let listing: ListParams = optional(call.params)?;
    let cursor = Cursor::read(listing.cursor.as_deref())?;
    if let Some(session) = peer.session.as_ref().filter(|_| listing.cursor.is_none()) {
        let (_, texts) = parts.backend.fingerprints(&peer.caller).await;
        session.lists(ListFingerprints { tools: None, texts: Some(texts) });
    }
    let documents = documents(parts, peer).await?;
    let size = |document: &Document| document.uri.len() + document.description.len();
    let (page, next) = cursor.page(&documents, |document| &document.uri, entry, size);
    Ok(response(peer, call, json!({"resources": page}), next))
}

/// Responds with an empty list: each text has its own URI.
pub(super) fn templates(peer: &Peer, call: &RpcRequest<'_>) -> Result<Bytes, RpcError> {
    let listing: ListParams = optional(call.params)?;
    Cursor::read(listing.cursor.as_deref())?;
    Ok(response(peer, call, json!({"resourceTemplates": []}), None))
}

pub(super) async fn read(parts: &ServerParts, peer: &Peer, call: &RpcRequest<'_>) -> Result<Bytes, RpcError> {
    let params = call.params.ok_or_else(|| RpcError::invalid_params("The parameter `uri` is missing."))?;
    let Read { uri } = required(params)?;
    if let Some(key) = uri.strip_prefix(ContentBlock::MEMORY_URI) {
        let text = entry_text(parts, peer, call, &uri, key).await?;
        return Ok(response(
            peer,
            call,
            json!({"contents": [{"uri": uri, "mimeType": "text/plain", "text": text}]}),
            None,
        ));
    }
    let documents = documents(parts, peer).await?;
    let Some(document) = documents.iter().find(|document| document.uri == uri) else {
        return Err(not_found(peer, &uri));
    };
    let contents = json!([{"uri": document.uri, "mimeType": document.mime_type, "text": document.text}]);
    Ok(response(peer, call, json!({"contents": contents}), None))
}

/// An entry of the caller's working memory, as its tool reads it: with all steps of a call.
async fn entry_text(
    parts: &ServerParts,
    peer: &Peer,
    call: &RpcRequest<'_>,
    uri: &str,
    key: &str,
) -> Result<String, RpcError> {
    let not_found = || not_found(peer, uri);
    let key = percent_decode_str(key).decode_utf8().map_err(|_| not_found())?;
    if !parts.backend.has_entries(&peer.caller) {
        return Err(not_found());
    }
    let in_flight = ServerParts::enter(peer, &call.id)?;
    // In a session, only `notifications/cancelled` cancels a request.
    let _given_up = peer.session.is_none().then(|| in_flight.cancelled.clone().drop_guard());
    let running = parts.backend.call(BackendCall {
        caller: Arc::clone(&peer.caller),
        tool: READER.to_owned(),
        arguments: Some(json!({"key": key, "limit": MAX_READ}).to_string()),
        cancelled: in_flight.cancelled.clone(),
        trace: None,
        progress: None,
        idempotency_key: None,
    });
    #[expect(clippy::disallowed_methods, reason = "the call ends in order, and is recorded, when its client is gone")]
    let running = tokio::spawn(async move {
        let result = running.await;
        drop(in_flight);
        result
    });
    let gone = |_| Err(ToolFailure::new(Cause::Cancelled, "The daemon shut down."));
    match running.await.unwrap_or_else(gone) {
        Ok(output) if !output.is_error => output.content.ok_or_else(not_found),
        Ok(_) => Err(not_found()),
        Err(ToolFailure { cause: Cause::UnknownTool | Cause::NotAllowed | Cause::InvalidArguments, .. }) => {
            Err(not_found())
        }
        Err(failure) => {
            let data = serde_json::to_value(ErrorMeta::of(&failure)).ok();
            Err(RpcError { data, ..RpcError::new(RpcError::INTERNAL_ERROR, failure.message) })
        }
    }
}

fn not_found(peer: &Peer, uri: &str) -> RpcError {
    let code = if peer.is_alone() { RpcError::INVALID_PARAMS } else { RpcError::RESOURCE_NOT_FOUND };
    let text = format!("There is no resource `{}`.", toolbus_core::text::shown(uri));
    let data = Some(json!({"uri": uri.chars().take(1024).collect::<String>()}));
    RpcError { data, ..RpcError::new(code, text) }
}

async fn documents(parts: &ServerParts, peer: &Peer) -> Result<Vec<Document>, RpcError> {
    let documents = parts.backend.documents(&peer.caller).await;
    documents.map_err(|error| RpcError::new(RpcError::INTERNAL_ERROR, error.to_string()))
}

fn entry(document: &Document) -> Value {
    json!({
        "uri": document.uri,
        "name": document.name,
        "title": document.title,
        "description": document.description,
        "mimeType": document.mime_type,
        "size": document.text.len(),
    })
}

fn response(peer: &Peer, call: &RpcRequest<'_>, mut result: Value, next: Option<String>) -> Bytes {
    if let Some(fields) = result.as_object_mut() {
        hint(peer, fields);
        if let Some(next) = next {
            fields.insert("nextCursor".to_owned(), next.into());
        }
    }
    rpc::success(&call.id, result)
}

fn hint(peer: &Peer, fields: &mut Map<String, Value>) {
    if peer.is_alone() {
        fields.insert("resultType".to_owned(), "complete".into());
        fields.insert("ttlMs".to_owned(), FRESH_MS.into());
        fields.insert("cacheScope".to_owned(), "private".into());
    }
}
