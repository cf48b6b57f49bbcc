//! Work that comes from servers.

use serde_json::{Value, json};
use toolbus_e2e::backend::Backend;
use toolbus_e2e::client::{Client, Request};
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::namespace::BrokerNamespace;
use toolbus_testing::patience::eventually;

use super::harmful_http::HarmfulHttp;
use super::neighbour::{LATE, others_go_on, replies};
use super::{MIB, RULES};
use crate::fixture::python;
use crate::remote::Remote;
use crate::turn;

/// A daemon that reads pages of this server.
async fn reader(site: &BrokerNamespace, server: &HarmfulHttp, more: &str) -> Daemon {
    let port = server.port;
    let web = format!("[web]\n[egress]\nallow_hosts = [\"127.0.0.1:{port}\"]\n[web.browse]\ntimeout = \"8s\"\n{more}");
    Daemon::start(site, &format!("{RULES}{web}")).await
}

fn page(client: &Client, url: &str) -> Request {
    client.request("web_browse", &json!({ "url": url })).by("ana")
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_and_documents_that_grow_when_they_are_read_hold_no_other_agent_up() {
    let _turn = turn().await;
    let (site, server) = (BrokerNamespace::shared().await, HarmfulHttp::start().await);
    let daemon = reader(&site, &server, "").await;
    let client = Client::connect(&site).await;
    let documents: Vec<_> = [16_000, 32_000].map(|size| page(&client, &server.url(&format!("/pdf/{size}")))).into();
    others_go_on("PDFs", &site, &daemon, replies(&client, &documents, &LATE)).await;
    let pages: Vec<_> = (0..190).map(|number| page(&client, &server.url(&format!("/page/{number}")))).collect();
    others_go_on("190 pages", &site, &daemon, replies(&client, &pages, &LATE)).await;
    daemon.stop(&site).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_for_robots_hold_no_other_agent_up() {
    let _turn = turn().await;
    let (site, server) = (BrokerNamespace::shared().await, HarmfulHttp::start().await);
    let daemon = reader(&site, &server, "robots = true\n").await;
    let client = Client::connect(&site).await;
    let path = "abcd".repeat(500);
    let pages: Vec<_> = (0..20).map(|number| page(&client, &server.url(&format!("/{path}{number}")))).collect();
    others_go_on("robots", &site, &daemon, replies(&client, &pages, &["not_allowed"])).await;
    daemon.stop(&site).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn results_of_sixty_mebibytes_hold_no_other_agent_up() {
    let _turn = turn().await;
    let backend = Backend::start().await;
    let schema = r#"{"type": "object", "properties": {}}"#;
    let large = backend.endpoint_by_default("large", &format!("/bytes/{}", 60 * MIB), schema, "timeout = \"10s\"");
    let (site, daemon, client) = Daemon::with_client(&format!("{RULES}{large}")).await;
    let requests: Vec<_> = (0..4).map(|_| client.request("large", &json!({})).by("ana")).collect();
    others_go_on("60 MiB", &site, &daemon, replies(&client, &requests, &LATE)).await;
    daemon.stop(&site).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn interim_responses_without_end_fail_the_call_and_hold_no_other_agent_up() {
    let _turn = turn().await;
    let server = HarmfulHttp::start().await;
    let endpoint = format!(
        "[[rest.endpoints]]\nname = \"interim\"\ndescription = \"Never done\"\nurl = \"{}\"\n\
         parameters = '{{\"type\": \"object\"}}'\n",
        server.url("/interim")
    );
    let (site, daemon, client) = Daemon::with_client(&format!("{RULES}{endpoint}")).await;
    let requests: Vec<_> = (0..8).map(|_| client.request("interim", &json!({})).by("ana")).collect();
    let attack = replies(&client, &requests, &["execution_failed"]);
    let replies = others_go_on("interim responses", &site, &daemon, attack).await;
    insta::assert_snapshot!(replies[0].error(), @"Tool 'interim' answered with more than ten interim (1xx) responses.");
    daemon.stop(&site).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn large_messages_of_mcp_servers_hold_no_other_agent_up() {
    let _turn = turn().await;
    let remote = Remote::start().await;
    let program = python("hostile_mcp.py");
    let local = format!(
        "[mcp.servers.local]\ncommand = \"python3\"\nargs = [{:?}, \"rows\", \"-\", \"-\"]\n",
        program.to_str().unwrap()
    );
    let sections =
        format!("{local}{}{}", remote.section("remote", "rows", ""), remote.section("events", "event-rows", ""));
    let (site, daemon, client) = Daemon::with_client(&format!("{RULES}{sections}")).await;
    eventually("the servers to be ready", async || {
        let (_, status) = daemon.get("/status").await?;
        let servers = status["mcp"].as_array()?;
        (servers.len() == 3 && servers.iter().all(|known| known["phase"] == "ready")).then_some(())
    })
    .await;
    for server in ["local", "remote", "events"] {
        let call = |_| {
            let arguments: Value = json!({"server_name": server, "tool_name": "strike", "arguments": {}});
            client.request("mcp_invoke_tool", &arguments).by("ana")
        };
        let requests: Vec<_> = (0..8).map(call).collect();
        others_go_on(server, &site, &daemon, replies(&client, &requests, &LATE)).await;
    }
    daemon.stop(&site).await;
}
