//! Streams of notifications.

use std::time::Duration;

use serde_json::{Value, json};

use super::fixture::{BOTH, Fixture, JSON, TestResponse, message, standing_alone};

const TOOLS: &str = "notifications/tools/list_changed";
const RESOURCES: &str = "notifications/resources/list_changed";

/// Returns the next event, if it comes soon.
async fn soon(stream: &mut TestResponse) -> Option<Value> {
    tokio::time::timeout(Duration::from_secs(60), stream.event()).await.ok().flatten()
}

fn method(event: Option<Value>) -> String {
    event.map_or_else(String::new, |event| event["method"].as_str().unwrap_or_default().to_owned())
}

async fn list(world: &Fixture, session: &str) {
    for method in ["tools/list", "resources/list"] {
        world.request(&world.ana, session, &message(1, method, json!({}))).await;
    }
}

#[tokio::test(start_paused = true)]
async fn each_burst_of_changes_is_notified_once() {
    let (world, session) = Fixture::begun().await;
    list(&world, &session).await;
    let mut stream = world.get(&world.ana, &session).await;
    assert_eq!(soon(&mut stream).await, None);
    for number in 0..10 {
        world.backend.has("ana", &["echo", &format!("new_{number}")]);
        world.backend.set_instructions(&format!("text {number}"));
    }
    assert_eq!([method(soon(&mut stream).await), method(soon(&mut stream).await)], [TOOLS, RESOURCES]);
    assert_eq!(soon(&mut stream).await, None);
    world.backend.has("ana", &["echo"]);
    assert_eq!(method(soon(&mut stream).await), TOOLS);
    assert_eq!(soon(&mut stream).await, None);
}

#[tokio::test(start_paused = true)]
async fn changes_of_other_agents_and_unchanged_lists_are_not_notified() {
    let (world, session) = Fixture::begun().await;
    let mut stream = world.get(&world.ana, &session).await;
    world.backend.has("bea", &["secret"]);
    world.backend.has("ana", &["wait", "storm", "scripted", "echo"]);
    assert_eq!(soon(&mut stream).await, None);
}

#[tokio::test(start_paused = true)]
async fn changes_before_a_stream_are_notified_until_the_client_lists() {
    let (world, session) = Fixture::begun().await;
    list(&world, &session).await;
    world.backend.has("ana", &["echo"]);
    let mut stream = world.get(&world.ana, &session).await;
    assert_eq!(method(soon(&mut stream).await), TOOLS);
    assert_eq!(soon(&mut stream).await, None);
    drop(stream);
    list(&world, &session).await;
    let mut stream = world.get(&world.ana, &session).await;
    assert_eq!(soon(&mut stream).await, None, "the client has listed the change");
}

#[tokio::test(start_paused = true)]
async fn notifications_of_a_broken_stream_are_repeated() {
    let (world, session) = Fixture::begun().await;
    list(&world, &session).await;
    let mut stream = world.get(&world.ana, &session).await;
    world.backend.has("ana", &["echo"]);
    assert_eq!(method(soon(&mut stream).await), TOOLS, "the server cannot know that it is lost");
    drop(stream);
    let mut again = world.get(&world.ana, &session).await;
    assert_eq!(method(soon(&mut again).await), TOOLS);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_never_listed_is_notified_of_changes_since_its_first_stream() {
    let (world, session) = Fixture::begun().await;
    drop(world.get(&world.ana, &session).await);
    world.backend.set_instructions("something new");
    let mut stream = world.get(&world.ana, &session).await;
    assert_eq!(method(soon(&mut stream).await), RESOURCES);
    assert_eq!(soon(&mut stream).await, None);
}

#[tokio::test(start_paused = true)]
async fn an_unread_stream_merges_ten_thousand_changes() {
    let (world, session) = Fixture::begun().await;
    let mut stream = world.get(&world.ana, &session).await;
    for number in 0..10_000 {
        world.backend.has("ana", &["echo", &format!("new_{number}")]);
    }
    assert_eq!(method(soon(&mut stream).await), TOOLS);
    assert_eq!(soon(&mut stream).await, None);
}

#[tokio::test(start_paused = true)]
async fn a_second_stream_of_a_session_replaces_the_first() {
    let (world, session) = Fixture::begun().await;
    let mut first = world.get(&world.ana, &session).await;
    let mut second = world.get(&world.ana, &session).await;
    world.backend.has("ana", &["echo"]);
    assert_eq!(first.event().await, None);
    assert_eq!(method(soon(&mut second).await), TOOLS);
}

#[tokio::test(start_paused = true)]
async fn a_stateless_stream_has_only_the_requested_notifications() {
    let world = Fixture::new();
    let listen = json!({"notifications": {"toolsListChanged": true, "promptsListChanged": true}});
    let mut stream = world.alone(&world.ana, 7, "subscriptions/listen", listen).await;
    let first = stream.event().await.unwrap();
    insta::assert_snapshot!(first, @r#"{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":7},"notifications":{"toolsListChanged":true}}}"#);
    world.backend.set_instructions("something new");
    world.backend.has("ana", &["echo"]);
    let notification = soon(&mut stream).await.unwrap();
    insta::assert_snapshot!(notification, @r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":7}}}"#);
    assert_eq!(soon(&mut stream).await, None);
}

#[tokio::test(start_paused = true)]
async fn a_stream_repeats_its_id_as_the_client_wrote_it() {
    let world = Fixture::new();
    let id = "123456789012345678901234567890";
    let listen = json!({"notifications": {"toolsListChanged": true}});
    let request =
        standing_alone(7, "subscriptions/listen", listen).to_string().replace("\"id\":7", &format!("\"id\":{id}"));
    let headers = [JSON, BOTH, ("mcp-protocol-version", "2026-07-28"), ("mcp-method", "subscriptions/listen")];
    let stream = world.send(&world.ana, &headers, request).await;
    world.closing.cancel();
    let text = stream.text().await;
    let messages: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
    insta::assert_snapshot!(messages.join("\n"), @r#"
    {"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":123456789012345678901234567890},"notifications":{"toolsListChanged":true}}}
    {"jsonrpc":"2.0","id":123456789012345678901234567890,"result":{"resultType":"complete","_meta":{"io.modelcontextprotocol/subscriptionId":123456789012345678901234567890,"io.modelcontextprotocol/serverInfo":{"name":"toolbus","title":"Toolbus","version":"0.0.0"}}}}
    "#);
}

#[tokio::test(start_paused = true)]
async fn a_stream_must_be_accepted_and_is_of_a_session() {
    let (world, session) = Fixture::begun().await;
    assert_eq!(world.get(&world.ana, "made-up").await.status.as_u16(), 404);
    let mut stream = world.get(&world.ana, &session).await;
    assert!(stream.is_stream());
    assert_eq!(stream.headers["cache-control"], "no-cache, no-transform");
    assert_eq!(soon(&mut stream).await, None);
}
