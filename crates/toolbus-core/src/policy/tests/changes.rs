//! Effects of changes to tools, rules and switches.

use super::*;
use crate::policy::{Because, EmptyReason, Switch};

fn switch(text: &str) -> Switch {
    text.parse().unwrap()
}

#[test]
fn a_set_that_was_taken_stays_as_it_was() {
    let access = for_ana(AgentPolicy::default());
    let before = access.effective(&caller("ana"));
    replace(&access, policy([("ana", AgentPolicy { tools: Allowed::None, ..AgentPolicy::default() })]));
    access.registry().unregister("web_search");
    access.refresh();
    assert!(before.get("web_search").is_some());
    assert_eq!(of(&access, &caller("ana")), [""; 0]);
}

#[test]
fn rules_and_tools_that_change_together_are_never_seen_apart() {
    let access = for_ana(AgentPolicy::default());
    let changes = access.changes();
    let next = policy([("ana", denying(&["pay"]))]);
    access.replace(Identity::default(), next, |registry| registry.register(plain("pay", "rest"))).unwrap();
    assert_eq!(*changes.borrow(), 1);
    assert!(!of(&access, &caller("ana")).contains(&"pay".to_owned()));
}

#[test]
fn switched_off_tools_are_gone_at_once_and_come_back() {
    let access = access(some_tools(), policy([("ana", AgentPolicy::default()), ("bob", AgentPolicy::default())]));
    let all = of(&access, &caller("ana"));
    for (text, left) in [("tool web_search", 3), ("source web", 2), ("agent ana", 0)] {
        assert_eq!(access.disable(switch(text)), Ok(true));
        assert_eq!(access.disable(switch(text)), Ok(false));
        assert_eq!(of(&access, &caller("ana")).len(), left, "{text}");
        assert_eq!(access.disabled(), [switch(text)]);
        assert!(access.enable(&switch(text)));
        assert!(!access.enable(&switch(text)));
        assert_eq!(of(&access, &caller("ana")), all);
    }
    access.disable(switch("agent ana")).unwrap();
    assert_eq!(access.effective(&caller("ana")).empty_reason(), Some(EmptyReason::Disabled));
    assert!(!of(&access, &caller("bob")).is_empty());
}

#[test]
fn a_tool_that_is_switched_off_stays_so_under_a_prefix_or_another_name() {
    let renamed = |name: &str| {
        let own_name = Some("read_file".into());
        Tool::new(ToolDescriptor { own_name, ..ToolDescriptor::new(name, "mcp:d", "mcp") }, ToolOutput::default())
    };
    let sets = having(&["fs"]);
    for tool in
        [plain("read_file", "mcp:d"), renamed("d_read_file"), renamed("open"), member("fs", "read_file", "mcp:d")]
    {
        let name = Arc::clone(&tool.descriptor.name);
        let access = access(Vec::new(), policy([("ana", sets.clone())]));
        access.disable(switch("tool read_file")).unwrap();
        access.registry().register(tool).unwrap();
        access.refresh();
        let effective = access.effective(&caller("ana"));
        assert!(effective.get(&name).is_none(), "{name}");
        assert_eq!(effective.explain(&name).because, Because::Disabled(switch("tool read_file")), "{name}");
        assert!(access.enable(&switch("tool read_file")));
        let effective = access.effective(&caller("ana"));
        let tool = &effective.get(&name).unwrap().tool.descriptor;
        assert!(!access.is_off(&caller("ana"), tool), "{name}");
        access.disable(switch("tool read_file")).unwrap();
        assert!(access.is_off(&caller("ana"), tool), "a call that waits is not run: {name}");
    }
}

#[test]
fn switches_outlast_a_change_of_the_rules_and_of_the_tools() {
    let access = for_ana(AgentPolicy::default());
    access.disable(switch("source web")).unwrap();
    replace(&access, policy([("ana", AgentPolicy::default())]));
    access.registry().register(plain("web_fetch", "web")).unwrap();
    access.refresh();
    assert_eq!(of(&access, &caller("ana")), ["get_weather", "spawn_subagent"]);
}

#[test]
fn an_agent_that_is_switched_off_by_name_is_off_also_without_a_section() {
    let access = access(some_tools(), policy([]));
    access.disable(switch("agent bob")).unwrap();
    assert!(of(&access, &caller("bob")).is_empty());
    assert!(!of(&access, &caller("carl")).is_empty());
    access.disable(switch("agent default")).unwrap();
    assert!(of(&access, &caller("carl")).is_empty());
    assert!(of(&access, &Caller::unknown()).is_empty());
}

#[test]
fn a_tool_set_that_is_bound_later_waits_for_the_next_session() {
    let access = for_ana(having(&["fs"]));
    let old = in_session(caller("ana"), "old");
    access.begin_session(&old, &mut access.effective(&old));
    replace(&access, policy([("ana", having(&["fs", "git"]))]));
    assert!(of(&access, &old).contains(&"fs.read_file".to_owned()));
    assert!(!of(&access, &old).contains(&"git.status".to_owned()), "an addition waits");
    assert!(of(&access, &in_session(caller("ana"), "new")).contains(&"git.status".to_owned()));
    replace(&access, policy([("ana", having(&["git"]))]));
    assert!(!of(&access, &old).contains(&"fs.read_file".to_owned()), "a removal does not");
    access.end_session(&old, &"old".into());
    assert!(of(&access, &old).contains(&"git.status".to_owned()));
}

#[test]
fn the_first_tool_sets_of_all_wait_for_the_next_session_too() {
    let access =
        access(some_tools(), Policy { toolsets: Default::default(), ..policy([("ana", AgentPolicy::default())]) });
    let old = in_session(caller("ana"), "old");
    access.begin_session(&old, &mut access.effective(&old));
    replace(&access, policy([("ana", having(&["fs"]))]));
    assert!(!of(&access, &old).contains(&"fs.read_file".to_owned()));
    assert!(of(&access, &in_session(caller("ana"), "new")).contains(&"fs.read_file".to_owned()));
}

#[test]
fn the_session_of_another_agent_is_another_session() {
    let access = access(some_tools(), policy([("ana", AgentPolicy::default()), ("bob", having(&["fs"]))]));
    let ana = in_session(caller("ana"), "s");
    access.begin_session(&ana, &mut access.effective(&ana));
    assert!(of(&access, &in_session(caller("bob"), "s")).contains(&"fs.read_file".to_owned()));
}

#[test]
fn agents_keep_their_slots_while_their_limits_stay() {
    let section = |max| AgentPolicy { max_in_flight: Some(max), ..AgentPolicy::default() };
    let access = access(some_tools(), policy([("ana", section(1)), ("bob", section(1))]));
    let gate = |name| Arc::clone(access.effective(&caller(name)).gate());
    let (ana, bob) = (gate("ana"), gate("bob"));
    replace(&access, policy([("ana", section(1)), ("bob", section(2))]));
    assert!(Arc::ptr_eq(&ana, &gate("ana")));
    assert!(!Arc::ptr_eq(&bob, &gate("bob")));
    let narrowed = AgentPolicy { denied: patterns(&["pay"]), ..section(1) };
    replace(&access, policy([("ana", narrowed), ("bob", section(2))]));
    assert!(Arc::ptr_eq(&ana, &gate("ana")));
}

#[test]
fn numbers_of_tools_that_went_do_not_give_their_rights_to_others() {
    let access = for_ana(allowing(&["web_*"]));
    for round in 0..3 {
        let tools = vec![plain(&format!("web_{round}"), "web"), plain(&format!("pay_{round}"), "rest")];
        access.registry().replace_all(tools).unwrap();
        access.refresh();
        assert_eq!(of(&access, &caller("ana")), [format!("web_{round}")]);
    }
}

#[test]
fn a_tool_that_changes_its_source_is_judged_anew() {
    let access = access(vec![plain("invoke_agent", "web")], policy([]));
    let synthesis = with_profile(caller("ana"), "a2a-synthesis");
    assert_eq!(of(&access, &synthesis), ["invoke_agent"]);
    assert!(access.registry().unregister("invoke_agent"));
    access.registry().register(plain("invoke_agent", "a2a")).unwrap();
    access.refresh();
    assert_eq!(of(&access, &synthesis), [""; 0]);
}

#[test]
fn the_version_depends_on_the_callers_tools_alone() {
    let sections = || policy([("ana", allowing(&["web_*"])), ("bob", AgentPolicy::default())]);
    let access = access(some_tools(), sections());
    let version = |name: &str| access.effective(&caller(name)).version();
    let (ana, bob) = (version("ana"), version("bob"));
    assert_ne!(ana, bob);
    access.registry().register(plain("hidden", "rest")).unwrap();
    access.refresh();
    assert_eq!(version("ana"), ana);
    assert_ne!(version("bob"), bob);
    let mut reversed = some_tools();
    reversed.reverse();
    let replica = super::access(reversed, sections());
    assert_eq!(replica.effective(&caller("ana")).version(), ana);
}
