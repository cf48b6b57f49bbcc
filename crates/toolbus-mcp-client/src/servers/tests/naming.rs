//! Owners of names.

use toolbus_core::Clock;
use toolbus_core::caller::Identity;
use toolbus_core::policy::{Capacity, Policy, PolicyHandle};
use toolbus_core::tool::Naming;
use toolbus_trust::pins::{Level, Levels, NamedSource, Pins};

use super::fixture::Fixture;
use super::*;
use crate::status::PhaseName;

/// Waits until names are kept.
async fn kept(world: &Fixture) {
    eventually("names to be kept", async || world.registry.is_keeping_names().then_some(())).await;
}

/// Waits until `shadowed` lists a tool of this name, which `kept` has.
async fn shadowed(world: &Fixture, name: &str, kept: &str, shadowed: &str) {
    let wanted = Clash { name: name.into(), kept: kept.into(), shadowed: shadowed.into() };
    eventually("the clash", async || world.registry.snapshot().clashes().any(|clash| clash == wanted).then_some(()))
        .await;
}

fn pid(world: &Fixture, server: &str) -> String {
    world.noted(server, "pids").pop().unwrap()
}

/// Rules that check the tools of a world by pins, of which those of `zzz` are pinned; and what keeps both together.
fn pinned(world: &Fixture, file: &std::path::Path) -> (PolicyHandle, Pins) {
    let levels = Levels::new([("mcp:zzz".to_owned(), Level::Strict)], []);
    let named = NamedSource { source: "mcp:zzz".to_owned(), naming: Naming::default(), reached: None };
    let pins = Pins::open(Some(file.to_owned()), levels.naming([named]), Clock::SYSTEM).unwrap();
    let capacity = Capacity { max_in_flight: 1, max_waiting: 1 };
    let access = PolicyHandle::new(world.registry.clone(), Identity::default(), Policy::default(), capacity);
    access.set_definition_check(Arc::new(pins.clone()));
    (access, pins)
}

#[tokio::test]
async fn a_server_that_lists_the_tool_of_another_later_does_not_get_its_calls() {
    let world = Fixture::new();
    std::fs::write(world.folder.path().join("zzz.tools"), "added").unwrap();
    world.apply([world.server("zzz", "well"), world.server("aaa", "well")]);
    kept(&world).await;
    let zzz = pid(&world, "zzz");
    assert_eq!(world.call("added").await.unwrap(), zzz);
    assert_eq!(
        world.call("add").await.unwrap(),
        pid(&world, "aaa"),
        "of a start together the first by name has a tool"
    );
    shadowed(&world, "added", "mcp:zzz", "mcp:aaa").await;
    assert_eq!(world.call("added").await.unwrap(), zzz);
    assert_eq!(world.noted("aaa", "calls"), ["add"]);
    world.end().await;
}

#[tokio::test]
async fn a_second_server_of_one_kind_that_is_added_takes_no_tool_of_the_first() {
    let world = Fixture::run(&[("files", "well")]).await;
    kept(&world).await;
    world.apply([world.server("files", "well"), world.server("documents", "well")]);
    shadowed(&world, "pid", "mcp:files", "mcp:documents").await;
    assert_eq!(world.call("pid").await.unwrap(), pid(&world, "files"));
    // Nor while the first is started again, with another configuration.
    world.apply([world.lazy("files"), world.server("documents", "well")]);
    assert!(world.registry.snapshot().get("pid").is_none(), "the name waits for its server");
    world.apply([world.server("documents", "well")]);
    assert_eq!(world.call("pid").await.unwrap(), pid(&world, "documents"), "the first is gone");
    world.end().await;
}

#[tokio::test]
async fn two_servers_of_one_kind_live_side_by_side_under_names_of_their_own() {
    let world = Fixture::new();
    let named = |name: &str, prefix: &str, renamed: &[(&str, &str)]| {
        let renamed = renamed.iter().map(|(own, name)| ((*own).into(), (*name).into())).collect();
        let naming = Naming { set: None, prefix: Some(prefix.into()), renamed };
        ServerSpec { naming, ..world.server(name, "well") }
    };
    world.apply([named("a", "files", &[("silence", "hush")]), named("b", "docs", &[])]);
    for name in ["a", "b"] {
        world.phase(name, PhaseName::Ready).await;
    }
    assert_eq!(world.call("files_pid").await.unwrap(), pid(&world, "a"));
    assert_eq!(world.call("docs_pid").await.unwrap(), pid(&world, "b"));
    let snapshot = world.registry.snapshot();
    assert!(snapshot.get("hush").is_some() && snapshot.get("pid").is_none());
    assert_eq!(snapshot.clashes().count(), 0);
    assert_eq!(world.noted("a", "calls"), ["pid"], "its own name for the tool");
    world.end().await;
}

#[tokio::test]
async fn the_name_of_a_pinned_tool_waits_for_its_server_over_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pins.json");
    {
        let world = Fixture::new();
        let (access, pins) = pinned(&world, &file);
        std::fs::write(world.folder.path().join("zzz.tools"), "added").unwrap();
        world.apply([world.server("zzz", "well")]);
        world.phase("zzz", PhaseName::Ready).await;
        access.refresh();
        pins.save().unwrap();
        world.end().await;
    }
    let world = Fixture::new();
    let (access, pins) = pinned(&world, &file);
    std::fs::write(world.folder.path().join("zzz.tools"), "added").unwrap();
    std::fs::write(world.folder.path().join("aaa.tools"), "added").unwrap();
    world.apply([world.server("aaa", "well"), world.lazy("zzz")]);
    world.phase("aaa", PhaseName::Ready).await;
    kept(&world).await;
    access.refresh();
    shadowed(&world, "added", "mcp:zzz", "mcp:aaa").await;
    assert!(world.registry.snapshot().get("added").is_none(), "no server serves the name of an absent pinned one");
    world.apply([world.server("aaa", "well"), world.server("zzz", "well")]);
    world.phase("zzz", PhaseName::Ready).await;
    assert_eq!(world.call("added").await.unwrap(), pid(&world, "zzz"));
    // Nor is there a way around by approving: the name is its own until it is gone from the configuration.
    pins.set_levels(Levels::default());
    world.apply([world.server("aaa", "well")]);
    access.refresh();
    assert_eq!(world.call("added").await.unwrap(), pid(&world, "aaa"));
    world.end().await;
}
