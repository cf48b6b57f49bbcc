//! Properties of every policy.

use std::collections::BTreeSet;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::*;
use crate::policy::{CountedTools, Profile, access_changes};

const NAMES: [&str; 8] = ["a", "ab", "ba", "cancel_scheduled_task", "mcp_register_server", "é", "a_b", "abc"];
const SOURCES: [&str; 5] = ["web", "subagent", "a2a", "mcp:management", "mcp:fs"];
const SETS: [&str; 2] = ["fs", "git"];
const AGENTS: [&str; 3] = ["ana", "bob", "carl"];

fn tools() -> impl Strategy<Value = Vec<Tool>> {
    let tool = (option::of(0..SETS.len()), 0..NAMES.len(), 0..SOURCES.len());
    vec(tool, 0..14).prop_map(|tools| {
        let mut known = BTreeSet::new();
        let tools = tools.into_iter().filter(|(set, name, _)| known.insert((*set, *name)));
        tools
            .map(|(set, name, source)| match set {
                None => plain(NAMES[name], SOURCES[source]),
                Some(set) => member(SETS[set], NAMES[name], SOURCES[source]),
            })
            .collect()
    })
}

fn pattern() -> impl Strategy<Value = Pattern> {
    let exact = (option::of(0..SETS.len()), 0..NAMES.len()).prop_map(|(set, name)| match set {
        None => NAMES[name].to_owned(),
        Some(set) => format!("{}.{}", SETS[set], NAMES[name]),
    });
    prop_oneof![exact, "[ab*?é._]{1,5}"].prop_map(|text| Pattern::parse(&text).unwrap())
}

fn allowed() -> impl Strategy<Value = Allowed> {
    prop_oneof![Just(Allowed::All), Just(Allowed::None), vec(pattern(), 0..4).prop_map(Allowed::Only)]
}

fn section() -> impl Strategy<Value = AgentPolicy> {
    let profile = option::of(prop::sample::select(vec!["main", "subagent", "scheduled", "a2a-synthesis"]));
    let sets = prop::sample::subsequence(SETS.to_vec(), 0..=SETS.len());
    let bindings = vec((allowed(), vec(pattern(), 0..2)), 0..3);
    (allowed(), vec(pattern(), 0..3), sets, profile, bindings).prop_map(|(tools, denied, sets, profile, bindings)| {
        let binding = |(number, (tools, denied)): (usize, (Allowed, Vec<Pattern>))| BindingPolicy {
            denied,
            ..binding(&number.to_string(), tools)
        };
        AgentPolicy {
            tools,
            denied,
            toolsets: sets.into_iter().map(Into::into).collect(),
            profile: profile.map(Into::into),
            bindings: bindings.into_iter().enumerate().map(binding).collect(),
            ..AgentPolicy::default()
        }
    })
}

fn any_policy() -> impl Strategy<Value = Policy> {
    (section(), section(), section(), any::<bool>()).prop_map(|(ana, bob, default, deny_unknown)| Policy {
        default,
        deny_unknown,
        ..policy([("ana", ana), ("bob", bob)])
    })
}

fn callers() -> Vec<Caller> {
    let bindings = [None, Some("whatsapp:0"), Some("whatsapp:1"), Some("nowhere:0")];
    let profiles = [None, Some("main"), Some("subagent"), Some("a2a-synthesis"), Some("root")];
    let agents = AGENTS.map(caller).into_iter().chain([Caller::unknown()]);
    agents
        .flat_map(|caller| bindings.map(|binding| Caller { binding: binding.map(Into::into), ..caller.clone() }))
        .flat_map(|caller| profiles.map(|profile| Caller { profile: profile.map(Into::into), ..caller.clone() }))
        .collect()
}

fn set(access: &PolicyHandle, caller: &Caller) -> BTreeSet<String> {
    of(access, caller).into_iter().collect()
}

/// Whether a caller has the tool, worked out from the rules as they are written.
fn naive(policy: &Policy, caller: &Caller, tool: &ToolDescriptor) -> bool {
    let section = caller.agent.as_ref().and_then(|agent| policy.agents.get(agent));
    if section.is_none() && policy.deny_unknown {
        return false;
    }
    let section = section.unwrap_or(&policy.default);
    let matches = |patterns: &[Pattern]| patterns.iter().any(|pattern| pattern.matches(&tool.name));
    let denies = |patterns: &[Pattern]| matches(patterns) || patterns.iter().any(|p| p.matches(tool.bare_name()));
    let in_list = |allowed: &Allowed| match allowed {
        Allowed::All => true,
        Allowed::None => false,
        Allowed::Only(patterns) => matches(patterns),
    };
    let binding = match &caller.binding {
        None => None,
        Some(name) => {
            let named = |b: &&BindingPolicy| format!("{}:{}", b.channel, b.account) == **name;
            match section.bindings.iter().find(named) {
                Some(binding) => Some(binding),
                None => return false,
            }
        }
    };
    let judged = |name: &str| {
        let profile = Profile::all().into_iter().find(|profile| profile.name() == name);
        profile
            .is_some_and(|p| p.judge(&tool.name, tool.bare_name(), &tool.source) == crate::policy::ProfileRole::Allowed)
    };
    tool.toolset.as_ref().is_none_or(|member| section.toolsets.contains(&member.set))
        && in_list(&section.tools)
        && !denies(&section.denied)
        && binding.is_none_or(|binding| in_list(&binding.tools) && !denies(&binding.denied))
        && judged(section.profile.as_deref().unwrap_or("main"))
        && caller.profile.as_deref().is_none_or(judged)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn the_listed_tools_are_those_that_resolve_and_that_the_rules_allow(tools in tools(), policy in any_policy()) {
        let descriptors: Vec<_> = tools.iter().map(|tool| Arc::clone(&tool.descriptor)).collect();
        let access = access(tools, policy.clone());
        for caller in callers() {
            let effective = access.effective(&caller);
            let listed = names(&effective);
            for tool in &descriptors {
                let is_listed = listed.iter().any(|name| **name == *tool.name);
                prop_assert_eq!(effective.get(&tool.name).is_some(), is_listed, "{:?} {}", caller, tool.name);
                prop_assert_eq!(naive(&policy, &caller, tool), is_listed, "{:?} {}", caller, tool.name);
                let could_have = effective.could_have(&tool.source, tool.toolset.as_ref().map(|member| &member.set));
                prop_assert!(could_have || !is_listed, "{:?} {}", caller, tool.name);
            }
            prop_assert_eq!(effective.empty_reason().is_some(), listed.is_empty());
        }
    }

    #[test]
    fn an_explanation_agrees_with_the_set(tools in tools(), policy in any_policy()) {
        let access = access(tools, policy);
        for caller in callers() {
            let effective = access.effective(&caller);
            for explanation in effective.explain_all() {
                prop_assert_eq!(effective.get(&explanation.tool).is_some(), explanation.is_in, "{:?}", explanation);
                prop_assert_eq!(effective.explain(&explanation.tool), explanation);
            }
        }
    }

    #[test]
    fn a_binding_a_profile_or_a_denial_never_adds_a_tool(
        tools in tools(), policy in any_policy(), denied in pattern(), narrower in allowed(),
    ) {
        let before = access(tools.clone(), policy.clone());
        let mut with_denial = policy.clone();
        for section in with_denial.agents.values_mut().chain([&mut with_denial.default]) {
            section.denied.push(denied.clone());
            section.bindings.push(binding("new", narrower.clone()));
        }
        let after = access(tools, with_denial);
        for caller in callers() {
            prop_assert!(set(&after, &caller).is_subset(&set(&before, &caller)));
            let plain = Caller { binding: None, profile: None, ..caller.clone() };
            prop_assert!(set(&before, &caller).is_subset(&set(&before, &plain)));
            let new = with_binding(plain.clone(), "whatsapp:new");
            prop_assert!(set(&after, &new).is_subset(&set(&after, &plain)));
        }
    }

    #[test]
    fn a_catalogue_that_followed_every_change_is_the_one_made_at_once(
        first in tools(), second in tools(), policy in any_policy(),
    ) {
        let followed = access(first.clone(), policy.clone());
        for tool in &first {
            followed.registry().unregister(&tool.descriptor.name);
        }
        followed.registry().register_all(second.clone()).unwrap();
        followed.refresh();
        let at_once = access(second, policy);
        for caller in callers() {
            prop_assert_eq!(of(&followed, &caller), of(&at_once, &caller));
            prop_assert_eq!(followed.effective(&caller).version(), at_once.effective(&caller).version());
        }
    }

    #[test]
    fn changes_of_access_are_what_the_sets_of_each_caller_differ_by(
        tools in tools(), before in any_policy(), mut after in any_policy(), most in 0..4_usize,
    ) {
        after.agents.remove("bob");
        let (had, has) = (access(tools.clone(), before.clone()), access(tools, after.clone()));
        let counted = |tools: BTreeSet<String>| CountedTools {
            first: tools.iter().take(most).map(|name| name.as_str().into()).collect(),
            count: tools.len(),
        };
        let callers = [caller("ana"), caller("bob"), Caller::unknown()].map(|caller| {
            let (had, has) = (set(&had, &caller), set(&has, &caller));
            (caller.agent.map_or("default".to_owned(), |agent| agent.to_string()), &has - &had, &had - &has)
        });
        let differing = callers.into_iter().filter(|(_, gains, loses)| !(gains.is_empty() && loses.is_empty()));
        let expected: Vec<_> = differing.map(|(agent, gains, loses)| (agent, counted(gains), counted(loses))).collect();
        let changes = access_changes(had.registry(), before, after, most);
        let found: Vec<_> = changes.into_iter().map(|change| (change.agent, change.gains, change.loses)).collect();
        prop_assert_eq!(found, expected);
    }
}
