//! Servers that do not speak the protocol.

use crate::fixture::World;

#[tokio::test]
async fn a_server_that_writes_garbage_is_given_up() {
    let world = World::besieged("garbage").await;
    world.seen("waiting", "no MCP messages").await;
    world.end().await;
}

#[tokio::test]
async fn a_server_that_ends_within_a_message_is_given_up() {
    let world = World::besieged("half").await;
    world.seen("waiting", "in the middle of a message").await;
    world.end().await;
}

#[tokio::test]
async fn a_server_that_never_ends_its_message_is_seen_to_connect() {
    let world = World::besieged("held").await;
    world.seen("connecting", "").await;
    world.end().await;
}

#[tokio::test]
async fn a_line_without_an_end_is_not_kept() {
    let world = World::besieged("line").await;
    world.seen("waiting", "a line over 16 MiB").await;
    world.end().await;
}

#[tokio::test]
async fn a_server_that_says_nothing_is_seen_to_connect_and_its_tool_is_not_waited_for() {
    let world = World::besieged("silent").await;
    world.seen("connecting", "").await;
    // Retryable: the server may have the tool once its first connection is there.
    assert_eq!(world.strike().await.code(), "execution_failed");
    world.end().await;
}

#[tokio::test]
async fn a_server_that_never_answers_initialize_is_given_up_and_its_last_words_are_shown() {
    let world = World::besieged("mute").await;
    let shown = world.seen("waiting", "within 60 s").await;
    assert_eq!(shown["stderr"][0], "waiting for the licence server", "{shown}");
    world.end().await;
}

#[tokio::test]
async fn a_server_that_answers_with_another_id_is_given_up() {
    let world = World::besieged("other-id").await;
    world.seen("waiting", "with the id 1000000").await;
    world.end().await;
}
