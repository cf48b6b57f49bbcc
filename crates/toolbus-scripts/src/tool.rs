//! The tool `execute_python_script`, and those of other languages.

mod arguments;
mod artifacts;
mod descriptor;
mod hints;
mod memory;
mod session;
#[cfg(test)]
mod tests;
mod text;

use std::sync::Arc;
use std::time::{Duration, Instant};

use toolbus_core::Clock;
use toolbus_core::events::{ScriptEvents, ScriptRun};
use toolbus_core::failure::{Cause, ToolFailure, Verdict};
use toolbus_core::tool::{Executor, Program, Tool, ToolCall, ToolOutput};
use toolbus_core::toolsets::{SessionLimits, SessionSet};
use toolbus_protocol::{Code, Outcome};
use toolbus_sandbox::{Ending, Level, Limits, Watcher};

use crate::packages::PackageError;
use crate::progress::ProgressLines;
use crate::queue::{FairQueue, QueueError, Turn};
use crate::requirement::AllowedPackages;
use crate::runner::{Finished, RunFailure, Runner, RunnerStatus, Script};
use arguments::ScriptArguments;
pub use descriptor::{GUIDE, SOURCE};
pub use memory::ScriptMemory;
use memory::{MemoryFiles, SavedFiles};
use session::ScriptSessions;
use text::{InSession, ScriptBudget};

/// A script ends this much before its call, at the most, so that its result gets there.
const MAX_MARGIN: Duration = Duration::from_millis(500);
/// When a caller that was refused for lack of room may try again.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// The owner of scripts of callers that are no agents: they share one, or each made-up name would have its own turns.
const UNKNOWN: &str = "unknown callers";
/// Name of the set of all sessions, in messages and in the log. No configured tool set can have it.
const SESSIONS: &str = "Python sessions";
/// The exit code of what did not run.
const NOT_RUN: i32 = -1;

/// Limits of scripts, and their description.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Time of a script without `timeout_seconds`.
    pub timeout: Duration,
    /// Longest time of a script.
    pub max_timeout: Duration,
    /// CPU time that a script gets, in thousandths of its time.
    pub cpu_millis: u32,
    /// The limits that the runner applies; the description names them.
    pub limits: Limits,
    /// The packages that scripts may request.
    pub packages: AllowedPackages,
    /// The most that installing them takes.
    pub package_timeout: Duration,
    /// Sessions that keep an interpreter; `None`: there are none.
    pub sessions: Option<SessionLimits>,
    /// Working memory, whose entries scripts get as files; `None`: there is none.
    pub memory: Option<ScriptMemory>,
    /// Name of the language; `None`: Python.
    pub language: Option<Arc<str>>,
}

impl Settings {
    /// The same for the scripts of another language, which have no packages and no sessions.
    #[must_use]
    pub fn of_language(&self, name: &str) -> Self {
        let packages = AllowedPackages::default();
        Self { packages, sessions: None, language: Some(name.into()), ..self.clone() }
    }

    /// Name of the tool.
    fn tool_name(&self) -> String {
        name_of(self.language.as_deref().unwrap_or(PYTHON))
    }
}

/// The language that needs no name in the configuration.
pub const PYTHON: &str = "python";

/// Name of the tool for the scripts of a language.
#[must_use]
pub fn name_of(language: &str) -> String {
    format!("execute_{language}_script")
}

/// Runs scripts: reads the arguments, waits for a turn, has the runner run the script, and words the result.
pub struct ScriptTool {
    inner: Arc<ScriptToolInner>,
    sessions: Option<Arc<SessionSet>>,
}

struct ScriptToolInner {
    runner: Arc<dyn Runner>,
    queue: FairQueue,
    events: Arc<dyn ScriptEvents>,
    settings: Settings,
    rights: Rights,
}

/// Rights of scripts, which depend on the level at which they run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Rights {
    network: bool,
    processes: bool,
}

impl ScriptTool {
    /// Puts the parts together. Each agent has its turn in `queue`.
    #[must_use]
    pub fn new(runner: Arc<dyn Runner>, queue: FairQueue, events: Arc<dyn ScriptEvents>, settings: Settings) -> Self {
        let RunnerStatus { level, layers, .. } = runner.status();
        let rights = Rights {
            network: !layers.contains(&"seccomp") && !layers.contains(&"namespaces"),
            // Of the levels of the sandbox, whose filter refuses them.
            processes: level.is_none_or(|level| level == Level::Full) || !layers.contains(&"seccomp"),
        };
        let limits = settings.sessions.filter(|limits| limits.max_sessions > 0 && runner.has_sessions());
        let inner = Arc::new(ScriptToolInner { runner, queue, events, settings, rights });
        let sessions = limits.map(|limits| SessionSet::new(SESSIONS, ScriptSessions(Arc::clone(&inner)), limits));
        Self { inner, sessions }
    }

    /// The sessions that keep an interpreter; `None`: there are none.
    #[must_use]
    pub fn sessions(&self) -> Option<Arc<SessionSet>> {
        self.sessions.clone()
    }

    /// The tool, for the registry.
    #[must_use]
    pub fn into_tool(self) -> Tool {
        let ScriptToolInner { settings, rights, .. } = &*self.inner;
        Tool::new(descriptor::descriptor(settings, *rights, self.sessions.is_some()), self)
    }
}

/// When a script of this time has to have its turn: its call keeps the requested time, or half of what is left.
fn latest_start(call: &ToolCall, time: Duration) -> Instant {
    let deadline = script_deadline(call);
    let to_go = deadline.saturating_duration_since(Clock::SYSTEM.now());
    deadline.checked_sub(time.min(to_go / 2)).unwrap_or(deadline)
}

/// When the script of a call has to have ended.
fn script_deadline(call: &ToolCall) -> Instant {
    let margin = MAX_MARGIN.min(call.remaining() / 10);
    call.deadline.checked_sub(margin).unwrap_or(call.deadline)
}

impl ScriptToolInner {
    /// Waits for a turn, has a script run, and words the result. `runs` may report the state of the script's session.
    async fn run<F: Future<Output = Result<(Finished, Option<InSession>), RunFailure>>>(
        self: &Arc<Self>,
        call: &ToolCall,
        arguments: ScriptArguments,
        begun: Instant,
        runs: impl FnOnce(Script, Option<Watcher>) -> F,
    ) -> Result<ToolOutput, ToolFailure> {
        let memory = MemoryFiles::of(call, &arguments, &self.settings)?;
        let ScriptArguments { script, input, mut files, time, packages, .. } = arguments;
        let (latest, deadline) = (latest_start(call, time), script_deadline(call));
        let turn = self.turn(call, latest).await?;
        // Not before, or each script that waits would hold what it reads.
        if let Some(memory) = &memory {
            files.extend(memory.read(arguments::total(&files)).await?);
        }

        // Dropped with this future, it reports a run that was cancelled.
        let mut report = RunReport::begin(&*self.events, Clock::SYSTEM.since(begun));
        let cpu = self.cpu(time.min(deadline.saturating_duration_since(Clock::SYSTEM.now())));
        let watcher = call.progress.clone().map(ProgressLines::watcher);
        let owner = call.caller.agent.as_ref().map(|_| Arc::clone(&call.caller.owner));
        let idempotency_key = call.idempotency_key.clone();
        let call_id = Arc::clone(&call.call_id);
        let requested = packages.clone();
        let script =
            Script { call_id, owner, source: script, input, files, packages, time, cpu, deadline, idempotency_key };
        let result = runs(script, watcher).await;
        report.ended(result.as_ref().map(|(finished, _)| finished));
        let elapsed = Clock::SYSTEM.since(report.begun);
        drop(report);
        drop(turn);
        match result {
            Ok((mut finished, session)) => {
                let saved = match &memory {
                    Some(memory) => memory.save(&mut finished.outcome.artifacts).await,
                    None => SavedFiles::default(),
                };
                let tool = Arc::clone(self);
                let size = finished.outcome.size();
                let word = move || {
                    let Settings { limits, packages, language, .. } = &tool.settings;
                    let given = ScriptBudget {
                        limits,
                        packages,
                        requested: &requested,
                        language: language.as_deref(),
                        time,
                        cpu,
                        has_network: tool.rights.network,
                        has_processes: tool.rights.processes,
                        session,
                    };
                    text::output(&finished, given, saved)
                };
                // What fails as unavailable is the interpreter.
                call.in_turn(size, word).await.map_err(|_| call.timed_out(None))
            }
            Err(failure) => not_run(failure, elapsed),
        }
    }

    /// Waits for a turn until `latest`.
    async fn turn(&self, call: &ToolCall, latest: Instant) -> Result<Turn, ToolFailure> {
        let owner = if call.caller.agent.is_some() { Arc::clone(&call.caller.owner) } else { UNKNOWN.into() };
        self.queue.acquire(&owner, latest).await.map_err(|error| {
            let message = match error {
                QueueError::Full => "Too many scripts are waiting to run. Wait for some to end, or run fewer.",
                QueueError::TooLate => "No place to run the script came free in time.",
            };
            ToolFailure::new(Cause::Overloaded, message).with_retry_after(RETRY_AFTER)
        })
    }

    /// CPU time that a script gets with this time.
    fn cpu(&self, time: Duration) -> Duration {
        time.saturating_mul(self.settings.cpu_millis) / 1000
    }
}

impl Executor for ScriptTool {
    async fn execute(&self, call: ToolCall) -> Result<ToolOutput, ToolFailure> {
        let arguments = ScriptArguments::read(&call.arguments, &self.inner.settings)?;
        if arguments.session {
            return match &self.sessions {
                None => {
                    Err(ToolFailure::invalid("Argument `session` cannot be used here: each script runs by itself."))
                }
                Some(_) if call.caller.session.is_none() => Err(ToolFailure::invalid(
                    "Argument `session` keeps variables and files for the caller's session, and this call is in none. \
                     Give it a `sessionId`, or leave `session` out.",
                )),
                Some(sessions) => sessions.run(call).await,
            };
        }
        let runner = &self.inner.runner;
        let runs = |script, watcher: Option<Watcher>| async move {
            Ok((runner.run_watched(script, watcher.as_ref()).await?, None))
        };
        self.inner.run(&call, arguments, Clock::SYSTEM.now(), runs).await
    }
}

/// The result of a script that did not run.
fn not_run(failure: RunFailure, elapsed: Duration) -> Result<ToolOutput, ToolFailure> {
    let unavailable = |cause, message, detail| Err(ToolFailure::new(cause, message).with_detail(detail));
    let scripts = "Scripts cannot be run at the moment. Tell the operator if it stays so.";
    let packages = "Packages cannot be installed at the moment. Tell the operator if it stays so.";
    let error = match failure {
        RunFailure::Refused(message) => return Err(ToolFailure::invalid(message)),
        RunFailure::Misconfigured(detail) => return Err(misconfigured(detail)),
        RunFailure::NotStarted(detail) => return unavailable(Cause::ConnectFailed, scripts, detail),
        RunFailure::Unavailable(detail) => return unavailable(Cause::Unavailable, scripts, detail),
        RunFailure::Packages(PackageError::Unavailable(detail)) => {
            return unavailable(Cause::ConnectFailed, packages, detail);
        }
        RunFailure::Packages(error) => error,
    };
    let exit_code = match &error {
        PackageError::Failed { exit_code, .. } => *exit_code,
        PackageError::Refused(_) | PackageError::TimedOut { .. } | PackageError::Unavailable(_) => NOT_RUN,
    };
    let text = error.to_string();
    let program = Program { stdout: None, stderr: Some(text.clone()), exit_code, elapsed };
    Ok(ToolOutput::error(text).of_program(program))
}

/// The failure of a script that no other call would run either.
fn misconfigured(detail: String) -> ToolFailure {
    let message =
        "Scripts cannot be run until the operator has corrected how they are run. Trying again does not help.";
    let verdict = Verdict { code: Code::ExecutionFailed, is_retryable: false, outcome: Some(Outcome::NotStarted) };
    ToolFailure { verdict: Some(verdict), ..ToolFailure::new(Cause::Failed, message).with_detail(detail) }
}

/// Reports a run when this is dropped.
struct RunReport<'a> {
    events: &'a dyn ScriptEvents,
    begun: Instant,
    run: ScriptRun,
}

impl<'a> RunReport<'a> {
    fn begin(events: &'a dyn ScriptEvents, waited: Duration) -> Self {
        let duration = Duration::ZERO;
        let run = ScriptRun { outcome: "cancelled", start: None, duration, waited, cpu: None, peak_memory: None };
        Self { events, begun: Clock::SYSTEM.now(), run }
    }

    fn ended(&mut self, result: Result<&Finished, &RunFailure>) {
        self.run.outcome = outcome(result);
        if let Ok(Finished { outcome, start, .. }) = result {
            self.run.start = Some(start.as_str());
            // The sandbox leaves zero where it could not measure one of them.
            self.run.cpu = outcome.usage.map(|usage| Duration::from_micros(usage.cpu_us)).filter(|cpu| !cpu.is_zero());
            self.run.peak_memory = outcome.usage.map(|usage| usage.peak_memory).filter(|bytes| *bytes > 0);
        }
    }
}

impl Drop for RunReport<'_> {
    fn drop(&mut self) {
        self.run.duration = Clock::SYSTEM.since(self.begun);
        self.events.run(&self.run);
    }
}

/// One of [`ScriptRun::OUTCOMES`].
fn outcome(result: Result<&Finished, &RunFailure>) -> &'static str {
    match result {
        Ok(finished) => match finished.outcome.ending {
            Ending::Exited(0) => "ok",
            Ending::Exited(_) => "failed",
            Ending::Signalled(_) => "signal",
            Ending::Stopped(stop) => stop.as_str(),
        },
        Err(RunFailure::Packages(_)) => "packages",
        Err(
            RunFailure::Refused(_)
            | RunFailure::Misconfigured(_)
            | RunFailure::NotStarted(_)
            | RunFailure::Unavailable(_),
        ) => "unavailable",
    }
}
