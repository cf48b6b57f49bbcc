//! Servers that end too soon, or not at all.

use toolbus_testing::patience::eventually;

use crate::fixture::World;

#[tokio::test]
async fn a_server_that_ends_at_once_is_parked_and_what_it_said_is_shown() {
    let world = World::besieged("exits").await;
    let shown = world.seen("parked", "the server ended with exit code 3").await;
    assert_eq!(shown["stderr"][0], "cannot find my configuration", "{shown}");
    let listed = world.daemon.operate(&["mcp", "list"]).await.out;
    assert!(listed.contains("parked") && !listed.contains("cannot find"), "{listed}");
    assert_eq!(world.strike().await.code(), "tool_not_found");
    world.end().await;
}

#[tokio::test]
async fn a_server_that_ignores_sigterm_is_killed() {
    let world = World::besieged("stubborn").await;
    world.seen("ready", "").await;
    world.end().await;
}

#[tokio::test]
async fn what_a_server_forks_ends_with_it() {
    let world = World::besieged("forks").await;
    world.seen("ready", "").await;
    // The neighbour and its supervisor, the server and its own, and three children.
    let before = eventually("the children", async || Some(world.processes()).filter(|pids| pids.len() == 7)).await;
    world.add("").await;
    eventually("their end", async || (world.processes().len() == 2).then_some(())).await;
    world.neighbour_serves().await;
    assert!(world.processes().iter().all(|pid| before.contains(pid)));
    world.end().await;
}

#[tokio::test]
async fn what_a_server_forks_ends_with_a_daemon_that_is_killed() {
    let mut world = World::besieged("forks").await;
    world.seen("ready", "").await;
    eventually("the children", async || (world.processes().len() == 7).then_some(())).await;
    world.daemon.signal("KILL").await;
    world.daemon.ended().await;
    eventually("the end of all processes", async || world.processes().is_empty().then_some(())).await;
    world.site.purge(&world.site.queue()).await;
}
