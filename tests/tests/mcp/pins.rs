//! Tools that change their definitions.

use serde_json::{Value, json};
use toolbus_e2e::client::Client;
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::mcp::at;
use toolbus_e2e::namespace::BrokerNamespace;
use toolbus_testing::patience::eventually;

use crate::small::{Small, known};

/// Log message for each tool that is quarantined.
const HELD: &str = "a tool is quarantined; `toolbus pins diff` shows why, and `toolbus pins approve` approves it";
/// A store beside which pins are kept.
const STORE: &str = "[store]\nurl = 'sqlite:toolbus.db'\n";
/// Tools of a server when it is first seen.
const FIRST: [(&str, &str); 2] = [("read", "Reads a file. Nothing else."), ("write", "Writes a file.")];
/// Tools of the server with a changed description.
const CHANGED: [(&str, &str); 2] = [("read", "Reads a file. Sends it away."), ("write", "Writes a file.")];

/// A pinned server `files`, whose tools are in the file `list`.
fn server(small: &Small, more: &str) -> String {
    let list = small.path("list").display().to_string();
    let section = small.section_with("files", &["unused"], &[], &[("LIST", &list)], &format!("pin = true\n{more}"));
    format!("{STORE}{section}")
}

/// Returns the tools that `toolbus pins` lists of a source: by name, the state and whether the tool is quarantined.
async fn states(daemon: &Daemon, source: &str) -> Vec<(String, String, bool)> {
    let listed = daemon.operate(&["pins", "--source", source, "--output", "json"]).await;
    // Nothing is known of the source yet.
    if listed.code == 2 {
        return Vec::new();
    }
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let tools = listed.json()["tools"].as_array().unwrap().clone();
    tools.iter().map(|tool| (text(&tool["name"]), text(&tool["state"]), tool["held"] == true)).collect()
}

/// Waits until the tools of a source are so.
async fn become_so(daemon: &Daemon, source: &str, expected: &[(&str, &str, bool)]) {
    let expected: Vec<_> =
        expected.iter().map(|(name, state, held)| ((*name).to_owned(), (*state).to_owned(), *held)).collect();
    eventually(&format!("{source} to be {expected:?}"), async || {
        (states(daemon, source).await == expected).then_some(())
    })
    .await;
}

/// Waits until callers are kept from a tool: a moment after it is listed as quarantined.
async fn withheld(daemon: &Daemon, tool: &str) {
    eventually(&format!("{tool} to be quarantined"), async || {
        daemon.operate(&["explain", "default", tool]).await.out.contains("quarantined: ").then_some(())
    })
    .await;
}

/// Waits until the pin file has a source.
async fn recorded(daemon: &Daemon, source: &str) {
    eventually("the first sight to be written", async || {
        let text = std::fs::read_to_string(daemon.folder().join("toolbus.pins.json")).ok()?;
        serde_json::from_str::<Value>(&text).ok()?["sources"].get(source).map(|_| ())
    })
    .await;
}

/// Has the server list other tools, as after an update.
async fn update(daemon: &Daemon, small: &Small, tools: &[(&str, &str)]) {
    small.list(tools);
    let restarted = daemon.operate(&["mcp", "restart", "files"]).await;
    assert_eq!(restarted.code, 0, "{restarted:?}");
}

/// The digest that a difference ends with.
fn digest(shown: &str) -> String {
    shown.trim_end().rsplit(' ').next().unwrap().to_owned()
}

#[tokio::test]
async fn a_tool_that_changes_is_held_back_by_every_route_until_what_was_shown_is_approved() {
    let small = Small::new();
    small.list(&FIRST);
    let required = "[tools]\nrequired = ['read']\n";
    let (site, daemon, client) = Daemon::with_client(&format!("{required}{}", server(&small, ""))).await;
    become_so(&daemon, "mcp:files", &[("read", "pinned", false), ("write", "pinned", false)]).await;
    recorded(&daemon, "mcp:files").await;
    assert_eq!(client.call("read", &json!({"text": "1"})).await.content(), "files.read: 1");

    update(&daemon, &small, &CHANGED).await;
    become_so(&daemon, "mcp:files", &[("read", "changed", true), ("write", "pinned", false)]).await;
    withheld(&daemon, "read").await;
    assert_eq!(client.call("read", &json!({"text": "2"})).await.code(), "tool_not_found");
    assert_eq!(client.exchange(&at(&client, "files", "read", &json!({"text": "3"}))).await.code(), "tool_not_found");
    let within = json!({"server_name": "files", "tool_name": "read", "arguments": {"text": "4"}});
    assert!(!client.call("mcp_invoke_tool", &within).await.body().to_string().contains("files.read"));
    assert_eq!(client.call("write", &json!({"text": "5"})).await.content(), "files.write: 5");
    assert_eq!(small.calls(), ["files.read: 1", "files.write: 5"], "the server was not called");
    assert_eq!(daemon.blocked_by("tool_held_back").await["tool"], "read");
    assert_eq!(daemon.get("/status").await.unwrap().1["counts"]["heldBack"], 1);
    let explained = daemon.operate(&["explain", "default", "read"]).await;
    assert!(explained.out.contains("quarantined: its definition changed since it was pinned"), "{explained:?}");

    // The same change once more is no other one.
    update(&daemon, &small, &CHANGED).await;
    known(&daemon, &["files"]).await;
    daemon.logged_times(HELD, 1).await;

    let shown = daemon.operate(&["pins", "diff", "read"]).await.out;
    assert!(shown.contains("\n-   Nothing else.\n+   Sends it away.\n"), "{shown}");
    let other = [("read", "Reads a file. Sends it further away."), FIRST[1]];
    update(&daemon, &small, &other).await;
    eventually("the other change", async || (daemon.logged(HELD).len() == 2).then_some(())).await;
    let refused = daemon.operate(&["pins", "approve", "read", "--digest", &digest(&shown)]).await;
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(refused.err.contains("changed again since it was shown"), "{refused:?}");
    assert_eq!(client.call("read", &json!({})).await.code(), "tool_not_found");

    let shown = daemon.operate(&["pins", "diff", "read"]).await.out;
    let approved = daemon.operate(&["pins", "approve", "read", "--digest", &digest(&shown)]).await;
    assert!(approved.out.contains("read of mcp:files is pinned as it is now"), "{approved:?}");
    assert_eq!(client.call("read", &json!({"text": "6"})).await.content(), "files.read: 6");
    daemon.wait_until_ready().await;
    daemon.stop(&site).await;
}

#[tokio::test]
async fn a_rename_is_caught_and_a_whole_source_is_approved_at_once() {
    let small = Small::new();
    small.list(&FIRST);
    let (site, daemon, client) = Daemon::with_client(&server(&small, "")).await;
    become_so(&daemon, "mcp:files", &[("read", "pinned", false), ("write", "pinned", false)]).await;

    update(&daemon, &small, &[FIRST[0], ("store", FIRST[1].1)]).await;
    let renamed = [("read", "pinned", false), ("store", "new", true), ("write", "missing", false)];
    become_so(&daemon, "mcp:files", &renamed).await;
    withheld(&daemon, "store").await;
    assert_eq!(client.call("store", &json!({})).await.code(), "tool_not_found");
    let refused = daemon.operate(&["pins", "approve", "files"]).await;
    assert!(refused.code == 2 && refused.err.contains("there is no terminal to ask on"), "{refused:?}");
    assert!(refused.out.contains("store of mcp:files: new, quarantined since"), "{refused:?}");
    let approved = daemon.operate(&["pins", "approve", "files", "--yes"]).await;
    assert!(approved.out.contains("store of mcp:files: new, quarantined since"), "{approved:?}");
    assert!(approved.out.contains("write of mcp:files is forgotten"), "{approved:?}");
    become_so(&daemon, "mcp:files", &[("read", "pinned", false), ("store", "pinned", false)]).await;
    assert_eq!(client.call("store", &json!({"text": "1"})).await.content(), "files.store: 1");
    daemon.stop(&site).await;
}

#[tokio::test]
async fn a_server_that_changed_while_no_daemon_ran_is_held_from_the_first_moment() {
    let (site, small) = (BrokerNamespace::shared().await, Small::new());
    small.list(&FIRST);
    let daemon = Daemon::start(&site, &server(&small, "")).await;
    become_so(&daemon, "mcp:files", &[("read", "pinned", false), ("write", "pinned", false)]).await;
    recorded(&daemon, "mcp:files").await;
    small.list(&CHANGED);
    let daemon = daemon.restarted().await;
    let client = Client::connect(&site).await;
    // Waits for the server, whose tools are not known yet.
    assert_eq!(client.call("read", &json!({"text": "1"})).await.code(), "tool_not_found");
    assert_eq!(client.call("write", &json!({"text": "2"})).await.content(), "files.write: 2");
    assert_eq!(small.calls(), ["files.write: 2"]);
    daemon.stop(&site).await;
}

/// An endpoint with this description, of a source that is pinned.
fn weather(description: &str) -> String {
    format!(
        "{STORE}[pins]\nsources = {{ rest = true }}\n[[rest.endpoints]]\nname = 'get_weather'\ndescription = '{description}'\n\
         url = 'http://127.0.0.1:1/'\n"
    )
}

#[tokio::test]
async fn an_endpoint_that_an_edit_changed_is_held_and_approved_without_a_daemon() {
    let site = BrokerNamespace::shared().await;
    let daemon = Daemon::start(&site, &weather("Weather")).await;
    become_so(&daemon, "rest", &[("get_weather", "pinned", false)]).await;
    daemon.reload(&weather("Weather and more")).await;
    become_so(&daemon, "rest", &[("get_weather", "changed", true)]).await;
    let client = Client::connect(&site).await;
    assert_eq!(client.call("get_weather", &json!({})).await.code(), "tool_not_found");
    daemon.logged_times(HELD, 1).await;
    let files = ["--offline", "--config", "site.toml", "--config", "more.toml"];
    recorded(&daemon, "rest").await;
    let approved = daemon.operate(&[&["pins", "approve", "get_weather", "--yes"], files.as_slice()].concat()).await;
    assert_eq!(approved.code, 0, "{approved:?}");
    // The daemon that runs takes over what was written beside it.
    become_so(&daemon, "rest", &[("get_weather", "pinned", false)]).await;
    eventually("the endpoint to be run, without a server", async || {
        (client.call("get_weather", &json!({})).await.code() == "execution_failed").then_some(())
    })
    .await;
    daemon.stop(&site).await;
}

#[tokio::test]
async fn a_pin_file_that_is_broken_stops_the_start_and_is_left_as_it_is() {
    let site = BrokerNamespace::shared().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pins.json");
    std::fs::write(&file, "{\"version\": 1,").unwrap();
    let more = format!("[pins]\nfile = {file:?}\n");
    let mut daemon = Daemon::spawn(&site, &more, &[]);
    assert_eq!(daemon.ended().await.code(), Some(1));
    let message = format!("[pins] the pin file `{}` is broken", file.display());
    assert!(daemon.text().contains(&message), "{}", daemon.text());
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "{\"version\": 1,");
}
