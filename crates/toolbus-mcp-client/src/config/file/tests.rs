use toolbus_testing::mutation::check_inputs;

use super::*;
use crate::spec::TransportSpec;

const ENVIRONMENT: [(&str, &str); 5] = [
    ("API_KEY", "hunter2"),
    ("EMPTY", ""),
    ("HOME", "/data/ana"),
    ("DOLLAR", "${API_KEY}"),
    ("TOOLBUS_INPUT_API_KEY", "hunter2"),
];

/// Reads a text as a file; messages call it `mcp.json`.
fn read(text: &str) -> ServersFile {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mcp.json");
    fs::write(&path, text).unwrap();
    let environment = ENVIRONMENT.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    let mut read = ServersFile::read(&path, &environment);
    let here = format!("{}/", folder.path().display());
    let mistakes = read.refused.iter_mut().map(|refusal| &mut refusal.mistake);
    for message in read.problems.iter_mut().chain(&mut read.warnings).chain(mistakes) {
        *message = message.replace(&here, "");
    }
    let refused = read.refused.iter_mut().map(|refusal| &mut refusal.location);
    for location in read.entries.iter_mut().map(|(_, location)| location).chain(refused) {
        *location = location.replace(&here, "");
    }
    read
}

/// Servers, warnings and problems, a line for each.
fn shown(text: &str) -> String {
    let read = read(text);
    let mut lines: Vec<String> =
        read.entries.iter().map(|(spec, location)| format!("{location} {}", line(spec))).collect();
    lines.extend(read.warnings.iter().map(|warning| format!("warning: {warning}")));
    lines.extend(read.problems().iter().map(|problem| format!("problem: {problem}")));
    lines.join("\n")
}

/// A server in one line, with its secrets.
fn line(spec: &ServerSpec) -> String {
    let transport = match &spec.transport {
        TransportSpec::Stdio(program) => {
            let env: Vec<_> = program.env.iter().map(|(name, value)| format!("{name}={}", value.expose())).collect();
            let cwd = program.cwd.as_ref().map(|cwd| format!(" in {}", cwd.display())).unwrap_or_default();
            format!("{} {:?} {}{cwd}", program.command, program.args, env.join(" "))
        }
        TransportSpec::Http(endpoint) => {
            let headers: Vec<_> =
                endpoint.headers.iter().map(|(name, value)| format!("{name}: {}", value.expose())).collect();
            format!("{:?} {} {}", endpoint.kind, endpoint.url, headers.join(" "))
        }
    };
    let flags = [("disabled", spec.is_disabled), ("lazy", spec.is_lazy)];
    let flags: String = flags.iter().filter(|(_, set)| *set).map(|(flag, _)| format!(" {flag}")).collect();
    let timeout = spec.tool_timeout.map(|timeout| format!(" {timeout:?}")).unwrap_or_default();
    format!("{}: {}{flags}{timeout} {:?}", spec.name, transport.trim_end(), spec.validation)
}

#[test]
fn a_file_of_claude_desktop_works_unchanged() {
    insta::assert_snapshot!(shown(r#"{
  "mcpServers": {
    "filesystem": {
      "command": "npx",
      "args": ["-y", "@modelcontextprotocol/server-filesystem", "/files/ana/Desktop"]
    },
    "github": { "command": "docker", "args": ["run", "-i", "--rm"], "env": { "TOKEN": "t" } }
  },
  "globalShortcut": "Ctrl+Space"
}"#), @r#"
    mcp.json:3:19 filesystem: npx ["-y", "@modelcontextprotocol/server-filesystem", "/files/ana/Desktop"] Enforce
    mcp.json:7:15 github: docker ["run", "-i", "--rm"] TOKEN=t Enforce
    warning: mcp.json: ignored: `globalShortcut`
    "#);
}

#[test]
fn a_file_of_cursor_works_unchanged() {
    insta::assert_snapshot!(shown(r#"{
  "mcpServers": {
    "local": { "command": "python", "args": ["${env:HOME}/server.py"], "env": { "API_KEY": "${env:API_KEY}" } },
    "remote": { "url": "http://localhost:3000/mcp", "headers": { "API_KEY": "value" } }
  }
}"#), @r#"
    mcp.json:3:14 local: python ["/data/ana/server.py"] API_KEY=hunter2 Enforce
    mcp.json:4:15 remote: Detect http://localhost:3000/mcp API_KEY: value Enforce
    "#);
}

#[test]
fn a_file_of_vs_code_works_with_inputs_from_the_environment() {
    insta::assert_snapshot!(shown(r#"{
  // what is asked
  "inputs": [
    { "type": "promptString", "id": "api-key", "password": true },
    { "type": "pickString", "id": "region", "options": ["eu", "us"], "default": "eu" }, /* offered */
  ],
  "servers": {
    "github": { "type": "http", "url": "https://api.githubcopilot.com/mcp" }, // remote
    "asks": { "type": "stdio", "command": "x", "env": { "KEY": "${input:api-key}", "REGION": "${input:region}", }, },
    "home": { "command": "x", "args": ["${userHome}${/}y${pathSeparator}"] },
    "more": { "command": "x", "env": { "KEY": "${input:other key}" } },
    "config": { "command": "${config:mcp.command}" },
  },
}"#), @r#"
    mcp.json:8:15 github: Streamable https://api.githubcopilot.com/mcp Enforce
    mcp.json:9:13 asks: x [] KEY=hunter2 REGION=eu Enforce
    mcp.json:10:13 home: x ["/data/ana/y/"] Enforce
    problem: mcp.json:11:13: `more` is left out: `env`: `${input:other key}` asks a person, which a daemon cannot do; set the environment variable `TOOLBUS_INPUT_OTHER_KEY`
    problem: mcp.json:12:15: `config` is left out: `command`: `${config:mcp.command}` is no variable of the environment; expected `${NAME}` or `${NAME:-default}`
    "#);
    insta::assert_snapshot!(shown(r#"{"mcp": {"servers": {"a": {"command": "x"}}}, "editor.fontSize": 12}"#), @"
    mcp.json:1:27 a: x [] Enforce
    warning: mcp.json: ignored: `editor.fontSize`
    ");
}

#[test]
fn the_workspace_is_the_folder_of_the_file_or_of_its_hidden_folder() {
    let folder = tempfile::tempdir().unwrap();
    let hidden = folder.path().join("work/.vscode");
    fs::create_dir_all(&hidden).unwrap();
    for (file, expected) in [(hidden.join("mcp.json"), "work"), (folder.path().join("work/mcp.json"), "work")] {
        fs::write(&file, r#"{"servers": {"a": {"command": "${workspaceFolder}/${workspaceFolderBasename}"}}}"#)
            .unwrap();
        let read = ServersFile::read(&file, &BTreeMap::new());
        let expected = format!("a: {} [] Enforce", folder.path().join(expected).join(expected).display());
        assert_eq!(read.entries.iter().map(|(spec, _)| line(spec)).collect::<Vec<_>>(), [expected]);
    }
}

#[test]
fn the_variables_of_an_env_file_are_those_of_the_server_unless_it_has_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let (file, variables) = (folder.path().join("mcp.json"), folder.path().join(".env"));
    let shown = || {
        fs::write(
            &file,
            r#"{"servers": {"a": {"envFile": "${workspaceFolder}/.env", "command": "x", "env": {"A": "own"}}}}"#,
        )
        .unwrap();
        let read = ServersFile::read(&file, &BTreeMap::new());
        let lines = read.entries.iter().map(|(spec, _)| line(spec)).chain(read.problems());
        lines.collect::<Vec<_>>().join("\n").replace(&*folder.path().to_string_lossy(), "")
    };
    insta::assert_snapshot!(shown(), @"/mcp.json:1:19: `a` is left out: `envFile`: `/.env`: the file cannot be read: No such file or directory (os error 2)");
    fs::write(&variables, "A=file\nexport B='b c'\n").unwrap();
    insta::assert_snapshot!(shown(), @"a: x [] A=own B=b c Enforce");
    fs::write(&variables, "A=1\nhunter2\n").unwrap();
    insta::assert_snapshot!(shown(), @"/mcp.json:1:19: `a` is left out: `envFile`: `/.env`: line 2 is no variable; expected NAME=value");
    fs::write(&variables, "#".repeat(64 * 1024 + 1)).unwrap();
    insta::assert_snapshot!(shown(), @"/mcp.json:1:19: `a` is left out: `envFile`: `/.env`: the file is larger than 64 KiB");
}

#[test]
fn files_of_windsurf_gemini_zed_codex_and_copilot_work_unchanged() {
    insta::assert_snapshot!(shown(r#"{"mcpServers": {
        "windsurf": {"serverUrl": "https://h/sse", "headers": {"A": "b"}},
        "gemini": {"httpUrl": "https://h/mcp", "timeout": 5000, "trust": true},
        "copilot": {"type": "local", "command": "x", "args": [], "tools": ["*"]},
        "codex": {"command": "x", "enabled": true, "tool_timeout_ms": 1000}
    }}"#), @"
    mcp.json:2:21 windsurf: Detect https://h/sse A: b Enforce
    mcp.json:3:19 gemini: Streamable https://h/mcp Enforce
    mcp.json:4:20 copilot: x [] Enforce
    mcp.json:5:18 codex: x [] 1s Enforce
    warning: mcp.json:3:19: `gemini`: ignored: `timeout`, `trust`
    ");
    insta::assert_snapshot!(shown(r#"{
        // Zed's settings
        "theme": "One",
        "context_servers": {
            "new": {"source": "custom", "enabled": true, "command": "x", "args": ["y"], "env": {}},
            "old": {"command": {"path": "x", "args": ["y"], "env": {"A": "b"}}, "settings": {}},
            "off": {"enabled": false, "command": "x"},
            "twice": {"command": {"path": "x", "args": ["y"]}, "args": ["z"]},
            "remote": {"url": "https://h/mcp"},
        },
    }"#), @r#"
    mcp.json:5:20 new: x ["y"] Enforce
    mcp.json:6:20 old: x ["y"] A=b Enforce
    mcp.json:7:20 off: x [] disabled Enforce
    mcp.json:9:23 remote: Detect https://h/mcp Enforce
    warning: mcp.json: ignored: `theme`
    warning: mcp.json:5:20: `new`: ignored: `source`
    warning: mcp.json:6:20: `old`: ignored: `settings`
    problem: mcp.json:8:22: `twice` is left out: `command.args` and `args` mean the same; expected one of them
    "#);
}

/// Which of the tools `read`, `write` and `delete` a server offers, or why it is left out.
fn offered(fields: &str) -> String {
    let read = read(&format!(r#"{{"mcpServers": {{"a": {{"command": "x", {fields}}}}}}}"#));
    let of_server = |(spec, _): &(ServerSpec, String)| {
        let offered = ["read", "write", "delete"].into_iter().filter(|name| spec.tools.admits(name));
        format!("[{}]", offered.collect::<Vec<_>>().join(", "))
    };
    read.entries.iter().map(of_server).chain(read.problems()).collect::<Vec<_>>().join("\n")
}

#[test]
fn a_list_of_tools_counts_in_every_dialect() {
    for field in
        ["allowedTools", "includeTools", "includedTools", "enabledTools", "enabled_tools", "tools", "availableTools"]
    {
        assert_eq!(offered(&format!(r#""{field}": ["read"]"#)), "[read]", "{field}");
        assert_eq!(offered(&format!(r#""{field}": ["*"]"#)), "[read, write, delete]", "{field}");
        // With an empty list RockBot offers all tools, every other program none.
        let of_none = if field == "allowedTools" { "[read, write, delete]" } else { "[]" };
        assert_eq!(offered(&format!(r#""{field}": []"#)), of_none, "{field}");
        assert_eq!(offered(&format!(r#""{field}": null"#)), "[read, write, delete]", "{field}");
    }
    for field in [
        "deniedTools",
        "excludeTools",
        "excludedTools",
        "disabledTools",
        "disabled_tools",
        "disallowedTools",
        "blockedTools",
    ] {
        assert_eq!(offered(&format!(r#""{field}": ["delete", "w*"]"#)), "[read]", "{field}");
    }
    assert_eq!(offered(r#""excludeTools": ["read"], "includeTools": ["read", "write"]"#), "[write]");
    // Lists of tools without confirmation take no tool away.
    for field in ["alwaysAllow", "autoApprove", "alwaysAllowTools", "disabledAutoApproveTools", "trustedTools"] {
        assert_eq!(offered(&format!(r#""{field}": ["read"]"#)), "[read, write, delete]", "{field}");
    }
}

#[test]
fn a_server_with_an_unknown_list_of_tools_is_left_out() {
    let all = [
        r#""includeTools": "read""#,
        r#""tools": {"read": true}"#,
        r#""tools": ["read", 5]"#,
        r#""disabledTools": {"delete": true}"#,
        r#""includeTools": ["read"], "allowedTools": ["read", "write"]"#,
        r#""includeTols": ["read"]"#,
        r#""tool": ["read"]"#,
        r#""toolFilter": {"mode": "allow", "list": ["read"]}"#,
        r#""onlyAllow": ["read"]"#,
        r#""exclude_tags": ["danger"]"#,
        r#""options": {}, "filter": "read*""#,
    ];
    let shown = all.map(|fields| offered(fields).replace("mcp.json:1:22: `a` is left out: ", "")).join("\n");
    insta::assert_snapshot!(shown, @"
    `includeTools`: expected a list of texts
    `tools`: expected a list of texts
    `tools`: expected a list of texts
    `disabledTools`: expected a list of texts
    `includeTools` and `allowedTools` mean the same; expected one of them
    `includeTols` may choose among its tools in a way that is not known here; did you mean `includeTools`? write `includeTools` or `deniedTools`, or remove it
    `tool` may choose among its tools in a way that is not known here; did you mean `tools`? write `includeTools` or `deniedTools`, or remove it
    `toolFilter` may choose among its tools in a way that is not known here; write `includeTools` or `deniedTools`, or remove it
    `onlyAllow` may choose among its tools in a way that is not known here; write `includeTools` or `deniedTools`, or remove it
    `exclude_tags` may choose among its tools in a way that is not known here; did you mean `excludeTools`? write `includeTools` or `deniedTools`, or remove it
    `filter` may choose among its tools in a way that is not known here; write `includeTools` or `deniedTools`, or remove it
    ");
    assert_eq!(offered(r#""toolTimeoutSec": 5, "toolsEnabled": true"#), "[read, write, delete]");
}

#[test]
fn servers_that_gemini_leaves_out_by_name_are_disabled() {
    let with = |more: &str| {
        shown(&format!(r#"{{"mcpServers": {{"a": {{"command": "x"}}, "B": {{"command": "x"}}}}, {more}}}"#))
    };
    let neither = "mcp.json:1:22 a: x [] Enforce\nmcp.json:1:45 B: x [] Enforce";
    assert_eq!(with(r#""mcp": {"allowed": ["a", "b"], "excluded": null}"#), neither);
    let only_a = "mcp.json:1:22 a: x [] Enforce\nmcp.json:1:45 B: x [] disabled Enforce";
    for more in [
        r#""mcp": {"allowed": ["a"]}"#,
        r#""mcp": {"excluded": ["b"]}"#,
        r#""mcp": {"allowed": ["a", "B"], "excluded": ["B"]}"#,
        r#""allowMCPServers": ["a"]"#,
        r#""excludeMCPServers": ["B"]"#,
    ] {
        assert_eq!(with(more), only_a, "{more}");
    }
    insta::assert_snapshot!(with(r#""mcp": {"allowed": "a"}"#), @"problem: mcp.json:1:83: `mcp.allowed`: expected a list of texts");
    assert_eq!(
        with(r#""mcp": {"serverCommand": "x"}"#),
        format!("{neither}\nwarning: mcp.json: ignored: `mcp.serverCommand`")
    );
}

#[test]
fn a_misspelt_field_is_reported_with_the_nearest_name() {
    insta::assert_snapshot!(shown(r#"{"mcpServers": {"a": {"comand": "y", "command": "x", "heders": {}, "name": "b", "colour": "red"}}}"#), @"
    mcp.json:1:22 a: x [] Enforce
    warning: mcp.json:1:22: `a`: ignored: `comand` (did you mean `command`?), `heders` (did you mean `headers`?), `name`, `colour`
    ");
}

#[test]
fn the_settings_of_the_seeds_work_unchanged() {
    insta::assert_snapshot!(shown(r#"{
  "Logging": {},
  "Mcp": {
    "Servers": [
      { "Name": "files", "Command": "mcp-x", "Arguments": ["/data"], "EnvironmentVariables": { "K": "V" } },
      { "Name": "bare", "Command": "mcp-y", "Arguments": null }
    ]
  }
}"#), @r#"
    mcp.json:5:7 files: mcp-x ["/data"] K=V Enforce
    mcp.json:6:7 bare: mcp-y [] Enforce
    warning: mcp.json: ignored: `Logging`
    "#);
}

#[test]
fn a_file_of_rockbot_works_unchanged() {
    insta::assert_snapshot!(shown(r#"{"mcpServers":{"files":{"type":"sse","url":"http://host/sse","allowedTools":["read_file"]},
               "db":{"type":"sse","url":"http://db/sse","deniedTools":["drop_table"]},
               "local":{"command":"mcp-x","args":["/data"],"env":{"K":"V"}}}}"#), @r#"
    mcp.json:1:24 files: Sse http://host/sse Enforce
    mcp.json:2:21 db: Sse http://db/sse Enforce
    mcp.json:3:24 local: mcp-x ["/data"] K=V Enforce
    "#);
    insta::assert_snapshot!(shown(r#"{"McpServers":{"new":{"id":"0123456789ab","origin":"agent","type":"sse","transportMode":"auto",
        "url":"http://host/mcp","headers":{"X-Key":"${API_KEY}"},"toolTimeoutMs":1500,"isSse":true,"elicitation":null}}}"#), @"
    mcp.json:1:22 new: Detect http://host/mcp X-Key: hunter2 1.5s Enforce
    warning: mcp.json:1:22: `new`: ignored: `id`, `origin`, `isSse`, `elicitation`
    warning: mcp.json:1:22: `new`: sends credentials unencrypted; use https://
    ");
}

#[test]
fn fields_are_read_in_every_spelling() {
    let transports = ["streamable-http", "streamableHttp", "http", "HTTP", "sse", "streamable_http", ""];
    for (kind, expected) in
        transports.iter().zip(["Streamable", "Streamable", "Streamable", "Streamable", "Sse", "Streamable", "Detect"])
    {
        for key in ["type", "Transport"] {
            let shown = shown(&format!(r#"{{"mcpServers": {{"a": {{"{key}": "{kind}", "url": "http://h/"}}}}}}"#));
            assert_eq!(shown, format!("mcp.json:1:22 a: {expected} http://h/ Enforce"));
        }
    }
    insta::assert_snapshot!(shown(r#"{"MCPSERVERS": {
        "a": {"COMMAND": "x", "Args": [], "ENV": {"PORT": 3000, "DEBUG": true}, "Cwd": "data", "Type": "Stdio"},
        "b": {"url": "http://h/", "transportMode": "streamable-http", "type": "sse"},
        "c": {"url": "http://h/", "TransportMode": "SSE"},
        "d": {"command": "x", "lazy": true, "Disabled": true, "Validate": "Warn", "TOOLTIMEOUTMS": 60000}
    }}"#), @"
    mcp.json:2:14 a: x [] DEBUG=true PORT=3000 in data Enforce
    mcp.json:3:14 b: Streamable http://h/ Enforce
    mcp.json:4:14 c: Sse http://h/ Enforce
    mcp.json:5:14 d: x [] disabled lazy 60s Warn
    ");
}

#[test]
fn variables_are_substituted_in_every_text_once() {
    insta::assert_snapshot!(shown(r#"{"mcpServers": {
        "a": {"command": "${HOME}/x", "args": ["--key=${API_KEY}!", "${DOLLAR}", "${NOT:-a b}", "${EMPTY:-d}", "${EMPTY}", "$HOME", "${open"],
              "cwd": "${HOME}", "env": {"${HOME}": "${API_KEY}"}},
        "b": {"url": "https://${NOT:-h}/${API_KEY}", "headers": {"Authorization": "Bearer ${API_KEY}"}}
    }}"#), @r#"
    mcp.json:2:14 a: /data/ana/x ["--key=hunter2!", "${API_KEY}", "a b", "d", "", "$HOME", "${open"] ${HOME}=hunter2 in /data/ana Enforce
    mcp.json:4:14 b: Detect https://h/hunter2 Authorization: Bearer hunter2 Enforce
    "#);
}

#[test]
fn a_variable_that_is_not_there_refuses_its_server_alone() {
    insta::assert_snapshot!(shown(r#"{"mcpServers": {
        "a": {"command": "x", "env": {"KEY": "${NOT}"}},
        "b": {"command": "x", "args": ["${x y}"]},
        "c": {"command": "x", "args": ["${}"]},
        "d": {"command": "x", "args": ["${NOT}"], "disabled": true},
        "e": {"command": "x", "note": "${NOT}"}
    }}"#), @"
    mcp.json:6:14 e: x [] Enforce
    warning: mcp.json:5:14: `d` is left out: `args`: the environment variable `NOT` is not set; set it, or write `${NOT:-default}`
    warning: mcp.json:6:14: `e`: ignored: `note`
    problem: mcp.json:2:14: `a` is left out: `env`: the environment variable `NOT` is not set; set it, or write `${NOT:-default}`
    problem: mcp.json:3:14: `b` is left out: `args`: `${x y}` is no variable of the environment; expected `${NAME}` or `${NAME:-default}`
    problem: mcp.json:4:14: `c` is left out: `args`: `${}` is no variable of the environment; expected `${NAME}` or `${NAME:-default}`
    ");
}

#[test]
fn an_unusable_server_is_left_out_and_reported_with_its_location() {
    insta::assert_snapshot!(shown(r#"{"mcpServers": {
        "a": {},
        "b": {"command": "x", "url": "http://h/"},
        "c": {"type": "http"},
        "d": {"type": "stdio", "url": "http://h/"},
        "e": {"type": "websocket", "url": "http://h/"},
        "f": {"url": "ftp://h/"},
        "g": {"url": "http://ana:hunter2@h/"},
        "h": {"url": "hunter2"},
        "i": {"command": ["x"]},
        "j": {"command": " "},
        "k": {"command": "x", "args": "y"},
        "l": {"command": "x", "args": [1]},
        "m": {"command": "x", "env": {"A=B": "hunter2"}},
        "n": {"command": "x", "env": {"A": null}},
        "o": {"url": "http://h/", "headers": {"a b": "hunter2"}},
        "p": {"url": "http://h/", "headers": {"X": "hunter2\n"}},
        "q": {"url": "http://h/", "headers": {"Host": "x"}},
        "r": {"command": "x", "toolTimeoutMs": 0},
        "s": {"command": "x", "toolTimeoutMs": "60s"},
        "t": {"command": "x", "disabled": "yes"},
        "u": {"command": "x", "validate": "maybe"},
        "v": {"command": "x", "Command": "y"},
        "w": {"command": "x\u0000"},
        "x": 5,
        "": {"command": "x"},
        "management": {"command": "x"},
        "y": {"command": "x", "transportMode": "carrier pigeon"},
        "fine": {"command": "x"},
        "Fine": {"command": "y"}
    }}"#), @r#"
    mcp.json:29:17 fine: x [] Enforce
    problem: mcp.json:26:13: left out: `` is no name of an MCP server; expected 1 to 64 characters, none of them a control character
    problem: mcp.json:27:23: left out: `management` is a reserved name; choose another name for this MCP server
    problem: mcp.json:30:17: `Fine` is left out: there is a server of this name before it
    problem: mcp.json:2:14: `a` is left out: expected a `command` to run, or the `url` of a server
    problem: mcp.json:3:14: `b` is left out: has a `command` and a `url`; expected one of them, or a `type` that decides
    problem: mcp.json:4:14: `c` is left out: `url` is missing; `type` says that it is an HTTP server
    problem: mcp.json:5:14: `d` is left out: `command` is missing; `type` says that it is a program
    problem: mcp.json:6:14: `e` is left out: `type`: expected "stdio", "http", "streamable-http" or "sse"
    problem: mcp.json:7:14: `f` is left out: `url` is no HTTP address; expected "https://host/path"
    problem: mcp.json:8:14: `g` is left out: `url` has a user or a password, which would be shown; use a header instead
    problem: mcp.json:9:14: `h` is left out: `url` is no URL (relative URL without a base); expected "https://host/path"
    problem: mcp.json:10:14: `i` is left out: `command`: expected a text
    problem: mcp.json:11:14: `j` is left out: `command` is no program
    problem: mcp.json:12:14: `k` is left out: `args`: expected a list of texts
    problem: mcp.json:13:14: `l` is left out: `args`: expected a list of texts
    problem: mcp.json:14:14: `m` is left out: `env` has a name that no variable can have
    problem: mcp.json:15:14: `n` is left out: `env`: expected an object of texts
    problem: mcp.json:16:14: `o` is left out: `headers` has a name that no header can have
    problem: mcp.json:17:14: `p` is left out: `headers` has a value for `x` that no header can have
    problem: mcp.json:18:14: `q` is left out: `headers` has `host`, which the daemon itself sets
    problem: mcp.json:19:14: `r` is left out: `toolTimeoutMs`: expected a whole number of milliseconds from 1 to 31622400000
    problem: mcp.json:20:14: `s` is left out: `toolTimeoutMs`: expected a whole number of milliseconds from 1 to 31622400000
    problem: mcp.json:21:14: `t` is left out: `disabled`: expected true or false
    problem: mcp.json:22:14: `u` is left out: `validate`: expected "enforce", "warn" or "off"
    problem: mcp.json:23:14: `v` is left out: `command` is given twice
    problem: mcp.json:24:14: `w` is left out: `command` is no program
    problem: mcp.json:25:14: `x` is left out: expected an object
    problem: mcp.json:28:14: `y` is left out: `transportMode`: expected "auto", "streamable-http" or "sse"
    "#);
    insta::assert_snapshot!(shown(r#"{"Mcp": {"Servers": [{"Command": "x"}, {"Name": 5, "Command": "x"}, 7]}}"#), @"
    problem: mcp.json:1:22: a server without a `name` is left out
    problem: mcp.json:1:40: a server without a `name` is left out
    problem: mcp.json:1:69: a server without a `name` is left out
    ");
}

#[test]
fn a_refused_server_still_has_its_name() {
    let read = read(r#"{"mcpServers": {"Files": {"command": 5}}}"#);
    assert!(read.has(&ServerName::parse("files").unwrap()) && !read.has(&ServerName::parse("file").unwrap()));
    assert!(!read.is_unread());
}

#[test]
fn a_refused_server_keeps_its_earlier_configuration() {
    let keep = |text: &str| {
        let before =
            read(r#"{"mcpServers": {"Files": {"command": "x"}, "web": {"url": "http://h/"}, "c": {"command": "z"}}}"#);
        let known: Vec<_> = before.entries.iter().map(|(spec, _)| spec.clone()).collect();
        let mut now = read(text);
        now.keep(&known, &BTreeMap::new(), |spec| (&**spec.name.as_str() == "c").then(|| "misplaced".to_owned()));
        let mut lines: Vec<_> =
            now.entries.iter().map(|(spec, location)| format!("{location} {}", line(spec))).collect();
        lines.extend(now.problems());
        lines.extend(now.outdated().iter().map(|(name, mistake)| format!("{name}: {mistake}")));
        lines.join("\n")
    };
    insta::assert_snapshot!(keep(r#"{"mcpServers": {
        "files": {"command": "x", "toolTimeoutMs": "30s"},
        "web": {"url": "http://h/${NOT}", "disabled": true},
        "new": {"command": "x", "toolTimeoutMs": "30s"},
        "c": {"command": "misplaced"}
    }}"#), @"
    mcp.json:5:14 c: z [] Enforce
    mcp.json:2:18 Files: x [] Enforce
    mcp.json:2:18: `files` goes on as it was: `toolTimeoutMs`: expected a whole number of milliseconds from 1 to 31622400000
    mcp.json:4:16: `new` is left out: `toolTimeoutMs`: expected a whole number of milliseconds from 1 to 31622400000
    mcp.json:5:14: `c` goes on as it was: misplaced
    c: mcp.json:5:14: misplaced
    files: mcp.json:2:18: `toolTimeoutMs`: expected a whole number of milliseconds from 1 to 31622400000
    ");
    insta::assert_snapshot!(keep(r#"{"mcpServers": {"web": {"url": "http://other/"}}}"#), @"mcp.json:1:24 web: Detect http://other/ Enforce");
}

#[test]
fn unlikely_settings_are_warned_of() {
    insta::assert_snapshot!(shown(r#"{"mcpServers": {
        "a": {"command": "x", "allowedTools": ["p"], "deniedTools": ["q"]},
        "b": {"type": "http", "url": "http://h/", "command": "x", "args": ["y"]},
        "c": {"type": "stdio", "url": "http://h/", "command": "x", "headers": {"A": "b"}},
        "d": {"url": "http://mcp.example.com/", "headers": {"A": "b"}},
        "e": {"command": "x", "m1": 1, "m2": 1, "m3": 1, "m4": 1, "m5": 1, "m6": 1, "m7": 1, "m8": 1, "m9": 1}
    }}"#), @"
    mcp.json:2:14 a: x [] Enforce
    mcp.json:3:14 b: Streamable http://h/ Enforce
    mcp.json:4:14 c: x [] Enforce
    mcp.json:5:14 d: Detect http://mcp.example.com/ A: b Enforce
    mcp.json:6:14 e: x [] Enforce
    warning: mcp.json:2:14: `a`: has both a list of allowed and of denied tools; a tool of both is denied
    warning: mcp.json:3:14: `b`: not used, because it has a `url`: `command`, `args`
    warning: mcp.json:4:14: `c`: not used, because it has a `command`: `url`, `headers`
    warning: mcp.json:5:14: `d`: sends credentials unencrypted; use https://
    warning: mcp.json:6:14: `e`: ignored: `m1`, `m2`, `m3`, `m4`, `m5`, `m6`, `m7`, `m8` and 1 more
    ");
    let long =
        shown(&format!(r#"{{"mcpServers": {{"a": {{"command": "x", "{}": 1, "b\u001b[2J": 1}}}}}}"#, "n".repeat(1000)));
    assert!(long.len() < 300 && long.contains("`b\\u{1b}[2J`"), "{long}");
}

#[test]
fn invalid_json_is_refused_with_its_location() {
    let refused = |text: &str| {
        let read = read(text);
        assert!(read.is_unread() && read.entries.is_empty() && read.warnings.is_empty());
        read.problems.join("\n")
    };
    insta::assert_snapshot!(refused("{\"mcpServers\": {\n  \"a\": {\"command\": \"x\"},,\n}}"), @"mcp.json:3:1: not JSON: key must be a string");
    insta::assert_snapshot!(refused("{\n  # servers\n  \"mcpServers\": {}}"), @"mcp.json:2:3: not JSON: key must be a string");
    insta::assert_snapshot!(refused("{\"mcpServers\": {\"a\": {\"command\": \"hunter2"), @"mcp.json:1:41: not JSON: EOF while parsing a string");
    insta::assert_snapshot!(refused(""), @"mcp.json:1:0: not JSON: EOF while parsing a value");
    insta::assert_snapshot!(refused("{} {}"), @"mcp.json:1:4: not JSON: trailing characters");
    insta::assert_snapshot!(refused("[]"), @"mcp.json: expected an object with `mcpServers`");
    insta::assert_snapshot!(refused("{}"), @"mcp.json: expected an object with `mcpServers`");
    insta::assert_snapshot!(refused(r#"{"mcpServer": {}, "a": 1}"#), @"mcp.json: expected an object with `mcpServers`; found `mcpServer` (did you mean `mcpServers`?), `a`");
    insta::assert_snapshot!(refused("{\"mcpServers\": 5}"), @"mcp.json:1:16: `mcpServers`: expected an object or a list of servers");
    insta::assert_snapshot!(refused(&format!("{{\"mcpServers\": {{{}}}}}", servers(201))), @"mcp.json: has 201 servers; at most 200 can be read");
    insta::assert_snapshot!(refused(&" ".repeat(1024 * 1024 + 1)), @"mcp.json: the file is larger than 1024 KiB");
}

/// So many servers, without the braces around them.
fn servers(count: usize) -> String {
    (0..count).map(|number| format!("\"s{number}\": {{\"command\": \"x\"}}")).collect::<Vec<_>>().join(", ")
}

#[test]
fn servers_arguments_and_texts_are_bounded() {
    assert_eq!(read(&format!("{{\"mcpServers\": {{{}}}}}", servers(200))).entries.len(), 200);
    let with_args = |count: usize| {
        format!(r#"{{"mcpServers": {{"a": {{"command": "x", "args": [{}]}}}}}}"#, vec!["\"\""; count].join(","))
    };
    assert_eq!(read(&with_args(10_000)).entries.len(), 1);
    insta::assert_snapshot!(shown(&with_args(10_001)), @"problem: mcp.json:1:22: `a` is left out: `args` has more than 10000 arguments");

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mcp.json");
    fs::write(&path, with_args(100).replace("\"\"", "\"${BIG}\"")).unwrap();
    let environment = BTreeMap::from([("BIG".to_owned(), "x".repeat(100_000))]);
    let read = ServersFile::read(&path, &environment);
    assert!(read.entries.is_empty() && read.problems()[0].ends_with("more than 1 MiB with the variables in them"));
    let deep =
        format!(r#"{{"mcpServers": {{"a": {{"command": "x", "args": {}1{}}}}}}}"#, "[".repeat(5000), "]".repeat(5000));
    insta::assert_snapshot!(shown(&deep), @"problem: mcp.json:1:22: `a` is left out: `args`: cannot be read");
}

#[test]
fn a_missing_or_irregular_file_is_unread() {
    let problem = |path: &str| {
        let read = ServersFile::read(Path::new(path), &BTreeMap::new());
        assert!(read.is_unread());
        read.problems.join("\n")
    };
    insta::assert_snapshot!(problem("/nonexistent/mcp.json"), @"/nonexistent/mcp.json: the file cannot be read: No such file or directory (os error 2)");
    insta::assert_snapshot!(problem("/dev/zero"), @"/dev/zero: not a regular file");
    insta::assert_snapshot!(problem("/"), @"/: not a regular file");
}

#[test]
fn a_byte_order_mark_is_skipped() {
    assert_eq!(read("\u{feff}{\"mcpServers\": {\"a\": {\"command\": \"x\"}}}").entries.len(), 1);
}

#[test]
fn nothing_secret_is_shown() {
    let read = read(
        r#"{"mcpServers": {
        "a": {"command": "x", "env": {"KEY": "hunter2"}},
        "b": {"url": "https://h/", "headers": {"Authorization": "Bearer ${API_KEY}"}}
    }}"#,
    );
    assert_eq!(read.entries.len(), 2);
    let shown = format!("{read:?} {}", read.fingerprint());
    assert!(!shown.contains("hunter2"), "{shown}");
}

const FILES: &[&[u8]] = &[
    br#"{"mcpServers":{"files":{"command":"npx","args":["-y","@scope/files","${API_KEY}"],"env":{"K":"${NO:-x}"}}}}"#,
    br#"{"servers":{"web":{"type":"http","url":"https://example.com/mcp","headers":{"Authorization":"Bearer ${input:key}"}}},
         "inputs":[{"id":"key","type":"promptString","default":"d"}]}"#,
    br#"{"mcp":{"servers":[{"name":"a","command":["python3","-m","x"]},{"name":"a","url":"sse://x"}],"allowed":["a"],
         "excluded":["b"]},"theme":1}"#,
    br#"{"context_servers":{"x":{"source":"custom","command":{"path":"x","args":[],"env":null}},
         "y":{"disabled":true,"timeout":60000,"serverUrl":"${API_KEY}"}}}"#,
];

#[test]
fn any_bytes_are_a_file_of_servers_whose_messages_are_short_and_have_no_secret() {
    const SECRET: &str = "hunter2-of-the-environment";
    check_inputs(FILES, 2_000, |bytes| {
        let environment = BTreeMap::from([("API_KEY".to_owned(), SECRET.to_owned())]);
        let text = plain(String::from_utf8_lossy(bytes).trim_start_matches('\u{feff}'));
        let read = || {
            let mut read = ServersFile::default();
            let parsed = read.parse("mcp.json", &text, Variables::new(Path::new("mcp.json"), &environment));
            (parsed, read)
        };
        let (parsed, servers) = read();
        assert_eq!(read(), (parsed.clone(), servers.clone()));
        let mut names: Vec<_> = servers.names().collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert!(count == names.len() && count <= MAX_SERVERS, "{names:?}");
        let mistakes = servers.refused.iter().map(|refusal| &refusal.mistake);
        for message in mistakes.chain(&servers.warnings).chain(&servers.problems).chain(parsed.as_ref().err()) {
            assert!(message.len() <= 4096 && !message.contains(SECRET), "{message}");
        }
    });
}

#[test]
fn a_summary_of_a_file_is_one_clean_line_of_bounded_length() {
    let summary = |written: &str| {
        let text = serde_json::json!({"mcpServers": {"a": {"command": "x", "Summary": written}}}).to_string();
        read(&text).entries.remove(0).0.summary
    };
    assert_eq!(summary("Files of\n  the team\u{200b}\u{1b}[2J").as_deref(), Some("Files of the team[2J"));
    assert_eq!(summary(&"é".repeat(1000)).unwrap().chars().count(), 300);
    assert_eq!(summary(" "), None);
}
