//! The binary with nothing installed: calls and the demonstration on the embedded bus.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::Write;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn toolbus(arguments: &[&str], input: &str) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_toolbus"))
        .args(arguments)
        .env_clear()
        .current_dir(folder.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A command that does not read its input may have ended by now.
    drop(child.stdin.take().unwrap().write_all(input.as_bytes()));
    child.wait_with_output().unwrap()
}

/// Exit code, standard output and standard error.
fn reported(output: &Output) -> (i32, &str, &str) {
    let text = |bytes| std::str::from_utf8(bytes).unwrap().trim_end();
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

fn call(arguments: &[&str]) -> Output {
    toolbus(&[&["call", "--set", "tools.echo=true"], arguments].concat(), r#"{"text":"from the input"}"#)
}

#[test]
fn a_call_without_a_broker_runs_inside_the_command() {
    assert_eq!(reported(&call(&["echo", "text=hello"])), (0, "hello", ""));
    assert_eq!(reported(&call(&["echo", r#"{"text":"hello"}"#])), (0, "hello", ""));
    assert_eq!(reported(&call(&["echo", "-"])), (0, "from the input", ""));
}

#[test]
fn the_reply_is_printed_as_json_on_request() {
    let output = call(&["echo", "text=hello", "--json"]);
    let mut body: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(body["toolCallId"].take().as_str().map(str::len), Some(32));
    insta::assert_json_snapshot!(body, @r#"
    {
      "content": "hello",
      "isError": false,
      "toolCallId": null,
      "toolName": "echo"
    }
    "#);
    let refused = call(&["ecko", "--json"]);
    let body: Value = serde_json::from_slice(&refused.stdout).unwrap();
    assert_eq!((refused.status.code(), &body["code"]), (Some(3), &Value::from("tool_not_found")));
}

#[test]
fn the_piped_output_is_exactly_the_result_of_the_tool() {
    for text in ["\u{1b}[31mred\u{1b}[0m\r\u{7}", "two\nlines\n", ""] {
        let output = call(&["echo", &serde_json::json!({"text": text}).to_string(), "--color", "never"]);
        assert_eq!((output.status.code(), std::str::from_utf8(&output.stdout)), (Some(0), Ok(text)));
    }
}

#[test]
fn programs_get_json_also_when_no_call_was_made() {
    let output = call(&["echo", "text=hello", "--output", "json"]);
    let body: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), &body["content"]), (Some(0), &Value::from("hello")));
    let output = call(&["echo", "text", "--output", "json"]);
    let body: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(body, serde_json::json!({"error": "`text` is neither a JSON object nor key=value"}));
    assert_eq!((output.status.code(), &*output.stderr), (Some(2), &b""[..]));
}

#[test]
fn a_time_is_granted_only_when_one_is_given() {
    let shown = |arguments: &[&str]| {
        let output = call(&[&["echo", "text=hello", "--verbose"], arguments].concat());
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(!shown(&[]).contains("rb-timeout-ms"));
    let granted = shown(&["--timeout", "7s"]);
    assert!(granted.lines().any(|line| line.contains("rb-timeout-ms") && line.contains("7000")), "{granted}");
}

#[test]
fn a_closed_pipe_of_standard_output_is_no_error() {
    let commands = [
        &["tools", "--offline"][..],
        &["schema"],
        &["check"],
        &["demo"],
        &["call", "current_time", "timezone=UTC", "--json"],
    ];
    for arguments in commands {
        let folder = tempfile::tempdir().unwrap();
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = Command::new(env!("CARGO_BIN_EXE_toolbus"));
        command.args(arguments).env_clear().current_dir(folder.path()).stdin(Stdio::null()).stdout(writer);
        let output = command.output().unwrap();
        let reported = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), &*reported), (Some(0), ""), "{arguments:?}");
    }
}

#[test]
fn an_unwritable_result_is_reported_as_one_of_a_finished_call() {
    for output in ["table", "json"] {
        let folder = tempfile::tempdir().unwrap();
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_toolbus"));
        command.args(["call", "current_time", "timezone=UTC", "--output", output]).env_clear();
        let output = command.current_dir(folder.path()).stdout(full).output().unwrap();
        let text = "error: the tool ran, and its result cannot be written: No space left on device (os error 28)";
        assert_eq!(reported(&output), (1, "", text));
    }
}

#[test]
fn a_folder_that_cannot_be_used_is_named_before_the_call() {
    let output = call(&["echo", "text=hello", "--save", "/etc/passwd"]);
    let text = "error: the folder `/etc/passwd` of --save cannot be used: File exists (os error 17)";
    assert_eq!(reported(&output), (2, "", text));
}

#[test]
fn mistakes_are_reported_on_standard_error_with_their_own_exit_codes() {
    let outputs = [
        call(&["ecko", "text=x"]),
        call(&["echo", "text:=7"]),
        call(&["echo", "text=7"]),
        call(&["echo", "text"]),
        call(&["convert_time", "datetime=soon", "from_timezone=UTC", "to_timezone=UTC"]),
    ];
    let all: Vec<String> = outputs.iter().map(|output| format!("{:?}", reported(output))).collect();
    insta::assert_snapshot!(all.join("\n"), @r#"
    (3, "", "tool_not_found: Tool 'ecko' is not registered. Did you mean 'echo'?")
    (3, "", "invalid_arguments: The arguments do not fit the tool's parameters: /text: value is not of type \"string\"")
    (3, "", "invalid_arguments: The arguments do not fit the tool's parameters: /text: value is not of type \"string\"\nhint: `text=7` was sent as JSON; if a text is meant: text:='\"7\"'")
    (2, "", "error: `text` is neither a JSON object nor key=value")
    (3, "", "invalid_arguments: Argument `datetime`: `soon` is not a time. Write it as `2026-03-29T14:30:00` or `14:30`.")
    "#);
}

#[test]
fn both_messages_and_the_trace_are_shown_on_request() {
    let output = call(&["echo", "text=hello", "--verbose"]);
    let (code, out, err) = reported(&output);
    assert_eq!((code, out), (0, "hello"));
    for shown in ["trace id", "correlation id", "RockBot.Tools.ToolInvokeRequest", "RockBot.Tools.ToolInvokeResponse"] {
        assert!(err.contains(shown), "{shown} is missing in {err}");
    }
    let traces: Vec<&str> =
        err.lines().filter_map(|line| line.trim().strip_prefix("trace id")).map(str::trim).collect();
    let [request, reply] = traces[..] else { panic!("one trace for each message: {err}") };
    assert_eq!(request, reply, "the reply belongs to the trace of its request");
    assert!(request.len() == 32 && request.bytes().all(|byte| byte.is_ascii_hexdigit()), "{request}");
}

#[test]
fn the_demonstration_shows_every_kind_of_outcome_and_measures() {
    let output = toolbus(&["demo"], "");
    let (code, out, err) = reported(&output);
    assert_eq!(code, 0, "{err}");
    let outcomes: Vec<&str> =
        out.lines().filter_map(|line| line.split_once(" after ")).map(|(name, _)| name.trim()).collect();
    assert_eq!(outcomes, ["ok", "ok", "ok", "error", "invalid_arguments", "tool_not_found", "timeout"]);
    assert_eq!(out.lines().filter(|line| line.trim_start().starts_with('→')).count(), 7, "{out}");
    assert!(out.contains("p50 ") && out.contains("toolbus demo --bus-url amqp://"), "{out}");
}
