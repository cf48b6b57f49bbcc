use super::fixture::{Fixture, is_running};
use super::*;
use crate::spec::ToolFilter;
use crate::status::PhaseName;

#[tokio::test]
async fn a_denied_tool_is_not_offered_by_a_registered_server_of_the_same_name() {
    let world = Fixture::new();
    world.bridge.restore(vec![ServerSpec { origin: ServerOrigin::Registration, ..world.server("a", "well") }]);
    world.phase("a", PhaseName::Ready).await;
    let registered = world.call("pid").await.unwrap();
    let denied = ToolFilter::new(Vec::new(), vec!["pid".to_owned()]);
    world.apply([ServerSpec { tools: denied, ..world.server("a", "well") }]);
    eventually("the tools of the operator's", async || world.registry.snapshot().get("a_echo").map(drop)).await;
    let snapshot = world.registry.snapshot();
    assert!(snapshot.get("pid").is_none() && snapshot.shadowed().next().is_none());
    assert!(!is_running(&registered), "it is there besides the operator's");
    world.end().await;
}

#[tokio::test]
async fn a_server_whose_name_is_written_anew_has_another_source() {
    let world = Fixture::run(&[("a", "well")]).await;
    world.apply([ServerSpec { name: ServerName::parse("A").unwrap(), ..world.server("a", "well") }]);
    eventually("the tools", async || world.registry.snapshot().get("pid").map(drop)).await;
    let snapshot = world.registry.snapshot();
    assert!(snapshot.tools().all(|tool| &*tool.descriptor.source == "mcp:A"));
    assert_eq!(world.bridge.status().into_iter().map(|server| server.name).collect::<Vec<_>>(), ["A"]);
    world.end().await;
}

#[tokio::test]
async fn a_server_that_was_removed_or_replaced_registers_nothing_any_more() {
    let world = Fixture::run(&[("a", "well")]).await;
    let removed = world.bridge.shared.entry("a").unwrap();
    world.apply([]);
    world.bridge.shared.publish(&removed);
    assert!(world.registry.snapshot().is_empty());
    let allowed = ToolFilter::new(vec!["wait".to_owned()], Vec::new());
    world.apply([ServerSpec { tools: allowed, ..world.server("a", "well") }]);
    eventually("the tool of the next one", async || world.registry.snapshot().get("wait").map(drop)).await;
    world.bridge.shared.publish(&removed);
    assert_eq!(world.registry.snapshot().names().collect::<Vec<_>>(), ["wait"]);
    world.end().await;
}

#[tokio::test]
async fn earlier_requests_of_a_server_do_not_start_it_again() {
    let world = Fixture::new();
    world.touch("broken");
    world.apply([world.lazy("a"), world.lazy("b")]);
    let entry = world.bridge.shared.entry("a").unwrap();
    eventually("a wait before the next try", async || match world.status("a").phase {
        PhaseName::Waiting => Some(()),
        _ => {
            tokio::spawn(entry.arrival(false));
            None
        }
    })
    .await;
    world.remove("broken");
    let failed = world.noted("a", "pids").len();
    assert!(world.bridge.restart("a"));
    entry.relist();
    world.phase("a", PhaseName::Ready).await;
    world.phase("a", PhaseName::Idle).await;
    let other = world.bridge.shared.entry("b").unwrap();
    other.arrival(true).await;
    world.phase("b", PhaseName::Idle).await;
    assert_eq!(world.noted("a", "pids").len(), failed + 1);
    world.end().await;
}
