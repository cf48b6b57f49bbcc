//! Commands in the sandbox. Without namespaces they start no programs, so the shell does everything itself.

use std::fs::{self, Permissions};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use toolbus_core::progress::Progress;
use toolbus_testing::other_user::as_nobody;

use super::*;
use crate::testing::{LEVELS, helper, sandbox};

fn confined(command: &[&str]) -> CommandConfig {
    CommandConfig { sandbox: true, ..unconfined(command) }
}

fn sh(script: &str) -> CommandConfig {
    confined(&["/bin/sh", "-c", script])
}

/// A folder that every user may enter and write to, because a command may run as another.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), Permissions::from_mode(0o777)).unwrap();
    folder
}

/// Output of a command at a level.
async fn printed(sandbox: &Sandbox, settings: CommandConfig) -> String {
    let output = run_in(sandbox, settings, json!({})).await.unwrap();
    assert!(!output.is_error, "{}: {output:?}", sandbox.level());
    output.content.unwrap()
}

#[tokio::test]
async fn a_confined_command_runs_as_an_unconfined_one_does() {
    for level in LEVELS {
        let sandbox = sandbox(level);
        let mut echo = with(&["echo", "a {text}", "{list...}"], &["text", "list"]);
        echo.sandbox = true;
        let output = run_in(&sandbox, echo, json!({"text": "$(id) x", "list": ["*"]})).await.unwrap();
        assert_eq!(output.content.unwrap(), "a $(id) x *", "{level}");

        let mut cat = with(&["/bin/cat"], &["a"]);
        (cat.sandbox, cat.stdin, cat.output) = (true, Stdin::Arguments, Output::Json);
        assert_eq!(run_in(&sandbox, cat, json!({"a": 1})).await.unwrap().content.unwrap(), r#"{"a":1}"#, "{level}");

        let output = run_in(&sandbox, sh("echo out; echo why >&2; exit 3"), json!({})).await.unwrap();
        assert_eq!(
            (output.is_error, output.content.unwrap()),
            (true, "Command failed (exit 3):\nwhy".to_owned()),
            "{level}"
        );
    }
}

#[tokio::test]
async fn output_and_progress_are_reported_while_it_runs() {
    // In one write: a line that follows another at once is not reported.
    let lines = r"printf 'one\ntwo\n'";
    // Its braces are not those of an argument.
    let own = r#"printf '\173"progress":1,"total":2\175\n' >&$TOOLBUS_PROGRESS_FD"#;
    for level in LEVELS {
        let sandbox = sandbox(level);
        for (script, expected) in [(lines, "two"), (own, "")] {
            let last = last_report(script, Some(&sandbox)).await;
            assert_eq!(last.message.unwrap_or_default(), expected, "{level}");
        }
    }
    let last = last_report(lines, None).await;
    assert_eq!((last.progress, last.message.as_deref()), (2.0, Some("two")));
}

/// Last report of a command, which ends once it has reported.
async fn last_report(script: &str, sandbox: Option<&Sandbox>) -> Progress {
    let folder = folder();
    let end = folder.path().join("end");
    let mut settings = sh(&format!("{script}; until [ -e {} ]; do :; done", end.display()));
    settings.sandbox = sandbox.is_some();
    settings.read = sandbox.iter().map(|_| folder.path().to_owned()).collect();
    let (sink, mut reports) = ProgressSink::new();
    let tool = tool(&settings, sandbox).unwrap();
    let (ended, first) = tokio::join!(run_reporting(&tool, json!({}), PATIENCE, Some(sink)), async {
        let first = reports.recv().await.unwrap();
        fs::write(end, "").unwrap();
        first
    });
    ended.unwrap();
    std::iter::from_fn(|| reports.try_recv().ok()).last().unwrap_or(first)
}

#[tokio::test]
async fn it_reads_and_changes_what_it_is_given_and_nothing_else() {
    for level in LEVELS {
        let sandbox = sandbox(level);
        let (given, other) = (folder(), folder());
        for folder in [&given, &other] {
            fs::write(folder.path().join("file"), "content\n").unwrap();
        }
        let file = |folder: &tempfile::TempDir| folder.path().join("file").display().to_string();

        let mut reads = sh(&format!("read -r line <{}; echo $line; read -r line <{}", file(&given), file(&other)));
        reads.read = vec![given.path().to_owned()];
        let text = run_in(&sandbox, reads.clone(), json!({})).await.unwrap();
        assert!(text.is_error && text.program.unwrap().stdout.as_deref() == Some("content"), "{level}");
        reads.command[2] = format!("echo x >{}", file(&given));
        assert!(run_in(&sandbox, reads, json!({})).await.unwrap().is_error, "{level}");

        let mut writes = sh(&format!("echo more >{0}/new; read -r line <{0}/new; echo $line", given.path().display()));
        writes.write = vec![given.path().to_owned()];
        assert_eq!(printed(&sandbox, writes).await, "more", "{level}");
        assert_eq!(fs::read_to_string(given.path().join("new")).unwrap(), "more\n", "{level}");
    }
}

#[tokio::test]
async fn it_runs_in_the_folder_that_is_configured_and_else_in_an_empty_one() {
    for level in LEVELS {
        let sandbox = sandbox(level);
        let work = folder();
        fs::write(work.path().join("file"), "").unwrap();
        let mut settings = with(&["/bin/sh", "-c", "pwd; echo *; echo \"$0\"", "{text}"], &["text"]);
        (settings.sandbox, settings.cwd) = (true, Some(work.path().to_owned()));
        let output = run_in(&sandbox, settings, json!({"text": "$(id) 'x'"})).await.unwrap();
        let expected = format!("{}\nfile\n$(id) 'x'", work.path().display());
        assert_eq!(output.content.unwrap(), expected, "{level}");
        let mut changes = sh("echo more >file && echo changed");
        (changes.cwd, changes.write) = (Some(work.path().to_owned()), vec![work.path().to_owned()]);
        fs::set_permissions(work.path().join("file"), Permissions::from_mode(0o666)).unwrap();
        assert_eq!(printed(&sandbox, changes.clone()).await, "changed", "{level}");
        changes.write = Vec::new();
        assert!(run_in(&sandbox, changes, json!({})).await.unwrap().is_error, "{level}");
        assert_eq!(printed(&sandbox, sh("echo *; : >file; echo *")).await, "*\nfile", "{level}");
    }
}

#[tokio::test]
async fn it_has_the_network_only_where_it_is_allowed() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let connect = format!("import socket; socket.create_connection(('127.0.0.1', {port})); print('connected')");
    // The system's own Python can be read whatever runs these tests.
    let python = ["/usr/bin/python3", "/usr/local/bin/python3"].into_iter().find(|file| Path::new(file).exists());
    for level in LEVELS {
        let sandbox = sandbox(level);
        let mut settings = confined(&[python.unwrap(), "-c", &connect]);
        let output = run_in(&sandbox, settings.clone(), json!({})).await.unwrap();
        assert!(output.is_error, "{level}: {output:?}");
        settings.network = true;
        assert_eq!(printed(&sandbox, settings).await, "connected", "{level}");
    }
}

#[tokio::test]
async fn it_is_ended_when_it_uses_too_much() {
    for level in LEVELS {
        let sandbox = sandbox(level);
        let mut settings = sh("while :; do :; done");
        settings.timeout = "500ms".parse().unwrap();
        let failure = run_in(&sandbox, settings.clone(), json!({})).await.unwrap_err();
        assert_eq!(failure.message, "The command was ended: it took longer than 500 ms.", "{level}");

        // Little CPU time, and much time to get it on a machine that is busy.
        settings.timeout = HumanDuration::from_secs(140);
        let (descriptor, mut command) = check::command(&settings, Some(&sandbox), std::env::vars_os()).unwrap();
        command.cpu_millis = 5;
        let output = run_tool(&Tool::new(descriptor, command), json!({}), PATIENCE).await.unwrap();
        assert_eq!(output.content.unwrap(), "Command was ended: it used up its CPU time", "{level}");

        let mut settings = sh("while :; do echo 0123456; done");
        settings.max_output = "2KiB".parse().unwrap();
        let text = run_in(&sandbox, settings, json!({})).await.unwrap().content.unwrap();
        assert!(text.starts_with("Command was ended: it printed more than 2 KiB:\n0123456\n"), "{level}: {text}");
    }
}

#[tokio::test]
async fn it_has_its_own_home_and_none_of_the_daemons_variables() {
    for level in LEVELS {
        let sandbox = sandbox(level);
        let mut settings = sh("echo $HOME; echo $GREETING; echo ${{CARGO_MANIFEST_DIR:-none}}");
        settings.env = BTreeMap::from([("GREETING".to_owned(), "hello".into())]);
        let text = printed(&sandbox, settings).await;
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[1..], ["hello", "none"], "{level}");
        assert_ne!(Some(lines[0]), std::env::var("HOME").ok().as_deref(), "{level}");
    }
}

#[tokio::test]
async fn a_folder_within_one_that_is_only_read_can_be_changed() {
    for level in LEVELS {
        let sandbox = sandbox(level);
        let given = folder();
        let within = given.path().join("a/within");
        fs::create_dir_all(&within).unwrap();
        fs::set_permissions(&within, Permissions::from_mode(0o777)).unwrap();
        fs::write(given.path().join("file"), "content\n").unwrap();
        let mut writes = sh(&format!(
            "read -r line <{0}/file; echo more >{0}/a/within/new; echo $line; echo x 2>/dev/null >{0}/file || echo refused",
            given.path().display()
        ));
        (writes.read, writes.write) = (vec![given.path().to_owned()], vec![within.clone()]);
        assert_eq!(printed(&sandbox, writes).await, "content\nrefused", "{level}");
        assert_eq!(fs::read_to_string(within.join("new")).unwrap(), "more\n", "{level}");
    }
}

#[tokio::test]
async fn a_file_within_a_folder_that_is_only_read_can_be_changed() {
    for level in LEVELS {
        let sandbox = sandbox(level);
        let given = folder();
        let file = given.path().join("file");
        fs::write(&file, "content\n").unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o666)).unwrap();
        let mut writes = sh(&format!("echo more >>{}", file.display()));
        (writes.read, writes.write) = (vec![given.path().to_owned()], vec![file.clone()]);
        printed(&sandbox, writes).await;
        assert_eq!(fs::read_to_string(&file).unwrap(), "content\nmore\n", "{level}");
    }
}

#[tokio::test]
async fn a_call_can_change_what_an_earlier_one_left() {
    for level in LEVELS {
        let sandbox = sandbox(level);
        let given = folder();
        let mut appends = sh(&format!("echo more >>{}/log", given.path().display()));
        appends.write = vec![given.path().to_owned()];
        for _ in 0..3 {
            printed(&sandbox, appends.clone()).await;
        }
        assert_eq!(fs::read_to_string(given.path().join("log")).unwrap(), "more\nmore\nmore\n", "{level}");
    }
}

#[tokio::test]
async fn no_file_that_it_leaves_has_the_set_user_id_bit() {
    // Who executes such a file becomes its owner, which is the daemon's user if that is not root.
    let script = "
import os, sys
def attempt(what):
    try:
        what()
    except OSError as error:
        return error.strerror
    return 'done'
os.chdir(sys.argv[1])
os.umask(0)
open('file', 'w').close()
file = os.open('file', os.O_RDONLY)
modes = [attempt(lambda: os.chmod('file', mode)) for mode in (0o755, 0o4755, 0o2755)]
print(modes, attempt(lambda: os.fchmod(file, 0o6755)), attempt(lambda: os.open('new', os.O_CREAT | os.O_WRONLY, 0o4755)))
";
    let python = ["/usr/bin/python3", "/usr/local/bin/python3"].into_iter().find(|file| Path::new(file).exists());
    let refused = "Operation not permitted";
    // Without namespaces, only a daemon of root gives a command a user of its own, which may change modes.
    let without_namespaces = if rustix::process::geteuid().is_root() { "done" } else { refused };
    for (level, first) in [(Level::Full, "done"), (Level::NoNamespaces, without_namespaces)] {
        let sandbox = sandbox(level);
        let given = folder();
        let mut settings = confined(&[python.unwrap(), "-c", script, given.path().to_str().unwrap()]);
        settings.write = vec![given.path().to_owned()];
        let expected = format!("['{first}', '{refused}', '{refused}'] {refused} {refused}");
        assert_eq!(printed(&sandbox, settings).await, expected, "{level}");
        let modes =
            fs::read_dir(given.path()).unwrap().map(|file| file.unwrap().metadata().unwrap().permissions().mode());
        assert!(modes.into_iter().all(|mode| mode & 0o6000 == 0), "{level}");
    }
}

#[tokio::test]
async fn a_daemon_that_is_not_root_keeps_its_commands_in_as_well() {
    // Otherwise all of them have run as that user.
    if rustix::process::geteuid().is_root() {
        as_nobody(&[&helper()], &["commands::tests::confined::"], 13).await.unwrap();
    }
}

#[tokio::test]
async fn with_the_network_it_takes_no_name_by_which_others_reach_it() {
    let script = "
import socket
ours, theirs = socket.socketpair()
for name in (b'\\0toolbus-abstract', 'socket'):
    try:
        ours.bind(name)
        print('bound')
    except OSError as error:
        print(error.strerror)
";
    let python = ["/usr/bin/python3", "/usr/local/bin/python3"].into_iter().find(|file| Path::new(file).exists());
    for level in LEVELS {
        let sandbox = sandbox(level);
        let mut settings = confined(&[python.unwrap(), "-c", script]);
        settings.network = true;
        assert_eq!(printed(&sandbox, settings).await, "Operation not permitted\nOperation not permitted", "{level}");
    }
}
