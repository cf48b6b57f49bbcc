#![expect(clippy::disallowed_methods, reason = "tasks of a test end with its runtime")]

use toolbus_core::Clock;

use super::super::view::Disabled;
use super::*;
use crate::http::refusal::PENALTY;

#[tokio::test]
async fn over_http_the_token_gives_the_same_as_the_socket() {
    let fixture = Fixture::new().await;
    let agents: Value = fixture.http(TOKEN).send(Method::GET, "/v1/agents").await.unwrap();
    assert_eq!(agents, fixture.get("/v1/agents").await);
    let switching: Switching = fixture.http(TOKEN).send(Method::PUT, "/v1/disabled/agent/ana").await.unwrap();
    assert!(switching.changed && switching.known);
    let disabled: Disabled = fixture.socket().send(Method::GET, "/v1/disabled").await.unwrap();
    assert_eq!(disabled.disabled.len(), 1);
}

#[tokio::test]
async fn over_http_nothing_is_shown_or_done_without_the_token() {
    let fixture = Fixture::new().await;
    for (method, path) in
        [("GET", "/v1/agents"), ("PUT", "/v1/disabled/tool/echo"), ("GET", "/v1/nothing"), ("PUT", "/v1/agents")]
    {
        let response = fixture.over_tcp(&format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n\r\n")).await;
        assert!(
            response.starts_with("HTTP/1.1 401 ") && response.contains("www-authenticate: Bearer"),
            "{path}: {response}"
        );
        assert!(!response.contains("ana"), "{response}");
    }
    let evil = format!("GET /v1/agents HTTP/1.1\r\nHost: evil.example\r\nAuthorization: Bearer {TOKEN}\r\n\r\n");
    assert!(fixture.over_tcp(&evil).await.starts_with("HTTP/1.1 421 "));
    assert!(fixture.policy.disabled().is_empty());
}

#[tokio::test]
async fn the_token_of_readers_lets_read_and_do_nothing() {
    let fixture = Fixture::new().await;
    let reader = fixture.http(READ_TOKEN);
    let agents: Value = reader.send(Method::GET, "/v1/agents").await.unwrap();
    assert_eq!(agents, fixture.get("/v1/agents").await);
    let refused = reader.send::<Value>(Method::PUT, "/v1/disabled/agent/ana").await.unwrap_err();
    assert!(refused.to_string().contains("http.read_token lets read alone: this needs http.admin_token"), "{refused}");
    assert!(fixture.policy.disabled().is_empty());
    let question = r#"{"agent": "ana", "tool": "web_search"}"#;
    let explain = format!(
        "POST /v1/explain HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {READ_TOKEN}\r\nContent-Length: {}\r\n\r\n{question}",
        question.len()
    );
    let refusals = fixture.over_tcp(&explain).await;
    assert!(refusals.starts_with("HTTP/1.1 200 ") && refusals.contains("\"steps\""), "{refusals}");
}

#[tokio::test]
async fn a_wrong_token_is_refused_late_and_delays_no_right_one() {
    let fixture = Fixture::new().await;
    let started = Clock::SYSTEM.now();
    let (wrong, right) = (fixture.http("s3cret"), fixture.http(TOKEN));
    let wrong = async { (wrong.send::<Value>(Method::GET, "/v1/agents").await, Clock::SYSTEM.since(started)) };
    let right = async { (right.send::<Value>(Method::GET, "/v1/agents").await, Clock::SYSTEM.since(started)) };
    let ((refused, late), (accepted, soon)) = tokio::join!(wrong, right);
    assert!(matches!(refused, Err(AdminClientError::Refused(_))), "{refused:?}");
    assert!(accepted.is_ok() && soon < PENALTY && late >= PENALTY, "{soon:?} {late:?}");
}

#[tokio::test]
async fn actions_of_operators_and_wrong_tokens_are_recorded_with_their_origin() {
    let fixture = Fixture::new().await;
    let over_http = fixture.http(TOKEN);
    fixture.socket().send::<Value>(Method::PUT, "/v1/disabled/tool/echo").await.unwrap();
    over_http.send::<Value>(Method::DELETE, "/v1/disabled/tool/echo").await.unwrap();
    over_http.send::<Value>(Method::DELETE, "/v1/breakers/nothing").await.unwrap_err();
    over_http.send::<Value>(Method::GET, "/v1/agents").await.unwrap();
    fixture.http("wrong").send::<Value>(Method::GET, "/v1/agents").await.unwrap_err();
    let records = fixture.audit.0.lock();
    let shown = records.iter().map(|record| {
        let remote = record.remote.map(|remote| remote.to_string()).unwrap_or_default();
        let (event, status) = (record.event.as_str(), record.status.as_str());
        [event, record.action.as_deref().unwrap_or_default(), record.operator.unwrap_or_default(), &remote, status]
            .join("; ")
    });
    insta::assert_snapshot!(shown.collect::<Vec<_>>().join("\n"), @"
    acted; switch tool echo off; socket; ; ok
    acted; switch tool echo on; admin_token over HTTP; 127.0.0.1; ok
    acted; reset breaker nothing; admin_token over HTTP; 127.0.0.1; error
    refused_entry; ; ; 127.0.0.1; auth_required
    ");
}

#[tokio::test]
async fn a_daemon_without_a_token_and_one_that_is_gone_are_reported() {
    let fixture = Fixture::new().await;
    let closed = HttpServer::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
    let (_bus, state) = watch::channel(BusState::default());
    let health = Arc::new(Health::new(sources(state, Registry::new())));
    let url = format!("http://{}", closed.address()).parse().unwrap();
    tokio::spawn(closed.run(http_state(health), tokio::runtime::Handle::current(), fixture.stop.clone()));
    let client = AdminClient::Http { url, token: Secret::new(TOKEN) };
    let error = client.send::<Value>(Method::GET, "/v1/agents").await.unwrap_err();
    assert!(matches!(error, AdminClientError::Closed(_)) && error.to_string().contains("http.admin_token"), "{error}");
    let error =
        AdminClient::Socket("/nonexistent/s".into()).send::<Value>(Method::GET, "/v1/agents").await.unwrap_err();
    insta::assert_snapshot!(error, @"no daemon answers on the socket `/nonexistent/s`: No such file or directory (os error 2). Start one with `toolbus serve`; or point to one that runs, with --config (its configuration), --socket (its daemon.socket) or --daemon (its http.listen)");
    let error = fixture.http("a\nb").send::<Value>(Method::GET, "/v1/agents").await.unwrap_err();
    assert!(matches!(error, AdminClientError::Refused(_)), "{error}");
}
