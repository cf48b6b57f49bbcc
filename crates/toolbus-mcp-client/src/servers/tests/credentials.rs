//! Servers over HTTP, where each agent has a credential of its own.

use std::collections::BTreeMap;

use axum::Router;
use axum::extract::{Json, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use parking_lot::Mutex;
use serde_json::{Value, json};
use toolbus_core::caller::{AgentName, Caller};
use toolbus_core::failure::{Cause, ToolFailure};
use toolbus_core::secret::Secret;
use toolbus_core::tool::ToolCall;

use super::fixture::Fixture;
use super::*;
use crate::spec::{Credential, Credentials, HttpKind, HttpSpec};
use crate::testing;

/// Who asked for what.
type Asked = Arc<Mutex<Vec<String>>>;

/// Answers a call with the token that it came with; refuses the token `old`.
async fn answer(State(asked): State<Asked>, headers: HeaderMap, Json(request): Json<Value>) -> Response {
    let token = headers.get("authorization").and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
    let (token, method) = (token.unwrap_or("none"), request["method"].as_str().unwrap());
    asked.lock().push(format!("{token} {method}"));
    if token == "old" {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    let result = match method {
        "initialize" => json!({
            "protocolVersion": "2025-06-18",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "remote", "version": "1"},
        }),
        "tools/list" => {
            // What an instance is told when it asks again.
            let listed = asked.lock().iter().filter(|asked| **asked == format!("{token} tools/list")).count();
            let names = ["who", "more"].into_iter().take(listed);
            let tools = names.map(|name| json!({"name": name, "inputSchema": {"type": "object"}}));
            json!({"tools": tools.collect::<Vec<_>>()})
        }
        "tools/call" => json!({"content": [{"type": "text", "text": token}]}),
        "ping" => json!({}),
        _ if request.get("id").is_none() => return StatusCode::ACCEPTED.into_response(),
        _ => {
            let error = json!({"code": -32601, "message": "no such method"});
            return Json(json!({"jsonrpc": "2.0", "id": request["id"], "error": error})).into_response();
        }
    };
    Json(json!({"jsonrpc": "2.0", "id": request["id"], "result": result})).into_response()
}

/// A world with a server for agents with these tokens, and what the server was asked.
async fn remote(tokens: &[(&str, &str)]) -> (Fixture, Asked) {
    let asked = Asked::default();
    let router = Router::new().route("/mcp", axum::routing::post(answer)).with_state(Arc::clone(&asked));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap()).parse().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    let of_agent =
        |(agent, token): &(&str, &str)| (AgentName::parse(agent).unwrap(), Credential::Bearer(Secret::new(*token)));
    let credentials = Credentials::PerAgent(tokens.iter().map(of_agent).collect());
    let endpoint = HttpSpec { url, kind: HttpKind::Streamable, headers: BTreeMap::new(), credentials };
    let world = Fixture::new();
    world.apply([ServerSpec { transport: TransportSpec::Http(endpoint), ..world.server("remote", "") }]);
    eventually("the tools", async || world.registry.snapshot().get("who").map(drop)).await;
    (world, asked)
}

impl Fixture {
    /// Calls the tool as this agent.
    async fn who(&self, agent: &str) -> Result<String, ToolFailure> {
        let caller = Arc::new(Caller::agent(AgentName::parse(agent).unwrap()));
        let call = ToolCall { caller, ..testing::call("who") };
        let executor = Arc::clone(&self.registry.snapshot().get("who").unwrap().executor);
        executor.execute_boxed(call).await.map(|output| output.content.unwrap())
    }
}

#[tokio::test]
async fn the_calls_of_each_agent_go_by_a_connection_with_its_own_credential() {
    let (world, asked) = remote(&[("ana", "of-ana"), ("bob", "of-bob")]).await;
    for (agent, token) in [("bob", "of-bob"), ("ana", "of-ana"), ("bob", "of-bob")] {
        assert_eq!(world.who(agent).await.unwrap(), token);
    }
    let asked = asked.lock().clone();
    for token in ["of-ana", "of-bob"] {
        assert_eq!(asked.iter().filter(|asked| **asked == format!("{token} initialize")).count(), 1, "{asked:?}");
    }
    let failure = world.who("eve").await.unwrap_err();
    assert_eq!(failure.cause, Cause::AuthRequired);
    insta::assert_snapshot!(failure.message, @"MCP server 'remote' has no credentials for this agent. An operator has to give them.");
    world.end().await;
}

#[tokio::test]
async fn a_credential_that_is_refused_keeps_no_other_agent_from_the_tools() {
    let (world, _) = remote(&[("ana", "old"), ("bob", "of-bob")]).await;
    assert_eq!(world.who("bob").await.unwrap(), "of-bob");
    let failure = world.who("ana").await.unwrap_err();
    assert_eq!(failure.cause, Cause::AuthRequired);
    insta::assert_snapshot!(failure.message, @"MCP server 'remote' is registered but not reachable right now (it needs credentials). An operator has to give them.");
    assert!(world.status("remote").last_error.is_some(), "an operator sees that something is wrong");
    world.refresh("remote");
    eventually("another list of what bob can use", async || world.registry.snapshot().get("more").map(drop)).await;
    world.end().await;
}
