//! Child processes that end with the daemon, even if it is killed.

mod exit;
pub(crate) mod family;
pub mod guard;
mod start;
mod stderr;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, ChildStderr, Command};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use toolbus_core::redact::Redactor;
use toolbus_core::results::ResultBudget;
use toolbus_core::{Clock, Turns};

use self::guard::GUARD;
use self::start::StartLimit;
use self::stderr::Tail;
use crate::spec::StdioSpec;
use crate::transport::LargeMessages;
use crate::transport::stdio::StdioTransport;

pub(crate) use self::exit::{Exit, Exited};
pub(crate) use self::start::StartPermit;

/// Time that a server has to end by itself once its standard input is closed, before it is sent SIGTERM.
const GRACE: Duration = Duration::from_secs(2);
/// Time that a supervisor has to end everything at once, before it is killed itself.
const FORCE: Duration = Duration::from_secs(3);

/// Time to read what a server wrote before it ended.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Starts servers, each under a guard and a supervisor.
#[derive(Debug, Clone)]
pub struct Launcher {
    helper: PathBuf,
    grace: Duration,
    turns: StartLimit,
    redactor: Redactor,
    large: LargeMessages,
    clock: Clock,
}

/// Reason why no process was started. The texts are for an operator.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SpawnError {
    /// There is no such program.
    #[error("program '{0}' was not found; give its full path, or check PATH")]
    NotFound(String),
    /// There is no such program, but its name looks like a program with arguments.
    #[error("program '{0}' was not found; `command` is the program alone, and its arguments belong into `args`")]
    HasArguments(String),
    /// The program has no permission to be executed.
    #[error("program '{0}' cannot be executed; check its permissions")]
    NotExecutable(String),
    /// The working directory cannot be used.
    #[error("working directory '{0}' does not exist or is no directory")]
    NoDirectory(String),
    /// The operating system refused.
    #[error("cannot start a process: {0}")]
    System(#[from] io::Error),
}

impl Launcher {
    /// Uses this executable, whose `main` calls [`crate::process::guard::take_over`], as the supervisor.
    ///
    /// # Errors
    ///
    /// If `/proc` is not mounted.
    pub fn new() -> io::Result<Self> {
        // Leads to the running program even where its file has been replaced by a newer one.
        let helper = PathBuf::from("/proc/self/exe");
        helper.metadata()?;
        Ok(Self::with_helper(helper))
    }

    /// Uses another executable of that kind as the supervisor.
    #[must_use]
    pub fn with_helper(helper: impl Into<PathBuf>) -> Self {
        Self {
            helper: helper.into(),
            grace: GRACE,
            turns: StartLimit::new(),
            redactor: Redactor::default(),
            large: LargeMessages::default(),
            clock: Clock::SYSTEM,
        }
    }

    /// Removes secrets from the texts of servers that are started or connected to with this.
    #[must_use]
    pub fn redacting(self, redactor: Redactor) -> Self {
        Self { redactor, ..self }
    }

    /// Measures the time of servers that are started, or connected to, with this by another clock than the system's.
    #[must_use]
    pub fn with_clock(self, clock: Clock) -> Self {
        Self { clock, ..self }
    }

    /// The clock by which the servers' time is measured.
    pub(crate) const fn clock(&self) -> Clock {
        self.clock
    }

    /// Limits the responses of servers that are started or connected to with this, together, to the room for results.
    #[must_use]
    pub fn with_results(self, results: Option<ResultBudget>) -> Self {
        Self { large: LargeMessages { results, ..self.large }, ..self }
    }

    /// Has large messages of servers that are started, or connected to, with this read in these turns.
    #[must_use]
    pub fn with_turns(self, turns: Turns) -> Self {
        Self { large: LargeMessages { turns, ..self.large }, ..self }
    }

    /// Room and turns for large messages of the server of this name.
    pub(crate) fn large(&self, server: &str) -> LargeMessages {
        LargeMessages { server: server.into(), ..self.large.clone() }
    }

    /// Redactor of the servers' output; it also learns the secrets that are fetched for them.
    pub(crate) const fn redactor(&self) -> &Redactor {
        &self.redactor
    }

    /// Waits for a permit to start a server.
    pub(crate) async fn turn(&self) -> StartPermit {
        self.turns.next().await
    }

    /// Starts a server, and everything that its traffic needs. `name` is the server's, for the log.
    ///
    /// # Errors
    ///
    /// If the program or directory does not exist, or the operating system fails to start it.
    pub(crate) fn start(&self, name: &str, program: &StdioSpec) -> Result<(Process, StdioTransport), SpawnError> {
        let environment = start::of(program, std::env::vars_os());
        find(program, &environment)?;

        let mut command = Command::new(&self.helper);
        command.arg0("toolbus").arg(GUARD).arg(self.grace.as_millis().to_string());
        command.arg(&program.command).args(&program.args).env_clear().envs(environment);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        if let Some(cwd) = &program.cwd {
            command.current_dir(cwd);
        }
        let mut child = command.spawn()?;
        let (Some(pid), Some(stdin), Some(stdout), Some(stderr)) =
            (child.id(), child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            return Err(io::Error::other("the process has no pipes").into());
        };

        let (server, tail, closing) =
            (Arc::<str>::from(name), Arc::new(Tail::new(self.redactor.clone(), self.clock)), CancellationToken::new());
        let (ended, exit) = watch::channel(None);
        let (exited, force) = (Exited::new(exit), CancellationToken::new());
        let listening = listen(stderr, Arc::clone(&server), Arc::clone(&tail), exited.clone());
        #[expect(
            clippy::disallowed_methods,
            reason = "both end with the process, which outlives the futures that use it"
        )]
        {
            tokio::spawn(listening);
            tokio::spawn(wait(child, pid, force.clone(), ended));
        }
        let transport =
            StdioTransport::new(stdout, stdin, closing.clone(), exited.clone(), self.large(name), self.clock);
        Ok((Process { guard: pid, tail, exited, closing, force }, transport))
    }
}

/// Reason why a program cannot be started now; `None` if its file and working directory exist.
#[must_use]
pub fn hindrance(program: &StdioSpec) -> Option<String> {
    let environment = start::of(program, std::env::vars_os());
    find(program, &environment).err().map(|error| error.to_string())
}

/// Whether there are a program and its directory.
fn find(program: &StdioSpec, environment: &BTreeMap<OsString, OsString>) -> Result<(), SpawnError> {
    if let Some(cwd) = program.cwd.as_deref().filter(|cwd| !cwd.is_dir()) {
        return Err(SpawnError::NoDirectory(cwd.display().to_string()));
    }
    let path = environment.get(&OsString::from("PATH")).map(OsString::as_os_str);
    start::find(&program.command, program.cwd.as_deref().unwrap_or(Path::new(".")), path).map(drop)
}

#[cfg(test)]
impl Launcher {
    /// Uses the supervisor that `cargo test` builds as an example, with another grace.
    pub(crate) fn of_tests(grace: Duration) -> Self {
        let tests = std::env::current_exe().unwrap();
        let built = tests.ancestors().nth(2).unwrap();
        let helper = built.join("examples/helper");
        assert!(helper.exists(), "build {} first: cargo build -p toolbus-mcp-client --examples", helper.display());
        Self { grace, ..Self::with_helper(helper) }
    }
}

/// A server that was started. Dropping it closes the server's standard input, and so ends it and all that it started,
/// within the grace and a few seconds.
pub(crate) struct Process {
    guard: u32,
    tail: Arc<Tail>,
    exited: Exited,
    closing: CancellationToken,
    force: CancellationToken,
}

impl Process {
    /// The process id of the supervisor, or of its guard if `/proc` does not list it.
    pub(crate) fn pid(&self) -> u32 {
        family::child_of(self.guard).unwrap_or(self.guard)
    }

    /// The last lines, at most 50, that it wrote to its standard error: oldest first, each at most 500 characters.
    pub(crate) fn stderr_tail(&self) -> Vec<String> {
        self.tail.lines()
    }

    /// Logs its standard error at debug level alone for this time.
    pub(crate) fn hush(&self, time: Duration) {
        self.tail.hush(time);
    }

    /// Waits for the end of the process, and returns its exit. Several tasks may await it, repeatedly.
    pub(crate) async fn exited(&self) -> Exit {
        self.exited.wait().await
    }

    /// Ends it in order: closes its standard input, and after `patience` kills all of it. Returns when none of its
    /// processes is left.
    pub(crate) async fn stop(&self, patience: Duration) {
        self.closing.cancel();
        if timeout(patience, self.exited()).await.is_err() {
            self.force.cancel();
            self.exited().await;
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.closing.cancel();
    }
}

/// Reads what a server writes to its standard error. A process that has outlived it may hold that open for ever.
async fn listen(stderr: ChildStderr, server: Arc<str>, tail: Arc<Tail>, exited: Exited) {
    let left = async {
        exited.wait().await;
        sleep(LAST_WORDS).await;
    };
    tokio::select! {
        () = stderr::read(stderr, server, tail) => {}
        () = left => {}
    }
}

/// Waits for a supervisor to end, and ends it on `force`. This task alone reaps it, so that its process id
/// means it for as long as signals are sent.
async fn wait(mut child: Child, pid: u32, force: CancellationToken, ended: watch::Sender<Option<Exit>>) {
    let status = tokio::select! {
        status = child.wait() => status,
        () = force.cancelled() => {
            if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
                let _ = kill_process(pid, Signal::TERM);
            }
            match timeout(FORCE, child.wait()).await {
                Ok(status) => status,
                Err(_) => {
                    let _ = child.start_kill();
                    child.wait().await
                }
            }
        }
    };
    let exit = status.map_or(Exit::Unknown, Exit::from);
    if let (Exit::Unsupervised(_), Ok(leader)) = (exit, i32::try_from(pid)) {
        // The supervisor ends everything when its guard is gone, if it can; the rest is left in the guard's session.
        let _ = tokio::task::spawn_blocking(move || family::end_session(leader)).await;
    }
    ended.send_replace(Some(exit));
}
