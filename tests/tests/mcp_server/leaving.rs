//! Clients that leave, a daemon that ends, and messages that break off or lead astray.

use serde_json::json;
use toolbus_e2e::backend::Backend;
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::http::posted;
use toolbus_testing::patience::{PATIENCE, eventually};

use crate::fixture::{ANA, Fixture, alone, call, rules};

#[tokio::test]
async fn a_call_in_a_session_outlives_its_connection_is_audited_once_and_leaves_its_id() {
    let fixture = Fixture::new(&["gate", "echo"]).await;
    let session = fixture.session(ANA).await;
    let left = fixture.send(&[ANA, &session], &call(7, "gate", &json!({"id": "left"}))).await;
    fixture.backend.wait_for("left").await;
    drop(left);
    let echo = call(7, "echo", &json!({"text": "x"}));
    let refused = fixture.exchange(&[ANA, &session], &echo).await;
    assert_eq!(refused["error"]["code"], -32600, "{refused}");
    fixture.backend.open();
    let response = eventually("the id to be free", async || {
        let response = fixture.exchange(&[ANA, &session], &echo).await;
        response["result"].is_object().then_some(response)
    })
    .await;
    assert_eq!(response["result"]["content"][0]["text"], "x");
    eventually("the record", async || (!fixture.audited("gate").is_empty()).then_some(())).await;
    assert_eq!((fixture.audited("gate"), fixture.backend.count("left")), (vec!["called ok".to_owned()], 1));
    fixture.daemon.end().await;
}

#[tokio::test]
async fn a_call_without_a_session_is_cancelled_with_its_connection_and_audited_once() {
    let fixture = Fixture::new(&["gate"]).await;
    let (headers, message) = alone(7, "gate", &json!({"id": "left"}));
    let head: Vec<&str> = [ANA].into_iter().chain(headers.iter().map(String::as_str)).collect();
    let left = fixture.send(&head, &message).await;
    fixture.backend.wait_for("left").await;
    drop(left);
    eventually("the record", async || (!fixture.audited("gate").is_empty()).then_some(())).await;
    assert_eq!(fixture.audited("gate"), ["called cancelled"]);
    fixture.daemon.end().await;
}

#[tokio::test]
async fn a_draining_daemon_responds_to_running_calls_also_on_streams() {
    let mut fixture = Fixture::new(&["gate"]).await;
    let session = fixture.session(ANA).await;
    let mut news = fixture.listen(ANA, &session).await;
    let mut call = fixture.send(&[ANA, &session], &call(1, "gate", &json!({"id": "late"}))).await;
    // It takes so long that its response has become a stream.
    assert!(call.saw(": here").await);
    fixture.daemon.signal("TERM").await;
    eventually("the drain", async || fixture.daemon.logged("draining").pop()).await;
    fixture.backend.open();
    let responded = tokio::time::timeout(PATIENCE, call.saw("passed late")).await;
    assert_eq!(responded, Ok(true));
    let over = tokio::time::timeout(PATIENCE, news.saw("\r\n0\r\n")).await;
    assert_eq!(over, Ok(true));
    assert_eq!(fixture.daemon.ended().await.code(), Some(0));
}

#[tokio::test]
async fn calls_that_wait_when_a_daemon_shuts_down_get_not_started() {
    let backend = Backend::start().await;
    let settings =
        format!("[invoke]\nmax_in_flight = 1\ndrain_timeout = \"300ms\"\n{}", rules(&backend, &["gate"], ""));
    let mut fixture = Fixture { daemon: Daemon::alone(&settings).await, backend };
    let session = fixture.session(ANA).await;
    let gate = |id: i64, name: &str| call(id, "gate", &json!({"id": name}));
    let mut running = fixture.send(&[ANA, &session], &gate(1, "running")).await;
    fixture.backend.wait_for("running").await;
    let mut waiting = fixture.send(&[ANA, &session], &gate(2, "waiting")).await;
    assert!(waiting.saw(": here").await);

    fixture.daemon.signal("TERM").await;
    let not_started = r#"{"code":"overloaded","isRetryable":true,"outcome":"not_started"}"#;
    assert_eq!(tokio::time::timeout(PATIENCE, waiting.saw(not_started)).await, Ok(true));
    let unknown = r#"{"code":"cancelled","isRetryable":false,"outcome":"unknown"}"#;
    assert_eq!(tokio::time::timeout(PATIENCE, running.saw(unknown)).await, Ok(true));
    assert_eq!(fixture.daemon.ended().await.code(), Some(0));
    assert_eq!((fixture.backend.count("running"), fixture.backend.count("waiting")), (1, 0));
}

#[tokio::test]
async fn a_body_that_breaks_off_runs_nothing() {
    let fixture = Fixture::new(&["gate"]).await;
    let session = fixture.session(ANA).await;
    let body = call(1, "gate", &json!({"id": "half"})).to_string();
    let mut client = fixture.client().await;
    client.write(&posted(&[ANA, &session], body.len() + 1)).await;
    client.write(&body).await;
    drop(client);
    fixture.backend.open();
    assert!(fixture.exchange(&[ANA, &session], &call(1, "gate", &json!({"id": "whole"}))).await["result"].is_object());
    assert_eq!((fixture.backend.count("half"), fixture.backend.count("whole")), (0, 1));
    fixture.daemon.end().await;
}

#[tokio::test]
async fn other_methods_are_refused_and_end_no_stream() {
    let fixture = Fixture::new(&["gate", "echo"]).await;
    let session = fixture.session(ANA).await;
    let mut news = fixture.listen(ANA, &session).await;
    for method in ["HEAD", "PUT", "PATCH", "TRACE", "MADEUP"] {
        let mut client = fixture.client().await;
        let head = format!("{ANA}\r\n{session}\r\nAccept: text/event-stream\r\nConnection: close");
        client.write(&format!("{method} /mcp HTTP/1.1\r\nHost: localhost\r\n{head}\r\n\r\n")).await;
        assert!(client.saw("405 Method Not Allowed").await, "{method}");
    }
    fixture.daemon.reload(&rules(&fixture.backend, &["gate"], "")).await;
    assert!(news.saw("notifications/tools/list_changed").await);
    fixture.daemon.end().await;
}
