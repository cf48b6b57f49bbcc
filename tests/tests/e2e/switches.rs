//! `toolbus disable` and `enable` against a running daemon, by its socket.

use serde_json::{Value, json};
use toolbus_e2e::client::Client;
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::namespace::BrokerNamespace;

const RULES: &str = "[tools]\necho = true\n[store]\nurl = \"sqlite:toolbus.db\"\n[identity]\ntrust_headers = true\n\
                     [agents.ana]\n[agents.bruno]\n";

/// The code of a call by an agent; `ok` when it was run.
async fn outcome(client: &Client, agent: &str, tool: &str) -> String {
    let arguments = if tool == "echo" { json!({"text": "x"}) } else { json!({}) };
    let reply = client.exchange(&client.request(tool, &arguments).by(agent)).await;
    if reply.code().is_empty() { "ok".to_owned() } else { reply.code() }
}

async fn operated(daemon: &Daemon, arguments: &[&str]) -> String {
    let run = daemon.operate(arguments).await;
    assert_eq!(run.code, 0, "{run:?}");
    run.out.trim().to_owned()
}

#[tokio::test]
async fn a_disabled_tool_agent_or_source_is_refused_from_the_next_call_until_enabled() {
    let (site, daemon, client) = Daemon::with_client(RULES).await;
    let calls = [("ana", "echo"), ("ana", "current_time"), ("bruno", "echo")];
    for (kind, name, expected) in [
        ("tool", "echo", ["tool_not_found", "ok", "tool_not_found"]),
        ("source", "time", ["ok", "tool_not_found", "ok"]),
        ("agent", "ana", ["tool_not_found", "tool_not_found", "ok"]),
        ("agent", "default", ["ok", "ok", "ok"]),
    ] {
        assert_eq!(operated(&daemon, &["disable", kind, name]).await, format!("{kind} {name} is switched off"));
        for ((agent, tool), expected) in calls.into_iter().zip(expected) {
            assert_eq!(outcome(&client, agent, tool).await, expected, "{kind} {name}: {agent} calls {tool}");
        }
        assert_eq!(operated(&daemon, &["enable", kind, name]).await, format!("{kind} {name} is switched on again"));
        for (agent, tool) in calls {
            assert_eq!(outcome(&client, agent, tool).await, "ok", "{kind} {name}: {agent} calls {tool}");
        }
    }
    daemon.stop(&site).await;
}

#[tokio::test]
async fn disabled_tools_and_agents_stay_disabled_over_a_restart_and_are_shown() {
    let site = BrokerNamespace::shared().await;
    let daemon = Daemon::start(&site, RULES).await;
    operated(&daemon, &["disable", "tool", "echo"]).await;
    operated(&daemon, &["disable", "agent", "bruno"]).await;
    let daemon = daemon.restarted().await;
    let client = Client::connect(&site).await;
    assert_eq!(outcome(&client, "ana", "echo").await, "tool_not_found");
    assert_eq!(outcome(&client, "ana", "current_time").await, "ok");
    assert_eq!(outcome(&client, "bruno", "current_time").await, "tool_not_found");
    let explained = daemon.operate(&["explain", "ana", "echo", "text=x"]).await;
    assert_eq!(explained.code, 1);
    insta::assert_snapshot!(explained.out, @"
    pass    caller   agent ana, profile main, 2 tools
    refuse  resolve  switched off by an operator (tool echo)

    refused at resolve; the caller is told: Tool 'echo' is not registered.
    ");
    insta::assert_snapshot!(operated(&daemon, &["agents"]).await, @"
    AGENT    TOOLS  PROFILE  RUNNING  WAITING  RATE LIMITS  BINDINGS
    ana      2/3    -        0/192    0/512    -            -
    bruno    0/3    -        0/192    0/512    -            -         switched off
    default  0/3    -        0/192    0/512    -            -

    switched off: tool echo, agent bruno
    ");
    insta::assert_snapshot!(operated(&daemon, &["agents", "ana"]).await, @"
    ana: 2 of 3 tools

    at a time  192 running, 512 waiting

    TOOL          SOURCE  ALLOWED  WHY
    convert_time  time    yes      no list restricts it
    current_time  time    yes      no list restricts it
    echo          echo    no       switched off by an operator (tool echo)
    ");
    // A reload turns no switch.
    daemon.reload(RULES).await;
    assert_eq!(outcome(&client, "ana", "echo").await, "tool_not_found");
    operated(&daemon, &["enable", "tool", "echo"]).await;
    let daemon = daemon.restarted().await;
    assert_eq!(outcome(&client, "ana", "echo").await, "ok");
    assert_eq!(outcome(&client, "bruno", "echo").await, "tool_not_found");
    daemon.stop(&site).await;
}

#[tokio::test]
async fn a_broken_store_stops_the_start_before_any_call_can_pass() {
    let site = BrokerNamespace::shared().await;
    let mut errors = Vec::new();
    for file in ["broken.db", "missing/toolbus.db"] {
        let store = tempfile::tempdir().unwrap();
        std::fs::write(store.path().join("broken.db"), "no database ".repeat(1000)).unwrap();
        let path = store.path().join(file);
        let url = format!("sqlite:{}", path.display());
        let mut daemon = Daemon::spawn(&site, &RULES.replace("sqlite:toolbus.db", &url), &[]);
        assert_eq!(daemon.ended().await.code(), Some(1), "{}", daemon.text());
        assert!(daemon.logged("consuming").is_empty());
        let log = daemon.text();
        let line = log.lines().find(|line| line.contains("[store]")).unwrap_or_else(|| panic!("{log}"));
        let line: Value = serde_json::from_str(line).unwrap();
        errors.push(line["error"].as_str().unwrap().replace(&*store.path().to_string_lossy(), "FOLDER"));
    }
    insta::assert_snapshot!(errors.join("\n"), @"
    [store] the file `FOLDER/broken.db` cannot be used: it is not a database of SQLite; name another file
    [store] the file `FOLDER/missing/toolbus.db` cannot be used: its folder does not exist; create it, for the daemon's user alone
    ");
}
