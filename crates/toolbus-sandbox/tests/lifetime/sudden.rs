//! Sudden ends: of the caller, of the daemon, and of each process between it and the script.

use std::path::Path;
use std::process::Stdio;

use rustix::process::{Signal, kill_process};
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;
use toolbus_sandbox::{Ending, Level};
use toolbus_scripts::runner::sandbox::SandboxRunner;
use toolbus_scripts::runner::{Finished, RunFailure, Runner as _};
use toolbus_testing::patience::eventually;

use crate::fixture::{helper, living, named, runner, script, text};
use crate::left::{leaves_nothing, lineages, work_folders};

const LEVELS: [Level; 2] = [Level::Full, Level::NoNamespaces];
/// Stays, with a child and a thread where it may have them.
const STAYS: &str = "
import threading
threading.Thread(target=time.sleep, args=(600,)).start()
try:
    os.fork()
except OSError:
    pass
time.sleep(600)
";

#[test]
fn a_run_that_is_dropped_ends_with_all_that_it_started() {
    leaves_nothing("after runs were dropped", async {
        for level in LEVELS {
            for warm in [0, 1] {
                let runner = runner(level, warm).await;
                eventually("the pool", async || (runner.status().warm >= warm).then_some(())).await;
                let run = runner.run(script(named("atk-dropped", STAYS)));
                let begun = eventually("the script", async || (living("atk-dropped") > 0).then_some(()));
                tokio::select! {
                    finished = run => panic!("{level}: {finished:?}"),
                    () = begun => {}
                }
                eventually("its end", async || (living("atk-dropped") == 0).then_some(())).await;
                runner.shutdown().await;
            }
        }
    });
}

#[test]
fn a_daemon_that_is_killed_leaves_no_process_and_no_folder() {
    leaves_nothing("after daemons were killed", async {
        for level in LEVELS {
            let temporary = tempfile::tempdir().unwrap();
            let mut daemon = daemon(level, temporary.path());
            give(&mut daemon, &named("atk-orphan", STAYS)).await;
            eventually("the script", async || (living("atk-orphan") > 0).then_some(())).await;
            daemon.start_kill().unwrap();
            daemon.wait().await.unwrap();
            eventually("its end", async || (living("atk-orphan") == 0).then_some(())).await;
            let files = || std::fs::read_dir(temporary.path()).unwrap().flatten();
            let runs = || files().flat_map(|base| std::fs::read_dir(base.path()).unwrap()).count();
            eventually("the removal of its folder", async || (runs() == 0).then_some(())).await;
            assert_eq!(files().count(), 1, "{level}: what held the folders of runs");

            let mut next = self::daemon(level, temporary.path());
            give(&mut next, "print('next')").await;
            let output = next.wait_with_output().await.unwrap();
            assert_eq!(String::from_utf8_lossy(&output.stdout), "Exited(0)\nnext\n", "{level}");
            // It removes that; its own may wait for the next again.
            assert!(files().count() <= 1, "{level}");
            eventually("the removal of its folder", async || (runs() == 0).then_some(())).await;
        }
    });
}

/// A thread that is not the first becomes another program, of this name, which the death of its parent does not end.
fn becomes(name: &str) -> String {
    let again = format!("import ctypes, time; ctypes.CDLL(None).prctl(15, b'{name}', 0, 0, 0); time.sleep(600)");
    let source = format!(
        r#"
import threading
arguments = ['python3', '-I', '-S', '-c', "{again}"]
threading.Thread(target=os.execv, args=('/usr/bin/python3', arguments)).start()
time.sleep(600)
"#
    );
    named("atk-first", &source)
}

#[test]
fn a_thread_that_becomes_another_program_does_not_outlive_the_daemon() {
    leaves_nothing("after daemons were killed", async {
        for level in LEVELS {
            let temporary = tempfile::tempdir().unwrap();
            let mut daemon = daemon(level, temporary.path());
            give(&mut daemon, &becomes("atk-another")).await;
            eventually("the program", async || (living("atk-another") > 0).then_some(())).await;
            daemon.start_kill().unwrap();
            daemon.wait().await.unwrap();
            let end = eventually("its end", async || (living("atk-another") == 0).then_some(()));
            // By itself it would live for ten minutes.
            tokio::time::timeout(std::time::Duration::from_secs(60), end).await.expect("a second, and time to look");
        }
    });
}

#[test]
fn a_thread_that_becomes_another_program_does_not_outlive_those_that_watch_it() {
    leaves_nothing("after those that watch were killed", async {
        for level in LEVELS {
            // The init process, and the watchdog.
            for which in [1, 2] {
                let runner = runner(level, 0).await;
                let error = killed(&runner, "atk-watched", which, &becomes("atk-watched")).await.unwrap_err();
                assert_eq!(error.to_string(), "the sandbox's helper ended unexpectedly", "{level}");
                eventually("its end", async || (living("atk-watched") == 0).then_some(())).await;
                runner.shutdown().await;
            }
        }
    });
}

pub(crate) fn daemon(level: Level, temporary: &Path) -> tokio::process::Child {
    let mut command = Command::new(helper().with_file_name("run_script"));
    command.args([level.as_str(), "600000"]).env("TMPDIR", temporary);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true).spawn().unwrap()
}

pub(crate) async fn give(daemon: &mut tokio::process::Child, source: &str) {
    daemon.stdin.take().unwrap().write_all(source.as_bytes()).await.unwrap();
}

/// Runs a script, and kills the program that it becomes by this name, or a process above that.
async fn killed(runner: &SandboxRunner, name: &str, which: usize, source: &str) -> Result<Finished, RunFailure> {
    let kill = async {
        let pids = eventually("the program", async || lineages(name).into_iter().next()).await;
        kill_process(pids[which], Signal::KILL).unwrap();
        std::future::pending::<()>().await;
    };
    tokio::select! {
        result = runner.run(script(source)) => result,
        () = kill => unreachable!(),
    }
}

/// Kills the program or its keeper while a script runs.
async fn kill_one(level: Level, which: usize) -> Result<Finished, RunFailure> {
    let runner = runner(level, 0).await;
    let result = killed(&runner, "atk-killed", which, &named("atk-killed", "time.sleep(600)")).await;
    eventually("the end of all", async || (living("atk-killed") == 0).then_some(())).await;
    let after = runner.run(script("print('after')")).await.unwrap();
    assert_eq!((after.outcome.ending, text(&after.outcome.stdout)), (Ending::Exited(0), "after\n".to_owned()));
    // The sandbox that was made for a next script has a folder, too.
    runner.shutdown().await;
    let runs = || work_folders().iter().flat_map(|base| std::fs::read_dir(base).unwrap()).count();
    eventually("the removal of its folder", async || (runs() == 0).then_some(())).await;
    result
}

#[test]
fn a_keeper_that_is_killed_is_an_error_and_leaves_nothing() {
    leaves_nothing("after keepers were killed", async {
        for level in LEVELS {
            let error = kill_one(level, 1).await.unwrap_err();
            assert_eq!(error.to_string(), "the sandbox's helper ended unexpectedly", "{level}");
        }
    });
}

#[test]
fn a_script_that_is_killed_from_outside_is_told_as_that() {
    leaves_nothing("after scripts were killed", async {
        for level in LEVELS {
            let finished = kill_one(level, 0).await.unwrap();
            assert_eq!(finished.outcome.ending, Ending::Signalled(9), "{level}");
        }
    });
}
