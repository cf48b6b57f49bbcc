//! Guides and search over the bus: an agent gets those of tools that it can use.

use serde_json::{Value, json};
use toolbus_e2e::daemon::Daemon;

const RULES: &str = r#"
[identity]
trust_headers = true
[agents.ana]
[agents.bruno]
allowed_tools = ["*_tool_guide*", "search_tools", "current_time"]
[tools]
search = true
[memory]
[schedule]
[guides]
"#;

/// The names in a list of guides.
fn names(list: &str) -> Vec<&str> {
    list.lines().map(|line| line.split('`').nth(1).unwrap()).collect()
}

#[tokio::test]
async fn each_agent_gets_the_guides_of_its_tools_and_finds_those_tools() {
    let (site, daemon, client) = Daemon::with_client(RULES).await;
    let of_ana = client.text("ana", "list_tool_guides", &json!({})).await;
    assert_eq!(names(&of_ana), ["scheduling", "time", "working-memory"]);
    let of_bruno = client.text("bruno", "list_tool_guides", &json!({})).await;
    assert_eq!(names(&of_bruno), ["time"]);
    let guide = client.text("ana", "get_tool_guide", &json!({"name": "scheduling"})).await;
    assert!(guide.starts_with("# Scheduled tasks\n") && guide.contains("0 9 * * MON-FRI"), "{guide}");
    let refused = client.request("get_tool_guide", &json!({"name": "scheduling"})).by("bruno");
    let refused = client.exchange(&refused).await;
    assert_eq!(refused.content(), "There is no guide `scheduling`. There are `time`.");

    let found = async |agent: &str| -> Value {
        let found = client.text(agent, "search_tools", &json!({"query": "schedule a task"})).await;
        serde_json::from_str(&found).unwrap()
    };
    let best = |found: &Value| (found["results"][0]["name"].clone(), found["results"][0]["relevance_score"].clone());
    let of_ana = found("ana").await;
    assert_eq!(best(&of_ana), (json!("schedule_task"), json!(1.0)), "{of_ana}");
    assert!(of_ana["results"][0]["parameters"]["properties"]["cron"].is_object());
    let of_bruno = found("bruno").await;
    assert!(of_bruno["results"].as_array().unwrap().iter().all(|one| one["name"] != "schedule_task"), "{of_bruno}");
    let services = client.text("ana", "search_known_services", &json!({"query": "files"})).await;
    assert_eq!(services, r#"{"results":[]}"#);
    daemon.stop(&site).await;
}
