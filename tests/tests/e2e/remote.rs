//! A daemon that passes calls on to another one, over RabbitMQ.

use serde_json::json;
use toolbus_e2e::client::Client;
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::message::Message;
use toolbus_e2e::namespace::BrokerNamespace;
use toolbus_testing::patience::eventually;

/// Configuration of the daemon that runs the tools: only those of agents whose rules it knows.
const LAB: &str = r#"
[invoke]
topics = ["tool.invoke.lab"]
[tools]
echo = true
[identity]
trust_headers = true
[agents.ana]
allowed_tools = ["echo"]
[agents.bob]
allowed_tools = ["get_*"]
"#;

/// Configuration of the daemon that the agents call.
const FRONT: &str = r#"
[identity]
trust_headers = true
[agents.ana]
toolsets = ["lab"]
[agents.bob]
toolsets = ["lab"]
[toolsets.lab]
kind = "remote"
topic = "tool.invoke.lab"
[toolsets.lab.tools.echo]
description = "Answers with its text"
parameters = '{"type": "object", "properties": {"text": {"type": "string"}}}'
effect = "read-only"
"#;

#[tokio::test]
async fn a_call_runs_at_another_daemon_as_the_agent_that_made_it() {
    let site = BrokerNamespace::shared().await;
    let elsewhere = site.beside();
    let (front, back) = (Daemon::start(&site, FRONT).await, Daemon::start(&elsewhere, LAB).await);
    let client = Client::connect(&site).await;
    let call = |agent: &str| client.request("lab.echo", &json!({"text": "hi"})).by(agent);
    let reply = client.exchange(&call("ana")).await;
    assert_eq!(reply.content(), "hi");
    assert_eq!(reply.body()["toolName"], "lab.echo");
    let refused = client.exchange(&call("bob")).await;
    assert_eq!(refused.code(), "tool_not_found", "the other daemon has rules of its own");
    let wrong = client.exchange(&client.request("lab.echo", &json!({"text": 7})).by("ana")).await;
    assert_eq!(wrong.code(), "invalid_arguments");
    back.stop(&elsewhere).await;
    front.stop(&site).await;
}

#[tokio::test]
async fn a_call_in_a_circle_of_daemons_is_refused() {
    let site = BrokerNamespace::shared().await;
    let circle = |topic: &str, next: &str| {
        format!(
            "[invoke]\ntopics = [\"{topic}\"]\n[identity]\ntrust_headers = true\n[agents.ana]\ntoolsets = [\"next\"]\n\
             [toolsets.next]\nkind = \"remote\"\nprefix = \"next\"\ntopic = \"{next}\"\n\
             [toolsets.next.tools.\"next.x\"]\ndescription = \"Goes round\"\neffect = \"read-only\"\n\
             [toolsets.next.tools.x]\ndescription = \"Goes round\"\neffect = \"read-only\"\n"
        )
    };
    let elsewhere = site.beside();
    let one = Daemon::start(&site, &circle("tool.invoke", "tool.invoke.lab")).await;
    let other = Daemon::start(&elsewhere, &circle("tool.invoke.lab", "tool.invoke")).await;
    let client = Client::connect(&site).await;
    let far = client.request("next.next.x", &json!({})).by("ana");
    let reply = client.exchange(&far).await;
    assert_eq!(reply.code(), "tool_not_found", "the name has one part less at each daemon");
    let reply = client.exchange(&client.request("next.x", &json!({})).by("ana").header("rb-hops", "4")).await;
    assert_eq!(reply.code(), "not_allowed");
    insta::assert_snapshot!(reply.body()["message"].as_str().unwrap(), @"Tool 'next.x' was not called: 4 daemons have passed the call on already, perhaps in a circle.");
    one.stop(&site).await;
    other.stop(&elsewhere).await;
}

/// A call is dropped as soon as it is cancelled, before anything can be published.
#[tokio::test]
async fn a_cancelled_call_is_cancelled_at_the_other_daemon_each_time() {
    let site = BrokerNamespace::shared().await;
    let front = Daemon::start(&site, FRONT).await;
    // The other daemon, which the test is.
    let (lab, client) = (Client::connect(&site).await, Client::connect(&site).await);
    lab.bind("tool.invoke.lab").await;
    lab.bind("tool.cancel").await;
    for number in 0..3 {
        let id = format!("call-{number}");
        let body = json!({"toolName": "lab.echo", "arguments": {"text": "hi"}, "toolCallId": id});
        let call = client.raw(body.to_string()).by("ana");
        client.send(&call).await;
        let passed_on = eventually("the call", async || {
            lab.received().into_iter().filter(|message| message.body()["toolName"] == "echo").nth(number)
        });
        let passed_on = passed_on.await.body()["toolCallId"].clone();
        client.send(&client.raw(json!({"toolCallId": id}).to_string()).on("tool.cancel").by("ana")).await;
        assert_eq!(client.reply(&call).await.code(), "cancelled");
        let cancelled = json!({"toolCallId": passed_on});
        eventually("its cancellation", async || {
            lab.received().iter().any(|message| message.body() == cancelled).then_some(())
        })
        .await;
    }
    front.stop(&site).await;
}

/// Memory that a call that waits for another daemon may take, with its message and all that is known of it, in KiB.
const MAX_PER_CALL: u64 = 64;

#[tokio::test]
async fn a_thousand_calls_that_wait_for_another_daemon_hold_no_thread_and_little_memory() {
    const CALLS: usize = 1_000;
    let site = BrokerNamespace::shared().await;
    let more = FRONT.replace("[agents.ana]\n", "[agents.ana]\nmax_in_flight = 1100\n");
    let front =
        Daemon::start(&site, &format!("{more}[invoke]\nmax_in_flight = 1200\ndefault_timeout = \"110s\"\n")).await;
    // The other daemon, which the test is.
    let (lab, client) = (Client::connect(&site).await, Client::connect(&site).await);
    lab.bind("tool.invoke.lab").await;
    let echo = || client.request("lab.echo", &json!({"text": "hi"})).by("ana");
    let reply = async |request: &Message| {
        let body = json!({"toolCallId": request.body()["toolCallId"], "toolName": "echo", "content": "hi",
            "isError": false});
        let queue = request.properties.reply_to().as_ref().unwrap().to_string();
        let reply = lab.raw(body.to_string()).on(&queue).of_type("RockBot.Tools.ToolInvokeResponse");
        let correlation = request.correlation_id().to_owned();
        lab.publish("", &reply.with(|properties| properties.with_correlation_id(correlation.as_str().into()))).await;
    };
    // What the first call starts is no part of the comparison.
    let first = echo();
    client.send(&first).await;
    reply(&eventually("the first call", async || lab.received().pop()).await).await;
    assert_eq!(client.reply(&first).await.content(), "hi");
    let before = front.usage();

    for _ in 0..CALLS {
        client.send(&echo()).await;
    }
    eventually("all calls at the other daemon", async || (lab.count() > CALLS).then_some(())).await;
    let during = front.usage();
    // Threads for blocking work end when they have had none for 10 s.
    assert!(during.threads <= before.threads + 2, "threads do not grow with calls: {before:?} {during:?}");
    assert!(during.descriptors <= before.descriptors + 4, "{before:?} {during:?}");
    let grown = during.memory.saturating_sub(before.memory);
    assert!(grown < CALLS as u64 * MAX_PER_CALL, "{grown} KiB more: {before:?} {during:?}");

    for request in &lab.received()[1..] {
        reply(request).await;
    }
    eventually("all replies", async || (client.count() > CALLS).then_some(())).await;
    assert!(client.received().iter().all(|message| message.content() == "hi"));
    front.stop(&site).await;
}
