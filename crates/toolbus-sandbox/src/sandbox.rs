//! Starts programs, on the daemon's side.

mod base;
mod cgroup;
mod run;
mod users;

use std::io;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;

use parking_lot::Mutex;
use serde::Serialize;
use tokio::io::AsyncWriteExt as _;
use tokio::net::UnixStream;
use tokio::process::{Child, ChildStderr, ChildStdout, Command};

use self::base::BaseFolder;
use self::cgroup::CgroupBase;
use self::users::UserPool;
use crate::helper::{SANDBOX, work_folder_of};
use crate::outcome::{Ending, Outcome};
use crate::plan::{Job, Layer, Layers, Level, Plan};
use crate::wire::{self, DaemonMessage, HelperMessage, ProgramSpec, SandboxSpec};

/// Runs programs in the same layers. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Sandbox {
    layers: Layers,
    shared: Arc<SandboxInner>,
}

#[derive(Debug)]
struct SandboxInner {
    helper: PathBuf,
    /// Dropped before `base`: it may have a folder there.
    spare: Mutex<Spare>,
    base: BaseFolder,
    /// The reason where there are none.
    cgroups: Result<CgroupBase, String>,
    users: Option<UserPool>,
}

/// A sandbox that is made before it is needed.
#[derive(Debug, Default)]
struct Spare {
    /// A sandbox, with the plan that it is for.
    sandbox: Option<(Layers, Plan, Helper)>,
    is_closed: bool,
}

/// Why a program did not run. The texts are for an operator.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// The operating system refused.
    #[error("cannot start a confined process: {0}")]
    System(#[from] io::Error),
    /// The confinement could not be made, or the program could not be started.
    #[error("the sandbox could not be made: {0}")]
    Confinement(String),
    /// The folder of all work folders is gone, and cannot be made again.
    #[error("the folder '{folder}' for work folders cannot be made: {error}; check TMPDIR")]
    WorkFolders {
        /// The folder.
        folder: String,
        /// What the system said.
        error: io::Error,
    },
    /// The confinement failed while the program ran.
    #[error("the sandbox failed: {0}")]
    Interrupted(String),
    /// The helper ended early.
    #[error("the sandbox's helper ended unexpectedly")]
    Lost,
}

impl SandboxError {
    /// Whether the program may have begun with its job.
    #[must_use]
    pub const fn has_begun(&self) -> bool {
        matches!(self, Self::Interrupted(_) | Self::Lost)
    }
}

/// A confined program that waits for its job. Dropping this value ends the program.
#[derive(Debug)]
pub struct Waiting {
    helper: Helper,
    plan: Plan,
    is_ready: bool,
    sandbox: Sandbox,
}

/// The watchdog process of one program.
#[derive(Debug)]
struct Helper {
    child: Child,
    socket: UnixStream,
    stdout: ChildStdout,
    stderr: ChildStderr,
}

/// What a system allows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probed {
    /// The layers in which the program ran; `None`: it did not run even without any.
    pub layers: Option<Layers>,
    /// Levels and layers that failed, each with the reason. For an operator.
    pub refused: Vec<(&'static str, String)>,
}

impl Sandbox {
    /// Uses this executable, whose `main` calls [`crate::take_over`], as the helper.
    ///
    /// # Errors
    ///
    /// If `/proc` is not mounted, or the folder for work folders cannot be created.
    pub fn new(level: Level) -> io::Result<Self> {
        // The running program, even after its file was replaced by a newer one.
        let helper = PathBuf::from("/proc/self/exe");
        helper.metadata()?;
        Self::with_helper(helper, level)
    }

    /// Uses another such executable as the helper.
    ///
    /// # Errors
    ///
    /// If the folder for work folders cannot be created.
    pub fn with_helper(helper: impl Into<PathBuf>, level: Level) -> io::Result<Self> {
        let base = BaseFolder::make()?;
        let shared = SandboxInner {
            helper: helper.into(),
            users: UserPool::of_this_process(&base.path().to_string_lossy()),
            base,
            cgroups: CgroupBase::make().map_err(|error| error.to_string()),
            spare: Mutex::default(),
        };
        Ok(Self { layers: Layers::of(level), shared: Arc::new(shared) })
    }

    /// Makes no cgroups, as if this process might not. What only they can count is refused then.
    #[must_use]
    pub fn without_cgroups(mut self) -> Self {
        if let Some(shared) = Arc::get_mut(&mut self.shared) {
            shared.cgroups = Err("switched off".to_owned());
        }
        self
    }

    /// Why memory is not limited, and CPU time not counted, by cgroups; `None` if they are. For an operator.
    #[must_use]
    pub fn cgroups_missing(&self) -> Option<&str> {
        self.shared.cgroups.as_ref().err().map(String::as_str)
    }

    /// The level at which programs run.
    #[must_use]
    pub const fn level(&self) -> Level {
        self.layers.level()
    }

    /// The layers in which programs run.
    #[must_use]
    pub const fn layers(&self) -> Layers {
        self.layers
    }

    /// The same sandbox with other layers.
    #[must_use]
    pub fn with(&self, layers: Layers) -> Self {
        Self { layers, shared: Arc::clone(&self.shared) }
    }

    /// Finds the strongest level, up to this one, at which a program does its job with exit code 0. The job may check what
    /// the level promises. Where no level is reached, each layer that works is on.
    pub async fn probe(&self, plan: &Plan, job: impl Fn(Level) -> Job) -> Probed {
        let mut refused = Vec::new();
        for level in [Level::Full, Level::NoNamespaces].into_iter().filter(|level| *level <= self.level()) {
            match self.with(Layers::of(level)).try_out(plan, job(level)).await {
                Ok(()) => return Probed { layers: Some(Layers::of(level)), refused },
                Err(why) => refused.push((level.as_str(), why)),
            }
        }
        let mut layers = Layers::of(Level::LimitsOnly);
        if let Err(why) = self.with(layers).try_out(plan, job(Level::LimitsOnly)).await {
            refused.push((Level::LimitsOnly.as_str(), why));
            return Probed { layers: None, refused };
        }
        for layer in Layer::ALL.into_iter().filter(|layer| self.layers.has(*layer)) {
            match self.with(layers.with(layer)).try_out(plan, job(Level::LimitsOnly)).await {
                Ok(()) => layers = layers.with(layer),
                Err(why) => refused.push((layer.as_str(), why)),
            }
        }
        Probed { layers: Some(layers), refused }
    }

    async fn try_out(&self, plan: &Plan, job: Job) -> Result<(), String> {
        let started = self.start(plan).await.map_err(|error| error.to_string())?;
        let outcome = started.run(job).await.map_err(|error| error.to_string())?;
        match outcome.ending {
            Ending::Exited(0) => Ok(()),
            ending => Err(format!("{ending:?}: {}", String::from_utf8_lossy(&outcome.stderr.bytes).trim())),
        }
    }

    /// Starts a program. For one that waits, a sandbox for the next is made when it has ended, and not while it needs the
    /// CPU.
    ///
    /// # Errors
    ///
    /// If it cannot be started.
    pub async fn start(&self, plan: &Plan) -> Result<Waiting, SandboxError> {
        let mut helper = match self.take_spare(plan) {
            Some(helper) => helper,
            None => self.shared.make(self.layers, plan).await?,
        };
        let Plan { program, args, env, .. } = plan.clone();
        helper.say(&DaemonMessage::Start(ProgramSpec { program, args, env })).await?;
        Ok(Waiting { helper, plan: plan.clone(), is_ready: !plan.waits, sandbox: self.clone() })
    }

    /// Ends the spare sandbox, and makes no more of them, at any level. Programs can still be started.
    pub fn close(&self) {
        let mut spare = self.shared.spare.lock();
        spare.is_closed = true;
        spare.sandbox = None;
    }

    fn take_spare(&self, plan: &Plan) -> Option<Helper> {
        let mut spare = self.shared.spare.lock();
        let (layers, of, mut helper) = spare.sandbox.take()?;
        let fits = layers == self.layers && of.fits(plan);
        if !fits && !plan.waits {
            // It may fit the next program.
            spare.sandbox = Some((layers, of, helper));
            return None;
        }
        // Its process may have been killed meanwhile, and its work folder removed by the system.
        let folder = helper.child.id().map(|pid| self.shared.base.path().join(work_folder_of(pid)));
        let has_folder = layers.namespaces || folder.is_some_and(|folder| folder.exists());
        (fits && has_folder && matches!(helper.child.try_wait(), Ok(None))).then_some(helper)
    }
}

impl SandboxInner {
    async fn make_spare(&self, layers: Layers, plan: Plan) {
        let is_wanted = |spare: &Spare| spare.sandbox.is_none() && !spare.is_closed;
        if !is_wanted(&self.spare.lock()) {
            return;
        }
        if let Ok(helper) = self.make(layers, &plan).await {
            let mut spare = self.spare.lock();
            // Another call may have made one meanwhile.
            if is_wanted(&spare) {
                spare.sandbox = Some((layers, plan, helper));
            }
        }
    }

    /// Makes a sandbox.
    async fn make(&self, layers: Layers, plan: &Plan) -> Result<Helper, SandboxError> {
        if !layers.namespaces {
            self.base
                .make_again()
                .map_err(|error| SandboxError::WorkFolders { folder: self.base.path().display().to_string(), error })?;
        }
        let mut helper = self.spawn()?;
        let order = SandboxSpec {
            plan: plan.clone(),
            layers,
            user: self.users.as_ref().map(|users| users.of(plan.owner.as_deref())),
            base: self.base.path().to_owned(),
            cgroup: self.cgroups.as_ref().ok().map(|base| base.spec().clone()),
        };
        helper.say(&order).await?;
        Ok(helper)
    }

    fn spawn(&self) -> io::Result<Helper> {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let mut command = Command::new(&self.helper);
        command.arg0("toolbus").arg(SANDBOX).env_clear().current_dir("/");
        command.stdin(Stdio::from(std::os::fd::OwnedFd::from(theirs))).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        match (child.stdout.take(), child.stderr.take()) {
            (Some(stdout), Some(stderr)) => Ok(Helper { child, socket: UnixStream::from_std(ours)?, stdout, stderr }),
            _ => Err(io::Error::other("the process has no pipes")),
        }
    }
}

impl Helper {
    async fn say(&mut self, message: &impl Serialize) -> Result<(), SandboxError> {
        self.socket.write_all(&wire::frame(message)?).await.map_err(|_| SandboxError::Lost)
    }
}

impl Waiting {
    /// Waits until the program reports that it is ready; returns at once if its plan does not wait.
    ///
    /// # Errors
    ///
    /// If it cannot be confined or started, or ends instead.
    pub async fn ready(&mut self) -> Result<(), SandboxError> {
        if self.is_ready {
            return Ok(());
        }
        match run::told(&mut self.helper.socket).await? {
            HelperMessage::Ready => {
                self.is_ready = true;
                Ok(())
            }
            HelperMessage::Failed { why, .. } => Err(SandboxError::Confinement(why)),
            HelperMessage::Ended(_) => Err(SandboxError::Lost),
        }
    }

    /// Whether it has ended while it waited.
    pub fn is_gone(&mut self) -> bool {
        !matches!(self.helper.child.try_wait(), Ok(None))
    }

    /// Runs the job, and returns when all its processes have ended. Dropping the future ends the program.
    ///
    /// # Errors
    ///
    /// If it could not be run. A failure of the program is an [`Outcome`].
    pub async fn run(self, job: Job) -> Result<Outcome, SandboxError> {
        let Self { helper, plan, sandbox, .. } = self;
        let outcome = run::run(helper, &plan.limits, job).await;
        if plan.waits {
            #[expect(
                clippy::disallowed_methods,
                reason = "starts one process, which `Sandbox::close` and its drop end"
            )]
            tokio::spawn(async move { sandbox.shared.make_spare(sandbox.layers, plan).await });
        }
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> Plan {
        Plan { waits: true, ..Plan::least() }
    }

    #[tokio::test]
    async fn nothing_is_made_ahead_any_more_once_it_is_closed() {
        // Blocks when its output is not read.
        let sandbox = Sandbox::with_helper("/usr/bin/yes", Level::NoNamespaces).unwrap();
        sandbox.shared.make_spare(sandbox.layers, plan()).await;
        assert!(sandbox.shared.spare.lock().sandbox.is_some());
        sandbox.with(Layers::of(Level::Full)).close();
        assert!(sandbox.shared.spare.lock().sandbox.is_none());
        sandbox.shared.make_spare(sandbox.layers, plan()).await;
        assert!(sandbox.shared.spare.lock().sandbox.is_none());
    }
}
