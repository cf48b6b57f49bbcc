//! Subject of the measurement: a script, and what runs it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use toolbus_core::caller::{AgentName, Caller};
use toolbus_core::events::Discard;
use toolbus_core::tool::{Executor as _, ToolCall};
use toolbus_protocol::EXECUTE_PYTHON_SCRIPT;
use toolbus_sandbox::{Ending, Level, Sandbox};
use toolbus_scripts::config::{PoolConfig, PoolMode};
use toolbus_scripts::interpreter::Interpreter;
use toolbus_scripts::packages::{Installer, PackageError};
use toolbus_scripts::queue::{Bounds, FairQueue};
use toolbus_scripts::requirement::Requirement;
use toolbus_scripts::runner::sandbox::{SandboxRunner, SandboxSettings};
use toolbus_scripts::runner::{Runner, Script, StartKind};
use toolbus_scripts::tool::ScriptTool;

use crate::args::MeasureArgs;
use crate::error::MeasureError;
use toolbus::config::{Config, HumanDuration, ScriptConfig};

/// The script.
pub(super) const SOURCE: &str = "print(1)";
/// Output of the script.
pub(super) const WRITTEN: &[u8] = b"1\n";
/// Caller of the scripts.
const AGENT: &str = "bench";
/// Longest time of one run.
const TIME: Duration = Duration::from_secs(30);

/// An interpreter, the sandbox, and the configuration of scripts.
pub(super) struct Subject {
    pub(super) interpreter: Interpreter,
    section: ScriptConfig,
    longest_call: HumanDuration,
    sandbox: Sandbox,
    packages: Option<PathBuf>,
}

/// The packages that are measured.
const PACKAGES: [&str; 2] = ["numpy", "pandas"];
/// A script with them.
const WITH_PACKAGES: &str = "import numpy, pandas\nprint(int(pandas.Series(numpy.ones(1)).sum()))";

/// Has a folder with the packages.
struct Installed(PathBuf);

impl Installer for Installed {
    fn install<'a>(&'a self, _: &'a [Requirement], _: Instant) -> BoxFuture<'a, Result<PathBuf, PackageError>> {
        async { Ok(self.0.clone()) }.boxed()
    }
}

impl Subject {
    /// Builds the subject that the arguments and the configuration name.
    pub(super) async fn of(args: &MeasureArgs, config: &Config) -> Result<Self, MeasureError> {
        let mut section = config.script.clone().unwrap_or_default();
        if let Some(python) = &args.python {
            section.python.clone_from(python);
        }
        let interpreter = Interpreter::find(&section.python).await.map_err(failed)?;
        let sandbox = Sandbox::new(Level::Full)?;
        Ok(Self {
            interpreter,
            section,
            longest_call: config.invoke.max_timeout,
            sandbox,
            packages: args.packages.clone(),
        })
    }

    /// Runs scripts as the daemon does, at this level or below it. All runners share one sandbox, as in a daemon.
    pub(super) async fn runner(&self, strongest: Level, pool: PoolConfig) -> Result<SandboxRunner, MeasureError> {
        let settings = SandboxSettings {
            interpreter: self.interpreter.clone(),
            limits: self.section.limits(),
            require: Level::LimitsOnly,
            strongest,
            pool,
        };
        let runner = SandboxRunner::start(settings, self.sandbox.clone()).await.map_err(failed)?;
        Ok(match &self.packages {
            Some(folder) => runner.with_installer(Arc::new(Installed(folder.clone()))),
            None => runner,
        })
    }

    /// Whether scripts can have the packages that are measured.
    pub(super) const fn has_packages(&self) -> bool {
        self.packages.is_some()
    }

    /// The tool of agents, with its queue.
    pub(super) fn tool(&self, runner: Arc<dyn Runner>, callers: usize) -> ScriptTool {
        let bounds = Bounds { running: self.in_flight(), waiting_per_owner: callers, waiting: callers };
        ScriptTool::new(runner, FairQueue::new(bounds), Arc::new(Discard), self.section.settings(self.longest_call))
    }

    /// Scripts that run at a time.
    pub(super) fn in_flight(&self) -> usize {
        self.section.in_flight()
    }

    /// Returns the configuration of the pool that the daemon keeps ready.
    pub(super) fn pool(&self) -> PoolConfig {
        PoolConfig { mode: PoolMode::Spawn, ..self.section.pool.clone() }
    }

    /// Interpreters that are forked, and none that wait besides.
    pub(super) fn forking(&self) -> PoolConfig {
        PoolConfig { mode: PoolMode::Fork, min: 0, max: 0, ..self.pool() }
    }

    /// A pool with `number` interpreters ready at all times.
    pub(super) fn always_ready(&self, number: usize) -> PoolConfig {
        PoolConfig { min: number, max: number, ..self.pool() }
    }
}

/// Runs the script once. A run that was expected to be warm or cold and was not is none that may be counted.
pub(super) async fn run(runner: &dyn Runner, expected: Option<StartKind>) -> Result<(), MeasureError> {
    let start = run_script(runner, SOURCE, &[]).await?;
    match expected {
        Some(expected) if expected != start => {
            Err(MeasureError::Script(format!("a script started {}, not {}", start.as_str(), expected.as_str())))
        }
        _ => Ok(()),
    }
}

/// Runs the script, or one that imports the packages, and returns whether its interpreter was forked.
pub(super) async fn run_forked(runner: &dyn Runner, has_packages: bool) -> Result<bool, MeasureError> {
    let (source, packages) = if has_packages { (WITH_PACKAGES, &PACKAGES[..]) } else { (SOURCE, &[][..]) };
    Ok(run_script(runner, source, packages).await? == StartKind::Forked)
}

async fn run_script(runner: &dyn Runner, source: &str, packages: &[&str]) -> Result<StartKind, MeasureError> {
    let packages = packages.iter().map(|name| Requirement::parse(name)).collect::<Result<_, _>>().map_err(failed)?;
    let script = Script {
        call_id: "bench".into(),
        owner: Some(AGENT.into()),
        source: source.to_owned(),
        input: None,
        files: Vec::new(),
        packages,
        time: TIME,
        cpu: TIME,
        deadline: Instant::now() + TIME,
        idempotency_key: None,
    };
    let finished = runner.run(script).await.map_err(failed)?;
    let outcome = finished.outcome;
    if outcome.ending != Ending::Exited(0) || outcome.stdout.bytes != WRITTEN {
        let errors = String::from_utf8_lossy(&outcome.stderr.bytes).trim().to_owned();
        return Err(MeasureError::Script(format!("the script ended with {:?}: {errors}", outcome.ending)));
    }
    Ok(finished.start)
}

/// Calls the tool once.
pub(super) async fn call(tool: &ScriptTool) -> Result<(), MeasureError> {
    let arguments = serde_json::Map::from_iter([("script".to_owned(), SOURCE.into())]);
    let call = ToolCall::new(
        EXECUTE_PYTHON_SCRIPT,
        Caller::agent(AgentName::parse(AGENT).map_err(failed)?),
        arguments,
        2 * TIME,
    );
    let output = tool.execute(call).await.map_err(|failure| MeasureError::Script(failure.message))?;
    match output.content {
        Some(content) if !output.is_error && content.trim().as_bytes() == WRITTEN.trim_ascii() => Ok(()),
        other => Err(MeasureError::Script(format!("the tool answered {other:?}"))),
    }
}

/// An error of something that scripts need.
pub(super) fn failed(error: impl ToString) -> MeasureError {
    MeasureError::Script(error.to_string())
}
