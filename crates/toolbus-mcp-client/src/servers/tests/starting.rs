use std::time::Instant;

use toolbus_core::failure::Cause;

use super::fixture::{Fixture, HASTE, is_running, kill};
use super::*;
use crate::status::PhaseName;

#[tokio::test]
async fn a_server_that_hangs_delays_no_other() {
    let world = Fixture::new();
    world.apply([world.server("a", "mute"), world.server("b", "well"), world.server("c", "well")]);
    world.phase("b", PhaseName::Ready).await;
    world.phase("c", PhaseName::Ready).await;
    assert_eq!(world.status("a").phase, PhaseName::Connecting);
    world.end().await;
}

#[tokio::test]
async fn a_first_connection_that_fails_is_tried_again() {
    let world = Fixture::new();
    world.touch("broken");
    world.apply([world.server("a", "well")]);
    let failed = world.phase("a", PhaseName::Waiting).await;
    assert!(failed.last_error.is_some_and(|error| error.contains("exit code 7")));
    assert_eq!(failed.stderr, ["cannot find my settings"]);
    world.remove("broken");
    let ready = world.phase("a", PhaseName::Ready).await;
    assert_eq!(ready.restarts, 0, "it had not been ready before");
    world.end().await;
}

impl Fixture {
    /// Waits until a server is parked. Each of the waits before is cut short.
    async fn parked(&self, name: &str) {
        eventually("parking", async || {
            self.refresh(name);
            (self.status(name).phase == PhaseName::Parked).then_some(())
        })
        .await;
    }

    /// The server `a` is ready, then broken and killed, and at last parked.
    async fn broken(timeouts: Timeouts) -> Self {
        let world = Self::with_timeouts(timeouts);
        world.apply([world.server("a", "well")]);
        world.phase("a", PhaseName::Ready).await;
        world.touch("broken");
        kill(&world.noted("a", "pids").pop().unwrap());
        world.parked("a").await;
        world
    }
}

#[tokio::test]
async fn a_server_that_fails_again_and_again_is_parked_and_tried_again_later() {
    let world = Fixture::with_timeouts(Timeouts { parked: Duration::from_millis(500), ..HASTE });
    world.touch("broken");
    world.apply([world.server("a", "well")]);
    world.parked("a").await;
    // Each try has a connection in either session mode.
    assert_eq!(world.noted("a", "pids").len(), 6 * 2);
    world.remove("broken");
    world.phase("a", PhaseName::Ready).await;
    world.end().await;
}

#[tokio::test]
async fn a_call_that_finds_a_server_parked_tries_it_soon() {
    let (parked, retry) = (Duration::from_secs(3600), Duration::from_millis(100));
    let world = Fixture::broken(Timeouts { parked, retry, ..HASTE }).await;
    world.remove("broken");
    eventually("a call that starts it", async || world.call("pid").await.ok()).await;
    world.end().await;
}

#[tokio::test]
async fn only_a_restart_revives_a_parked_server_at_once() {
    let world = Fixture::broken(Timeouts { parked: Duration::from_secs(3600), ..HASTE }).await;
    world.refresh("a");
    let tried = world.noted("a", "pids");
    let failure = world.call("pid").await.unwrap_err();
    assert_eq!(failure.cause, Cause::ConnectFailed);
    assert_eq!(world.noted("a", "pids"), tried, "it was tried a moment ago");
    insta::assert_snapshot!(failure.message, @"MCP server 'a' is registered but not reachable right now (it fails again and again). Try again later, or ask an operator to look at it.");
    world.remove("broken");
    assert_eq!(world.status("a").phase, PhaseName::Parked);
    assert!(world.bridge.restart("A"));
    world.phase("a", PhaseName::Ready).await;
    assert!(!world.bridge.restart("b"));
    world.end().await;
}

#[tokio::test]
async fn a_call_waits_for_a_server_that_is_being_connected_to_until_its_deadline() {
    let world = Fixture::run(&[("a", "well")]).await;
    world.touch("broken");
    let _ = world.call("die").await;
    let waiting = world.begin("pid", Instant::now() + Duration::from_secs(60));
    let late = world.call_within("pid", Duration::from_millis(50)).await.unwrap_err();
    assert_eq!(late.cause, Cause::Expired);
    insta::assert_snapshot!(late.message, @"MCP server 'a' was not connected before the deadline of the call. The tool was not run.");
    world.remove("broken");
    let pid = waiting.await.unwrap().content.unwrap();
    assert_eq!(world.noted("a", "pids").last(), Some(&pid));
    world.end().await;
}

#[tokio::test]
async fn standard_error_about_the_probe_is_kept_and_not_logged() {
    let world = Fixture::new();
    let log = world.folder.path().join("log");
    let writer = Arc::new(std::fs::File::create(&log).unwrap());
    let subscriber = tracing_subscriber::fmt().with_max_level(tracing::Level::INFO).with_writer(writer).finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let logged = || std::fs::read_to_string(&log).unwrap();

    world.apply([world.server("a", "chatty")]);
    world.phase("a", PhaseName::Ready).await;
    eventually("a line of the log", async || {
        world.call("pid").await.unwrap();
        logged().contains("called pid").then_some(())
    })
    .await;
    assert!(world.status("a").stderr.contains(&"no such method".to_owned()));
    assert!(!logged().contains("no such method"));
    world.end().await;
}

#[tokio::test]
async fn a_restart_gives_up_a_start_that_hangs() {
    let world = Fixture::new();
    world.apply([world.server("a", "mute")]);
    let first = eventually("a process", async || world.noted("a", "pids").pop()).await;
    assert!(world.bridge.restart("a"));
    eventually("another process", async || (world.noted("a", "pids").len() > 1).then_some(())).await;
    assert!(!is_running(&first), "two processes of one server");
    world.end().await;
}

#[tokio::test]
async fn a_shutdown_ends_servers_that_are_still_being_started() {
    let world = Fixture::new();
    world.apply([world.server("a", "mute"), world.server("b", "stays"), world.server("c", "ends")]);
    for name in ["a", "b", "c"] {
        eventually("a process", async || world.noted(name, "pids").pop()).await;
    }
    world.end().await;
}
