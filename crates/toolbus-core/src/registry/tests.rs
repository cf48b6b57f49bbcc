//! Tools that come and go.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use toolbus_protocol::llm_name;

use super::{Clash, Rank, Registry, RegistryError};
use crate::quarantine::{Claim, DefinitionCheck, Quarantine};
use crate::tool::{Tool, ToolCall, ToolDescriptor, ToolOutput};

fn tool(name: &str, source: &str) -> Tool {
    Tool::new(ToolDescriptor::new(name, source, "local"), ToolOutput::text("hello"))
}

fn names(registry: &Registry) -> Vec<String> {
    registry.snapshot().list().iter().map(|tool| tool.name.to_string()).collect()
}

fn source_of(registry: &Registry, name: &str) -> Option<String> {
    registry.snapshot().get(name).map(|tool| tool.descriptor.source.to_string())
}

#[test]
fn a_registered_tool_is_found_by_its_exact_name() {
    let registry = Registry::new();
    assert!(registry.snapshot().is_empty());
    registry.register(tool("web_search", "web")).unwrap();
    assert_eq!(source_of(&registry, "web_search").as_deref(), Some("web"));
    for other in ["Web_Search", "web_search ", "web", ""] {
        assert_eq!(source_of(&registry, other), None, "{other:?}");
    }
}

#[tokio::test]
async fn the_executor_that_was_registered_is_the_one_that_runs() {
    let registry = Registry::new();
    registry.register(Tool::new(ToolDescriptor::new("a", "s", "local"), ToolOutput::text("from a"))).unwrap();
    registry.register(Tool::new(ToolDescriptor::new("b", "s", "local"), ToolOutput::text("from b"))).unwrap();
    let executor = Arc::clone(&registry.snapshot().get("b").unwrap().executor);
    let call = ToolCall::new("b", crate::caller::Caller::unknown(), serde_json::Map::new(), std::time::Duration::ZERO);
    assert_eq!(executor.execute_boxed(call).await, Ok(ToolOutput::text("from b")));
}

#[test]
fn tools_are_listed_by_name() {
    let registry = Registry::new();
    for name in ["c", "a", "b"] {
        registry.register(tool(name, "s")).unwrap();
    }
    assert_eq!(names(&registry), ["a", "b", "c"]);
    assert_eq!(registry.snapshot().len(), 3);
    assert_eq!(registry.snapshot().names().count(), 3);
}

#[test]
fn a_taken_name_is_refused_with_its_owner() {
    let registry = Registry::new();
    registry.register(tool("a", "first")).unwrap();
    let error = registry.register(tool("a", "second")).unwrap_err();
    assert_eq!(error.to_string(), "tool `a` of source `second` is already registered by source `first`");
    assert!(registry.register(tool("a", "first")).is_err());
    assert_eq!(source_of(&registry, "a").as_deref(), Some("first"));
}

#[test]
fn an_unusable_name_is_refused() {
    let registry = Registry::new();
    let long = "x".repeat(256);
    for name in ["", "a\nb", "a\0", "\u{85}", &long] {
        assert!(matches!(registry.register(tool(name, "s")), Err(RegistryError::Name { .. })), "{name:?}");
    }
    registry.register(tool(&"x".repeat(255), "s")).unwrap();
    registry.register(tool("fs.read/file:ü 1", "s")).unwrap();
    assert_eq!(registry.snapshot().len(), 2);
}

#[test]
fn an_unregistered_tool_is_gone_and_its_name_is_free() {
    let registry = Registry::new();
    registry.register(tool("a", "first")).unwrap();
    assert!(registry.unregister("a"));
    assert_eq!(source_of(&registry, "a"), None);
    assert!(!registry.unregister("a"));
    registry.register(tool("a", "second")).unwrap();
    assert_eq!(source_of(&registry, "a").as_deref(), Some("second"));
}

#[test]
fn a_source_is_replaced_whole_and_alone() {
    let registry = Registry::new();
    registry.register(tool("mine", "other")).unwrap();
    registry.publish(Rank::Configured, &"fs".into(), vec![tool("read", "fs"), tool("write", "fs")]).unwrap();
    registry.publish(Rank::Configured, &"fs".into(), vec![tool("read", "fs"), tool("list", "fs")]).unwrap();
    assert_eq!(names(&registry), ["list", "mine", "read"]);
    registry.publish(Rank::Configured, &"fs".into(), Vec::new()).unwrap();
    assert_eq!(names(&registry), ["mine"]);
}

#[test]
fn a_refused_replacement_changes_nothing() {
    let registry = Registry::new();
    registry.register(tool("mine", "other")).unwrap();
    registry.publish(Rank::Configured, &"fs".into(), vec![tool("read", "fs")]).unwrap();
    let changes = registry.changes();
    for refused in [vec![tool("list", "fs"), tool("list", "fs")], vec![tool("list", "fs"), tool("", "fs")]] {
        assert!(registry.publish(Rank::Configured, &"fs".into(), refused).is_err());
        assert_eq!(names(&registry), ["mine", "read"]);
        assert_eq!(source_of(&registry, "mine").as_deref(), Some("other"));
    }
    assert!(!changes.has_changed().unwrap());
}

#[test]
fn everything_is_replaced_at_once_or_nothing_is() {
    let registry = Registry::new();
    registry.register_all(vec![tool("a", "s"), tool("b", "t")]).unwrap();
    assert!(registry.replace_all(vec![tool("c", "s"), tool("c", "t")]).is_err());
    assert_eq!(names(&registry), ["a", "b"]);
    registry.replace_all(vec![tool("b", "s"), tool("c", "t")]).unwrap();
    assert_eq!(names(&registry), ["b", "c"]);
    assert_eq!(source_of(&registry, "b").as_deref(), Some("s"));
}

#[test]
fn a_snapshot_stays_as_it_was_taken() {
    let registry = Registry::new();
    registry.register(tool("a", "s")).unwrap();
    let before = registry.snapshot();
    registry.unregister("a");
    assert!(before.get("a").is_some());
    assert!(registry.snapshot().get("a").is_none());
}

#[tokio::test]
async fn every_change_is_announced_and_nothing_else() {
    let registry = Registry::new();
    let mut changes = registry.changes();
    registry.register(tool("a", "s")).unwrap();
    changes.changed().await.unwrap();
    let first = *changes.borrow_and_update();
    registry.register(tool("a", "s")).unwrap_err();
    assert!(!changes.has_changed().unwrap(), "a refusal is no change");
    assert!(!registry.unregister("b"));
    assert!(!changes.has_changed().unwrap(), "removing what is not there is no change");
    registry.publish(Rank::Configured, &"t".into(), Vec::new()).unwrap();
    assert!(!changes.has_changed().unwrap(), "nothing from a source that had nothing is no change");
    registry.publish(Rank::Configured, &"t".into(), vec![tool("b", "t"), tool("c", "t")]).unwrap();
    assert_eq!(*changes.borrow_and_update(), first + 1, "a replacement is one change");
    assert!(registry.unregister("a"));
    assert_eq!(*changes.borrow_and_update(), first + 2);
}

#[test]
fn a_reader_never_sees_half_a_replacement() {
    let registry = Registry::new();
    let set = |mark: &str| -> Vec<Tool> { (0..20).map(|n| tool(&format!("{mark}{n}"), "s")).collect() };
    registry.publish(Rank::Configured, &"s".into(), set("a")).unwrap();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..200 {
                registry.publish(Rank::Configured, &"s".into(), set(if round % 2 == 0 { "b" } else { "a" })).unwrap();
            }
            done.store(true, Ordering::Release);
        });
        while !done.load(Ordering::Acquire) {
            let snapshot = registry.snapshot();
            let of_a = snapshot.names().filter(|name| name.starts_with('a')).count();
            assert_eq!(snapshot.len(), 20);
            assert!(of_a == 0 || of_a == 20, "{of_a} of 20");
        }
    });
}

#[test]
fn concurrent_registrations_are_all_kept() {
    let registry = Registry::new();
    thread::scope(|scope| {
        for worker in 0..4 {
            let registry = &registry;
            scope.spawn(move || {
                for n in 0..25 {
                    registry.register(tool(&format!("{worker}-{n}"), "s")).unwrap();
                }
            });
        }
    });
    assert_eq!(registry.snapshot().len(), 100);
    assert_eq!(*registry.changes().borrow(), 100);
}

#[test]
fn ten_thousand_tools_are_kept_and_found() {
    let registry = Registry::new();
    let tools = (0..10_000).map(|n| tool(&format!("tool_{n}"), "many")).collect();
    registry.publish(Rank::Configured, &"many".into(), tools).unwrap();
    let snapshot = registry.snapshot();
    assert_eq!(snapshot.len(), 10_000);
    assert!((0..10_000).all(|n| snapshot.get(&format!("tool_{n}")).is_some()));
    assert!(snapshot.get("tool_10000").is_none());
    registry.register(tool("one_more", "other")).unwrap();
    assert_eq!(registry.snapshot().len(), 10_001);
}

fn clash(name: &str, kept: &str, shadowed: &str) -> Clash {
    Clash { name: name.into(), kept: kept.into(), shadowed: shadowed.into() }
}

#[test]
fn the_first_clashing_source_by_name_has_the_tool_in_any_order() {
    for order in [["alpha", "beta"], ["beta", "alpha"]] {
        let registry = Registry::new();
        let mut clashes = Vec::new();
        for source in order {
            clashes = registry
                .publish(Rank::Configured, &source.into(), vec![tool("read", source), tool(source, source)])
                .unwrap();
        }
        assert_eq!(clashes, [clash("read", "alpha", "beta")], "{order:?}");
        assert_eq!(source_of(&registry, "read").as_deref(), Some("alpha"));
        assert_eq!(names(&registry), ["alpha", "beta", "read"]);
        let shadowed: Vec<_> = registry.snapshot().shadowed().map(|tool| tool.descriptor.source.to_string()).collect();
        assert_eq!(shadowed, ["beta"]);
        registry.publish(Rank::Configured, &"alpha".into(), Vec::new()).unwrap();
        assert_eq!(source_of(&registry, "read").as_deref(), Some("beta"), "what was hidden is found again");
        assert_eq!(registry.snapshot().shadowed().count(), 0);
    }
}

/// Pinned tools, as `source/name`, and since when each source has its tools.
struct Claims {
    pinned: Mutex<Vec<&'static str>>,
    since: Vec<(&'static str, &'static str)>,
}

impl DefinitionCheck for Claims {
    fn review(&self, _: &[Arc<ToolDescriptor>]) -> Quarantine {
        Quarantine::default()
    }

    fn admits(&self, _: &ToolDescriptor) -> bool {
        true
    }

    fn claim(&self, tool: &ToolDescriptor) -> Claim {
        let pinned = self.pinned.lock();
        let since =
            self.since.iter().find(|(source, _)| *source == &*tool.source).map(|(_, since)| (*since).to_owned());
        Claim { is_pinned: pinned.contains(&&*format!("{}/{}", tool.source, tool.name)), since }
    }

    fn reserved(&self) -> HashMap<Arc<str>, Arc<str>> {
        let pinned = self.pinned.lock();
        pinned
            .iter()
            .filter_map(|entry| entry.split_once('/'))
            .map(|(source, name)| (name.into(), source.into()))
            .collect()
    }
}

fn claiming(pinned: &[&'static str], since: &[(&'static str, &'static str)]) -> (Registry, Arc<Claims>) {
    let registry = Registry::new();
    let claims = Arc::new(Claims { pinned: Mutex::new(pinned.to_vec()), since: since.to_vec() });
    assert!(registry.set_definition_check(Arc::clone(&claims) as Arc<dyn DefinitionCheck>));
    (registry, claims)
}

fn publish(registry: &Registry, source: &str, names: &[&str]) -> Vec<Clash> {
    let tools = names.iter().map(|name| tool(name, source)).collect();
    registry.publish(Rank::Configured, &source.into(), tools).unwrap()
}

#[test]
fn a_name_that_is_kept_stays_with_the_source_that_had_it_first() {
    let registry = Registry::new();
    publish(&registry, "zzz", &["read"]);
    publish(&registry, "aaa", &["list"]);
    registry.keep_names();
    assert_eq!(publish(&registry, "aaa", &["list", "read"]), [clash("read", "zzz", "aaa")]);
    assert_eq!(source_of(&registry, "read").as_deref(), Some("zzz"));
    publish(&registry, "zzz", &["other"]);
    assert_eq!(source_of(&registry, "read").as_deref(), Some("aaa"), "its owner lists it no more");
    publish(&registry, "zzz", &["other", "read"]);
    assert_eq!(source_of(&registry, "read").as_deref(), Some("aaa"), "and is the newcomer then");
}

#[test]
fn a_source_that_is_started_again_finds_its_names_and_one_that_is_forgotten_does_not() {
    let registry = Registry::new();
    registry.keep_names();
    publish(&registry, "zzz", &["read"]);
    publish(&registry, "zzz", &[]);
    assert_eq!(publish(&registry, "aaa", &["read"]), [clash("read", "zzz", "aaa")]);
    assert_eq!(source_of(&registry, "read"), None, "the name waits for its owner");
    publish(&registry, "zzz", &["read"]);
    assert_eq!(source_of(&registry, "read").as_deref(), Some("zzz"));
    registry.forget(&"zzz".into());
    assert_eq!(source_of(&registry, "read").as_deref(), Some("aaa"));
    publish(&registry, "zzz", &["read"]);
    assert_eq!(source_of(&registry, "read").as_deref(), Some("aaa"));
}

#[test]
fn no_name_is_kept_for_a_callers_source_if_a_configured_source_has_it() {
    let registry = Registry::new();
    registry.keep_names();
    let publish_registered = |tools| registry.publish(Rank::Registered, &"aaa".into(), tools).unwrap();
    publish_registered(vec![tool("read", "aaa")]);
    publish_registered(Vec::new());
    publish(&registry, "files", &["read"]);
    assert_eq!(source_of(&registry, "read").as_deref(), Some("files"));
}

#[test]
fn the_name_of_a_tool_removed_from_the_configuration_is_free() {
    let registry = Registry::new();
    registry.keep_names();
    registry.register(tool("read", "rest")).unwrap();
    publish(&registry, "files", &["read"]);
    registry.unregister("read");
    assert_eq!(source_of(&registry, "read").as_deref(), Some("files"));
}

#[test]
fn a_pinned_name_belongs_to_its_source_in_any_order() {
    for order in [["aaa", "zzz"], ["zzz", "aaa"]] {
        let (registry, _) =
            claiming(&["zzz/read"], &[("aaa", "2026-01-01T00:00:00Z"), ("zzz", "2026-01-02T00:00:00Z")]);
        registry.keep_names();
        let clashes = order.map(|source| publish(&registry, source, &["read"]));
        assert_eq!(clashes[1], [clash("read", "zzz", "aaa")], "{order:?}");
        assert_eq!(source_of(&registry, "read").as_deref(), Some("zzz"), "{order:?}");
    }
}

#[test]
fn a_pinned_name_waits_for_its_source_and_is_free_once_it_is_not_pinned() {
    let (registry, claims) = claiming(&["zzz/read"], &[]);
    registry.keep_names();
    assert_eq!(publish(&registry, "aaa", &["read", "list"]), [clash("read", "zzz", "aaa")]);
    assert_eq!(names(&registry), ["list"]);
    publish(&registry, "zzz", &["other"]);
    assert_eq!(source_of(&registry, "read"), None, "its source lists it no more, and the change is not approved");
    claims.pinned.lock().clear();
    assert_eq!(registry.vetted().get("read").map(|tool| tool.descriptor.source.to_string()).as_deref(), Some("aaa"));
    let changes = *registry.changes().borrow();
    let _ = registry.vetted();
    assert_eq!(*registry.changes().borrow(), changes, "nothing else has changed");
}

#[test]
fn no_tool_takes_the_name_that_models_use_for_another() {
    let (registry, _) = claiming(&["away/run it"], &[]);
    registry.register(tool("say it", "rest")).unwrap();
    publish(&registry, "zzz", &["read file", "list"]);
    let aliases = ["read file", "say it", "run it"].map(|name| llm_name(name).into_owned());
    let clashes = publish(&registry, "aaa", &[&aliases[0], &aliases[1], &aliases[2], "other"]);
    let owners: Vec<&str> = clashes.iter().map(|clash| &*clash.kept).collect();
    assert_eq!((clashes.len(), owners.contains(&"zzz"), owners.contains(&"rest")), (3, true, true), "{clashes:?}");
    assert_eq!(names(&registry), ["list", "other", "read file", "say it"]);
}

#[test]
fn among_sources_that_start_together_the_one_seen_first_has_the_name() {
    for order in [["aaa", "zzz"], ["zzz", "aaa"]] {
        let (registry, _) = claiming(&[], &[("zzz", "2026-01-01T00:00:00Z"), ("aaa", "2026-01-02T00:00:00Z")]);
        for source in order {
            publish(&registry, source, &["read"]);
        }
        assert_eq!(source_of(&registry, "read").as_deref(), Some("zzz"), "{order:?}");
    }
    let (registry, _) = claiming(&[], &[("zzz", "2026-01-01T00:00:00Z")]);
    for source in ["aaa", "zzz"] {
        publish(&registry, source, &["read"]);
    }
    assert_eq!(source_of(&registry, "read").as_deref(), Some("zzz"), "the other was never seen");
}

#[test]
fn a_tool_of_the_configuration_has_its_name_before_and_after_every_source() {
    let registry = Registry::new();
    registry.publish(Rank::Configured, &"alpha".into(), vec![tool("read", "alpha")]).unwrap();
    registry.register(tool("read", "rest")).unwrap();
    assert_eq!(source_of(&registry, "read").as_deref(), Some("rest"));
    registry.replace_all(vec![tool("other", "rest")]).unwrap();
    assert_eq!(names(&registry), ["other", "read"], "what sources publish stays");
    assert_eq!(source_of(&registry, "read").as_deref(), Some("alpha"));
}

#[test]
fn a_source_that_a_caller_added_takes_no_name_from_those_of_the_configuration() {
    let registry = Registry::new();
    registry.publish(Rank::Registered, &"aaa".into(), vec![tool("read", "aaa")]).unwrap();
    assert_eq!(source_of(&registry, "read").as_deref(), Some("aaa"));
    registry.publish(Rank::Configured, &"files".into(), vec![tool("read", "files")]).unwrap();
    assert_eq!(source_of(&registry, "read").as_deref(), Some("files"));
}

#[test]
fn no_server_takes_the_name_of_a_part_of_the_daemon() {
    let registry = Registry::new();
    registry.publish(Rank::Configured, &"mcp:a".into(), vec![tool("mcp_invoke_tool", "mcp:a")]).unwrap();
    let clashes =
        registry.publish(Rank::Own, &"mcp:management".into(), vec![tool("mcp_invoke_tool", "mcp:management")]);
    assert_eq!(source_of(&registry, "mcp_invoke_tool").as_deref(), Some("mcp:management"));
    assert_eq!(clashes.unwrap().len(), 1);
}

/// Gives each source the age of its first review.
#[derive(Default)]
struct Ages {
    has_started: AtomicBool,
    seen: Mutex<HashMap<Arc<str>, &'static str>>,
}

impl Ages {
    fn present(&self) -> &'static str {
        if self.has_started.load(Ordering::Relaxed) { "later" } else { "at the start" }
    }
}

impl DefinitionCheck for Ages {
    fn review(&self, tools: &[Arc<ToolDescriptor>]) -> Quarantine {
        let mut seen = self.seen.lock();
        for tool in tools {
            seen.entry(Arc::clone(&tool.source)).or_insert_with(|| self.present());
        }
        Quarantine::default()
    }

    fn admits(&self, _: &ToolDescriptor) -> bool {
        true
    }

    fn claim(&self, tool: &ToolDescriptor) -> Claim {
        let since = self.seen.lock().get(&tool.source).copied().unwrap_or_else(|| self.present());
        Claim { is_pinned: false, since: Some(since.to_owned()) }
    }

    fn end_start(&self) {
        self.has_started.store(true, Ordering::Relaxed);
    }
}

/// The last source of the start was taken for younger than the others if its review came after the end of the start, so
/// that the same configuration gave a name now to one source, now to another.
#[test]
fn an_unreviewed_source_of_the_start_is_as_old_as_the_others() {
    let (registry, ages) = (Registry::new(), Arc::new(Ages::default()));
    assert!(registry.set_definition_check(Arc::clone(&ages) as Arc<dyn DefinitionCheck>));
    publish(&registry, "beta", &["read"]);
    ages.review(&[tool("read", "beta").descriptor]);
    publish(&registry, "alpha", &["read"]);
    registry.keep_names();
    assert_eq!(source_of(&registry, "read").as_deref(), Some("alpha"));
}
