//! A sidecar serves one agent, beside others on the same exchange.

use serde_json::{Value, json};
use toolbus_e2e::backend::Backend;
use toolbus_e2e::client::{Client, Request};
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::namespace::BrokerNamespace;
use toolbus_testing::patience::eventually;
use uuid::Uuid;

/// An agent's sidecar, with names that no other test uses.
struct Sidecar {
    agent: String,
    site: BrokerNamespace,
    daemon: Daemon,
}

impl Sidecar {
    async fn start(site: &BrokerNamespace, name: &str, backend: &Backend) -> Self {
        let agent = format!("{name}-{}", Uuid::new_v4().simple());
        let own = site.of_sidecar(&agent);
        let rules = format!(
            "[bus]\nname = \"sidecar-of-{name}\"\n[identity]\nagent = {agent:?}\n[tools]\necho = true\n\
             [agents.{agent}]\nallowed_tools = [\"echo\", \"hold\"]\n{}",
            backend.tool("hold", "/gate?id={id}", "")
        );
        let daemon = Daemon::start(&own, &rules).await;
        Self { agent, site: own, daemon }
    }

    fn topic(&self) -> String {
        format!("tool.invoke.agent.{}", self.agent)
    }

    /// Checks that nothing is left behind, dead letters included.
    async fn stop(self) {
        self.daemon.stop(&self.site).await;
        for queue in [self.site.dead_letters(), format!("{}.control.dlq", self.site.prefix)] {
            assert!(self.site.take(&queue).await.is_none(), "{queue}");
        }
    }
}

fn echo(client: &Client, agent: &str) -> Request {
    client.request("echo", &json!({"text": agent})).by(agent)
}

fn small(client: &Client, topic: &str, agent: &str, body: &Value) -> Request {
    client.raw(body.to_string()).on(topic).by(agent)
}

#[tokio::test]
async fn a_sidecar_has_queues_and_a_topic_of_its_own_on_which_every_caller_is_its_agent() {
    let (site, backend) = (BrokerNamespace::shared().await, Backend::start().await);
    let ana = Sidecar::start(&site, "ana", &backend).await;
    for (queue, consumers) in [("invoke", 1), ("control", 1), ("invoke.dlq", 0), ("control.dlq", 0)] {
        let name = format!("toolbus.{}.{queue}", ana.agent);
        assert_eq!(site.consumers(&name).await, Some(consumers), "{queue}");
    }
    let client = Client::connect(&site).await;
    let requests =
        [echo(&client, &ana.agent), echo(&client, "bruno"), client.request("echo", &json!({"text": "bruno"}))];
    for request in requests.map(|request| request.on(&ana.topic())) {
        let reply = client.exchange(&request).await;
        assert!(reply.code().is_empty(), "{reply:?}");
        assert_eq!(reply.header("rb-source"), "sidecar-of-ana");
    }
    let hidden = client.request("current_time", &json!({})).on(&ana.topic());
    assert_eq!(client.exchange(&hidden).await.code(), "tool_not_found", "as ana, and so by ana's rules");
    ana.stop().await;
}

#[tokio::test]
async fn messages_for_others_on_shared_topics_are_acknowledged_without_a_reply() {
    let (site, backend) = (BrokerNamespace::shared().await, Backend::start().await);
    let ana = Sidecar::start(&site, "ana", &backend).await;
    let client = Client::connect(&site).await;
    let held = client.raw(json!({"toolName": "hold", "toolCallId": "c1", "arguments": {"id": "held"}}).to_string());
    let held = held.by(&ana.agent);
    client.send(&held).await;
    backend.wait_for("held").await;

    let foreign = [
        echo(&client, "bruno"),
        client.request("echo", &json!({"text": "nobody"})),
        echo(&client, &format!("{}x", ana.agent)),
        client.raw("no JSON at all").by("bruno"),
        client.raw(vec![0xff; 8]).by("bruno"),
        client.raw("{").by("bruno").with(|it| it.with_reply_to("".into())),
        echo(&client, "bruno").of_type("RockBot.Foreign"),
        echo(&client, "bruno").reply_to("tool.invoke"),
        client.raw("x".repeat(2 * 1024 * 1024)).by("bruno"),
        small(&client, "tool.list", "bruno", &json!({})),
        small(&client, "tool.list", "bruno", &json!([])),
        small(&client, "tool.list", "bruno", &json!({})).of_type("RockBot.Foreign"),
        small(&client, "tool.list", "bruno", &json!({})).reply_to("tool.invoke"),
        small(&client, "tool.cancel", "bruno", &json!({"toolCallId": "c1"})),
        client.raw(json!({"toolCallId": "c1"}).to_string()).on("tool.cancel"),
        small(&client, "tool.session.end", "bruno", &json!({"sessionId": "s"})),
    ];
    for request in &foreign {
        client.send(request).await;
    }
    // Replies come in the order of a queue: earlier messages on each have been settled.
    assert_eq!(client.exchange(&echo(&client, &ana.agent)).await.content(), ana.agent);
    let list = small(&client, "tool.list", &ana.agent, &json!({}));
    assert_eq!(client.exchange(&list).await.body()["tools"].as_array().unwrap().len(), 2);
    let cancel = |id: &str| small(&client, "tool.cancel", &ana.agent, &json!({"toolCallId": id}));
    assert_eq!(client.exchange(&cancel("unknown")).await.body()["cancelled"], false);
    assert_eq!(client.replies_to(&held.correlation), [], "no other agent's cancel reached it");
    assert_eq!(client.exchange(&cancel("c1")).await.body()["cancelled"], true);
    assert_eq!(client.reply(&held).await.code(), "cancelled");
    eventually("empty queues", async || (site.ready(&ana.site.queue()).await == 0).then_some(())).await;
    ana.stop().await;
    assert_eq!(client.caught_up().await.len(), 5, "no other agent got a reply");
}

#[tokio::test]
async fn two_sidecars_beside_each_other_reply_each_to_their_own_agent_once() {
    let (site, backend) = (BrokerNamespace::shared().await, Backend::start().await);
    let ana = Sidecar::start(&site, "ana", &backend).await;
    let bruno = Sidecar::start(&site, "bruno", &backend).await;
    let client = Client::connect(&site).await;
    let mut sent = 0;
    for _ in 0..20 {
        for (sidecar, source) in [(&ana, "sidecar-of-ana"), (&bruno, "sidecar-of-bruno")] {
            let reply = client.exchange(&echo(&client, &sidecar.agent)).await;
            assert_eq!((reply.content().as_str(), reply.header("rb-source")), (sidecar.agent.as_str(), source));
            let list = client.exchange(&small(&client, "tool.list", &sidecar.agent, &json!({}))).await;
            assert_eq!((&list.body()["agent"], list.header("rb-source")), (&json!(sidecar.agent), source));
            sent += 2;
        }
    }
    // The topic decides, not the caller.
    let of_bruno = echo(&client, &ana.agent).on(&bruno.topic());
    assert_eq!(client.exchange(&of_bruno).await.header("rb-source"), "sidecar-of-bruno");
    ana.stop().await;
    bruno.stop().await;
    assert_eq!(client.caught_up().await.len(), sent + 1, "one reply each");
}
