//! Tools that are held back.

use parking_lot::Mutex;

use super::*;
use crate::gates::Gates;
use crate::policy::{Because, DefinitionCheck, Quarantine};
use crate::registry::Rank;
use crate::request::{Lookup, ToolRef};

/// Holds back the named tools, and counts the reviews.
#[derive(Default)]
struct Holds(Mutex<(Vec<&'static str>, usize)>);

impl Holds {
    fn set(&self, names: &[&'static str]) {
        self.0.lock().0 = names.to_vec();
    }
}

impl DefinitionCheck for Holds {
    fn review(&self, tools: &[Arc<ToolDescriptor>]) -> Quarantine {
        let mut this = self.0.lock();
        this.1 += 1;
        let mut held = Quarantine::default();
        for tool in tools.iter().filter(|tool| this.0.contains(&&*tool.name)) {
            held.insert(tool, "its definition changed");
        }
        held
    }

    fn admits(&self, _: &ToolDescriptor) -> bool {
        true
    }
}

fn vetted(tools: Vec<Tool>) -> (PolicyHandle, Arc<Holds>) {
    let access = access(tools, policy([("ana", AgentPolicy::default())]));
    let holds = Arc::new(Holds::default());
    access.set_definition_check(Arc::clone(&holds) as Arc<dyn DefinitionCheck>);
    (access, holds)
}

fn of_server(name: &str, server: &str) -> Tool {
    let mut tool = plain(name, &format!("mcp:{server}"));
    Arc::make_mut(&mut tool.descriptor).server = Some(server.into());
    tool
}

#[test]
fn a_tool_that_is_held_back_is_in_no_set_by_no_route() {
    let (access, holds) = vetted(vec![of_server("read file", "fs"), of_server("write", "fs")]);
    let ana = caller("ana");
    let routes = |effective: &EffectiveTools| {
        [
            effective.get("read file").is_some(),
            effective.get(&toolbus_protocol::llm_name("read file")).is_some(),
            effective.of_server("FS", "read file").is_some(),
            effective.of_any_server("read file").is_some(),
            effective.of_servers().len() == 2,
            effective.tools().len() == 2,
            effective.names().any(|name| name == "read file"),
        ]
    };
    let before = access.effective(&ana);
    assert_eq!(routes(&before), [true; 7]);
    holds.set(&["read file"]);
    access.refresh();
    let after = access.effective(&ana);
    assert_eq!(routes(&after), [false; 7]);
    assert!(after.get("write").is_some(), "the rest of the source stays");
    assert!(!before.lists_like(&after), "agents are notified of the change");
    holds.set(&[]);
    access.refresh();
    assert_eq!(routes(&access.effective(&ana)), [true; 7]);
}

#[test]
fn a_quarantined_tool_is_unknown_to_callers_and_explained_to_operators() {
    let (access, holds) = vetted(some_tools());
    holds.set(&["get_weather"]);
    access.refresh();
    let gates = Gates::new(access);
    let refusal = |name: &'static str, route| {
        let effective = gates.enter(&caller("ana"));
        let failure = gates.resolve(&effective, &caller("ana"), ToolRef { route, name }).err().unwrap();
        (failure.cause, failure.message.replace(name, "…"))
    };
    for route in [Lookup::Name, Lookup::AnyServer, Lookup::Server("fs")] {
        assert_eq!(refusal("get_weather", route), refusal("no_such_thing", route), "{route:?}");
    }
    let effective = gates.policy().effective(&caller("ana"));
    let explanation = effective.explain("get_weather");
    assert_eq!(explanation.because, Because::Quarantined("its definition changed".into()));
    assert_eq!(explanation.because.to_string(), "quarantined: its definition changed");
    assert!(effective.explain_all().contains(&explanation));
    let current = gates.policy().current();
    assert_eq!(current.held_back("get_weather").map(|reason| &**reason), Some("its definition changed"));
    assert_eq!(current.held_back("web_search"), None);
    assert_eq!(current.held_back("no_such_thing"), None);
}

#[test]
fn a_new_tool_cannot_be_used_before_its_review() {
    let (access, holds) = vetted(some_tools());
    holds.set(&["late", "later"]);
    access.registry().publish(Rank::Configured, &"mcp:fs".into(), vec![of_server("late", "fs")]).unwrap();
    access.refresh();
    assert!(access.effective(&caller("ana")).get("late").is_none());
    let next = policy([("ana", AgentPolicy::default())]);
    access.replace(Identity::default(), next, |registry| registry.register(plain("later", "rest"))).unwrap();
    assert!(access.effective(&caller("ana")).get("later").is_none());
    let queries = holds.0.lock().1;
    access.disable("tool web_search".parse().unwrap()).unwrap();
    assert_eq!(holds.0.lock().1, queries + 1, "every change is reviewed");
    assert!(access.effective(&caller("ana")).get("late").is_none(), "a switch lets nothing out");
}

#[test]
fn a_call_that_waited_is_refused_when_its_tool_was_held_back_meanwhile() {
    let (access, holds) = vetted(some_tools());
    let gates = Gates::new(access.clone());
    let effective = gates.enter(&caller("ana"));
    let wanted = ToolRef::named("get_weather");
    let allowed = gates.resolve(&effective, &caller("ana"), wanted).unwrap();
    assert!(gates.still_on(&caller("ana"), allowed, wanted).is_ok());
    holds.set(&["get_weather"]);
    access.refresh();
    let failure = gates.still_on(&caller("ana"), allowed, wanted).unwrap_err();
    assert_eq!(failure.message, "Tool 'get_weather' is not registered.");
}

#[test]
fn a_hidden_tool_is_held_back_by_its_source_and_not_by_its_name() {
    // The first that looks at a registry's tools is the only one.
    let access = access(vec![plain("read", "rest")], policy([("ana", AgentPolicy::default())]));
    access.registry().publish(Rank::Configured, &"mcp:a".into(), vec![of_server("read", "a")]).unwrap();
    struct OfA;
    impl DefinitionCheck for OfA {
        fn review(&self, tools: &[Arc<ToolDescriptor>]) -> Quarantine {
            let mut held = Quarantine::default();
            tools.iter().filter(|tool| &*tool.source == "mcp:a").for_each(|tool| held.insert(tool, "new"));
            held
        }

        fn admits(&self, _: &ToolDescriptor) -> bool {
            true
        }
    }
    let of_a = PolicyHandle::new(access.registry().clone(), Identity::default(), policy([]), CAPACITY);
    of_a.set_definition_check(Arc::new(OfA));
    let effective = of_a.effective(&caller("ana"));
    assert!(effective.get("read").is_some());
    assert!(effective.of_server("a", "read").is_none());
}
