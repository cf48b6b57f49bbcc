//! Servers that do not speak the protocol.

use crate::fixture::Fixture;

#[tokio::test]
async fn a_server_that_writes_garbage_or_a_line_without_an_end_is_given_up() {
    for (siege, error) in [("garbage", "no MCP messages"), ("line", "a line over 16 MiB")] {
        let fixture = Fixture::besieged(siege).await;
        fixture.seen("waiting", error).await;
        fixture.end().await;
    }
}

#[tokio::test]
async fn a_silent_server_is_shown_as_connecting_and_no_call_waits_for_it() {
    let fixture = Fixture::besieged("silent").await;
    fixture.seen("connecting", "").await;
    // Retryable: the server may have the tool once its first connection is there.
    assert_eq!(fixture.strike().await.code(), "execution_failed");
    fixture.end().await;
}

#[tokio::test]
async fn a_server_that_never_responds_to_initialize_is_given_up_and_its_last_output_is_shown() {
    let fixture = Fixture::besieged("mute").await;
    let shown = fixture.seen("waiting", "within 60 s").await;
    assert_eq!(shown["stderr"][0], "waiting for the licence server", "{shown}");
    fixture.end().await;
}
