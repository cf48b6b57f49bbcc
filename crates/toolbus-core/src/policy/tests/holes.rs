//! Mistakes that other systems are known to make.

use super::*;
use crate::Clock;
use crate::gates::rate::{Rate, RateRule, RateRules};

#[test]
fn a_narrowing_that_leaves_an_empty_list_leaves_no_tool() {
    // Elsewhere a role takes names out of a list, and the empty list that remains means "every tool".
    let section = AgentPolicy {
        tools: only(&["web_search"]),
        denied: patterns(&["web_search"]),
        bindings: vec![binding("sales", Allowed::Only(Vec::new()))],
        ..AgentPolicy::default()
    };
    let access = for_ana(section);
    assert_eq!(of(&access, &caller("ana")), [""; 0]);
    assert_eq!(of(&access, &with_binding(caller("ana"), "whatsapp:sales")), [""; 0]);
}

#[test]
fn a_prefix_does_not_evade_the_rate_of_a_name() {
    // The pattern that matches the whole name is weaker than the one that names the tool.
    let rule = |pattern, burst| RateRule::new(Pattern::parse(pattern).unwrap(), Rate::new(1.0, burst).unwrap());
    for weaker in ["*", "fs.*"] {
        let rates = RateRules::new(vec![rule(weaker, 100), rule("write_file", 1)]).unwrap().into();
        let access = for_ana(AgentPolicy { rates, toolsets: vec!["fs".into()], ..AgentPolicy::default() });
        let effective = access.effective(&caller("ana"));
        let rate_of = |name| effective.rate(effective.get(name).unwrap()).unwrap().pattern().to_string();
        assert_eq!((rate_of("fs.write_file").as_str(), rate_of("fs.read_file").as_str()), ("write_file", weaker));
    }
}

#[test]
fn the_tools_that_are_shown_are_those_that_can_be_called() {
    // Elsewhere the command that shows an agent's tools prints the patterns of the file as they were at the start.
    let access = for_ana(allowing(&["web_*"]));
    access.registry().register(plain("web_fetch", "web")).unwrap();
    access.refresh();
    let effective = access.effective(&caller("ana"));
    let shown: Vec<_> = effective.explain_all().into_iter().filter(|shown| shown.is_in).collect();
    assert_eq!(shown.len(), 3);
    assert!(shown.iter().all(|shown| effective.get(&shown.tool).is_some()));
}

#[test]
fn a_binding_that_the_agent_does_not_have_here_takes_nothing_from_a_call_that_another_daemon_passes_on() {
    let ana = AgentPolicy { bindings: vec![binding("support", Allowed::Only(Vec::new()))], ..AgentPolicy::default() };
    let access = access(some_tools(), policy([("ana", ana)]));
    let elsewhere = with_binding(caller("ana"), "whatsapp:sales");
    assert!(of(&access, &elsewhere).is_empty(), "its own agent has mistaken the name");
    let passed_on = Caller { hops: 1, ..elsewhere };
    assert_eq!(of(&access, &passed_on), of(&access, &caller("ana")));
    let narrowed = Caller { hops: 1, ..with_binding(caller("ana"), "whatsapp:support") };
    assert!(of(&access, &narrowed).is_empty());
}

#[test]
fn limits_of_a_binding_alone_are_limits() {
    // Elsewhere the limiter is built only if the agent itself has limits, and those of a binding alone do nothing.
    let rule = RateRule::new(Pattern::parse("web_*").unwrap(), Rate::new(1.0, 2).unwrap());
    let rates = Arc::new(RateRules::new(vec![rule]).unwrap());
    let limited = BindingPolicy { rates: Some(rates), ..binding("sales", Allowed::All) };
    let section = AgentPolicy { bindings: vec![limited], ..AgentPolicy::default() };
    let gates = crate::Gates::new(for_ana(section));
    let now = Clock::SYSTEM.now();
    let taken = |caller: &Caller| {
        let effective = gates.policy().effective(caller);
        let allowed = effective.get("web_search").unwrap();
        (0..5).filter(|_| gates.rate(&effective, allowed, now).is_ok()).count()
    };
    assert_eq!(taken(&with_binding(caller("ana"), "whatsapp:sales")), 2);
    assert_eq!(taken(&caller("ana")), 5);
}
