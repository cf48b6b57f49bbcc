//! Credentials that belong to agents.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Body;
use axum::http::Response;
use serde_json::{Value, json};
use tokio_util::task::TaskTracker;
use toolbus_core::caller::{AgentName, Caller};
use toolbus_core::failure::{Cause, ToolFailure};
use toolbus_core::tool::{Tool, ToolCall, ToolOutput};

use super::server::TestServer;
use super::tool;
use crate::rest::{AgentCredential, Auth, CredentialError, Endpoint, EndpointError, HeaderError, RestClient};
use crate::testing::call;

pub(super) fn agent(name: &str) -> AgentName {
    AgentName::parse(name).unwrap()
}

fn bearer(token: &str) -> AgentCredential {
    AgentCredential::Bearer { token: token.into() }
}

/// A token of ana, another credential of bruno, and one that is for neither.
fn of_two(ana: &str, bruno: AgentCredential) -> Auth {
    let agents = BTreeMap::from([(agent("ana"), bearer(ana)), (agent("bruno"), bruno)]);
    Auth::Bearer { token: Some("shared-token".into()), per_agent: Some(agents) }
}

/// A tool that ana and bruno have tokens for; the shared one is for neither.
fn shared_by_two(server: &TestServer) -> Tool {
    tool(&server.origin, |s| {
        s.auth = Some(of_two("token-of-ana", bearer("token-of-bruno")));
    })
}

pub(super) async fn run_as(tool: &Tool, caller: Caller, arguments: Value) -> Result<ToolOutput, ToolFailure> {
    let call = ToolCall { caller: Arc::new(caller), ..call(tool, arguments) };
    Arc::clone(&tool.executor).execute_boxed(call).await
}

#[tokio::test]
async fn each_agent_is_served_with_its_own_credentials() {
    let server = TestServer::saying("").await;
    let tool = shared_by_two(&server);
    for (name, expected) in [("ana", "Bearer token-of-ana"), ("bruno", "Bearer token-of-bruno")] {
        run_as(&tool, Caller::agent(agent(name)), json!({})).await.unwrap();
        let headers = server.seen().pop().unwrap().headers;
        assert_eq!(headers.get_all("authorization").iter().collect::<Vec<_>>(), [expected]);
    }
}

#[tokio::test]
async fn calls_of_several_agents_at_once_do_not_mix_their_credentials() {
    let server =
        TestServer::start(|seen| Response::new(Body::from(seen.headers["authorization"].len().to_string()))).await;
    let tool = shared_by_two(&server);
    let calls = (0..40).map(|number| {
        let (name, length) = if number % 2 == 0 { ("ana", "19") } else { ("bruno", "21") };
        let tool = tool.clone();
        TaskTracker::new().spawn(async move { (run_as(&tool, Caller::agent(agent(name)), json!({})).await, length) })
    });
    for call in calls.collect::<Vec<_>>() {
        let (output, length) = call.await.unwrap();
        assert_eq!(output, Ok(ToolOutput::text(length)));
    }
}

#[tokio::test]
async fn an_agent_without_credentials_is_refused_before_anything_is_sent() {
    let server = TestServer::saying("").await;
    let tool = shared_by_two(&server);
    let unnamed = Caller { name: "ana".into(), ..Caller::unknown() };
    for caller in [Caller::agent(agent("carla")), Caller::agent(agent("Ana")), Caller::unknown(), unnamed] {
        let failure = run_as(&tool, caller, json!({})).await.unwrap_err();
        assert_eq!(failure.cause, Cause::AuthRequired);
        assert_eq!(
            failure.message,
            "Tool 't' needs credentials of the agent that calls it, and has none for this one. \
             Only an operator can add them."
        );
    }
    assert_eq!(server.connections(), 0);
}

#[tokio::test]
async fn the_credentials_of_a_request_are_redacted_in_its_response() {
    let echo = "of token-of-ana and token-of-ana";
    for status in [200, 400] {
        let server =
            TestServer::start(move |_| Response::builder().status(status).body(Body::from(echo)).unwrap()).await;
        let output = run_as(&shared_by_two(&server), Caller::agent(agent("ana")), json!({})).await.unwrap();
        let content = output.content.unwrap();
        assert!(content.ends_with("of [redacted] and [redacted]"), "{content}");
    }
}

#[tokio::test]
async fn a_caller_cannot_guess_a_credential_from_redactions() {
    let server = TestServer::start(|seen| {
        let echo = format!("{}{}", seen.target, "y".repeat(100));
        Response::builder().status(400).body(Body::from(echo)).unwrap()
    })
    .await;
    let tool = tool(format!("{}/?a={{a}}", server.origin), |s| {
        s.auth = Some(of_two("token-of-ana", bearer("token-of-bruno")));
    });
    // The guess ends where the response is cut.
    let length_after = async |guess: &str| {
        let padding = "x".repeat(4096 - "/?a=".len() - guess.len());
        let arguments = json!({"a": format!("{padding}{guess}")});
        let content = run_as(&tool, Caller::agent(agent("ana")), arguments).await.unwrap().content.unwrap();
        assert!(content.contains("xxx") && content.ends_with("… (cut)"), "{content}");
        content.len()
    };
    for secret in ["token-of-ana", "token-of-bruno", "shared-token"] {
        for length in 1..secret.len() {
            let right = &secret[..length];
            let wrong = format!("{}0", &right[..length - 1]);
            assert_eq!(length_after(right).await, length_after(&wrong).await, "{right}");
        }
    }
    // Those of others are not looked for even whole.
    assert_eq!(length_after("token-of-bruno").await, length_after("token-of-carla").await);
}

#[test]
fn an_invalid_agent_credential_is_an_error_that_names_the_agent() {
    let table = [
        (bearer(""), CredentialError::Empty("token")),
        (bearer("a\nb"), HeaderError::Value("authorization".to_owned()).into()),
        (AgentCredential::ApiKey { key: "key-of-bruno".into() }, CredentialError::Missing),
    ];
    for (credential, error) in table {
        let mut endpoint = Endpoint::new("t", "http://host/");
        endpoint.auth = Some(of_two("token-of-ana", credential));
        let refused = crate::rest::tool(&endpoint, &RestClient::new(Default::default()).unwrap()).err().unwrap();
        assert_eq!(refused.key(), "auth");
        assert_eq!(refused, EndpointError::AgentCredential { agent: agent("bruno"), error });
    }
}
