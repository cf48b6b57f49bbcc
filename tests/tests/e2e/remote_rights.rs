//! The permissions of `deploy/rabbitmq/remote.json`, as shipped: with them a daemon learns the tools of another one and
//! passes calls on to it, and without them the operator reads what is missing.

use serde_json::{Value, json};
use toolbus_e2e::client::{Client, Request};
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::message::Message;
use toolbus_testing::patience::eventually;

use crate::least_privilege::try_all;
use crate::recipe::{Fixture, PASSWORD, VHOST};

/// Attempts of each user, their outcomes and names, as in `least_privilege`.
const ATTEMPTS: &str = "
toolbus | publish | yes | rockbot tool.invoke.lab, rockbot tool.list.lab, rockbot tool.cancel, rockbot tool.ping
toolbus | publish | yes | rockbot tool.invoke.provider.billing, rockbot tool.list.provider.billing
toolbus | publish | 403 | rockbot tool.invoke.provider.a.b, rockbot tool.announce
toolbus | publish | yes | rockbot tool.result.ana, rockbot tool.meta.tools.ana, amq.default any.queue
toolbus | publish | yes | rockbot tool.invoke.mcp, rockbot mcp.manage, rockbot tool.meta.mcp.refresh
toolbus | publish | 403 | rockbot tool.invoke, rockbot tool.invoke.other, rockbot tool.list, rockbot mcp.manage.any
toolbus | publish | 403 | rockbot tool.list.other, rockbot tool.hints, rockbot tool.session.end
toolbus | publish | 403 | rockbot script.invoke, rockbot reply.mine, rockbot tool.cancel.any, rockbot tool.invoke.mcp.any
toolbus | publish as | 406 | svc-ana rockbot tool.invoke.lab
toolbus | declare queue | yes | reply.mine, toolbus.more
toolbus | declare queue | 403 | reply, toolbus-lab.more, svc-ana.answers
toolbus | bind queue | yes | reply.mine rockbot tool.meta.tools.toolbus, reply.mine rockbot tool.meta.mcp.toolbus
toolbus | bind queue | yes | reply.mine rockbot reply.mine, reply.mine rockbot tool.announce
toolbus | bind queue | 403 | reply.mine rockbot tool.meta.tools.ana, reply.mine rockbot tool.result.ana
toolbus | bind queue | 403 | reply.mine rockbot tool.invoke.lab, reply.mine rockbot tool.list.lab, reply.mine rockbot #
toolbus | consume | 403 | toolbus-lab.invoke, toolbus-lab.control, svc-ana.answers
toolbus-lab | publish | yes | rockbot tool.meta.tools.toolbus, amq.default reply.any, rockbot.dlx toolbus-lab.invoke
toolbus-lab | publish | yes | rockbot tool.ping
toolbus-lab | publish | 403 | rockbot tool.meta.tools.ana, rockbot tool.meta.mcp.toolbus, rockbot tool.result.ana
toolbus-lab | publish | 403 | rockbot tool.invoke, rockbot tool.invoke.lab, rockbot tool.list.lab, rockbot tool.cancel
toolbus-lab | publish | 403 | rockbot mcp.manage, rockbot tool.meta.mcp.refresh, rockbot.dlx toolbus.invoke
toolbus-lab | publish as | 406 | toolbus rockbot tool.meta.tools.toolbus
toolbus-lab | declare queue | yes | toolbus-lab.more
toolbus-lab | declare queue | 403 | toolbus.more, reply.mine, svc-ana.answers
toolbus-lab | declare exchange | 403 | rockbot
toolbus-lab | bind queue | yes | toolbus-lab.invoke rockbot tool.invoke.lab, toolbus-lab.control rockbot tool.list.lab
toolbus-lab | bind queue | yes | toolbus-lab.control rockbot tool.cancel, toolbus-lab.control rockbot tool.ping
toolbus-lab | bind queue | 403 | toolbus-lab.invoke rockbot tool.invoke, toolbus-lab.control rockbot tool.list
toolbus-lab | bind queue | 403 | toolbus-lab.control rockbot tool.meta.tools.toolbus, toolbus-lab.control rockbot #
toolbus-lab | bind queue | 403 | toolbus.invoke rockbot tool.invoke.lab
toolbus-lab | consume | yes | toolbus-lab.invoke.dlq
toolbus-lab | consume | 403 | toolbus.invoke, toolbus.invoke.dlq, svc-ana.answers
billing | publish | yes | rockbot tool.announce, amq.default reply.any
billing | publish | 403 | rockbot tool.invoke, rockbot tool.list, rockbot tool.invoke.provider.billing, rockbot tool.cancel
billing | declare queue | yes | provider.billing, reply.billing.x
billing | declare queue | 403 | provider.other, reply.mine, toolbus.more, svc-ana.answers
billing | bind queue | yes | provider.billing rockbot tool.invoke.provider.billing
billing | bind queue | yes | provider.billing rockbot tool.list.provider.billing, provider.billing rockbot tool.cancel
billing | bind queue | 403 | provider.billing rockbot tool.invoke.provider.other, provider.billing rockbot tool.invoke
billing | bind queue | 403 | provider.billing rockbot tool.announce, provider.billing rockbot #
billing | consume | 403 | toolbus.invoke, toolbus-lab.invoke, svc-ana.answers
";

/// Configuration of the daemon that the agents call.
const FRONT: &str = r#"
[identity]
source = "broker"
users = { svc-ana = "ana" }
[agents.ana]
toolsets = ["lab"]
[toolsets.lab]
kind = "remote"
topic = "tool.invoke.lab"
"#;

/// Builds the configuration of the daemon that runs the tools.
fn lab(tools: &str) -> String {
    format!(
        "[bus]\nname = \"lab\"\nqueue_prefix = \"toolbus-lab\"\n[invoke]\ntopics = [\"tool.invoke.lab\"]\n\
         [identity]\nsource = \"broker\"\ndelegates = [\"toolbus\"]\n[agents.toolbus]\n[agents.ana]\n{tools}"
    )
}

/// Waits until the operator reads this of the set.
async fn complains(daemon: &Daemon, text: &str) {
    daemon.remote_set(text, |set| last_error(set).contains(text)).await;
}

/// Waits until the operator reads that access to this is refused. RabbitMQ 4 names the kind of access before the word.
async fn is_refused_access(daemon: &Daemon, to: &str) {
    let text = format!("access to {to}");
    let is_so = |set: &Value| last_error(set).contains("ACCESS_REFUSED - ") && last_error(set).contains(&text);
    daemon.remote_set(&text, is_so).await;
}

fn last_error(set: &Value) -> &str {
    set["lastError"].as_str().unwrap_or_default()
}

async fn called(ana: &Client, text: &str) -> String {
    let request = ana.request("lab.echo", &json!({"text": text}));
    ana.exchange(&request.with(|properties| properties.with_user_id("svc-ana".into()))).await.content()
}

#[tokio::test]
async fn with_the_shipped_permissions_a_list_is_learnt_and_followed_and_a_call_passes_and_nothing_else_is_permitted() {
    let fixture = Fixture::new().await.with_remote().await;
    let back = Daemon::start(&fixture.lab(), &lab("[tools]\necho = true\ntime = false\n")).await;
    let front = Daemon::start(&fixture.site, FRONT).await;
    let set = front.remote_set("the tools of the other daemon", |set| set["phase"] == "ready").await;
    assert_eq!((&set["tools"], &set["lastError"]), (&json!(1), &Value::Null));
    let ana = fixture.agent("svc-ana").await;
    assert_eq!(called(&ana, "passed on").await, "passed on");
    back.reload(&lab("[tools]\necho = true\ntime = true\n")).await;
    front.remote_set("more tools", |set| set["tools"].as_u64() > Some(1)).await;
    front.wait_until_ready().await;
    try_all(&fixture, &["toolbus", "toolbus-lab", "billing"], ATTEMPTS).await;
    assert_eq!(called(&ana, "after that").await, "after that");
    front.stop(&fixture.site).await;
    back.stop(&fixture.lab()).await;
}

/// The list of one tool, as a reply to a request.
fn list(request: &Message, from: &Client, login: &str, tool: &str) -> Request {
    let tool = json!({"name": tool, "description": "Of a test.", "inputSchema": {"type": "object"}});
    let body = json!({"agent": "toolbus", "version": tool["name"], "tools": [tool]});
    signed(request, from, login, "Toolbus.ToolListResponse", &body)
}

/// A reply to a request, with a login that the broker compares with the sender's.
fn signed(request: &Message, from: &Client, login: &str, kind: &str, body: &Value) -> Request {
    let (queue, login) = (request.properties.reply_to().as_ref().unwrap().to_string(), login.to_owned());
    let correlation = request.correlation_id().to_owned();
    let reply = from.raw(body.to_string()).on(&queue).of_type(kind);
    reply.with(|properties| properties.with_correlation_id(correlation.into()).with_user_id(login.into()))
}

#[tokio::test]
async fn with_the_shipped_permissions_no_other_login_can_list_the_tools_of_a_program_or_reply_for_it() {
    let fixture = Fixture::new().await.with_remote().await;
    // Another login, that may do everything: it hears all that the program hears.
    fixture.node.ctl(&["add_user", "thief", PASSWORD]).await;
    fixture.node.ctl(&["set_permissions", "-p", VHOST, "thief", ".*", ".*", ".*"]).await;
    let thief = Client::connect_as(&fixture.site, &fixture.url("thief")).await;
    let (lists, calls) = ("tool.list.provider.billing", "tool.invoke.provider.billing");
    for topic in [lists, calls] {
        thief.bind(topic).await;
    }
    let came = async |client: &Client, topic: &str, earlier: usize| {
        let all = || client.received().into_iter().filter(|message| message.routing_key == topic);
        eventually(topic, async || all().nth(earlier)).await
    };
    let front = Daemon::start(&fixture.site, &FRONT.replace("tool.invoke.lab", calls)).await;
    let incoming = came(&thief, lists, 0).await;
    thief.publish("", &list(&incoming, &thief, "thief", "steal")).await;
    front.remote_set("the list of any login on the topic", |set| set["phase"] == "ready").await;

    front.reload(&FRONT.replace("topic = \"tool.invoke.lab\"\n", "provider = \"billing\"\n")).await;
    front.remote_set("no list of another login", |set| set["phase"] == "waiting").await;
    let incoming = came(&thief, lists, 1).await;
    thief.publish("", &list(&incoming, &thief, "thief", "steal")).await;
    complains(&front, "a reply came from the login `thief`, which is not the agent `billing`").await;
    let program = fixture.provider("billing").await;
    let announcement = program.raw("{}").on("tool.announce").of_type("Toolbus.ToolAnnouncement");
    program.send(&announcement).await;
    let incoming = came(&program, lists, 0).await;
    program.publish("", &list(&incoming, &program, "billing", "find_invoice")).await;
    let set = front.remote_set("the tools of the program", |set| set["phase"] == "ready").await;
    assert_eq!((&set["tools"], &set["lastError"]), (&json!(1), &Value::Null));

    let ana = fixture.agent("svc-ana").await;
    let request = ana.request("lab.find_invoice", &json!({}));
    let request = request.with(|properties| properties.with_user_id("svc-ana".into()));
    ana.send(&request).await;
    let incoming = came(&program, calls, 0).await;
    let caller = (incoming.header("rb-source"), incoming.properties.user_id().as_ref().map(|user| user.as_str()));
    assert_eq!(caller, ("ana", Some("toolbus")));
    let result = |content: &str| {
        let id = &incoming.body()["toolCallId"];
        json!({"toolCallId": id, "toolName": "find_invoice", "content": content, "isError": false})
    };
    let kind = "RockBot.Tools.ToolInvokeResponse";
    thief.publish("", &signed(&incoming, &thief, "thief", kind, &result("forged"))).await;
    program.publish("", &signed(&incoming, &program, "billing", kind, &result("paid"))).await;
    assert_eq!(ana.reply(&request).await.content(), "paid");
    front.stop(&fixture.site).await;
}

#[tokio::test]
async fn with_the_shipped_permissions_bridges_are_queried_and_one_that_replies_on_topics_is_learnt() {
    let fixture = Fixture::new().await.with_remote().await;
    // A bridge of the peers, which the test is, with every permission.
    fixture.node.ctl(&["add_user", "bridge", PASSWORD]).await;
    fixture.node.ctl(&["set_permissions", "-p", VHOST, "bridge", ".*", ".*", ".*"]).await;
    let bridge = Client::connect_as(&fixture.site, &fixture.url("bridge")).await;
    for topic in ["mcp.manage", "tool.meta.mcp.refresh"] {
        bridge.bind(topic).await;
    }
    let set = "topic = \"tool.invoke.mcp\"\nserver = \"notes\"\n";
    let front = Daemon::start(&fixture.site, &FRONT.replace("topic = \"tool.invoke.lab\"\n", set)).await;
    let came = async |topic: &str| {
        eventually(topic, async || bridge.received().into_iter().find(|message| message.routing_key == topic)).await
    };
    assert_eq!(came("tool.meta.mcp.refresh").await.body(), json!({"serverName": "notes"}));
    let details = came("mcp.manage").await;
    let tools = json!([{"name": "read_note", "description": "Reads.", "parametersSchema": null}]);
    let reply = bridge.raw(json!({"serverName": "notes", "tools": tools, "error": null}).to_string());
    let reply =
        reply.of_type("RockBot.Tools.Mcp.McpGetServiceDetailsResponse").header("rb-source", "mcp-bridge.RockBot");
    let reply = reply.on(details.properties.reply_to().as_ref().unwrap().as_str());
    bridge.send(&reply.with(|properties| properties.with_correlation_id(details.correlation_id().into()))).await;
    let set = front.remote_set("the tools of the server", |set| set["phase"] == "ready").await;
    assert_eq!((&set["tools"], &set["lastError"]), (&json!(1), &Value::Null));
    front.stop(&fixture.site).await;
}

#[tokio::test]
async fn without_the_permissions_the_operator_reads_which_is_missing() {
    let fixture = Fixture::new().await;
    let front = Daemon::launch(&fixture.site, FRONT, &[]).await;
    is_refused_access(&front, "queue 'reply.").await;
    // The queue, and not yet the topics.
    let own = r"^((toolbus|reply)\..*|rockbot|rockbot\.dlx|amq\.default)$";
    fixture.node.ctl(&["set_permissions", "-p", VHOST, "toolbus", r"^(toolbus|reply)\..*$", own, own]).await;
    is_refused_access(&front, "topic 'tool.list.lab' in exchange 'rockbot'").await;
    let fixture = fixture.with_remote().await;
    let back = Daemon::start(&fixture.lab(), &lab("[tools]\necho = true\n")).await;
    front.remote_set("the tools of the other daemon", |set| set["phase"] == "ready").await;
    front.wait_until_ready().await;
    assert_eq!(called(&fixture.agent("svc-ana").await, "now").await, "now");
    front.stop(&fixture.site).await;
    back.stop(&fixture.lab()).await;
}
