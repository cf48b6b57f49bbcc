use std::fs;

use toolbus_testing::patience::eventually;

use super::*;

struct Shell {
    script: &'static str,
    stdin: Bytes,
    time: Duration,
    output: u64,
}

fn sh(script: &'static str) -> Shell {
    Shell { script, stdin: Bytes::new(), time: Duration::from_secs(60), output: 1024 }
}

impl Shell {
    async fn run(self) -> Outcome {
        let args = ["-c".to_owned(), self.script.to_owned()];
        let env = BTreeMap::from([("PATH".into(), "/usr/bin:/bin".into())]);
        let (program, cwd) = (Path::new("/bin/sh"), Some(Path::new("/")));
        let (stdin, time, output) = (self.stdin, self.time, self.output);
        run(Run { program, args: &args, env: &env, cwd, stdin, time, output }).await.unwrap()
    }
}

fn text(stream: &Stream) -> &str {
    std::str::from_utf8(&stream.bytes).unwrap()
}

#[tokio::test]
async fn a_program_has_its_input_its_environment_and_its_folder_and_both_of_its_streams_come_back() {
    let mut shell = sh("cat; pwd; env | grep -v -e ^PWD= -e ^_= -e ^SHLVL= -e ^OLDPWD=; echo oh >&2; exit 3");
    shell.stdin = Bytes::from_static(b"hello\n");
    let outcome = shell.run().await;
    assert_eq!(outcome.ending, Ending::Exited(3));
    assert_eq!((text(&outcome.stdout), text(&outcome.stderr)), ("hello\n/\nPATH=/usr/bin:/bin\n", "oh\n"));
}

#[tokio::test]
async fn a_signal_that_ends_a_program_is_told() {
    assert_eq!(sh("kill -SEGV $$").run().await.ending, Ending::Signalled(11));
}

#[tokio::test]
async fn a_program_that_reads_nothing_does_not_hold_up_the_end() {
    let mut shell = sh("exec 0<&-; echo done");
    shell.stdin = Bytes::from(vec![b'x'; 1024 * 1024]);
    let outcome = shell.run().await;
    assert_eq!((outcome.ending, text(&outcome.stdout)), (Ending::Exited(0), "done\n"));
}

#[tokio::test]
async fn a_program_that_takes_too_long_is_ended_with_what_it_wrote() {
    let mut shell = sh("echo begun; sleep 1000");
    shell.time = Duration::from_millis(500);
    let outcome = shell.run().await;
    assert_eq!((outcome.ending, text(&outcome.stdout)), (Ending::Stopped(Stop::Time), "begun\n"));
}

#[tokio::test]
async fn a_program_that_writes_too_much_is_ended_with_the_beginning() {
    for script in ["while :; do echo 0123456; done", "while :; do echo 0123456 >&2; done", "printf %2000s x"] {
        let outcome = sh(script).run().await;
        assert_eq!(outcome.ending, Ending::Stopped(Stop::Output), "{script}");
        let (full, other) = match script.contains(">&2") {
            true => (outcome.stderr, outcome.stdout),
            false => (outcome.stdout, outcome.stderr),
        };
        assert_eq!((full.bytes.len(), full.is_cut, other), (1024, true, Stream::default()), "{script}");
    }
}

#[tokio::test]
async fn output_that_just_fits_is_whole() {
    let outcome = sh("printf %1024s x").run().await;
    assert_eq!((outcome.ending, outcome.stdout.bytes.len(), outcome.stdout.is_cut), (Ending::Exited(0), 1024, false));
}

#[tokio::test]
async fn what_a_program_leaves_behind_ends_with_it() {
    let outcome = sh("sleep 1000 & echo $!").run().await;
    assert_eq!(outcome.ending, Ending::Exited(0));
    gone(text(&outcome.stdout).trim()).await;
}

#[tokio::test]
async fn what_has_left_the_group_does_not_hold_up_the_end() {
    let outcome = sh("setsid sleep 20 & echo done").run().await;
    assert_eq!((outcome.ending, text(&outcome.stdout)), (Ending::Exited(0), "done\n"));
    assert!(outcome.elapsed < Duration::from_secs(15), "{:?}", outcome.elapsed);
}

#[tokio::test]
async fn dropping_a_run_ends_the_program_and_its_group() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pids");
    let args = ["-c".to_owned(), format!("sleep 1000 & echo $$ $! > {0}.new; mv {0}.new {0}; wait", file.display())];
    let (env, time) = (BTreeMap::from([("PATH".into(), "/usr/bin:/bin".into())]), Duration::from_secs(1000));
    let program = Path::new("/bin/sh");
    let mut running =
        Box::pin(run(Run { program, args: &args, env: &env, cwd: None, stdin: Bytes::new(), time, output: 9 }));
    let pids = tokio::select! {
        _ = &mut running => panic!("it ends by itself"),
        pids = eventually("the numbers of the processes", async || fs::read_to_string(&file).ok()) => pids,
    };
    drop(running);
    for pid in pids.split_whitespace() {
        gone(pid).await;
    }
}

/// Waits until a process has ended; one that nobody has waited for yet counts as ended.
async fn gone(pid: &str) {
    eventually("the end of a process", async || {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok();
        stat.is_none_or(|stat| stat.contains(") Z ")).then_some(())
    })
    .await;
}
