use std::sync::Arc;

use serde_json::{Value, json};
use toolbus_core::Clock;
use toolbus_core::registry::Registry;
use toolbus_core::store::Store as _;

use super::fixture::{FakeServers, Fixture, agent, call};
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
async fn a_record_has_the_agent_the_server_and_the_time() {
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
async fn registered_servers_are_restored_after_a_restart() {
    let world = Fixture::new();
    world.register(&agent("ana"), json!({"server_name": "Time", "command": "uvx", "args": ["mcp-server-time"]})).await;
    world.register(&agent("bob"), json!({"server_name": "web", "url": "https://mcp.example.com", "type": "sse"})).await;
    let running: Vec<_> = world.fleet.servers.lock().values().cloned().collect();
    assert_eq!(world.registrar.restore().await, running);
    assert_eq!(restored(&world, rules()).await, ["Time", "web"]);
}

#[tokio::test]
async fn servers_that_the_rules_no_longer_allow_are_forgotten() {
    let world = Fixture::new();
    world.register(&agent("ana"), json!({"server_name": "Time", "command": "uvx", "args": ["mcp-server-time"]})).await;
    world.register(&agent("ana"), json!({"server_name": "web", "url": "https://mcp.example.com"})).await;
    assert_eq!(restored(&world, RegistrationRules { commands: Vec::new(), ..rules() }).await, ["web"]);
    assert_eq!(restored(&world, rules()).await, ["web"]);
}

#[tokio::test]
async fn invalid_records_are_forgotten() {
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

/// Another daemon with the same store.
fn replica(world: &Fixture, rules: RegistrationRules) -> (Registrar, Arc<FakeServers>) {
    let fleet = Arc::new(FakeServers::new(Registry::new()));
    let registrar = Registrar::new(rules, Arc::clone(&world.store) as _, true, Arc::clone(&fleet) as _, Clock::SYSTEM);
    (registrar, fleet)
}

fn names(fleet: &FakeServers) -> Vec<String> {
    fleet.servers.lock().keys().cloned().collect()
}

#[tokio::test]
async fn registrations_and_removals_reach_other_daemons() {
    let world = Fixture::new();
    let (other, fleet) = replica(&world, rules());
    let (narrow, of_narrow) = replica(&world, RegistrationRules { commands: Vec::new(), ..rules() });
    let time = json!({"server_name": "Time", "command": "uvx", "args": ["mcp-server-time"]});
    world.register(&agent("ana"), time).await;
    world.register(&agent("ana"), json!({"server_name": "web", "url": "https://mcp.example.com"})).await;
    for registrar in [&other, &narrow, &world.registrar] {
        assert_eq!(registrar.follow().await, Ok(true));
    }
    assert_eq!((names(&fleet), names(&of_narrow)), (vec!["time".to_owned(), "web".to_owned()], vec!["web".to_owned()]));
    assert_eq!(fleet.added.lock().len(), 2);
    assert_eq!(other.follow().await, Ok(true));
    assert_eq!(fleet.added.lock().len(), 2, "what has not changed goes on");
    assert_eq!(world.store.list("mcp.registered").await.unwrap(), ["time", "web"], "nothing is forgotten");

    world.register(&agent("ana"), json!({"server_name": "web", "url": "https://mcp.example.com/other"})).await;
    world.unregister(&agent("ana"), "time").await;
    for registrar in [&other, &narrow, &world.registrar] {
        assert_eq!(registrar.follow().await, Ok(true));
    }
    let web = world.fleet.servers.lock()["web"].clone();
    for fleet in [&fleet, &of_narrow, &world.fleet] {
        assert_eq!(names(fleet), ["web"]);
        assert_eq!(fleet.servers.lock()["web"], web);
    }
}

#[tokio::test]
async fn a_name_registered_through_another_daemon_is_taken() {
    let world = Fixture::new();
    world.register(&agent("ana"), json!({"server_name": "web", "url": "https://mcp.example.com"})).await;
    let before = world.store.get("mcp.registered", "web").await.unwrap();
    let (other, fleet) = replica(&world, rules());
    let other = Arc::new(other);
    let tools = crate::model_tools::tools(&world.access, fleet.clone(), world.invoker.clone(), Some(other));
    let register = tools.iter().find(|tool| &*tool.descriptor.name == "mcp_register_server").unwrap();
    let arguments = json!({"server_name": "web", "url": "https://mcp.example.com/other"});
    let refused = Arc::clone(&register.executor).execute_boxed(call(&agent("bob"), "mcp_register_server", arguments));
    assert!(refused.await.unwrap().is_error);
    assert_eq!(world.store.get("mcp.registered", "web").await.unwrap(), before);
}

#[tokio::test]
async fn servers_are_written_again_into_a_store_that_has_lost_them() {
    let world = Fixture::new();
    world.register(&agent("ana"), json!({"server_name": "web", "url": "https://mcp.example.com"})).await;
    let before = world.store.get("mcp.registered", "web").await.unwrap();
    world.store.delete("mcp.registered", "web").await.unwrap();
    world.registrar.write_again().await.unwrap();
    assert_eq!(world.store.get("mcp.registered", "web").await.unwrap(), before);
    assert_eq!(world.registrar.follow().await, Ok(true));
    assert_eq!(names(&world.fleet), ["web"]);
}
