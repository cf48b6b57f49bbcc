//! A daemon with hidden tools, and the backend that counts the calls that reach it.

use std::time::Duration;

use serde_json::{Value, json};
use toolbus_e2e::backend::Backend;
use toolbus_e2e::client::{Client, Request};
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::message::Message;
use toolbus_e2e::namespace::BrokerNamespace;
use toolbus_testing::patience::eventually;

use super::row::{Back, Row, Sent, call};

/// Longest wait for a reply, before a line of the table counts as unanswered.
const REPLY_TIME: Duration = Duration::from_secs(20);

/// A daemon, its broker and its backend.
pub(crate) struct Fixture {
    pub(crate) site: BrokerNamespace,
    pub(crate) backend: Backend,
    pub(crate) daemon: Daemon,
    pub(crate) client: Client,
    /// Ids at the backend of the tools that no line of the table may reach.
    hidden: &'static [&'static str],
}

/// A tool whose backend is known by the tool's own name.
pub(crate) fn tool(backend: &Backend, name: &str) -> String {
    backend.endpoint(name, &format!("/weather/{name}"), r#"{"type":"object"}"#, "")
}

impl Fixture {
    pub(crate) async fn start(configuration: impl Fn(&Backend) -> String, hidden: &'static [&'static str]) -> Self {
        let backend = Backend::start().await;
        let (site, daemon, client) = Daemon::with_client(&configuration(&backend)).await;
        Self { site, backend, daemon, client, hidden }
    }

    /// Sends every line, one after the other, and fails with all that came out differently.
    pub(crate) async fn check(&self, rows: &[Row]) {
        let mut differing = Vec::new();
        for row in rows {
            if let Err(seen) = self.check_row(row).await {
                differing.push(format!("{}: expected {:?}, {seen}", row.what, row.back));
            }
        }
        assert!(differing.is_empty(), "{} of {} rows:\n{}", differing.len(), rows.len(), differing.join("\n"));
        assert_eq!(self.reached(), 0, "runs of hidden tools");
        for queue in ["invoke", "control"] {
            assert_eq!(self.site.ready(&self.dead_letters(queue)).await, 0, "every dead letter is one of the table's");
        }
    }

    async fn check_row(&self, row: &Row) -> Result<(), String> {
        let (runs, reached) = (self.backend.total(), self.reached());
        let request = row.sent.request(&self.client, &self.site);
        self.client.send(&request).await;
        match &row.back {
            Back::Nothing => self.fence(&row.sent).await,
            Back::Dead(reason) => self.dead(&row.sent, &request, reason).await?,
            back => self.check_reply(&request, back).await?,
        }
        let replies = self.client.replies_to(&request.correlation).len();
        let expected = usize::from(!matches!(row.back, Back::Nothing | Back::Dead(_)));
        same("replies", replies, expected)?;
        same("runs", self.backend.total() - runs, usize::from(matches!(row.back, Back::Runs(_))))?;
        same("runs of hidden tools", self.reached() - reached, 0)
    }

    /// Counts how often any of the hidden tools was reached.
    fn reached(&self) -> usize {
        self.hidden.iter().map(|tool| self.backend.count(tool)).sum()
    }

    async fn check_reply(&self, request: &Request, back: &Back) -> Result<(), String> {
        let reply = tokio::time::timeout(REPLY_TIME, self.client.reply(request)).await;
        let reply = reply.map_err(|_| "there was no reply".to_owned())?;
        match back {
            Back::Refused(code) => {
                same("code", reply.code().as_str(), *code).map_err(|seen| format!("{seen}: {}", reply.body()))?;
                self.reveals_nothing(&reply)
            }
            Back::Runs(tool) => {
                let content: Value = serde_json::from_str(&reply.content()).unwrap_or_default();
                same("the backend", &content["city"], &json!(tool)).map_err(|seen| format!("{seen}: {}", reply.body()))
            }
            Back::Lists(names) => {
                let body = reply.body();
                let tools = body["tools"].as_array().ok_or(format!("no list: {body}"))?;
                let listed: Vec<_> = tools.iter().filter_map(|tool| tool["name"].as_str()).collect();
                same("the list", listed.as_slice(), *names)
            }
            Back::Body(wanted) => same("the body", &reply.body(), wanted),
            Back::Nothing | Back::Dead(_) => Ok(()),
        }
    }

    /// A refusal offers no hidden name and repeats no listed recipient.
    fn reveals_nothing(&self, reply: &Message) -> Result<(), String> {
        let text = reply.error();
        let offered = text.split_once("Did you mean").map_or("", |(_, offered)| offered);
        match self.hidden.iter().find(|hidden| offered.contains(*hidden)) {
            Some(hidden) => Err(format!("{hidden} is offered: {text}")),
            None if text.contains("3001112233") => Err(format!("a listed recipient is revealed: {text}")),
            None => Ok(()),
        }
    }

    /// Waits until the daemon has seen whatever was sent on the same topic before.
    async fn fence(&self, sent: &Sent) {
        let fence = match sent.topic() {
            "tool.invoke" => call("no_such_tool"),
            "tool.list" => super::row::raw("{}").on("tool.list"),
            _ => super::row::raw(r#"{"toolCallId":"no such call"}"#).on("tool.cancel"),
        };
        self.client.exchange(&fence.request(&self.client, &self.site)).await;
    }

    async fn dead(&self, sent: &Sent, request: &Request, reason: &str) -> Result<(), String> {
        let queue = self.dead_letters(if sent.topic() == "tool.invoke" { "invoke" } else { "control" });
        let dead = eventually("a dead letter", async || self.site.take(&queue).await);
        let dead = tokio::time::timeout(REPLY_TIME, dead).await.map_err(|_| "there was no dead letter".to_owned())?;
        same("the dead letter", dead.correlation_id(), request.correlation.as_str())?;
        same("the reason", dead.header("rb-dead-reason"), reason)
    }

    fn dead_letters(&self, queue: &str) -> String {
        format!("{}.{queue}.dlq", self.site.prefix)
    }
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, seen: T, expected: T) -> Result<(), String> {
    if seen == expected { Ok(()) } else { Err(format!("{what}: {seen:?} instead of {expected:?}")) }
}
