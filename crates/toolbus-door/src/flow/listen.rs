use bytes::Bytes;
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use super::Step;
use crate::door::Settings;
use crate::methods::initialize::server_info;
use crate::methods::listen::Wanted;
use crate::news::{self, News};
use crate::observe::Started;
use crate::rpc;

const SUBSCRIPTION: &str = "io.modelcontextprotocol/subscriptionId";

/// News for a client that listens.
pub(crate) struct ListenFlow {
    subscription: Value,
    accepted: Option<Value>,
    wanted: Wanted,
    news: News,
    closing: CancellationToken,
    server_info: Value,
    is_over: bool,
    pub(super) started: Option<Box<dyn Started>>,
}

impl ListenFlow {
    pub(crate) fn new(
        settings: &Settings,
        subscription: Value,
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
            return Step::Interim(self.notification(
                "notifications/subscriptions/acknowledged",
                Map::from_iter([("notifications".to_owned(), accepted)]),
            ));
        }
        loop {
            let next = self.closing.run_until_cancelled(self.news.next()).await.flatten();
            match next {
                Some(news::TOOLS) if self.wanted.tools_list_changed != Some(true) => {}
                Some(news::RESOURCES) if self.wanted.resources_list_changed != Some(true) => {}
                Some(method) => return Step::Interim(self.notification(method, Map::new())),
                None => return self.end(),
            }
        }
    }

    fn notification(&self, method: &str, mut params: Map<String, Value>) -> Bytes {
        params.insert("_meta".to_owned(), json!({SUBSCRIPTION: self.subscription}));
        rpc::notification(method, Some(params))
    }

    /// The door closes.
    fn end(&mut self) -> Step {
        self.is_over = true;
        if let Some(started) = self.started.take() {
            started.finished(None, None);
        }
        let meta = json!({SUBSCRIPTION: self.subscription, "io.modelcontextprotocol/serverInfo": self.server_info});
        let answer = json!({
            "jsonrpc": "2.0",
            "id": self.subscription,
            "result": {"resultType": "complete", "_meta": meta},
        });
        Step::Last(answer.to_string().into())
    }
}

impl Drop for ListenFlow {
    fn drop(&mut self) {
        if let Some(started) = self.started.take() {
            started.finished(None, None);
        }
    }
}
