//! What is told of every run, for metrics.

use std::time::Duration;

use toolbus_sandbox::{Ending, Level, Stop};

use crate::runner::{Finished, RunFailure, StartKind};

/// Takes runs into metrics.
pub trait Observer: Send + Sync + 'static {
    /// A script had its turn, and that is over.
    fn run(&self, run: &Run);
}

/// One run of a script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// What ran it: `sandbox` or `local`.
    pub runner: &'static str,
    /// How much kept it in; absent where nothing did.
    pub level: Option<Level>,
    /// How it ended.
    pub end: End,
    /// The number of the signal that it ended by, if by one that nobody here sent.
    pub signal: Option<i32>,
    /// How long it waited for its turn.
    pub waited: Duration,
    /// From its turn to its end, packages included.
    pub duration: Duration,
    /// What is known of it only if it ran.
    pub ran: Option<Ran>,
}

/// What is known of a script that ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ran {
    /// Whether an interpreter was ready.
    pub start: StartKind,
    /// Time that its packages took.
    pub installing: Duration,
    /// Processor time; nought where nobody measured it.
    pub cpu: Duration,
    /// Most memory, in bytes; nought where nobody measured it.
    pub peak_memory: u64,
    /// Files that came back.
    pub artifacts: usize,
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum End {
    /// With exit code 0.
    Succeeded,
    /// With another exit code.
    Failed,
    /// By a signal.
    Signalled,
    /// It used too much of something.
    Stopped(Stop),
    /// Its packages could not be had, so that it did not run.
    Packages,
    /// The runner could not run it.
    Unavailable,
    /// Nobody waited for it any more.
    Cancelled,
}

impl End {
    /// Every one.
    pub const ALL: [Self; 12] = [
        Self::Succeeded,
        Self::Failed,
        Self::Signalled,
        Self::Stopped(Stop::Time),
        Self::Stopped(Stop::Cpu),
        Self::Stopped(Stop::Memory),
        Self::Stopped(Stop::Processes),
        Self::Stopped(Stop::Disk),
        Self::Stopped(Stop::Output),
        Self::Packages,
        Self::Unavailable,
        Self::Cancelled,
    ];

    /// Its name in metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Succeeded => "ok",
            Self::Failed => "failed",
            Self::Signalled => "signal",
            Self::Stopped(stop) => stop.as_str(),
            Self::Packages => "packages",
            Self::Unavailable => "unavailable",
            Self::Cancelled => "cancelled",
        }
    }
}

impl From<Ending> for End {
    fn from(ending: Ending) -> Self {
        match ending {
            Ending::Exited(0) => Self::Succeeded,
            Ending::Exited(_) => Self::Failed,
            Ending::Signalled(_) => Self::Signalled,
            Ending::Stopped(stop) => Self::Stopped(stop),
        }
    }
}

impl Run {
    /// Adds what became of it.
    pub(crate) fn ended(&mut self, result: &Result<Finished, RunFailure>) {
        match result {
            Ok(Finished { outcome, start, installing }) => {
                self.end = outcome.ending.into();
                self.signal = match outcome.ending {
                    Ending::Signalled(signal) => Some(signal),
                    _ => None,
                };
                self.ran = Some(Ran {
                    start: *start,
                    installing: *installing,
                    cpu: Duration::from_micros(outcome.usage.cpu_us),
                    peak_memory: outcome.usage.peak_memory,
                    artifacts: outcome.artifacts.len(),
                });
            }
            Err(RunFailure::Packages(_)) => self.end = End::Packages,
            Err(RunFailure::Unavailable(_)) => self.end = End::Unavailable,
        }
    }
}

/// Tells nobody.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Observer for Silent {
    fn run(&self, _: &Run) {}
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_end_is_listed_once_under_a_name_of_its_own() {
        assert_eq!(End::ALL.map(End::as_str).into_iter().collect::<HashSet<_>>().len(), End::ALL.len());
        assert!(Stop::ALL.iter().all(|stop| End::ALL.contains(&End::Stopped(*stop))));
    }
}
