use std::sync::Arc;

use serde_json::{Value, json};
use toolbus_core::Clock;
use toolbus_core::registry::Registry;
use toolbus_core::store::Store as _;

use super::fixture::{FakeServers, Fixture, agent};
use crate::model_tools::rules::tests::rules;
use crate::model_tools::{Registrar, RegistrationRules};

async fn put(world: &Fixture, key: &str, value: Value) {
    world.store.put("mcp.registered", key, value.to_string().into_bytes()).await.unwrap();
}

/// The names that another daemon with the same store would restore.
async fn restored(world: &Fixture, rules: RegistrationRules) -> Vec<String> {
    let registrar = Registrar::new(
        rules,
        Arc::clone(&world.store) as _,
        false,
        Arc::new(FakeServers::new(Registry::new())),
        Clock::SYSTEM,
    );
    registrar.restore().await.iter().map(|spec| spec.name.to_string()).collect()
}

#[tokio::test]
async fn what_is_stored_says_who_registered_what_and_when() {
    let world = Fixture::new();
    world.register(&agent("ana"), json!({"server_name": "Time", "command": "uvx", "args": ["mcp-server-time"]})).await;
    world.register(&agent("ana"), json!({"server_name": "web", "url": "https://mcp.example.com", "type": "sse"})).await;
    for key in ["time", "web"] {
        let stored = world.store.get("mcp.registered", key).await.unwrap().unwrap();
        let mut stored: Value = serde_json::from_slice(&stored).unwrap();
        assert!(stored["time"].as_u64().unwrap() > 1_700_000_000);
        stored["time"] = json!(0);
        match key {
            "time" => {
                insta::assert_snapshot!(stored, @r#"{"agent":"ana","args":["mcp-server-time"],"command":"uvx","server":"Time","share":"ana","time":0}"#)
            }
            _ => {
                insta::assert_snapshot!(stored, @r#"{"agent":"ana","server":"web","share":"ana","time":0,"type":"sse","url":"https://mcp.example.com"}"#)
            }
        }
    }
}

#[tokio::test]
async fn what_was_registered_is_there_again_after_a_restart() {
    let world = Fixture::new();
    world.register(&agent("ana"), json!({"server_name": "Time", "command": "uvx", "args": ["mcp-server-time"]})).await;
    world.register(&agent("bob"), json!({"server_name": "web", "url": "https://mcp.example.com", "type": "sse"})).await;
    let running: Vec<_> = world.fleet.servers.lock().values().cloned().collect();
    assert_eq!(world.registrar.restore().await, running);
    assert_eq!(restored(&world, rules()).await, ["Time", "web"]);
}

#[tokio::test]
async fn what_the_rules_do_not_allow_any_more_is_forgotten() {
    let world = Fixture::new();
    world.register(&agent("ana"), json!({"server_name": "Time", "command": "uvx", "args": ["mcp-server-time"]})).await;
    world.register(&agent("ana"), json!({"server_name": "web", "url": "https://mcp.example.com"})).await;
    assert_eq!(restored(&world, RegistrationRules { commands: Vec::new(), ..rules() }).await, ["web"]);
    assert_eq!(restored(&world, rules()).await, ["web"]);
}

#[tokio::test]
async fn records_that_are_none_are_forgotten() {
    let world = Fixture::new();
    let record = |server: &str, command: &str| json!({"server": server, "command": command, "args": [], "agent": "ana", "share": "ana", "time": 1});
    put(&world, "good", record("Good", "true")).await;
    put(&world, "evil", record("evil", "sh")).await;
    put(&world, "other", record("another", "true")).await;
    put(&world, "files", record("files", "true")).await;
    put(&world, "odd name", record("odd name", "true")).await;
    put(&world, "broken", json!("nonsense")).await;
    assert_eq!(restored(&world, rules()).await, ["Good"]);
    assert_eq!(world.store.list("mcp.registered").await.unwrap(), ["good"]);
}
