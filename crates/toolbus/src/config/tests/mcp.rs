//! MCP servers: in sections and in the file, as backends of tool sets, and in the rules for agents.

use toolbus_mcp_client::spec::{Credential, Credentials, HttpKind, ServerSpec, TransportSpec};

use super::*;

/// Loads a configuration whose file of servers has this text; messages call the two `a.toml` and `mcp.json`.
fn with_file(toml: &str, json: &str) -> Result<Loaded, String> {
    let folder = tempfile::tempdir().unwrap();
    let here = format!("{}/", folder.path().display());
    std::fs::write(folder.path().join("mcp.json"), json).unwrap();
    let text = format!("mcp.servers_file = '{here}mcp.json'\n{toml}");
    let mut loaded = load(&[&text], &[("TOKEN", "hunter2")], &[]).map_err(|reported| reported.replace(&here, ""))?;
    loaded.warnings.iter_mut().for_each(|warning| *warning = warning.replace(&here, ""));
    Ok(loaded)
}

fn specs(text: &str) -> Vec<ServerSpec> {
    load(&[text], &[("TOKEN", "hunter2")], &[]).unwrap().config.mcp_servers().specs
}

const DESIGNED: &str = r#"
[toolsets.fs]
prefix = "fs"
kind = "mcp"
scope = "session"
server = "filesystem"
idle_timeout = "10m"
max_sessions = 100

[agents.ana]
toolsets = ["fs"]

[identity]
source = "broker"

[mcp]
unknown_server = "answer"
register = { enabled = false, commands = [["uvx", "mcp-server-time"]], hosts = ["mcp.example.com"] }

[mcp.servers.filesystem]
command = "mcp-server-filesystem"
args = ["data/{agent}"]
env = { LOG = "warn", TOKEN = { env = "TOKEN" } }
cwd = "/srv/{agent}/{session}"
roots = ["/srv/{agent}"]
allowed_tools = []
denied_tools = ["write_file"]
lazy = false
validate = "enforce"
tool_timeout = "60s"
pin = false

[mcp.servers.remote]
url = "https://mcp.example.com/mcp"
type = "sse"
headers = { x-team = { env = "TOKEN" } }
"#;

#[test]
fn every_designed_key_is_accepted() {
    let specs = specs(DESIGNED);
    let [files, remote] = specs.as_slice() else { panic!("two servers") };
    let TransportSpec::Stdio(program) = &files.transport else { panic!("a program") };
    assert_eq!((program.command.as_str(), program.args[0].as_str()), ("mcp-server-filesystem", "data/{agent}"));
    assert_eq!(program.env["TOKEN"].expose(), "hunter2");
    assert_eq!(files.tool_timeout, Some(std::time::Duration::from_secs(60)));
    let TransportSpec::Http(endpoint) = &remote.transport else { panic!("an endpoint") };
    assert_eq!((endpoint.kind, endpoint.headers["x-team"].expose()), (HttpKind::Sse, "hunter2"));
}

#[test]
fn prefix_and_renames_apply_in_sections_and_in_the_file() {
    let section =
        specs("[mcp.servers.a]\ncommand = 'x'\nprefix = 'files'\nrename = { read_file = 'open', list = 'read_file' }");
    let json = r#"{"mcpServers": {"a": {"command": "x", "Prefix": "files", "rename": {"read_file": "open", "list": "read_file"}}}}"#;
    let file = with_file("", json).unwrap();
    assert_eq!(file.warnings, [""; 0]);
    for spec in [&section[0], &file.config.mcp_servers().specs[0]] {
        let names = ["read_file", "list", "move"].map(|own| spec.naming.published(own));
        assert_eq!(names, ["open", "read_file", "files_move"]);
    }
}

#[test]
fn an_invalid_prefix_and_invalid_renames_are_reported() {
    let long = format!("prefix = '{}'", "p".repeat(33));
    let table = [
        (
            "prefix = 'my files'",
            "`prefix` is no prefix: expected a letter, and then at most 31 letters, digits, `_` and `-` of ASCII",
        ),
        ("prefix = '9'", "`prefix` is no prefix"),
        (&long, "prefix"),
        (
            "rename = { read = 'my.read' }",
            "`rename` gives `read` a name that cannot be used: expected a letter, and then at most 63 letters",
        ),
        ("rename = { read = '' }", "`rename` gives `read` a name that cannot be used"),
        ("rename = { read = 'open', see = 'open' }", "`rename` gives two tools the name `open`: `read` and `see`"),
    ];
    for (line, expected) in table {
        let reported = load(&[&format!("[mcp.servers.a]\ncommand = 'x'\n{line}")], &[], &[]).unwrap_err();
        assert!(reported.contains(expected), "{line}: {reported}");
    }
}

#[test]
fn a_type_is_one_of_four_and_may_be_left_out() {
    let kind = |lines: &str| match &specs(&format!("[mcp.servers.a]\n{lines}"))[0].transport {
        TransportSpec::Stdio(_) => None,
        TransportSpec::Http(endpoint) => Some(endpoint.kind),
    };
    assert_eq!(kind("command = 'x'"), None);
    assert_eq!(kind("command = 'x'\ntype = 'stdio'"), None);
    assert_eq!(kind("url = 'http://h/'"), Some(HttpKind::Detect));
    assert_eq!(kind("url = 'http://h/'\ntype = 'http'"), Some(HttpKind::Streamable));
    assert_eq!(kind("url = 'http://h/'\ntype = 'streamable-http'"), Some(HttpKind::Streamable));
    assert_eq!(kind("url = 'http://h/'\ntype = 'sse'"), Some(HttpKind::Sse));
}

#[test]
fn credentials_are_shared_or_of_single_agents() {
    let credentials = |auth: &str| {
        let text = format!("[identity]\nsource = 'broker'\n[mcp.servers.a]\nurl = 'https://h/'\nauth = {auth}");
        match &specs(&text)[0].transport {
            TransportSpec::Http(endpoint) => endpoint.credentials.clone(),
            TransportSpec::Stdio(_) => panic!("an endpoint"),
        }
    };
    let token = || "hunter2".into();
    let shared = credentials("{ type = 'bearer', token = { env = 'TOKEN' } }");
    assert_eq!(shared, Credentials::Shared(Credential::Bearer(token())));
    let header = Credential::Header { name: "x-api-key".to_owned(), value: token() };
    assert_eq!(credentials("{ type = 'api_key', key = { env = 'TOKEN' } }"), Credentials::Shared(header));
    let grant = credentials(
        "{ type = 'client_credentials', token_url = 'https://h/token', scopes = ['a'], \
         per_agent = { ana = { client_id = 'c', client_secret = { env = 'TOKEN' } } } }",
    );
    let Credentials::PerAgent(agents) = grant else { panic!("of agents") };
    let Credential::ClientCredentials(grant) = &agents["ana"] else { panic!("a grant") };
    assert_eq!((grant.token_url.as_str(), grant.client_id.as_str()), ("https://h/token", "c"));
    assert_eq!((grant.client_secret.expose(), grant.scopes.as_slice()), ("hunter2", ["a".to_owned()].as_slice()));
}

#[test]
fn incomplete_credentials_are_reported() {
    let reported =
        |auth: &str| problems(&format!("[identity]\nsource = 'broker'\n[mcp.servers.a]\nurl = 'https://h/'\n{auth}"));
    insta::assert_snapshot!(reported("auth = { type = 'bearer' }"), @"a.toml:5:8: `mcp.servers.a.auth`: `token` is missing; expected it here, or in `per_agent` for each agent");
    insta::assert_snapshot!(reported("auth = { type = 'basic', username = 'x' }"), @"a.toml:5:8: `mcp.servers.a.auth`: `password` is missing; expected it here, or in `per_agent` for each agent");
    insta::assert_snapshot!(reported("auth = { type = 'client_credentials', client_id = 'x' }"), @"a.toml:5:8: `mcp.servers.a.auth`: `token_url` is missing; expected a text");
    insta::assert_snapshot!(reported("auth = { type = 'client_credentials', token_url = 'x', client_id = 'x', client_secret = 'y' }"), @r#"a.toml:5:8: `mcp.servers.a.auth`: `token_url` is no URL (relative URL without a base); expected "https://host/path""#);
    insta::assert_snapshot!(reported("auth = { type = 'client_credentials', token_url = 'https://h/', client_id = 'x', client_secret = 'y', scopes = ['a b'] }"), @"a.toml:5:8: `mcp.servers.a.auth`: `scopes` has an entry that is no scope: expected words without spaces");
    insta::assert_snapshot!(reported("auth = { type = 'bearer', per_agent = { ana = { key = 'hunter2' } } }"), @"a.toml:5:8: `mcp.servers.a.auth`: expected `token` for `ana` in `per_agent`, as the `type` of this `auth` needs");
    insta::assert_snapshot!(reported("auth = { type = 'bearer', token = \"hunter2\\n\" }"), @"a.toml:5:8: `mcp.servers.a.auth`: has a credential with characters that no header can have");
    insta::assert_snapshot!(reported("auth = { type = 'api_key', header = 'a b', key = 'x' }"), @"a.toml:5:8: `mcp.servers.a.auth`: `header` is a name that no header can have");
    insta::assert_snapshot!(reported("auth = { type = 'bearer', token = 'x' }\nheaders = { Authorization = 'y' }"), @"a.toml:6:11: `mcp.servers.a.headers`: `headers` has `authorization`, which `auth` sets, too");
}

#[test]
fn credentials_of_agents_need_agents_that_are_recognised() {
    let text = "[mcp.servers.a]\nurl = 'https://h/'\nauth = { type = 'bearer', per_agent = { ana = { token = 'x' } } }";
    insta::assert_snapshot!(problems(text), @r#"a.toml:3:27: `mcp.servers.a.auth.per_agent`: cannot be relied on: under `source = "header"`, any sender can claim to be any agent; set `identity.source = "broker"`, or, on a bus whose senders are all trusted, `identity.trust_headers = true`"#);
}

#[test]
fn a_server_is_a_program_or_an_address() {
    insta::assert_snapshot!(problems("[mcp.servers.a]\nlazy = true\n[mcp.servers.b]\ncommand = 'x'\nurl = 'http://h/'\n[mcp.servers.c]\ntype = 'sse'\n[mcp.servers.d]\nurl = 'h'\n[mcp.servers.e]\ncommand = 'x'\ntype = 'websocket'\npinned = true"), @r#"
    a.toml:1:14: `mcp.servers.a`: expected a `command` to run, or the `url` of a server
    a.toml:3:1: `mcp.servers.b`: has a `command` and a `url`; expected one of them, or a `type` that decides
    a.toml:6:1: `mcp.servers.c`: `url` is missing; `type` says that it is an HTTP server
    a.toml:9:7: `mcp.servers.d.url`: `url` is no URL (relative URL without a base); expected "https://host/path"
    a.toml:12:8: `mcp.servers.e.type`: "websocket" is not known; expected one of "stdio", "http", "streamable-http", "sse"
    a.toml:13:1: `mcp.servers.e.pinned`: unknown key; expected one of `allowed_tools`, `args`, `auth`, `command`, `cwd`, `denied_tools`, `disabled`, `env`, `headers`, `lazy`, `pin`, `prefix`, `rename`, `roots`, `summary`, `tool_timeout`, `type`, `url`, `validate`
    "#);
    insta::assert_snapshot!(problems("[mcp.servers.a]\nurl = 'http://h/'\nheaders = { Host = 'x' }\n[mcp.servers.b]\ncommand = 'x'\nenv = { 'A=B' = 'hunter2' }\n[mcp.servers.c]\ncommand = ''\nvalidate = 'on'\ntool_timeout = '60'"), @r#"
    a.toml:3:11: `mcp.servers.a.headers`: `headers` has `host`, which the daemon itself sets
    a.toml:6:7: `mcp.servers.b.env`: `env` has a name that no variable can have
    a.toml:8:11: `mcp.servers.c.command`: empty; expected a text
    a.toml:9:12: `mcp.servers.c.validate`: "on" is not known; expected one of "enforce", "warn", "off"
    a.toml:10:16: `mcp.servers.c.tool_timeout`: "60" is not a duration; expected a whole number and a unit (ms, s, m, h, d), such as "60s"
    "#);
}

#[test]
fn the_name_of_a_server_is_valid_and_unique() {
    insta::assert_snapshot!(problems("[mcp.servers.Management]\ncommand = 'x'\n[mcp.servers.'']\ncommand = 'x'\n[mcp.servers.a]\ncommand = 'x'\n[mcp.servers.A]\ncommand = 'y'"), @r#"
    a.toml:1:14: `mcp.servers.Management`: "Management" is a reserved name; choose another name for this MCP server
    a.toml:3:14: `mcp.servers.""`: "" is no name of an MCP server; expected 1 to 64 characters, none of them a control character
    a.toml:5:14: `mcp.servers.a`: the same name as `A`, because the case of letters does not count
    "#);
}

#[test]
fn servers_that_callers_may_register_are_patterns_and_hosts() {
    insta::assert_snapshot!(problems("[mcp.register]\nenabled = true\ncommands = [['uvx', '[a]'], []]\nhosts = ['https://h', 'h:1']"), @r#"
    a.toml:3:21: `mcp.register.commands[0][1]`: "[a]" has `[`, which means nothing in a pattern: there is `*` for any run of characters and `?` for one
    a.toml:3:29: `mcp.register.commands[1]`: expected at least 1 element
    a.toml:4:10: `mcp.register.hosts[0]`: "https://h" is no host; expected for example "mcp.example.com", "*.example.com:8443" or "::1"
    "#);
    let rules = |text: &str| load(&[text], &[], &[]).unwrap().config.mcp.register.rules();
    assert!(rules("[mcp.register]\ncommands = [['uvx']]\nhosts = ['h']").is_none(), "it is switched off");
    let rules =
        rules("[mcp.register]\nenabled = true\ncommands = [['uvx', 'a-*']]\nhosts = ['MCP.Example.com']").unwrap();
    let line: Vec<_> = rules.commands[0].iter().map(|pattern| pattern.as_str()).collect();
    assert_eq!((line.as_slice(), rules.hosts[0].as_str()), (["uvx", "a-*"].as_slice(), "mcp.example.com"));
    insta::assert_snapshot!(warnings("[mcp.register]\nenabled = true"), @"mcp.register: allows no server, because `commands` and `hosts` are empty");
    insta::assert_snapshot!(warnings("[mcp.register]\nenabled = true\ncommands = [['*', 'x']]"), @"mcp.register.commands: lets callers run any program");
}

#[test]
fn queues_of_another_bridge_are_three_different_ones() {
    let queues = "[bus.compat_queues]\nmcp = 'rockbot.a'\nmcp-manage = 'rockbot.a'\nmcp-refresh = 'amq.x'";
    insta::assert_snapshot!(problems(&format!("{queues}\nmcp-x = 'y'")), @"
    a.toml:3:14: `bus.compat_queues.mcp-manage`: the same queue as for `mcp`; expected another
    a.toml:4:15: `bus.compat_queues.mcp-refresh`: queues that start with `amq.` belong to the broker; expected another name
    a.toml:5:1: `bus.compat_queues.mcp-x`: unknown key; expected one of `mcp`, `mcp-manage`, `mcp-refresh`
    ");
    insta::assert_snapshot!(warnings("[bus.compat_queues]\nmcp = 'rockbot.a'"), @"bus.compat_queues: not used, because there is no MCP server");
}

#[test]
fn a_tool_set_is_backed_by_one_existing_server() {
    let servers = "[mcp.servers.files]\ncommand = 'x'\n";
    let set = |name: &str, lines: &str| format!("[toolsets.{name}]\nkind = 'mcp'\n{lines}\n");
    let reported = |sets: &[String]| problems(&format!("{servers}{}", sets.concat()));
    insta::assert_snapshot!(reported(&[set("a", "server = 'file'"), set("b", ""), set("c", "server = 'files'"), set("d", "server = 'Files'"), set("e", "server = 'files'\nendpoints = ['x']")]), @r#"
    a.toml:5:10: `toolsets.a.server`: there is no MCP server `file`; did you mean `files`? expected `files`
    a.toml:6:1: `toolsets.b`: `server` is missing; expected the name of an MCP server
    a.toml:14:10: `toolsets.d.server`: the MCP server `Files` belongs to the tool set `c` already
    a.toml:17:10: `toolsets.e.server`: the MCP server `files` belongs to the tool set `c` already
    a.toml:18:1: `toolsets.e.endpoints`: not used by a tool set of kind "mcp"; expected `server` alone
    a.toml:18:14: `toolsets.e.endpoints[0]`: there is no endpoint `x`; there is none at all
    "#);
    insta::assert_snapshot!(problems("[toolsets.a]\nkind = 'mcp'\nserver = 'files'"), @"a.toml:3:10: `toolsets.a.server`: there is no MCP server `files`; there is none at all");
    insta::assert_snapshot!(problems("[toolsets.a]\nkind = 'rest'\nserver = 'files'"), @r#"
    a.toml:1:1: `toolsets.a`: `endpoints` is missing; expected a list of names of `rest.endpoints`
    a.toml:3:1: `toolsets.a.server`: not used by a tool set of kind "rest"; expected `endpoints` alone
    "#);
}

#[test]
fn a_remote_tool_set_without_tools_has_a_topic_on_which_they_are_listed() {
    let text = |topic: &str, more: &str| format!("[toolsets.a]\nkind = 'remote'\ntopic = '{topic}'\n{more}");
    for (topic, more) in [("tool.invoke.lab", ""), ("tool.invoke.mcp", "server = 'files'"), ("script.invoke", "")] {
        load(&[&text(topic, more)], &[], &[]).unwrap();
    }
    let set = |topic: &str, more: &str| problems(&text(topic, more));
    let server = "server = 'files'\n";
    let reported = [
        (set("lab.calls", ""), "a.topic`: a daemon lists its tools for a topic that begins with `tool.invoke`"),
        (set("tool.invoke.mcp", ""), "a`: `server` is missing"),
        (set("tool.invoke.lab", server), "a.topic`: bridges take calls of MCP servers from `tool.invoke.mcp`"),
        (
            set("tool.invoke.mcp", &format!("{server}[mcp.servers.x]\ncommand = 'true'")),
            "a.server`: a daemon with MCP servers is a bridge, too",
        ),
        (set("script.invoke", &format!("{server}[script]")), "a.server`: not used with the topic `script.invoke`"),
        (set("script.invoke", "[script]"), "a.topic`: a daemon with a section `script` takes scripts from this topic"),
    ];
    for (reported, expected) in reported {
        assert!(reported.contains(expected), "{expected}: {reported}");
    }
}

#[test]
fn a_tool_set_of_a_provider_needs_nothing_else() {
    let set = "[toolsets.billing]\nkind = 'remote'\nprovider = 'billing'\n";
    let loaded = load(&[set], &[], &[]).unwrap().config;
    assert_eq!(loaded.toolsets["billing"].calls_topic().unwrap(), "tool.invoke.provider.billing");
    let more = "topic = 'lab'\nserver = 'files'\nscope = 'session'\n[toolsets.billing.tools.a]\ndescription = 'x'\n";
    insta::assert_snapshot!(problems(&format!("{set}{more}")), @r#"
    a.toml:4:1: `toolsets.billing.topic`: not used with `provider`: the program has a topic of its own, and lists its tools
    a.toml:5:1: `toolsets.billing.server`: not used with `provider`, which is no MCP server
    a.toml:6:9: `toolsets.billing.scope`: a tool set of kind "remote" is shared: the other daemon has its sessions
    a.toml:7:19: `toolsets.billing.tools`: not used with `provider`: the program has a topic of its own, and lists its tools
    "#);
}

#[test]
fn a_remote_tool_set_has_a_topic_and_tools_and_nothing_of_other_kinds() {
    insta::assert_snapshot!(problems("[toolsets.lab]\nkind = 'remote'\nscope = 'session'\nserver = 'files'"), @r#"
    a.toml:1:1: `toolsets.lab`: `topic` is missing; expected the topic from which the other daemon takes calls, or `provider`
    a.toml:3:9: `toolsets.lab.scope`: a tool set of kind "remote" is shared: the other daemon has its sessions
    "#);
    let tool = "[toolsets.lab.tools.\"a.b\"]\ndescription = 'x'\nparameters = '{}'\n";
    insta::assert_snapshot!(problems(&format!("[toolsets.lab]\nkind = 'remote'\ntopic = 'lab.*'\n{tool}")), @r#"
    a.toml:3:9: `toolsets.lab.topic`: a pattern; expected one topic, such as "tool.result"
    a.toml:6:14: `toolsets.lab.tools."a.b".parameters`: `parameters` must have `"type": "object"`: arguments are an object
    "#);
    insta::assert_snapshot!(problems("[toolsets.lab]\nkind = 'rest'\ntopic = 'lab'"), @r#"
    a.toml:1:1: `toolsets.lab`: `endpoints` is missing; expected a list of names of `rest.endpoints`
    a.toml:3:1: `toolsets.lab.topic`: only used by a tool set of kind "remote"
    "#);
    let names = |text: &str| load(&[text], &[], &[]).unwrap().config.tool_names();
    let set = "[toolsets.lab]\nkind = 'remote'\ntopic = 'lab'\n[toolsets.lab.tools.echo]\ndescription = 'x'\n";
    assert!(names(set).contains(&"lab.echo".into()));
}

#[test]
fn placeholders_stand_in_the_servers_of_sessions_alone() {
    let server = "[mcp.servers.files]\ncommand = 'x'\nargs = ['{agent}']\n";
    insta::assert_snapshot!(problems(server), @r#"a.toml:3:8: `mcp.servers.files.args`: `args` has `{agent}` or `{session}`, which have a value only in the server of a tool set of scope "session""#);
    let shared = "[toolsets.fs]\nkind = 'mcp'\nserver = 'files'";
    insta::assert_snapshot!(problems(&format!("{server}{shared}")), @r#"a.toml:3:8: `mcp.servers.files.args`: `args` has `{agent}` or `{session}`, which have a value only in the server of a tool set of scope "session""#);
    assert!(load(&[&format!("{server}{shared}\nscope = 'session'")], &[], &[]).is_ok());
    for lines in ["env = { A = '{session}' }", "cwd = '{agent}'", "roots = ['/{session}']"] {
        let reported = problems(&format!("[mcp.servers.files]\ncommand = 'x'\n{lines}"));
        assert!(
            reported.contains("which have a value only in the server of a tool set of scope \"session\""),
            "{reported}"
        );
    }
}

#[test]
fn servers_of_sections_precede_those_of_the_file() {
    let json = r#"{"mcpServers": {"A": {"command": "file"}, "b": {"command": "file"}, "c": {"command": "{agent}", "args": ["{agent}"]}}}"#;
    let loaded = with_file("[mcp.servers.a]\ncommand = 'section'", json).unwrap();
    let specs = loaded.config.mcp_servers().specs;
    let names: Vec<_> = specs.iter().map(|spec| spec.name.to_string()).collect();
    assert_eq!(names, ["a", "b"]);
    insta::assert_snapshot!(loaded.warnings.join("\n"), @r#"
    mcp.json:1:22: `A` is not used, because `mcp.servers` has it, too
    mcp.json:1:74: `c` is left out: `args` has `{agent}` or `{session}`, which have a value only in the server of a tool set of scope "session"
    "#);
}

#[test]
fn a_server_of_the_file_may_back_a_tool_set_once_it_can_be_used() {
    let set = "[toolsets.fs]\nkind = 'mcp'\nserver = 'files'";
    let good = with_file(set, r#"{"mcpServers": {"Files": {"command": "x"}}}"#).unwrap();
    insta::assert_snapshot!(good.warnings.join("\n"), @"toolsets.fs: no agent has this tool set");
    let refused = with_file(set, r#"{"mcpServers": {"files": {"command": 5}}}"#).unwrap();
    insta::assert_snapshot!(refused.warnings.join("\n"), @"
    toolsets.fs: no agent has this tool set
    mcp.json:1:26: `files` is left out: `command`: expected a text
    toolsets.fs: there is no MCP server `files` now
    ");
    insta::assert_snapshot!(with_file(set, r#"{"mcpServers": {"file": {"command": "x"}}}"#).unwrap_err(), @"a.toml:4:10: `toolsets.fs.server`: there is no MCP server `files`; did you mean `file`? expected `file`");
    let unread = with_file(set, "{").unwrap();
    insta::assert_snapshot!(unread.warnings.join("\n"), @"
    toolsets.fs: no agent has this tool set
    mcp.json:1:1: not JSON: EOF while parsing an object
    toolsets.fs: there is no MCP server `files` now
    ");
}

#[test]
fn the_digest_distinguishes_servers_of_files_but_no_secrets() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mcp.json");
    let mut config = Config::default();
    config.mcp.servers_file = Some(path.clone());
    let mut digest = |json: &str| {
        std::fs::write(&path, json).unwrap();
        config.read_servers_file(&BTreeMap::new());
        config.digest()
    };
    let one = digest(r#"{"mcpServers": {"a": {"command": "x", "env": {"K": "1"}}}}"#);
    assert_ne!(one, digest(r#"{"mcpServers": {"a": {"command": "y", "env": {"K": "1"}}}}"#));
    assert_ne!(one, digest(r#"{"mcpServers": {"a": {"command": "x", "disabled": true, "env": {"K": "1"}}}}"#));
    assert_eq!(one, digest("{\"mcpServers\":\n{\"a\": {\"args\": [], \"command\": \"x\", \"env\": {\"K\": \"2\"}}}}"));
}

#[test]
fn names_of_tools_that_servers_may_have_are_warnings() {
    let agent = "[identity]\nsource = 'broker'\nunknown = 'deny'\n[agents.ana]\ntoolsets = ['fs']\nallowed_tools = ['read_file', 'web_*', 'fs.read_file', 'mcp_invoke_tool', 'curent_time']\n";
    let server = "[mcp.servers.files]\ncommand = 'x'\n[toolsets.fs]\nkind = 'mcp'\nserver = 'files'\n";
    let limits = "[tools]\nrequired = ['read_file', 'current_time']\n[tools.limits.'get_*']\nmax_in_flight = 1\n";
    insta::assert_snapshot!(warnings(&format!("{agent}{server}{limits}")), @"
    agents.ana.allowed_tools: `read_file` is no tool of this configuration; it may be one of an MCP server, which is known once that is connected
    agents.ana.allowed_tools: `curent_time` is no tool of this configuration; it may be one of an MCP server, which is known once that is connected
    tools.required: `read_file` is no tool of this configuration; it may be one of an MCP server, which is known once that is connected
    ");
    let only =
        "[mcp.servers.files]\ncommand = 'x'\n[tools]\ntime = false\n[identity]\nsource = 'broker'\nunknown = 'deny'\n";
    insta::assert_snapshot!(warnings(&format!("{only}[agents.ana]\nmax_in_flight = 1\n[agents.bob]\nallowed_tools = 'none'")), @"agents.bob: has no tool at all");
}

#[test]
fn names_of_the_tools_that_list_servers_are_reserved() {
    let endpoint = "[[rest.endpoints]]\nname = 'mcp_list_services'\ndescription = 'x'\nurl = 'https://h/'\n";
    assert!(load(&[endpoint], &[], &[]).is_ok());
    insta::assert_snapshot!(problems(&format!("{endpoint}[mcp.servers.a]\ncommand = 'x'")), @"a.toml:2:8: `rest.endpoints[0].name`: `mcp_list_services` is also the name of a tool for looking at MCP servers (see `mcp`); expected a name of its own");
}

#[test]
fn configured_parts_run() {
    let roles = |text: &str| {
        let loaded = load(&[text], &[], &[]).unwrap();
        let roles: Vec<_> = loaded.config.roles().into_iter().map(Role::as_str).collect();
        format!("{}: {}", roles.join(" "), loaded.warnings.join(" "))
    };
    let server = "[mcp.servers.a]\ncommand = 'x'\n";
    insta::assert_snapshot!([roles(""), roles(server), roles(&format!("{server}[daemon]\nroles = ['invoke']")), roles("[daemon]\nroles = ['invoke', 'mcp']")].join("\n"), @r#"
    invoke: 
    invoke mcp: 
    invoke: mcp: not used, because `daemon.roles` has no "mcp"
    invoke mcp: daemon.roles: "mcp" has nothing to do, because there is no MCP server
    "#);
}

#[test]
fn no_problem_of_a_server_shows_a_secret() {
    let texts = [
        "[mcp.servers.a]\ncommand = 'x'\nenv = { 'A=B' = 'hunter2' }",
        "[mcp.servers.a]\ncommand = 'x'\nenv = { A = ['hunter2'] }",
        "[mcp.servers.a]\ncommand = 'x'\nenv = { A = \"hunter2\\u0000\" }",
        "[mcp.servers.a]\nurl = 'http://ana:hunter2@h/'",
        "[mcp.servers.a]\nurl = 'hunter2'",
        "[mcp.servers.a]\nurl = 'http://h/'\nheaders = { A = \"hunter2\\n\" }",
        "[mcp.servers.a]\nurl = 'http://h/'\nauth = { type = 'bearer', key = 'hunter2' }",
        "[mcp.servers.a]\nurl = 'http://h/'\nauth = 'hunter2'",
    ];
    for text in texts {
        let reported = problems(text);
        assert!(!reported.contains("hunter2"), "{text}\n{reported}");
    }
    let loaded = load(&[DESIGNED], &[("TOKEN", "hunter2")], &[]).unwrap();
    let shown =
        format!("{loaded:?} {:?} {}", loaded.config.mcp_servers(), serde_json::to_string(&loaded.config).unwrap());
    assert!(!shown.contains("hunter2"), "{shown}");
}

#[test]
fn an_unknown_required_server_is_refused() {
    let required = "mcp.required = ['Files', 'git']\n[mcp.servers.files]\ncommand = 'x'\n";
    insta::assert_snapshot!(with_file(required, r#"{"mcpServers": {"gut": {"command": "x"}}}"#).unwrap_err(), @"a.toml:2:26: `mcp.required[1]`: there is no MCP server `git`; did you mean `gut`? expected one of `files`, `gut`");
    // A server that is left out, or may be in a file that cannot be read, is a matter of readiness.
    for file in [r#"{"mcpServers": {"git": {"command": 5}}}"#, "{"] {
        assert_eq!(with_file(required, file).unwrap().config.mcp.required, ["Files", "git"]);
    }
}
