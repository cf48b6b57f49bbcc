//! The binary from outside: what it prints, where, and how it ends.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::{Command, Output};

fn toolbus(arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_toolbus"));
    command.args(arguments).env_clear().envs(environment.iter().copied()).current_dir(folder.path());
    command.output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn a_valid_configuration_ends_with_zero_and_a_summary() {
    let output = toolbus(&["check"], &[]);
    assert_eq!(output.status.code(), Some(0));
    assert!(text(&output.stdout).starts_with("configuration is valid\n"), "{}", text(&output.stdout));
    assert_eq!(text(&output.stderr), "");
}

#[test]
fn problems_end_with_two_and_are_all_told_on_standard_error() {
    let environment = [("TOOLBUS__BUS__URL", "amqp://ana:hunter2@"), ("TOOLBUS__BUS__NAM", "x")];
    for command in ["check", "tools"] {
        let output = toolbus(&[command, "--listen", "here"], &environment);
        assert_eq!(output.status.code(), Some(2), "{command}");
        let told = text(&output.stderr);
        assert!(told.starts_with("error: 3 problems in the configuration\n"), "{told}");
        for place in ["environment TOOLBUS__BUS__URL: ", "environment TOOLBUS__BUS__NAM: ", "command line --listen: "] {
            assert!(told.contains(place), "{told}");
        }
        assert!(!told.contains("hunter2"), "{told}");
        assert_eq!(text(&output.stdout), "");
    }
}

#[test]
fn programs_can_read_what_is_printed() {
    let json = |arguments: &[&str]| {
        let output = toolbus(arguments, &[]);
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()
    };
    assert_eq!(json(&["check", "--output", "json"])["valid"], true);
    assert_eq!(json(&["check", "--output", "json", "--set", "bus.nam=x"])["problems"][0]["key"], "bus.nam");
    assert_eq!(json(&["tools", "--output", "json"])[0]["name"], "convert_time");
    assert_eq!(json(&["schema"])["$schema"], "https://json-schema.org/draft/2020-12/schema");
}

#[test]
fn the_configuration_of_the_working_directory_is_read_when_none_is_named() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("toolbus.toml"), "[tools]\ntime = false\necho = true\n").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_toolbus"));
    let output = command.args(["tools", "--output", "json"]).env_clear().current_dir(folder.path()).output().unwrap();
    let tools: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(tools.as_array().unwrap().len(), 1);
    assert_eq!(tools[0]["name"], "echo");
}

#[test]
fn a_server_of_the_configuration_is_tried_step_by_step() {
    let tried = |name: &str| {
        let echo = format!("mcp.servers.echo.command={}", env!("CARGO_BIN_EXE_toolbus"));
        let word = "mcp.servers.echo.args=[\"__mcp_echo\"]";
        let gone = "mcp.servers.gone.command=no-such-program";
        let output = ["--output", "json", "--set", &echo, "--set", word, "--set", gone];
        toolbus(&[&["mcp", "test", name], &output[..]].concat(), &[])
    };
    let good = tried("Echo");
    assert_eq!(good.status.code(), Some(0), "{}", text(&good.stderr));
    let report: serde_json::Value = serde_json::from_slice(&good.stdout).unwrap();
    let names: Vec<&str> =
        report["steps"].as_array().unwrap().iter().map(|step| step["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["connect", "list", "ping"]);
    assert_eq!(report["status"]["tools"], serde_json::json!(["bench_echo"]));
    let gone = tried("gone");
    let report: serde_json::Value = serde_json::from_slice(&gone.stdout).unwrap();
    assert_eq!((gone.status.code(), &report["steps"][0]["passed"]), (Some(1), &serde_json::json!(false)));
    let unknown = tried("eco");
    assert_eq!(unknown.status.code(), Some(2));
    assert!(text(&unknown.stderr).contains("did you mean `echo`?"), "{}", text(&unknown.stderr));
}

#[test]
fn colours_are_for_terminals_unless_asked_for() {
    let is_coloured = |arguments: &[&str], environment: &[(&str, &str)]| {
        toolbus(&[&["check", "--set", "bus.nam=x"], arguments].concat(), environment).stderr.contains(&0x1b)
    };
    assert!(!is_coloured(&[], &[]));
    assert!(!is_coloured(&[], &[("NO_COLOR", "1")]));
    assert!(!is_coloured(&["--color", "never"], &[("CLICOLOR_FORCE", "1")]));
    assert!(is_coloured(&["--color", "always"], &[]));
}

#[test]
fn the_version_names_the_commit() {
    let output = toolbus(&["--version"], &[]);
    let version = text(&output.stdout).trim();
    let commit = version.strip_prefix(concat!("toolbus ", env!("CARGO_PKG_VERSION"), " (")).unwrap();
    let commit = commit.strip_suffix(')').unwrap();
    assert!(commit == "unknown" || commit.chars().all(|c| c.is_ascii_alphanumeric()), "{version}");
    assert!(!commit.is_empty());
}

#[test]
fn a_mistake_on_the_command_line_ends_with_two() {
    for arguments in [&["chekc"][..], &["check", "--set", "no-value"], &[]] {
        assert_eq!(toolbus(arguments, &[]).status.code(), Some(2), "{arguments:?}");
    }
}
