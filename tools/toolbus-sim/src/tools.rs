//! Tools that behave by their arguments, and a record of every run.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};
use toolbus_core::failure::{Cause, ToolFailure};
use toolbus_core::registry::Registry;
use toolbus_core::tool::{Effect, Executor, Tool, ToolCall, ToolDescriptor, ToolOutput};

use crate::context::ScheduleContext;

/// One tool of each effect.
pub(crate) const TOOLS: [(&str, Effect); 4] = [
    ("read", Effect::ReadOnly),
    ("put", Effect::Idempotent),
    ("pay", Effect::Effectful),
    ("other", Effect::Undeclared),
];

/// End of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// With a result.
    Result,
    /// With a result that is an error of the tool's own.
    OwnError,
    /// With a failure after its effect.
    Failure,
    /// With a refused connection, before any effect.
    Refused,
    /// With a panic.
    Panic,
    /// Never.
    Hang,
}

impl Ending {
    const ALL: [Self; 6] = [Self::Result, Self::OwnError, Self::Failure, Self::Refused, Self::Panic, Self::Hang];

    fn as_str(self) -> &'static str {
        match self {
            Self::Result => "result",
            Self::OwnError => "own-error",
            Self::Failure => "failure",
            Self::Refused => "refused",
            Self::Panic => "panic",
            Self::Hang => "hang",
        }
    }

    fn read(text: &str) -> Self {
        Self::ALL.into_iter().find(|ending| ending.as_str() == text).unwrap_or(Self::Result)
    }
}

/// The arguments of a run.
pub(crate) fn arguments(request: usize, time: Duration, ending: Ending) -> Value {
    json!({"request": request, "ms": u64::try_from(time.as_millis()).unwrap_or(u64::MAX), "end": ending.as_str()})
}

/// One run of a tool.
#[derive(Debug, Clone)]
pub(crate) struct ToolRun {
    /// The number of the request, by which it is compared with the plan.
    pub(crate) request: usize,
    /// The process in which it ran.
    pub(crate) process: Arc<str>,
    /// Whether the run has had its effect.
    pub(crate) has_acted: bool,
    /// The text of its result, once it has ended with one.
    pub(crate) result: Option<String>,
}

/// Every run of every tool.
#[derive(Default)]
pub(crate) struct ToolRuns(Mutex<Vec<ToolRun>>);

impl ToolRuns {
    /// The runs of one request, in their order.
    pub(crate) fn of(&self, request: usize) -> Vec<ToolRun> {
        self.0.lock().iter().filter(|run| run.request == request).cloned().collect()
    }

    fn begin(&self, execution: ToolRun) -> usize {
        let mut all = self.0.lock();
        all.push(execution);
        all.len() - 1
    }

    fn change(&self, run: usize, change: impl FnOnce(&mut ToolRun)) {
        if let Some(run) = self.0.lock().get_mut(run) {
            change(run);
        }
    }
}

/// The tools of one process.
#[derive(Clone)]
pub(crate) struct SimTools {
    pub(crate) context: Arc<ScheduleContext>,
    pub(crate) executions: Arc<ToolRuns>,
    pub(crate) process: Arc<str>,
    /// Whether the process lives. Nothing happens in one that is gone.
    pub(crate) alive: Arc<AtomicBool>,
}

impl SimTools {
    pub(crate) fn registry(&self) -> Registry {
        let registry = Registry::new();
        for (name, effect) in TOOLS {
            let descriptor = ToolDescriptor { effect, ..ToolDescriptor::new(name, "sim", "local") };
            // The names are valid, and differ.
            let _ = registry.register(Tool::new(descriptor, self.clone()));
        }
        registry
    }

    async fn wait(&self, time: Duration) {
        tokio::time::sleep(time).await;
        if !self.alive.load(Ordering::Relaxed) {
            std::future::pending().await
        }
    }
}

impl Executor for SimTools {
    async fn execute(&self, call: ToolCall) -> Result<ToolOutput, ToolFailure> {
        let number = |name: &str| call.arguments.get(name).and_then(Value::as_u64).unwrap_or_default();
        let request = usize::try_from(number("request")).unwrap_or_default();
        let half = Duration::from_millis(number("ms")) / 2;
        let ending = Ending::read(call.arguments.get("end").and_then(Value::as_str).unwrap_or_default());
        let process = Arc::clone(&self.process);
        let run = self.executions.begin(ToolRun { request, process, has_acted: false, result: None });
        self.context.note(&self.process, format_args!("{} of request {request} begins as run {run}", call.tool));
        self.wait(half).await;
        if ending == Ending::Refused {
            return Err(ToolFailure::new(Cause::ConnectFailed, "The backend could not be reached."));
        }
        self.executions.change(run, |run| run.has_acted = true);
        self.context.note(&self.process, format_args!("run {run} has its effect"));
        self.wait(half).await;
        // Each result is another, so that it identifies its run.
        let text = format!("result of run {run}");
        let result = match ending {
            Ending::Hang => std::future::pending().await,
            // Without the hook that writes of panics.
            Ending::Panic => std::panic::resume_unwind(Box::new("on purpose")),
            Ending::Failure => Err(ToolFailure::new(Cause::Failed, "The backend failed.")),
            Ending::OwnError => Ok(ToolOutput::error(text.clone())),
            Ending::Result | Ending::Refused => Ok(ToolOutput::text(text.clone())),
        };
        self.executions.change(run, |run| run.result = result.is_ok().then_some(text));
        self.context.note(&self.process, format_args!("run {run} ends"));
        result
    }
}
