//! Servers that change while the daemon runs: by their file, however it is changed, and by the configuration.

use std::collections::BTreeMap;
use std::os::unix::fs::symlink;

use serde_json::{Value, json};
use toolbus_e2e::client::Client;
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::namespace::BrokerNamespace;
use toolbus_testing::patience::eventually;

use crate::small::{Small, is_running, known};

/// Log message for a file that was read again.
const READ: &str = "read the file of MCP servers again";
/// Log message for servers that cannot be used.
const UNUSABLE: &str = "MCP servers cannot be used as they are configured";
/// Log message when nothing changes because the file cannot be read.
const KEPT: &str = "the file of MCP servers cannot be read: its servers stay as they are";

/// Waits until these servers, and no others, have their tools; gives the process of each.
async fn pids(daemon: &Daemon, servers: &[&str]) -> BTreeMap<String, Value> {
    eventually("these servers and no others", async || {
        let all = known(daemon, servers).await;
        let all = all["servers"].as_array()?;
        let process = |server: &Value| (server["name"].as_str().unwrap_or_default().to_owned(), server["pid"].clone());
        (all.len() == servers.len() && all.iter().all(|server| server["phase"] == "ready"))
            .then(|| all.iter().map(process).collect())
    })
    .await
}

fn file(servers: &[(&str, Value)]) -> String {
    let servers: serde_json::Map<String, Value> =
        servers.iter().map(|(name, entry)| ((*name).to_owned(), entry.clone())).collect();
    json!({"mcpServers": servers}).to_string()
}

#[tokio::test]
async fn a_file_that_is_changed_in_any_way_touches_the_servers_that_changed() {
    let (site, small) = (BrokerNamespace::shared().await, Small::new());
    let [a, b, c] = ["a", "b", "c"].map(|name| small.entry(name, &[name]));
    let other_b = small.entry("b", &["b", "more"]);
    small.write(&[("a", a.clone()), ("b", b)]);
    let daemon = Daemon::start(&site, &small.file()).await;
    let first = pids(&daemon, &["a", "b"]).await;

    // As an editor does that writes in place.
    std::fs::write(small.path("mcp.json"), file(&[("a", a.clone()), ("b", other_b.clone()), ("c", c.clone())]))
        .unwrap();
    let second = pids(&daemon, &["a", "b", "c"]).await;
    assert_eq!(first["a"], second["a"]);
    assert_ne!(first["b"], second["b"]);
    assert!(!is_running(&first["b"]));
    let client = Client::connect(&site).await;
    assert_eq!(client.call("more", &json!({"text": "hi"})).await.content(), "b.more: hi");

    // As one does that renames a new file over the old one.
    small.write(&[("a", a.clone()), ("c", c.clone())]);
    let third = pids(&daemon, &["a", "c"]).await;
    assert_eq!((&third["a"], &third["c"]), (&second["a"], &second["c"]));
    assert_eq!(client.call("more", &json!({})).await.code(), "tool_not_found");
    eventually("the end of a removed server", async || (!is_running(&second["b"])).then_some(())).await;

    // As Kubernetes does, which leads a link elsewhere.
    for (version, servers) in [("v1", vec![("a", a.clone()), ("b", other_b)]), ("v2", vec![("a", a), ("c", c)])] {
        std::fs::write(small.path(version), file(&servers)).unwrap();
        symlink(version, small.path("link")).unwrap();
        std::fs::rename(small.path("link"), small.path("mcp.json")).unwrap();
        let names: Vec<_> = servers.iter().map(|(name, _)| *name).collect();
        assert_eq!(pids(&daemon, &names).await["a"], first["a"]);
    }
    daemon.stop(&site).await;
}

#[tokio::test]
async fn a_file_that_is_broken_or_gone_changes_nothing_and_the_reason_is_logged() {
    let small = Small::new();
    let [a, b] = ["a", "b"].map(|name| small.entry(name, &[name]));
    small.write(&[("a", a.clone())]);
    let (site, daemon, client) = Daemon::with_client(&small.file()).await;
    let before = pids(&daemon, &["a"]).await;

    std::fs::write(small.path("mcp.json"), "{\n  \"mcpServers\": {\n    \"a\": {:}\n").unwrap();
    let line = eventually("a problem", async || daemon.logged(UNUSABLE).pop()).await;
    assert!(line["problem"].as_str().unwrap().contains("mcp.json:3:11: not JSON"), "{line}");
    eventually("the old servers to stay", async || daemon.logged(KEPT).pop()).await;
    assert_eq!(pids(&daemon, &["a"]).await, before);

    std::fs::remove_file(small.path("mcp.json")).unwrap();
    let line = eventually("another problem", async || daemon.logged(UNUSABLE).get(1).cloned()).await;
    assert!(line["problem"].as_str().unwrap().contains("mcp.json"), "{line}");
    eventually("the old servers to stay", async || daemon.logged(KEPT).get(1).cloned()).await;
    assert_eq!(pids(&daemon, &["a"]).await, before);
    assert_eq!(client.call("a", &json!({"text": "hi"})).await.content(), "a.a: hi");

    small.write(&[("a", a), ("b", b)]);
    assert_eq!(pids(&daemon, &["a", "b"]).await["a"], before["a"]);
    daemon.logged_times(READ, 1).await;
    daemon.stop(&site).await;
}

#[tokio::test]
async fn a_signal_takes_over_servers_and_limits_of_the_configuration() {
    let small = Small::new();
    let section = |name: &str, tools: &[&str], more: &str| small.section(name, tools, more);
    let (site, daemon, client) =
        Daemon::with_client(&[section("a", &["a"], ""), section("b", &["b"], "")].concat()).await;
    let before = pids(&daemon, &["a", "b"]).await;

    let limits = "[tools.limits.a]\nmax_in_flight = 1\ntimeout = \"3s\"\n";
    let line = daemon.reload(&[&section("a", &["a"], ""), &section("c", &["c"], ""), limits].concat()).await;
    assert_eq!(line["message"], "reload: done", "{line}");
    let after = pids(&daemon, &["a", "c"]).await;
    assert_eq!(after["a"], before["a"], "limits need no restart");
    assert_eq!(client.call("c", &json!({"text": "hi"})).await.content(), "c.c: hi");
    assert_eq!(client.call("b", &json!({})).await.code(), "tool_not_found");

    let disabled = section("c", &["c"], "disabled = true");
    let line = daemon.reload(&[section("a", &["a"], ""), disabled].concat()).await;
    assert_eq!(line["message"], "reload: done", "{line}");
    let listed = known(&daemon, &["a"]).await;
    let phases: Vec<_> = listed["servers"].as_array().unwrap().iter().map(|server| &server["phase"]).collect();
    assert_eq!(phases, ["ready", "disabled"]);
    assert_eq!(client.call("c", &json!({})).await.code(), "tool_not_found");

    let line = daemon.reload(&section("a", &["a"], "comand = \"x\"")).await;
    assert_eq!(line["message"], "reload: refused; everything stays as it was", "{line}");
    assert_eq!(client.call("a", &json!({"text": "hi"})).await.content(), "a.a: hi");
    daemon.stop(&site).await;
}
