//! Servers that callers register: what they may, what stays, and what they never decide.

use serde_json::{Value, json};
use toolbus_e2e::client::{Client, Request};
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::message::Message;
use toolbus_testing::patience::eventually;

use crate::peer::MANAGE;
use crate::small::{PROGRAM, Small, is_running, knowing, python};

const AGENTS: &str = "[identity]\ntrust_headers = true\n[agents.ana]\n[agents.bruno]\n[agents.sub]\nprofile = \"subagent\"\n\
                      [store]\nurl = \"sqlite:toolbus.db\"\n";
const TOOLS: [&str; 2] = ["mcp_register_server", "mcp_unregister_server"];

fn allowed() -> String {
    let command = json!([python(), PROGRAM, "*", "*", "*"]);
    format!("{AGENTS}[mcp]\nregister = {{ enabled = true, commands = [{command}], hosts = [\"mcp.example.com\"] }}\n")
}

fn arguments(name: &str) -> Value {
    json!({"server_name": name, "command": python(), "arguments": [PROGRAM, name, "about", "${HOME}"]})
}

fn manage(client: &Client, kind: &str, body: &Value) -> Request {
    let request = client.raw(body.to_string()).on(MANAGE);
    request.of_type(&format!("RockBot.Tools.Mcp.{kind}"))
}

async fn called(client: &Client, agent: &str, tool: &str, arguments: &Value) -> Message {
    client.exchange(&client.request(tool, arguments).by(agent)).await
}

/// Returns the result of a server's tool `about`, or the code of the error.
async fn about(client: &Client, agent: &str, server: &str) -> Result<Value, String> {
    let request = client.request("about", &json!({})).by(agent).header("rb-rb-mcp-server", server);
    let reply = client.exchange(&request).await;
    if reply.code().is_empty() { Ok(serde_json::from_str(&reply.content()).unwrap()) } else { Err(reply.code()) }
}

async fn listed(client: &Client, agent: &str) -> Vec<String> {
    let list = client.exchange(&client.raw("{}").on("tool.list").by(agent)).await.body();
    list["tools"].as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn no_agent_registers_servers_unless_the_configuration_allows_it() {
    let small = Small::new();
    let (site, daemon, client) =
        knowing(&format!("{AGENTS}{}", small.section("notes", &["about"], "")), &["notes"]).await;
    let names = listed(&client, "ana").await;
    for tool in TOOLS {
        assert!(!names.contains(&tool.to_owned()), "{names:?}");
        assert_eq!(called(&client, "ana", tool, &arguments("new")).await.code(), "tool_not_found");
    }
    for kind in ["McpRegisterServerRequest", "McpUnregisterServerRequest"] {
        let body = json!({"serverName": "new", "type": "stdio", "command": python()});
        let reply = client.exchange(&manage(&client, kind, &body).by("ana")).await.body();
        assert_eq!(reply["success"], false, "{reply}");
        assert!(reply["error"].as_str().unwrap().contains("is not registered"), "{reply}");
    }
    assert_eq!(about(&client, "ana", "new").await, Err("tool_not_found".to_owned()));
    daemon.stop(&site).await;
}

#[tokio::test]
async fn an_allowed_server_is_registered_and_outlives_a_restart_until_it_is_removed() {
    let (site, daemon, client) = Daemon::with_client(&allowed()).await;
    let reply = called(&client, "ana", TOOLS[0], &arguments("Mine")).await;
    let lasting = "It stays until you unregister it, also when the daemon restarts.";
    assert_eq!(reply.content(), format!("Server 'Mine' registered successfully. 1 tool(s) available. {lasting}"));
    let first = about(&client, "bruno", "mine").await.unwrap();
    assert_eq!(first["arguments"], json!(["${HOME}"]), "what a caller gives is taken as it is");
    let variables: Vec<&String> = first["environment"].as_object().unwrap().keys().collect();
    // Python sets it by itself.
    assert_eq!(variables, ["LC_CTYPE"]);

    let daemon = daemon.restarted().await;
    assert!(!is_running(&first["pid"]), "it ended with the daemon");
    let second = eventually("the registered server", async || about(&client, "ana", "MINE").await.ok()).await;
    assert_ne!(first["pid"], second["pid"]);

    let refused = called(&client, "bruno", TOOLS[1], &json!({"server_name": "mine"})).await;
    assert_eq!(refused.body()["isError"], true);
    let request = manage(&client, "McpUnregisterServerRequest", &json!({"serverName": "mine"}));
    assert_eq!(client.exchange(&request.by("ana")).await.body()["success"], true);
    eventually("its end", async || (!is_running(&second["pid"])).then_some(())).await;
    let daemon = daemon.restarted().await;
    let left = daemon.operate(&["mcp", "list", "--output", "json"]).await.json();
    assert_eq!(left["servers"], json!([]));
    assert_eq!(about(&client, "ana", "mine").await, Err("tool_not_found".to_owned()));
    daemon.stop(&site).await;
}

#[tokio::test]
async fn a_subagent_neither_registers_nor_removes_servers_on_any_way() {
    let (site, daemon, client) = Daemon::with_client(&allowed()).await;
    assert_eq!(called(&client, "ana", TOOLS[0], &arguments("mine")).await.code(), "");
    let server = about(&client, "sub", "mine").await.unwrap();
    for (agent, profile) in [("sub", None), ("sub", Some("main")), ("ana", Some("subagent"))] {
        let as_one = |request: Request| match profile {
            Some(profile) => request.by(agent).header("rb-rb-tool-profile", profile),
            None => request.by(agent),
        };
        let list = client.exchange(&as_one(client.raw("{}").on("tool.list"))).await.body().to_string();
        for tool in TOOLS {
            let reply = client.exchange(&as_one(client.request(tool, &arguments("mine")))).await;
            assert_eq!(reply.code(), "tool_not_found", "{agent} {profile:?}");
            assert!(!list.contains(tool), "{list}");
        }
        for kind in ["McpRegisterServerRequest", "McpUnregisterServerRequest"] {
            let body = json!({"serverName": "mine", "type": "stdio", "command": python(),
                              "args": [PROGRAM, "mine", "about", "x"]});
            let reply = client.exchange(&as_one(manage(&client, kind, &body))).await.body();
            assert_eq!(reply["success"], false, "{agent} {profile:?}: {reply}");
        }
    }
    assert_eq!(about(&client, "ana", "mine").await.unwrap()["pid"], server["pid"], "as it was");
    daemon.stop(&site).await;
}
