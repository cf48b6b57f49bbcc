//! Tools of one name: which is called by it, and how the others are reached.

use serde_json::{Value, json};
use toolbus_e2e::backend::Backend;
use toolbus_e2e::client::{Client, Request};
use toolbus_e2e::daemon::Daemon;
use toolbus_testing::patience::eventually;

use crate::peer::INVOKE;
use crate::small::{PROGRAM, Small, knowing, known, python};

const CLASH: &str = "two sources have a tool of one name; the shadowed one is reached by its server alone";

async fn content(client: &Client, request: &Request) -> String {
    let reply = client.exchange(request).await;
    if reply.code().is_empty() { reply.content() } else { reply.code() }
}

fn same_tool(client: &Client, server: Option<&str>) -> Request {
    let request = client.request("same", &json!({"text": "x"}));
    match server {
        Some(server) => request.header("rb-rb-mcp-server", server),
        None => request,
    }
}

#[tokio::test]
async fn the_first_server_by_name_has_the_name_and_the_other_is_reached_by_its_own() {
    let small = Small::new();
    let slow = small.section_with("alpha", &["same"], &[], &[("START_DELAY", "1")], "");
    let beta = small.section("beta", &["same", "other"], "");
    let (site, daemon, client) = Daemon::with_client(&format!("{slow}{beta}")).await;
    known(&daemon, &["beta"]).await;
    known(&daemon, &["alpha"]).await;
    // Names are settled once every server has been tried; before that, beta is called.
    eventually("the name to be alpha's", async || {
        (content(&client, &same_tool(&client, None)).await == "alpha.same: x").then_some(())
    })
    .await;
    for (server, expected) in [(None, "alpha"), (Some("alpha"), "alpha"), (Some("beta"), "beta")] {
        for topic in ["tool.invoke", INVOKE] {
            let request = same_tool(&client, server).on(topic);
            assert_eq!(content(&client, &request).await, format!("{expected}.same: x"), "{server:?} on {topic}");
        }
    }
    let list = client.exchange(&client.raw("{\"names\":[\"same\"]}").on("tool.list")).await.body();
    assert_eq!((&list["tools"][0]["source"], list["tools"].as_array().unwrap().len()), (&json!("mcp:alpha"), 1));

    // Logged once, however often a server starts.
    let process = async || daemon.operate(&["mcp", "show", "alpha", "--output", "json"]).await.json()["pid"].clone();
    let before = process().await;
    assert_eq!(daemon.operate(&["mcp", "restart", "alpha"]).await.code, 0);
    eventually("alpha again", async || {
        let now = process().await;
        (!now.is_null() && now != before).then_some(())
    })
    .await;
    assert_eq!(content(&client, &same_tool(&client, None)).await, "alpha.same: x");
    let clashes = daemon.logged(CLASH);
    let warnings: Vec<&Value> = clashes.iter().collect();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert_eq!(
        (&warnings[0]["tool"], &warnings[0]["kept"], &warnings[0]["shadowed"]),
        (&json!("same"), &json!("mcp:alpha"), &json!("mcp:beta"))
    );

    // When the first is gone, its name is the other's.
    daemon.reload(&beta).await;
    eventually("the name to be beta's", async || {
        (content(&client, &same_tool(&client, None)).await == "beta.same: x").then_some(())
    })
    .await;
    daemon.stop(&site).await;
}

#[tokio::test]
async fn a_rest_tool_has_its_name_whatever_servers_have() {
    let (small, backend) = (Small::new(), Backend::start().await);
    let rest = backend.tool("same", "/work?id={id}", "");
    let (site, daemon, client) = knowing(&format!("{rest}{}", small.section("alpha", &["same"], "")), &["alpha"]).await;
    assert_eq!(client.call("same", &json!({"id": "rest"})).await.content(), "worked for rest");
    assert_eq!(content(&client, &same_tool(&client, Some("alpha"))).await, "alpha.same: x");
    assert_eq!(content(&client, &same_tool(&client, None).on(INVOKE)).await, "alpha.same: x");
    daemon.logged_times(CLASH, 1).await;
    daemon.stop(&site).await;
}

#[tokio::test]
async fn a_server_that_a_caller_registers_takes_no_name() {
    let small = Small::new();
    let rules = format!(
        "[mcp]\nregister = {{ enabled = true, commands = [[{:?}, {PROGRAM:?}, \"*\", \"*\"]] }}\n{}",
        python(),
        small.section("beta", &["same"], "")
    );
    let (site, daemon, client) = knowing(&rules, &["beta"]).await;
    let register = json!({"server_name": "alpha", "command": python(),
                          "arguments": [PROGRAM, "alpha", "same,echo_alpha,mcp_list_services,current_time"]});
    let reply = client.call("mcp_register_server", &register).await;
    // A tool that has the name of a management tool is not even counted.
    let lasting = "It is gone when the daemon ends: register it again then.";
    assert_eq!(reply.content(), format!("Server 'alpha' registered successfully. 3 tool(s) available. {lasting}"));
    for (server, expected) in [(None, "beta.same: x"), (Some("beta"), "beta.same: x"), (Some("alpha"), "alpha.same: x")]
    {
        assert_eq!(content(&client, &same_tool(&client, server)).await, expected, "{server:?}");
    }
    assert_eq!(client.call("echo_alpha", &json!({})).await.content(), "alpha.echo_alpha: ");
    assert!(client.call("current_time", &json!({})).await.content().contains("UTC"));
    assert!(client.call("mcp_list_services", &json!({})).await.content().starts_with('['));
    daemon.stop(&site).await;
}
