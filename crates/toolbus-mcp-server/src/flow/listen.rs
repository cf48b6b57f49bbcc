use bytes::Bytes;
use serde::Serialize;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::Step;
use crate::door::Settings;
use crate::methods::initialize::server_info;
use crate::methods::listen::Wanted;
use crate::news::{self, News};
use crate::observe::Started;
use crate::rpc::{self, Id};

/// News for a client that listens.
pub(crate) struct ListenFlow {
    subscription: Id,
    accepted: Option<Value>,
    wanted: Wanted,
    news: News,
    closing: CancellationToken,
    server_info: Value,
    is_over: bool,
    pub(super) started: Option<Box<dyn Started>>,
}

/// What each message of a subscription says of it.
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
        settings: &Settings,
        subscription: Id,
        accepted: Value,
        wanted: Wanted,
        news: News,
        closing: CancellationToken,
    ) -> Self {
        Self {
            subscription,
            accepted: Some(accepted),
            wanted,
            news,
            closing,
            server_info: server_info(settings),
            is_over: false,
            started: None,
        }
    }

    pub(super) async fn next(&mut self) -> Step {
        if self.is_over {
            return Step::Nothing;
        }
        if let Some(accepted) = self.accepted.take() {
            return Step::Interim(self.notification("notifications/subscriptions/acknowledged", Some(accepted)));
        }
        loop {
            let next = self.closing.run_until_cancelled(self.news.next()).await.flatten();
            match next {
                Some(news::TOOLS) if self.wanted.tools_list_changed != Some(true) => {}
                Some(news::RESOURCES) if self.wanted.resources_list_changed != Some(true) => {}
                Some(method) => return Step::Interim(self.notification(method, None)),
                None => return self.end(),
            }
        }
    }

    fn notification(&self, method: &str, notifications: Option<Value>) -> Bytes {
        let meta = SubscriptionMeta { subscription: &self.subscription, server_info: None };
        rpc::notification(method, Some(NotificationParams { meta, notifications }))
    }

    /// The door closes.
    fn end(&mut self) -> Step {
        self.is_over = true;
        if let Some(started) = self.started.take() {
            started.finished(None, None);
        }
        let meta = SubscriptionMeta { subscription: &self.subscription, server_info: Some(&self.server_info) };
        Step::Last(rpc::success(&self.subscription, Over { result_type: "complete", meta }))
    }
}

impl Drop for ListenFlow {
    fn drop(&mut self) {
        if let Some(started) = self.started.take() {
            started.finished(None, None);
        }
    }
}
