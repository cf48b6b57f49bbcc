//! The daemon as a process: its output, and how signals end it.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{BufRead, BufReader, Lines};
use std::net::TcpListener;
use std::process::{Child, ChildStderr, Command, Stdio};

use tempfile::TempDir;

/// A daemon on the embedded bus, which ends with the test.
struct Served {
    child: Child,
    log: Lines<BufReader<ChildStderr>>,
    _folder: TempDir,
}

impl Served {
    fn start(arguments: &[&str]) -> Self {
        Self::start_by(&[], arguments)
    }

    /// By another program, which becomes the daemon.
    fn start_by(launcher: &[&str], arguments: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut words = launcher.iter().copied().chain([env!("CARGO_BIN_EXE_toolbus")]);
        let mut child = Command::new(words.next().unwrap())
            .args(words)
            .args(["serve", "--listen", "127.0.0.1:0"])
            .args(arguments)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap())
            .current_dir(folder.path())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = BufReader::new(child.stderr.take().unwrap()).lines();
        Self { child, log, _folder: folder }
    }

    /// Reads the log up to a line with `text`; fails when the daemon ends before it.
    fn read_until(&mut self, text: &str) -> String {
        self.log.by_ref().map(Result::unwrap).find(|line| line.contains(text)).unwrap()
    }

    fn signal(&self, name: &str) {
        assert!(Command::new("kill").args(["-s", name, &self.child.id().to_string()]).status().unwrap().success());
    }

    fn code(&mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_daemon_on_the_embedded_bus_warns_that_no_agent_can_reach_it_and_ends_in_order() {
    let mut served = Served::start(&[]);
    let warning = served.read_until("the bus is embedded");
    assert!(warning.contains("WARN") && warning.contains("set bus.url"), "{warning}");
    served.signal("TERM");
    let draining = served.read_until("draining");
    assert!(draining.contains("30000") && !draining.contains("\"30000\""), "{draining}");
    assert_eq!(served.code(), Some(0));
}

#[test]
fn a_second_signal_ends_the_daemon_at_once_even_while_telemetry_leaves() {
    // A collector that takes connections and never responds: the last export waits for it.
    let collector = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("telemetry.otlp_endpoint=http://{}", collector.local_addr().unwrap());
    let mut served = Served::start(&["--set", &endpoint]);
    served.read_until("the bus is embedded");
    served.signal("TERM");
    served.read_until("drained:");
    served.signal("INT");
    served.read_until("stopping at once");
    assert_eq!(served.code(), Some(130));
}

#[test]
fn a_signal_ends_a_daemon_that_waits_for_a_specification() {
    let host = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("rest.openapi.slow.url=http://{}/openapi.json", host.local_addr().unwrap());
    let mut served = Served::start(&["--set", &url]);
    // The host takes the request, and never responds.
    let connection = host.accept().unwrap();
    served.signal("TERM");
    served.read_until("stopped while starting");
    assert_eq!(served.code(), Some(0));
    drop(connection);
}

#[test]
fn a_daemon_with_mcp_clients_does_not_warn_of_being_unreachable() {
    let mut served = Served::start(&["--set", "http.open=true", "--color", "always"]);
    let reported = served.read_until("the bus is embedded");
    assert!(
        reported.contains("INFO") && reported.contains("MCP clients") && !reported.contains("no other process"),
        "{reported}"
    );
    assert!(reported.contains('\u{1b}'), "{reported}");
}

#[test]
fn a_low_limit_of_open_files_is_a_warning_with_the_needed_one() {
    let mut served = Served::start_by(&["sh", "-c", "ulimit -n 300 && exec \"$0\" \"$@\""], &[]);
    let reported = served.read_until("limit of open files");
    assert!(
        reported.contains("WARN") && reported.contains("limit=300") && reported.contains("needed=8192"),
        "{reported}"
    );
}

#[test]
fn every_line_of_a_log_in_json_is_json_whatever_happens() {
    let json = ["--set", "telemetry.log_format=json"];
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = format!("http.listen={}", taken.local_addr().unwrap());
    let suspicious = "tools.limits.nothing_like_it.timeout=1s";
    let endings: [(&[&str], i32, &str); 2] = [
        (&["--set", suspicious, "--set", &taken], 1, "stopped by an error"),
        (&["--set", "bus.nam=x", "--set", "invoke.max_in_flight=none"], 2, "a problem in the configuration"),
    ];
    for (arguments, code, message) in endings {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_toolbus"));
        let output =
            command.arg("serve").args(json).args(arguments).env_clear().current_dir(folder.path()).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        let text = String::from_utf8(output.stderr).unwrap();
        let lines: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("no JSON: {line}"))).collect();
        assert_eq!(lines.last().unwrap()["message"], message, "{text}");
        if code == 1 {
            assert!(lines.iter().any(|line| line["message"] == "a suspicious setting"), "{text}");
        } else {
            let keys: Vec<_> = lines.iter().map(|line| line["key"].as_str().unwrap()).collect();
            assert_eq!(keys, ["bus.nam", "invoke.max_in_flight"]);
        }
    }
}

#[test]
fn a_daemon_runs_and_reloads_the_same_from_each_format() {
    let toml = "[tools]\necho = true\ntime = false\n[tools.limits.echo]\ntimeout = \"5s\"\n[agents.ana]\ndenied_tools = [\"echo\"]\n\
                [identity]\ntrust_headers = true\n";
    let json = r#"{"tools": {"echo": true, "time": false, "limits": {"echo": {"timeout": "5s"}}},
                   "agents": {"ana": {"denied_tools": ["echo"]}}, "identity": {"trust_headers": true}}"#;
    let yaml = "tools:\n  echo: true\n  time: false\n  limits:\n    echo: {timeout: 5s}\nagents:\n  ana:\n    denied_tools: [echo]\n\
                identity: {trust_headers: true}\n";
    let outputs = [("a.toml", toml), ("a.json", json), ("a.yaml", yaml)].map(|(name, text)| {
        let folder = tempfile::tempdir().unwrap();
        let (file, socket) = (folder.path().join(name), folder.path().join("t.sock"));
        std::fs::write(&file, text).unwrap();
        let socket = format!("daemon.socket={}", socket.display());
        let configuration = ["--config", file.to_str().unwrap(), "--set", &socket];
        let mut served = Served::start(&configuration);
        served.read_until("the bus is embedded");
        let query = |arguments: &[&str]| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_toolbus"));
            let output =
                command.args(arguments).args(configuration).args(["--output", "json"]).env_clear().output().unwrap();
            assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8(output.stdout).unwrap()
        };
        let outputs = [query(&["tools"]), query(&["agents", "ana"])];
        assert!(outputs.iter().all(|output| output.contains("echo")), "{outputs:?}");
        std::fs::write(&file, text.replacen("5s", "6s", 1)).unwrap();
        served.signal("HUP");
        let reloaded = served.read_until("reload: done");
        assert!(reloaded.contains("tools"), "{reloaded}");
        // The mistake is named, and the previous configuration stays in force.
        std::fs::write(&file, text.replacen("echo", "ecko", 1)).unwrap();
        served.signal("HUP");
        let mistake = served.read_until("ecko");
        assert!(mistake.contains(name), "{mistake}");
        outputs
    });
    let [toml, json, yaml] = outputs;
    assert_eq!((&toml, &toml), (&json, &yaml));
}

#[test]
fn a_file_is_the_store_of_one_daemon_until_that_ends() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let text = format!("[store]\nurl = \"sqlite:{}\"\n", path("toolbus.db"));
    for name in ["one.toml", "other.toml"] {
        std::fs::write(path(name), &text).unwrap();
    }
    let mut first = Served::start(&["--config", &path("one.toml")]);
    first.read_until("HTTP: listening");
    let mut second = Served::start(&["--config", &path("other.toml")]);
    let refusal = second.read_until("cannot be used");
    let holder = format!("another process uses it: the daemon of {}", path("one.toml"));
    assert!(refusal.contains(&holder) && refusal.contains("redis://"), "{refusal}");
    assert_eq!(second.code(), Some(1));
    let check = |name: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_toolbus"));
        command.args(["check", "--config", &path(name)]).env_clear().output().unwrap()
    };
    let refused = check("other.toml");
    let reported = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(2), "{reported}");
    assert!(reported.contains(&format!("the daemon of {} uses this file", path("one.toml"))), "{reported}");
    assert_eq!(check("one.toml").status.code(), Some(0), "it is the running daemon's own");
    // Also in whatever way it ends.
    first.signal("KILL");
    first.code();
    assert_eq!(check("other.toml").status.code(), Some(0));
    Served::start(&["--config", &path("other.toml")]).read_until("HTTP: listening");
}

#[test]
fn a_successor_waits_for_the_store_of_a_daemon_that_still_drains() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    std::fs::write(path("toolbus.toml"), format!("[store]\nurl = \"sqlite:{}\"\n", path("toolbus.db"))).unwrap();
    let config = path("toolbus.toml");
    let mut first = Served::start(&["--config", &config]);
    first.read_until("HTTP: listening");
    let mut second = Served::start(&["--config", &config]);
    second.read_until("waiting for this daemon's predecessor to end");
    first.signal("TERM");
    second.read_until("HTTP: listening");
    assert_eq!(first.code(), Some(0));
}

#[test]
fn a_mounted_configuration_that_changes_is_taken_over_without_a_signal() {
    // As Kubernetes mounts a ConfigMap: the file is a link into a folder that is replaced as a whole.
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let mount = |version: &str, text: &str| {
        std::fs::create_dir(at(version)).unwrap();
        std::fs::write(at(version).join("toolbus.toml"), text).unwrap();
        std::os::unix::fs::symlink(version, at("new")).unwrap();
        std::fs::rename(at("new"), at("..data")).unwrap();
    };
    mount("..1", "[tools]\necho = false\n");
    std::os::unix::fs::symlink("..data/toolbus.toml", at("toolbus.toml")).unwrap();
    let mut served = Served::start(&["--config", &at("toolbus.toml").display().to_string()]);
    served.read_until("HTTP: listening");
    mount("..2", "[tools]\necho = true\n");
    assert!(served.read_until("reload: done").contains("tools"));
    mount("..3", "[tools]\necko = true\n");
    assert!(served.read_until("reload: refused").contains("ecko"));
}
