//! Tools that the agent may use, and when they are asked for.

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
async fn the_daemon_is_asked_once_and_by_its_version_later() {
    let mut fixture = Fixture::new(Inbox::default());
    let first = fixture.tell_list("1", &json!([{"name": "b"}, {"name": "a"}, {}, 7])).await;
    insta::assert_snapshot!(first.body.to_string(), @r#"{"binding":null,"format":"mcp","ifVersion":null,"names":null,"profile":null,"sessionId":"session"}"#);
    assert_eq!((first.header("rb-source"), first.header("rb-rb-binding")), ("ana".to_owned(), "chat:one".to_owned()));
    assert_eq!(fixture.names().await.unwrap(), ["a", "b"]);
    // A moment later that still counts; after a while the daemon is asked again.
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(fixture.names().await.unwrap(), ["a", "b"]);
    tokio::time::sleep(Duration::from_secs(2)).await;
    let (remote, caller) = (fixture.remote.clone(), Arc::clone(&fixture.caller));
    let listing = tokio::spawn(async move { remote.list(&caller).await.unwrap().tools.len() });
    assert_eq!(fixture.tell_list("2", &json!([{"name": "c"}])).await.body["ifVersion"], "1");
    assert_eq!(listing.await.unwrap(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_list_that_is_the_same_is_not_sent_again_and_one_that_is_not_is_told() {
    let mut fixture = Fixture::listed(&json!([{"name": "a"}])).await;
    let changes = fixture.remote.changes();
    let told = fixture.remote.fingerprints(&fixture.caller).await;
    // Nobody asked: the list is looked at once a minute.
    let asked = fixture.asked_on(topic::TOOL_LIST).await;
    assert_eq!(asked.body["ifVersion"], "1");
    let same = json!({"agent": "ana", "version": "1", "tools": [], "notModified": true});
    fixture.answer(&asked, message_type::TOOL_LIST_RESPONSE, &same).await;
    assert_eq!(fixture.names().await.unwrap(), ["a"]);
    assert!(!changes.has_changed().unwrap());
    fixture.tell_list("2", &json!([{"name": "b"}])).await;
    let mut changes = changes;
    changes.changed().await.unwrap();
    assert_ne!(fixture.remote.fingerprints(&fixture.caller).await, told);
    assert_eq!(fixture.names().await.unwrap(), ["b"]);
}

#[tokio::test(start_paused = true)]
async fn an_announcement_and_a_lost_connection_have_the_list_asked_for_at_once() {
    let mut fixture =
        Fixture::new(Inbox::Own { topics: vec![topic::tools_changed("ana")], max_body: usize::MAX, is_topic: false });
    fixture.tell_list("1", &json!([])).await;
    assert_eq!(fixture.names().await.unwrap(), [""; 0]);
    let mut changes = fixture.remote.changes();
    let began = Clock::SYSTEM.now();
    let body = json!({"version": "2", "added": ["a"], "removed": []});
    fixture.publish(Target::Topic(topic::tools_changed("ana")), message_type::TOOLS_CHANGED, None, &body).await;
    fixture.tell_list("2", &json!([{"name": "a"}])).await;
    changes.changed().await.unwrap();
    fixture.lose();
    fixture.tell_list("3", &json!([{"name": "b"}])).await;
    assert!(Clock::SYSTEM.since(began) < Duration::from_secs(1));
    changes.changed().await.unwrap();
    assert_eq!(fixture.names().await.unwrap(), ["b"]);
}

#[tokio::test(start_paused = true)]
async fn what_is_wrong_is_told_and_what_was_told_before_still_counts() {
    let mut fixture = Fixture::without_a_daemon(Inbox::default());
    let told = fixture.names().await.unwrap_err();
    insta::assert_snapshot!(told, @"The tools cannot be listed: no queue of this exchange takes topic `tool.list`: is a daemon running with this topic in invoke.topics?");
    fixture.bring_a_daemon();
    let began = Clock::SYSTEM.now();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let told = fixture.names().await.unwrap_err();
    insta::assert_snapshot!(told, @"The tools cannot be listed: no answer came within 10.0s. Check that `toolbus serve` runs, on the same broker and exchange.");
    assert!(Clock::SYSTEM.since(began) <= Duration::from_secs(13), "{:?}", Clock::SYSTEM.since(began));
    fixture.disconnect("broker: connection refused");
    tokio::time::sleep(Duration::from_secs(20)).await;
    let told = fixture.names().await.unwrap_err();
    insta::assert_snapshot!(told, @"The tools cannot be listed: the broker could not be reached within 10.0s: broker: connection refused. Check that the broker runs, and bus.url.");

    let fixture = Fixture::listed(&json!([{"name": "a"}])).await;
    fixture.disconnect("broker: connection refused");
    tokio::time::sleep(Duration::from_secs(100)).await;
    assert_eq!(fixture.names().await.unwrap(), ["a"]);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_of_the_daemon_is_told_in_its_words() {
    let mut fixture = Fixture::new(Inbox::default());
    let asked = fixture.asked_on(topic::TOOL_LIST).await;
    let body = json!({"toolCallId": "", "toolName": "", "code": "invalid_arguments", "message": "No such format."});
    fixture.answer(&asked, message_type::TOOL_ERROR, &body).await;
    assert_eq!(fixture.names().await.unwrap_err(), "No such format.");
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_session_is_told_to_a_daemon_that_knows_of_it() {
    let mut fixture = Fixture::listed(&json!([])).await;
    fixture.remote.end_session(&fixture.caller);
    assert_eq!(fixture.asked_on(topic::TOOL_SESSION_END).await.body, json!({"sessionId": "session"}));
    let unknown = fixture.remote.caller(None, "other".into());
    fixture.remote.end_session(&unknown);
    fixture.remote.close(Duration::from_secs(5)).await;
}
