//! Access to the MCP server: mistakes, warnings, and that no token is shown.

use super::*;

/// Long enough for no warning.
const LONG: &str = "s3cret-s3cret-s3cret";

#[test]
fn an_agent_may_have_a_token_or_several_from_wherever_secrets_come() {
    let text = "[identity]\ntrust_headers = true\n[agents.ana]\n[agents.bea]\n\
        [http]\ntokens = { ana = { env = 'A' }, bea = [{ env = 'B' }, 'plain-s3cret-of-bea'] }";
    let loaded = load(&[text], &[("A", LONG), ("B", "another-s3cret-of-bea")], &[]).unwrap();
    let tokens: Vec<_> =
        loaded.config.http.each_token().map(|(agent, token)| (agent.to_string(), token.expose())).collect();
    let expected = [("ana", LONG), ("bea", "another-s3cret-of-bea"), ("bea", "plain-s3cret-of-bea")];
    assert_eq!(tokens, expected.map(|(agent, token)| (agent.to_owned(), token)));
    assert!(!format!("{loaded:?} {}", serde_json::to_string(&loaded.config).unwrap()).contains("s3cret"));
    assert_eq!(loaded.warnings, Vec::<String>::new());
}

#[test]
fn a_missing_token_or_one_of_the_wrong_kind_is_a_problem() {
    insta::assert_snapshot!(problems("[http]\ntokens = { ana = ['x', { env = 'NONE' }] }"), @"a.toml:2:24: `http.tokens.ana[1]`: the environment variable `NONE` is not set, or is empty; set it, or name another source of this secret");
    insta::assert_snapshot!(problems("[http]\ntokens = { default = 'x' }"), @"a.toml:2:12: `http.tokens.default`: stands for every agent without a section; expected the name of one agent");
    for word in ["yes", "true"] {
        let reported = problems(&format!("[http]\nopen = '{word}'"));
        let expected = format!(r#"a.toml:2:8: `http.open`: "{word}" is not known; expected true, false or "network""#);
        assert_eq!(reported, expected);
    }
}

#[test]
fn tokens_distinguish_agents_and_operators() {
    let text =
        format!("[http]\nadmin_token = '{LONG}'\ntokens = {{ ana = ['{LONG}'], bea = 'of-both', cleo = 'of-both' }}");
    let reported = problems(&text);
    assert!(!reported.contains("s3cret") && !reported.contains("of-both"), "{reported}");
    insta::assert_snapshot!(reported, @"
    a.toml:3:19: `http.tokens.ana[0]`: the same as `http.admin_token`, which is for operators; expected another token
    a.toml:3:68: `http.tokens.cleo`: the same token as for `bea`; expected one that no other has
    ");
}

#[test]
fn the_console_needs_a_token_and_readers_one_of_their_own() {
    let text = format!(
        "[http]\nadmin_token = '{LONG}'\nread_token = '{LONG}'\ntokens = {{ ana = '{LONG}' }}\ntrace_url = 'ftp://jaeger/{{trace_id}}'"
    );
    insta::assert_snapshot!(problems(&text), @"
    a.toml:3:14: `http.read_token`: the same as `http.admin_token`, which lets act; expected another token
    a.toml:4:18: `http.tokens.ana`: the same as `http.admin_token`, which is for operators; expected another token
    a.toml:4:18: `http.tokens.ana`: the same as `http.read_token`, which is for operators; expected another token
    a.toml:5:13: `http.trace_url`: expected an http:// or https:// address with `{trace_id}` in it
    ");
    insta::assert_snapshot!(problems("[http]\nconsole = true"), @"a.toml:2:11: `http.console`: the console opens with a token alone; expected one in `http.admin_token` or `http.read_token`, too");
    let has = |text: &str| load(&[text], &[], &[]).unwrap().config.http.has_console();
    let with_token = format!("[http]\nread_token = '{LONG}'\n");
    assert!(has(&with_token) && !has(""));
    assert!(!has(&format!("{with_token}listen = '0.0.0.0:8471'")) && !has(&format!("{with_token}console = false")));
    assert!(has(&format!("{with_token}listen = '0.0.0.0:8471'\nconsole = true")));
}

#[test]
fn an_unsendable_token_is_a_problem_and_a_line_end_is_not_part_of_it() {
    let text = "[http]\nadmin_token = { env = 'B' }\ntokens = { ana = { env = 'A' }, bea = [{ env = 'C' }] }";
    let [admin, ana, bea] = ["of-operators-alone", LONG, "s3cret-of-bea-alone"];
    let reported = |[admin, ana, bea]: [&str; 3]| load(&[text], &[("B", admin), ("A", ana), ("C", bea)], &[]);
    let loaded =
        reported([&format!("{admin}\n"), &format!("{ana}\r\n"), &format!("{bea} ")].map(String::as_str)).unwrap();
    let http = &loaded.config.http;
    assert_eq!(http.each_token().map(|(_, token)| token.expose()).collect::<Vec<_>>(), [ana, bea]);
    assert_eq!(http.admin_token.as_ref().map(Secret::expose), Some(admin));
    insta::assert_snapshot!(reported([" of-operators-alone", "s3cret-s3cret\ns3cret", "\ts3cret-of-bea-alone"]).unwrap_err(), @"
    a.toml:2:15: `http.admin_token`: a token that no client can send; expected one without spaces at its ends and without line ends
    a.toml:3:18: `http.tokens.ana`: a token that no client can send; expected one without spaces at its ends and without line ends
    a.toml:3:40: `http.tokens.bea[0]`: a token that no client can send; expected one without spaces at its ends and without line ends
    ");
}

#[test]
fn a_sidecar_has_tokens_of_its_own_agent_alone() {
    let text = format!("[identity]\nagent = 'ana'\n[http]\ntokens = {{ ana = '{LONG}', bea = 'of-bea' }}");
    insta::assert_snapshot!(problems(&text), @"a.toml:4:42: `http.tokens.bea`: this daemon is the sidecar of `ana` alone; expected a token of that agent");
}

#[test]
fn opening_the_server_to_other_machines_must_be_explicit() {
    insta::assert_snapshot!(problems("[http]\nopen = true\nlisten = '0.0.0.0:8471'"), @r#"a.toml:2:8: `http.open`: lets in clients without a token, and 0.0.0.0:8471 can be reached from other machines; expected tokens in `http.tokens`, an address of this machine in `http.listen`, or "network" if everybody who reaches the port may use the tools"#);
    assert_eq!(warnings("[http]\nopen = true"), "");
    insta::assert_snapshot!(warnings("[http]\nopen = 'network'\nlisten = '0.0.0.0:8471'"), @"
    http.listen: 0.0.0.0:8471 can be reached from other machines
    http.open: everybody who reaches the port may use what a caller without a section may
    ");
}

#[test]
fn a_body_has_room_for_every_call() {
    insta::assert_snapshot!(problems("[http]\nmax_body = '1MiB'\n[invoke]\nmax_body = '2MiB'"), @"a.toml:2:12: `http.max_body`: 1MiB is less than `invoke.max_body` (2MiB); expected at least as much, so that every call fits");
    for (text, expected) in [("", 4), ("[invoke]\nmax_body = '8MiB'", 8), ("[http]\nmax_body = '2MiB'", 2)] {
        assert_eq!(load(&[text], &[], &[]).unwrap().config.max_mcp_body(), expected * 1024 * 1024, "{text}");
    }
}

#[test]
fn names_and_origins_are_exact() {
    insta::assert_snapshot!(problems("[http]\nallowed_hosts = ['*.example.com']\nallowed_origins = ['https://app.example.com/']"), @r#"
    a.toml:2:18: `http.allowed_hosts[0]`: "*.example.com" is no name of a host; expected one alone, without scheme, port and wildcard, such as "toolbus.example.com"
    a.toml:3:20: `http.allowed_origins[0]`: "https://app.example.com/" is no origin as browsers send it; expected scheme, host and, where it is not the usual one, port, such as "https://app.example.com"
    "#);
}

#[test]
fn weak_tokens_and_agents_without_rules_are_warned_of() {
    insta::assert_snapshot!(warnings("[http]\nlisten = '0.0.0.0:8471'\ntokens = { ana = 'short' }"), @"
    http.listen: 0.0.0.0:8471 can be reached from other machines
    http.tokens: tokens travel to 0.0.0.0:8471 unencrypted; let a proxy that speaks TLS listen there
    http.tokens.ana: 5 bytes long, which can be guessed; use at least 16 random ones
    http.tokens: `ana` has no section in `agents`, so it may use what everybody may
    http.tokens.ana: a secret here is not removed from results and logs, because it is shorter than 8 bytes; use a longer, random one
    ");
    let text =
        format!("[identity]\ntrust_headers = true\n[agents.bea]\n[http]\nopen = true\ntokens = {{ ana = '{LONG}' }}");
    insta::assert_snapshot!(warnings(&text), @"
    http.open: clients without a token have no tool, because callers without a section have none (`identity.unknown`)
    http.tokens: `ana` has no tool, because it has no section in `agents`
    ");
}
