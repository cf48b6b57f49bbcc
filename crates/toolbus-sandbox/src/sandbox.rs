//! Starts programs, on the daemon's side.

mod base;
mod cgroup;
mod run;
mod spawner;
mod template;
mod users;

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use serde::Serialize;
use tokio::io::AsyncWriteExt as _;

use self::base::BaseFolder;
use self::cgroup::CgroupBase;
pub use self::run::{Watcher, Written};
use self::spawner::{Helper, Spawner};
pub use self::template::Template;
use self::users::{UserInTurn, UserPool};
use crate::helper::name_of;
use crate::outcome::{Ending, Outcome, Unplaced};
use crate::plan::{Job, Layer, Layers, Level, Limits, Plan};
use crate::wire::{self, DaemonMessage, FilterOptions, HelperMessage, ProgramSpec, SandboxSpec};

/// Runs programs in the same layers. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Sandbox {
    layers: Layers,
    shared: Arc<SandboxInner>,
}

#[derive(Debug)]
struct SandboxInner {
    /// Dropped before `base`: it may have a folder there.
    spare: Mutex<Spare>,
    spawner: Spawner,
    /// Of the next sandbox.
    number: AtomicU64,
    base: BaseFolder,
    /// The reason where there are none.
    cgroups: Result<CgroupBase, String>,
    users: Option<UserPool>,
}

/// A sandbox that is made before it is needed.
#[derive(Debug, Default)]
struct Spare {
    /// A sandbox, with the plan that it is for.
    sandbox: Option<(Layers, Plan, Made)>,
    is_closed: bool,
}

/// Reason why a program did not run. The texts are for an operator.
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
        /// Error that the system reported.
        error: io::Error,
    },
    /// The job's files could not be put in place.
    #[error(transparent)]
    Unplaced(#[from] Unplaced),
    /// The confinement failed while the program ran.
    #[error("the sandbox failed: {0}")]
    Interrupted(String),
    /// The helper ended before it began.
    #[error("the sandbox's helper ended before it began")]
    NotMade,
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
    made: Made,
    plan: Plan,
    is_ready: bool,
    sandbox: Sandbox,
    /// Template that forked this program, and ends with the last of its forks.
    template: Option<Arc<Template>>,
}

/// A confined program that runs one job after another. Dropping this value ends the program.
#[derive(Debug)]
pub struct KeptProgram {
    made: Made,
    limits: Limits,
    /// As of [`Waiting`].
    _template: Option<Arc<Template>>,
}

/// A sandbox, and what came of it so far.
#[derive(Debug)]
struct Made {
    helper: Helper,
    number: u64,
    /// Whether its watchdog has reported that it has begun.
    has_watchdog: bool,
    /// The user of its program, which no other program has while this is held: a template is there as long as its forks.
    user: Option<UserInTurn>,
}

/// Layers that a system allows, and what it refuses.
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
            spawner: Spawner::new(helper.into()),
            number: AtomicU64::new(1),
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

    /// Reason why memory is not limited, and CPU time not counted, by cgroups; `None` if they are. For an operator.
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
        let mut made = match self.take_spare(plan) {
            Some(made) => made,
            None => self.shared.make(self.layers, plan).await?,
        };
        if made.start(plan).await.is_err() {
            // The spawner may have been killed before it made this one.
            made = self.shared.make(self.layers, plan).await?;
            made.start(plan).await?;
        }
        Ok(Waiting { made, plan: plan.clone(), is_ready: !plan.waits, sandbox: self.clone(), template: None })
    }

    /// Ends the spare sandbox, and makes no more of them, at any level. Waits until the helpers that are ending have removed
    /// their work folders, and removes what held these. Programs can still be started.
    pub async fn close(&self) {
        {
            let mut spare = self.shared.spare.lock();
            spare.is_closed = true;
            spare.sandbox = None;
        }
        self.shared.base.remove_when_empty().await;
    }

    fn take_spare(&self, plan: &Plan) -> Option<Made> {
        let mut spare = self.shared.spare.lock();
        let (layers, of, made) = spare.sandbox.take()?;
        let fits = layers == self.layers && of.fits(plan);
        if !fits && !plan.waits {
            // It may fit the next program.
            spare.sandbox = Some((layers, of, made));
            return None;
        }
        // Its processes may have been killed meanwhile, and its work folder removed by the system.
        let has_folder = layers.namespaces || self.shared.base.path().join(name_of(made.number)).exists();
        (fits && has_folder && !made.helper.is_gone()).then_some(made)
    }
}

impl SandboxInner {
    async fn make_spare(&self, layers: Layers, plan: Plan) {
        let is_wanted = |spare: &Spare| spare.sandbox.is_none() && !spare.is_closed;
        if !is_wanted(&self.spare.lock()) {
            return;
        }
        if let Ok(made) = self.make(layers, &plan).await {
            let mut spare = self.spare.lock();
            // Another call may have made one meanwhile.
            if is_wanted(&spare) {
                spare.sandbox = Some((layers, plan, made));
            }
        }
    }

    /// Makes a sandbox.
    async fn make(&self, layers: Layers, plan: &Plan) -> Result<Made, SandboxError> {
        if !layers.namespaces {
            self.base
                .make_again()
                .map_err(|error| SandboxError::WorkFolders { folder: self.base.path().display().to_string(), error })?;
        }
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        let (user, of_owner) = match (&self.users, plan.owner.as_deref()) {
            (None, _) => (None, None),
            (Some(users), _) if plan.forks => {
                let user = users.of_template();
                let none = || SandboxError::Confinement("no user is free for another template".to_owned());
                (Some(user.ok_or_else(none)?), None)
            }
            (Some(_), Some(owner)) => (None, Some(users::of_owner(owner))),
            (Some(users), None) => (Some(users.in_turn()), None),
        };
        let order = SandboxSpec {
            number,
            // The program itself follows.
            plan: Plan { args: Vec::new(), env: BTreeMap::new(), ..plan.clone() },
            layers,
            user: user.as_ref().map(|user| user.id).or(of_owner),
            base: self.base.path().to_owned(),
            cgroup: self.cgroups.as_ref().ok().map(|base| base.spec().clone()),
        };
        let filter = FilterOptions::of(plan, layers, order.user.is_some(), order.cgroup.is_some());
        let make = || {
            let helper = self.spawner.watchdog(filter)?;
            Ok::<_, SandboxError>(Made { helper, number, has_watchdog: false, user: None })
        };
        let mut made = make()?;
        if made.say(&order).await.is_err() {
            // The spawner was killed after it was asked.
            made = make()?;
            made.say(&order).await?;
        }
        made.user = user;
        Ok(made)
    }
}

impl Made {
    async fn say(&mut self, message: &impl Serialize) -> Result<(), SandboxError> {
        self.helper.socket.write_all(&wire::frame(message)?).await.map_err(|_| lost(self.has_watchdog))
    }

    /// Sends the program to start.
    async fn start(&mut self, plan: &Plan) -> Result<(), SandboxError> {
        let Plan { program, args, env, stdin, .. } = plan.clone();
        self.say(&DaemonMessage::Start(ProgramSpec { program, args, env, stdin: stdin.len() as u64 })).await?;
        self.helper.socket.write_all(&stdin).await.map_err(|_| lost(self.has_watchdog))
    }

    /// Waits until the program reports that it is ready.
    async fn wait_until_ready(&mut self) -> Result<(), SandboxError> {
        match self.told().await? {
            HelperMessage::Ready => Ok(()),
            HelperMessage::Failed { why, .. } => Err(SandboxError::Confinement(why)),
            _ => Err(SandboxError::Lost),
        }
    }

    /// The next message of the helper, but for that it has begun.
    async fn told(&mut self) -> Result<HelperMessage, SandboxError> {
        loop {
            match run::told(&mut self.helper.socket).await {
                Ok(HelperMessage::Made) => self.has_watchdog = true,
                Ok(message) => return Ok(message),
                Err(_) => return Err(lost(self.has_watchdog)),
            }
        }
    }
}

/// Reason why a helper says nothing more. `has_watchdog`: whether there was one.
const fn lost(has_watchdog: bool) -> SandboxError {
    if has_watchdog { SandboxError::Lost } else { SandboxError::NotMade }
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
        self.made.wait_until_ready().await?;
        self.is_ready = true;
        Ok(())
    }

    /// Checks whether the program has ended while it waited.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.made.helper.is_gone()
    }

    /// The program for one job after another, once it is ready.
    ///
    /// # Errors
    ///
    /// If it cannot be confined or started, or ends instead.
    pub async fn keep(mut self) -> Result<KeptProgram, SandboxError> {
        // Else its report that it is ready is taken for one that it is done.
        self.ready().await?;
        Ok(KeptProgram { made: self.made, limits: self.plan.limits, _template: self.template })
    }

    /// Runs the job, and returns when all its processes have ended. Dropping the future ends the program.
    ///
    /// # Errors
    ///
    /// If it could not be run. A failure of the program is an [`Outcome`].
    pub async fn run(self, job: Job) -> Result<Outcome, SandboxError> {
        self.run_watched(job, None).await
    }

    /// Runs the job as [`Self::run`] does. A watcher sees what the program writes meanwhile.
    ///
    /// # Errors
    ///
    /// If it could not be run. A failure of the program is an [`Outcome`].
    pub async fn run_watched(self, job: Job, watcher: Option<&Watcher>) -> Result<Outcome, SandboxError> {
        let Self { mut made, plan, sandbox, template, .. } = self;
        let job = Job { stays: false, ..job };
        let outcome = run::run(&mut made, &plan.limits, &job, watcher).await.map(|(outcome, _)| outcome);
        drop(made);
        if plan.waits && template.is_none() {
            #[expect(
                clippy::disallowed_methods,
                reason = "starts one process, which `Sandbox::close` and its drop end"
            )]
            tokio::spawn(async move { sandbox.shared.make_spare(sandbox.layers, plan).await });
        }
        outcome
    }
}

impl KeptProgram {
    /// Runs a job. Returns when the program is done with it and all processes that it started have ended, with the program
    /// if that waits for another job: otherwise it has ended, too. Dropping the future ends the program.
    ///
    /// Files come back that are new since the last job, or have changed.
    ///
    /// # Errors
    ///
    /// If it could not be run. A failure of the program is an [`Outcome`]. After [`SandboxError::Unplaced`] a program that
    /// has had a job before waits for another one.
    pub async fn run(mut self, job: Job, watcher: Option<&Watcher>) -> (Result<Outcome, SandboxError>, Option<Self>) {
        let job = Job { stays: true, ..job };
        match run::run(&mut self.made, &self.limits, &job, watcher).await {
            Ok((outcome, stays)) => (Ok(outcome), stays.then_some(self)),
            Err(error @ SandboxError::Unplaced(_)) => (Err(error), Some(self)),
            Err(error) => (Err(error), None),
        }
    }

    /// Checks whether the program has ended while it waited.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.made.helper.is_gone()
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
        let tests = std::env::current_exe().unwrap();
        let helper = tests.ancestors().nth(2).unwrap().join("examples/sandbox_helper");
        let sandbox = Sandbox::with_helper(helper, Level::NoNamespaces).unwrap();
        sandbox.shared.make_spare(sandbox.layers, plan()).await;
        assert!(sandbox.shared.spare.lock().sandbox.is_some());
        sandbox.with(Layers::of(Level::Full)).close().await;
        assert!(sandbox.shared.spare.lock().sandbox.is_none());
        sandbox.shared.make_spare(sandbox.layers, plan()).await;
        assert!(sandbox.shared.spare.lock().sandbox.is_none());
    }
}
