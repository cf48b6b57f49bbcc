//! Messages that announce servers to agents.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use toolbus_core::caller::{AgentName, Identity, Sidecar};
use toolbus_core::policy::{AgentPolicy, Policy};
use toolbus_core::store::Store;
use toolbus_protocol::{McpServersIndexed, message_type, topic};
use toolbus_store::MemoryStore;
use toolbus_testing::patience::eventually;

use super::fixture::{Fixture, Request, policy};

/// The servers and tools of an index, and the servers that are gone.
fn index_of(body: &Value) -> (Vec<(String, Vec<String>)>, Vec<String>) {
    let index: McpServersIndexed = serde_json::from_value(body.clone()).unwrap();
    let servers = index.servers.into_iter().map(|server| (server.server_name, server.tool_names)).collect();
    (servers, index.removed_servers)
}

fn server(name: &str, tools: &[&str]) -> (String, Vec<String>) {
    (name.to_owned(), tools.iter().map(|tool| (*tool).to_owned()).collect())
}

#[tokio::test]
async fn an_index_looks_as_peers_expect_it() {
    let world = Fixture::new();
    let mut ana = world.listen(&topic::mcp_servers("ana"));
    assert_eq!(ana.next().await.body, json!({"servers": [], "removedServers": []}));
    world.publish("Files", &["read_file", "list_directory"]);
    let got = ana.next().await;
    insta::assert_snapshot!(got.body, @r#"{"removedServers":[],"servers":[{"displayName":null,"serverName":"Files","summary":"A file system.","toolCount":2,"toolNames":["list_directory","read_file"]}]}"#);
    assert_eq!(got.envelope.message_type, message_type::MCP_SERVERS_INDEXED);
    assert_eq!(got.envelope.source.as_deref(), Some("toolbus"));
    assert_eq!(got.envelope.destination.as_deref(), Some("ana"));
    assert_eq!(got.properties.header("rb-rb-content-trust"), Some("system"));
    assert_eq!((&*got.envelope.correlation_id, &*got.envelope.reply_to), ("", ""));
    world.end().await;
}

#[tokio::test]
async fn an_agent_is_notified_of_usable_servers_alone() {
    let world = Fixture::new();
    let mut agents = ["ana", "bob", "eve"].map(|agent| world.listen(&topic::mcp_servers(agent)));
    for agent in &mut agents {
        assert_eq!(index_of(&agent.next().await.body), (vec![], vec![]), "at the start there is nothing");
    }
    world.publish("files", &["read_file", "write_file"]);
    world.publish("mail", &["send"]);
    let [mut ana, mut bob, mut eve] = agents;
    let mut seen = Vec::new();
    while seen.len() < 2 {
        seen.extend(index_of(&ana.next().await.body).0);
    }
    assert_eq!(seen, [server("files", &["read_file", "write_file"]), server("mail", &["send"])]);
    assert_eq!(index_of(&bob.next().await.body), (vec![server("files", &["read_file"])], vec![]));
    world.request_index("eve", "{}").await;
    assert_eq!(index_of(&eve.next().await.body), (vec![], vec![]), "only the requested index");
    assert!(bob.is_empty() && eve.is_empty());
    world.end().await;
}

#[tokio::test]
async fn changes_are_published_as_differences() {
    let world = Fixture::new();
    let mut ana = world.listen(&topic::mcp_servers("ana"));
    ana.next().await;
    world.publish("files", &["read", "write"]);
    assert_eq!(index_of(&ana.next().await.body).0, [server("files", &["read", "write"])]);
    world.publish("mail", &["send"]);
    assert_eq!(index_of(&ana.next().await.body), (vec![server("mail", &["send"])], vec![]));
    world.publish("mail", &["send", "receive"]);
    assert_eq!(index_of(&ana.next().await.body), (vec![server("mail", &["receive", "send"])], vec![]));
    world.publish("files", &[]);
    assert_eq!(index_of(&ana.next().await.body), (vec![], vec!["files".to_owned()]));
    world.end().await;
}

#[tokio::test]
async fn a_request_at_the_start_gets_an_index_and_later_changes() {
    let world = Fixture::new();
    let mut carl = world.listen(&topic::mcp_servers("carl"));
    // No agent `carl` is configured; the message is older than the daemon, by its timestamp.
    world.request_index("carl", r#"{"serverName":null}"#).await;
    assert_eq!(index_of(&carl.next().await.body), (vec![], vec![]), "he waits for a message, be it empty");
    world.publish("files", &["read"]);
    assert_eq!(index_of(&carl.next().await.body), (vec![server("files", &["read"])], vec![]));
    world.end().await;
}

#[tokio::test]
async fn a_request_gets_the_whole_index_and_refreshes_servers_once() {
    let world = Fixture::new();
    let mut ana = world.listen(&topic::mcp_servers("ana"));
    ana.next().await;
    world.publish("files", &["read"]);
    let everything = index_of(&ana.next().await.body);
    for body in ["{}", r#"{"ServerName":"FILES"}"#, "{}", r#"{"serverName":"files"}"#, r#"{"serverName":"a\u0000b"}"#] {
        world.request_index("ana", body).await;
        assert_eq!(index_of(&ana.next().await.body), everything, "{body}");
    }
    assert_eq!(*world.fleet.refreshed.lock(), ["Lazy", "files", "stuck"]);
    world.end().await;
}

#[tokio::test]
async fn no_server_is_refreshed_for_an_agent_that_may_not_use_it() {
    let world = Fixture::new();
    let mut agents = ["eve", "bob"].map(|agent| world.listen(&topic::mcp_servers(agent)));
    for agent in &mut agents {
        agent.next().await;
    }
    let [mut eve, mut bob] = agents;
    world.publish("files", &["read"]);
    bob.next().await;
    for body in ["{}", r#"{"serverName":"files"}"#] {
        world.request_index("eve", body).await;
        eve.next().await;
    }
    for name in ["none", "Lazy", "nobody", "LAZY"] {
        world.request_index("bob", &format!(r#"{{"serverName":"{name}"}}"#)).await;
        bob.next().await;
    }
    assert_eq!(*world.fleet.refreshed.lock(), ["Lazy"]);
    world.end().await;
}

#[tokio::test]
async fn an_unreadable_request_is_dead_lettered() {
    let world = Fixture::new();
    let mut dead = world.dead_letters("bus7.mcp-refresh");
    for (agent, body) in [("ana", "nonsense"), ("ana", "[]"), ("not an agent", "{}")] {
        world.request_index(agent, body).await;
    }
    for _ in 0..3 {
        assert_eq!(dead.next_raw().await.header("rb-dead-reason"), Some("malformed_request"));
    }
    assert!(world.fleet.refreshed.lock().is_empty());
    world.end().await;
}

#[tokio::test]
async fn other_requests_on_the_topic_are_dead_lettered_and_indexes_settled() {
    let world = Fixture::new();
    let mut dead = world.dead_letters("bus7.mcp-refresh");
    let request = |message_type| Request {
        agent: "ana",
        topic: topic::MCP_REFRESH,
        message_type,
        reply_to: None,
        body: "{\"servers\":[]}",
    };
    world.request(request(message_type::MCP_SERVERS_INDEXED)).await;
    world.request(request(message_type::MCP_REGISTER_SERVER_REQUEST)).await;
    assert_eq!(dead.next_raw().await.header("rb-dead-reason"), Some("unknown_type"));
    assert!(dead.is_empty(), "an index was settled");
    world.end().await;
}

#[tokio::test]
async fn a_thousand_agents_are_notified_quickly() {
    let agents: Vec<AgentName> = (0..1_000).map(|n| AgentName::parse(&format!("agent{n}")).unwrap()).collect();
    let sections = agents.iter().map(|agent| (agent.clone(), AgentPolicy::default()));
    let world = Fixture::with(Policy { agents: sections.collect(), ..Policy::default() }, false);
    let mut all = world.listen("tool.meta.mcp.*");
    for _ in 0..agents.len() {
        all.next().await;
    }
    let names: Vec<String> = (0..200).map(|n| format!("tool{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let begun = Instant::now();
    world.publish("files", &names);
    let mut notified = BTreeSet::new();
    while notified.len() < agents.len() {
        let got = all.next().await;
        assert_eq!(got.body["servers"][0]["toolCount"], 200);
        assert!(notified.insert(got.envelope.destination.unwrap()), "notified once");
    }
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(30), "{took:?}");
    world.end().await;
}

#[tokio::test]
async fn servers_with_a_tool_of_one_name_are_both_listed_with_it() {
    let world = Fixture::new();
    world.publish("a", &["search"]);
    world.publish("b", &["search"]);
    world.access.refresh();
    let mut carl = world.listen(&topic::mcp_servers("carl"));
    world.request_index("carl", "{}").await;
    assert_eq!(index_of(&carl.next().await.body).0, [server("a", &["search"]), server("b", &["search"])]);
    world.end().await;
}

#[tokio::test]
async fn the_agent_of_a_sidecar_is_notified_at_the_start() {
    let (ana, topic) = (AgentName::parse("ana").unwrap(), "tool.invoke.agent.ana".to_owned());
    let identity = Identity { sidecar: Some(Sidecar { agent: ana, topic }), ..Identity::default() };
    let world = Fixture::of(identity, Policy::default(), false, Arc::new(MemoryStore::default()), &[]);
    let mut ana = world.listen(&topic::mcp_servers("ana"));
    assert_eq!(index_of(&ana.next().await.body), (vec![], vec![]));
    world.publish("files", &["read_file"]);
    assert_eq!(index_of(&ana.next().await.body), (vec![server("files", &["read_file"])], vec![]));
    world.end().await;
}

#[tokio::test]
async fn a_requester_is_notified_again_after_a_restart_and_no_other_agent() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let start = || Fixture::of(Identity::default(), Policy::default(), false, Arc::clone(&store), &[]);
    let world = start();
    let mut zoe = world.listen(&topic::mcp_servers("zoe"));
    world.request_index("zoe", "{}").await;
    zoe.next().await;
    eventually("the requester to be stored", async || store.get("mcp.asked", "agents").await.unwrap()).await;
    world.end().await;

    let world = start();
    let [mut zoe, mut yan] = ["zoe", "yan"].map(|agent| world.listen(&topic::mcp_servers(agent)));
    assert_eq!(index_of(&zoe.next().await.body), (vec![], vec![]));
    world.publish("files", &["read_file"]);
    assert_eq!(index_of(&zoe.next().await.body), (vec![server("files", &["read_file"])], vec![]));
    assert!(yan.is_empty());
    world.end().await;
}

#[tokio::test]
async fn a_lazy_server_is_announced_once_and_then_its_tools() {
    let world = Fixture::of(Identity::default(), policy(), false, Arc::new(MemoryStore::default()), &["Lazy"]);
    let [mut ana, mut eve] = ["ana", "eve"].map(|agent| world.listen(&topic::mcp_servers(agent)));
    insta::assert_snapshot!(ana.next().await.body, @r#"{"removedServers":[],"servers":[{"displayName":null,"serverName":"Lazy","summary":"Starts on first use: its tools are not known yet. mcp_get_service_details starts it.","toolCount":0,"toolNames":[]}]}"#);
    assert_eq!(index_of(&eve.next().await.body), (vec![], vec![]), "she may use nothing");
    world.publish("files", &["read_file"]);
    assert_eq!(
        index_of(&ana.next().await.body),
        (vec![server("files", &["read_file"])], vec![]),
        "and not the lazy one again"
    );
    world.publish("Lazy", &["dream"]);
    assert_eq!(index_of(&ana.next().await.body), (vec![server("Lazy", &["dream"])], vec![]));
    world.end().await;
}

#[tokio::test]
async fn servers_that_were_removed_while_no_daemon_ran_are_announced_as_removed_at_the_next_start() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let start = |asleep: &[&str]| Fixture::of(Identity::default(), policy(), false, Arc::clone(&store), asleep);
    let world = start(&["Lazy"]);
    let mut ana = world.listen(&topic::mcp_servers("ana"));
    ana.next().await;
    for (server, tool) in [("Files", "read"), ("mail", "send")] {
        world.publish(server, &[tool]);
        ana.next().await;
    }
    let kept = async |agent: &'static str, expected: Value| {
        eventually("the names are kept", async || {
            let kept = store.get("mcp.told", agent).await.unwrap()?;
            (serde_json::from_slice::<Value>(&kept).unwrap() == expected).then_some(())
        })
        .await;
    };
    kept("ana", json!(["Files", "Lazy", "mail"])).await;
    kept("bob", json!(["Files", "Lazy"])).await;
    world.end().await;

    // The lazy one is still configured, and not shown to her yet.
    let world = start(&[]);
    let [mut ana, mut bob] = ["ana", "bob"].map(|agent| world.listen(&topic::mcp_servers(agent)));
    assert_eq!(index_of(&ana.next().await.body), (vec![], vec!["Files".to_owned(), "mail".to_owned()]));
    assert_eq!(
        index_of(&bob.next().await.body),
        (vec![], vec!["Files".to_owned()]),
        "no name of what it could not use"
    );
    kept("ana", json!(["Lazy"])).await;
    world.end().await;
}
