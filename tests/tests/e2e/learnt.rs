//! A daemon that learns from another one which tools that has, over RabbitMQ.

use serde_json::{Value, json};
use toolbus_e2e::client::Client;
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::message::Message;
use toolbus_e2e::metrics::sum;
use toolbus_e2e::namespace::BrokerNamespace;
use toolbus_testing::otlp::Receiver;
use toolbus_testing::patience::eventually;

/// Configuration of the daemon that the agents call.
const FRONT: &str = r#"
[bus]
name = "front"
[identity]
trust_headers = true
[agents.ana]
toolsets = ["lab"]
[agents.bob]
toolsets = ["lab"]
[agents.eve]
[toolsets.lab]
kind = "remote"
topic = "tool.invoke.lab"
"#;

/// Builds the configuration of the daemon that runs the tools. The daemon that agents call sees what `front` may use
/// here; each agent may use the tools of its section.
fn lab(tools: &str) -> String {
    format!(
        "[invoke]\ntopics = [\"tool.invoke.lab\"]\n[identity]\ntrust_headers = true\n[agents.front]\n\
         [agents.ana]\n[agents.bob]\nallowed_tools = [\"get_*\"]\n{tools}"
    )
}

#[tokio::test]
async fn the_tools_of_another_daemon_are_learnt_when_it_comes_and_followed_when_they_change() {
    let site = BrokerNamespace::shared().await;
    let other = site.beside();
    let front = Daemon::start(&site, FRONT).await;
    let set = front.remote_set("a set without a daemon", |set| !set["lastError"].is_null()).await;
    assert_eq!((&set["name"], &set["phase"], &set["tools"]), (&json!("lab"), &json!("waiting"), &json!(0)));
    let client = Client::connect(&site).await;
    let echo = |agent: &str| client.request("lab.echo", &json!({"text": "hi"})).by(agent);
    let early = client.exchange(&echo("ana")).await;
    assert_eq!((early.code().as_str(), &early.body()["isRetryable"]), ("execution_failed", &json!(true)));
    assert_eq!(client.exchange(&echo("eve")).await.code(), "tool_not_found", "a set that the agent does not have");

    let back = Daemon::start(&other, &lab("[tools]\necho = true\ntime = false\n")).await;
    let set = front.remote_set("the tools of the other daemon", |set| set["phase"] == "ready").await;
    assert_eq!((&set["tools"], &set["lastError"]), (&json!(1), &Value::Null));
    assert_eq!(client.exchange(&echo("ana")).await.content(), "hi");
    assert_eq!(client.exchange(&echo("bob")).await.code(), "tool_not_found", "the other daemon has rules of its own");
    let wrong = client.exchange(&client.request("lab.echo", &json!({"text": 7})).by("ana")).await;
    assert_eq!(wrong.code(), "invalid_arguments");

    back.reload(&lab("[tools]\ntime = true\n")).await;
    front.remote_set("other tools", |set| set["tools"] == 2).await;
    assert_eq!(client.exchange(&echo("ana")).await.code(), "tool_not_found");
    let time = client.exchange(&client.request("lab.current_time", &json!({})).by("ana")).await;
    assert!(!time.content().is_empty());
    back.stop(&other).await;
    front.stop(&site).await;
}

#[tokio::test]
async fn a_daemon_that_comes_back_with_other_tools_is_learnt_anew() {
    let site = BrokerNamespace::shared().await;
    let other = site.beside();
    let back = Daemon::start(&other, &lab("[tools]\necho = true\ntime = false\n")).await;
    let front = Daemon::start(&site, FRONT).await;
    front.remote_set("the tools of the other daemon", |set| set["phase"] == "ready").await;
    back.stop(&other).await;
    let back = Daemon::start(&other, &lab("[tools]\ntime = true\n")).await;
    let client = Client::connect(&site).await;
    let echo = client.request("lab.echo", &json!({"text": "hi"})).by("ana");
    // The other daemon does not know the tool, which is a reason to list its tools.
    assert_eq!(client.exchange(&echo).await.code(), "tool_not_found");
    front.remote_set("other tools", |set| set["tools"] == 2).await;
    back.stop(&other).await;
    front.stop(&site).await;
}

#[tokio::test]
async fn learnt_tools_are_shown_by_the_commands_the_status_and_the_metrics() {
    let (site, receiver) = (BrokerNamespace::shared().await, Receiver::start().await.unwrap());
    let other = site.beside();
    let back = Daemon::start(&other, &lab("[tools]\necho = true\ntime = false\n")).await;
    let exports = format!("[telemetry]\notlp_endpoint = \"{}\"\n", receiver.grpc_endpoint());
    let front = Daemon::start(&site, &format!("{FRONT}{exports}")).await;
    let set = front.remote_set("the tools of the other daemon", |set| set["phase"] == "ready").await;
    assert!(set["listAgeSeconds"].as_u64().is_some_and(|age| age <= 120), "{set}");
    let client = Client::connect(&site).await;
    let called = client.exchange(&client.request("lab.echo", &json!({"text": "hi"})).by("ana")).await;
    assert_eq!(called.content(), "hi");

    let all = front.operate(&["tools", "--output", "json"]).await.json();
    let of_set = |tool: &&Value| tool["name"] == "lab.echo";
    let tool = all.as_array().unwrap().iter().find(of_set).unwrap_or_else(|| panic!("not listed: {all}"));
    assert_eq!(tool["source"], "remote:lab", "{tool}");
    let one = front.operate(&["tools", "lab.echo"]).await;
    assert!(one.code == 0 && one.out.contains("remote:lab"), "{one:?}");
    for (agent, allowed) in [("ana", "yes"), ("eve", "no")] {
        let rules = front.operate(&["agents", agent]).await.out;
        let line = rules.lines().find(|line| line.starts_with("lab.echo")).unwrap_or_else(|| panic!("{rules}"));
        assert_eq!(line.split_whitespace().take(3).collect::<Vec<_>>(), ["lab.echo", "remote:lab", allowed]);
    }
    let explained = |agent: &'static str, arguments: &'static str| {
        let front = &front;
        async move { front.operate(&["explain", agent, "lab.echo", arguments]).await }
    };
    let allowed = explained("ana", "text=hi").await;
    assert_eq!(allowed.code, 0, "{allowed:?}");
    let without = explained("eve", "text=hi").await;
    assert!(without.code == 1 && without.out.contains("refused at resolve"), "the set is not eve's: {without:?}");
    let wrong = explained("ana", r#"{"text": 7}"#).await;
    assert!(wrong.code == 1 && wrong.out.contains("refused at arguments"), "by the learnt schema: {wrong:?}");
    let status = front.operate(&["status"]).await.out;
    assert!(status.contains("lab ready (") && status.contains("1 tools"), "{status}");

    front.stop(&site).await;
    let phases = ["waiting", "ready", "away"].map(|phase| sum(&receiver, "toolbus.remote.sets", &[("phase", phase)]));
    assert_eq!(phases, [0, 1, 0]);
    let of_source = [("tool_source", "remote:lab")];
    assert!(sum(&receiver, "toolbus.remote.list.age", &of_source) <= 120);
    let ok = [of_source[0], ("status", "ok"), ("tool_name", "lab.echo")];
    assert_eq!(sum(&receiver, "rockbot.tool.invocations", &ok), 1);
    back.stop(&other).await;
}

/// The other daemon, which the test is.
struct Lister(Client);

impl Lister {
    async fn start(site: &BrokerNamespace) -> Self {
        let client = Client::connect(site).await;
        client.bind("tool.list.lab").await;
        client.bind("tool.invoke.lab").await;
        Self(client)
    }

    /// The request on a topic that came after `earlier` others.
    async fn request_on(&self, topic: &str, earlier: usize) -> Message {
        let all = || self.0.received().into_iter().filter(|message| message.routing_key == topic);
        eventually(topic, async || all().nth(earlier)).await
    }

    async fn send_reply(&self, request: &Message, correlation: &str, kind: &str, body: impl Into<Vec<u8>>) {
        let queue = request.properties.reply_to().as_ref().unwrap().to_string();
        let reply = self.0.raw(body).on(&queue).of_type(kind);
        let reply = reply.with(|properties| properties.with_correlation_id(correlation.into()));
        self.0.publish("", &reply).await;
    }

    async fn list(&self, request: &Message, version: &str, tools: &Value) {
        let body = json!({"agent": "front", "version": version, "tools": tools}).to_string();
        self.send_reply(request, request.correlation_id(), LIST, body).await;
    }
}

const LIST: &str = "Toolbus.ToolListResponse";

#[tokio::test]
async fn hostile_lists_cost_no_more_than_their_own_tools() {
    let site = BrokerNamespace::shared().await;
    let lab = Lister::start(&site).await;
    let front = Daemon::start(&site, &format!("{FRONT}[results]\nmax_size = \"1MiB\"\n")).await;
    let request = lab.request_on("tool.list.lab", 0).await;
    assert_eq!((request.header("rb-source"), &request.body()["format"]), ("front", &json!("mcp")));
    lab.send_reply(&request, request.correlation_id(), LIST, vec![b'x'; 16_000_000]).await;
    front.remote_set("what is wrong", |set| set["lastError"] == "the answer has 16000000 bytes.").await;
    let request = lab.request_on("tool.list.lab", 1).await;
    let forged =
        json!({"agent": "front", "version": "0", "tools": [{"name": "forged", "inputSchema": {}}]}).to_string();
    lab.send_reply(&request, "0123456789abcdef0123456789abcdef", LIST, forged).await;
    let deep = (0..40).fold(json!({}), |inner, _| json!({"properties": {"a": inner}}));
    let schemas =
        [json!({"type": "array"}), json!({"$ref": "http://127.0.0.1:1/schema"}), json!({"$ref": "#"}), json!(7), deep];
    let names = [json!(""), json!(7), json!("a\nb"), json!("a\u{202e}b"), json!("good"), json!("mcp_invoke_tool")];
    let good =
        json!({"name": "good", "description": "Does it.", "inputSchema": {}, "annotations": {"readOnlyHint": true}});
    let named = names.iter().map(|name| json!({"name": name, "inputSchema": {}}));
    let schemed =
        schemas.iter().enumerate().map(|(number, schema)| json!({"name": format!("s{number}"), "inputSchema": schema}));
    let tools: Vec<Value> = [good].into_iter().chain(named).chain(schemed).chain([json!("no object")]).collect();
    lab.list(&request, "1", &json!(tools)).await;
    let set = front.remote_set("the one good tool", |set| set["phase"] == "ready").await;
    assert_eq!((&set["tools"], &set["hidden"]), (&json!(1), &json!(12)), "{}", front.text());

    // The tools change while a call runs, which ends as it would have.
    let client = Client::connect(&site).await;
    let call = client.request("lab.good", &json!({})).by("ana");
    client.send(&call).await;
    let running = lab.request_on("tool.invoke.lab", 0).await;
    let changed = lab.0.raw("{}").on("tool.meta.tools.front").of_type("Toolbus.ToolsChanged");
    lab.0.send(&changed).await;
    let request = lab.request_on("tool.list.lab", 2).await;
    assert_eq!(request.body()["ifVersion"], "1");
    lab.list(&request, "2", &json!([{"name": "a", "inputSchema": {}}, {"name": "b", "inputSchema": {}}])).await;
    // A second reply to one request is none.
    lab.list(&request, "3", &json!([])).await;
    front.remote_set("other tools", |set| set["tools"] == 2).await;
    let body =
        json!({"toolCallId": running.body()["toolCallId"], "toolName": "good", "content": "done", "isError": false});
    lab.send_reply(&running, running.correlation_id(), "RockBot.Tools.ToolInvokeResponse", body.to_string()).await;
    assert_eq!(client.reply(&call).await.content(), "done");
    assert_eq!(client.exchange(&client.request("lab.good", &json!({})).by("ana")).await.code(), "tool_not_found");
    front.stop(&site).await;
}
