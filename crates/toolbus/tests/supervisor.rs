//! The binary as the supervisor of a server: the words that only the daemon uses.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::Write as _;
use std::process::{Command, Output, Stdio};

/// Runs a command under a supervisor, and closes its standard input after a line.
fn supervise(command: &[&str]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_toolbus"))
        .args(["__supervise", "60000"])
        .args(command)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A command that has ended already reads nothing.
    let _ = child.stdin.take().unwrap().write_all(b"hello\n");
    child.wait_with_output().unwrap()
}

#[test]
fn the_binary_supervises_a_server_and_passes_its_traffic_and_exit_code() {
    let output = supervise(&["sh", "-c", "cat; echo done >&2; exit 7"]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "hello\n");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "done\n");
    assert_eq!(output.status.code(), Some(7));
}

#[test]
fn a_command_that_cannot_run_has_the_exit_code_that_a_shell_gives_it() {
    let output = supervise(&["/no/such/server"]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(error, "toolbus: cannot run '/no/such/server': No such file or directory (os error 2)\n");
    assert_eq!(output.status.code(), Some(127));
    assert_eq!(supervise(&["/"]).status.code(), Some(126));
}

#[test]
fn a_supervisor_without_a_command_reports_the_missing_argument() {
    let output = supervise(&[]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(error, "toolbus: cannot supervise: expected a number and a command\n");
    assert_eq!(output.status.code(), Some(125));
}
