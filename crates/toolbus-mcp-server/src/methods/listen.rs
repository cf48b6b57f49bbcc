//! `subscriptions/listen`: news for a client without a session.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::required;
use crate::door::Parts;
use crate::flow::{Flow, ListenFlow};
use crate::news::News;
use crate::peer::Peer;
use crate::rpc::{Call, RpcError};

#[derive(Deserialize)]
#[serde(expecting = "an object")]
struct Params {
    notifications: Wanted,
}

/// What a client wants to hear of. Other things are never told, so that they are not accepted.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", expecting = "an object")]
pub(crate) struct Wanted {
    pub(crate) tools_list_changed: Option<bool>,
    pub(crate) resources_list_changed: Option<bool>,
}

/// Begins to listen.
pub(crate) async fn begin(parts: &Parts, peer: &Peer, call: &Call<'_>) -> Result<Flow, RpcError> {
    let params = call.params.ok_or_else(|| RpcError::invalid_params("The parameter `notifications` is missing."))?;
    let Params { notifications } = required(params)?;
    let mut accepted = Map::new();
    for (name, wanted) in [
        ("toolsListChanged", notifications.tools_list_changed),
        ("resourcesListChanged", notifications.resources_list_changed),
    ] {
        if wanted == Some(true) {
            accepted.insert(name.to_owned(), true.into());
        }
    }
    let news = News::begin(Arc::clone(&parts.backend), Arc::clone(&peer.caller), None).await;
    Ok(Flow::Listen(ListenFlow::new(
        &parts.settings,
        call.id.clone(),
        Value::Object(accepted),
        notifications,
        news,
        parts.closing.clone(),
    )))
}
