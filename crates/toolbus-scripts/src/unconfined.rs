//! Runs programs with the rights of the daemon, and limits only their time and output.
//!
//! Their child processes end with them, unless they make a session or process group of their own.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::pin::pin;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use bytes::Bytes;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::signal::unix::{self, SignalKind};
use tokio::time::{sleep, timeout};
use toolbus_core::Clock;
use toolbus_sandbox::{Ending, Outcome, Stop, Stream, Watcher, Written};

/// Time to read the rest of the pipes after the end of the program: a process that left its group may hold them open.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Program to run without a sandbox.
pub(crate) struct UnconfinedRun<'a> {
    /// The program: an absolute path.
    pub(crate) program: &'a Path,
    /// Arguments of the program, without its name.
    pub(crate) args: &'a [String],
    /// Whole environment of the program.
    pub(crate) env: &'a BTreeMap<OsString, OsString>,
    /// Working directory; absent: the daemon's.
    pub(crate) cwd: Option<&'a Path>,
    /// Standard input of the program.
    pub(crate) stdin: Bytes,
    /// Time that it may take.
    pub(crate) time: Duration,
    /// Bytes of each of its standard output and standard error.
    pub(crate) output: u64,
    /// Sees its standard output meanwhile.
    pub(crate) watcher: Option<&'a Watcher>,
}

/// Runs a program to its end. Dropping the future ends the program, and all of its process group.
///
/// Its use of resources is not measured, and no files come back.
///
/// # Errors
///
/// If the program cannot be started. Its own failures are an [`Outcome`].
pub(crate) async fn run(run: UnconfinedRun<'_>) -> io::Result<Outcome> {
    let started = Clock::SYSTEM.now();
    let mut command = Command::new(run.program);
    command.args(run.args).env_clear().envs(run.env).process_group(0).kill_on_drop(true);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    if let Some(cwd) = run.cwd {
        command.current_dir(cwd);
    }
    // Before the start, so that its end cannot be missed.
    let children = unix::signal(SignalKind::child())?;
    let (group, pipes) = ProcessGroup::start(&mut command)?;
    let (mut stdout, mut stderr) = (StreamBuffer::default(), StreamBuffer::default());
    let stop = watch(&group, children, pipes, &run, (&mut stdout, &mut stderr)).await;
    let status = group.end().await?;
    let ending = stop.map_or_else(|| ending(status), Ending::Stopped);
    Ok(Outcome {
        ending,
        stdout: stdout.into(),
        stderr: stderr.into(),
        artifacts: Vec::new(),
        left_out: 0,
        not_returned: Vec::new(),
        usage: None,
        elapsed: Clock::SYSTEM.since(started),
    })
}

/// Feeds a program and reads what it writes, until it has ended, or is to be stopped.
async fn watch(
    group: &ProcessGroup,
    children: unix::Signal,
    pipes: Pipes,
    run: &UnconfinedRun<'_>,
    (stdout, stderr): (&mut StreamBuffer, &mut StreamBuffer),
) -> Option<Stop> {
    let mut late = pin!(sleep(run.time));
    let mut ended = pin!(group.ended(children));
    let mut feeding = pin!(feed(pipes.stdin, &run.stdin));
    let mut reading = pin!(async {
        let read = stdout.read(pipes.stdout, run.output, run.watcher);
        tokio::try_join!(read, stderr.read(pipes.stderr, run.output, None)).err()
    });
    let (mut is_fed, mut is_read) = (false, false);
    loop {
        tokio::select! {
            () = &mut late => return Some(Stop::Time),
            () = &mut ended => break,
            () = &mut feeding, if !is_fed => is_fed = true,
            stop = &mut reading, if !is_read => match stop {
                Some(stop) => return Some(stop),
                None => is_read = true,
            },
        }
    }
    if is_read {
        return None;
    }
    group.kill();
    timeout(LAST_WORDS, reading).await.unwrap_or_default()
}

fn ending(status: ExitStatus) -> Ending {
    match (status.code(), status.signal()) {
        (Some(code), _) => Ending::Exited(code),
        (None, Some(signal)) => Ending::Signalled(signal),
        // No system knows of a third way.
        (None, None) => Ending::Exited(-1),
    }
}

/// Writes a program's standard input, and closes it. A program need not read it.
async fn feed(mut stdin: ChildStdin, bytes: &[u8]) {
    let _ = stdin.write_all(bytes).await;
}

/// Bytes that were read of one stream.
#[derive(Default)]
struct StreamBuffer {
    bytes: Vec<u8>,
    is_cut: bool,
}

impl StreamBuffer {
    /// Reads to the end; returns [`Stop::Output`] at more than `most` bytes. Dropping the future keeps what was read.
    async fn read(
        &mut self,
        mut from: impl AsyncRead + Unpin,
        most: u64,
        watcher: Option<&Watcher>,
    ) -> Result<(), Stop> {
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        while let Ok(length @ 1..) = from.read_buf(&mut self.bytes).await {
            if let (Some(watcher), Some(new)) = (watcher, self.bytes.get(self.bytes.len() - length..)) {
                watcher(Written::Stdout(new));
            }
            if self.bytes.len() > most {
                self.bytes.truncate(most);
                self.is_cut = true;
                return Err(Stop::Output);
            }
        }
        Ok(())
    }
}

impl From<StreamBuffer> for Stream {
    fn from(StreamBuffer { bytes, is_cut }: StreamBuffer) -> Self {
        Self { bytes: bytes.into(), is_cut }
    }
}

/// Pipes of a program.
struct Pipes {
    stdin: ChildStdin,
    stdout: ChildStdout,
    stderr: ChildStderr,
}

/// A program and all of its process group. Dropping it kills them.
struct ProcessGroup {
    /// The program, which stays a zombie until [`Self::end`] has killed the group, so that the group's number means no
    /// other.
    child: Child,
    leader: Pid,
}

impl ProcessGroup {
    fn start(command: &mut Command) -> io::Result<(Self, Pipes)> {
        let mut child = command.spawn()?;
        let leader = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        let (Some(leader), Some(stdin), Some(stdout), Some(stderr)) =
            (leader, child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            return Err(io::Error::other("the process has no pipes"));
        };
        Ok((Self { child, leader }, Pipes { stdin, stdout, stderr }))
    }

    /// Returns when the program has ended, and leaves it a zombie. Others of its group may go on.
    async fn ended(&self, mut children: unix::Signal) {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        // An error means that there is no such child, which cannot be waited for.
        while let Ok(None) = waitid(WaitId::Pid(self.leader), options) {
            if children.recv().await.is_none() {
                return;
            }
        }
    }

    fn kill(&self) {
        let _ = kill_process_group(self.leader, Signal::KILL);
    }

    /// Kills what is left.
    async fn end(mut self) -> io::Result<ExitStatus> {
        self.kill();
        self.child.wait().await
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        // Once it has been waited for, the number may be another's.
        if self.child.id().is_some() {
            self.kill();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use toolbus_testing::patience::eventually;

    use super::*;

    struct Shell {
        script: String,
        stdin: Bytes,
        time: Duration,
        output: u64,
    }

    fn sh(script: impl Into<String>) -> Shell {
        Shell { script: script.into(), stdin: Bytes::new(), time: Duration::from_secs(60), output: 1024 }
    }

    impl Shell {
        async fn run(self) -> Outcome {
            let args = ["-c".to_owned(), self.script];
            let env = BTreeMap::from([("PATH".into(), "/usr/bin:/bin".into())]);
            let (program, cwd) = (Path::new("/bin/sh"), Some(Path::new("/")));
            let (stdin, time, output) = (self.stdin, self.time, self.output);
            run(UnconfinedRun { program, args: &args, env: &env, cwd, stdin, time, output, watcher: None })
                .await
                .unwrap()
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
    async fn a_signal_that_ends_a_program_is_reported() {
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
        assert_eq!(
            (outcome.ending, outcome.stdout.bytes.len(), outcome.stdout.is_cut),
            (Ending::Exited(0), 1024, false)
        );
    }

    #[tokio::test]
    async fn processes_that_a_program_leaves_behind_end_with_it() {
        let outcome = sh("sleep 1000 & echo $!").run().await;
        assert_eq!(outcome.ending, Ending::Exited(0));
        gone(text(&outcome.stdout).trim()).await;
    }

    #[tokio::test]
    async fn a_process_that_left_the_group_does_not_delay_the_end() {
        let outcome = sh("setsid sleep 20 & echo done").run().await;
        assert_eq!((outcome.ending, text(&outcome.stdout)), (Ending::Exited(0), "done\n"));
        assert!(outcome.elapsed < Duration::from_secs(15), "{:?}", outcome.elapsed);
    }

    #[tokio::test]
    async fn dropping_a_run_ends_the_program_and_its_group() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pids");
        let mut shell = sh(format!("sleep 1000 & echo $$ $! > {0}.new; mv {0}.new {0}; wait", file.display()));
        shell.time = Duration::from_secs(1000);
        let mut running = Box::pin(shell.run());
        let pids = tokio::select! {
            _ = &mut running => panic!("it ends by itself"),
            pids = eventually("the numbers of the processes", async || fs::read_to_string(&file).ok()) => pids,
        };
        drop(running);
        for pid in pids.split_whitespace() {
            gone(pid).await;
        }
    }

    /// Waits until a process has ended; one that no parent has waited for yet counts as ended.
    async fn gone(pid: &str) {
        eventually("the end of a process", async || {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok();
            stat.is_none_or(|stat| stat.contains(") Z ")).then_some(())
        })
        .await;
    }
}
