//! An interpreter that runs the scripts of one session.

use std::time::Duration;

use toolbus_sandbox::{KeptProgram, Watcher};

use super::sandbox::{SCRIPT, job_of, run_failure};
use super::{Finished, RunFailure, Script, StartKind};

/// Runs one script after another, which find the variables and files of those before. Dropping it ends it.
#[derive(Debug)]
pub struct SessionInterpreter {
    program: KeptProgram,
    /// Time that its packages took; zero after the first script.
    installing: Duration,
    start: StartKind,
}

impl SessionInterpreter {
    pub(super) const fn new(program: KeptProgram, installing: Duration) -> Self {
        Self { program, installing, start: StartKind::Cold }
    }

    /// Runs a script, and returns itself if it is there for another one. Dropping the future ends it.
    ///
    /// # Errors
    ///
    /// If the script did not run, or nothing is known of it. A failure of the script is an outcome.
    pub async fn run(self, script: Script, watcher: Option<&Watcher>) -> (Result<Finished, RunFailure>, Option<Self>) {
        let Self { program, installing, start } = self;
        let (outcome, program) = program.run(job_of(script, SCRIPT), watcher).await;
        let kept = program.map(|program| Self { program, installing: Duration::ZERO, start: StartKind::Warm });
        (outcome.map(|outcome| Finished::new(outcome, start, installing)).map_err(run_failure), kept)
    }

    /// Whether the interpreter has ended since its last script.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.program.is_gone()
    }
}
