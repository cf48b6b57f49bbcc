//! Clients that go away in the midst of a call, and revoked tokens.

use std::time::Duration;

use serde_json::json;
use toolbus_testing::patience::eventually;

use super::fixture::{Fixture, call, cancel, message};

#[tokio::test(start_paused = true)]
async fn in_a_session_a_call_outlives_its_connection_and_frees_its_id() {
    let (world, session) = Fixture::begun().await;
    for after in [1, 10] {
        // Before and after the response became a stream.
        let message = call(1, "wait");
        let lost =
            tokio::time::timeout(Duration::from_secs(after), world.request(&world.ana, &session, &message)).await;
        drop(lost);
        let refusal = world.request(&world.ana, &session, &call(1, "echo")).await.refusal().await;
        assert!(refusal.starts_with("200 1 -32600 A request of the id 1 is under way"), "{refusal}");
        world.backend.release.notify_one();
        eventually("the id to be free", async || {
            let response = world.request(&world.ana, &session, &call(1, "echo")).await.json().await;
            response["result"].is_object().then_some(())
        })
        .await;
    }
    let waits: Vec<_> = world.backend.log().into_iter().filter(|line| line.contains("wait")).collect();
    assert_eq!(waits, ["began wait", "ended wait", "began wait", "ended wait"]);
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_client_is_gone_can_still_be_cancelled() {
    let (world, session) = Fixture::begun().await;
    let message = call(1, "wait");
    drop(tokio::time::timeout(Duration::from_secs(1), world.request(&world.ana, &session, &message)).await);
    world.request(&world.ana, &session, &cancel(1)).await;
    eventually("its end", async || (world.backend.log().len() == 2).then_some(())).await;
    assert_eq!(world.backend.log(), ["began wait", "ended wait cancelled"]);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_stands_alone_is_cancelled_with_its_connection() {
    let world = Fixture::new();
    for after in [1, 10] {
        let params = json!({"name": "wait"});
        let request = world.alone(&world.ana, 1, "tools/call", params);
        drop(tokio::time::timeout(Duration::from_secs(after), request).await);
        eventually("its end", async || world.backend.log().last()?.ends_with("cancelled").then_some(())).await;
    }
    assert_eq!(world.backend.log().len(), 4, "each ended once");
}

#[tokio::test(start_paused = true)]
async fn a_call_that_stands_alone_and_has_a_key_outlives_its_connection() {
    let world = Fixture::new();
    let params = json!({"name": "wait", "_meta": {"rb-idempotency-key": "k"}});
    let request = world.alone(&world.ana, 1, "tools/call", params);
    drop(tokio::time::timeout(Duration::from_secs(1), request).await);
    world.backend.release.notify_one();
    eventually("its end", async || (world.backend.log().len() == 2).then_some(())).await;
    assert_eq!(world.backend.log(), ["began wait", "ended wait"]);
}

#[tokio::test(start_paused = true)]
async fn a_revoked_token_ends_its_streams_at_once() {
    let (world, session) = Fixture::begun().await;
    let mut notifications = world.get(&world.ana, &session).await;
    let mut response = world.request(&world.ana, &session, &call(1, "wait")).await;
    let listen = json!({"notifications": {"toolsListChanged": true}});
    let mut listening = world.alone(&world.ana, 2, "subscriptions/listen", listen).await;
    assert_eq!(listening.event().await.unwrap()["method"], "notifications/subscriptions/acknowledged");
    world.ana.revoked.cancel();
    world.backend.has("ana", &["other"]);
    for stream in [&mut notifications, &mut response, &mut listening] {
        assert_eq!(stream.event().await, None);
    }
}

#[tokio::test(start_paused = true)]
async fn a_closing_server_ends_notification_streams_and_finishes_calls() {
    let mut world = Fixture::new();
    // As in the daemon: closing the server revokes every token.
    world.ana.revoked = world.closing.child_token();
    let session = world.begin(&world.ana).await;
    let mut notifications = world.get(&world.ana, &session).await;
    let mut response = world.request(&world.ana, &session, &call(1, "wait")).await;
    assert!(response.is_stream());
    let listen = json!({"notifications": {"toolsListChanged": true}});
    let mut listening = world.alone(&world.ana, 2, "subscriptions/listen", listen).await;
    listening.event().await.unwrap();
    world.closing.cancel();
    assert_eq!(notifications.event().await, None);
    assert_eq!(listening.event().await.unwrap()["result"]["resultType"], "complete");
    assert_eq!(listening.event().await, None);
    world.backend.release.notify_one();
    assert_eq!(response.event().await.unwrap()["result"]["content"][0]["text"], "released");
    assert_eq!(response.event().await, None);
}

#[tokio::test(start_paused = true)]
async fn an_unread_response_does_not_block_its_call() {
    let (world, session) = Fixture::begun().await;
    let storm = message(1, "tools/call", json!({"name": "storm", "_meta": {"progressToken": 1}}));
    let _unread = world.request(&world.ana, &session, &storm).await;
    eventually("the end of the call", async || (world.backend.log().len() == 2).then_some(())).await;
    assert_eq!(world.backend.log(), ["began storm", "ended storm"]);
}

#[tokio::test(start_paused = true)]
async fn in_a_session_a_resource_read_outlives_its_connection() {
    let world = Fixture::new();
    world.backend.has("ana", &["get_from_working_memory", "echo"]);
    let session = world.begin(&world.ana).await;
    let read = message(1, "resources/read", json!({"uri": "toolbus://memory/wait"}));
    drop(tokio::time::timeout(Duration::from_secs(1), world.request(&world.ana, &session, &read)).await);
    let refusal = world.request(&world.ana, &session, &call(1, "echo")).await.refusal().await;
    assert!(refusal.starts_with("200 1 -32600 A request of the id 1 is under way"), "{refusal}");
    world.backend.release.notify_one();
    eventually("its end", async || (world.backend.log().len() == 2).then_some(())).await;

    let alone = world.alone(&world.ana, 1, "resources/read", json!({"uri": "toolbus://memory/wait"}));
    drop(tokio::time::timeout(Duration::from_secs(1), alone).await);
    world.backend.release.notify_one();
    eventually("its end", async || (world.backend.log().len() == 4).then_some(())).await;
    let tool = "get_from_working_memory";
    let expected =
        [format!("began {tool}"), format!("ended {tool}"), format!("began {tool}"), format!("ended {tool} cancelled")];
    assert_eq!(world.backend.log(), expected);
}
