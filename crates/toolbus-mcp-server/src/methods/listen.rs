//! `subscriptions/listen`, and notifications of changed lists.

use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use toolbus_core::caller::Caller;
use toolbus_core::events::McpServerRequest;

use super::initialize::server_info;
use super::{Flow, FlowStep, required};
use super::{McpServerSettings, ServerParts};
use crate::backend::Backend;
use crate::rpc::{self, Id, RpcError, RpcRequest};
use crate::session::{McpSession, Peer};

#[derive(Deserialize)]
#[serde(expecting = "an object")]
struct ListenParams {
    notifications: Wanted,
}

/// The notifications that a client subscribes to. Other kinds are never sent, and not accepted.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", expecting = "an object")]
pub(crate) struct Wanted {
    pub(crate) tools_list_changed: Option<bool>,
    pub(crate) resources_list_changed: Option<bool>,
}

/// Begins to listen.
pub(crate) async fn begin(parts: &ServerParts, peer: &Peer, call: &RpcRequest<'_>) -> Result<Flow, RpcError> {
    let params = call.params.ok_or_else(|| RpcError::invalid_params("The parameter `notifications` is missing."))?;
    let ListenParams { notifications } = required(params)?;
    let mut accepted = Map::new();
    for (name, wanted) in [
        ("toolsListChanged", notifications.tools_list_changed),
        ("resourcesListChanged", notifications.resources_list_changed),
    ] {
        if wanted == Some(true) {
            accepted.insert(name.to_owned(), true.into());
        }
    }
    let changes = ListChanges::begin(Arc::clone(&parts.backend), Arc::clone(&peer.caller), None).await;
    Ok(Flow::Listen(ListenFlow::new(
        &parts.settings,
        call.id.clone(),
        Value::Object(accepted),
        notifications,
        changes,
        parts.closing.clone(),
    )))
}

/// ListChanges for a client that listens.
pub(crate) struct ListenFlow {
    subscription: Id,
    accepted: Option<Value>,
    wanted: Wanted,
    changes: ListChanges,
    closing: CancellationToken,
    server_info: Value,
    is_over: bool,
    pub(super) started: Option<Box<dyn McpServerRequest>>,
}

/// The `_meta` of each message of a subscription.
#[derive(Serialize)]
struct SubscriptionMeta<'a> {
    #[serde(rename = "io.modelcontextprotocol/subscriptionId")]
    subscription: &'a Id,
    #[serde(rename = "io.modelcontextprotocol/serverInfo", skip_serializing_if = "Option::is_none")]
    server_info: Option<&'a Value>,
}

#[derive(Serialize)]
struct NotificationParams<'a> {
    #[serde(rename = "_meta")]
    meta: SubscriptionMeta<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    notifications: Option<Value>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Over<'a> {
    result_type: &'static str,
    #[serde(rename = "_meta")]
    meta: SubscriptionMeta<'a>,
}

impl ListenFlow {
    pub(crate) fn new(
        settings: &McpServerSettings,
        subscription: Id,
        accepted: Value,
        wanted: Wanted,
        changes: ListChanges,
        closing: CancellationToken,
    ) -> Self {
        Self {
            subscription,
            accepted: Some(accepted),
            wanted,
            changes,
            closing,
            server_info: server_info(settings),
            is_over: false,
            started: None,
        }
    }

    pub(super) async fn next(&mut self) -> FlowStep {
        if self.is_over {
            return FlowStep::Nothing;
        }
        if let Some(accepted) = self.accepted.take() {
            return FlowStep::Interim(self.notification("notifications/subscriptions/acknowledged", Some(accepted)));
        }
        loop {
            let next = self.closing.run_until_cancelled(self.changes.next()).await.flatten();
            match next {
                Some(TOOLS) if self.wanted.tools_list_changed != Some(true) => {}
                Some(RESOURCES) if self.wanted.resources_list_changed != Some(true) => {}
                Some(method) => return FlowStep::Interim(self.notification(method, None)),
                None => return self.end(),
            }
        }
    }

    fn notification(&self, method: &str, notifications: Option<Value>) -> Bytes {
        let meta = SubscriptionMeta { subscription: &self.subscription, server_info: None };
        rpc::notification(method, Some(NotificationParams { meta, notifications }))
    }

    /// The server closes.
    fn end(&mut self) -> FlowStep {
        self.is_over = true;
        if let Some(started) = self.started.take() {
            started.finished(None, None);
        }
        let meta = SubscriptionMeta { subscription: &self.subscription, server_info: Some(&self.server_info) };
        FlowStep::Last(rpc::success(&self.subscription, Over { result_type: "complete", meta }))
    }
}

impl Drop for ListenFlow {
    fn drop(&mut self) {
        if let Some(started) = self.started.take() {
            started.finished(None, None);
        }
    }
}

/// The notification of other tools.
pub(crate) const TOOLS: &str = "notifications/tools/list_changed";
/// The notification of other texts.
pub(crate) const RESOURCES: &str = "notifications/resources/list_changed";

/// Changes for one client.
pub(crate) struct ListChanges {
    backend: Arc<dyn Backend>,
    caller: Arc<Caller>,
    changes: watch::Receiver<u64>,
    notified: (u64, u64),
    waiting: Vec<&'static str>,
}

impl ListChanges {
    /// Changes from now on; for a session, since its last listing: notifications of an earlier stream may have been
    /// lost.
    pub(crate) async fn begin(backend: Arc<dyn Backend>, caller: Arc<Caller>, session: Option<&McpSession>) -> Self {
        let mut changes = backend.changes();
        changes.borrow_and_update();
        let now = backend.fingerprints(&caller).await;
        let notified = session.map_or(now, |session| session.listed(now));
        let mut list_changes = Self { backend, caller, changes, notified, waiting: Vec::new() };
        list_changes.compare(now);
        list_changes
    }

    /// The next notification that is due; none when there will be no more.
    pub(crate) async fn next(&mut self) -> Option<&'static str> {
        loop {
            if let Some(notification) = self.waiting.pop() {
                return Some(notification);
            }
            self.changes.changed().await.ok()?;
            let now = self.backend.fingerprints(&self.caller).await;
            self.compare(now);
        }
    }

    fn compare(&mut self, now: (u64, u64)) {
        if now.1 != self.notified.1 {
            self.waiting.push(RESOURCES);
        }
        if now.0 != self.notified.0 {
            self.waiting.push(TOOLS);
        }
        self.notified = now;
    }
}
