//! Servers that others wrote come and go while the daemon runs.

use serde_json::{Value, json};
use toolbus_e2e::client::Client;
use toolbus_e2e::mcp::{Workplace, at, ready, status, statuses};
use toolbus_e2e::namespace::BrokerNamespace;
use toolbus_testing::patience::eventually;

const RULES: &str = "[identity]\ntrust_headers = true\n[agents.ana]\n";

/// Returns the announcements to ana of added and removed tools or servers.
fn announced(client: &Client, topic: &str, came: &str, went: &str) -> Vec<(Value, Value)> {
    let messages = client.received().into_iter().filter(|message| message.routing_key == topic);
    messages.map(|message| (message.body()[came].clone(), message.body()[went].clone())).collect()
}

#[tokio::test]
async fn a_server_added_to_or_removed_from_the_file_is_announced_and_touches_no_other() {
    let (site, work) = (BrokerNamespace::shared().await, Workplace::new().await);
    let client = Client::connect(&site).await;
    client.bind("tool.meta.tools.ana").await;
    client.bind("tool.meta.mcp.ana").await;
    let daemon = work.daemon(&site, &work.servers(&["memory"]), RULES).await;
    let memory = ready(&daemon, "memory").await["pid"].clone();
    let sum = client.exchange(&at(&client, "everything", "get-sum", &json!({"a": 1, "b": 1})).by("ana")).await;
    assert_eq!(sum.code(), "tool_not_found");

    work.write(&work.servers(&["memory", "everything"]));
    eventually("news of the tools", async || {
        let news = announced(&client, "tool.meta.tools.ana", "added", "removed");
        news.iter()
            .any(|(added, _)| added.as_array().is_some_and(|tools| tools.contains(&json!("get-sum"))))
            .then_some(())
    })
    .await;
    eventually("news of the servers", async || {
        let news = announced(&client, "tool.meta.mcp.ana", "servers", "removedServers");
        let is_everything = |server: &Value| server["serverName"] == "everything" && server["toolCount"] == 13;
        news.iter().any(|(added, _)| added.as_array().is_some_and(|all| all.iter().any(is_everything))).then_some(())
    })
    .await;
    let sum = client.exchange(&at(&client, "everything", "get-sum", &json!({"a": 1, "b": 1})).by("ana")).await;
    assert_eq!(sum.content(), "The sum of 1 and 1 is 2.");

    // What is no JSON changes nothing.
    std::fs::write(work.path("mcp.json"), "{\"mcpServers\": {").unwrap();
    eventually("the refusal", async || daemon.text().contains("mcp.json").then_some(())).await;
    assert_eq!(statuses(&daemon).await.len(), 2);

    work.write(&work.servers(&["memory"]));
    eventually("news of the end", async || {
        let news = announced(&client, "tool.meta.mcp.ana", "servers", "removedServers");
        news.iter().any(|(_, removed)| *removed == json!(["everything"])).then_some(())
    })
    .await;
    eventually("one server", async || (statuses(&daemon).await.len() == 1).then_some(())).await;
    let gone = client.exchange(&at(&client, "everything", "get-sum", &json!({"a": 1, "b": 1})).by("ana")).await;
    assert_eq!(gone.code(), "tool_not_found");
    assert_eq!(status(&daemon, "memory").await["pid"], memory, "the other goes on");
    daemon.stop(&site).await;
}
