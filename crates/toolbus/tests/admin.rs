//! The commands for operators against a daemon as a process.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

const CONFIGURATION: &str = r#"
[identity]
trust_headers = true

[agents.ana]
allowed_tools = ["*_time"]
profile = "subagent"
tool_rate_limits = { "convert_time" = { rps = 1.0, burst = 1 } }

[[agents.ana.bindings]]
channel = "whatsapp"
account = "sales"
allowed_tools = ["current_time"]
"#;

/// A daemon on the embedded bus in a folder of its own, which ends with the test.
struct Served {
    folder: TempDir,
    child: Child,
}

impl Served {
    fn start(more: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("toolbus.toml"), format!("{CONFIGURATION}{more}")).unwrap();
        let child = serve(folder.path());
        Self { folder, child }
    }

    fn run(&self, arguments: &[&str]) -> (i32, String, String) {
        run(self.folder.path(), arguments, &[])
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let (code, out, err) = self.run(&[arguments, &["--output", "json"]].concat());
        assert!(code < 2, "{err}");
        serde_json::from_str(&out).unwrap()
    }

    fn restart(&mut self, signal: &str) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args(["-s", signal, &id]).status().unwrap().success());
        self.child.wait().unwrap();
        self.child = serve(self.folder.path());
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn toolbus(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_toolbus"));
    command.args(arguments).env_clear().env("PATH", std::env::var_os("PATH").unwrap()).current_dir(folder);
    command
}

/// Starts a daemon, and waits until it takes calls in.
fn serve(folder: &Path) -> Child {
    started(toolbus(folder, &["serve", "--listen", "127.0.0.1:0"]))
}

fn started(mut command: Command) -> Child {
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut log = BufReader::new(child.stderr.take().unwrap()).lines();
    let started = log.by_ref().map(Result::unwrap).any(|line| line.contains("the bus is embedded"));
    assert!(started, "the daemon has ended");
    // Read on, so that the daemon never waits for a full pipe.
    std::thread::spawn(move || log.for_each(drop));
    child
}

fn run(folder: &Path, arguments: &[&str], environment: &[(&str, &str)]) -> (i32, String, String) {
    let Output { status, stdout, stderr } =
        toolbus(folder, arguments).envs(environment.iter().copied()).stdin(Stdio::null()).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap().trim_end().to_owned();
    (status.code().unwrap(), text(stdout), text(stderr))
}

#[test]
fn the_tools_of_agents_are_queried_from_the_running_daemon() {
    let served = Served::start("");
    let mode = std::fs::metadata(served.folder.path().join("toolbus.sock")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let (code, out, err) = served.run(&["agents"]);
    assert_eq!((code, &*err), (0, ""));
    insta::assert_snapshot!(out, @r#"
    AGENT    TOOLS  PROFILE   RUNNING  WAITING  RATE LIMITS   BINDINGS
    ana      2/2    subagent  0/192    0/512    convert_time  whatsapp:sales
    default  0/2    -         0/192    0/512    -             -
    "#);
    let (_, out, _) = served.run(&["agents", "ana", "--binding", "whatsapp:sales"]);
    insta::assert_snapshot!(out, @r#"
    ana: 1 of 2 tools

    profile    subagent
    bindings   whatsapp:sales
    at a time  192 running, 512 waiting
    rates      convert_time: 1 per second, 1 at once

    TOOL          SOURCE  ALLOWED  WHY
    convert_time  time    no       not in allowed_tools of the binding
    current_time  time    yes      allowed by `current_time`
    "#);
    // From elsewhere, with the path of the socket.
    let elsewhere = tempfile::tempdir().unwrap();
    let socket = served.folder.path().join("toolbus.sock");
    let there = run(elsewhere.path(), &["agents", "--socket", socket.to_str().unwrap()], &[]);
    assert_eq!(there, served.run(&["agents"]));
}

#[test]
fn a_call_is_explained_with_an_exit_code_of_its_own() {
    let served = Served::start("");
    let (code, out, _) = served.run(&["explain", "ana", "current_time", "timezone=UTC"]);
    assert_eq!(code, 0, "{out}");
    insta::assert_snapshot!(out, @r#"
    pass  caller      agent ana, profile subagent, 2 tools
    pass  resolve     allowed by `*_time`
    pass  arguments   valid
    pass  recipients  the call has no recipients
    pass  rate limit  not limited
    pass  permit      at most 192 calls of the agent run and 512 wait

    would be run
    "#);
    let (code, out, _) = served.run(&["explain", "ana", "current_time", r#"{"timezone": 7}"#]);
    assert_eq!(code, 1);
    insta::assert_snapshot!(out, @r#"
    pass    caller     agent ana, profile subagent, 2 tools
    pass    resolve    allowed by `*_time`
    refuse  arguments  The arguments do not fit the tool's parameters: /timezone: value is not of type "string"

    refused at arguments
    "#);
    let binding = ["explain", "ana", "convert_time", "--binding", "whatsapp:sales"];
    assert_eq!((served.run(&binding).0, served.json(&binding)["passes"].clone()), (1, Value::from(false)));
    for mistake in [&["explain", "a b", "current_time"][..], &["explain", "ana", "x", "{"], &["explain", "ana"]] {
        assert_eq!(served.run(mistake).0, 2, "{mistake:?}");
    }
}

#[test]
fn a_disabled_tool_stays_off_over_a_restart_and_a_kill() {
    let mut served = Served::start("[store]\nurl = \"sqlite:toolbus.db\"\n");
    let (code, out, err) = served.run(&["disable", "tool", "current_time"]);
    assert_eq!((code, &*out, &*err), (0, "tool current_time is switched off", ""));
    for signal in ["TERM", "KILL"] {
        served.restart(signal);
        assert_eq!(served.json(&["agents"])["disabled"][0]["name"], "current_time", "{signal}");
        let (code, out, _) = served.run(&["explain", "ana", "current_time", "timezone=UTC"]);
        assert!(code == 1 && out.contains("tool current_time"), "{out}");
    }
    assert_eq!(served.run(&["enable", "tool", "current_time"]).1, "tool current_time is switched on again");
    served.restart("KILL");
    assert_eq!(served.json(&["agents"])["disabled"], Value::Array(Vec::new()));
}

#[test]
fn an_unknown_name_can_be_switched_off_with_a_warning() {
    let served = Served::start("");
    let (code, out, err) = served.run(&["disable", "agent", "bruno"]);
    assert_eq!((code, &*out, &*err), (0, "agent bruno is switched off", "warning: there is no agent of this name now"));
}

#[test]
fn a_second_daemon_leaves_the_socket_of_the_first() {
    let served = Served::start("");
    let (code, _, err) = served.run(&["serve", "--listen", "127.0.0.1:0"]);
    assert_eq!(code, 1);
    assert!(err.contains("another daemon answers on the socket `toolbus.sock`"), "{err}");
    assert_eq!(served.run(&["agents"]).0, 0);
}

#[test]
fn a_missing_daemon_is_reported_with_the_next_step() {
    let folder = tempfile::tempdir().unwrap();
    for command in [&["agents"][..], &["explain", "ana", "x"], &["disable", "tool", "x"], &["mcp", "list"]] {
        let (code, out, err) = run(folder.path(), command, &[]);
        assert_eq!((code, &*out), (7, ""), "{command:?}");
        for part in ["`toolbus.sock`", "toolbus serve", "--socket", "--config"] {
            assert!(err.contains(part), "{err}");
        }
    }
}

#[test]
fn a_file_is_evaluated_without_a_daemon() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.toml"), CONFIGURATION).unwrap();
    let with_file = |arguments: &[&str]| run(folder.path(), &[arguments, &["--config", "a.toml"]].concat(), &[]);
    assert!(with_file(&["agents"]).1.contains("whatsapp:sales"));
    assert_eq!(with_file(&["explain", "ana", "current_time", "timezone=UTC"]).0, 0);
    assert_eq!(with_file(&["explain", "bruno", "current_time", "timezone=UTC"]).0, 1);
    let (_, _, err) = with_file(&["agents"]);
    let note = "note: no daemon is asked, the configuration alone is looked at: no daemon answers";
    assert!(err.starts_with(note), "{err}");
    assert!(!with_file(&["agents", "--offline"]).2.contains("note"));
    for command in [&["disable", "tool", "current_time"][..], &["mcp", "list"], &["status"], &["reload"]] {
        let (code, out, err) = with_file(command);
        assert!(code == 7 && out.is_empty() && err.contains("no daemon answers"), "{err}");
    }
    assert_eq!(with_file(&["agents", "--socket", "x"]).0, 7);
    assert_eq!(with_file(&["agents", "--socket", "x", "--offline"]).0, 2);
    let names = |arguments: &[&str]| {
        let (code, out, _) = with_file(&[&["tools", "--output", "json"], arguments].concat());
        assert_eq!(code, 0);
        let tools: Value = serde_json::from_str(&out).unwrap();
        tools.as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names(&["--as", "ana"]), ["convert_time", "current_time"]);
    assert_eq!(names(&["--as", "ana", "--binding", "whatsapp:sales"]), ["current_time"]);
    assert!(names(&["--as", "bruno"]).is_empty());
}

#[test]
fn a_daemon_without_mcp_servers_lists_none_and_refuses_to_show_one() {
    let served = Served::start("");
    let (code, out, _) = served.run(&["mcp", "list"]);
    assert!(code == 0 && out.starts_with("the daemon has no MCP servers: "), "{out}");
    assert_eq!(served.json(&["mcp", "list"])["servers"], Value::Array(Vec::new()));
    for command in [["mcp", "show", "files"], ["mcp", "restart", "files"]] {
        let (code, out, err) = served.run(&command);
        assert!(code == 2 && out.is_empty() && err.starts_with("error: the daemon has no MCP servers: "), "{err}");
    }
    assert_eq!(served.run(&["mcp", "list", "--config", "toolbus.toml"]), served.run(&["mcp", "list"]));
}

#[test]
fn the_configuration_names_the_daemon_that_runs_it_and_no_other() {
    let served = Served::start("");
    assert_eq!(served.run(&["disable", "tool", "current_time", "--config", "toolbus.toml"]).0, 0);
    let (code, out, err) = served.run(&["agents", "--config", "toolbus.toml"]);
    assert!(code == 0 && out.contains("switched off: tool current_time") && err.is_empty(), "{out}{err}");
    let out = served.run(&["agents", "--config", "toolbus.toml", "--offline"]).1;
    assert!(!out.contains("switched off"), "{out}");
    // Another configuration with the same socket is not that of this daemon.
    std::fs::write(served.folder.path().join("other.toml"), CONFIGURATION).unwrap();
    let (code, out, err) = served.run(&["agents", "--config", "other.toml"]);
    assert!(code == 0 && !out.contains("switched off"), "{out}");
    assert!(err.starts_with("note: no daemon is asked") && err.contains("/toolbus.toml`"), "{err}");
    let (code, _, err) = served.run(&["enable", "tool", "current_time", "--config", "other.toml"]);
    assert!(code == 7 && err.contains("/toolbus.toml`") && err.contains("--socket"), "{err}");
    assert_eq!(served.run(&["enable", "tool", "current_time", "--socket", "toolbus.sock"]).0, 0);
    // Without a file, the target is the daemon on the socket, whatever its configuration.
    let (elsewhere, socket) = (tempfile::tempdir().unwrap(), served.folder.path().join("toolbus.sock"));
    let environment = [("TOOLBUS__DAEMON__SOCKET", socket.to_str().unwrap())];
    assert_eq!(run(elsewhere.path(), &["agents"], &environment), served.run(&["agents"]));
}

#[test]
fn every_live_tool_is_shown_with_an_example_that_can_be_called() {
    let served = Served::start("");
    served.run(&["disable", "tool", "current_time"]);
    let (code, out, err) = served.run(&["tools"]);
    assert_eq!((code, &*err), (0, ""));
    insta::assert_snapshot!(out, @r#"
    NAME          SOURCE  EFFECT     TIMEOUT  AT A TIME  DESCRIPTION
    convert_time  time    read-only  -        -          Converts a local date and time from one time zone to another…
    current_time  time    read-only  -        -          (tool current_time is switched off) The present date and time in a time zone, as JSON with `date…
    "#);
    let tool = served.json(&["tools", "convert_time"]);
    assert_eq!((&tool["source"], &tool["effect"]), (&Value::from("time"), &Value::from("read-only")));
    let arguments = tool["exampleArguments"].to_string();
    assert_eq!(served.run(&["explain", "ana", "convert_time", &arguments]).0, 0);
    let out = served.run(&["tools", "convert_time", "--as", "ana"]).1;
    assert!(out.contains("Example:\n  toolbus call convert_time "), "{out}");
    let (code, out, err) = served.run(&["tools", "convert_tim"]);
    assert_eq!((code, &*out, &*err), (2, "", "error: there is no tool `convert_tim`: did you mean `convert_time`?"));
    assert_eq!(served.json(&["tools", "--as", "bruno"]), Value::Array(Vec::new()));
    assert_eq!(served.run(&["tools", "--binding", "whatsapp:sales"]).0, 2);
}

#[test]
fn a_reload_is_waited_for_and_reports_the_changes_or_the_error() {
    let served = Served::start("");
    let write = |text: &str| std::fs::write(served.folder.path().join("toolbus.toml"), text).unwrap();
    assert!(served.run(&["status"]).1.contains("none since the start"));
    assert_eq!(served.run(&["reload"]).1.lines().next(), Some("applied: 2 tools; changed: nothing"));
    write(&format!("{CONFIGURATION}\n[tools]\necho = true\n[bus]\nname = \"other\"\n"));
    let (code, out, err) = served.run(&["reload"]);
    assert_eq!((code, &*err), (0, ""));
    insta::assert_snapshot!(out, @r#"
    applied: 3 tools; changed: tools
    tools added: echo
    changed, and waits for a restart: bus
    warning: identity.trust_headers: the rules for agents hold only while no sender on the bus claims to be another
    "#);
    write("[agents.ana]\nallowed_tool = []\n");
    let (code, out, err) = served.run(&["reload"]);
    assert!(code == 1 && out.contains("allowed_tool") && err.is_empty(), "{out}{err}");
    let status = served.json(&["status"]);
    assert_eq!((&status["reload"]["applied"], &status["counts"]["tools"]), (&Value::from(false), &Value::from(3)));
    assert!(status["reload"]["error"].as_str().unwrap().contains("allowed_tool"), "{status}");
    assert_eq!(status["reload"]["tools"], 3, "as many as before");
    assert!(status["files"][0].as_str().unwrap().ends_with("/toolbus.toml"), "{status}");
    let (code, out, _) = served.run(&["status"]);
    assert!(code == 0 && out.contains("ready    yes") && out.contains("refused"), "{out}");
}

#[test]
fn a_call_is_made_as_the_agent_that_is_named() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("toolbus.toml"), CONFIGURATION).unwrap();
    let call = |arguments: &[&str]| {
        run(folder.path(), &[&["call", "current_time", "timezone=UTC"], arguments].concat(), &[]).0
    };
    assert_eq!(call(&["--as", "ana"]), 0);
    assert_eq!(call(&["--as", "ana", "--binding", "whatsapp:sales"]), 0);
    assert_eq!(call(&[]), 3);
    assert_eq!(call(&["--as", "bruno"]), 3);
    assert_eq!(call(&["--as", "ana", "--profile", "nobody"]), 3);
    assert_eq!(call(&["--as", "a b"]), 2);
}

#[test]
fn a_daemon_is_queried_over_http_with_its_token() {
    let folder = tempfile::tempdir().unwrap();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let configuration =
        format!("[http]\nlisten = \"{port}\"\nadmin_token = {{ file = \"token\" }}\n[daemon]\nsocket = \"none\"\n");
    std::fs::write(folder.path().join("toolbus.toml"), configuration).unwrap();
    std::fs::write(folder.path().join("token"), "s3cret-of-the-operator\n").unwrap();
    let mut child = started(toolbus(folder.path(), &["serve"]));
    assert!(!folder.path().join("toolbus.sock").exists());
    let url = format!("http://{port}");
    let query = |more: &[&str], environment: &[(&str, &str)]| {
        run(folder.path(), &[&["agents", "--daemon", &url], more].concat(), environment)
    };
    let reported = [
        query(&["--admin-token-file", "token"], &[]),
        query(&[], &[("TOOLBUS_ADMIN_TOKEN", "s3cret-of-the-operator")]),
        query(&[], &[("TOOLBUS_ADMIN_TOKEN", "wrong")]),
        query(&[], &[]),
    ];
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(reported.each_ref().map(|(code, _, _)| *code), [0, 0, 2, 2], "{reported:?}");
    assert!(reported[3].2.contains("TOOLBUS_ADMIN_TOKEN"), "{}", reported[3].2);
}

#[test]
fn without_a_broker_the_running_daemon_makes_the_call() {
    let served = Served::start("");
    let call = |more: &[&str]| served.run(&[&["call", "current_time", "timezone=UTC"], more].concat());
    let (code, out, err) = call(&["--as", "ana"]);
    assert!(code == 0 && out.contains("UTC") && err.contains("the running daemon makes this call"), "{out}{err}");
    assert_eq!(call(&["--as", "bruno"]).0, 3);
    // A setting of the command line is not one of that daemon.
    let (code, out, err) = call(&["--as", "ana", "--set", "tools.echo=true"]);
    assert!(code == 0 && out.contains("UTC") && !err.contains("the running daemon"), "{out}{err}");
    // The tool is switched off in the daemon, not in the process of the command.
    assert_eq!(served.run(&["disable", "tool", "current_time"]).0, 0);
    let (code, _, err) = call(&["--as", "ana"]);
    assert!(code == 3 && err.contains("tool_not_found"), "{err}");
}

#[test]
fn an_unknown_breaker_is_not_reset() {
    let served = Served::start("");
    let (code, out, _) = served.run(&["breaker", "reset", "current_time"]);
    assert!(code == 0 && out.contains("got its calls already"), "{out}");
    let (code, _, err) = served.run(&["breaker", "reset", "curent_time"]);
    assert!(code == 2 && err.contains("did you mean `current_time`?"), "{err}");
}
