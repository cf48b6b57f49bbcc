use std::time::Instant;

use toolbus_core::caller::Identity;
use toolbus_core::failure::Cause;
use toolbus_core::policy::{Capacity, DefinitionCheck, Policy, PolicyHandle, Quarantine};

use super::fixture::{Fixture, is_running};
use super::*;
use crate::spec::ToolFilter;
use crate::status::PhaseName;

#[tokio::test]
async fn a_list_that_changes_is_registered_anew_and_bad_tools_are_shown_with_their_reason() {
    let world = Fixture::run(&[("a", "well")]).await;
    let [odd] = &world.status("a").hidden[..] else { panic!("{:?}", world.status("a").hidden) };
    assert_eq!(odd.name, "odd");
    assert!(odd.reason.contains("file:///etc/passwd"), "{}", odd.reason);
    assert!(world.registry.snapshot().get("odd").is_none());
    let pid = world.call("add").await.unwrap();
    eventually("the added tool", async || world.registry.snapshot().get("added").map(drop)).await;
    assert_eq!(world.call("added").await.unwrap(), pid);
    std::fs::write(world.folder.path().join("a.tools"), "another").unwrap();
    world.refresh("A");
    eventually("the other tool", async || world.registry.snapshot().get("another").map(drop)).await;
    assert!(world.registry.snapshot().get("added").is_none());
    world.end().await;
}

#[tokio::test]
async fn a_list_that_is_the_same_again_changes_nothing() {
    let world = Fixture::run(&[("a", "well")]).await;
    let lists = || world.noted("a", "asked").iter().filter(|method| *method == "tools/list").count();
    let changes = world.registry.changes();
    let (before, first) = (*changes.borrow(), lists());
    for again in 1..=2 {
        world.refresh("a");
        eventually("another list", async || (lists() == first + again).then_some(())).await;
    }
    std::fs::write(world.folder.path().join("a.tools"), "another").unwrap();
    world.refresh("a");
    eventually("the other tool", async || world.registry.snapshot().get("another").map(drop)).await;
    assert_eq!(*changes.borrow(), before + 1);
    world.end().await;
}

#[tokio::test]
async fn only_servers_that_changed_are_touched() {
    let world = Fixture::run(&[("a", "well"), ("b", "well"), ("c", "well")]).await;
    let pid = |name: &str| world.noted(name, "pids").pop().unwrap();
    let (a, b, c) = (pid("a"), pid("b"), pid("c"));
    let mut changed = world.server("b", "well");
    changed.tools = ToolFilter::new(vec!["b_echo".to_owned()], Vec::new());
    world.apply([world.server("a", "well"), changed, ServerSpec { is_disabled: true, ..world.server("d", "well") }]);
    assert!(world.registry.snapshot().get("c_echo").is_none(), "it went with its server");
    eventually("the tools of the changed one", async || world.registry.snapshot().get("b_echo").map(drop)).await;
    assert_eq!(world.status("b").tools, ["b_echo"]);
    assert_eq!(world.noted("b", "pids").len(), 2);
    assert_eq!(world.noted("a", "pids"), [a.as_str()]);
    assert!(is_running(&a) && !is_running(&b), "the next one is started when the last one is gone");
    eventually("the end of the removed one", async || (!is_running(&c)).then_some(())).await;
    // Its tools are registered a moment before.
    world.phase("b", PhaseName::Ready).await;
    let phases: Vec<_> = world.bridge.status().into_iter().map(|status| (status.name, status.phase)).collect();
    let expected = [("a", PhaseName::Ready), ("b", PhaseName::Ready), ("d", PhaseName::Disabled)];
    assert_eq!(phases, expected.map(|(name, phase)| (name.to_owned(), phase)));
    world.end().await;
}

#[tokio::test]
async fn a_summary_changes_without_a_restart_of_its_server() {
    let world = Fixture::run(&[("a", "well")]).await;
    let (pids, before) = (world.noted("a", "pids"), world.bridge.descriptions());
    let summary = |world: &Fixture| world.bridge.describe("A").unwrap().summary;
    assert_eq!(summary(&world), None);
    world.apply([ServerSpec { summary: Some("Files of ana".into()), ..world.server("a", "well") }]);
    assert_eq!(summary(&world).as_deref(), Some("Files of ana"));
    assert_eq!(world.bridge.describe("a").unwrap().summarised().as_deref(), Some("Files of ana"));
    assert_eq!(world.noted("a", "pids"), pids);
    assert!(world.bridge.descriptions() > before);
    world.end().await;
}

#[tokio::test]
async fn limits_change_without_touching_servers() {
    let world = Fixture::run(&[("a", "well")]).await;
    let limits: Limits = Arc::new(|descriptor| {
        if &*descriptor.name == "wait" {
            (descriptor.timeout, descriptor.max_in_flight) = (Some(Duration::from_secs(3)), Some(2));
        }
    });
    world.bridge.apply(vec![ServerWithSet { spec: world.server("a", "well"), set: None }], limits);
    let limited = |name: &str| {
        let snapshot = world.registry.snapshot();
        let descriptor = &snapshot.get(name).unwrap().descriptor;
        (descriptor.timeout, descriptor.max_in_flight)
    };
    assert_eq!(limited("wait"), (Some(Duration::from_secs(3)), Some(2)));
    assert_eq!(limited("pid"), (None, None));
    world.call("add").await.unwrap();
    eventually("the next list", async || world.registry.snapshot().get("added").map(drop)).await;
    assert_eq!(limited("wait"), (Some(Duration::from_secs(3)), Some(2)), "they hold for the next list");
    world.apply([world.server("a", "well")]);
    assert_eq!(limited("wait"), (None, None));
    assert_eq!(world.noted("a", "pids").len(), 1);
    world.end().await;
}

#[tokio::test]
async fn of_two_servers_with_a_tool_of_one_name_the_first_by_name_has_it() {
    let world = Fixture::run(&[("b", "well"), ("a", "well")]).await;
    eventually("all clashes", async || (world.bridge.shared.clashes.lock().len() == 7).then_some(())).await;
    for clash in &*world.bridge.shared.clashes.lock() {
        assert_eq!((&*clash.kept, &*clash.shadowed), ("mcp:a", "mcp:b"));
    }
    let first = world.noted("a", "pids").pop().unwrap();
    assert_eq!(world.call("pid").await.unwrap(), first);
    world.apply([world.server("b", "well")]);
    assert!(world.bridge.shared.clashes.lock().is_empty());
    assert_eq!(world.call("pid").await.unwrap(), world.noted("b", "pids").pop().unwrap());
    world.end().await;
}

#[tokio::test]
async fn servers_are_added_replaced_and_removed_at_run_time() {
    let world = Fixture::run(&[("mine", "well")]).await;
    let latest = || Instant::now() + Duration::from_secs(60);
    let registered = |name, way| ServerSpec { origin: ServerOrigin::Registration, ..world.server(name, way) };
    let configured = world.bridge.add(registered("Mine", "well"), latest()).await;
    assert_eq!(configured, Err("a server of this name is configured".to_owned()));
    let tools = world.bridge.add(registered("a", "well"), latest()).await.unwrap();
    assert!(tools.contains(&"a_echo".to_owned()) && tools.contains(&"pid".to_owned()));
    let first = world.call("a_echo").await.unwrap();
    let failed = world.bridge.add(registered("a", "ends"), latest()).await.unwrap_err();
    assert!(failed.contains("exit code 7"), "{failed}");
    assert!(!is_running(&first));
    world.bridge.add(registered("a", "well"), latest()).await.unwrap();
    world.apply([world.server("mine", "well")]);
    assert_ne!(world.call("a_echo").await.unwrap(), first, "a reload leaves it alone");
    let [mine, a] = ["mine", "A"].map(|name| ServerName::parse(name).unwrap());
    assert!(!world.bridge.remove(&mine).await, "an operator's");
    assert!(world.bridge.remove(&a).await && !world.bridge.remove(&a).await);
    assert!(world.registry.snapshot().get("a_echo").is_none());
    assert_eq!(world.bridge.origin("MINE"), Some(ServerOrigin::Configuration));
    assert_eq!(world.bridge.origin("a"), None);
    world.end().await;
}

/// Quarantines every tool that replaced another.
struct Strict;

impl DefinitionCheck for Strict {
    fn review(&self, _: &[Arc<ToolDescriptor>]) -> Quarantine {
        Quarantine::default()
    }

    fn admits(&self, _: &ToolDescriptor) -> bool {
        false
    }
}

#[tokio::test]
async fn a_waiting_call_is_not_run_if_its_tool_is_quarantined_meanwhile() {
    let world = Fixture::run(&[("a", "well")]).await;
    let capacity = Capacity { max_in_flight: 1, max_waiting: 1 };
    let access = PolicyHandle::new(world.registry.clone(), Identity::default(), Policy::default(), capacity);
    access.set_definition_check(Arc::new(Strict));
    world.call("a_echo").await.unwrap();
    let calls = world.noted("a", "calls").len();
    world.touch("broken");
    let _ = world.call("die").await;
    let waiting = world.begin("a_echo", Instant::now() + Duration::from_secs(60));
    std::fs::write(world.folder.path().join("a.tools"), "another").unwrap();
    world.remove("broken");
    let failure = waiting.await.unwrap_err();
    assert_eq!((failure.cause, &*failure.message), (Cause::UnknownTool, "Tool 'a_echo' is not registered."));
    assert!(world.noted("a", "calls").len() <= calls + 1, "{:?}", world.noted("a", "calls"));
    world.end().await;
}
