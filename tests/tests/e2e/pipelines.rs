//! Pipelines over the bus: steps are the caller's own calls, with its rights, its audit records and its slots.

use serde_json::{Value, json};
use toolbus_e2e::client::Client;
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::message::Message;

const RULES: &str = r#"
[identity]
trust_headers = true
[invoke]
max_in_flight = 1
[tools]
echo = true
[memory]
[results]
threshold = 500
[pipelines]
[agents.ana]
denied_tools = ["current_time"]
[agents.bruno]
allowed_tools = ["echo"]
"#;

async fn run(client: &Client, agent: &str, definitions: Value) -> Message {
    let request = client.request("spawn_wisps", &json!({ "definitions": definitions })).by(agent);
    client.exchange(&request).await
}

#[tokio::test]
async fn steps_pass_values_on_whole_and_have_the_rights_of_their_caller() {
    let (site, daemon, client) = Daemon::with_client(RULES).await;
    let long = "long ".repeat(300);
    let steps = json!([
        {"id": "long", "tool": "echo", "params": {"text": long}},
        {"id": "save", "tool": "save_to_working_memory", "params": {"key": "kept", "value": "{{long}}"}},
        {"id": "read", "tool": "get_from_working_memory", "params": {"key": "kept"}},
        {"id": "clock", "tool": "current_time", "on_failure": "continue"},
        {"id": "end", "tool": "echo", "params": {"text": "done"}, "when": [{"value": "read", "contains": "long long"}]},
    ]);
    // There is one slot: the pipelines beside each other take turns, and their own call takes none.
    let other = json!([{"id": "a", "tool": "echo", "params": {"text": "x"}}]);
    let definitions = json!([{"description": "first", "steps": steps}, {"description": "second", "steps": other}]);
    let reply = run(&client, "ana", definitions).await;
    let reply: Value = serde_json::from_str(&reply.content()).unwrap();
    let outcomes = reply["pipelines"][0]["steps"].as_array().unwrap().iter();
    let outcomes: Vec<&str> = outcomes.map(|step| step["outcome"].as_str().unwrap()).collect();
    assert_eq!(outcomes, ["ok", "ok", "ok", "failed", "ok"], "{reply}");
    assert_eq!(reply["pipelines"][0]["steps"][3]["code"], "tool_not_found");
    assert_eq!((&reply["pipelines"][0]["output"], &reply["pipelines"][1]["output"]), (&json!("done"), &json!("x")));

    // The end alone is split.
    let long = json!([{"id": "long", "tool": "echo", "params": {"text": long}}]);
    let split = run(&client, "ana", json!([{"description": "long", "steps": long}])).await.content();
    assert!(split.starts_with("Tool result for 'spawn_wisps' is large"), "{split}");

    let refused = run(&client, "bruno", json!([{"description": "x", "steps": other}])).await;
    assert_eq!(refused.code(), "tool_not_found");
    let cyclic = json!([{"id": "a", "tool": "echo", "params": {"text": "{{b}}"}}, {"id": "b", "tool": "echo"}]);
    let refused = run(&client, "ana", json!([{"description": "x", "steps": cyclic}])).await;
    assert_eq!(refused.code(), "invalid_arguments");
    daemon.stop(&site).await;
}
