//! Rules for agents that are valid but suspicious.

use super::*;

#[test]
fn own_topics_need_own_queues() {
    let lab = "[invoke]\ntopics = ['tool.invoke.lab']\n";
    insta::assert_snapshot!(warnings(lab), @r#"invoke.topics: without "tool.invoke", and with the default bus.queue_prefix, "toolbus", this daemon and the one that agents call take each other's calls; give it a bus.queue_prefix of its own"#);
    assert_eq!(warnings(&format!("{lab}[bus]\nqueue_prefix = 'toolbus-lab'")), "");
    assert_eq!(warnings("[invoke]\ntopics = ['tool.invoke.lab', 'tool.invoke']"), "");
}

/// A tool that addresses people and a tool set, on a bus with logins.
const TOOLS: &str = r#"
[identity]
source = "broker"
[[rest.endpoints]]
name = "read_file"
description = "Reads"
url = "https://host/read"
[[rest.endpoints]]
name = "send_message"
description = "Sends"
url = "https://host/send"
parameters = '{"type":"object","properties":{"to":{}},"additionalProperties":false}'
[toolsets.files]
kind = "rest"
endpoints = ["read_file"]
[outbound.whatsapp]
tools = ["send_*"]
recipients = ["/to"]
compare = "digits"
"#;

fn with(lines: &str) -> String {
    warnings(&format!("{TOOLS}{lines}"))
}

#[test]
fn a_sound_configuration_has_no_warnings() {
    insta::assert_snapshot!(with("[agents.ana]\ntoolsets = ['files']\noutbound_allowlist = { whatsapp = ['+1555'] }"), @"");
    for identity in ["unknown = 'default'", "trust_headers = true", "source = 'broker'", "agent = 'ana'"] {
        assert_eq!(warnings(&format!("[identity]\n{identity}\n[agents.ana]\nmax_in_flight = 1")), "", "{identity}");
    }
    assert_eq!(warnings("[agents.default]\nmax_in_flight = 1"), "");
}

#[test]
fn patterns_that_match_nothing_are_reported() {
    let lines = "[agents.ana]\ntoolsets = ['files']\nallowed_tools = ['*_time', 'x_*']\ndenied_tools = ['y?']\n\
        tool_rate_limits = { 'z*' = { rps = 1, burst = 1 } }\narguments = { 'w*' = { a = 1 } }\n\
        [[agents.ana.bindings]]\nchannel = 'c'\naccount = 'a'\nallowed_tools = ['v*', '*_time']\n\
        [outbound.mail]\ntools = ['mail_*']\nrecipients = ['/to']\ncompare = 'email'";
    insta::assert_snapshot!(with(lines), @r#"
    agents.ana.allowed_tools: `x_*` matches no tool
    agents.ana.denied_tools: `y?` matches no tool
    agents.ana.tool_rate_limits: `z*` matches no tool
    agents.ana.arguments: `w*` matches no tool
    agents.ana.bindings.0.allowed_tools: `v*` matches no tool
    outbound.mail.tools: `mail_*` matches no tool
    "#);
}

#[test]
fn tool_search_without_its_tool_is_reported() {
    insta::assert_snapshot!(warnings("[http]\ntool_search = { above = 100 }"), @"http.tool_search: not used without `tools.search = true`, because no client would find the other tools");
    assert_eq!(warnings("[http]\ntool_search = { above = 100 }\n[tools]\nsearch = true"), "");
}

#[test]
fn tool_sets_without_an_agent_are_reported() {
    insta::assert_snapshot!(with("[agents.ana]\nallowed_tools = ['*_time', 'files.*', 'files.read_file']"), @r#"
    toolsets.files: no agent has this tool set
    agents.ana.allowed_tools: `files.*` is of the tool set `files`, which the agent does not have; add it to its `toolsets`
    agents.ana.allowed_tools: `files.read_file` is of the tool set `files`, which the agent does not have; add it to its `toolsets`
    "#);
}

#[test]
fn recipients_without_a_list_are_reported_where_a_tool_can_reach_them() {
    insta::assert_snapshot!(with("[agents.ana]\ntoolsets = ['files']\n[agents.bruno]\ndenied_tools = ['send_*']"), @"agents.ana: may address anybody on `whatsapp`, because its `outbound_allowlist` has no list for it");
    let binding = "[agents.ana]\ntoolsets = ['files']\noutbound_allowlist = { whatsapp = ['+1555'] }\n\
        [[agents.ana.bindings]]\nchannel = 'c'\naccount = 'a'\noutbound_allowlist = {}";
    insta::assert_snapshot!(with(binding), @"");
    insta::assert_snapshot!(with(""), @r#"
    toolsets.files: no agent has this tool set
    agents.default: may address anybody on `whatsapp`, because its `outbound_allowlist` has no list for it
    "#);
}

#[test]
fn restrictions_match_the_tool_of_a_set_by_its_own_name() {
    let lists = "toolsets = ['files']\noutbound_allowlist = { whatsapp = ['+1555'] }\ndenied_tools = ['read_f*']\n\
        tool_rate_limits = { 'read_f*' = { rps = 1, burst = 1 } }\narguments = { 'read_f*' = { a = 1 } }";
    assert_eq!(with(&format!("[agents.ana]\n{lists}")), "");
    insta::assert_snapshot!(with("[agents.ana]\ntoolsets = ['files']\nallowed_tools = ['read_f*']\noutbound_allowlist = { whatsapp = ['+1555'] }"), @r#"
    agents.ana.allowed_tools: `read_f*` matches no tool
    agents.ana: has no tool at all
    "#);
    let only_denied = "[agents.ana]\ntoolsets = ['files']\nallowed_tools = ['files.*']\ndenied_tools = ['read_file']";
    insta::assert_snapshot!(with(only_denied), @"agents.ana: has no tool at all");
    let reads = "[agents.ana]\ntoolsets = ['files']\nallowed_tools = ['files.*']\n\
        [outbound.files]\ntools = ['read_*']\nrecipients = ['/to']\ncompare = 'exact'";
    insta::assert_snapshot!(with(reads), @"agents.ana: may address anybody on `files`, because its `outbound_allowlist` has no list for it");
}

#[test]
fn arguments_that_may_hide_a_recipient_are_reported_where_a_list_applies() {
    let tools = ["", r#"{"type":"object"}"#, r#"{"type":"object","properties":{"to":{}}}"#].map(|schema| {
        let parameters = if schema.is_empty() { String::new() } else { format!("parameters = '{schema}'\n") };
        format!(
            "[[rest.endpoints]]\nname = 'send_{}'\ndescription = 'x'\nurl = 'https://h/'\n{parameters}",
            schema.len()
        )
    });
    let listed = "[agents.ana]\ntoolsets = ['files']\noutbound_allowlist = { whatsapp = ['+1555'] }";
    insta::assert_snapshot!(with(&format!("{}{listed}", tools.concat())), @r#"
    outbound.whatsapp: `send_0` has no schema that declares its arguments; those that hold no recipient are refused for agents with an `outbound_allowlist`
    outbound.whatsapp: `send_17` has no schema that declares its arguments; those that hold no recipient are refused for agents with an `outbound_allowlist`
    outbound.whatsapp: `send_40` has an open schema; arguments that the schema does not declare are refused for agents with an `outbound_allowlist`
    "#);
    let in_a_binding = "[agents.ana]\ntoolsets = ['files']\nallowed_tools = ['*_time']\n[[agents.ana.bindings]]\n\
        channel = 'c'\naccount = 'a'\noutbound_allowlist = { whatsapp = ['+1555'] }";
    insta::assert_snapshot!(with(&format!("{}{in_a_binding}", tools[0])), @"outbound.whatsapp: `send_0` has no schema that declares its arguments; those that hold no recipient are refused for agents with an `outbound_allowlist`");
    let unlisted = "[agents.ana]\ntoolsets = ['files']\nallowed_tools = ['*_time']";
    assert_eq!(with(&format!("{}{unlisted}", tools.concat())), "");
}

#[test]
fn agents_without_any_tool_are_reported() {
    let lines = "[agents.ana]\ntoolsets = ['files']\nallowed_tools = 'none'\n[agents.default]\nallowed_tools = ['*_time']\n\
        [[agents.default.bindings]]\nchannel = 'c'\naccount = 'a'\ndenied_tools = ['*_time']";
    insta::assert_snapshot!(with(lines), @r#"
    agents.ana: has no tool at all
    agents.default.bindings (c:a): has no tool at all
    "#);
}

#[test]
fn rules_that_rely_on_trusted_headers_and_unused_identity_keys_are_reported() {
    insta::assert_snapshot!(warnings("[identity]\ntrust_headers = true\n[agents.ana]\nprofile = 'main'"), @"identity.trust_headers: the rules for agents hold only while no sender on the bus claims to be another");
    insta::assert_snapshot!(warnings("[identity]\nusers = { svc-ana = 'ana', svc-ana-2 = 'ana' }"), @r#"identity.users: not used, because `identity.source` is "header""#);
    insta::assert_snapshot!(warnings("[identity]\ndelegates = ['front']"), @r#"identity.delegates: not used, because `identity.source` is "header""#);
    assert_eq!(warnings("[identity]\nsource = 'broker'\nusers = { svc-ana = 'ana', svc-ana-2 = 'ana' }"), "");
}

#[test]
fn sections_are_warned_of_where_any_sender_can_claim_to_be_an_agent() {
    insta::assert_snapshot!(warnings("[agents.ana]\nmax_in_flight = 1"), @r#"identity.source: callers without a section have no tool, but under "header" any sender can claim to be an agent that has one; write "broker", or, on a bus whose senders are all trusted, `identity.trust_headers = true`. For limits alone, write `identity.unknown = "default"`"#);
}

#[test]
fn settings_that_a_sidecar_does_not_use_are_reported() {
    let text = "[identity]\nagent = 'ana'\n[bus]\nqueue_prefix = 'toolbus'\n[agents.ana]\nmax_queued = 1\n\
        [agents.bruno]\nmax_queued = 1\n[agents.default]\nmax_queued = 1";
    insta::assert_snapshot!(warnings(text), @r#"
    agents.bruno: not used, because this daemon is the sidecar of `ana` alone
    bus.queue_prefix: the queues of daemons that serve everybody; a sidecar drops what other agents ask there. Leave it out, or use the topic `tool.invoke.agent.ana` with queues of its own
    "#);
}

#[test]
fn a_shared_credential_beside_those_of_agents_is_reported() {
    let text = "[identity]\nsource = 'broker'\n[[rest.endpoints]]\nname = 'x'\ndescription = 'x'\nurl = 'https://h/'\n\
        auth = { type = 'bearer', token = 'of-everybody', per_agent = { ana = { token = 'of-ana-alone' } } }";
    insta::assert_snapshot!(warnings(text), @"rest.endpoints: `x` never sends its shared credential, because `per_agent` is there");
}

#[test]
fn agent_names_that_end_like_others_are_reported_where_topics_identify_agents() {
    let agents = "[bus]\nurl = 'amqp://127.0.0.1'\n[identity]\nsource = 'broker'\n[agents.'ana.bruno']\n[agents.bruno]\n[agents.uno]";
    insta::assert_snapshot!(warnings(agents), @r#"agents."ana.bruno": `bruno` may have answers sent to its topics; use a name without a dot"#);
}

#[test]
fn agents_without_user_id_are_reported_where_the_broker_identifies_callers() {
    let servers = "[mcp.servers.files]\ncommand = 'files'\n";
    let broker = "[identity]\nsource = 'broker'\n";
    assert!(warnings(&format!("{broker}{servers}")).contains("send no `user_id`, as RockBot's do, get no answer"));
    assert_eq!(warnings(broker), "");
    assert_eq!(warnings(&format!("{broker}unknown = 'deny'\n{servers}")), "");
    assert!(!warnings(&format!("[identity]\nagent = 'ana'\n{servers}")).contains("user_id"));
}

#[test]
fn tools_with_side_effects_are_reported_if_a_crash_forgets_their_calls() {
    const AMQP: &str = "[bus]\nurl = 'amqp://h'\n";
    let reported = |text: &str| {
        let all = load(&[text], &[], &[]).unwrap().warnings;
        all.into_iter().filter(|warning| warning.starts_with("store.url")).collect::<Vec<_>>().join("\n")
    };
    let endpoint = |more: &str| {
        format!("[[rest.endpoints]]\nname = 'pay'\ndescription = 'Pays'\nurl = 'https://host/pay'\n{more}\n")
    };
    insta::assert_snapshot!(reported(&format!("{AMQP}{}", endpoint("method = 'POST'"))), @r#"store.url: is not set, and there is no folder for state: after a crash calls of `pay` may run twice; write "sqlite:toolbus.db", or "redis://…" if there are several daemons"#);
    let in_memory = format!("{AMQP}{}[store]\nurl = 'memory:'", endpoint("method = 'POST'"));
    insta::assert_snapshot!(reported(&in_memory), @r#"store.url: "memory:" forgets which calls had begun: after a crash calls of `pay` may run twice; write "sqlite:toolbus.db", or "redis://…" if there are several daemons"#);
    let command = "[[commands]]\nname = 'day'\ndescription = 'Day'\ncommand = ['date']\nsandbox = false\n";
    assert!(reported(&format!("{AMQP}{command}")).contains("`day`"));
    assert!(reported(&format!("{AMQP}[mcp.register]\nenabled = true")).contains("tools of MCP servers"));
    assert!(reported(&format!("{AMQP}[script]")).contains("`execute_python_script`"));
    for silent in [
        AMQP.to_owned(),
        format!("{AMQP}{}", endpoint("")),
        format!("{AMQP}{}", endpoint("method = 'POST'\neffect = 'idempotent'")),
        format!("{AMQP}{}[store]\nurl = 'sqlite:x.db'", endpoint("method = 'POST'")),
        endpoint("method = 'POST'"),
    ] {
        assert_eq!(reported(&silent), "", "{silent}");
    }
}

#[test]
fn tasks_that_no_process_publishes_are_warnings() {
    let text = "[schedule]\n[daemon]\nroles = ['invoke']\n[store]\n";
    insta::assert_snapshot!(warnings(&format!("{text}url = 'sqlite:a.db'")), @r#"schedule: tasks are never published, because `daemon.roles` has no "schedule", and no other process shares the store"#);
    assert_eq!(warnings(&format!("{text}url = 'redis://127.0.0.1'")), "");
}
