//! Scripts in the sandbox: each in an interpreter of its own, which was started for it or waits warm.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use tokio::time::timeout_at;
use toolbus_core::Clock;
use toolbus_sandbox::{
    Job, Layer, Layers, Level, Limits, Plan, Probed, Sandbox, SandboxError, Unplaced, Waiting, Watcher,
};

use super::bootstrap::{Bootstrap, WITHOUT_PACKAGES};
use super::pool::Pool;
use super::session::SessionInterpreter;
use super::templates::{TemplateKey, Templates};
use super::{Finished, RunFailure, Runner, RunnerStatus, Script, StartKind};
use crate::config::{PoolConfig, PoolMode};
use crate::interpreter::Interpreter;
use crate::packages::{Installer, PackageError};
use crate::requirement::Requirement;
use crate::system;

/// Runs scripts in the sandbox.
pub struct SandboxRunner {
    sandbox: Sandbox,
    plans: Plans,
    python: String,
    pool: Pool,
    /// Absent where interpreters are not forked.
    templates: Option<Templates>,
    installer: Option<Arc<dyn Installer>>,
}

/// Settings of the sandbox runner.
pub struct SandboxSettings {
    /// Interpreter that runs scripts.
    pub interpreter: Interpreter,
    /// The most that a script may use.
    pub limits: Limits,
    /// The least level that is required.
    pub require: Level,
    /// The most that is tried; what is there is used below it.
    pub strongest: Level,
    /// Interpreters that wait.
    pub pool: PoolConfig,
}

/// Reason why scripts cannot be run. The texts are for an operator.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The operating system refused.
    #[error("cannot make a sandbox: {0}")]
    System(#[from] std::io::Error),
    /// Less keeps a script in than is required.
    #[error(
        "the sandbox reaches {reached}, and script.sandbox.require asks for '{require}' ({why}); \
         allow what is missing, or require less",
        reached = level.map_or("no level at all".to_owned(), |level| format!("'{level}'"))
    )]
    TooWeak {
        /// Level that is reached.
        level: Option<Level>,
        /// Level that is required.
        require: Level,
        /// Reason why it is not more.
        why: String,
    },
}

impl SandboxRunner {
    /// Tries which level this system allows, and starts the pool of interpreters.
    ///
    /// # Errors
    ///
    /// If this system supports no level, or less than the settings require.
    pub async fn start(settings: SandboxSettings, sandbox: Sandbox) -> Result<Self, StartError> {
        let SandboxSettings { interpreter, limits, require, strongest, pool } = settings;
        let mut plans = Plans::new(&interpreter, limits, &pool.imports);
        let probed = sandbox.with(Layers::of(strongest)).probe(&plans.cold(None), check).await;
        let sandbox = sandbox.with(reached(probed, require)?);
        log_layers(&sandbox, "scripts run in the sandbox");
        plans.bootstrap = Bootstrap::compile(&sandbox, &plans.plan).await;
        let templates = match pool.mode {
            PoolMode::Fork if sandbox.can_fork() => Some(Templates::new(sandbox.clone())),
            PoolMode::Fork => {
                tracing::info!(level = %sandbox.level(), "no interpreters are forked at this level");
                None
            }
            PoolMode::Spawn => None,
        };
        let pool = Pool::start(pool, sandbox.clone(), plans.warm());
        Ok(Self { sandbox, plans, python: interpreter.version, pool, templates, installer: None })
    }

    /// The sandbox in which scripts run.
    #[must_use]
    pub const fn sandbox(&self) -> &Sandbox {
        &self.sandbox
    }

    /// The same, whose scripts can have packages.
    #[must_use]
    pub fn with_installer(mut self, installer: Arc<dyn Installer>) -> Self {
        self.installer = Some(installer);
        self
    }

    /// The folder of these packages, and the time that it took.
    async fn install(
        &self,
        packages: &[Requirement],
        deadline: Instant,
    ) -> Result<(Option<PathBuf>, Duration), PackageError> {
        let begun = Clock::SYSTEM.now();
        match (packages, &self.installer) {
            ([], _) => Ok((None, Duration::ZERO)),
            (packages, Some(installer)) => {
                let folder = installer.install(packages, deadline).await?;
                Ok((Some(folder), Clock::SYSTEM.since(begun)))
            }
            (_, None) => Err(PackageError::Refused("No packages can be installed here.".to_owned())),
        }
    }

    async fn open_session(
        &self,
        packages: &[Requirement],
        deadline: Instant,
    ) -> Result<SessionInterpreter, RunFailure> {
        let (packages, installing) = self.install(packages, deadline).await?;
        let started = self.sandbox.start(&self.plans.session(packages.as_deref())).await;
        let waiting = started.map_err(|error| RunFailure::NotStarted(error.to_string()))?;
        let ready = timeout_at(deadline.into(), waiting.keep()).await;
        let ready = ready.unwrap_or_else(|_| Err(SandboxError::Confinement("it was not ready in time".to_owned())));
        Ok(SessionInterpreter::new(ready.map_err(|error| RunFailure::NotStarted(error.to_string()))?, installing))
    }

    async fn run_in_sandbox(&self, script: Script, watcher: Option<&Watcher>) -> Result<Finished, RunFailure> {
        let (packages, installing) = self.install(&script.packages, script.deadline).await?;
        let mut ready = self.take(script.owner.clone(), &script.packages, packages.as_deref());
        let job = job_of(script, SCRIPT);
        let mut tries = TRIES;
        loop {
            tries -= 1;
            let (waiting, start) = match ready.take() {
                Some(ready) => ready,
                None => {
                    let started = self.sandbox.start(&self.plans.cold(packages.as_deref())).await;
                    // It has no script yet.
                    (started.map_err(|error| RunFailure::NotStarted(error.to_string()))?, StartKind::Cold)
                }
            };
            match waiting.run_watched(job.clone(), watcher).await {
                Err(error) if !matches!(error, SandboxError::Unplaced(_)) && !error.has_begun() && tries > 0 => {
                    tracing::warn!(%error, "an interpreter was lost before its script began; another one is started");
                }
                run => return Ok(Finished::new(run.map_err(run_failure)?, start, installing)),
            }
        }
    }
}

/// A script as the job of a program, which finds its text in a file of this name.
pub(super) fn job_of(script: Script, file: &str) -> Job {
    let (time, cpu) = (script.time_left(), script.cpu);
    let files = vec![
        (file.to_owned(), Bytes::from(script.source)),
        ("input".to_owned(), Bytes::from(script.input.unwrap_or_default())),
        // Also without a key: one of an earlier script of the session must not stay.
        ("key".to_owned(), Bytes::from(script.idempotency_key.as_deref().unwrap_or_default().to_owned())),
    ];
    Job { files, inputs: script.files, time, cpu, ..Job::default() }
}

/// Reason why there is no outcome.
pub(super) fn run_failure(error: SandboxError) -> RunFailure {
    match error {
        SandboxError::Unplaced(Unplaced::IsFolder(name)) => RunFailure::Refused(format!(
            "The session has a folder named `{name}`, which an input file of this name does not replace. Give the file \
             another name, or remove the folder first. The script did not run."
        )),
        SandboxError::Unplaced(Unplaced::NoRoom) => RunFailure::Refused(
            "The script and its input do not fit into its work folder, with the files that its session has there, if any. \
             Give it less, or remove files first. The script did not run; files that its input replaces may be gone."
                .to_owned(),
        ),
        error if error.has_begun() => RunFailure::Unavailable(error.to_string()),
        error => RunFailure::NotStarted(error.to_string()),
    }
}

impl SandboxRunner {
    /// An interpreter that was made before, if there is any.
    fn take(
        &self,
        owner: Option<Arc<str>>,
        requested: &[Requirement],
        packages: Option<&Path>,
    ) -> Option<(Waiting, StartKind)> {
        let forked = self.templates.as_ref().zip(owner).and_then(|(templates, owner)| {
            let key = TemplateKey { owner, packages: packages.map(Path::to_owned) };
            templates.take(&key, || self.plans.template(requested, packages))
        });
        match (forked, packages) {
            (Some(forked), _) => Some((forked, StartKind::Forked)),
            (None, None) => self.pool.take().map(|waiting| (waiting, StartKind::Warm)),
            (None, Some(_)) => None,
        }
    }
}

/// Tries which layers this system allows for scripts of an interpreter, up to those of `sandbox`. Nothing runs afterwards.
pub async fn probe(interpreter: &Interpreter, limits: Limits, sandbox: &Sandbox) -> Probed {
    sandbox.probe(&Plans::new(interpreter, limits, &[]).cold(None), check).await
}

/// Reason for which a system refuses layers, for an operator; empty if it refuses none.
#[must_use]
pub fn hindrance(probed: &Probed) -> String {
    // Several mostly fail for the same reason.
    let why = probed.refused.chunk_by(|(_, one), (_, other)| one == other).map(|same| {
        let what: Vec<&str> = same.iter().map(|(what, _)| *what).collect();
        format!("{}: {}", what.join(", "), same.first().map_or("", |(_, why)| why))
    });
    why.collect::<Vec<_>>().join("; ")
}

/// The layers that work, where their level is enough.
pub(crate) fn reached(probed: Probed, require: Level) -> Result<Layers, StartError> {
    let why = hindrance(&probed);
    match probed.layers {
        Some(layers) if layers.level() >= require => {
            if !why.is_empty() {
                tracing::warn!(level = %layers.level(), why, "the sandbox is weaker than it could be");
            }
            Ok(layers)
        }
        layers => Err(StartError::TooWeak { level: layers.map(Layers::level), require, why }),
    }
}

/// Logs what confines programs, and why memory and CPU time are not limited by cgroups, if they are not.
pub(crate) fn log_layers(sandbox: &Sandbox, what: &'static str) {
    let layers = names(sandbox).join(", ");
    tracing::info!(level = %sandbox.level(), layers, no_cgroups = sandbox.cgroups_missing(), "{what}");
}

/// The names of what confines programs.
pub(super) fn names(sandbox: &Sandbox) -> Vec<&'static str> {
    let layers = Layer::ALL.into_iter().filter(|layer| sandbox.layers().has(*layer)).map(Layer::as_str);
    layers.chain(sandbox.cgroups_missing().is_none().then_some("cgroups")).collect()
}

/// A job that succeeds if a level confines a script as it promises.
fn check(level: Level) -> Job {
    let source = if level == Level::LimitsOnly { "" } else { include_str!("check.py") };
    Job {
        files: [(SCRIPT, source), ("input", ""), ("key", "")].map(|(name, text)| (name.to_owned(), text.into())).into(),
        time: Duration::from_secs(10),
        cpu: Duration::from_secs(10),
        ..Job::default()
    }
}

impl Runner for SandboxRunner {
    fn run_watched<'a>(
        &'a self,
        script: Script,
        watcher: Option<&'a Watcher>,
    ) -> BoxFuture<'a, Result<Finished, RunFailure>> {
        self.run_in_sandbox(script, watcher).boxed()
    }

    fn has_sessions(&self) -> bool {
        true
    }

    fn open<'a>(
        &'a self,
        packages: &'a [Requirement],
        deadline: Instant,
    ) -> BoxFuture<'a, Result<SessionInterpreter, RunFailure>> {
        self.open_session(packages, deadline).boxed()
    }

    fn status(&self) -> RunnerStatus {
        RunnerStatus {
            runner: "sandbox",
            level: Some(self.sandbox.level()),
            layers: names(&self.sandbox),
            python: Some(self.python.clone()),
            warm: self.pool.ready() + self.templates.as_ref().map_or(0, Templates::ready),
            mode: Some(self.templates.as_ref().map_or(PoolMode::Spawn, |_| PoolMode::Fork).as_str()),
        }
    }

    fn shutdown(&self) -> BoxFuture<'_, ()> {
        self.pool.shutdown();
        if let Some(templates) = &self.templates {
            templates.shutdown();
        }
        self.sandbox.close().boxed()
    }
}

/// Most attempts to begin with a script: an interpreter that waits, and a sandbox that was made ahead, may have lost the
/// work folder meanwhile.
const TRIES: u32 = 3;
/// The file in which an interpreter finds its script.
pub(super) const SCRIPT: &str = "script.py";
/// Code that the interpreter of a session runs.
const SESSION_BOOTSTRAP: &str =
    concat!(include_str!("run.py"), "\n\n", include_str!("session.py"), "\n\nSession(sys.argv[1]).serve()\n");
/// Further paths for scripts that may start any program: those that `PATH` leads to.
const PROGRAMS: [&str; 3] = ["/bin", "/usr/bin", "/etc/alternatives"];
/// Paths that a script with packages may read besides: matplotlib calls `fc-list` for fonts, which complains without
/// these.
const FONTS: [&str; 2] = ["/etc/fonts", "/usr/share/fontconfig"];
/// The whole environment of a script, but for what names its own files.
pub(super) const ENVIRONMENT: [(&str, &str); 4] = [
    ("LANG", "C.UTF-8"),
    ("MPLBACKEND", "Agg"),
    ("PATH", "/usr/local/bin:/usr/bin:/bin"),
    // Its user has no name here but this.
    ("USER", "script"),
];

/// Plans for interpreters that run one script each.
#[derive(Debug)]
struct Plans {
    plan: Plan,
    fonts: Vec<PathBuf>,
    imports: String,
    bootstrap: Bootstrap,
}

impl Plans {
    /// For an interpreter that imports these modules before it waits warm.
    fn new(interpreter: &Interpreter, limits: Limits, imports: &[String]) -> Self {
        let programs = system::existing(PROGRAMS.map(PathBuf::from));
        let env = ENVIRONMENT.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let plan = Plan {
            program: interpreter.program.clone(),
            args: Vec::new(),
            env: BTreeMap::from(env),
            stdin: Bytes::new(),
            read: interpreter.read.iter().cloned().chain(programs).collect(),
            write: Vec::new(),
            network: false,
            // Of its own files, where it has a file system of its own.
            metadata: true,
            waits: true,
            forks: false,
            owner: None,
            limits,
        };
        let fonts = system::existing(FONTS.map(PathBuf::from));
        Self { plan, fonts, imports: imports.join(" "), bootstrap: Bootstrap::default() }
    }

    /// Plan of an interpreter that waits for a script.
    fn warm(&self) -> Plan {
        self.with(&self.imports, None)
    }

    /// Plan for a given script, with the folder of its packages.
    fn cold(&self, packages: Option<&Path>) -> Plan {
        self.with("", packages)
    }

    /// Plan for the scripts of a session, with the folder of their packages.
    fn session(&self, packages: Option<&Path>) -> Plan {
        let folder = packages.map(|folder| folder.to_string_lossy().into_owned()).unwrap_or_default();
        let args = WITHOUT_PACKAGES.into_iter().chain(["-c", SESSION_BOOTSTRAP, &folder]).map(str::to_owned).collect();
        Plan { args, ..self.reading(packages) }
    }

    /// Plan of a template that forks for each script of an agent, with the modules of the packages that it requests.
    fn template(&self, requested: &[Requirement], packages: Option<&Path>) -> Plan {
        let modules = requested.iter().map(|package| package.name().replace('-', "_"));
        let imports = std::iter::once(self.imports.clone()).chain(modules).collect::<Vec<_>>().join(" ");
        let folder = packages.map(|folder| folder.to_string_lossy().into_owned()).unwrap_or_default();
        let mut plan = self.reading(packages);
        Bootstrap::prepare_template(&mut plan, &imports, &folder);
        (plan.waits, plan.forks) = (false, true);
        plan
    }

    fn with(&self, imports: &str, packages: Option<&Path>) -> Plan {
        let mut plan = self.reading(packages);
        let folder = packages.map(|folder| folder.to_string_lossy().into_owned()).unwrap_or_default();
        self.bootstrap.prepare(&mut plan, imports, &folder);
        plan
    }

    /// Plan without a program, which may read a folder of packages.
    fn reading(&self, packages: Option<&Path>) -> Plan {
        let mut plan = self.plan.clone();
        if let Some(packages) = packages {
            plan.read.push(packages.to_owned());
            plan.read.extend(self.fonts.iter().cloned());
        }
        plan
    }
}
