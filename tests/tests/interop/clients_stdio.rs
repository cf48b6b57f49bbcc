//! Clients that others wrote start `toolbus mcp serve --stdio` themselves.

use serde_json::json;
use toolbus_e2e::mcp_client::ClientKind;
use toolbus_e2e::namespace::BrokerNamespace;
use toolbus_e2e::program::binary;

use crate::clients::{STATELESS, WITH_SESSIONS, check, check_progress, saw};
use crate::fixture::Fixture;

async fn use_mcp_server(client: ClientKind, mode: &str, protocol: &str) {
    let site = BrokerNamespace::shared().await;
    let fixture = Fixture::on(&site).await;
    let binary = binary().display().to_string();
    let mut words = ["mcp", "serve", "--stdio", "--agent", "ana"].map(str::to_owned).to_vec();
    words.extend(site.arguments());
    let mut seen = match client {
        ClientKind::FastMcp => {
            let configuration = json!({"mcpServers": {"toolbus": {"command": binary, "args": words}}});
            saw(&fixture, client, &[&configuration.to_string(), mode]).await
        }
        _ => {
            words.insert(0, binary);
            saw(&fixture, client, &[&json!(words).to_string(), "", mode]).await
        }
    };
    fixture.eventually_heard("notifications/cancelled").await;
    // Instructions of servers do not travel over the bus.
    assert_eq!(seen.as_object_mut().unwrap().remove("resources"), Some(json!([])));
    check_progress(&mut seen, client == ClientKind::TypeScript);
    check(seen, protocol);
    fixture.daemon.end().await;
}

#[tokio::test]
async fn the_python_sdk_starts_the_mcp_server() {
    use_mcp_server(ClientKind::Python, "legacy", WITH_SESSIONS).await;
    use_mcp_server(ClientKind::Python, "auto", STATELESS).await;
}

#[tokio::test]
async fn the_typescript_sdk_starts_the_mcp_server() {
    use_mcp_server(ClientKind::TypeScript, "legacy", WITH_SESSIONS).await;
    use_mcp_server(ClientKind::TypeScript, "auto", STATELESS).await;
}

#[tokio::test]
async fn fastmcp_starts_the_mcp_server() {
    use_mcp_server(ClientKind::FastMcp, "legacy", WITH_SESSIONS).await;
}
