//! The drain: calls finish, are requeued, or get a reply with their outcome.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use serde_json::json;
use toolbus_e2e::backend::Backend;
use toolbus_e2e::client::{Client, Request};
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::namespace::BrokerNamespace;
use toolbus_testing::patience::{at_most, eventually};

/// Calls that run while the daemon is to end, and its longest time after the slowest of them, on a machine with nothing
/// else to do.
const MANY: usize = 64;
const AFTER_THE_LAST: Duration = Duration::from_millis(100);

struct Fixture {
    site: BrokerNamespace,
    backend: Backend,
    tools: String,
    daemon: Daemon,
    client: Client,
}

impl Fixture {
    async fn with(settings: &str) -> Self {
        let backend = Backend::start().await;
        let tools = [
            backend.tool("look", "/gate?id={id}", "effect = \"read-only\""),
            backend.tool("put", "/gate?id={id}", "effect = \"idempotent\""),
            backend.tool("pay", "/gate?id={id}", "effect = \"effectful\""),
        ]
        .concat();
        let (site, daemon, client) = Daemon::with_client(&format!("{settings}{tools}")).await;
        Self { site, backend, tools, daemon, client }
    }

    /// A call that is at the backend and held there.
    async fn running(&self, tool: &str, id: &str) -> Request {
        let request = self.client.request(tool, &json!({"id": id}));
        self.client.send(&request).await;
        self.backend.wait_for(id).await;
        request
    }

    /// Starts a second daemon, for the requests that the first one left.
    async fn successor(&self) -> Daemon {
        self.backend.open();
        Daemon::start(&self.site, &self.tools).await
    }
}

#[tokio::test]
async fn a_running_call_finishes_while_no_new_one_is_taken_and_readiness_is_gone() {
    let mut fixture = Fixture::with("").await;
    let running = fixture.running("pay", "running").await;
    fixture.daemon.signal("TERM").await;
    fixture.daemon.blocked_by("draining").await;
    assert_eq!(fixture.daemon.get("/livez").await.unwrap().0, 200);
    let late = fixture.client.request("pay", &json!({"id": "late"}));
    fixture.client.send(&late).await;
    fixture.site.wait_for_ready(&fixture.site.queue(), 1).await;
    assert_eq!(fixture.client.replies_to(&running.correlation), []);

    fixture.backend.open();
    assert_eq!(fixture.client.reply(&running).await.content(), "passed running");
    assert_eq!(fixture.daemon.ended().await.code(), Some(0), "{}", fixture.daemon.text());
    assert_eq!((fixture.backend.count("late"), fixture.site.ready(&fixture.site.queue()).await), (0, 1));
    let successor = fixture.successor().await;
    assert_eq!(fixture.client.reply(&late).await.content(), "passed late");
    successor.stop(&fixture.site).await;
    assert_eq!(fixture.backend.count("running"), 1);
}

#[tokio::test]
async fn a_drain_takes_as_long_as_the_slowest_call_and_hardly_longer() {
    let mut fixture = Fixture::with("").await;
    let names: Vec<String> = (0..MANY).map(|number| format!("running-{number}")).collect();
    let running = join_all(names.iter().map(|name| fixture.running("pay", name))).await;
    fixture.daemon.signal("TERM").await;
    fixture.daemon.blocked_by("draining").await;
    fixture.backend.open();
    let began = Instant::now();
    assert_eq!(fixture.daemon.ended().await.code(), Some(0), "{}", fixture.daemon.text());
    println!("{MANY} calls and the daemon ended after {:?}", began.elapsed());
    assert!(began.elapsed() < at_most(AFTER_THE_LAST), "{:?}", began.elapsed());
    for (request, name) in running.iter().zip(&names) {
        assert_eq!(fixture.client.reply(request).await.content(), format!("passed {name}"));
    }
}

#[tokio::test]
async fn after_the_drain_repeatable_calls_are_requeued_and_effectful_ones_have_an_unknown_outcome() {
    let mut fixture = Fixture::with("[invoke]\nmax_in_flight = 4\ndrain_timeout = \"300ms\"\n").await;
    let looking = fixture.running("look", "looking").await;
    let putting = fixture.running("put", "putting").await;
    let paying = fixture.running("pay", "paying").await;
    let waiting = fixture.client.request("pay", &json!({"id": "waiting"}));
    fixture.client.send(&waiting).await;
    fixture.site.wait_for_ready(&fixture.site.queue(), 0).await;

    fixture.daemon.signal("TERM").await;
    assert_eq!(fixture.daemon.ended().await.code(), Some(0), "{}", fixture.daemon.text());
    let mut body = fixture.client.reply(&paying).await.body();
    body["toolCallId"] = json!("[the message's id]");
    insta::assert_json_snapshot!(body, @r#"
    {
      "code": "cancelled",
      "isRetryable": false,
      "message": "The daemon shut down while the tool ran. Whether it had its effect is not known: find out before calling again.",
      "outcome": "unknown",
      "toolCallId": "[the message's id]",
      "toolName": "pay"
    }
    "#);
    let others = [&looking, &putting, &waiting];
    assert!(others.iter().all(|request| fixture.client.replies_to(&request.correlation).is_empty()));
    fixture.site.wait_for_ready(&fixture.site.queue(), 3).await;
    assert_eq!(fixture.backend.count("waiting"), 0, "it had not begun");

    let successor = fixture.successor().await;
    for (request, id) in others.into_iter().zip(["looking", "putting", "waiting"]) {
        assert_eq!(fixture.client.reply(request).await.content(), format!("passed {id}"));
    }
    assert_eq!(fixture.backend.count("waiting"), 1);
    assert_eq!(fixture.backend.count("paying"), 1, "what may have had its effect is not run again");
    successor.stop(&fixture.site).await;
}

#[tokio::test]
async fn a_second_signal_ends_at_once() {
    let mut fixture = Fixture::with("[invoke]\ndrain_timeout = \"10m\"\n").await;
    let running = fixture.running("look", "running").await;
    fixture.daemon.signal("TERM").await;
    fixture.daemon.blocked_by("draining").await;
    fixture.daemon.signal("TERM").await;
    assert_eq!(fixture.daemon.ended().await.code(), Some(130), "{}", fixture.daemon.text());
    let successor = fixture.successor().await;
    assert_eq!(fixture.client.reply(&running).await.content(), "passed running", "the broker gave it to the next");
    successor.stop(&fixture.site).await;
}

#[tokio::test]
async fn an_interrupt_drains_as_well() {
    let mut fixture = Fixture::with("").await;
    let running = fixture.running("pay", "running").await;
    fixture.daemon.signal("INT").await;
    fixture.daemon.blocked_by("draining").await;
    fixture.backend.open();
    assert_eq!(fixture.client.reply(&running).await.content(), "passed running");
    assert_eq!(fixture.daemon.ended().await.code(), Some(0), "{}", fixture.daemon.text());
}

/// Configuration of a daemon that calls tools of another daemon, and agents.
const FRONT: &str = r#"
[identity]
trust_headers = true
[agents.ana]
toolsets = ["lab"]
allowed_agents = ["Bob"]
[toolsets.lab]
kind = "remote"
topic = "tool.invoke.lab"
[toolsets.lab.tools.echo]
description = "Answers with its text"
effect = "effectful"
[a2a]
[[a2a.agents]]
name = "Bob"
"#;

#[tokio::test]
async fn running_calls_receive_the_replies_of_other_daemons_and_agents_that_they_wait_for() {
    const CALLS: usize = 20;
    const TASKS: usize = 8;
    let site = BrokerNamespace::shared().await;
    let mut front = Daemon::start(&site, FRONT).await;
    // The other daemon, and the agent, which the test is.
    let (other, client) = (Client::connect(&site).await, Client::connect(&site).await);
    for topic in ["tool.invoke.lab", "agent.task.Bob"] {
        other.bind(topic).await;
    }
    let call = |number: usize| client.request("lab.echo", &json!({"text": format!("text {number:02}")})).by("ana");
    let task = |number: usize| {
        let task = json!({"agent_name": "Bob", "skill": "sum", "message": format!("sum {number:02}"), "wait": true});
        client.request("invoke_agent", &task).by("ana")
    };
    let requests: Vec<Request> = (0..CALLS).map(call).chain((0..TASKS).map(task)).collect();
    for request in &requests {
        client.send(request).await;
    }
    let received = eventually("the calls and the tasks", async || {
        Some(other.received()).filter(|received| received.len() == requests.len())
    })
    .await;
    front.signal("TERM").await;
    front.blocked_by("draining").await;

    for message in &received {
        let body = message.body();
        let (kind, exchange, result) = if body.get("taskId").is_some() {
            let given = &body["message"]["parts"][0]["text"];
            let parts = json!([{"kind": "text", "text": given}]);
            let result = json!({"taskId": body["taskId"], "state": 3, "message": {"role": "agent", "parts": parts}});
            ("RockBot.A2A.AgentTaskResult", site.exchange.clone(), result)
        } else {
            let content = &body["arguments"];
            let result = json!({"toolCallId": body["toolCallId"], "toolName": "echo", "content": content});
            ("RockBot.Tools.ToolInvokeResponse", String::new(), result)
        };
        let (address, correlation) = (message.properties.reply_to().clone().unwrap(), message.correlation_id().into());
        let reply = other.raw(result.to_string()).on(address.as_str()).of_type(kind).by("Bob");
        other.publish(&exchange, &reply.with(|properties| properties.with_correlation_id(correlation))).await;
    }
    let texts = (0..CALLS).map(|number| format!("text {number:02}"));
    for (request, text) in requests.iter().zip(texts.chain((0..TASKS).map(|number| format!("sum {number:02}")))) {
        let content = client.reply(request).await.content();
        assert!(content.contains(&text), "{text}: {content}");
    }
    assert_eq!(front.ended().await.code(), Some(0), "{}", front.text());
}
