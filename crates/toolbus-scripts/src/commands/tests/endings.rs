//! Ends of commands, and the results for their callers.

use super::*;

fn sh(script: &str) -> CommandConfig {
    unconfined(&["/bin/sh", "-c", &script.replace('{', "{{").replace('}', "}}")])
}

/// The result of a command that did not succeed.
async fn error(settings: CommandConfig) -> String {
    let output = run(settings, json!({})).await.unwrap();
    assert!(output.is_error, "{output:?}");
    output.content.unwrap()
}

#[tokio::test]
async fn standard_output_is_the_result_and_standard_error_is_not() {
    assert_eq!(text(sh("echo '  result'; echo; echo noise >&2"), json!({})).await, "  result");
    assert_eq!(text(sh("echo noise >&2"), json!({})).await, "(no output)");
    assert_eq!(text(sh(r"printf 'a\377b'"), json!({})).await, "a\u{fffd}b");
}

#[tokio::test]
async fn a_command_that_fails_says_why() {
    let table = [
        ("exit 3", "Command failed (exit 3)"),
        ("echo out; echo why >&2; exit 3", "Command failed (exit 3):\nwhy"),
        ("echo out; exit 1", "Command failed (exit 1):\nout"),
        ("echo; echo ' ' >&2; exit 1", "Command failed (exit 1)"),
        ("kill -TERM $$", "Command was ended by signal 15"),
        ("echo why >&2; kill -SEGV $$", "Command was ended by signal 11:\nwhy"),
    ];
    for (script, expected) in table {
        assert_eq!(error(sh(script)).await, expected, "{script}");
    }
}

#[tokio::test]
async fn the_output_of_the_program_is_kept_beside_the_result() {
    let output = run(sh("echo out; echo why >&2; exit 3"), json!({})).await.unwrap();
    let program = output.program.unwrap();
    assert_eq!(
        (program.stdout.as_deref(), program.stderr.as_deref(), program.exit_code),
        (Some("out"), Some("why"), 3)
    );
    let output = run(sh("kill -KILL $$"), json!({})).await.unwrap();
    assert_eq!(
        output.program.map(|program| (program.stdout, program.stderr, program.exit_code)),
        Some((None, None, -1))
    );
}

#[tokio::test]
async fn of_a_long_report_the_end_is_shown() {
    let text = error(sh("printf '%5000s\\n' the-end >&2; exit 1")).await;
    assert!(text.starts_with("Command failed (exit 1):\n[1000 characters left out]\n   "), "{text}");
    assert!(text.ends_with(" the-end") && text.len() < 4100, "{text}");
}

#[tokio::test]
async fn a_command_that_prints_too_much_is_ended() {
    let mut settings = sh("while :; do echo 0123456; done");
    settings.max_output = "2KiB".parse().unwrap();
    let text = error(settings).await;
    assert!(text.starts_with("Command was ended: it printed more than 2 KiB:\n0123456\n"), "{text}");
}

#[tokio::test]
async fn a_command_that_takes_too_long_is_ended() {
    let mut settings = sh("sleep 1000");
    settings.timeout = "300ms".parse().unwrap();
    let failure = run(settings, json!({})).await.unwrap_err();
    assert_eq!(failure.cause, Cause::DeadlineExceeded);
    assert_eq!(failure.message, "The command was ended: it took longer than 300 ms.");

    let failure = run_until(sh("sleep 1000"), json!({}), Duration::from_millis(400)).await.unwrap_err();
    assert_eq!(failure.cause, Cause::DeadlineExceeded);
    assert!(failure.message.ends_with(" ms."), "{}", failure.message);
}

#[tokio::test]
async fn output_that_is_no_json_fails_and_is_shown_in_the_log_alone() {
    for script in ["echo secret words", "echo '{} {}'", ":", "echo '{\"a\":}'"] {
        let mut settings = sh(script);
        settings.output = Output::Json;
        let failure = run(settings, json!({})).await.unwrap_err();
        assert_eq!(failure.cause, Cause::InvalidResult, "{script}");
        assert_eq!(failure.message, "The command printed something else than one JSON value.", "{script}");
        assert!(failure.detail.is_some_and(|detail| detail.contains("line 1")), "{script}");
    }
    let mut settings = sh("echo no json; exit 2");
    settings.output = Output::Json;
    assert_eq!(error(settings).await, "Command failed (exit 2):\nno json");
}

#[tokio::test]
async fn a_program_that_is_gone_is_named_in_the_log_alone() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("program");
    std::fs::copy("/bin/echo", &file).unwrap();
    let tool = tool(&unconfined(&[file.to_str().unwrap()]), None).unwrap();
    std::fs::remove_file(&file).unwrap();
    let failure = run_tool(&tool, json!({}), Duration::from_secs(60)).await.unwrap_err();
    assert_eq!((failure.cause, &*failure.message), (Cause::ConnectFailed, "The command cannot be run now."));
    assert!(failure.detail.unwrap().contains(file.to_str().unwrap()));
}
