//! Mistakes in the rules for agents.

use super::*;

/// Tools, a tool set and a channel that are in order, and lines after them.
fn with(lines: &str) -> String {
    format!("{TOOLS}{lines}")
}

/// Sixteen lines.
const TOOLS: &str = r#"[identity]
source = "broker"
[[rest.endpoints]]
name = "read_file"
description = "Reads"
url = "https://host/read"
[[rest.endpoints]]
name = "send_message"
description = "Sends"
url = "https://host/send"
parameters = '{"type":"object","properties":{"to":{},"text":{}}}'
[toolsets.files]
kind = "rest"
endpoints = ["read_file"]
[outbound.whatsapp]
tools = ["send_*"]
recipients = ["/to"]
compare = "digits"
"#;

#[test]
fn the_base_rules_of_these_tests_are_valid() {
    let lines = "[agents.ana]\ntoolsets = ['files']\nallowed_tools = ['files.read_file', 'send_message']";
    assert!(load(&[&with(lines)], &[], &[]).is_ok());
}

#[test]
fn a_name_of_an_agent_is_one() {
    insta::assert_snapshot!(problems("[agents.'a b']\nmax_queued = 1"), @r#"a.toml:1:9: `agents."a b"`: "a b" is no name of an agent; expected 1 to 64 letters, digits, `.`, `_` or `-`"#);
    insta::assert_snapshot!(problems("[agents.unknown]\nmax_queued = 1"), @"a.toml:1:9: `agents.unknown`: no agent can have this name; callers without a section are `agents.default`");
    insta::assert_snapshot!(problems("[identity]\nagent = 'default'\n[identity.users]\nsvc = 'unknown'"), @r#"
    a.toml:2:9: `identity.agent`: stands for every agent without a section; expected the name of one agent
    a.toml:4:7: `identity.users.svc`: no agent can have this name; callers without a section are `agents.default`
    "#);
}

#[test]
fn unsupported_values_are_unknown() {
    insta::assert_snapshot!(problems("[identity]\nsource = 'amqp'\nunknown = 'allow'"), @r#"
    a.toml:2:10: `identity.source`: "amqp" is not known; expected one of "header", "broker"
    a.toml:3:11: `identity.unknown`: "allow" is not known; expected one of "default", "deny"
    "#);
    insta::assert_snapshot!(problems("[toolsets.fs]\nkind = 'mcp'\nscope = 'remote'\nendpoints = ['x']"), @r#"
    a.toml:3:9: `toolsets.fs.scope`: "remote" is not known; expected one of "session", "shared"
    a.toml:4:1: `toolsets.fs.endpoints`: not used by a tool set of kind "mcp"; expected `server` alone
    a.toml:4:14: `toolsets.fs.endpoints[0]`: there is no endpoint `x`; there is none at all
    "#);
}

#[test]
fn an_invalid_pattern_is_reported_at_its_key() {
    let text = "allowed_tools = ['[ab]*']\ndenied_tools = ['']\ntool_rate_limits = { '!x' = { rps = 1, burst = 1 } }\narguments = { '^x$' = {} }";
    insta::assert_snapshot!(problems(&with(&format!("[agents.ana]\n{text}"))), @r#"
    a.toml:20:18: `agents.ana.allowed_tools[0]`: "[ab]*" has `[`, which means nothing in a pattern: there is `*` for any run of characters and `?` for one
    a.toml:21:17: `agents.ana.denied_tools[0]`: "" is empty; expected a name, or a pattern with `*` and `?`
    a.toml:22:22: `agents.ana.tool_rate_limits."!x"`: "!x" has `!`, which means nothing in a pattern: there is `*` for any run of characters and `?` for one
    a.toml:23:15: `agents.ana.arguments."^x$"`: "^x$" has `^`, which means nothing in a pattern: there is `*` for any run of characters and `?` for one
    "#);
    insta::assert_snapshot!(problems("[tools.limits.'{a,b}']\ntimeout = '1s'"), @r#"a.toml:1:15: `tools.limits."{a,b}"`: "{a,b}" has `{`, which means nothing in a pattern: there is `*` for any run of characters and `?` for one"#);
    insta::assert_snapshot!(problems("[agents.ana]\nallowed_tools = 'all'"), @r#"a.toml:2:17: `agents.ana.allowed_tools`: "all" is not known; expected "none" or a list"#);
    insta::assert_snapshot!(problems("[agents.ana]\nallowed_tools = 5"), @r#"a.toml:2:17: `agents.ana.allowed_tools`: found a number; expected "none" or a list"#);
}

#[test]
fn a_name_in_a_list_is_that_of_a_tool() {
    let lists = "allowed_tools = ['send_mesage', 'read_file']\ndenied_tools = ['read_fil']\ntool_rate_limits = { ecko = { rps = 1, burst = 1 } }\narguments = { 'files.read' = {} }";
    insta::assert_snapshot!(problems(&with(&format!("[agents.ana]\n{lists}"))), @r#"
    a.toml:20:18: `agents.ana.allowed_tools[0]`: no tool `send_mesage` is configured; did you mean `send_message`? expected one of `convert_time`, `current_time`, `files.read_file`, `send_message`
    a.toml:20:33: `agents.ana.allowed_tools[1]`: no tool `read_file` is configured; did you mean `files.read_file`, its name in a tool set?
    a.toml:21:17: `agents.ana.denied_tools[0]`: no tool `read_fil` is configured; expected one of `convert_time`, `current_time`, `files.read_file`, `send_message`
    a.toml:22:22: `agents.ana.tool_rate_limits.ecko`: no tool `ecko` is configured; expected one of `convert_time`, `current_time`, `files.read_file`, `send_message`
    a.toml:23:15: `agents.ana.arguments."files.read"`: no tool `files.read` is configured; expected one of `convert_time`, `current_time`, `files.read_file`, `send_message`
    "#);
    let binding = "[[agents.ana.bindings]]\nchannel = 'whatsapp'\naccount = 'sales'\nallowed_tools = ['send']\ndenied_tools = ['x']\ntool_rate_limits = { y = { rps = 1, burst = 1 } }";
    insta::assert_snapshot!(problems(&with(binding)), @r#"
    a.toml:22:18: `agents.ana.bindings[0].allowed_tools[0]`: no tool `send` is configured; expected one of `convert_time`, `current_time`, `files.read_file`, `send_message`
    a.toml:23:17: `agents.ana.bindings[0].denied_tools[0]`: no tool `x` is configured; expected one of `convert_time`, `current_time`, `files.read_file`, `send_message`
    a.toml:24:22: `agents.ana.bindings[0].tool_rate_limits.y`: no tool `y` is configured; expected one of `convert_time`, `current_time`, `files.read_file`, `send_message`
    "#);
    insta::assert_snapshot!(problems("[outbound.mail]\ntools = ['send_mail']\nrecipients = ['/to']\ncompare = 'email'"), @"a.toml:2:10: `outbound.mail.tools[0]`: no tool `send_mail` is configured; expected one of `convert_time`, `current_time`");
    insta::assert_snapshot!(problems("[tools]\ntime = false\n[outbound.mail]\ntools = ['send_mail']\nrecipients = ['/to']\ncompare = 'email'"), @"a.toml:4:10: `outbound.mail.tools[0]`: no tool `send_mail` is configured; there is none");
}

#[test]
fn restrictions_may_name_the_tool_of_a_set_without_its_prefix() {
    let lists = "denied_tools = ['read_file']\ntool_rate_limits = { read_file = { rps = 1, burst = 1 } }\narguments = { read_file = { path = 'x' } }";
    let outbound = "[outbound.files]\ntools = ['read_file']\nrecipients = ['/to']\ncompare = 'exact'";
    let text = with(&format!("[agents.ana]\ntoolsets = ['files']\n{lists}\n{outbound}"));
    assert!(load(&[&text], &[], &[]).is_ok());
}

#[test]
fn patterns_of_equal_rank_force_no_argument_to_two_values() {
    let set = |arguments: &str| with(&format!("[agents.ana]\n[agents.ana.arguments]\n{arguments}"));
    insta::assert_snapshot!(problems(&set("'send_*' = { text = 'a', to = 'b' }\n'*_mess' = { text = 'c' }\n'*ssage' = { to = 'b', text = 1 }")), @r#"a.toml:23:24: `agents.ana.arguments."*ssage".text`: `*ssage` and `send_*` are equally specific, and set it to different values for the tool `send_message`; expected one value, or a pattern that is more specific"#);
    let decided = [
        "'send_*' = { text = 'a' }\n'*ssage' = { text = 'a' }",
        "'send_*' = { text = 'a' }\n'*ssage' = { to = 'b' }",
        "'send_*' = { text = 'a' }\n'*essage' = { text = 'b' }",
        "'send_*' = { text = 'a' }\n'*_file' = { text = 'b' }",
    ];
    for arguments in decided {
        assert!(load(&[&set(arguments)], &[], &[]).is_ok(), "{arguments}");
    }
    insta::assert_snapshot!(problems(&set("read_file = { path = 'a' }\n'files.read_file' = { path = 'b' }")), @r#"a.toml:22:23: `agents.ana.arguments."files.read_file".path`: `files.read_file` and `read_file` are equally specific, and set it to different values for the tool `files.read_file`; expected one value, or a pattern that is more specific"#);
}

#[test]
fn a_required_tool_has_the_prefix_of_its_set() {
    insta::assert_snapshot!(problems(&with("[tools]\nrequired = ['files.read_file', 'read_file']")), @"a.toml:20:32: `tools.required[1]`: no tool `read_file` is configured, so the daemon would never be ready; did you mean `files.read_file`, its name in a tool set?");
}

#[test]
fn tool_sets_have_prefixes_and_endpoints_of_their_own() {
    let endpoint = "[[rest.endpoints]]\nname = 'files.x'\ndescription = 'x'\nurl = 'https://host/'";
    insta::assert_snapshot!(problems(&with(endpoint)), @"a.toml:20:8: `rest.endpoints[2].name`: `files.x` would be read as a tool of the tool set `files`; expected another name");
    let set = "[toolsets.more]\nprefix = 'files'\nkind = 'rest'\nendpoints = ['read_file', 'send', 'send_message', 'send_message']";
    insta::assert_snapshot!(problems(&with(set)), @r#"
    a.toml:20:10: `toolsets.more.prefix`: the prefix `files` is also that of the tool set `files`
    a.toml:22:14: `toolsets.more.endpoints[0]`: the endpoint `read_file` belongs to the tool set `files` already
    a.toml:22:27: `toolsets.more.endpoints[1]`: there is no endpoint `send`; expected one of `read_file`, `send_message`
    a.toml:22:51: `toolsets.more.endpoints[3]`: the endpoint `send_message` is given twice
    "#);
    insta::assert_snapshot!(problems("[toolsets.'a.b']\nkind = 'rest'\nprefix = ''\nendpoints = ['x']"), @r#"
    a.toml:1:11: `toolsets."a.b"`: "a.b" is no prefix; expected 1 to 32 letters, digits, `_` or `-`
    a.toml:3:10: `toolsets."a.b".prefix`: "" is no prefix; expected 1 to 32 letters, digits, `_` or `-`
    "#);
    insta::assert_snapshot!(problems("[toolsets.a]\nkind = 'rest'\nendpoints = ['x']\n[toolsets.b]\nkind = 'rest'\nendpoints = []"), @r#"
    a.toml:3:14: `toolsets.a.endpoints[0]`: there is no endpoint `x`; there is none at all
    a.toml:6:13: `toolsets.b.endpoints`: expected at least 1 element
    "#);
}

#[test]
fn unknown_tool_sets_profiles_and_channels_of_an_agent_are_refused() {
    let lines = "[agents.ana]\ntoolsets = ['file']\nprofile = 'Mein'\noutbound_allowlist = { whatsap = ['+1'] }";
    insta::assert_snapshot!(problems(&with(lines)), @r#"
    a.toml:20:13: `agents.ana.toolsets[0]`: there is no tool set `file`; did you mean `files`? expected `files`
    a.toml:21:11: `agents.ana.profile`: there is no profile "Mein"; did you mean `main`? expected one of `main`, `subagent`, `scheduled`, `a2a-synthesis`
    a.toml:22:24: `agents.ana.outbound_allowlist.whatsap`: no section `outbound.whatsap` says which tools address people there; did you mean `whatsapp`? expected `whatsapp`
    "#);
    insta::assert_snapshot!(problems("[identity]\nsource = 'broker'\n[agents.ana]\ntoolsets = ['file']\noutbound_allowlist = { mail = ['a@b.c'] }"), @r#"
    a.toml:4:13: `agents.ana.toolsets[0]`: there is no tool set `file`; there is none at all
    a.toml:5:24: `agents.ana.outbound_allowlist.mail`: no section `outbound.mail` says which tools address people there; there is none at all
    "#);
}

#[test]
fn a_binding_is_named_once_and_by_a_channel_and_an_account() {
    let binding = |channel: &str, account: &str| {
        format!("[[agents.ana.bindings]]\nchannel = '{channel}'\naccount = '{account}'\n")
    };
    insta::assert_snapshot!(problems(&with(&(binding("whatsapp", "sales") + &binding("whatsapp", "sales")))), @"a.toml:22:1: `agents.ana.bindings[1]`: the binding `whatsapp:sales` is given twice");
    insta::assert_snapshot!(problems(&with(&(binding("whats:app", "") + &binding("mail", &"x".repeat(65))))), @r#"
    a.toml:20:11: `agents.ana.bindings[0].channel`: holds a colon, which ends the name of the channel in `channel:account`
    a.toml:21:11: `agents.ana.bindings[0].account`: expected 1 to 64 bytes of printable text
    a.toml:24:11: `agents.ana.bindings[1].account`: expected 1 to 64 bytes of printable text
    "#);
    insta::assert_snapshot!(problems("[[agents.ana.bindings]]\nchannel = 'mail'"), @"a.toml:1:1: `agents.ana.bindings[0]`: `account` is missing; expected a text");
}

#[test]
fn a_forced_argument_is_one_that_every_matching_tool_takes() {
    let lines = "[agents.ana]\narguments = { '*' = { txt = 'x' }, 'files.*' = { any = 1 }, 'send_*' = { to = '1' } }";
    insta::assert_snapshot!(problems(&with(lines)), @r#"a.toml:20:23: `agents.ana.arguments."*".txt`: the tool `convert_time` has no argument `txt`; expected one of `datetime`, `from_timezone`, `to_timezone`"#);
}

#[test]
fn rules_for_agents_need_agents_that_are_recognised() {
    for rule in [
        "[agents.ana]\nallowed_tools = 'none'",
        "[agents.ana]\ndenied_tools = ['current_time']",
        "[agents.ana]\nprofile = 'main'",
        "[agents.ana]\ntool_rate_limits = { '*' = { rps = 1.0, burst = 1 } }",
        "[agents.ana]\narguments = { current_time = {} }",
        "[[agents.ana.bindings]]\nchannel = 'c'\naccount = 'a'",
        "[agents.default]\ndenied_tools = ['*_time']",
        "[identity]\nunknown = 'deny'",
        "[[rest.endpoints]]\nname = 'x'\ndescription = 'x'\nurl = 'https://h/'\nauth = { type = 'bearer', per_agent = { ana = { token = 't' } } }",
        "[rest.openapi.x]\nurl = 'https://h/'\nauth = { a = { key = 'k' }, b = { per_agent = { ana = { token = 't' } } } }",
    ] {
        let reported = problems(rule);
        assert!(
            reported.contains("identity.source = \"broker\"") && reported.contains("identity.trust_headers = true"),
            "{rule}"
        );
        assert_eq!(reported.lines().count(), 1, "{reported}");
        for way_out in [("identity.source", "broker"), ("identity.trust_headers", "true"), ("identity.agent", "ana")] {
            assert!(load(&[rule], &[], &[way_out]).is_ok(), "{rule} {way_out:?}");
        }
    }
    assert!(load(&["[agents.ana]\nmax_in_flight = 1\nmax_queued = 0"], &[], &[]).is_ok());
    insta::assert_snapshot!(problems("[agents.ana]\nallowed_tools = 'none'"), @r#"a.toml:1:9: `agents.ana`: cannot be relied on: under `source = "header"`, any sender can claim to be any agent; set `identity.source = "broker"`, or, on a bus whose senders are all trusted, `identity.trust_headers = true`"#);
    insta::assert_snapshot!(problems("[identity]\ntrust_headers = false\nunknown = 'deny'"), @r#"a.toml:3:1: `identity.unknown`: cannot be relied on: under `source = "header"`, any sender can claim to be any agent; set `identity.source = "broker"`, or, on a bus whose senders are all trusted, `identity.trust_headers = true`"#);
}

#[test]
fn the_credentials_of_agents_are_of_the_form_that_the_type_needs() {
    let auth = |auth: &str| {
        problems(&with(&format!(
            "[[rest.endpoints]]\nname = 'x'\ndescription = 'x'\nurl = 'https://h/'\nauth = {auth}"
        )))
    };
    insta::assert_snapshot!(auth("{ type = 'bearer' }"), @"a.toml:23:8: `rest.endpoints[2].auth`: `token` is missing; expected it here, or in `per_agent` for each agent");
    insta::assert_snapshot!(auth("{ type = 'basic', username = 'u' }"), @"a.toml:23:8: `rest.endpoints[2].auth`: `password` is missing; expected it here, or in `per_agent` for each agent");
    insta::assert_snapshot!(auth("{ type = 'basic', username = 'u', per_agent = { ana = { token = 't' } } }"), @r#"
    a.toml:23:8: `rest.endpoints[2].auth`: `password` is missing; expected it here, or in `per_agent` for each agent
    a.toml:23:62: `rest.endpoints[2].auth.per_agent.ana`: expected `username` and `password`, as the `type` of this `auth` needs
    "#);
    insta::assert_snapshot!(auth("{ type = 'bearer', per_agent = {} }"), @"a.toml:23:39: `rest.endpoints[2].auth.per_agent`: expected at least 1 entry");
    insta::assert_snapshot!(auth("{ type = 'bearer', per_agent = { default = { token = 't' }, 'a b' = { token = 't' } } }"), @r#"
    a.toml:23:41: `rest.endpoints[2].auth.per_agent.default`: stands for every agent without a section; expected the name of one agent
    a.toml:23:68: `rest.endpoints[2].auth.per_agent."a b"`: "a b" is no name of an agent; expected 1 to 64 letters, digits, `.`, `_` or `-`
    "#);
    insta::assert_snapshot!(auth("{ type = 'bearer', per_agent = { ana = { tken = 't' } } }"), @"a.toml:23:49: `rest.endpoints[2].auth.per_agent.ana.tken`: unknown key; did you mean `token`? expected one of `client_id`, `client_secret`, `key`, `password`, `token`, `username`");
    insta::assert_snapshot!(auth("{ type = 'bearer', per_agent = { ana = { token = { env = 'ABSENT' } } } }"), @"a.toml:23:57: `rest.endpoints[2].auth.per_agent.ana.token`: the environment variable `ABSENT` is not set, or is empty; set it, or name another source of this secret");
    insta::assert_snapshot!(auth("{ type = 'api_key', header = 'Host', per_agent = { ana = { key = 'k' } } }"), @"a.toml:23:8: `rest.endpoints[2].auth`: `per_agent.ana`: header `host` is set by the daemon itself and cannot be configured");
}

#[test]
fn the_path_of_a_socket_has_a_length() {
    insta::assert_snapshot!(problems(&format!("[daemon]\nsocket = '/{}'", "x".repeat(107))), @"a.toml:2:10: `daemon.socket`: 108 bytes long; the path of a socket has at most 107");
    insta::assert_snapshot!(problems("[daemon]\nsocket = ''"), @r#"a.toml:2:10: `daemon.socket`: empty; expected a path, or "none" for no socket"#);
    let socket = |text: &str| load(&[text], &[], &[]).unwrap().config.daemon.socket;
    assert_eq!(socket(""), Some("toolbus.sock".into()));
    assert_eq!(socket("[daemon]\nsocket = 'none'"), None);
}

#[test]
fn replies_cannot_go_to_the_topic_of_a_sidecar() {
    let text = "[identity]\nagent = 'ana'\n[bus]\nreply_topics = ['tool.invoke.agent.*']";
    insta::assert_snapshot!(problems(text), @"a.toml:4:16: `bus.reply_topics`: `tool.invoke.agent.*` takes in requests (`tool.invoke.agent.ana`); an answer there would be read as a request");
}

#[test]
fn an_impossible_or_ambiguous_rate_is_refused() {
    let rate = |lines: &str| problems(&with(&format!("[agents.ana.tool_rate_limits]\n{lines}")));
    insta::assert_snapshot!(rate("'*_time' = { rps = 0, burst = 1 }\n'send_*' = { rps = 1, burst = 0 }"), @r#"
    a.toml:20:12: `agents.ana.tool_rate_limits."*_time"`: `rps` is 0; expected more than 0 (to forbid a tool, list it in `denied_tools`)
    a.toml:21:12: `agents.ana.tool_rate_limits."send_*"`: `burst` is 0; expected at least 1, or no call would ever pass
    "#);
    insta::assert_snapshot!(rate("'*_time' = { rps = -1.5, burst = -1 }\n'send_*' = { rps = nan, burst = 1 }"), @r#"
    a.toml:20:34: `agents.ana.tool_rate_limits."*_time".burst`: -1 is too small; expected at least 0
    a.toml:21:20: `agents.ana.tool_rate_limits."send_*".rps`: found a date or an impossible number; expected a number
    "#);
    insta::assert_snapshot!(rate("'*_time' = { rps = 'fast' }"), @r#"
    a.toml:20:12: `agents.ana.tool_rate_limits."*_time"`: `burst` is missing; expected a whole number
    a.toml:20:20: `agents.ana.tool_rate_limits."*_time".rps`: found a text; expected a number
    "#);
    insta::assert_snapshot!(rate("'*_time' = { rps = 1, burst = 1 }\n'*ent_t*' = { rps = 2, burst = 1 }"), @"a.toml:19:1: `agents.ana.tool_rate_limits`: `*_time` and `*ent_t*` are equally specific, and one tool can match both; make one of them more specific");
    let binding = "[[agents.ana.bindings]]\nchannel = 'c'\naccount = 'a'\ntool_rate_limits = { '*_time' = { rps = 0, burst = 1 } }";
    insta::assert_snapshot!(problems(&with(binding)), @r#"a.toml:22:33: `agents.ana.bindings[0].tool_rate_limits."*_time"`: `rps` is 0; expected more than 0 (to forbid a tool, list it in `denied_tools`)"#);
}

#[test]
fn a_list_of_recipients_is_not_empty() {
    insta::assert_snapshot!(problems(&with("[agents.ana]\noutbound_allowlist = { whatsapp = [] }")), @"a.toml:20:35: `agents.ana.outbound_allowlist.whatsapp`: expected at least 1 element");
    insta::assert_snapshot!(problems("[outbound.mail]\ntools = ['*_time']\nrecipients = ['/to']\ncompare = 'mail'"), @r#"a.toml:4:11: `outbound.mail.compare`: "mail" is not known; did you mean "email"? expected one of "digits", "email", "exact""#);
}

#[test]
fn an_impossible_recipient_is_refused() {
    let lines = "[agents.ana]\noutbound_allowlist = { whatsapp = ['+573001112233', 'x'] }\n[[agents.ana.bindings]]\nchannel = 'c'\naccount = 'a'\noutbound_allowlist = { whatsapp = ['x'] }";
    insta::assert_snapshot!(problems(&with(lines)), @r"
    a.toml:20:53: `agents.ana.outbound_allowlist.whatsapp[1]`: `x` is no recipient; expected one telephone number in digits, such as '+57 300 111 2233', or one WhatsApp id
    a.toml:24:36: `agents.ana.bindings[0].outbound_allowlist.whatsapp[0]`: `x` is no recipient; expected one telephone number in digits, such as '+57 300 111 2233', or one WhatsApp id
    ");
    insta::assert_snapshot!(problems("[outbound.mail]\ntools = ['*_time']\nrecipients = ['to']\ncompare = 'exact'"), @r#"a.toml:3:15: `outbound.mail.recipients[0]`: "to" is no path to recipients; expected a JSON pointer that begins with `/`, such as `/to` or `/cc/*`"#);
}

#[test]
fn entries_parts_and_chunks_are_kept_for_a_second_to_a_day() {
    let text = "[memory]\ndefault_ttl = '25h'\n[results]\nttl = '2d'\n[web.browse]\nchunk_ttl = '25h'";
    insta::assert_snapshot!(problems(text), @r"
    a.toml:2:15: `memory.default_ttl`: an entry is kept for 1s to 24h, not for 25h
    a.toml:4:7: `results.ttl`: parts are kept for 1s to 24h, not for 2d
    a.toml:6:13: `web.browse.chunk_ttl`: chunks are kept for 1s to 24h, not for 25h
    ");
    let text = "[memory]\ndefault_ttl = '1ms'\n[results]\nttl = '1ms'\n[web.browse]\nchunk_ttl = '999ms'";
    insta::assert_snapshot!(problems(text), @r"
    a.toml:2:15: `memory.default_ttl`: an entry is kept for 1s to 24h, not for 1ms
    a.toml:4:7: `results.ttl`: parts are kept for 1s to 24h, not for 1ms
    a.toml:6:13: `web.browse.chunk_ttl`: chunks are kept for 1s to 24h, not for 999ms
    ");
    assert!(
        load(&["[memory]\ndefault_ttl = '24h'\n[results]\nttl = '1s'\n[web.browse]\nchunk_ttl = '24h'"], &[], &[])
            .is_ok()
    );
}
