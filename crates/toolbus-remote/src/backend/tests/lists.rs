//! Tools that the agent may use, and when they are requested.

#![expect(clippy::disallowed_methods, reason = "tasks of a test end with its runtime")]

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use toolbus_client::Inbox;
use toolbus_core::Clock;
use toolbus_core::bus::Target;
use toolbus_mcp_server::Backend as _;
use toolbus_protocol::{message_type, topic};

use super::fixture::Fixture;

#[tokio::test(start_paused = true)]
async fn a_list_is_kept_and_later_queried_by_its_version() {
    let mut fixture = Fixture::new(Inbox::default());
    let first = fixture.reply_with_tools("1", &json!([{"name": "b"}, {"name": "a"}, {}, 7])).await;
    insta::assert_snapshot!(first.body.to_string(), @r#"{"binding":null,"format":"mcp","ifVersion":null,"names":null,"profile":null,"sessionId":"session"}"#);
    assert_eq!((first.header("rb-source"), first.header("rb-rb-binding")), ("ana".to_owned(), "chat:one".to_owned()));
    assert_eq!(fixture.names().await.unwrap(), ["a", "b"]);
    // The list counts for a moment; then the daemon is queried again.
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(fixture.names().await.unwrap(), ["a", "b"]);
    tokio::time::sleep(Duration::from_secs(2)).await;
    let (remote, caller) = (fixture.remote.clone(), Arc::clone(&fixture.caller));
    let listing = tokio::spawn(async move { remote.list(&caller).await.unwrap().tools.len() });
    assert_eq!(fixture.reply_with_tools("2", &json!([{"name": "c"}])).await.body["ifVersion"], "1");
    assert_eq!(listing.await.unwrap(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_unchanged_list_is_not_sent_again_and_a_changed_one_is_announced() {
    let mut fixture = Fixture::listed(&json!([{"name": "a"}])).await;
    let changes = fixture.remote.changes();
    let before = fixture.remote.fingerprints(&fixture.caller).await;
    // Without a request of a client, the list is checked once a minute.
    let request = fixture.next_request_on(topic::TOOL_LIST).await;
    assert_eq!(request.body["ifVersion"], "1");
    let same = json!({"agent": "ana", "version": "1", "tools": [], "notModified": true});
    fixture.reply(&request, message_type::TOOL_LIST_RESPONSE, &same).await;
    assert_eq!(fixture.names().await.unwrap(), ["a"]);
    assert!(!changes.has_changed().unwrap());
    fixture.reply_with_tools("2", &json!([{"name": "b"}])).await;
    let mut changes = changes;
    changes.changed().await.unwrap();
    assert_ne!(fixture.remote.fingerprints(&fixture.caller).await, before);
    assert_eq!(fixture.names().await.unwrap(), ["b"]);
}

#[tokio::test(start_paused = true)]
async fn an_announcement_or_a_lost_connection_refreshes_the_list_at_once() {
    let mut fixture =
        Fixture::new(Inbox::Own { topics: vec![topic::tools_changed("ana")], max_body: usize::MAX, is_topic: false });
    fixture.reply_with_tools("1", &json!([])).await;
    assert_eq!(fixture.names().await.unwrap(), [""; 0]);
    let mut changes = fixture.remote.changes();
    let began = Clock::SYSTEM.now();
    let body = json!({"version": "2", "added": ["a"], "removed": []});
    fixture.publish(Target::Topic(topic::tools_changed("ana")), message_type::TOOLS_CHANGED, None, &body).await;
    fixture.reply_with_tools("2", &json!([{"name": "a"}])).await;
    changes.changed().await.unwrap();
    fixture.lose();
    fixture.reply_with_tools("3", &json!([{"name": "b"}])).await;
    assert!(Clock::SYSTEM.since(began) < Duration::from_secs(1));
    changes.changed().await.unwrap();
    assert_eq!(fixture.names().await.unwrap(), ["b"]);
}

#[tokio::test(start_paused = true)]
async fn a_failed_listing_returns_its_reason_or_the_last_known_list() {
    let mut fixture = Fixture::without_a_daemon(Inbox::default());
    let error = fixture.names().await.unwrap_err();
    insta::assert_snapshot!(error, @"The tools cannot be listed: no queue of this exchange takes topic `tool.list`: is a daemon running with this topic in invoke.topics?");
    fixture.bring_a_daemon();
    let began = Clock::SYSTEM.now();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let error = fixture.names().await.unwrap_err();
    insta::assert_snapshot!(error, @"The tools cannot be listed: no answer came within 10.0s. Check that `toolbus serve` runs, on the same broker and exchange.");
    assert!(Clock::SYSTEM.since(began) <= Duration::from_secs(13), "{:?}", Clock::SYSTEM.since(began));
    fixture.disconnect("broker: connection refused");
    tokio::time::sleep(Duration::from_secs(20)).await;
    let error = fixture.names().await.unwrap_err();
    insta::assert_snapshot!(error, @"The tools cannot be listed: the broker could not be reached within 10.0s: broker: connection refused. Check that the broker runs, and bus.url.");

    let fixture = Fixture::listed(&json!([{"name": "a"}])).await;
    fixture.disconnect("broker: connection refused");
    tokio::time::sleep(Duration::from_secs(100)).await;
    assert_eq!(fixture.names().await.unwrap(), ["a"]);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_by_the_daemon_keeps_its_words() {
    let mut fixture = Fixture::new(Inbox::default());
    let request = fixture.next_request_on(topic::TOOL_LIST).await;
    let body = json!({"toolCallId": "", "toolName": "", "code": "invalid_arguments", "message": "No such format."});
    fixture.reply(&request, message_type::TOOL_ERROR, &body).await;
    assert_eq!(fixture.names().await.unwrap_err(), "No such format.");
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_session_is_published_if_the_daemon_knows_the_session() {
    let mut fixture = Fixture::listed(&json!([])).await;
    fixture.remote.end_session(&fixture.caller);
    assert_eq!(fixture.next_request_on(topic::TOOL_SESSION_END).await.body, json!({"sessionId": "session"}));
    let unknown = fixture.remote.caller(None, "other".into());
    fixture.remote.end_session(&unknown);
    fixture.remote.close(Duration::from_secs(5)).await;
}
