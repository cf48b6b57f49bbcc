//! Scripts of a caller's session, in one interpreter that keeps their variables and files.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Mutex;
use tokio::time::timeout_at;
use toolbus_core::Clock;
use toolbus_core::failure::{Cause, ToolFailure};
use toolbus_core::tool::{Executor, ToolCall, ToolOutput};
use toolbus_core::toolsets::{Instance, SessionFactory, SessionKey};
use toolbus_sandbox::Watcher;

use super::arguments::ScriptArguments;
use super::text::InSession;
use super::{RETRY_AFTER, ScriptToolInner};
use crate::requirement::Requirement;
use crate::runner::{RunFailure, Script, SessionInterpreter};

/// Note on a script that was lost with its session.
const LOST_WITH_SCRIPT: &str = "The session was lost while the script ran: its variables and files are gone, and how far \
     the script came is not known. The next script begins another session.";

/// Makes what runs the scripts of each session. Their interpreters are started by their first scripts.
pub(super) struct ScriptSessions(pub(super) Arc<ScriptToolInner>);

/// Runs the scripts of one session, one at a time.
pub(super) struct ScriptSession {
    tool: Arc<ScriptToolInner>,
    state: Mutex<SessionState>,
    is_over: AtomicBool,
}

#[derive(Default)]
struct SessionState {
    /// Absent before the first script, and when one has ended it or was cancelled.
    interpreter: Option<SessionInterpreter>,
    /// Packages of the script that started the interpreter.
    packages: Vec<Requirement>,
}

impl SessionFactory for ScriptSessions {
    type Instance = ScriptSession;

    async fn start(&self, _: SessionKey) -> Result<ScriptSession, ToolFailure> {
        let tool = Arc::clone(&self.0);
        Ok(ScriptSession { tool, state: Mutex::default(), is_over: AtomicBool::new(false) })
    }
}

impl Executor for ScriptSession {
    async fn execute(&self, call: ToolCall) -> Result<ToolOutput, ToolFailure> {
        let arguments = ScriptArguments::read(&call.arguments, &self.tool.settings)?;
        let begun = Clock::SYSTEM.now();
        let latest = super::latest_start(&call, arguments.time);
        let mut state = timeout_at(latest.into(), self.state.lock()).await.map_err(|_| {
            ToolFailure::new(Cause::Overloaded, "Another script of this session is still running. Wait for its end.")
                .with_retry_after(RETRY_AFTER)
        })?;
        let SessionState { interpreter, packages } = &mut *state;
        let is_first = interpreter.is_none();
        if is_first {
            packages.clone_from(&arguments.packages);
        } else if !arguments.packages.is_empty() && !is_same(packages, &arguments.packages) {
            return Err(other_packages(packages));
        }
        let (tool, taken) = (&self.tool, &mut *interpreter);
        let runs = |script: Script, watcher: Option<Watcher>| async move {
            if let Some(ready) = taken.take().filter(|ready| !ready.is_gone()) {
                let (result, kept) = ready.run(script.clone(), watcher.as_ref()).await;
                *taken = kept;
                match result {
                    Ok(finished) => {
                        let is_over = taken.is_none();
                        return Ok((finished, Some(InSession { is_new: false, is_lost: false, is_over })));
                    }
                    // It was killed a moment ago, and has nothing of the script.
                    Err(RunFailure::NotStarted(error)) => tracing::warn!(error, "a session was lost"),
                    Err(error) => return Err(error),
                }
            }
            let another = tool.runner.open(packages, script.deadline).await?;
            let (result, kept) = another.run(script, watcher.as_ref()).await;
            let finished = result?;
            *taken = kept;
            let in_session = InSession { is_new: true, is_lost: !is_first, is_over: taken.is_none() };
            Ok((finished, Some(in_session)))
        };
        let result = tool.run(&call, arguments, begun, runs).await.map_err(|failure| match failure.cause {
            Cause::Unavailable => ToolFailure { message: LOST_WITH_SCRIPT.to_owned(), ..failure },
            _ => failure,
        });
        self.is_over.store(interpreter.is_none(), Ordering::Relaxed);
        result
    }
}

impl Instance for ScriptSession {
    async fn stop(&self) {
        self.state.lock().await.interpreter = None;
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }
}

fn is_same(these: &[Requirement], those: &[Requirement]) -> bool {
    let sorted = |all: &[Requirement]| {
        let mut all = all.to_vec();
        all.sort();
        all
    };
    sorted(these) == sorted(those)
}

fn other_packages(packages: &[Requirement]) -> ToolFailure {
    let listed: Vec<String> = packages.iter().map(ToString::to_string).collect();
    let listed = if listed.is_empty() { "none".to_owned() } else { listed.join(", ") };
    ToolFailure::invalid(format!(
        "Packages of a session are those that its first script asked for: {listed}. Leave `pip_packages` out, or leave \
         `session` out to run this script by itself."
    ))
}
