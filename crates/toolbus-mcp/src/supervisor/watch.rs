//! Watching over one server and everything that it starts.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _, Stdin};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, getpid, kill_process, kill_process_group, set_child_subreaper, setsid, wait,
};
use rustix::{stdio, thread};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};
use signal_hook::{flag, low_level::pipe};

use super::{EXEC, family};

/// Time between SIGTERM and SIGKILL.
const AFTER_TERM: Duration = Duration::from_secs(2);
/// Longest time that processes which were killed are waited for. One that hangs in the kernel may take for ever.
const AFTER_KILL: Duration = Duration::from_secs(10);
/// Time between two looks for processes that began while others were killed.
const ROUND: Duration = Duration::from_millis(5);
/// Exit code of a process that SIGKILL ended, as in a shell.
const KILLED: u8 = 137;

/// How far the end of the server is.
#[derive(Debug, Clone, Copy)]
enum Stage {
    /// It serves.
    Serving,
    /// Its standard input was closed: it ends by itself.
    Closed(Instant),
    /// It was sent SIGTERM.
    Terminated(Instant),
}

/// Starts the server and returns, with its exit code, when nothing of it is left.
pub(super) fn run(args: impl Iterator<Item = OsString>) -> io::Result<u8> {
    let (grace, command, arguments) = super::parse(args)?;
    // Fails for a leader of a group, who has no need of it.
    let _ = setsid();
    set_child_subreaper(Some(getpid()))?;
    // Where the name cannot be set, `ps` shows another.
    let _ = thread::set_name(c"toolbus-mcp");
    let mut signals = Signals::new()?;
    let server = Command::new("/proc/self/exe")
        .arg0("toolbus")
        .arg(EXEC)
        .arg(std::process::id().to_string())
        .arg(command)
        .args(arguments)
        .process_group(0)
        .spawn()?;
    let server = Pid::from_child(&server);
    let ended = let_go().and_then(|()| serve(server, Duration::from_millis(grace.into()), &mut signals));
    end_all(&mut signals)?;
    ended
}

/// Leaves the server alone with its pipes, so that they end with it, and with its directory, so that it may be removed.
fn let_go() -> io::Result<()> {
    let nowhere = File::options().write(true).open("/dev/null")?;
    stdio::dup2_stdout(&nowhere)?;
    stdio::dup2_stderr(&nowhere)?;
    std::env::set_current_dir("/")
}

/// Waits until the server ends, by itself or because it must.
fn serve(server: Pid, grace: Duration, signals: &mut Signals) -> io::Result<u8> {
    let input = io::stdin();
    let mut stage = Stage::Serving;
    loop {
        while let Some((pid, status)) = reap()?.flatten() {
            if pid == server {
                return Ok(exit_code(status));
            }
        }
        if signals.end.load(Ordering::Relaxed) {
            return Ok(KILLED);
        }
        let now = Instant::now();
        stage = match stage {
            Stage::Serving => {
                if signals.wait(Some(&input), None)? {
                    Stage::Closed(now + grace)
                } else {
                    Stage::Serving
                }
            }
            Stage::Closed(until) if until <= now => {
                // A server may have left its group. One that has ended in the meantime is seen in the next round.
                let _ = kill_process_group(server, Signal::TERM).or_else(|_| kill_process(server, Signal::TERM));
                Stage::Terminated(now + AFTER_TERM)
            }
            Stage::Terminated(until) if until <= now => return Ok(KILLED),
            Stage::Closed(until) | Stage::Terminated(until) => {
                signals.wait(None, Some(until - now))?;
                stage
            }
        };
    }
}

/// Kills every descendant, adopted ones included, until none is left.
fn end_all(signals: &mut Signals) -> io::Result<()> {
    let until = Instant::now() + AFTER_KILL;
    loop {
        loop {
            match reap()? {
                None => return Ok(()),
                Some(Some(_)) => {}
                Some(None) => break,
            }
        }
        if until <= Instant::now() {
            return Ok(());
        }
        family::kill_descendants(getpid());
        signals.wait(None, Some(ROUND))?;
    }
}

/// One child that has ended. Outer absence: there are no children; inner absence: none has ended.
fn reap() -> io::Result<Option<Option<(Pid, WaitStatus)>>> {
    match wait(WaitOptions::NOHANG) {
        Ok(ended) => Ok(Some(ended)),
        Err(Errno::CHILD) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn exit_code(status: WaitStatus) -> u8 {
    let code = status.exit_status().or_else(|| status.terminating_signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX)
}

/// Signals that wake the supervisor up.
struct Signals {
    wake: UnixStream,
    /// Whether it was told to end everything at once.
    end: Arc<AtomicBool>,
}

impl Signals {
    fn new() -> io::Result<Self> {
        let (wake, waker) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        let end = Arc::new(AtomicBool::new(false));
        for signal in [SIGTERM, SIGINT, SIGHUP] {
            flag::register(signal, Arc::clone(&end))?;
        }
        for signal in [SIGTERM, SIGINT, SIGHUP, SIGCHLD] {
            pipe::register(signal, waker.try_clone()?)?;
        }
        Ok(Self { wake, end })
    }

    /// Waits for a signal, for `input` to hang up, or for the time to pass. Returns whether `input` has hung up.
    fn wait(&mut self, input: Option<&Stdin>, timeout: Option<Duration>) -> io::Result<bool> {
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let hung_up = {
            let wake = PollFd::new(&self.wake, PollFlags::IN);
            let mut both = [
                wake,
                PollFd::from_borrowed_fd(input.map_or(self.wake.as_fd(), |input| input.as_fd()), PollFlags::empty()),
            ];
            match poll(&mut both, timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            let [_, input] = both;
            input.revents().intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL)
        };
        let mut seen = [0; 64];
        while matches!(self.wake.read(&mut seen), Ok(count) if count > 0) {}
        Ok(hung_up)
    }
}
