//! Which tools an agent has.

use super::*;
use crate::policy::EmptyReason;

#[test]
fn an_agent_without_a_list_has_every_plain_tool_and_no_tool_set() {
    let access = for_ana(AgentPolicy::default());
    assert_eq!(of(&access, &caller("ana")), ["get_weather", "spawn_subagent", "web_browse", "web_search"]);
}

#[test]
fn a_list_is_a_strict_allow_list() {
    let access = for_ana(allowing(&["web_*", "get_weather"]));
    assert_eq!(of(&access, &caller("ana")), ["get_weather", "web_browse", "web_search"]);
}

#[test]
fn a_tool_of_a_set_needs_both_the_set_and_the_list() {
    let section = |tools, sets: &[&str]| AgentPolicy { tools, ..having(sets) };
    let sections = [
        ("bound", section(only(&["fs.read_*", "git.*"]), &["fs"])),
        ("unbound", section(only(&["fs.read_*"]), &[])),
        ("all", section(Allowed::All, &["fs"])),
    ];
    let access = access(some_tools(), policy(sections));
    assert_eq!(of(&access, &caller("bound")), ["fs.read_file"]);
    assert_eq!(of(&access, &caller("unbound")), [""; 0]);
    assert!(of(&access, &caller("all")).contains(&"fs.write_file".to_owned()));
    assert!(!of(&access, &caller("all")).contains(&"git.status".to_owned()));
}

#[test]
fn a_tool_of_a_set_is_not_there_under_its_bare_name() {
    let access = for_ana(having(&["fs"]));
    let effective = access.effective(&caller("ana"));
    assert!(effective.get("fs.read_file").is_some());
    for name in ["read_file", "fs.", ".read_file", "fs..read_file", "FS.read_file", "git.status", "fs.read_file "] {
        assert!(effective.get(name).is_none(), "{name:?}");
    }
}

#[test]
fn the_name_that_models_use_means_the_same_tool_for_agents_that_have_it() {
    let access = access(some_tools(), policy([("ana", having(&["fs"])), ("bob", AgentPolicy::default())]));
    let name = toolbus_protocol::llm_name("fs.read_file").into_owned();
    assert_eq!(&*access.effective(&caller("ana")).get(&name).unwrap().tool.descriptor.name, "fs.read_file");
    assert!(access.effective(&caller("bob")).get(&name).is_none());
}

#[test]
fn a_binding_narrows_and_an_unknown_one_has_nothing() {
    let section = AgentPolicy {
        tools: only(&["web_*"]),
        bindings: vec![
            binding("sales", only(&["web_search", "get_weather"])),
            binding("open", Allowed::All),
            binding("closed", Allowed::None),
        ],
        ..AgentPolicy::default()
    };
    let access = access(some_tools(), policy([("ana", section), ("bob", AgentPolicy::default())]));
    let bound = |agent: &str, name: &str| of(&access, &with_binding(caller(agent), name));
    assert_eq!(bound("ana", "whatsapp:sales"), ["web_search"]);
    assert_eq!(bound("ana", "whatsapp:open"), ["web_browse", "web_search"]);
    assert_eq!(bound("ana", "whatsapp:closed"), [""; 0]);
    for (agent, name) in
        [("ana", "whatsapp"), ("ana", "whatsapp:"), ("ana", "whatsapp:Sales"), ("bob", "whatsapp:sales")]
    {
        let effective = access.effective(&with_binding(caller(agent), name));
        assert_eq!(effective.empty_reason(), Some(EmptyReason::UnknownBinding), "{agent} {name}");
        assert!(effective.tools().is_empty());
    }
}

#[test]
fn denied_tools_win_over_allowed_ones_everywhere() {
    let narrow = BindingPolicy { denied: patterns(&["web_search"]), ..binding("sales", Allowed::All) };
    let section = AgentPolicy {
        tools: only(&["web_*", "get_weather"]),
        denied: patterns(&["web_browse"]),
        bindings: vec![narrow],
        ..AgentPolicy::default()
    };
    let access = for_ana(section);
    assert_eq!(of(&access, &caller("ana")), ["get_weather", "web_search"]);
    assert_eq!(of(&access, &with_binding(caller("ana"), "whatsapp:sales")), ["get_weather"]);
}

#[test]
fn a_profile_narrows_and_an_unknown_one_has_nothing() {
    let access = for_ana(AgentPolicy::default());
    assert!(!of(&access, &with_profile(caller("ana"), "subagent")).contains(&"spawn_subagent".to_owned()));
    for name in ["mains", "root", "main ", "subagent,main"] {
        let effective = access.effective(&with_profile(caller("ana"), name));
        assert_eq!(effective.empty_reason(), Some(EmptyReason::UnknownProfile), "{name}");
    }
}

#[test]
fn a_fixed_profile_cannot_be_left_and_can_be_narrowed() {
    let access = for_ana(AgentPolicy { profile: Some("subagent".into()), ..AgentPolicy::default() });
    for profile in ["main", "scheduled", "a2a-synthesis", "subagent"] {
        let tools = of(&access, &with_profile(caller("ana"), profile));
        assert!(!tools.contains(&"spawn_subagent".to_owned()), "{profile}");
    }
    let effective = access.effective(&caller("ana"));
    assert_eq!(effective.profile(), "subagent");
    let passed_on = |caller: Caller| access.effective(&caller).with_own_profile(&Arc::new(caller)).profile.clone();
    assert_eq!(passed_on(caller("ana")).as_deref(), Some("subagent"), "another daemon knows no sections of this one");
    assert_eq!(passed_on(with_profile(caller("ana"), "a2a-synthesis")).as_deref(), Some("subagent"));
    assert_eq!(passed_on(with_profile(caller("ben"), "scheduled")).as_deref(), Some("scheduled"));
}

#[test]
fn callers_without_a_section_are_one_class() {
    let default = allowing(&["get_weather"]);
    let access = access(some_tools(), Policy { default, ..policy([("ana", AgentPolicy::default())]) });
    for unknown in [Caller::unknown(), caller("bob"), caller("default")] {
        assert_eq!(of(&access, &unknown), ["get_weather"], "{unknown:?}");
    }
    assert!(Arc::ptr_eq(access.effective(&caller("bob")).gate(), access.effective(&caller("carl")).gate()));
    assert!(!Arc::ptr_eq(access.effective(&caller("bob")).gate(), access.effective(&caller("ana")).gate()));
}

#[test]
fn callers_without_a_section_have_nothing_where_unknown_ones_are_denied() {
    let access = access(some_tools(), Policy { deny_unknown: true, ..policy([("ana", AgentPolicy::default())]) });
    for unknown in [Caller::unknown(), caller("bob"), caller("Ana"), caller("ana."), caller("default")] {
        assert_eq!(access.effective(&unknown).empty_reason(), Some(EmptyReason::UnknownAgent), "{unknown:?}");
    }
    assert!(!of(&access, &caller("ana")).is_empty());
}

#[test]
fn forced_arguments_merge_with_the_most_specific_first_and_are_not_listed() {
    let schema = serde_json::json!({
        "type": "object", "required": ["q", "lang"],
        "properties": {"q": {"type": "string"}, "lang": {"type": "string"}, "safe": {"type": "string"}},
    });
    let descriptor =
        ToolDescriptor { parameters: Some(Arc::new(schema)), ..ToolDescriptor::new("web_search", "web", "local") };
    let section = AgentPolicy {
        arguments: vec![forced("web_search", "lang", "de"), forced("web_*", "lang", "en"), forced("*", "safe", "on")],
        ..AgentPolicy::default()
    };
    let access = access(vec![Tool::new(descriptor, ToolOutput::default())], policy([("ana", section)]));
    let effective = access.effective(&caller("ana"));
    let allowed = effective.get("web_search").unwrap();
    let set = serde_json::to_value(&effective.forced(allowed).unwrap().0).unwrap();
    assert_eq!(set, serde_json::json!({"lang": "de", "safe": "on"}));
    let listed = effective.definition(allowed).parameters.unwrap();
    assert_eq!(listed["properties"], serde_json::json!({"q": {"type": "string"}}));
    assert_eq!(listed["required"], serde_json::json!(["q"]));
    let bob = access.effective(&caller("bob"));
    assert_eq!(bob.forced(bob.get("web_search").unwrap()), None);
}

#[test]
fn a_tool_that_addresses_people_does_so_under_either_of_its_names() {
    let outbound = crate::gates::recipients::Outbound {
        channel: "whatsapp".into(),
        tools: patterns(&["read_*", "web_search"]),
        recipients: vec![crate::gates::recipients::RecipientPath::parse("/to").unwrap()],
        compare: crate::gates::recipients::Compare::Digits,
    };
    let section = having(&["fs"]);
    let outbound = [("whatsapp".into(), Arc::new(outbound))].into();
    let access = access(some_tools(), Policy { outbound, ..policy([("ana", section)]) });
    let effective = access.effective(&caller("ana"));
    let channels = |name| effective.get(name).unwrap().channels();
    assert_eq!((channels("fs.read_file"), channels("web_search"), channels("fs.write_file")), (1, 1, 0));
}

#[test]
fn restrictions_of_a_tool_of_a_set_apply_under_either_of_its_names() {
    let section = |denied: &[&str]| AgentPolicy {
        denied: patterns(denied),
        arguments: vec![forced("read_*", "root", "/home")],
        ..having(&["fs"])
    };
    let sections = [("ana", section(&["write_*"])), ("bob", section(&["fs.write_*"])), ("carl", section(&["file"]))];
    let access = access(some_tools(), policy(sections));
    for (name, has) in [("ana", false), ("bob", false), ("carl", true)] {
        let effective = access.effective(&caller(name));
        assert_eq!(effective.get("fs.write_file").is_some(), has, "{name}");
        assert!(effective.forced(effective.get("fs.read_file").unwrap()).is_some());
    }
}

#[test]
fn a_binding_without_a_list_for_a_channel_opens_nothing_there() {
    use crate::gates::recipients::{AllowedRecipients, Compare, Outbound, RecipientPath};
    let outbound = |channel: &str, tool: &str| Outbound {
        channel: channel.into(),
        tools: patterns(&[tool]),
        recipients: vec![RecipientPath::parse("/to").unwrap()],
        compare: Compare::Exact,
    };
    let lists = |lists: &[(&str, &str)]| {
        let list =
            |(channel, to): &(&str, &str)| ((*channel).into(), AllowedRecipients::new(Compare::Exact, &[*to]).unwrap());
        Arc::new(lists.iter().map(list).collect())
    };
    let mail = BindingPolicy { recipients: Some(lists(&[("mail", "c")])), ..binding("sales", Allowed::All) };
    let section = AgentPolicy {
        recipients: lists(&[("chat", "a"), ("mail", "b")]),
        bindings: vec![mail],
        ..AgentPolicy::default()
    };
    let outbound = [("chat", "web_search"), ("mail", "web_browse")]
        .map(|(channel, tool)| (channel.into(), Arc::new(outbound(channel, tool))));
    let gates =
        crate::Gates::new(access(some_tools(), Policy { outbound: outbound.into(), ..policy([("ana", section)]) }));
    let may = |caller: &Caller, tool: &str, to: &str| {
        let effective = gates.policy().effective(caller);
        let arguments = [("to".to_owned(), to.into())].into_iter().collect();
        gates.recipients(&effective, effective.get(tool).unwrap(), &arguments).is_ok()
    };
    let bound = with_binding(caller("ana"), "whatsapp:sales");
    assert!(may(&bound, "web_search", "a") && !may(&bound, "web_search", "x"), "as the agent");
    assert!(may(&bound, "web_browse", "c") && !may(&bound, "web_browse", "b"), "instead of the agent's");
}

#[test]
fn undeclared_arguments_are_refused_beside_a_list_of_recipients() {
    use crate::gates::recipients::{AllowedRecipients, Compare, Outbound, RecipientPath};
    let schemas = [
        ("open", Some(serde_json::json!({"type": "object"}))),
        ("referred", Some(serde_json::json!({"$ref": "#/$defs/a", "$defs": {"a": {"properties": {"text": {}}}}}))),
        ("combined", Some(serde_json::json!({"allOf": [{"properties": {"text": {}}}]}))),
        ("none", None),
    ];
    let tool = |(name, schema): &(&str, Option<serde_json::Value>)| {
        let parameters = schema.clone().map(Arc::new);
        Tool::new(ToolDescriptor { parameters, ..ToolDescriptor::new(*name, "test", "local") }, ToolOutput::default())
    };
    let outbound = Outbound {
        channel: "phone".into(),
        tools: patterns(&["*"]),
        recipients: vec![RecipientPath::parse("/to").unwrap()],
        compare: Compare::Exact,
    };
    let listed = AllowedRecipients::new(Compare::Exact, &["a"]).unwrap();
    let section = AgentPolicy {
        recipients: Arc::new([("phone".into(), listed)].into()),
        arguments: vec![forced("*", "tenant", "x")],
        ..AgentPolicy::default()
    };
    let outbound = [("phone".into(), Arc::new(outbound))].into();
    let gates = crate::Gates::new(access(
        schemas.iter().map(tool).collect(),
        Policy { outbound, ..policy([("ana", section)]) },
    ));
    let effective = gates.policy().effective(&caller("ana"));
    let may = |tool: &str, arguments: serde_json::Value| {
        gates.recipients(&effective, effective.get(tool).unwrap(), arguments.as_object().unwrap()).is_ok()
    };
    for (name, schema) in &schemas {
        assert!(may(name, serde_json::json!({"to": "a", "tenant": "x"})), "{name}: what the policy sets");
        for other in ["bcc", "To", "phone"] {
            assert!(!may(name, serde_json::json!({"to": "a", other: "b"})), "{name}: {other}");
        }
        let declares = schema.as_ref().is_some_and(|schema| schema.to_string().contains("text"));
        assert_eq!(may(name, serde_json::json!({"to": "a", "text": "b"})), declares, "{name}: text");
    }
}
