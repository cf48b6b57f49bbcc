//! Clients that leave, a daemon that ends, and messages that break off or lead astray.

use serde_json::json;
use toolbus_e2e::http::posted;
use toolbus_testing::patience::{PATIENCE, eventually};

use crate::fixture::{ANA, World, alone, call, rules};

#[tokio::test]
async fn a_call_in_a_session_outlives_its_connection_is_audited_once_and_leaves_its_id() {
    let world = World::new(&["gate", "echo"]).await;
    let session = world.session(ANA).await;
    let left = world.send(&[ANA, &session], &call(7, "gate", &json!({"id": "left"}))).await;
    world.backend.wait_for("left").await;
    drop(left);
    let echo = call(7, "echo", &json!({"text": "x"}));
    let refused = world.ask(&[ANA, &session], &echo).await;
    assert_eq!(refused["error"]["code"], -32600, "{refused}");
    world.backend.open();
    let answer = eventually("the id to be free", async || {
        let answer = world.ask(&[ANA, &session], &echo).await;
        answer["result"].is_object().then_some(answer)
    })
    .await;
    assert_eq!(answer["result"]["content"][0]["text"], "x");
    eventually("the record", async || (!world.audited("gate").is_empty()).then_some(())).await;
    assert_eq!((world.audited("gate"), world.backend.count("left")), (vec!["called ok".to_owned()], 1));
    world.daemon.end().await;
}

#[tokio::test]
async fn a_call_that_stands_alone_is_cancelled_with_its_connection_and_audited_once() {
    let world = World::new(&["gate"]).await;
    let (headers, message) = alone(7, "gate", &json!({"id": "left"}));
    let head: Vec<&str> = [ANA].into_iter().chain(headers.iter().map(String::as_str)).collect();
    let left = world.send(&head, &message).await;
    world.backend.wait_for("left").await;
    drop(left);
    eventually("the record", async || (!world.audited("gate").is_empty()).then_some(())).await;
    assert_eq!(world.audited("gate"), ["called cancelled"]);
    world.daemon.end().await;
}

#[tokio::test]
async fn a_daemon_that_ends_answers_calls_in_hand_also_those_whose_answer_is_a_stream() {
    let mut world = World::new(&["gate"]).await;
    let session = world.session(ANA).await;
    let mut news = world.listen(ANA, &session).await;
    let mut call = world.send(&[ANA, &session], &call(1, "gate", &json!({"id": "late"}))).await;
    // It takes so long that its answer has become a stream.
    assert!(call.saw(": here").await);
    world.daemon.signal("TERM").await;
    eventually("the drain", async || world.daemon.logged("draining").pop()).await;
    world.backend.open();
    let answered = tokio::time::timeout(PATIENCE, call.saw("passed late")).await;
    assert_eq!(answered, Ok(true));
    let over = tokio::time::timeout(PATIENCE, news.saw("\r\n0\r\n")).await;
    assert_eq!(over, Ok(true));
    assert_eq!(world.daemon.ended().await.code(), Some(0));
}

#[tokio::test]
async fn arguments_that_are_deep_or_ambiguous_reach_no_tool() {
    let world = World::new(&["gate"]).await;
    let session = world.session(ANA).await;
    let deep = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
    for arguments in [format!(r#"{{"id":{deep}}}"#), r#"{"id":"one","id":"two"}"#.to_owned()] {
        let params = format!(r#"{{"name":"gate","arguments":{arguments}}}"#);
        let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{params}}}"#);
        let mut client = world.client().await;
        client.write(&posted(&[ANA, &session], body.len())).await;
        client.write(&body).await;
        let answer = client.answer().await.json();
        assert_eq!(answer["result"]["_meta"]["toolbus/error"]["code"], "invalid_arguments", "{answer}");
    }
    assert_eq!(world.backend.total(), 0);
    world.daemon.end().await;
}

#[tokio::test]
async fn a_body_that_breaks_off_runs_nothing() {
    let world = World::new(&["gate"]).await;
    let session = world.session(ANA).await;
    let body = call(1, "gate", &json!({"id": "half"})).to_string();
    let mut client = world.client().await;
    client.write(&posted(&[ANA, &session], body.len() + 1)).await;
    client.write(&body).await;
    drop(client);
    world.backend.open();
    assert!(world.ask(&[ANA, &session], &call(1, "gate", &json!({"id": "whole"}))).await["result"].is_object());
    assert_eq!((world.backend.count("half"), world.backend.count("whole")), (0, 1));
    world.daemon.end().await;
}

#[tokio::test]
async fn a_result_of_fifteen_megabytes_comes_whole() {
    let world = World::new(&["large"]).await;
    let session = world.session(ANA).await;
    let count = 15 * 1024 * 1024;
    let answer = world.ask(&[ANA, &session], &call(1, "large", &json!({"count": count}))).await;
    assert_eq!(
        answer["result"]["content"][0]["text"].as_str().map(str::len),
        Some(count),
        "{:.300}",
        answer.to_string()
    );
    world.daemon.end().await;
}

#[tokio::test]
async fn other_methods_are_refused_and_end_no_stream() {
    let world = World::new(&["gate", "echo"]).await;
    let session = world.session(ANA).await;
    let mut news = world.listen(ANA, &session).await;
    for method in ["HEAD", "PUT", "PATCH", "TRACE", "MADEUP"] {
        let mut client = world.client().await;
        let head = format!("{ANA}\r\n{session}\r\nAccept: text/event-stream\r\nConnection: close");
        client.write(&format!("{method} /mcp HTTP/1.1\r\nHost: localhost\r\n{head}\r\n\r\n")).await;
        assert!(client.saw("405 Method Not Allowed").await, "{method}");
    }
    world.daemon.reload(&rules(&world.backend, &["gate"], "")).await;
    assert!(news.saw("notifications/tools/list_changed").await);
    world.daemon.end().await;
}
