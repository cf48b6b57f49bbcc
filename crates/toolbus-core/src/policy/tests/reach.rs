//! Tools that a caller could use of a source whose tools are not known.

use super::*;
use crate::policy::Switch;

/// Whether `ana` could use something of `mcp:new`, by itself and as part of the tool set `fs`.
fn reach(section: AgentPolicy) -> (bool, bool) {
    of_both(&for_ana(section), &caller("ana"))
}

fn of_both(access: &PolicyHandle, caller: &Caller) -> (bool, bool) {
    let effective = access.effective(caller);
    let source = "mcp:new".into();
    (effective.could_have(&source, None), effective.could_have(&source, Some(&"fs".into())))
}

fn with_set(section: AgentPolicy) -> AgentPolicy {
    AgentPolicy { toolsets: vec!["fs".into()], ..section }
}

#[test]
fn a_plain_source_is_within_reach_of_every_agent_and_a_set_of_agents_that_have_it() {
    assert_eq!(reach(AgentPolicy::default()), (true, false));
    assert_eq!(reach(with_set(AgentPolicy::default())), (true, true));
}

#[test]
fn a_source_is_within_reach_if_the_list_could_match_a_name_of_it() {
    let table: [(&[&str], (bool, bool)); 6] = [
        (&["*"], (true, true)),
        (&["read_note"], (true, false)),
        (&["fs.read"], (true, true)),
        (&["f*"], (true, true)),
        (&["git.*", "fs"], (true, false)),
        (&[], (false, false)),
    ];
    for (list, expected) in table {
        let section = with_set(AgentPolicy { tools: only(list), ..AgentPolicy::default() });
        assert_eq!(reach(section), expected, "{list:?}");
    }
    assert_eq!(reach(with_set(AgentPolicy { tools: Allowed::None, ..AgentPolicy::default() })), (false, false));
}

#[test]
fn a_source_is_out_of_reach_if_every_name_of_it_is_denied() {
    let table = [
        ("*", (false, false)),
        ("**", (false, false)),
        ("fs.*", (true, false)),
        ("f*", (true, false)),
        ("?*", (true, true)),
    ];
    for (denied, expected) in table {
        let section = with_set(denying(&[denied]));
        assert_eq!(reach(section), expected, "{denied}");
    }
}

#[test]
fn a_binding_a_session_and_a_switch_narrow_the_reach() {
    let bindings = vec![binding("closed", Allowed::None), binding("open", Allowed::All)];
    let section = with_set(AgentPolicy { bindings, ..AgentPolicy::default() });
    let access = for_ana(section);
    for (name, expected) in [("closed", (false, false)), ("open", (true, true)), ("none", (false, false))] {
        let caller = with_binding(caller("ana"), &format!("whatsapp:{name}"));
        assert_eq!(of_both(&access, &caller), expected, "{name}");
    }
    access.disable(Switch::new("source", "mcp:new").unwrap()).unwrap();
    assert_eq!(of_both(&access, &caller("ana")), (false, false));
    access.enable(&Switch::new("source", "mcp:new").unwrap());
    access.disable(Switch::new("agent", "ana").unwrap()).unwrap();
    assert_eq!(of_both(&access, &caller("ana")), (false, false));
}

#[test]
fn a_profile_narrows_the_reach_by_its_sources() {
    let access = access(Vec::new(), policy([("ana", AgentPolicy::default())]));
    let could = |profile: &str, source: &str| {
        access.effective(&with_profile(caller("ana"), profile)).could_have(&source.into(), None)
    };
    assert!(could("subagent", "mcp:new") && could("main", "subagent"));
    assert!(!could("subagent", "subagent") && !could("nonsense", "mcp:new"));
}
