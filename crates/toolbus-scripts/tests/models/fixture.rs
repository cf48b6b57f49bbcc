//! The tool `execute_python_script` in the sandbox, and its result as a model reads it.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::OnceCell;
use toolbus_config::HumanDuration;
use toolbus_core::caller::{AgentName, Caller};
use toolbus_core::events::{ScriptEvents, ScriptRun};
use toolbus_core::failure::ToolFailure;
use toolbus_core::progress::{Progress, ProgressSink};
use toolbus_core::tool::{Tool, ToolCall, ToolOutput};
use toolbus_core::toolsets::{SessionLimits, SessionSet};
use toolbus_sandbox::{Level, Limits, Sandbox};
use toolbus_scripts::config::{LanguageConfig, PoolConfig, PoolMode, ScriptConfig};
use toolbus_scripts::interpreter::Interpreter;
use toolbus_scripts::packages::Installer;
use toolbus_scripts::queue::{Bounds, FairQueue};
use toolbus_scripts::requirement::AllowedPackages;
use toolbus_scripts::runner::language::LanguageRunner;
use toolbus_scripts::runner::sandbox::{SandboxRunner, SandboxSettings};
use toolbus_scripts::tool::{ScriptTool, Settings};
use toolbus_testing::patience::eventually;

/// The limits that a configuration without any has.
fn limits() -> Limits {
    ScriptConfig::default().limits()
}

/// Time of a call, which no script needs.
const TIME: Duration = Duration::from_secs(120);

/// Start of each script's interpreter.
#[derive(Default)]
pub(crate) struct Starts(Mutex<Vec<Option<&'static str>>>);

impl Starts {
    pub(crate) fn last(&self) -> Option<&'static str> {
        self.0.lock().last().copied().flatten()
    }
}

impl ScriptEvents for Starts {
    fn run(&self, run: &ScriptRun) {
        self.0.lock().push(run.start);
    }
}

/// Setup of the tool.
pub(crate) struct Setup {
    pub(crate) level: Level,
    pub(crate) limits: Limits,
    pub(crate) sessions: SessionLimits,
    pub(crate) mode: PoolMode,
    /// Where packages come from, and those that are allowed.
    pub(crate) packages: Option<(Arc<dyn Installer>, &'static [&'static str])>,
    pub(crate) starts: Arc<Starts>,
}

impl Setup {
    pub(crate) fn at(level: Level) -> Self {
        Self { level, limits: limits(), sessions: SESSIONS, mode: mode(), packages: None, starts: Arc::default() }
    }
}

/// Start mode of interpreters: the tests are run once more, as another program, with forked ones.
pub(crate) fn mode() -> PoolMode {
    if env!("CARGO_CRATE_NAME").ends_with("_forked") { PoolMode::Fork } else { PoolMode::Spawn }
}

/// The Python that every user can read.
async fn interpreter() -> Interpreter {
    static FOUND: OnceCell<Interpreter> = OnceCell::const_new();
    FOUND.get_or_init(async || Interpreter::find("/usr/bin/python3").await.unwrap()).await.clone()
}

/// The program that confines, which cargo builds beside the tests.
fn helper() -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let helper = tests.ancestors().nth(2).unwrap().join("examples/script_helper");
    assert!(helper.exists(), "build {} first: cargo build -p toolbus-scripts --examples", helper.display());
    helper
}

/// Sessions that are not ended by time.
const SESSIONS: SessionLimits =
    SessionLimits { idle_timeout: Duration::from_secs(600), max_lifetime: None, max_sessions: 4 };

/// The tool whose scripts run at exactly this level, and its sessions.
async fn tool(setup: Setup) -> (Tool, Arc<SessionSet>) {
    let Setup { level, limits, sessions, mode, packages, starts } = setup;
    let runner = SandboxSettings {
        interpreter: interpreter().await,
        limits,
        require: level,
        strongest: level,
        pool: PoolConfig { mode, ..PoolConfig::NONE },
    };
    let mut runner = SandboxRunner::start(runner, Sandbox::with_helper(helper(), level).unwrap()).await.unwrap();
    let mut allowed: &[&str] = &[];
    if let Some((installer, names)) = packages {
        runner = runner.with_installer(installer);
        allowed = names;
    }
    let settings = Settings {
        timeout: Duration::from_secs(30),
        max_timeout: Duration::from_secs(60),
        cpu_millis: 1000,
        limits,
        packages: AllowedPackages::parse(allowed).unwrap(),
        package_timeout: Duration::from_secs(30),
        sessions: Some(sessions),
        memory: None,
        language: None,
    };
    let queue = FairQueue::new(Bounds { running: 1, waiting_per_owner: 1, waiting: 1 });
    let tool = ScriptTool::new(Arc::new(runner), queue, starts, settings);
    let sessions = tool.sessions().unwrap();
    (tool.into_tool(), sessions)
}

/// The result of a call of the tool for another language, whose scripts this program runs.
pub(crate) async fn result_in(level: Level, name: &str, command: &str, arguments: &Value) -> String {
    let language = LanguageConfig { command: vec![command.to_owned()], file: "script".to_owned(), read: Vec::new() };
    let sandbox = Sandbox::with_helper(helper(), level).unwrap();
    let runner = LanguageRunner::new(&language, sandbox, limits()).unwrap();
    let settings = ScriptConfig::default().settings(HumanDuration::from_secs(60)).of_language(name);
    let settings = Settings { cpu_millis: 1000, ..settings };
    let queue = FairQueue::new(Bounds { running: 1, waiting_per_owner: 1, waiting: 1 });
    let tool = ScriptTool::new(Arc::new(runner), queue, Arc::<Starts>::default(), settings).into_tool();
    let call = call(&tool, Caller::unknown(), arguments, None);
    result_text(Arc::clone(&tool.executor).execute_boxed(call).await)
}

/// An agent that works step by step: its scripts find what those before have left.
pub(crate) struct Steps {
    tool: Tool,
    pub(crate) sessions: Arc<SessionSet>,
}

impl Steps {
    pub(crate) async fn at(level: Level) -> Self {
        Self::with(level, SESSIONS).await
    }

    pub(crate) async fn with(level: Level, sessions: SessionLimits) -> Self {
        Self::of(Setup { sessions, ..Setup::at(level) }).await
    }

    pub(crate) async fn of(setup: Setup) -> Self {
        let (tool, sessions) = tool(setup).await;
        Self { tool, sessions }
    }

    /// The result of a script of the agent `a` that is in no session.
    pub(crate) async fn single(&self, arguments: &Value) -> String {
        let caller = Caller { has_section: true, ..Caller::agent(AgentName::parse("a").unwrap()) };
        let call = call(&self.tool, caller, arguments, None);
        result_text(Arc::clone(&self.tool.executor).execute_boxed(call).await)
    }

    /// The result of a script in the session `s` of the agent `a`.
    pub(crate) async fn result(&self, script: &str) -> String {
        self.result_of(&json!({"script": script})).await
    }

    /// The same with further arguments.
    pub(crate) async fn result_of(&self, arguments: &Value) -> String {
        self.call(("a", Some("s")), arguments).await
    }

    /// The result in a session of an agent.
    pub(crate) async fn call(&self, of: (&str, Option<&str>), arguments: &Value) -> String {
        result_text(self.begin(of, arguments).await)
    }

    /// A call that runs once the future is polled.
    pub(crate) fn begin(
        &self,
        (agent, session): (&str, Option<&str>),
        arguments: &Value,
    ) -> BoxFuture<'static, Result<ToolOutput, ToolFailure>> {
        let caller = Caller::agent(AgentName::parse(agent).unwrap());
        let mut arguments = arguments.clone();
        arguments.as_object_mut().unwrap().insert("session".to_owned(), Value::Bool(true));
        let caller = Caller { session: session.map(Arc::from), has_section: true, ..caller };
        let call = call(&self.tool, caller, &arguments, None);
        Arc::clone(&self.tool.executor).execute_boxed(call)
    }
}

/// A call with these arguments, of which `key` is its idempotency key.
fn call(tool: &Tool, caller: Caller, arguments: &Value, progress: Option<ProgressSink>) -> ToolCall {
    let mut arguments = arguments.as_object().unwrap().clone();
    let idempotency_key = arguments.remove("key").map(|key| key.as_str().unwrap().into());
    let call = ToolCall::new(Arc::clone(&tool.descriptor.name), caller, arguments, TIME);
    ToolCall { idempotency_key, progress, ..call }
}

/// Reports while a script ran, and its result.
pub(crate) async fn watched(level: Level, script: &str) -> (Vec<Progress>, String) {
    let (tool, caller) = ready(level).await;
    let (sink, mut reports) = ProgressSink::new();
    let call = call(&tool, caller, &json!({"script": script}), Some(sink));
    let running = Arc::clone(&tool.executor).execute_boxed(call);
    let mut seen = Vec::new();
    let reading = async {
        while let Some(report) = reports.recv().await {
            seen.push(report);
        }
    };
    // The sink is dropped with the call.
    let (output, ()) = tokio::join!(running, reading);
    (seen, result_text(output))
}

fn result_text(result: Result<ToolOutput, ToolFailure>) -> String {
    match result {
        Ok(output) => shown(&output),
        Err(failure) => format!("{:?}: {}", failure.cause, failure.message),
    }
}

/// The result of a call with these arguments.
pub(crate) async fn result_at(level: Level, arguments: &Value) -> String {
    let (tool, caller) = ready(level).await;
    let call = call(&tool, caller, arguments, None);
    result_text(Arc::clone(&tool.executor).execute_boxed(call).await)
}

/// The tool, and its caller. Where interpreters are forked, one waits.
async fn ready(level: Level) -> (Tool, Caller) {
    let starts = Arc::<Starts>::default();
    let (tool, _) = tool(Setup { starts: Arc::clone(&starts), ..Setup::at(level) }).await;
    let caller = Caller { has_section: true, ..Caller::agent(AgentName::parse("a").unwrap()) };
    if mode() == PoolMode::Fork && level == Level::Full {
        let is_forked = async || {
            let call = call(&tool, caller.clone(), &json!({"script": ""}), None);
            result_text(Arc::clone(&tool.executor).execute_boxed(call).await);
            (starts.last() == Some("forked")).then_some(())
        };
        eventually("a script in a forked interpreter", is_forked).await;
    }
    (tool, caller)
}

/// The text with a mark for an error, and a line for each file.
fn shown(output: &ToolOutput) -> String {
    let mark = if output.is_error { "isError: " } else { "" };
    let mut shown = format!("{mark}{}", of_any_python(output.content.as_deref().unwrap()));
    for file in output.blocks.iter().skip(1) {
        let of = |text: &Option<String>| text.clone().unwrap_or_default();
        let content = file.text.clone().unwrap_or_else(|| format!("{:.16}…", of(&file.data)));
        write!(shown, "\n[{} {}: {}]", of(&file.uri), of(&file.mime_type), content.trim_end()).unwrap();
    }
    shown
}

/// A text whose tracebacks are the same with every version of Python: what they show of its library becomes
/// `[library]`, and the marks below lines are left out.
fn of_any_python(text: &str) -> String {
    let (mut lines, mut is_library): (Vec<&str>, bool) = (Vec::new(), false);
    for line in text.split_inclusive('\n') {
        if line.starts_with("  File \"") {
            let was_library = std::mem::replace(
                &mut is_library,
                line.starts_with("  File \"/usr/") || line.starts_with("  File \"<frozen"),
            );
            if is_library && !was_library {
                lines.push("  [library]\n");
            }
        } else if !line.starts_with("    ") {
            is_library = false;
        }
        let is_mark = line.starts_with("    ") && line.contains('^') && line.trim().chars().all(|c| "^~".contains(c));
        if !is_library && !is_mark {
            lines.push(line);
        }
    }
    lines.concat()
}

/// Whether this process may become other users.
pub(crate) fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}

/// The result at `full`.
pub(crate) async fn result(script: &str) -> String {
    result_at(Level::Full, &json!({"script": script})).await
}

/// The result of a script with input, at `full`.
pub(crate) async fn result_with(input: impl Into<Value>, script: &str) -> String {
    result_at(Level::Full, &json!({"script": script, "input_data": input.into()})).await
}

/// The result, which is the same at `full` and at `no-namespaces`.
pub(crate) async fn result_at_both(script: &str) -> String {
    let arguments = json!({"script": script});
    let (full, less) = tokio::join!(result_at(Level::Full, &arguments), result_at(Level::NoNamespaces, &arguments));
    assert_eq!(full, less, "full and no-namespaces");
    full
}
