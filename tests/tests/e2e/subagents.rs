//! Sub-agents over the bus: a task goes to an agent of the pool, and what it reports to the agent that gave the task.

use serde_json::{Value, json};
use toolbus_e2e::client::Client;
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::message::Message;
use toolbus_testing::patience::eventually;

const RULES: &str = r#"
[identity]
trust_headers = true
[subagents.pools]
thinkers = ["worker"]
[agents.ana]
[agents.worker]
profile = "subagent"
[agents.eve]
"#;

/// The messages of this type that a client has.
async fn of_type(client: &Client, kind: &str) -> Vec<Message> {
    client.caught_up().await.into_iter().filter(|message| message.kind() == kind).collect()
}

async fn report(client: &Client, agent: &str, body: Value) {
    let mut request = client.raw(body.to_string()).by(agent).on("subagent.report");
    let kind = "RockBot.Host.SubagentResultMessage".into();
    request.properties = lapin::BasicProperties::default().with_delivery_mode(2).with_type(kind);
    client.send(&request).await;
}

#[tokio::test]
async fn a_task_is_worked_on_by_an_agent_of_the_pool_and_no_other_agents_result_counts() {
    let (site, daemon, ana) = Daemon::with_client(RULES).await;
    let worker = Client::connect(&site).await;
    ana.bind("subagent.result.ana").await;
    worker.bind("subagent.task.thinkers").await;
    let spawned = ana.text("ana", "spawn_subagent", &json!({"description": "Count the frogs"})).await;
    let task = eventually("the task", async || of_type(&worker, "Toolbus.SubagentTaskMessage").await.pop()).await;
    let id = task.body()["taskId"].as_str().unwrap().to_owned();
    assert!(spawned.contains(&id), "{spawned} {id}");

    ana.text("ana", "whiteboard_write", &json!({"key": "where", "value": "in the pond"})).await;
    let read = worker.text("worker", "whiteboard_read", &json!({"key": "where", "task_id": id})).await;
    assert_eq!(read, "in the pond");
    let refused = worker.exchange(&worker.request("spawn_subagent", &json!({"description": "x"})).by("worker")).await;
    assert_eq!(refused.code(), "tool_not_found", "a sub-agent gives no tasks");

    let result = |output: &str| json!({"taskId": id, "output": output, "isSuccess": true});
    report(&worker, "eve", result("a lie")).await;
    report(&worker, "worker", result("42")).await;
    let results = "RockBot.Host.SubagentResultMessage";
    let reported = eventually("the result", async || of_type(&ana, results).await.pop()).await;
    assert_eq!((&reported.body()["output"], &reported.body()["taskId"]), (&json!("42"), &json!(id)));
    // Not before: of two at once either may be the first.
    report(&worker, "worker", result("43")).await;
    let listed = ana.text("ana", "list_subagents", &json!({})).await;
    assert!(listed.ends_with("Count the frogs\n42"), "{listed}");
    assert_eq!(of_type(&ana, results).await.len(), 1);
    daemon.stop(&site).await;
}
