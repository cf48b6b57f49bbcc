//! Breakers: an endpoint that fails again and again is not called for a while.

use serde_json::{Value, json};
use tokio::net::TcpSocket;
use toolbus_e2e::backend::Backend;
use toolbus_e2e::daemon::Daemon;
use toolbus_testing::patience::eventually;

/// A port of this test's at which nothing listens, until it does.
fn closed_port() -> (TcpSocket, u16) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let port = socket.local_addr().unwrap().port();
    (socket, port)
}

fn endpoint(name: &str, port: u16) -> String {
    format!(
        "[[rest.endpoints]]\nname = {name:?}\ndescription = \"d\"\nurl = \"http://127.0.0.1:{port}/\"\nmethod = \"POST\"\n"
    )
}

#[tokio::test]
async fn a_tool_that_keeps_failing_is_refused_at_once_and_comes_back_with_a_trial() {
    let (closed, port) = closed_port();
    let rules = "[breaker]\nfailures = 3\npause = \"10s\"\nmax_pause = \"10s\"\n[tools]\necho = true\n";
    let (site, daemon, client) = Daemon::with_client(&format!("{rules}{}", endpoint("pay", port))).await;
    for _ in 0..3 {
        let failed = client.call("pay", &json!({})).await;
        assert_eq!(failed.code(), "execution_failed");
        assert!(!failed.error().contains("again and again"), "{}", failed.error());
    }
    let refused = client.call("pay", &json!({})).await;
    let body = refused.body();
    assert_eq!((&body["code"], &body["isRetryable"]), (&json!("execution_failed"), &json!(true)), "{body}");
    assert_eq!(body["outcome"], "not_started");
    assert!(body["retryAfterMs"].as_u64().is_some_and(|wait| (1..=10_000).contains(&wait)), "{body}");
    assert_eq!(client.call("echo", &json!({"text": "others go on"})).await.content(), "others go on");
    let (_, status) = daemon.get("/status").await.unwrap();
    assert_eq!(status["breakers"][0]["name"], "pay", "{status}");
    let listed = daemon.operate(&["breaker", "list", "--output", "json"]).await.json();
    assert_eq!(listed["breakers"][0]["failures"].as_u64(), Some(3), "{listed}");
    assert_eq!(daemon.logged("circuit breaker opened").len(), 1);

    // The backend comes back, and a trial finds it.
    let app = axum::Router::new().fallback(async || "paid");
    let listener = closed.listen(16).unwrap();
    let server = tokio::spawn(async move { axum::serve(listener, app).await });
    let reply = eventually("a trial that succeeds", async || {
        let reply = client.call("pay", &json!({})).await;
        (reply.code() != "execution_failed").then_some(reply)
    })
    .await;
    assert_eq!(reply.content(), "paid");
    assert_eq!(daemon.logged("circuit breaker closed").len(), 1);
    let listed = daemon.operate(&["breaker", "list"]).await;
    assert_eq!(listed.out.trim(), "every tool and server gets its calls");
    server.abort();
    daemon.stop(&site).await;
}

#[tokio::test]
async fn an_operator_resets_a_breaker_and_a_reload_turns_breakers_off() {
    let (_closed, port) = closed_port();
    let tools = endpoint("pay", port);
    let rules =
        |failures: u32| format!("[breaker]\nfailures = {failures}\npause = \"1h\"\nmax_pause = \"1h\"\n{tools}");
    let (site, daemon, client) = Daemon::with_client(&rules(1)).await;
    let message = async || client.call("pay", &json!({})).await.error();
    assert!(!message().await.contains("again and again"));
    assert!(message().await.contains("again and again"));
    let reset = daemon.operate(&["breaker", "reset", "pay", "--output", "json"]).await.json();
    assert_eq!(reset, json!({"name": "pay", "wasOpen": true}));
    assert!(!message().await.contains("again and again"), "it is called, and fails");
    assert!(message().await.contains("again and again"));
    let reload = daemon.reload(&rules(0)).await;
    assert_eq!(reload["changed"], "breaker", "{reload}");
    for _ in 0..3 {
        assert!(!message().await.contains("again and again"));
    }
    let again = daemon.operate(&["breaker", "reset", "pay"]).await;
    assert_eq!(again.out.trim(), "pay got its calls already");
    daemon.stop(&site).await;
}

#[tokio::test]
async fn results_with_is_error_and_callers_without_patience_trip_nothing() {
    let backend = Backend::start().await;
    let tools =
        format!("{}{}", backend.tool("slow", "/gate?id={id}", ""), backend.tool("gone", "/status/404?id={id}", ""));
    let (site, daemon, client) = Daemon::with_client(&format!("[breaker]\nfailures = 2\n{tools}")).await;
    for number in 0..4 {
        let reply = client.call("gone", &json!({"id": format!("g{number}")})).await;
        assert_eq!(reply.body()["isError"], Value::Bool(true), "{reply:?}");
        let hasty = client.request("slow", &json!({"id": format!("s{number}")})).header("rb-rb-timeout-ms", "200");
        assert_eq!(client.exchange(&hasty).await.code(), "timeout");
    }
    let (_, status) = daemon.get("/status").await.unwrap();
    assert_eq!(status["breakers"], json!([]), "{status}");
    backend.open();
    daemon.stop(&site).await;
}
