//! Things that servers see of the daemon, and that callers can make it start.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use toolbus_e2e::message::Message;

use crate::fixture::{Fixture, SECRET};

const RULES: &str = r#"
[identity]
trust_headers = true
[agents.friend]
[agents.ghost]
allowed_tools = ["neighbour"]
[agents.curious]
allowed_tools = ["neighbour", "mcp_*"]
"#;

const DESK: &str = r#"
[agents.ana]
toolsets = ["desk"]
[toolsets.desk]
kind = "mcp"
scope = "session"
server = "hostile"
max_sessions = 20
"#;

#[tokio::test]
async fn a_server_gets_nothing_of_the_daemons_environment_and_none_of_its_files() {
    let fixture = Fixture::besieged_with("spy", "-", "env = { MINE = \"1\" }").await;
    fixture.seen("ready", "").await;
    let seen: Value = serde_json::from_str(&fixture.strike().await.content()).unwrap();
    let own: BTreeSet<&String> = seen["own"].as_object().unwrap().keys().collect();
    assert!(own.iter().all(|name| ["MINE", "LC_CTYPE", "PATH", "HOME"].contains(&name.as_str())), "{own:?}");
    assert!(!seen["own"].to_string().contains(SECRET) && !seen["supervisor"].to_string().contains(SECRET));
    let files: Vec<&str> = seen["files"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert!(!files.iter().any(|file| file.starts_with("socket:") || file.starts_with("anon_inode:")), "{files:?}");
    fixture.end().await;
}

async fn spied(fixture: &Fixture, session: &str) -> Message {
    let body = json!({"toolName": "desk.strike", "arguments": {}, "sessionId": session});
    fixture.client.exchange(&fixture.client.raw(body.to_string()).by("ana")).await
}

#[tokio::test]
async fn a_session_of_any_name_works_in_its_own_directory() {
    let fixture = Fixture::quiet(RULES).await;
    let folder = fixture.daemon.folder().to_str().unwrap().to_owned();
    let keys = format!("cwd = \"{folder}/desk/{{agent}}/{{session}}\"");
    fixture.add(&format!("{}{DESK}", fixture.program("hostile", "spy", "-", &keys))).await;
    fixture.seen("idle", "").await;
    let mut directories = BTreeSet::new();
    let sessions = ["../../etc", "..", "/", "a/../../../b", "{agent}", "%2e%2e", "x\u{202e}", "plain", "Plain"];
    for session in sessions {
        let reply = spied(&fixture, session).await;
        let seen: Value = serde_json::from_str(&reply.content()).unwrap_or_else(|_| reply.body());
        let directory = seen["cwd"].as_str().unwrap_or_default().to_owned();
        let within = directory.strip_prefix(&format!("{folder}/desk/ana/")).unwrap_or_default();
        assert!(!within.is_empty() && !within.contains(['/', '\u{202e}']) && within != "..", "{session}: {seen}");
        directories.insert(directory);
    }
    assert_eq!(directories.len(), sessions.len(), "{directories:?}");
    // Half of the directories are the most that one agent gets.
    assert_eq!(spied(&fixture, "the tenth").await.code(), "");
    assert_eq!(spied(&fixture, "the eleventh").await.code(), "overloaded");
    assert_eq!(fixture.processes().len(), 2 + 2 * 10);
    fixture.end().await;
}

#[tokio::test]
async fn a_caller_that_may_not_use_a_lazy_server_cannot_start_it() {
    let fixture = Fixture::quiet(RULES).await;
    let names: Vec<String> = (0..20).map(|n| format!("lazy{n}")).collect();
    let sections: Vec<String> = names.iter().map(|name| fixture.program(name, "plain", "-", "lazy = true")).collect();
    fixture.add(&sections.concat()).await;
    let client = &fixture.client;
    for agent in ["ghost", "curious"] {
        for name in &names {
            let arguments = json!({"server_name": name, "tool_name": "strike", "arguments": {}});
            let calls = [
                client.request("strike", &json!({})),
                client.request("strike", &json!({})).on("tool.invoke.mcp").header("rb-mcp-server", name),
                client.request("mcp_invoke_tool", &arguments),
                client.request("mcp_list_services", &json!({})),
            ];
            for (number, call) in calls.into_iter().enumerate() {
                assert_ne!(client.exchange(&call.by(agent)).await.content(), "done");
                assert_eq!(fixture.processes().len(), 2, "{agent} started {name} by call {number}");
            }
        }
    }
    // A permitted caller starts the server that it names, and no other.
    let call = client.request("strike", &json!({})).on("tool.invoke.mcp").header("rb-mcp-server", "lazy7").by("friend");
    assert_eq!(client.exchange(&call).await.content(), "done");
    assert_eq!(fixture.processes().len(), 4);
    fixture.end().await;
}
