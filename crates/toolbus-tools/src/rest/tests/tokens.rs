//! Tokens of the OAuth client credentials grant, against a real token endpoint.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::Body;
use axum::http::{Response, StatusCode};
use serde_json::json;
use toolbus_core::caller::Caller;
use toolbus_core::failure::Cause;
use toolbus_core::redact::Redactor;
use toolbus_core::tool::{Tool, ToolOutput};

use super::agents::{agent, run_as};
use super::server::TestServer;
use crate::rest::{AgentCredential, Auth, Endpoint, RestClient};
use crate::testing::run;

/// Gives the tokens `token-number-1`, `token-number-2` and so on.
async fn token_endpoint() -> TestServer {
    let given = AtomicUsize::new(0);
    TestServer::start(move |_| {
        let token = format!("token-number-{}", given.fetch_add(1, Ordering::SeqCst) + 1);
        Response::new(Body::from(
            json!({"access_token": token, "token_type": "Bearer", "expires_in": 3600}).to_string(),
        ))
    })
    .await
}

/// Repeats the token of a request, if it is one from `token-number-{least}` on.
async fn demanding(least: &Arc<AtomicUsize>) -> TestServer {
    let least = Arc::clone(least);
    TestServer::start(move |request| {
        let value = request.headers["authorization"].to_str().unwrap();
        let number: usize = value.strip_prefix("Bearer token-number-").unwrap().parse().unwrap();
        let mut response = Response::new(Body::from(format!("with {value}")));
        if number < least.load(Ordering::SeqCst) {
            *response.status_mut() = StatusCode::UNAUTHORIZED;
        }
        response
    })
    .await
}

fn grant(tokens: &TestServer) -> Auth {
    Auth::ClientCredentials {
        token_url: format!("{}/token", tokens.origin),
        client_id: Some("tool bus".to_owned()),
        client_secret: Some("s3:cret/ü".into()),
        scopes: vec!["read".to_owned(), "write".to_owned()],
        per_agent: None,
    }
}

fn tool(server: &TestServer, auth: Auth, redactor: &Redactor) -> Tool {
    let mut settings = Endpoint::new("t", &server.origin);
    settings.auth = Some(auth);
    let client = RestClient::new(Default::default()).unwrap().redacting(redactor.clone());
    crate::rest::tool(&settings, &client).unwrap()
}

#[tokio::test]
async fn a_token_is_fetched_once_used_for_all_requests_and_redacted() {
    let (tokens, server) = (token_endpoint().await, demanding(&Arc::default()).await);
    let redactor = Redactor::default();
    let tool = tool(&server, grant(&tokens), &redactor);
    for _ in 0..3 {
        assert_eq!(run(&tool, json!({})).await, Ok(ToolOutput::text("with Bearer [redacted]")));
    }
    let sent = tokens.only();
    assert_eq!(
        (&*sent.method, &*sent.target, &*sent.body),
        ("POST", "/token", "grant_type=client_credentials&scope=read+write")
    );
    // Both parts are form-encoded first: `tool+bus:s3%3Acret%2F%C3%BC`.
    assert_eq!(sent.headers["authorization"], "Basic dG9vbCtidXM6czMlM0FjcmV0JTJGJUMzJUJD");
    assert_eq!(redactor.text("token-number-1"), "[redacted]");
}

#[tokio::test]
async fn a_token_that_is_not_accepted_is_fetched_anew_once() {
    let least = Arc::new(AtomicUsize::new(2));
    let (tokens, server) = (token_endpoint().await, demanding(&least).await);
    let tool = tool(&server, grant(&tokens), &Redactor::default());
    assert_eq!(run(&tool, json!({})).await, Ok(ToolOutput::text("with Bearer [redacted]")));
    assert_eq!((tokens.seen().len(), server.seen().len()), (2, 2));
    least.store(usize::MAX, Ordering::SeqCst);
    assert!(run(&tool, json!({})).await.unwrap().is_error);
    assert_eq!((tokens.seen().len(), server.seen().len()), (3, 4));
}

#[tokio::test]
async fn each_agent_is_a_client_of_its_own() {
    let (tokens, server) = (token_endpoint().await, demanding(&Arc::default()).await);
    let mut auth = grant(&tokens);
    let Auth::ClientCredentials { client_id, client_secret, per_agent, .. } = &mut auth else { unreachable!() };
    (*client_id, *client_secret) = (None, None);
    let ana = AgentCredential::ClientCredentials { client_id: "ana".to_owned(), client_secret: "of-ana".into() };
    *per_agent = Some([(agent("ana"), ana)].into());
    let tool = tool(&server, auth, &Redactor::default());
    assert_eq!(run(&tool, json!({})).await.unwrap_err().cause, Cause::AuthRequired);
    assert_eq!((tokens.seen().len(), server.seen().len()), (0, 0));
    run_as(&tool, Caller::agent(agent("ana")), json!({})).await.unwrap();
    assert_eq!(tokens.only().headers["authorization"], "Basic YW5hOm9mLWFuYQ==");
}

#[tokio::test]
async fn without_a_token_nothing_is_sent_and_the_model_learns_whether_to_try_again() {
    let server = demanding(&Arc::default()).await;
    let refusing = TestServer::start(|_| {
        let mut response = Response::new(Body::from(json!({"error": "invalid_client"}).to_string()));
        *response.status_mut() = StatusCode::UNAUTHORIZED;
        response
    })
    .await;
    let refused = run(&tool(&server, grant(&refusing), &Redactor::default()), json!({})).await.unwrap_err();
    assert_eq!(refused.cause, Cause::AuthRequired);
    insta::assert_snapshot!(refused.message, @"Tool 't' gets no access token. Only an operator can change that.");
    let busy = TestServer::start(|_| {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        response
    })
    .await;
    let refused = run(&tool(&server, grant(&busy), &Redactor::default()), json!({})).await.unwrap_err();
    assert_eq!(refused.cause, Cause::ConnectFailed);
    insta::assert_snapshot!(refused.message, @"Tool 't' cannot get its access token at present. Try again later.");
    assert_eq!(server.seen().len(), 0);
}
