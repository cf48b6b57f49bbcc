//! Runners of scripts.

mod bootstrap;
pub mod language;
pub mod local;
mod pool;
pub mod sandbox;
mod session;
mod templates;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, ready};
use serde::Serialize;
use toolbus_core::Clock;
use toolbus_sandbox::{Level, Outcome, Watcher};

use crate::environment::KEY_VARIABLE;
use crate::packages::PackageError;
use crate::requirement::Requirement;
pub use session::SessionInterpreter;

/// Runs scripts, one for each call of [`Self::run`], however many at a time: that is the queue's to bound.
///
/// The sandbox, the local runner and that of `toolbus-kubernetes` implement it: nothing here says that the script runs on
/// this machine.
pub trait Runner: Send + Sync + 'static {
    /// Runs a script to its end. Dropping the future ends the script, and everything that it started. A watcher sees what
    /// it writes meanwhile, where the runner can show it.
    fn run_watched<'a>(
        &'a self,
        script: Script,
        watcher: Option<&'a Watcher>,
    ) -> BoxFuture<'a, Result<Finished, RunFailure>>;

    /// The same without a watcher.
    fn run(&self, script: Script) -> BoxFuture<'_, Result<Finished, RunFailure>> {
        self.run_watched(script, None)
    }

    /// Whether [`Self::open`] starts interpreters.
    fn has_sessions(&self) -> bool {
        false
    }

    /// Starts an interpreter for the scripts of one session, with these packages.
    fn open<'a>(
        &'a self,
        _packages: &'a [Requirement],
        _deadline: Instant,
    ) -> BoxFuture<'a, Result<SessionInterpreter, RunFailure>> {
        ready(Err(RunFailure::NotStarted("this runner has no sessions".to_owned()))).boxed()
    }

    /// The state of the runner.
    fn status(&self) -> RunnerStatus;

    /// Ends what is kept ready. No script is run any more.
    fn shutdown(&self) -> BoxFuture<'_, ()>;
}

/// A script, and what it may take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Script {
    /// The caller's id of the call, whatever the caller gave it.
    pub call_id: Arc<str>,
    /// The agent that the script belongs to; absent: a caller that is no agent.
    pub owner: Option<Arc<str>>,
    /// The text of the program.
    pub source: String,
    /// Input of the script: `ROCKBOT_INPUT`, and the file that `TOOLBUS_INPUT_FILE` names.
    pub input: Option<String>,
    /// Files in its current folder, by name.
    pub files: Vec<(String, Bytes)>,
    /// The packages that it imports.
    pub packages: Vec<Requirement>,
    /// Time that it may take, installing packages not included.
    pub time: Duration,
    /// CPU time that it may take.
    pub cpu: Duration,
    /// When it has to have ended, also before its own time has passed: the caller waits no longer.
    pub deadline: Instant,
    /// `TOOLBUS_IDEMPOTENCY_KEY`: by what it recognises a call that is run again.
    pub idempotency_key: Option<Arc<str>>,
}

impl Script {
    /// Time that it may take, if it begins now.
    #[must_use]
    pub fn time_left(&self) -> Duration {
        self.time.min(self.deadline.saturating_duration_since(Clock::SYSTEM.now()))
    }

    /// Variables that are not the same in every call: the input, if a variable can hold it, and the idempotency key. A
    /// script that reads an absent variable fails instead of working on half a text.
    fn variables(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let input = self.input.as_deref().unwrap_or_default();
        let fits = INPUT_VARIABLE.len() + "=".len() + input.len() < MAX_VARIABLE && !input.contains('\0');
        let input = fits.then_some((INPUT_VARIABLE, input));
        input.into_iter().chain(self.idempotency_key.as_deref().map(|key| (KEY_VARIABLE, key)))
    }
}

/// Result of a script that ran.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finished {
    /// End and output of the script.
    pub outcome: Outcome,
    /// The value of its last expression, as `repr` shows it.
    pub value: Option<String>,
    /// Whether an interpreter was ready for it.
    pub start: StartKind,
    /// Time that its packages took.
    pub installing: Duration,
}

/// The variable that has the input of a script.
const INPUT_VARIABLE: &str = "ROCKBOT_INPUT";
/// The longest text that one variable of the environment can hold on Linux, with its name.
const MAX_VARIABLE: usize = 128 * 1024;
/// The file in which run.py leaves the value of the last expression.
const VALUE: &str = ".toolbus-value";

impl Finished {
    /// Takes the value from among the files that came back.
    #[must_use]
    pub fn new(mut outcome: Outcome, start: StartKind, installing: Duration) -> Self {
        let at = outcome.artifacts.iter().position(|file| file.name == VALUE);
        let value = at.map(|at| outcome.artifacts.remove(at));
        let value = value.map(|file| String::from_utf8_lossy(&file.bytes).into_owned());
        Self { outcome, value, start, installing }
    }
}

/// Whether an interpreter was ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StartKind {
    /// The interpreter was started for the script.
    Cold,
    /// The interpreter was waiting.
    Warm,
    /// The interpreter was forked for the script.
    Forked,
}

impl StartKind {
    /// Name of the start in metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Cold => "cold",
            Self::Warm => "warm",
            Self::Forked => "forked",
        }
    }
}

/// Reason why a script did not run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RunFailure {
    /// The packages could not be installed.
    #[error(transparent)]
    Packages(#[from] PackageError),
    /// The runner cannot take this script, which did not begin. The text is for the caller.
    #[error("{0}")]
    Refused(String),
    /// The runner is set up in a way that lets no script begin: trying again does not help. The text is for an operator.
    #[error("{0}")]
    Misconfigured(String),
    /// The runner failed before the script began. The text is for an operator.
    #[error("{0}")]
    NotStarted(String),
    /// The runner failed, and the script may have begun. The text is for an operator.
    #[error("{0}")]
    Unavailable(String),
}

/// Status of a runner, for an operator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RunnerStatus {
    /// `sandbox`, `local` or `kubernetes`.
    pub runner: &'static str,
    /// The level at which scripts run; absent without a sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub level: Option<Level>,
    /// Layers that confine scripts: `namespaces`, `landlock`, `seccomp`, `cgroups`.
    pub layers: Vec<&'static str>,
    /// Version of Python; absent while it is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub python: Option<String>,
    /// Interpreters that wait for a script.
    pub warm: usize,
    /// Start mode of interpreters: `fork` or `spawn`; absent without a sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<&'static str>,
}
