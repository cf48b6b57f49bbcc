//! Tokens of the OAuth 2.1 client credentials grant, against real token endpoints.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse as _, Response};
use rmcp::transport::Transport as _;
use serde_json::json;
use toolbus_core::Clock;
use toolbus_core::failure::Cause;
use toolbus_core::redact::Redactor;
use toolbus_core::secret::Secret;
use url::Url;

use super::server::{RecordedRequest, Server, endless, json_of, orderly, redirect, status, text_result};
use super::{begin, call, endpoint, opener, received};
use crate::spec::{ClientCredentials, Credential, HttpKind};
use crate::transport::http::{HttpOpenError, HttpTransport, Opener, classify};

fn grant(token_url: &Url) -> Option<Credential> {
    Some(Credential::ClientCredentials(ClientCredentials {
        token_url: token_url.clone(),
        client_id: "tool bus".to_owned(),
        client_secret: "s3:cret/ü".into(),
        scopes: vec!["read".to_owned(), "write".to_owned()],
    }))
}

/// Gives the tokens `t1`, `t2` and so on, good for `seconds`.
async fn token_endpoint(seconds: u64) -> Server {
    let given = AtomicUsize::new(0);
    Server::start(move |_| {
        let token = format!("t{}", given.fetch_add(1, Ordering::SeqCst) + 1);
        json_of(&json!({ "access_token": token, "token_type": "Bearer", "expires_in": seconds }))
    })
    .await
}

/// An orderly server that accepts the tokens from `t{least}` on.
async fn demanding(least: &Arc<AtomicUsize>) -> Server {
    let least = Arc::clone(least);
    Server::start(move |request| {
        let token = request.header("authorization").and_then(|value| value.strip_prefix("Bearer t"));
        let number = token.and_then(|number| number.parse::<usize>().ok());
        let is_good = number.is_some_and(|number| number >= least.load(Ordering::SeqCst));
        if is_good { orderly(request) } else { status(401, "") }
    })
    .await
}

async fn connect(server: &Server, tokens: &Server) -> HttpTransport {
    let opener = opener(&server.url, HttpKind::Streamable, grant(&tokens.url));
    let mut transport = opener.open().await.unwrap();
    begin(&mut transport).await.unwrap();
    transport
}

#[tokio::test]
async fn a_token_is_requested_as_standardised_and_kept() {
    let (tokens, server) = (token_endpoint(3600).await, demanding(&Arc::default()).await);
    let mut transport = connect(&server, &tokens).await;
    transport.send(call(1)).await.unwrap();
    let [request] = tokens.requests().try_into().unwrap();
    // base64 of `tool+bus:s3%3Acret%2F%C3%BC`.
    assert_eq!(request.header("authorization"), Some("Basic dG9vbCtidXM6czMlM0FjcmV0JTJGJUMzJUJD"));
    assert_eq!(request.header("content-type"), Some("application/x-www-form-urlencoded"));
    insta::assert_snapshot!(String::from_utf8_lossy(&request.body), @"grant_type=client_credentials&scope=read+write");
}

#[tokio::test]
async fn a_token_is_removed_from_texts_as_long_as_it_is_used() {
    let tokens =
        Server::start(|_| json_of(&json!({ "access_token": "a-fetched-token", "token_type": "Bearer" }))).await;
    let server = Server::start(orderly).await;
    let redactor = Redactor::default();
    let opener =
        Opener::new(&endpoint(&server.url, HttpKind::Streamable), grant(&tokens.url), &redactor, Clock::SYSTEM)
            .unwrap();
    let mut transport = opener.open().await.unwrap();
    begin(&mut transport).await.unwrap();
    redactor.configure((0..2_000).map(|number| Secret::new(format!("outdated-{number:04}"))));
    redactor.configure([]);
    assert_eq!(redactor.text("a-fetched-token"), "[redacted]");
}

#[tokio::test]
async fn a_token_that_ends_is_fetched_anew_while_the_session_lives() {
    let (tokens, server) = (token_endpoint(3600).await, demanding(&Arc::default()).await);
    let mut transport = connect(&server, &tokens).await;
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(3569)).await;
    tokio::time::resume();
    transport.send(call(1)).await.unwrap();
    assert_eq!(tokens.requests().len(), 1);
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(2)).await;
    tokio::time::resume();
    transport.send(call(2)).await.unwrap();
    assert_eq!(tokens.requests().len(), 2);
    let calls: Vec<RecordedRequest> =
        server.requests().into_iter().filter(|request| request.does("tools/call")).collect();
    let sent: Vec<_> = calls.iter().map(|request| request.header("authorization").unwrap()).collect();
    assert_eq!(sent, ["Bearer t1", "Bearer t2"]);
    assert_eq!(server.count("initialize"), 1);
}

#[tokio::test]
async fn a_token_that_the_server_does_not_accept_is_fetched_anew_once_for_all_calls() {
    let least = Arc::default();
    let (tokens, server) = (token_endpoint(3600).await, demanding(&least).await);
    let mut transport = connect(&server, &tokens).await;
    least.store(2, Ordering::SeqCst);
    for id in 1..=20 {
        tokio::spawn(transport.send(call(id)));
    }
    for _ in 0..20 {
        assert_eq!(received(&mut transport).await["result"], text_result("hello"));
    }
    assert_eq!(tokens.requests().len(), 2);
}

#[tokio::test]
async fn a_server_that_accepts_no_token_needs_a_person() {
    let (tokens, server) = (token_endpoint(3600).await, demanding(&Arc::new(AtomicUsize::new(99))).await);
    let mut transport = opener(&server.url, HttpKind::Streamable, grant(&tokens.url)).open().await.unwrap();
    let error = transport.send(super::initialize()).await.unwrap_err();
    assert_eq!((classify(&error), error.status), (Some(Cause::AuthRequired), Some(401)));
    assert_eq!([tokens.requests().len(), server.requests().len()], [2, 2]);
}

/// Reason why there is no connection with a token endpoint that responds so; the MCP server must get no request.
async fn without_token(respond: impl Fn(&RecordedRequest) -> Response + Send + Sync + 'static) -> HttpOpenError {
    let (tokens, server) = (Server::start(respond).await, Server::start(orderly).await);
    let error = opener(&server.url, HttpKind::Detect, grant(&tokens.url)).open().await.err().unwrap();
    assert_eq!(server.requests().len(), 0);
    let origin = tokens.url.origin().ascii_serialization();
    match error {
        HttpOpenError::AuthRequired { text } => HttpOpenError::AuthRequired { text: text.replace(&origin, "ORIGIN") },
        HttpOpenError::Refused(text) => HttpOpenError::Refused(text.replace(&origin, "ORIGIN")),
        HttpOpenError::Other(text) => HttpOpenError::Other(text.replace(&origin, "ORIGIN")),
    }
}

async fn useless(body: impl Into<String>) -> String {
    let body = body.into();
    let error = without_token(move |_| ([("content-type", "application/json")], body.clone()).into_response()).await;
    assert!(matches!(error, HttpOpenError::AuthRequired { .. }));
    error.to_string()
}

#[tokio::test]
async fn a_response_without_a_usable_token_is_refused() {
    for garbage in ["", "<html>", "[]", "{}", r#"{"access_token":7}"#] {
        let text = useless(garbage).await;
        insta::allow_duplicates! {
            insta::assert_snapshot!(text, @"the answer of the token endpoint at ORIGIN is of no use: it has no access_token; check its URL");
        }
    }
    insta::assert_snapshot!(useless(r#"{"access_token":"t","token_type":"mac"}"#).await, @"the answer of the token endpoint at ORIGIN is of no use: its token is no bearer token; check its URL");
    insta::assert_snapshot!(useless(r#"{"access_token":""}"#).await, @"the answer of the token endpoint at ORIGIN is of no use: its token is empty or too long; check its URL");
    insta::assert_snapshot!(useless(r#"{"access_token":"a\nb: c"}"#).await, @"the answer of the token endpoint at ORIGIN is of no use: its token has characters that a header cannot carry; check its URL");
}

#[tokio::test]
async fn a_token_refusal_is_reported_by_its_code_alone() {
    let refusal = async |code: u16, body: &'static str| without_token(move |_| status(code, body)).await.to_string();
    insta::assert_snapshot!(refusal(401, r#"{"error":"invalid_client","error_description":"hunter2"}"#).await, @"the token endpoint at ORIGIN gives no token: it answered HTTP 401 invalid_client; check the client's id, secret and scopes");
    insta::assert_snapshot!(refusal(400, r#"{"error":"hunter2"}"#).await, @"the token endpoint at ORIGIN gives no token: it answered HTTP 400 without a known error code; check the client's id, secret and scopes");
    insta::assert_snapshot!(refusal(503, "").await, @"the token endpoint at ORIGIN cannot serve now: it answered HTTP 503");
}

#[tokio::test]
async fn a_token_endpoint_that_redirects_does_not_get_the_secret_sent_elsewhere() {
    let other = token_endpoint(60).await;
    for code in [301, 302, 303, 307, 308] {
        let to = other.url.to_string();
        let error = without_token(move |_| redirect(code, &to)).await;
        insta::allow_duplicates! {
            insta::assert_snapshot!(error, @"the answer of the token endpoint at ORIGIN is of no use: it is not HTTP 200; check its URL");
        }
    }
    assert_eq!(other.requests().len(), 0);
}

#[tokio::test]
async fn an_endless_token_response_is_not_read() {
    let sent = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&sent);
    let error = without_token(move |_| Response::new(endless("xxxxxxxxxxxxxxxx", &counter))).await;
    insta::assert_snapshot!(error, @"the answer of the token endpoint at ORIGIN is of no use: it is larger than 64 KiB; check its URL");
    assert!(sent.load(Ordering::Relaxed) < 16 * 1024 * 1024);
}

#[tokio::test]
async fn a_token_endpoint_that_hangs_is_given_up() {
    let silence = || Body::from_stream(futures_util::stream::pending::<Result<axum::body::Bytes, std::io::Error>>());
    let error = without_token(move |_| {
        tokio::time::pause();
        Response::new(silence())
    })
    .await;
    assert!(matches!(&error, HttpOpenError::Refused(_)), "{error:?}");
    insta::assert_snapshot!(error, @"the token endpoint at ORIGIN does not answer");
}

#[tokio::test]
async fn waiting_requests_share_a_failed_token_fetch() {
    let tokens = Server::start(|_| status(503, "")).await;
    let server = Server::start(orderly).await;
    let opener = opener(&server.url, HttpKind::Sse, grant(&tokens.url));
    let waiting: Vec<_> = (0..20).map(|_| opener.open()).collect();
    let outcomes = futures_util::future::join_all(waiting).await;
    assert!(outcomes.into_iter().all(|outcome| matches!(outcome, Err(HttpOpenError::Refused(_)))));
    assert!(tokens.requests().len() <= 2, "{}", tokens.requests().len());
}
