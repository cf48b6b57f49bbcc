//! Scripts: their configuration, with what runs them.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt as _, ready};
use tokio::sync::OnceCell;
use toolbus_agents::guides::GuideFor;
use toolbus_core::events::{Discard, ScriptEvents};
use toolbus_core::tool::Tool;
use toolbus_core::toolsets::SessionSet;
use toolbus_memory::working_memory::WorkingMemory;
use toolbus_sandbox::{Level, Sandbox, Watcher};
use toolbus_scripts::commands::CommandError;
use toolbus_scripts::config::RunnerKind;
use toolbus_scripts::interpreter::{Interpreter, InterpreterError};
use toolbus_scripts::packages::{Installer, PackageCache};
use toolbus_scripts::queue::{Bounds, FairQueue};
use toolbus_scripts::runner::language::LanguageRunner;
use toolbus_scripts::runner::local::LocalRunner;
use toolbus_scripts::runner::sandbox::{SandboxRunner, SandboxSettings, StartError};
use toolbus_scripts::runner::{Finished, RunFailure, Runner, RunnerStatus, Script};
use toolbus_scripts::tool::{GUIDE, SOURCE, ScriptMemory, ScriptTool, Settings};
use toolbus_telemetry::{Exporters, ScriptLoad};

use super::{Contributions, FamilyContext, FamilyError, FamilyGuide, FamilyPlan, Phase, ToolFamily};
use crate::config::{Config, Role, ScriptConfig};
use crate::http::ScriptStatus;

/// Scripts.
pub(super) struct ScriptFamily {
    /// Entries that scripts leave go there.
    memory: Option<Arc<dyn WorkingMemory>>,
    events: Arc<dyn ScriptEvents>,
    sandbox: Arc<OnceCell<Sandbox>>,
    /// The runner and its parts, once started; none where this process runs no scripts. Before, the tools are only
    /// described.
    runs: OnceCell<Option<Arc<ScriptRuns>>>,
}

/// The tools that run scripts, with their parts.
pub(super) struct ScriptRuns {
    /// That for Python first.
    tools: Vec<Tool>,
    runner: Arc<dyn Runner>,
    queue: FairQueue,
    sessions: Option<Arc<SessionSet>>,
}

/// Reason why scripts or commands cannot be run.
#[derive(Debug, thiserror::Error)]
pub(super) enum ScriptsError {
    /// There is no Python.
    #[error("script.python: {0}")]
    Interpreter(#[from] InterpreterError),
    /// The sandbox is missing or too weak.
    #[error(transparent)]
    Sandbox(#[from] StartError),
    /// Packages that were installed cannot be kept.
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
    /// The runner is not part of this program; [`Config::load`] reports that.
    #[cfg(not(feature = "kubernetes"))]
    #[error("script.runner: this program is built without \"kubernetes\"")]
    NoKubernetes,
    /// A language whose scripts cannot be run.
    #[error("script.languages.{name}.{key}: {error}", key = error.key())]
    Language {
        /// Name of the language.
        name: String,
        /// The mistake.
        error: CommandError,
    },
    /// A command that cannot work.
    #[error("command `{name}`: {error}")]
    Command {
        /// Name of its tool.
        name: String,
        /// The mistake.
        error: CommandError,
    },
}

impl ScriptFamily {
    pub(super) fn new(context: &FamilyContext<'_>) -> Self {
        let events: Arc<dyn ScriptEvents> = match context.exporters {
            Some(exporters) => Arc::new(exporters.scripts()),
            None => Arc::new(Discard),
        };
        let (memory, sandbox) = (context.memory.clone(), Arc::clone(&context.sandbox));
        Self { memory, events, sandbox, runs: OnceCell::new() }
    }

    fn runs(&self) -> Option<&Arc<ScriptRuns>> {
        self.runs.get().and_then(Option::as_ref)
    }
}

impl ToolFamily for ScriptFamily {
    fn name(&self) -> &'static str {
        "scripts"
    }

    fn phase(&self) -> Phase {
        Phase::Backends
    }

    /// Prepares the languages and packages of the configuration, and finds out how well this system can isolate
    /// scripts.
    fn prepare<'a>(&'a self, config: &'a Config) -> BoxFuture<'a, Result<(), FamilyError>> {
        let start = async || -> Result<_, ScriptsError> {
            let Some(section) = script_section(config) else { return Ok(None) };
            let (settings, events) = (settings(section, config, self.memory.as_ref()), Arc::clone(&self.events));
            Ok(Some(Arc::new(ScriptRuns::start(section, config, settings, events, &self.sandbox).await?)))
        };
        async move {
            self.runs.get_or_try_init(start).await?;
            Ok(())
        }
        .boxed()
    }

    /// The tools of the start.
    fn tools(&self, plan: &mut FamilyPlan<'_>) -> Result<Vec<Tool>, FamilyError> {
        let Some(runs) = self.runs.get() else {
            let section = script_section(plan.config);
            return Ok(section
                .map(|section| described(section, plan.config, self.memory.as_ref()))
                .unwrap_or_default());
        };
        plan.sessions.extend(runs.iter().filter_map(|runs| runs.sessions.clone()));
        Ok(runs.iter().flat_map(|runs| runs.tools.clone()).collect())
    }

    fn guides(&self) -> Vec<FamilyGuide> {
        vec![(GuideFor::Source(SOURCE), "script-tools", GUIDE)]
    }

    fn contribute(&self, to: &mut Contributions) {
        let runs = self.runs().cloned();
        to.scripts = Some(Box::new(move || runs.as_ref().map(|runs| runs.status())));
    }

    fn watch(&self, exporters: &Exporters) {
        // That of commands, too.
        let sandbox = Arc::clone(&self.sandbox);
        exporters.watch_sandbox(move || sandbox.get().map(|sandbox| sandbox.level().as_str()));
        let Some(runs) = self.runs().cloned() else { return };
        exporters.watch_scripts(move || {
            let ScriptStatus { runner, running, waiting, sessions } = runs.status();
            let number = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
            ScriptLoad {
                waiting: number(waiting),
                running: number(running),
                warm: number(runner.warm),
                sessions: number(sessions),
            }
        });
    }

    /// Ends the prepared runners.
    fn end(&self, _: Duration) -> BoxFuture<'_, ()> {
        async move {
            if let Some(runs) = self.runs() {
                runs.runner.shutdown().await;
            }
        }
        .boxed()
    }
}

impl ScriptRuns {
    fn status(&self) -> ScriptStatus {
        let Self { runner, queue, sessions, .. } = self;
        let sessions = sessions.as_ref().map_or(0, |sessions| sessions.sessions());
        ScriptStatus { runner: runner.status(), running: queue.running(), waiting: queue.waiting(), sessions }
    }

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
                // Commands and pip run in the sandbox as scripts do.
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

/// The installer of the packages that scripts may request, if there are any.
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

/// The section of scripts, where this process runs them.
pub(crate) fn script_section(config: &Config) -> Option<&ScriptConfig> {
    config.script.as_ref().filter(|_| config.roles().contains(&Role::Scripts))
}

/// The settings of the tool of scripts. Entries that scripts leave in working memory are kept as long as others.
fn settings(section: &ScriptConfig, config: &Config, memory: Option<&Arc<dyn WorkingMemory>>) -> Settings {
    let memory = config.memory.as_ref().zip(memory);
    let memory =
        memory.map(|(section, memory)| ScriptMemory { memory: Arc::clone(memory), ttl: section.default_ttl.get() });
    Settings { memory, ..section.settings(config.invoke.max_timeout) }
}

/// Bounds of running and waiting scripts. The queue bounds those of one agent; all of them hold slots of calls already.
fn bounds(section: &ScriptConfig, config: &Config) -> Bounds {
    Bounds {
        running: section.in_flight(),
        waiting_per_owner: section.max_waiting,
        waiting: config.invoke.max_in_flight,
    }
}

/// The tools without a runner.
fn described(section: &ScriptConfig, config: &Config, memory: Option<&Arc<dyn WorkingMemory>>) -> Vec<Tool> {
    let python = settings(section, config, memory);
    let level = (section.runner == RunnerKind::Sandbox).then_some(section.sandbox.require);
    let queue = FairQueue::new(bounds(section, config));
    let others = section.languages.keys().map(|name| python.of_language(name)).collect::<Vec<_>>();
    let tool =
        |settings| ScriptTool::new(Arc::new(Nowhere(level)), queue.clone(), Arc::new(Discard), settings).into_tool();
    std::iter::once(python).chain(others).map(tool).collect()
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
