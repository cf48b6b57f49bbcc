//! Calls under way: their ids, cancelling, and progress.

use std::time::Duration;

use serde_json::json;

use super::fixture::{BOTH, Fixture, JSON, call, cancel, message};

#[tokio::test(start_paused = true)]
async fn an_id_is_used_once_at_a_time_and_again_afterwards() {
    let (world, session) = Fixture::begun().await;
    let first = world.waiting(&session).await;
    let refusal = world.request(&world.ana, &session, &call(1, "echo")).await.refusal().await;
    insta::assert_snapshot!(refusal, @"200 1 -32600 A request of the id 1 is under way in this session. Use each id once.");
    world.backend.release.notify_one();
    assert_eq!(first.await.json().await["result"]["content"][0]["text"], "released");
    let again = world.request(&world.ana, &session, &call(1, "echo")).await.json().await;
    assert_eq!(again["result"]["isError"], false);
    assert_eq!(world.backend.log(), ["began wait", "ended wait", "began echo", "ended echo"]);
}

#[tokio::test(start_paused = true)]
async fn cancelling_before_after_and_twice_reaches_a_call_once_and_no_other() {
    let (world, session) = Fixture::begun().await;
    assert_eq!(world.request(&world.ana, &session, &cancel(1)).await.status.as_u16(), 202);
    // The earlier cancellation named another request.
    let waiting = world.waiting(&session).await;
    for _ in 0..2 {
        assert_eq!(world.request(&world.ana, &session, &cancel(1)).await.status.as_u16(), 202);
    }
    let mut response = waiting.await;
    assert!(response.is_stream());
    assert_eq!(response.event().await, None);
    world.request(&world.ana, &session, &cancel(1)).await;
    let next = world.request(&world.ana, &session, &call(1, "echo")).await.json().await;
    assert_eq!(next["result"]["isError"], false);
    assert_eq!(world.backend.log(), ["began wait", "ended wait cancelled", "began echo", "ended echo"]);
}

#[tokio::test(start_paused = true)]
async fn a_cancellation_reaches_no_other_session_or_agent() {
    let world = Fixture::new();
    world.backend.has("bea", &["wait"]);
    let (session, second) = (world.begin(&world.ana).await, world.begin(&world.ana).await);
    let of_bea = world.begin(&world.bea).await;
    let mut waiting = world.waiting(&session).await;
    assert_eq!(world.request(&world.ana, &second, &cancel(1)).await.status.as_u16(), 202);
    assert_eq!(world.request(&world.bea, &of_bea, &cancel(1)).await.status.as_u16(), 202);
    assert_eq!(world.request(&world.bea, &session, &cancel(1)).await.status.as_u16(), 404);
    assert_eq!(
        world.post(&world.ana, &[], &cancel(1)).await.status.as_u16(),
        202,
        "without a session it names nothing"
    );
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(futures_util::poll!(&mut waiting).is_pending());
    world.backend.release.notify_one();
    assert_eq!(waiting.await.json().await["result"]["isError"], false);
}

#[tokio::test(start_paused = true)]
async fn a_slow_response_becomes_a_stream_after_five_seconds() {
    let (world, session) = Fixture::begun().await;
    let begun = tokio::time::Instant::now();
    let mut response = world.request(&world.ana, &session, &call(1, "wait")).await;
    assert!(response.is_stream());
    assert_eq!(begun.elapsed(), Duration::from_secs(5));
    let backend = world.backend.clone();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_secs(60)).await;
        backend.release.notify_one();
    });
    assert_eq!(response.event().await.unwrap()["result"]["content"][0]["text"], "released");
    assert_eq!(response.event().await, None);
}

#[tokio::test(start_paused = true)]
async fn a_storm_of_progress_reaches_a_slow_reader_in_order_and_the_response_comes_last() {
    let (world, session) = Fixture::begun().await;
    let storm = message(1, "tools/call", json!({"name": "storm", "_meta": {"progressToken": "t"}}));
    let mut response = world.request(&world.ana, &session, &storm).await;
    let mut reports = Vec::new();
    loop {
        // The tool is long done.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let event = response.event().await.unwrap();
        if event["result"].is_object() {
            assert_eq!((&event["id"], &event["result"]["content"][0]["text"]), (&json!(1), &json!("calm")));
            break;
        }
        assert_eq!(
            (&event["method"], &event["params"]["progressToken"]),
            (&json!("notifications/progress"), &json!("t"))
        );
        reports.push(event["params"]["progress"].as_f64().unwrap());
    }
    assert!(reports.is_sorted_by(|one, other| one < other), "{reports:?}");
    assert!((1..100).contains(&reports.len()), "unread reports are not kept: {} reports", reports.len());
    assert_eq!(response.event().await, None);
}

#[tokio::test(start_paused = true)]
async fn a_progress_report_made_with_the_result_is_sent_before_it() {
    let world = Fixture::new();
    world.backend.has("ana", &["hasty"]);
    let session = world.begin(&world.ana).await;
    let hasty = message(1, "tools/call", json!({"name": "hasty", "_meta": {"progressToken": "t"}}));
    let mut response = world.request(&world.ana, &session, &hasty).await;
    assert_eq!(response.event().await.unwrap()["params"], json!({"progressToken": "t", "progress": 1.0, "total": 1.0}));
    assert_eq!(response.event().await.unwrap()["result"]["content"][0]["text"], "done");
    assert_eq!(response.event().await, None);
}

#[tokio::test(start_paused = true)]
async fn a_call_with_an_invalid_progress_token_gets_no_progress() {
    let (world, session) = Fixture::begun().await;
    for token in [json!(null), json!(1.5), json!({}), json!([1]), json!("x".repeat(300))] {
        let call = message(1, "tools/call", json!({"name": "echo", "_meta": {"progressToken": token}}));
        assert!(!world.request(&world.ana, &session, &call).await.is_stream(), "{token}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_idempotency_key_reaches_the_backend_and_an_invalid_key_is_refused() {
    let (world, session) = Fixture::begun().await;
    let with = |meta: serde_json::Value| message(1, "tools/call", json!({"name": "echo", "_meta": meta}));
    for meta in [json!({"rb-idempotency-key": "order-7"}), json!({"rb-idempotency-key": null}), json!({}), json!(7)] {
        assert_eq!(world.request(&world.ana, &session, &with(meta)).await.json().await["result"]["isError"], false);
    }
    assert_eq!(*world.backend.keys.lock(), [Some("order-7".to_owned()), None, None, None]);
    let mut refusals = String::new();
    for key in [json!(7), json!(["k"]), json!(""), json!("a\u{7}"), json!("x".repeat(256)), json!("tool-call-id")] {
        let refused = world.request(&world.ana, &session, &with(json!({"rb-idempotency-key": key}))).await;
        refusals += &(refused.refusal().await + "\n");
    }
    let twice = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","_meta":{"rb-idempotency-key":"a","rb-idempotency-key":"b"}}}"#;
    let headers = [JSON, BOTH, ("mcp-session-id", &*session)];
    refusals += &world.send(&world.ana, &headers, twice).await.refusal().await;
    insta::assert_snapshot!(refusals, @r#"
    200 1 -32602 `_meta["rb-idempotency-key"]` must be one string.
    200 1 -32602 `_meta["rb-idempotency-key"]` must be one string.
    200 1 -32602 `_meta["rb-idempotency-key"]` must have 1 to 255 bytes, without control characters.
    200 1 -32602 `_meta["rb-idempotency-key"]` must have 1 to 255 bytes, without control characters.
    200 1 -32602 `_meta["rb-idempotency-key"]` must have 1 to 255 bytes, without control characters.
    200 1 -32602 `_meta["rb-idempotency-key"]` is `tool-call-id`, which identifies no call of MCP. Give a key of your own.
    200 1 -32602 `_meta["rb-idempotency-key"]` must be one string.
    "#);
    assert_eq!(world.backend.keys.lock().len(), 4, "no call with a refused key runs");
}
