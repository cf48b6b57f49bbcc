//! What is measured: a script, and what runs it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;
use toolbus_core::caller::Caller;
use toolbus_core::events::Discard;
use toolbus_core::tool::{Executor as _, ToolCall};
use toolbus_protocol::EXECUTE_PYTHON_SCRIPT;
use toolbus_sandbox::{Ending, Level, Sandbox};
use toolbus_scripts::config::PoolConfig;
use toolbus_scripts::interpreter::Interpreter;
use toolbus_scripts::queue::{Bounds, FairQueue};
use toolbus_scripts::runner::sandbox::{SandboxRunner, SandboxSettings};
use toolbus_scripts::runner::{Runner, Script, StartKind};
use toolbus_scripts::tool::ScriptTool;

use crate::args::MeasureArgs;
use crate::error::MeasureError;
use toolbus::config::{Config, HumanDuration, ScriptConfig};

/// The script.
pub(super) const SOURCE: &str = "print(1)";
/// What it writes.
pub(super) const WRITTEN: &[u8] = b"1\n";
/// Longest time of one run.
const TIME: Duration = Duration::from_secs(30);

/// An interpreter, the sandbox, and what the configuration says of scripts.
pub(super) struct Subject {
    pub(super) interpreter: Interpreter,
    section: ScriptConfig,
    longest_call: HumanDuration,
    sandbox: Sandbox,
}

impl Subject {
    /// What the arguments and the configuration name.
    pub(super) async fn of(args: &MeasureArgs, config: &Config) -> Result<Self, MeasureError> {
        let mut section = config.script.clone().unwrap_or_default();
        if let Some(python) = &args.python {
            section.python.clone_from(python);
        }
        let interpreter = Interpreter::find(&section.python).await.map_err(failed)?;
        let sandbox = Sandbox::new(Level::Full)?;
        Ok(Self { interpreter, section, longest_call: config.invoke.max_timeout, sandbox })
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
        SandboxRunner::start(settings, self.sandbox.clone()).await.map_err(failed)
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

    /// What the daemon keeps ready.
    pub(super) fn pool(&self) -> PoolConfig {
        self.section.pool.clone()
    }

    /// As many interpreters ready at all times.
    pub(super) fn always_ready(&self, number: usize) -> PoolConfig {
        PoolConfig { min: number, max: number, ..self.pool() }
    }
}

/// Runs the script once. A run that was expected to be warm or cold and was not is none that may be counted.
pub(super) async fn run(runner: &dyn Runner, expected: Option<StartKind>) -> Result<(), MeasureError> {
    let script = Script {
        source: SOURCE.to_owned(),
        input: None,
        files: Vec::new(),
        packages: Vec::new(),
        time: TIME,
        cpu: TIME,
        deadline: Instant::now() + TIME,
    };
    let finished = runner.run(script).await.map_err(failed)?;
    let outcome = finished.outcome;
    if outcome.ending != Ending::Exited(0) || outcome.stdout.bytes != WRITTEN {
        let told = String::from_utf8_lossy(&outcome.stderr.bytes).trim().to_owned();
        return Err(MeasureError::Script(format!("the script ended with {:?}: {told}", outcome.ending)));
    }
    match expected {
        Some(expected) if expected != finished.start => Err(MeasureError::Script(format!(
            "a script started {}, not {}",
            finished.start.as_str(),
            expected.as_str()
        ))),
        _ => Ok(()),
    }
}

/// Calls the tool once.
pub(super) async fn call(tool: &ScriptTool) -> Result<(), MeasureError> {
    let arguments = serde_json::Map::from_iter([("script".to_owned(), SOURCE.into())]);
    let call = ToolCall {
        idempotency_key: None,
        tool: EXECUTE_PYTHON_SCRIPT.into(),
        caller: Arc::new(Caller::unknown()),
        call_id: "bench".into(),
        arguments: Arc::new(arguments),
        deadline: Instant::now() + 2 * TIME,
        limit: 2 * TIME,
        cancelled: CancellationToken::new(),
        trace: None,
        progress: None,
    };
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
