//! Requests for the daemon itself, not for one of its MCP servers; and which requests start servers.

use serde_json::json;
use toolbus_e2e::client::Client;
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::namespace::BrokerNamespace;

use crate::peer::Peer;
use crate::small::{Small, known, python};

const AGENTS: &str = "[identity]\ntrust_headers = true\n[agents.ana]\n[agents.bob]\nallowed_tools = \"none\"\n";
const NAMES: [&str; 5] =
    ["mcp_list_services", "mcp_get_service_details", "mcp_invoke_tool", "mcp_register_server", "mcp_unregister_server"];

#[tokio::test]
async fn a_server_gets_no_call_of_a_management_tool_offered_or_not() {
    let (site, small) = (BrokerNamespace::shared().await, Small::new());
    let tools = [&NAMES[..], &["read"]].concat();
    let daemon = Daemon::start(&site, &format!("{AGENTS}{}", small.section("aaa", &tools, ""))).await;
    known(&daemon, &["aaa"]).await;
    let shown = daemon.operate(&["mcp", "show", "aaa", "--output", "json"]).await.json();
    assert_eq!(shown["tools"], json!(["read"]));
    let hidden = shown["hidden"].as_array().unwrap();
    assert_eq!(hidden.len(), NAMES.len());
    assert!(hidden.iter().all(|tool| tool["reason"] == "it has the name of a management tool"), "{hidden:?}");

    let (client, peer) = (Client::connect(&site).await, Peer::start(&site, "ana").await);
    let body = json!({"serverName": "new", "type": "stdio", "command": python(), "env": {"TOKEN": "secret"}});
    for kind in ["McpRegisterServerRequest", "McpUnregisterServerRequest"] {
        assert_eq!(peer.manage(kind, &body).await.body()["success"], false, "{kind}");
    }
    for name in NAMES {
        let call = client.request(name, &json!({"server_name": "aaa"})).by("ana").header("rb-rb-mcp-server", "aaa");
        assert_eq!(client.exchange(&call).await.code(), "tool_not_found", "{name}");
    }
    let arguments = json!({"server_name": "aaa", "tool_name": "read", "arguments": {"text": "x"}});
    let reply = client.exchange(&client.request("mcp_invoke_tool", &arguments).by("ana")).await;
    assert_eq!(reply.content(), "aaa.read: x");
    assert_eq!(small.calls().len(), 1, "{:?}", small.calls());
    daemon.stop(&site).await;
}

#[tokio::test]
async fn a_lazy_server_is_started_by_calls_that_may_use_it_and_not_by_listing_servers() {
    let (site, small) = (BrokerNamespace::shared().await, Small::new());
    let lazy = small.section("lz", &["read"], "lazy = true");
    let daemon = Daemon::start(&site, &format!("{AGENTS}{lazy}")).await;
    let (ana, bob) = (Peer::start(&site, "ana").await, Peer::start(&site, "bob").await);
    let phase = async || daemon.operate(&["mcp", "show", "lz", "--output", "json"]).await.json()["phase"].clone();
    let details = json!({"serverName": "lz"});

    let details_shown = bob.manage("McpGetServiceDetailsRequest", &details).await.body();
    assert_eq!(details_shown["error"], "Server 'lz' is not connected");
    for peer in [&bob, &ana] {
        for server in [Some("lz"), None] {
            let before = peer.indexes_since(0).await.len();
            peer.refresh(server).await;
            toolbus_testing::patience::eventually("an index", async || (peer.indexes().len() > before).then_some(()))
                .await;
        }
    }
    assert_eq!(phase().await, "idle");

    let details_shown = ana.manage("McpGetServiceDetailsRequest", &details).await.body();
    assert_eq!(details_shown["tools"][0]["name"], "read", "{details_shown}");
    assert_eq!(phase().await, "ready");
    daemon.stop(&site).await;
}
