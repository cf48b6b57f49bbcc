//! One script after the other, in every way that there is.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::broker::load::Sample;
use tokio::time::sleep;
use toolbus_sandbox::Level;
use toolbus_scripts::config::PoolConfig;
use toolbus_scripts::runner::sandbox::SandboxRunner;
use toolbus_scripts::runner::{Runner, StartKind};

use super::programs::Program;
use super::subject::{self, Subject};
use crate::error::MeasureError;

/// Between two runs, on every side: calls of a model do not come at once after each other either, and what a runner makes
/// ready for the next one is not counted as a part of it.
const PAUSE: Duration = Duration::from_millis(20);
/// Interpreters that wait on the warm side.
const WARM: usize = 2;
/// Longest wait for interpreters to be ready.
const READY_TIME: Duration = Duration::from_secs(60);
/// Time between two checks whether interpreters are ready.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// A way to run a script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    /// No script: the interpreter alone.
    Plain,
    /// In the sandbox of others.
    Bwrap,
    /// In an interpreter that is started for it, at the level that this machine reaches.
    Cold,
    /// In an interpreter that is started for it, without namespaces.
    Weaker,
    /// In an interpreter that waits for it.
    Warm,
    /// In one that is forked for it, and waits.
    Forked,
    /// In an interpreter that is forked for it, with numpy and pandas, which it imports.
    Packages,
}

/// Parts that the sides need.
pub(super) struct Sides {
    plain: Arc<Program>,
    bwrap: Result<Program, String>,
    cold: Arc<SandboxRunner>,
    /// Absent: this machine reaches no more than that, so that it is measured already.
    weaker: Option<Result<SandboxRunner, String>>,
    warm: SandboxRunner,
    /// Forks interpreters, if this machine's level lets it.
    forked: Arc<SandboxRunner>,
    has_packages: bool,
    level: Level,
}

/// The names of those sides that are compared.
#[derive(Debug)]
pub(super) struct Names {
    pub(super) plain: &'static str,
    pub(super) cold: Vec<&'static str>,
    pub(super) warm: &'static str,
    pub(super) forked: &'static str,
    /// Absent where they are not measured.
    pub(super) packages: Option<&'static str>,
}

impl Sides {
    pub(super) async fn start(subject: &Subject) -> Result<Self, MeasureError> {
        let none = || PoolConfig::NONE;
        let cold = subject.runner(Level::Full, none()).await?;
        let level = cold.sandbox().level();
        let weaker = match level {
            Level::Full => Some(without_namespaces(subject).await),
            Level::NoNamespaces | Level::LimitsOnly => None,
        };
        let warm = subject.runner(level, subject.always_ready(WARM)).await?;
        let forked = Arc::new(subject.runner(Level::Full, subject.forking()).await?);
        let plain = Arc::new(Program::plain(&subject.interpreter));
        let bwrap = match Program::bwrap(&subject.interpreter, std::env::var_os("PATH").as_ref()) {
            None => Err("not installed".to_owned()),
            Some(program) => match program.run().await {
                Ok(()) => Ok(program),
                Err(error) => Err(reason(error)),
            },
        };
        let has_packages = subject.has_packages();
        Ok(Self { plain, bwrap, cold: Arc::new(cold), weaker, warm, forked, has_packages, level })
    }

    /// Sides that can be measured here.
    pub(super) fn all(&self) -> Vec<Side> {
        let is_there = |side: &Side| match side {
            Side::Bwrap => self.bwrap.is_ok(),
            Side::Weaker => matches!(self.weaker, Some(Ok(_))),
            Side::Plain | Side::Cold | Side::Warm => true,
            Side::Forked => self.level == Level::Full,
            Side::Packages => self.level == Level::Full && self.has_packages,
        };
        let all =
            [Side::Plain, Side::Bwrap, Side::Cold, Side::Weaker, Side::Warm, Side::Forked, Side::Packages].into_iter();
        all.filter(is_there).collect()
    }

    pub(super) const fn name(&self, side: Side) -> &'static str {
        match (side, self.level) {
            (Side::Plain, _) => "plain",
            (Side::Bwrap, _) => "bwrap",
            (Side::Cold, Level::Full) => "cold, full",
            (Side::Cold, Level::NoNamespaces) | (Side::Weaker, _) => "cold, no-namespaces",
            (Side::Cold, Level::LimitsOnly) => "cold, limits-only",
            (Side::Warm, _) => "warm",
            (Side::Forked, _) => "forked",
            (Side::Packages, _) => "forked, pandas",
        }
    }

    pub(super) fn names(&self) -> Names {
        let cold = self.all().into_iter().filter(|side| matches!(side, Side::Cold | Side::Weaker));
        Names {
            plain: self.name(Side::Plain),
            cold: cold.map(|side| self.name(side)).collect(),
            warm: self.name(Side::Warm),
            forked: self.name(Side::Forked),
            packages: self.has_packages.then(|| self.name(Side::Packages)),
        }
    }

    /// Sides that could not be measured here, and why.
    pub(super) fn absent(&self) -> Vec<(&'static str, String)> {
        let weaker = self.weaker.as_ref().and_then(|weaker| weaker.as_ref().err());
        let bwrap = self.bwrap.as_ref().err();
        let (level, folder) = (format!("this machine reaches '{}'", self.level), "no --packages were given".to_owned());
        let forked = (self.level < Level::Full).then_some(&level);
        let packages = if self.has_packages { forked } else { Some(&folder) };
        let all = [(Side::Bwrap, bwrap), (Side::Weaker, weaker), (Side::Forked, forked), (Side::Packages, packages)];
        all.into_iter().filter_map(|(side, why)| Some((self.name(side), why?.clone()))).collect()
    }

    pub(super) fn plain(&self) -> Arc<Program> {
        Arc::clone(&self.plain)
    }

    pub(super) fn forked(&self) -> Arc<SandboxRunner> {
        Arc::clone(&self.forked)
    }

    pub(super) fn cold(&self) -> Arc<SandboxRunner> {
        Arc::clone(&self.cold)
    }

    /// Runs one script after the other for about this long. Pauses are no part of the time that is reported.
    pub(super) async fn run(&self, side: Side, time: Duration) -> Result<Sample, MeasureError> {
        let started = Instant::now();
        let mut latencies = Vec::new();
        while started.elapsed() < time || latencies.is_empty() {
            latencies.push(self.once(side).await?);
        }
        let elapsed = latencies.iter().sum();
        Ok(Sample { latencies, elapsed })
    }

    async fn once(&self, side: Side) -> Result<Duration, MeasureError> {
        match side {
            Side::Warm => filled(&self.warm, WARM).await?,
            Side::Forked | Side::Packages => return self.once_forked(side == Side::Packages).await,
            _ => {}
        }
        sleep(PAUSE).await;
        let begun = Instant::now();
        match (side, &self.bwrap, &self.weaker) {
            (Side::Warm, ..) => subject::run(&self.warm, Some(StartKind::Warm)).await?,
            (Side::Cold, ..) => subject::run(&*self.cold, Some(StartKind::Cold)).await?,
            (Side::Weaker, _, Some(Ok(weaker))) => subject::run(weaker, Some(StartKind::Cold)).await?,
            (Side::Bwrap, Ok(program), _) => program.run().await?,
            _ => self.plain.run().await?,
        }
        Ok(begun.elapsed())
    }

    /// Scripts that start otherwise, while there is no interpreter to fork, do not count.
    async fn once_forked(&self, has_packages: bool) -> Result<Duration, MeasureError> {
        let started = Instant::now();
        loop {
            sleep(PAUSE).await;
            let begun = Instant::now();
            if subject::run_forked(&*self.forked, has_packages).await? {
                return Ok(begun.elapsed());
            }
            if started.elapsed() > READY_TIME {
                return Err(MeasureError::Script("no interpreter was forked in time".to_owned()));
            }
        }
    }

    /// Ends what waits.
    pub(super) async fn stop(self) {
        self.forked.shutdown().await;
        self.warm.shutdown().await;
    }
}

/// An interpreter in the home of the user root, for one, cannot be run by others, as scripts of a daemon of root are.
async fn without_namespaces(subject: &Subject) -> Result<SandboxRunner, String> {
    let weaker = subject.runner(Level::NoNamespaces, PoolConfig::NONE).await.map_err(reason)?;
    match weaker.sandbox().level() {
        Level::NoNamespaces => Ok(weaker),
        level => Err(format!("this machine reaches '{level}'")),
    }
}

/// Returns the reason in an error of a missing side.
fn reason(error: MeasureError) -> String {
    match error {
        MeasureError::Script(why) => why,
        other => other.to_string(),
    }
}

/// Waits until so many interpreters are ready.
pub(super) async fn filled(runner: &SandboxRunner, number: usize) -> Result<(), MeasureError> {
    let begun = Instant::now();
    while runner.status().warm < number {
        if begun.elapsed() > READY_TIME {
            return Err(MeasureError::Script("no interpreter got ready in time".to_owned()));
        }
        sleep(LOOK_EVERY).await;
    }
    Ok(())
}
