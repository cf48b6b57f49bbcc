//! The two small processes that stand between the daemon and a server that it started.
//!
//! The daemon starts itself again by a hidden word, as a guard, which starts itself as a supervisor. Each leads a
//! session of its own, adopts orphans of the processes that it started, and sees the pipe to the server's standard
//! input hang up when the daemon closes it or dies. So nothing that a server starts outlives it,
//! and no server outlives the daemon, also where one of the two was killed or stopped by what it watches. Each has one
//! thread, because the parent-death signal is tied to the thread that started the child.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _, Stdin, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, getpid, getppid, kill_process, kill_process_group, set_child_subreaper,
    set_parent_process_death_signal, setsid, wait,
};
use rustix::{stdio, thread};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::low_level::pipe;
use toolbus_core::Clock;

use super::family;

/// The word that makes this executable a guard. Arguments: the grace in milliseconds, then the command.
pub(crate) const GUARD: &str = "__guard";
/// The word that makes a guard watch what it has started. Arguments: its patience in milliseconds, then the process id.
const WATCH: &str = "__watch";
/// The word that makes this executable a supervisor. Arguments: as for a guard.
const SUPERVISE: &str = "__supervise";
/// The word that makes this executable become the server. Arguments: the supervisor's process id, then the command.
const EXEC: &str = "__exec";
/// The clock of these processes, each of which is a whole program.
const CLOCK: Clock = Clock::SYSTEM;
/// Exit code where the supervisor itself cannot work.
const FAILED: u8 = 125;

/// Runs as a guard or a supervisor, if the arguments (with the program's name first) request it; else absent.
///
/// Call it first of all in `main`, while the process has one thread.
#[must_use]
pub fn take_over(mut args: impl Iterator<Item = OsString>) -> Option<ExitCode> {
    let role = args.nth(1)?;
    let ended = match role.to_str()? {
        GUARD => guard(args),
        WATCH => watch(args),
        SUPERVISE => supervise(args),
        EXEC => run(args),
        _ => return None,
    };
    Some(ExitCode::from(ended.unwrap_or_else(|error| {
        eprintln!("toolbus: cannot supervise: {error}");
        FAILED
    })))
}

/// Reads the arguments after a hidden word: a number and a command.
fn parse(mut args: impl Iterator<Item = OsString>) -> io::Result<(u32, OsString, Vec<OsString>)> {
    let number = args.next().and_then(|text| text.to_str()?.parse().ok());
    match (number, args.next()) {
        (Some(number), Some(command)) => Ok((number, command, args.collect())),
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "expected a number and a command")),
    }
}

/// Time between SIGTERM and SIGKILL.
const AFTER_TERM: Duration = Duration::from_secs(2);
/// Time for which a guard waits longer than its supervisor.
const GUARD_MARGIN: Duration = Duration::from_millis(500);
/// Longest wait for killed processes. A process that hangs in the kernel may take for ever.
const AFTER_KILL: Duration = Duration::from_secs(10);
/// Time between two looks for processes that began while others were killed.
const ROUND: Duration = Duration::from_millis(5);
/// Exit code of a process that SIGKILL ended, as in a shell.
const KILLED: u8 = 137;

/// Stage in the life of the supervised process.
#[derive(Debug, Clone, Copy)]
enum Stage {
    /// The process serves.
    Serving,
    /// Standard input was closed: the process is to end by itself.
    Closed(Instant),
    /// SIGTERM was sent.
    Terminated(Instant),
}

/// Process that a supervisor watches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ward {
    Supervisor,
    Server,
}

/// Starts the supervisor of a server, and becomes what watches over it: under its own command line, so that a search
/// for the server's command line finds the supervisor and the server.
fn guard(args: impl Iterator<Item = OsString>) -> io::Result<u8> {
    let (grace, command, arguments) = parse(args)?;
    // Wakes up a guard that was stopped. It comes, too, when the thread that started this process ends, and does no
    // harm.
    set_parent_process_death_signal(Some(Signal::CONT))?;
    lead()?;
    let supervisor = itself().arg(SUPERVISE).arg(grace.to_string()).arg(command).args(arguments).spawn()?;
    let patience = Duration::from_millis(grace.into()) + AFTER_TERM + GUARD_MARGIN;
    Err(itself().arg(WATCH).arg(patience.as_millis().to_string()).arg(supervisor.id().to_string()).exec())
}

/// Returns, with the exit code of the supervisor, when nothing of its server is left. If the server kills or stops its
/// supervisor, this process adopts its orphans, and continues a stopped one.
fn watch(args: impl Iterator<Item = OsString>) -> io::Result<u8> {
    let (patience, supervisor, _) = parse(args)?;
    let supervisor = supervisor.to_str().and_then(|pid| Pid::from_raw(pid.parse().ok()?));
    let supervisor = supervisor.ok_or(io::ErrorKind::InvalidInput)?;
    let mut signals = GuardSignals::new()?;
    finish(Ward::Supervisor, supervisor, Duration::from_millis(patience.into()), &mut signals)
}

/// Starts the server and returns, with its exit code, when none of its processes is left.
fn supervise(args: impl Iterator<Item = OsString>) -> io::Result<u8> {
    let (grace, command, arguments) = parse(args)?;
    // Without a guard everything ends at once.
    set_parent_process_death_signal(Some(Signal::TERM))?;
    lead()?;
    let mut signals = GuardSignals::new()?;
    let id = std::process::id().to_string();
    let server = itself().arg(EXEC).arg(id).arg(command).args(arguments).process_group(0).spawn()?;
    finish(Ward::Server, Pid::from_child(&server), Duration::from_millis(grace.into()), &mut signals)
}

/// Leads a session, and adopts what loses its parent.
fn lead() -> io::Result<()> {
    // Fails for a leader of a group, which needs no session.
    let _ = setsid();
    Ok(set_child_subreaper(Some(getpid()))?)
}

/// This executable, to be started once more.
fn itself() -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("toolbus");
    command
}

/// Waits for the end of the child, and ends the orphans that it leaves behind.
fn finish(ward: Ward, child: Pid, patience: Duration, signals: &mut GuardSignals) -> io::Result<u8> {
    // Where the name cannot be set, `ps` shows another.
    let _ = thread::set_name(c"toolbus-mcp");
    let ended = let_go().and_then(|()| serve(ward, child, patience, signals));
    end_all(signals)?;
    let Some(status) = ended? else { return Ok(KILLED) };
    if let (Ward::Supervisor, Some(signal)) = (ward, status.terminating_signal().and_then(Signal::from_named_raw)) {
        // Lets the daemon distinguish the end of a supervisor from that of a server.
        kill_process(getpid(), signal)?;
    }
    Ok(exit_code(status))
}

/// Leaves the server alone with its pipes, so that they end with it, and with its directory, so that it may be removed.
fn let_go() -> io::Result<()> {
    let nowhere = File::options().write(true).open("/dev/null")?;
    stdio::dup2_stdout(&nowhere)?;
    stdio::dup2_stderr(&nowhere)?;
    std::env::set_current_dir("/")
}

/// Waits until the child ends. `None` if it has to be killed.
fn serve(ward: Ward, child: Pid, grace: Duration, signals: &mut GuardSignals) -> io::Result<Option<WaitStatus>> {
    let input = io::stdin();
    let mut stage = Stage::Serving;
    // Others may stop a server; what the server started may not stop its supervisor.
    let stops = if ward == Ward::Supervisor { WaitOptions::UNTRACED } else { WaitOptions::empty() };
    loop {
        while let Some((pid, status)) = reap(stops)?.flatten() {
            match pid == child {
                true if status.stopped() => kill_process(child, Signal::CONT)?,
                true => return Ok(Some(status)),
                false => {}
            }
        }
        if signals.end.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let now = CLOCK.now();
        stage = match stage {
            Stage::Serving => {
                if signals.wait(Some(&input), None)? {
                    // Not `now`, which was before the wait.
                    Stage::Closed(CLOCK.now() + grace)
                } else {
                    Stage::Serving
                }
            }
            // A supervisor has had its time, and that of the server.
            Stage::Closed(until) if until <= now && ward == Ward::Supervisor => return Ok(None),
            Stage::Closed(until) if until <= now => {
                // A server may have left its group. A process that has ended meanwhile is reaped in the next round.
                let _ = kill_process_group(child, Signal::TERM).or_else(|_| kill_process(child, Signal::TERM));
                Stage::Terminated(now + AFTER_TERM)
            }
            Stage::Terminated(until) if until <= now => return Ok(None),
            Stage::Closed(until) | Stage::Terminated(until) => {
                signals.wait(None, Some(until - now))?;
                stage
            }
        };
    }
}

/// Kills every descendant, adopted ones included, until none is left.
fn end_all(signals: &mut GuardSignals) -> io::Result<()> {
    let until = CLOCK.now() + AFTER_KILL;
    loop {
        loop {
            match reap(WaitOptions::empty())? {
                None => return Ok(()),
                Some(Some(_)) => {}
                Some(None) => break,
            }
        }
        if until <= CLOCK.now() {
            return Ok(());
        }
        family::kill_descendants(getpid());
        signals.wait(None, Some(ROUND))?;
    }
}

/// One child that has ended, or that `more` covers. Outer absence: there are no children; inner absence: there is
/// nothing to report.
fn reap(more: WaitOptions) -> io::Result<Option<Option<(Pid, WaitStatus)>>> {
    match wait(WaitOptions::NOHANG | more) {
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
struct GuardSignals {
    wake: UnixStream,
    /// Whether SIGTERM, SIGINT or SIGHUP has arrived.
    end: Arc<AtomicBool>,
}

impl GuardSignals {
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

/// Exit code where a program was not found, as in a shell.
const NOT_FOUND: u8 = 127;
/// Exit code where a program could not be run, as in a shell.
const NOT_RUN: u8 = 126;

/// Replaces this process by the command, which then dies with its supervisor. Returns only where that fails.
fn run(args: impl Iterator<Item = OsString>) -> io::Result<u8> {
    let (supervisor, command, arguments) = parse(args)?;
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // A supervisor that died before the line above has sent no signal.
    if getppid().is_none_or(|parent| parent.as_raw_nonzero().get().unsigned_abs() != supervisor) {
        return Ok(NOT_RUN);
    }
    let error = Command::new(&command).args(arguments).exec();
    // Ignores a closed standard error: the exit code stays.
    let _ = writeln!(io::stderr(), "toolbus: cannot run '{}': {error}", command.to_string_lossy());
    Ok(if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { NOT_RUN })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[&str]) -> impl Iterator<Item = OsString> {
        words.iter().map(OsString::from).collect::<Vec<_>>().into_iter()
    }

    #[test]
    fn only_the_hidden_words_take_over() {
        for arguments in [&["toolbus"][..], &["toolbus", "serve"], &["toolbus", "--help", "__guard"]] {
            assert!(take_over(words(arguments)).is_none());
        }
    }

    #[test]
    fn a_hidden_word_needs_a_number_and_a_command() {
        assert!(parse(words(&["5"])).is_err());
        assert!(parse(words(&["soon", "cat"])).is_err());
        let (number, command, arguments) = parse(words(&["5", "cat", "-u"])).unwrap();
        assert_eq!((number, command.as_os_str(), arguments.len()), (5, "cat".as_ref(), 1));
    }
}
