//! Servers over HTTP, where each agent has a credential of its own.

use axum::http::StatusCode;
use axum::response::IntoResponse as _;
use serde_json::json;
use toolbus_core::caller::{AgentName, Caller};
use toolbus_core::failure::{Cause, ToolFailure};
use toolbus_core::secret::Secret;
use toolbus_core::tool::ToolCall;

use super::fixture::Fixture;
use super::remote::{Remote, response_to};
use super::*;
use crate::spec::{Credential, Credentials};

/// A world with a server for agents with these tokens. It responds to a call with the call's token, and refuses
/// the token `old`.
async fn remote(tokens: &[(&str, &str)]) -> (Fixture, Remote) {
    let remote = Remote::start(|request, number| {
        let token = request["token"].as_str().unwrap_or("none");
        match request["method"].as_str() {
            _ if token == "old" => Some(StatusCode::UNAUTHORIZED.into_response()),
            Some("tools/list") => {
                // The tools of an instance at its second listing.
                let names = ["who", "more"].into_iter().take(number);
                let tools = names.map(|name| json!({"name": name, "inputSchema": {"type": "object"}}));
                Some(response_to(request, &json!({"tools": tools.collect::<Vec<_>>()})))
            }
            Some("tools/call") => Some(response_to(request, &json!({"content": [{"type": "text", "text": token}]}))),
            _ => None,
        }
    })
    .await;
    let of_agent =
        |(agent, token): &(&str, &str)| (AgentName::parse(agent).unwrap(), Credential::Bearer(Secret::new(*token)));
    let credentials = Credentials::PerAgent(tokens.iter().map(of_agent).collect());
    let world = Fixture::new();
    world.apply([remote.spec_with("remote", credentials)]);
    eventually("the tools", async || world.registry.snapshot().get("who").map(drop)).await;
    (world, remote)
}

impl Fixture {
    /// Calls the tool as this agent.
    async fn token_of(&self, agent: &str) -> Result<String, ToolFailure> {
        let caller = Arc::new(Caller::agent(AgentName::parse(agent).unwrap()));
        let call = ToolCall { caller, ..testing::call("who") };
        let executor = Arc::clone(&self.registry.snapshot().get("who").unwrap().executor);
        executor.execute_boxed(call).await.map(|output| output.content.unwrap())
    }
}

#[tokio::test]
async fn the_calls_of_each_agent_go_by_a_connection_with_its_own_credential() {
    let (world, remote) = remote(&[("ana", "of-ana"), ("bob", "of-bob")]).await;
    for (agent, token) in [("bob", "of-bob"), ("ana", "of-ana"), ("bob", "of-bob")] {
        assert_eq!(world.token_of(agent).await.unwrap(), token);
    }
    for token in ["of-ana", "of-bob"] {
        assert_eq!(remote.count_of("initialize", Some(token)), 1, "{token}");
    }
    let failure = world.token_of("eve").await.unwrap_err();
    assert_eq!(failure.cause, Cause::AuthRequired);
    insta::assert_snapshot!(failure.message, @"MCP server 'remote' has no credentials for this agent. An operator has to give them.");
    world.end().await;
}

#[tokio::test]
async fn a_credential_that_is_refused_keeps_no_other_agent_from_the_tools() {
    let (world, _) = remote(&[("ana", "old"), ("bob", "of-bob")]).await;
    assert_eq!(world.token_of("bob").await.unwrap(), "of-bob");
    let failure = world.token_of("ana").await.unwrap_err();
    assert_eq!(failure.cause, Cause::AuthRequired);
    insta::assert_snapshot!(failure.message, @"MCP server 'remote' is registered but not reachable right now (it needs credentials). An operator has to give them.");
    assert!(world.status("remote").last_error.is_some(), "an operator sees that something is wrong");
    world.refresh("remote");
    eventually("another list of what bob can use", async || world.registry.snapshot().get("more").map(drop)).await;
    world.end().await;
}
