//! Agents that have a bridge of their own, beside this daemon or replaced by it.

use serde_json::{Value, json};
use toolbus_e2e::client::{Client, Request};
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::message::Message;
use toolbus_e2e::namespace::BrokerNamespace;
use toolbus_testing::patience::eventually;

use crate::peer::{INVOKE, MANAGE, Peer, subscribed};
use crate::small::{Small, known};

const AGENTS: &str = "[identity]\ntrust_headers = true\n[agents.RockBot]\ndenied_tools = [\"treasure\"]\n";

/// The queues of an agent's own bridge. The bridge would have replied, too, to the messages in them.
struct OwnBridge {
    calls: Client,
    questions: Client,
}

impl OwnBridge {
    async fn start(site: &BrokerNamespace) -> Self {
        Self {
            calls: subscribed(site, "mcp-bridge.RockBot", INVOKE).await,
            questions: subscribed(site, "mcp-bridge.RockBot.manage", MANAGE).await,
        }
    }

    /// Replies to the request, as the bridge would.
    async fn send_reply(&self, request: &Request) {
        let queue = if request.routing_key == INVOKE { &self.calls } else { &self.questions };
        let taken = eventually("the bridge's copy", async || queue.replies_to(&request.correlation).pop()).await;
        let reply_to = taken.properties.reply_to().as_ref().unwrap().to_string();
        let reply = queue.raw(json!({"content": "from the agent's own bridge"}).to_string()).on(&reply_to);
        let reply = reply.with(|properties| properties.with_correlation_id(request.correlation.as_str().into()));
        queue.send(&reply.header("rb-source", "mcp-bridge.RockBot")).await;
    }
}

/// Requests for what the daemon does not have, and for what it hides from the agent.
fn for_others(peer: &Peer) -> Vec<Request> {
    let mut requests = vec![peer.call("own_tool", "", None), peer.call("treasure", "", None)];
    for server in ["own", "vault"] {
        requests.push(peer.call("treasure", "", Some(server)));
        for kind in ["McpGetServiceDetailsRequest", "McpListResourcesRequest", "McpUnregisterServerRequest"] {
            requests.push(peer.question(kind, &json!({"serverName": server})));
        }
        requests.push(peer.question("McpGetPromptRequest", &json!({"serverName": server, "promptName": "p"})));
        requests.push(peer.question("McpReadResourceRequest", &json!({"serverName": server, "uri": "file:///x"})));
    }
    let register = json!({"serverName": "own", "type": "sse", "url": "https://h/sse"});
    requests.push(peer.question("McpRegisterServerRequest", &register));
    requests.push(peer.question("McpAnswerQuestionRequest", &json!({"questionId": "q", "decline": true})));
    requests.push(peer.question("McpOfTomorrowRequest", &json!({})));
    requests
}

async fn start(site: &BrokerNamespace, small: &Small, rule: &str) -> Daemon {
    let servers = [small.section("notes", &["read_note"], ""), small.section("vault", &["treasure"], "")].concat();
    let daemon = Daemon::start(site, &format!("{AGENTS}[mcp]\n{rule}\n{servers}")).await;
    known(&daemon, &["notes", "vault"]).await;
    daemon
}

/// Returns the senders of the replies to a request, as the agent saw them.
fn repliers(peer: &Peer, request: &Request) -> Vec<String> {
    let of_both = [peer.proxy.replies_to(&request.correlation), peer.management.replies_to(&request.correlation)];
    let mut sources: Vec<String> = of_both.concat().iter().map(|reply| reply.header("rb-source").to_owned()).collect();
    sources.sort();
    sources
}

async fn caught_up(peer: &Peer) {
    peer.proxy.caught_up().await;
    peer.management.caught_up().await;
}

#[tokio::test]
async fn a_daemon_that_replies_for_unknown_servers_races_an_agents_own_bridge() {
    let (site, small) = (BrokerNamespace::shared().await, Small::new());
    let (peer, own) = (Peer::start(&site, "RockBot").await, OwnBridge::start(&site).await);
    let daemon = start(&site, &small, "").await;
    let requests = for_others(&peer);
    for request in &requests {
        peer.proxy.send(request).await;
        own.send_reply(request).await;
    }
    for request in &requests {
        let both = async || (repliers(&peer, request) == ["mcp-bridge.RockBot", "toolbus"]).then_some(());
        eventually("a reply of each", both).await;
    }
    daemon.stop(&site).await;
    assert_eq!(small.calls(), Vec::<String>::new());
}

#[tokio::test]
async fn a_daemon_that_ignores_unknown_servers_leaves_them_and_hidden_ones_to_the_agents_own_bridge() {
    let (site, small) = (BrokerNamespace::shared().await, Small::new());
    let (peer, own) = (Peer::start(&site, "RockBot").await, OwnBridge::start(&site).await);
    let daemon = start(&site, &small, "unknown_server = \"ignore\"").await;
    peer.refresh(None).await;
    peer.knows(&[("notes", &["read_note"])]).await;
    let requests = for_others(&peer);
    for request in &requests {
        peer.proxy.send(request).await;
        own.send_reply(request).await;
    }
    // What it has is its own, with its mistakes.
    assert_eq!(peer.called("read_note", "one", Some("notes")).await.content(), "notes.read_note: one");
    assert_eq!(peer.called("read_note", "two", None).await.content(), "notes.read_note: two");
    assert_eq!(peer.called("no_tool", "", Some("notes")).await.code(), "tool_not_found");
    let managed = async |kind: &str, body: &Value| peer.manage(kind, body).await.body();
    let details = managed("McpGetServiceDetailsRequest", &json!({"serverName": "notes"})).await;
    assert_eq!((&details["tools"][0]["name"], &details["error"]), (&json!("read_note"), &Value::Null));
    let resources = managed("McpListResourcesRequest", &json!({"serverName": "NOTES"})).await;
    assert!(resources["error"].as_str().unwrap().contains("resources"), "{resources}");
    daemon.stop(&site).await;
    caught_up(&peer).await;
    for request in &requests {
        assert_eq!(repliers(&peer, request), ["mcp-bridge.RockBot"], "{request:?}");
    }
    assert_eq!(small.calls(), ["notes.read_note: one", "notes.read_note: two"]);
}

#[tokio::test]
async fn a_server_that_both_bridges_have_is_called_by_both() {
    let (site, small) = (BrokerNamespace::shared().await, Small::new());
    let (peer, own) = (Peer::start(&site, "RockBot").await, OwnBridge::start(&site).await);
    let daemon = start(&site, &small, "unknown_server = \"ignore\"").await;
    let call = peer.call("read_note", "both", Some("notes"));
    peer.proxy.send(&call).await;
    own.send_reply(&call).await;
    eventually("two replies", async || (repliers(&peer, &call).len() == 2).then_some(())).await;
    daemon.stop(&site).await;
}

#[tokio::test]
async fn a_daemon_instead_of_a_bridge_takes_the_messages_in_the_bridges_queues() {
    let (site, small) = (BrokerNamespace::shared().await, Small::new());
    let names = ["mcp-bridge.RockBot", "mcp-bridge.RockBot.manage", "mcp-bridge.RockBot.refresh"];
    let peer = Peer::start(&site, "RockBot").await;
    for (name, topic) in names.into_iter().zip([INVOKE, MANAGE, crate::peer::REFRESH]) {
        drop(subscribed(&site, name, topic).await);
        let queue = format!("{}.{name}", site.exchange);
        eventually("a queue without a bridge", async || (site.consumers(&queue).await? == 0).then_some(())).await;
    }
    let call = peer.call("read_note", "waited", Some("notes"));
    let question = peer.question("McpGetServiceDetailsRequest", &json!({"serverName": "notes"}));
    peer.refresh(None).await;
    for request in [&call, &question] {
        peer.proxy.send(request).await;
    }
    let queues = names.map(|name| format!("{}.{name}", site.exchange));
    let [mcp, manage, refresh] = &queues;
    let compat = format!(
        "[bus]\ncompat_queues = {{ mcp = {mcp:?}, mcp-manage = {manage:?}, mcp-refresh = {refresh:?} }}\n[mcp]\n{}",
        small.section("notes", &["read_note"], "")
    );
    let daemon = Daemon::start(&site, &compat).await;
    assert_eq!(peer.proxy.reply(&call).await.content(), "notes.read_note: waited");
    assert_eq!(peer.management.reply(&question).await.body()["tools"][0]["name"], "read_note");
    peer.knows(&[("notes", &["read_note"])]).await;
    for queue in &queues {
        assert_eq!(site.consumers(queue).await, Some(1), "{queue}");
    }
    for name in ["mcp", "mcp-manage", "mcp-refresh"] {
        assert_eq!(site.consumers(&format!("{}.{name}", site.prefix)).await, None, "no queue of its own: {name}");
    }
    daemon.stop(&site).await;
    let replies: Vec<Message> = peer.proxy.received();
    assert_eq!((replies.len(), small.calls().len()), (1, 1));
}
