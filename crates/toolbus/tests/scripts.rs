//! Scripts and commands from the command line, as a user has them run.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

/// Scripts and one command, under whatever this system allows.
const CONFIG: &str = r#"
[script]
pool = { max = 0 }
sandbox = { require = "limits-only" }

[[commands]]
name = "greet"
description = "Greets"
command = ["echo", "hello", "{name}"]
parameters = '{"type":"object","properties":{"name":{"type":"string"}},"required":["name"]}'
effect = "read-only"
"#;

/// A folder with a configuration.
fn folder(config: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("toolbus.toml"), config).unwrap();
    folder
}

fn toolbus(folder: &Path, args: &[&str], input: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_toolbus"))
        .current_dir(folder)
        .args(args)
        .env("NO_COLOR", "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_script_is_run_from_the_command_line() {
    let folder = folder(CONFIG);
    let script = "import os, sys\nprint(int(os.environ['ROCKBOT_INPUT']) * 2)";
    let args = ["call", "execute_python_script", &format!("script={script}"), "input_data:=\"21\""];
    let done = toolbus(folder.path(), &args, "");
    assert_eq!((text(&done.stdout).trim(), done.status.code()), ("42", Some(0)), "{}", text(&done.stderr));
}

#[test]
fn a_script_is_read_from_a_file_or_from_standard_input() {
    let folder = folder(CONFIG);
    std::fs::write(folder.path().join("job.py"), "print('from a file')").unwrap();
    let done = toolbus(folder.path(), &["call", "execute_python_script", "script=@job.py"], "");
    assert_eq!(text(&done.stdout).trim(), "from a file", "{}", text(&done.stderr));
    let done = toolbus(folder.path(), &["call", "execute_python_script", "script=@-"], "print('from a pipe')");
    assert_eq!(text(&done.stdout).trim(), "from a pipe", "{}", text(&done.stderr));
}

#[test]
fn a_failing_script_is_reported_as_a_failure() {
    let folder = folder(CONFIG);
    let done = toolbus(folder.path(), &["call", "execute_python_script", "script=import sys; sys.exit(3)"], "");
    assert_eq!(done.status.code(), Some(1), "{}", text(&done.stderr));
    assert!(text(&done.stderr).contains("exit"), "{}", text(&done.stderr));
}

#[test]
fn a_command_is_run_from_the_command_line() {
    let folder = folder(CONFIG);
    let done = toolbus(folder.path(), &["call", "greet", "name=Ana; ls"], "");
    assert_eq!((text(&done.stdout).trim(), done.status.code()), ("hello Ana; ls", Some(0)), "{}", text(&done.stderr));
}

#[test]
fn the_tools_are_listed_without_anything_being_started() {
    let folder = folder(&CONFIG.replace("pool =", "python = 'no-such-python'\npool ="));
    let done = toolbus(folder.path(), &["tools"], "");
    let listed = text(&done.stdout);
    assert!(listed.contains("execute_python_script") && listed.contains("greet"), "{listed} {}", text(&done.stderr));
}

#[test]
fn a_missing_python_stops_the_start_with_the_key() {
    let folder = folder(&CONFIG.replace("pool =", "python = 'no-such-python'\npool ="));
    let done = toolbus(folder.path(), &["serve"], "");
    let reported = text(&done.stderr);
    assert_ne!(done.status.code(), Some(0));
    assert!(reported.contains("script.python: program 'no-such-python' was not found"), "{reported}");
}

#[test]
fn the_example_configuration_works_as_documented() {
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../../config/scripts.toml");
    // Whatever this system allows.
    let given = ["call", "--config", example, "--set", "script.sandbox.require=limits-only"];
    let folder = tempfile::tempdir().unwrap();
    let call = |rest: &[&str]| {
        let done = toolbus(folder.path(), &[&given, rest].concat(), "");
        assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
        text(&done.stdout)
    };
    assert_eq!(call(&["execute_python_script", "script=print(6 * 7)"]).trim(), "42");
    assert_eq!(call(&["which_day", "words=2026-01-01 +1 day"]).trim(), "Friday, 02 January 2026");
}
