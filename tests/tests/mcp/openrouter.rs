//! The MCP server that reads an OpenRouter account, as agents on the bus use it.

use std::path::Path;

use axum::Router;
use axum::http::HeaderMap;
use axum::routing::get;
use serde_json::json;
use tokio::net::TcpListener;
use toolbus_e2e::client::Client;
use toolbus_e2e::mcp::{Workplace, at, ready};
use toolbus_e2e::namespace::BrokerNamespace;

/// The program, which is built beside the daemon.
fn program() -> String {
    let daemon = std::env::var("TOOLBUS_BIN").unwrap();
    Path::new(&daemon).with_file_name("openrouter-mcp").to_str().unwrap().to_owned()
}

#[tokio::test]
async fn an_agent_reads_the_account_and_sees_which_right_is_missing() {
    let models = async |headers: HeaderMap| {
        assert_eq!(headers["authorization"], "Bearer sk-or-v1-plain");
        json!({"data": [{"id": "openai/gpt-5"}]}).to_string()
    };
    let refused = async || (axum::http::StatusCode::FORBIDDEN, r#"{"error":{"code":403,"message":"Forbidden"}}"#);
    let api = Router::new().route("/models", get(models)).route("/credits", get(refused));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, api).await });

    let (site, work) = (BrokerNamespace::shared().await, Workplace::new().await);
    let environment = json!({"OPENROUTER_API_KEY": "sk-or-v1-plain", "OPENROUTER_BASE_URL": base});
    let servers = json!({"openrouter": {"command": program(), "env": environment}});
    let daemon = work.daemon(&site, &servers, "").await;
    ready(&daemon, "openrouter").await;
    let agent = Client::connect(&site).await;

    let reply = agent.exchange(&at(&agent, "openrouter", "list_models", &json!({}))).await;
    insta::assert_snapshot!(reply.content(), @r#"{"data":[{"id":"openai/gpt-5"}]}"#);
    let reply = agent.exchange(&at(&agent, "openrouter", "get_credits", &json!({}))).await;
    let text = reply.body()["content"].to_string();
    assert!(text.contains("This tool needs a management key"), "{text}");
    let reply = agent.exchange(&at(&agent, "openrouter", "get_generation", &json!({"generationId": "a/b"}))).await;
    assert_eq!(reply.code(), "invalid_arguments", "{reply:?}");
    daemon.stop(&site).await;
}
