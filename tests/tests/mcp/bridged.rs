//! MCP servers of bridges as tool sets of a daemon that has none itself.

use serde_json::{Value, json};
use toolbus_e2e::client::Client;
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::message::Message;
use toolbus_e2e::namespace::BrokerNamespace;
use toolbus_testing::patience::eventually;

use crate::peer::{INVOKE, MANAGE, REFRESH};
use crate::small::{Small, known};

/// Configuration of the daemon that agents call.
const FRONT: &str = r#"
[bus]
name = "front"
[identity]
trust_headers = true
[agents.ana]
toolsets = ["notes"]
[toolsets.notes]
kind = "remote"
topic = "tool.invoke.mcp"
server = "Notes"
"#;

/// Log message for servers of one name.
const SEVERAL: &str = "several bridges have an MCP server of one name: each runs its calls, and one answers";

/// A bridge of the peers, which the test is.
struct Bridge {
    client: Client,
    name: &'static str,
}

impl Bridge {
    async fn start(site: &BrokerNamespace, name: &'static str) -> Self {
        let client = Client::connect(site).await;
        client.bind(MANAGE).await;
        client.bind(INVOKE).await;
        client.bind(REFRESH).await;
        Self { client, name }
    }

    /// Counts the requests that have come on a topic.
    fn count(&self, topic: &str) -> usize {
        self.client.received().iter().filter(|message| message.routing_key == topic).count()
    }

    /// The next request on a topic that is not among the first `known`.
    async fn request_on(&self, topic: &str, known: usize) -> Message {
        eventually(topic, async || {
            self.client.received().into_iter().filter(|message| message.routing_key == topic).nth(known)
        })
        .await
    }

    /// Replies as the peers do: on the topic that the request names.
    async fn send_reply(&self, request: &Message, kind: &str, body: &Value) {
        let topic = request.properties.reply_to().as_ref().unwrap().to_string();
        let reply = self.client.raw(body.to_string()).on(&topic).of_type(kind).header("rb-source", self.name);
        let reply = reply.with(|properties| properties.with_correlation_id(request.correlation_id().into()));
        self.client.send(&reply).await;
    }

    async fn describe(&self, request: &Message, tools: &[&str], error: Option<&str>) {
        let schema = r#"{"type": "object", "properties": {"text": {"type": "string"}}}"#;
        let tool = |name: &&str| json!({"name": name, "description": "Does it.", "parametersSchema": schema});
        let tools: Vec<Value> = tools.iter().map(tool).collect();
        let body = json!({"serverName": "Notes", "tools": tools, "error": error});
        self.send_reply(request, "RockBot.Tools.Mcp.McpGetServiceDetailsResponse", &body).await;
    }

    /// Announces the server to the daemon, as the peers do.
    async fn announce(&self) {
        let server = json!({"serverName": "notes", "summary": "", "toolCount": 1, "toolNames": ["read_note"]});
        let body = json!({"servers": [server], "removedServers": []}).to_string();
        let indexed = self.client.raw(body).on("tool.meta.mcp.front").of_type("RockBot.Tools.Mcp.McpServersIndexed");
        self.client.send(&indexed.header("rb-source", self.name)).await;
    }

    async fn run(&self, call: &Message, content: &str) {
        let body = json!({"toolCallId": call.body()["toolCallId"], "toolName": "read_note", "content": content,
            "isError": false});
        self.send_reply(call, "RockBot.Tools.ToolInvokeResponse", &body).await;
    }
}

#[tokio::test]
async fn a_server_of_another_daemon_is_learnt_and_called_with_its_agent() {
    let (site, small) = (BrokerNamespace::shared().await, Small::new());
    let other = BrokerNamespace { prefix: format!("{}-bridge", site.prefix), ..site.clone() };
    small.write(&[("Notes", small.entry("Notes", &["read_note", "write_note"]))]);
    let rules = "[invoke]\ntopics = [\"tool.invoke.bridge\"]\n[identity]\ntrust_headers = true\n[agents.front]\n\
                 [agents.ana]\nallowed_tools = [\"read_note\"]\n";
    let bridge = Daemon::start(&other, &format!("{rules}{}", small.file())).await;
    known(&bridge, &["Notes"]).await;
    let front = Daemon::start(&site, FRONT).await;
    let set = front.remote_set("the tools of the server", |set| set["phase"] == "ready").await;
    assert_eq!((&set["tools"], &set["rivals"]), (&json!(2), &Value::Null));
    let client = Client::connect(&site).await;
    let call = |tool: &str| client.request(tool, &json!({"text": "hi"})).by("ana");
    let reply = client.exchange(&call("notes.read_note")).await;
    assert_eq!(reply.code(), "", "{reply:?}");
    assert_eq!(reply.body()["toolName"], "notes.read_note");
    let by_server = client.exchange(&call("read_note").header("rb-mcp-server", "notes")).await;
    assert_eq!(by_server.code(), "", "{by_server:?}");
    assert_eq!(small.calls().len(), 2, "{:?}", small.calls());
    assert_eq!(client.exchange(&call("notes.write_note")).await.code(), "tool_not_found", "the bridge has rules, too");

    small.write(&[("Notes", small.entry("Notes", &["read_note"]))]);
    front.remote_set("one tool less", |set| set["tools"] == 1).await;
    bridge.stop(&other).await;
    front.stop(&site).await;
}

#[tokio::test]
async fn a_call_before_the_first_list_waits_for_it_also_by_the_server_and_by_the_name_that_models_use() {
    let site = BrokerNamespace::shared().await;
    let bridge = Bridge::start(&site, "bridge").await;
    let front = Daemon::start(&site, FRONT).await;
    let request = bridge.request_on(MANAGE, 0).await;
    let client = Client::connect(&site).await;
    let call = |tool: &str| client.request(tool, &json!({"text": "hi"})).by("ana");
    let calls = [
        call("notes.read_note"),
        call("read_note").header("rb-mcp-server", "notes"),
        call("notes_read_note_64e385756bae"),
    ];
    for call in &calls {
        client.send(call).await;
    }
    // Those before it have been looked for by now. What is not of the set, or of its server, is not waited for.
    assert_eq!(client.exchange(&call("read_note").header("rb-mcp-server", "other")).await.code(), "tool_not_found");
    assert_eq!(client.exchange(&call("read_note")).await.code(), "tool_not_found");
    bridge.describe(&request, &["read_note"], None).await;
    let passed = eventually("the calls at the bridge", async || {
        let replies: Vec<Message> = calls.iter().flat_map(|call| client.replies_to(&call.correlation)).collect();
        assert!(replies.is_empty(), "not passed on: {replies:?}");
        let all = bridge.client.received().into_iter();
        let passed: Vec<Message> = all.filter(|message| message.routing_key == INVOKE).collect();
        (passed.len() == calls.len()).then_some(passed)
    });
    for call in &passed.await {
        bridge.run(call, "done").await;
    }
    for call in &calls {
        let reply = client.reply(call).await;
        assert_eq!(reply.content(), "done", "{reply:?}");
    }
    front.stop(&site).await;
}

#[tokio::test]
async fn of_several_bridges_with_a_server_of_one_name_the_first_by_name_counts_and_the_others_are_shown() {
    let site = BrokerNamespace::shared().await;
    let mut bridges = Vec::new();
    for name in ["mcp-bridge.Beta", "mcp-bridge.Alpha", "mcp-bridge.Other"] {
        bridges.push(Bridge::start(&site, name).await);
    }
    let [beta, alpha, other] = bridges.as_slice() else { panic!("three bridges") };
    let front = Daemon::start(&site, FRONT).await;
    other.describe(&other.request_on(MANAGE, 0).await, &[], Some("Server 'Notes' is not connected")).await;
    let (of_beta, of_alpha) = (beta.request_on(MANAGE, 0).await, alpha.request_on(MANAGE, 0).await);
    // The order of the replies does not matter.
    tokio::join!(beta.describe(&of_beta, &["forged"], None), alpha.describe(&of_alpha, &["read_note", "more"], None));
    let both = |set: &Value| set["phase"] == "ready" && !set["rivals"].is_null();
    let set = front.remote_set("the tools of the server", both).await;
    assert_eq!((&set["tools"], &set["rivals"]), (&json!(2), &json!(["mcp-bridge.Beta"])));
    assert_eq!(front.logged(SEVERAL).len(), 1);
    let status = front.operate(&["status"]).await.out;
    assert!(status.contains("calls also run at mcp-bridge.Beta"), "{status}");

    let client = Client::connect(&site).await;
    let call = client.request("notes.read_note", &json!({"text": "hi"})).by("ana");
    client.send(&call).await;
    let missing = json!({"toolCallId": "x", "toolName": "read_note", "code": "tool_not_found", "message": "No.",
        "isRetryable": false});
    let invocation = other.request_on(INVOKE, 0).await;
    assert_eq!((invocation.header("rb-rb-mcp-server"), invocation.header("rb-source")), ("Notes", "ana"));
    other.send_reply(&invocation, "RockBot.Tools.ToolError", &missing).await;
    beta.run(&beta.request_on(INVOKE, 0).await, "forged").await;
    alpha.run(&alpha.request_on(INVOKE, 0).await, "right").await;
    assert_eq!(client.reply(&call).await.content(), "right");
    front.stop(&site).await;
}

/// The request that follows an announcement.
async fn announced(bridge: &Bridge) -> Message {
    let known = bridge.count(MANAGE);
    bridge.announce().await;
    bridge.request_on(MANAGE, known).await
}

#[tokio::test]
async fn a_bridge_that_announces_a_known_server_is_found_and_lists_of_bridges_of_one_name_do_not_alternate() {
    let site = BrokerNamespace::shared().await;
    let first = Bridge::start(&site, "mcp-bridge.RockBot").await;
    let front = Daemon::start(&site, FRONT).await;
    first.describe(&first.request_on(MANAGE, 0).await, &["read_note"], None).await;
    let set = front.remote_set("the tools of the server", |set| set["phase"] == "ready").await;
    assert_eq!((&set["tools"], &set["rivals"]), (&json!(1), &Value::Null));

    let second = Bridge::start(&site, "mcp-bridge.RockBot").await;
    for order in [[&first, &second], [&second, &first], [&first, &second]] {
        let request = announced(&second).await;
        for bridge in order {
            let tools: &[&str] = if std::ptr::eq(bridge, &first) { &["read_note"] } else { &["a", "b"] };
            bridge.describe(&request, tools, None).await;
        }
        front.remote_set("the other bridge", |set| set["rivals"] == json!(["mcp-bridge.RockBot"])).await;
    }
    // The next request comes after the last replies were taken.
    announced(&second).await;
    assert_eq!(front.logged("another daemon listed its tools").len(), 2, "the order of the replies does not matter");
    assert_eq!(front.logged(SEVERAL).len(), 1);
    front.stop(&site).await;
}

#[tokio::test]
async fn bridges_are_requested_to_announce_the_server_once_with_each_connection() {
    let site = BrokerNamespace::shared().await;
    let (proxy, behind) = site.proxied().await;
    let front = Daemon::start(&behind, FRONT).await;
    front.remote_set("no bridge", |set| !set["lastError"].is_null()).await;
    // One that comes later gets the request, too.
    let bridge = Bridge::start(&site, "mcp-bridge.RockBot").await;
    let first = bridge.request_on(REFRESH, 0).await;
    assert_eq!(
        (first.kind(), first.body()),
        ("RockBot.Tools.Mcp.McpMetadataRefreshRequest", json!({"serverName": "Notes"}))
    );
    assert_eq!((first.header("rb-source"), first.properties.reply_to().as_ref().unwrap().as_str()), ("front", ""));
    bridge.describe(&bridge.request_on(MANAGE, 0).await, &["read_note"], None).await;
    front.remote_set("the tools of the server", |set| set["phase"] == "ready").await;

    // Neither an announcement nor a reload is a reason to request one.
    bridge.announce().await;
    bridge.describe(&bridge.request_on(MANAGE, 1).await, &["read_note"], None).await;
    front.reload(&format!("{FRONT}[tools]\necho = true\n")).await;
    bridge.describe(&bridge.request_on(MANAGE, 2).await, &["read_note"], None).await;
    assert_eq!(bridge.count(REFRESH), 1);

    proxy.cut();
    front.blocked_by("disconnected").await;
    proxy.restore();
    bridge.describe(&bridge.request_on(MANAGE, 3).await, &["read_note", "more"], None).await;
    front.remote_set("more tools", |set| set["tools"] == 2).await;
    assert_eq!(bridge.count(REFRESH), 2, "with the new connection");
    front.stop(&behind).await;
}

#[tokio::test]
async fn a_server_that_no_bridge_has_is_shown_with_the_error_of_the_bridges() {
    let site = BrokerNamespace::shared().await;
    let bridge = Bridge::start(&site, "mcp-bridge.RockBot").await;
    let front = Daemon::start(&site, FRONT).await;
    bridge.describe(&bridge.request_on(MANAGE, 0).await, &[], Some("Server 'Notes' is not connected")).await;
    let set = front.remote_set("the error of the bridge", |set| !set["lastError"].is_null()).await;
    assert_eq!(set["phase"], "waiting");
    assert!(set["lastError"].as_str().unwrap().contains("is not connected"), "{set}");
    // Requested again after the first request was given up.
    bridge.describe(&bridge.request_on(MANAGE, 1).await, &["read_note"], None).await;
    front.remote_set("the tools of the server", |set| set["phase"] == "ready").await;
    front.stop(&site).await;
}
