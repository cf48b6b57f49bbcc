//! Scripts and commands: what the configuration says of them, with what runs them.

use std::sync::Arc;

use futures_util::future::{BoxFuture, FutureExt as _, ready};
use tokio::sync::OnceCell;
use toolbus_core::events::{Discard, ScriptEvents};
use toolbus_core::tool::Tool;
use toolbus_core::toolsets::SessionSet;
use toolbus_core::working_memory::WorkingMemory;
use toolbus_sandbox::{Level, Sandbox, Watcher};
use toolbus_scripts::commands::{self, CommandConfig, CommandError};
use toolbus_scripts::config::RunnerKind;
use toolbus_scripts::interpreter::{Interpreter, InterpreterError};
use toolbus_scripts::packages::{Installer, PackageCache};
use toolbus_scripts::queue::{Bounds, FairQueue};
use toolbus_scripts::runner::language::LanguageRunner;
use toolbus_scripts::runner::local::LocalRunner;
use toolbus_scripts::runner::sandbox::{SandboxRunner, SandboxSettings, StartError};
use toolbus_scripts::runner::{Finished, RunFailure, Runner, RunnerStatus, Script};
use toolbus_scripts::tool::{ScriptMemory, ScriptTool, Settings};

use super::memory;
use crate::config::{Config, Role, ScriptConfig};
use crate::http::ScriptStatus;

/// What runs the scripts and commands of this process. Cheap to clone.
#[derive(Clone, Default)]
pub struct AppScripts {
    shared: Arc<ScriptsInner>,
}

#[derive(Default)]
struct ScriptsInner {
    /// Absent where this process runs no scripts.
    scripts: Option<ScriptRuns>,
    /// Where commands are kept in. Looked for when there is a command that needs it.
    sandbox: OnceCell<Sandbox>,
}

/// The tools that run scripts, with their parts.
struct ScriptRuns {
    /// That for Python first.
    tools: Vec<Tool>,
    runner: Arc<dyn Runner>,
    queue: FairQueue,
    sessions: Option<Arc<SessionSet>>,
}

/// Why scripts or commands cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum ScriptsError {
    /// There is no Python.
    #[error("script.python: {0}")]
    Interpreter(#[from] InterpreterError),
    /// There is no sandbox, or one that is too weak.
    #[error(transparent)]
    Sandbox(#[from] StartError),
    /// What was installed cannot be kept.
    #[error("script.packages.cache: the folder `{folder}` cannot be used: {error}")]
    Cache {
        /// The folder.
        folder: String,
        /// Why.
        error: std::io::Error,
    },
    /// No pods can be made for scripts.
    #[cfg(feature = "kubernetes")]
    #[error(transparent)]
    Cluster(#[from] toolbus_kubernetes::ClusterError),
    /// The runner is not part of this program, which a loaded configuration has been told.
    #[cfg(not(feature = "kubernetes"))]
    #[error("script.runner: this program is built without \"kubernetes\"")]
    NoKubernetes,
    /// A language whose scripts cannot be run.
    #[error("script.languages.{name}.{key}: {error}", key = error.key())]
    Language {
        /// Name of the language.
        name: String,
        /// What is wrong with it.
        error: CommandError,
    },
    /// A command that cannot work.
    #[error("command `{name}`: {error}")]
    Command {
        /// Name of its tool.
        name: String,
        /// What is wrong with it.
        error: CommandError,
    },
}

impl AppScripts {
    /// Gets ready to run what the configuration asks for, and finds out how well this system can keep it in.
    ///
    /// # Errors
    ///
    /// If no interpreter is found, or the sandbox supports less than the required level.
    pub async fn start(
        config: &Config,
        memory: Option<&Arc<dyn WorkingMemory>>,
        events: Arc<dyn ScriptEvents>,
    ) -> Result<Self, ScriptsError> {
        let sandbox = OnceCell::new();
        let scripts = match script_section(config) {
            Some(section) => {
                let settings = settings(section, config, memory);
                Some(ScriptRuns::start(section, config, settings, events, &sandbox).await?)
            }
            None => None,
        };
        Ok(Self { shared: Arc::new(ScriptsInner { scripts, sandbox }) })
    }

    /// The tools of scripts and commands, with their limits. Those of scripts are the ones of the start.
    ///
    /// # Errors
    ///
    /// If a command's settings are mistaken, or the sandbox supports less than the required level.
    pub async fn tools(&self, config: &Config) -> Result<Vec<Tool>, ScriptsError> {
        let mut tools: Vec<Tool> = self.shared.scripts.iter().flat_map(|scripts| scripts.tools.clone()).collect();
        for command in commands_of(config) {
            let sandbox = if command.sandbox { Some(self.sandbox(config).await?) } else { None };
            tools.push(made(&command.name, commands::tool(command, sandbox))?);
        }
        tools.iter_mut().for_each(|tool| config.limit(tool));
        Ok(tools)
    }

    /// The state of the runner; `None` where this process runs no scripts.
    #[must_use]
    pub fn status(&self) -> Option<ScriptStatus> {
        let ScriptRuns { runner, queue, sessions, .. } = self.shared.scripts.as_ref()?;
        let sessions = sessions.as_ref().map_or(0, |sessions| sessions.sessions());
        Some(ScriptStatus { runner: runner.status(), running: queue.running(), waiting: queue.waiting(), sessions })
    }

    /// The sessions that keep an interpreter, where this process has them.
    #[must_use]
    pub fn sessions(&self) -> Option<Arc<SessionSet>> {
        self.shared.scripts.as_ref()?.sessions.clone()
    }

    /// Ends what is kept ready.
    pub async fn shutdown(&self) {
        if let Some(scripts) = &self.shared.scripts {
            scripts.runner.shutdown().await;
        }
    }

    async fn sandbox(&self, config: &Config) -> Result<&Sandbox, StartError> {
        let require = config.script.as_ref().map(|script| script.sandbox).unwrap_or_default().require;
        self.shared.sandbox.get_or_try_init(|| commands::sandbox(require)).await
    }
}

impl ScriptRuns {
    async fn start(
        section: &ScriptConfig,
        config: &Config,
        settings: Settings,
        events: Arc<dyn ScriptEvents>,
        sandbox: &OnceCell<Sandbox>,
    ) -> Result<Self, ScriptsError> {
        let runner: Arc<dyn Runner> = match section.runner {
            RunnerKind::Kubernetes => in_pods(section).await?,
            RunnerKind::Local => {
                let interpreter = Interpreter::find(&section.python).await?;
                let installer = installer(section, &interpreter, None)?;
                Arc::new(LocalRunner::new(interpreter, section.limits(), installer))
            }
            RunnerKind::Sandbox => {
                let interpreter = Interpreter::find(&section.python).await?;
                let strongest = Sandbox::new(Level::Full).map_err(StartError::from)?;
                let settings = SandboxSettings {
                    interpreter,
                    limits: section.limits(),
                    require: section.sandbox.require,
                    strongest: Level::Full,
                    pool: section.pool.clone(),
                };
                let python = settings.interpreter.clone();
                let runner = SandboxRunner::start(settings, strongest).await?;
                // Commands and pip are kept in as scripts are.
                let _ = sandbox.set(runner.sandbox().clone());
                match installer(section, &python, Some(runner.sandbox()))? {
                    Some(installer) => Arc::new(runner.with_installer(installer)),
                    None => Arc::new(runner),
                }
            }
        };
        let queue = FairQueue::new(bounds(section, config));
        let others = section.languages.iter().map(|(name, language)| {
            let confined = sandbox.get().cloned().ok_or(CommandError::NoSandbox);
            let runner = confined.and_then(|sandbox| LanguageRunner::new(language, sandbox, section.limits()));
            let runner = runner.map_err(|error| ScriptsError::Language { name: name.clone(), error })?;
            let settings = settings.of_language(name);
            Ok(ScriptTool::new(Arc::new(runner), queue.clone(), Arc::clone(&events), settings).into_tool())
        });
        let others = others.collect::<Result<Vec<_>, ScriptsError>>()?;
        let python = ScriptTool::new(Arc::clone(&runner), queue.clone(), events, settings);
        let sessions = python.sessions();
        let tools = std::iter::once(python.into_tool()).chain(others).collect();
        Ok(Self { tools, runner, queue, sessions })
    }
}

/// Runs scripts in pods, whose image has the interpreter.
#[cfg(feature = "kubernetes")]
async fn in_pods(section: &ScriptConfig) -> Result<Arc<dyn Runner>, ScriptsError> {
    let template = toolbus_kubernetes::PodTemplate {
        image: section.kubernetes.image.clone(),
        python: section.python.clone(),
        cpu_millis: section.cpu.millis(),
        limits: section.limits(),
    };
    Ok(Arc::new(toolbus_kubernetes::KubernetesRunner::start(&section.kubernetes, template).await?))
}

#[cfg(not(feature = "kubernetes"))]
async fn in_pods(_: &ScriptConfig) -> Result<Arc<dyn Runner>, ScriptsError> {
    Err(ScriptsError::NoKubernetes)
}

/// Installs the packages that scripts may ask for, if there are any.
fn installer(
    section: &ScriptConfig,
    interpreter: &Interpreter,
    sandbox: Option<&Sandbox>,
) -> Result<Option<Arc<dyn Installer>>, ScriptsError> {
    if section.packages.allow.is_empty() {
        return Ok(None);
    }
    let folder = section.packages.cache.display().to_string();
    let cache = PackageCache::open(&section.packages, section.sessions.max_lifetime.get(), interpreter, sandbox)
        .map_err(|error| ScriptsError::Cache { folder, error })?;
    Ok(Some(Arc::new(cache)))
}

/// What is said of scripts, where this process runs them.
pub(super) fn script_section(config: &Config) -> Option<&ScriptConfig> {
    config.script.as_ref().filter(|_| config.roles().contains(&Role::Scripts))
}

/// The commands that this process runs.
fn commands_of(config: &Config) -> &[CommandConfig] {
    if config.roles().contains(&Role::Invoke) { &config.commands } else { &[] }
}

/// What the tool of scripts does. Entries that scripts leave in working memory are kept as long as others.
fn settings(section: &ScriptConfig, config: &Config, memory: Option<&Arc<dyn WorkingMemory>>) -> Settings {
    let memory = config.memory.as_ref().zip(memory);
    let memory =
        memory.map(|(section, memory)| ScriptMemory { memory: Arc::clone(memory), ttl: section.default_ttl.get() });
    Settings { memory, ..section.settings(config.invoke.max_timeout) }
}

/// The queue bounds what waits of one agent; what waits of all has a place to run already, as calls.
fn bounds(section: &ScriptConfig, config: &Config) -> Bounds {
    Bounds {
        running: section.in_flight(),
        waiting_per_owner: section.max_waiting,
        waiting: config.invoke.max_in_flight,
    }
}

fn made(name: &str, tool: Result<Tool, CommandError>) -> Result<Tool, ScriptsError> {
    tool.map_err(|error| ScriptsError::Command { name: name.to_owned(), error })
}

/// The tools of scripts and commands for those who only look: nothing is started, and they are not to be called.
///
/// # Errors
///
/// If a command's settings are mistaken.
pub(crate) fn described(config: &Config) -> Result<Vec<Tool>, ScriptsError> {
    let scripts = script_section(config).map(|section| {
        let level = (section.runner == RunnerKind::Sandbox).then_some(section.sandbox.require);
        let queue = FairQueue::new(bounds(section, config));
        let python = settings(section, config, memory::of_command(config).as_ref());
        let others = section.languages.keys().map(|name| python.of_language(name)).collect::<Vec<_>>();
        let tool = move |settings| {
            ScriptTool::new(Arc::new(Nowhere(level)), queue.clone(), Arc::new(Discard), settings).into_tool()
        };
        std::iter::once(python).chain(others).map(tool)
    });
    let commands = commands_of(config);
    let commands = commands.iter().map(|command| made(&command.name, commands::described(command)));
    let mut tools = scripts.into_iter().flatten().map(Ok).chain(commands).collect::<Result<Vec<_>, _>>()?;
    tools.iter_mut().for_each(|tool| config.limit(tool));
    Ok(tools)
}

/// Runs no script.
struct Nowhere(Option<Level>);

impl Runner for Nowhere {
    fn run_watched<'a>(&'a self, _: Script, _: Option<&'a Watcher>) -> BoxFuture<'a, Result<Finished, RunFailure>> {
        ready(Err(RunFailure::Unavailable("this process only describes the tool".to_owned()))).boxed()
    }

    fn status(&self) -> RunnerStatus {
        RunnerStatus { runner: "none", level: self.0, layers: Vec::new(), python: None, warm: 0, mode: None }
    }

    fn shutdown(&self) -> BoxFuture<'_, ()> {
        ready(()).boxed()
    }
}
