//! An agent as the peers are: its queues, its properties, its headers.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{SystemTime, UNIX_EPOCH};

use lapin::types::AMQPValue;
use serde_json::{Value, json};
use toolbus_e2e::client::{Client, Request};
use toolbus_e2e::message::Message;
use toolbus_e2e::namespace::BrokerNamespace;
use toolbus_testing::patience::eventually;
use uuid::Uuid;

/// Topic on which an agent requests an index of servers.
pub(crate) const REFRESH: &str = "tool.meta.mcp.refresh";
/// Topic of an agent's requests about servers.
pub(crate) const MANAGE: &str = "mcp.manage";
/// Topic of an agent's calls of servers' tools.
pub(crate) const INVOKE: &str = "tool.invoke.mcp";

/// An agent without a bridge of its own.
pub(crate) struct Peer {
    name: String,
    /// Hears of servers.
    index: Client,
    /// Hears of its calls.
    pub(crate) proxy: Client,
    /// Hears of its requests about servers.
    pub(crate) management: Client,
}

/// Servers with their tools, as an agent knows them.
pub(crate) type Known = BTreeMap<String, Vec<String>>;

/// Declares a queue as the peers do, with its dead letters, and binds it.
pub(crate) async fn subscribed(site: &BrokerNamespace, name: &str, topic: &str) -> Client {
    let queue = format!("{}.{name}", site.exchange);
    site.declare(&format!("{queue}.dlq"), BTreeMap::new()).await;
    let text = |text: &str| AMQPValue::LongString(text.into());
    let arguments = BTreeMap::from([
        ("x-dead-letter-exchange", text(&site.dead_letter_exchange())),
        ("x-dead-letter-routing-key", text(topic)),
    ]);
    site.declare(&queue, arguments).await;
    let client = Client::listening_on(site, &site.url, &queue).await;
    client.bind(topic).await;
    client
}

impl Peer {
    /// An agent that listens on all of its queues.
    pub(crate) async fn start(site: &BrokerNamespace, name: &str) -> Self {
        let queue = async |queue: &str, topic: &str| subscribed(site, queue, &format!("{topic}.{name}")).await;
        Self {
            name: name.to_owned(),
            index: queue(&format!("{name}.tool-meta-mcp-{name}"), "tool.meta.mcp").await,
            proxy: queue(&format!("mcp-proxy.{name}"), "tool.result").await,
            management: queue(&format!("mcp-management.{name}"), "mcp.manage.response").await,
        }
    }

    fn message(&self, topic: &str, kind: &str, reply_to: &str, body: &Value) -> Request {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let request = self.proxy.raw(body.to_string()).on(topic).header("rb-source", &self.name);
        request.with(|properties| {
            properties
                .with_content_type("application/json".into())
                .with_type(kind.into())
                .with_reply_to(reply_to.into())
                .with_timestamp(now)
        })
    }

    /// A call of a tool, as the peers' proxy makes it; with `server` as their management tool makes it.
    pub(crate) fn call(&self, tool: &str, text: &str, server: Option<&str>) -> Request {
        let id = Uuid::new_v4().simple().to_string();
        let arguments = json!({"text": text}).to_string();
        let body = json!({"toolCallId": id, "toolName": tool, "arguments": arguments, "sessionId": null});
        let reply_to = format!("tool.result.{}", self.name);
        let call = self.message(INVOKE, "RockBot.Tools.ToolInvokeRequest", &reply_to, &body);
        let call = call.header("rb-rb-content-trust", "tool-request").header("rb-rb-tool-provider", "mcp");
        let call = call.header("rb-rb-timeout-ms", "60000");
        match server {
            Some(server) => call.header("rb-rb-mcp-server", server),
            None => call,
        }
    }

    /// Calls a tool, and waits for the reply.
    pub(crate) async fn called(&self, tool: &str, text: &str, server: Option<&str>) -> Message {
        self.proxy.exchange(&self.call(tool, text, server)).await
    }

    /// A request about servers, such as `McpGetServiceDetailsRequest`.
    pub(crate) fn question(&self, kind: &str, body: &Value) -> Request {
        let reply_to = format!("mcp.manage.response.{}", self.name);
        self.message(MANAGE, &format!("RockBot.Tools.Mcp.{kind}"), &reply_to, body)
    }

    /// Sends a request about servers, and waits for the reply.
    pub(crate) async fn manage(&self, kind: &str, body: &Value) -> Message {
        self.management.exchange(&self.question(kind, body)).await
    }

    /// Requests an index, as an agent does at its start; of `server` alone, if given.
    pub(crate) async fn refresh(&self, server: Option<&str>) {
        self.proxy.send(&self.refresh_request(server)).await;
    }

    pub(crate) fn refresh_request(&self, server: Option<&str>) -> Request {
        let request =
            self.message(REFRESH, "RockBot.Tools.Mcp.McpMetadataRefreshRequest", "", &json!({"serverName": server}));
        request.with(|properties| properties.with_correlation_id("".into()))
    }

    /// Every index that came.
    pub(crate) fn indexes(&self) -> Vec<Message> {
        let mut indexes = self.index.received();
        indexes.retain(|message| message.kind() == "RockBot.Tools.Mcp.McpServersIndexed");
        indexes
    }

    /// Returns what the agent knows of servers: each index adds to it, and takes away.
    pub(crate) fn known(&self) -> Known {
        let mut known = Known::new();
        for index in self.indexes() {
            let body = index.body();
            let removed: BTreeSet<String> = serde_json::from_value(body["removedServers"].clone()).unwrap();
            known.retain(|server, _| !removed.contains(server));
            for server in body["servers"].as_array().unwrap() {
                let tools: Vec<String> = serde_json::from_value(server["toolNames"].clone()).unwrap();
                assert_eq!(server["toolCount"], tools.len());
                known.insert(server["serverName"].as_str().unwrap().to_owned(), tools);
            }
        }
        known
    }

    /// Waits until the agent knows these servers with these tools, and no others.
    pub(crate) async fn knows(&self, servers: &[(&str, &[&str])]) {
        let owned = |tools: &[&str]| tools.iter().map(|tool| (*tool).to_owned()).collect::<Vec<_>>();
        let all: Known = servers.iter().map(|(server, tools)| ((*server).to_owned(), owned(tools))).collect();
        let what = format!("{} to know {all:?}", self.name);
        eventually(&what, async || (self.known() == all).then_some(())).await;
    }

    /// Waits for whatever is on its way to the agent as an index, and gives what came after the first `before`.
    pub(crate) async fn indexes_since(&self, before: usize) -> Vec<Value> {
        self.index.caught_up().await;
        self.indexes().iter().skip(before).map(Message::body).collect()
    }
}

/// Properties, headers and body of a reply, without what differs from run to run.
pub(crate) fn shown(message: &Message) -> Value {
    let properties = &message.properties;
    let mut headers = message.headers.clone();
    for (name, value) in &mut headers {
        if name.ends_with("-ms") && value.parse::<u64>().is_ok() {
            *value = "[ms]".to_owned();
        }
    }
    let text = |value: &Option<lapin::types::ShortString>| value.as_ref().map(ToString::to_string);
    let mut body = message.body();
    if let Some(id) = body.get_mut("toolCallId") {
        *id = "[id]".into();
    }
    json!({
        "routingKey": message.routing_key,
        "contentType": text(properties.content_type()),
        "deliveryMode": properties.delivery_mode(),
        "type": text(properties.kind()),
        "replyTo": text(properties.reply_to()),
        "headers": headers,
        "body": body,
    })
}
