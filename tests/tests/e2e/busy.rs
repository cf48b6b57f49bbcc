//! A flooding agent, as operators and a collector see it while it goes on.

use serde_json::{Value, json};
use toolbus_e2e::backend::Backend;
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::metrics::sum;
use toolbus_testing::otlp::Receiver;
use toolbus_testing::patience::eventually;

const RULES: &str = r#"
[tools]
echo = true
[identity]
trust_headers = true
unknown = "default"
[agents.ana]
max_in_flight = 2
max_queued = 3
[agents.bob]
"#;

/// Gives the entry of an agent or a tool.
fn entry<'a>(list: &'a Value, key: &str, name: &str) -> &'a Value {
    list.as_array().unwrap().iter().find(|one| one[key] == name).unwrap_or(&Value::Null)
}

#[tokio::test]
async fn an_agent_that_floods_is_named_by_agents_by_status_and_by_metrics() {
    let backend = Backend::start().await;
    let receiver = Receiver::start().await.unwrap();
    let hold = backend.tool("hold", "/gate?id={id}", "timeout = \"100s\"");
    let exporter = format!("[telemetry]\notlp_endpoint = \"{}\"\n", receiver.grpc_endpoint());
    let (site, daemon, client) = Daemon::with_client(&format!("{exporter}{RULES}{hold}")).await;
    let requests: Vec<_> = (0..9).map(|_| client.request("hold", &json!({"id": "held"})).by("ana")).collect();
    for request in &requests {
        client.send(request).await;
    }
    assert_eq!(client.exchange(&client.request("echo", &json!({"text": "a"})).by("bob")).await.content(), "a");
    assert_eq!(client.exchange(&client.request("echo", &json!({"text": "b"})).by("eve")).await.content(), "b");
    assert_eq!(daemon.operate(&["disable", "tool", "current_time"]).await.code, 0);

    let status = eventually("all of ana's calls to run, to wait or to be refused", async || {
        let status = daemon.operate(&["status", "--output", "json"]).await.json();
        let ana = entry(&status["busiestAgents"], "agent", "ana");
        (*ana == json!({"agent": "ana", "running": 2, "waiting": 3, "recent": 4})).then_some(status)
    })
    .await;
    assert_eq!(status["busiestAgents"][0]["agent"], "ana");
    assert_eq!(entry(&status["busiestAgents"], "agent", "default")["recent"], 1);
    assert_eq!(status["busiestTools"][0], json!({"tool": "hold", "running": 2, "recent": 4}));
    assert_eq!(status["disabled"], json!([{"kind": "tool", "name": "current_time"}]));
    let shown = daemon.operate(&["status"]).await.out;
    for line in [
        "busiest agents  ana: 2 running, 3 waiting, 4 ended lately",
        "busiest tools   hold: 2 running, 4 ended lately",
        "switched off    tool current_time",
    ] {
        assert!(shown.contains(line), "{line}\n{shown}");
    }

    let agents = daemon.operate(&["agents", "--output", "json"]).await.json();
    let ana = entry(&agents["agents"], "agent", "ana");
    assert_eq!((&ana["running"], &ana["waiting"]), (&json!(2), &json!(3)));
    let shown = daemon.operate(&["agents"]).await.out;
    assert!(
        shown.lines().any(|line| line.starts_with("ana ") && line.contains(" 2/2 ") && line.contains(" 3/3 ")),
        "{shown}"
    );
    assert!(daemon.get("/status").await.unwrap().1.get("busiestAgents").is_none(), "agents are not public");

    backend.open();
    for request in &requests {
        client.reply(request).await;
    }
    daemon.stop(&site).await;
    let count =
        |agent: &str, status: &str| sum(&receiver, "rockbot.tool.invocations", &[("agent", agent), ("status", status)]);
    let counted = [("ana", "ok"), ("ana", "overloaded"), ("bob", "ok"), ("_other", "ok"), ("eve", "ok")];
    assert_eq!(counted.map(|(agent, status)| count(agent, status)), [5, 4, 1, 1, 0]);
}
