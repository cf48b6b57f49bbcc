//! Servers that end too soon, or not at all.

use toolbus_testing::patience::eventually;

use crate::fixture::Fixture;

#[tokio::test]
async fn a_server_that_ends_at_once_is_parked_and_its_output_is_shown() {
    let fixture = Fixture::besieged("exits").await;
    let shown = fixture.seen("parked", "the server ended with exit code 3").await;
    assert_eq!(shown["stderr"][0], "cannot find my configuration", "{shown}");
    let listed = fixture.daemon.operate(&["mcp", "list"]).await.out;
    assert!(listed.contains("parked") && !listed.contains("cannot find"), "{listed}");
    assert_eq!(fixture.strike().await.code(), "tool_not_found");
    fixture.end().await;
}

#[tokio::test]
async fn a_server_that_ignores_sigterm_is_killed() {
    let fixture = Fixture::besieged("stubborn").await;
    fixture.seen("ready", "").await;
    fixture.end().await;
}

#[tokio::test]
async fn processes_forked_by_a_server_end_with_a_killed_daemon() {
    let mut fixture = Fixture::besieged("forks").await;
    fixture.seen("ready", "").await;
    eventually("the children", async || (fixture.processes().len() == 7).then_some(())).await;
    fixture.daemon.signal("KILL").await;
    fixture.daemon.ended().await;
    eventually("the end of all processes", async || fixture.processes().is_empty().then_some(())).await;
    fixture.site.purge(&fixture.site.queue()).await;
}
