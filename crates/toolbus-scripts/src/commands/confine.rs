//! How well commands are kept in.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use toolbus_sandbox::{Job, Level, Plan, Sandbox};

use super::LIMITS;
use crate::runner::sandbox::{StartError, reached};
use crate::system;

/// What is run to find that out.
const PROGRAM: &str = "/bin/sh";
/// Time that it has.
const TIME: Duration = Duration::from_secs(10);

/// Finds out by trying how much keeps commands in, where no script has shown that.
///
/// # Errors
///
/// When that is less than `require`, or nothing.
pub async fn sandbox(require: Level) -> Result<Sandbox, StartError> {
    let sandbox = Sandbox::new(Level::Full)?;
    let probed = sandbox.probe(&plan(), |_| Job { time: TIME, cpu: TIME, ..Job::default() }).await;
    let level = reached(probed, require)?;
    tracing::info!(%level, "commands run in the sandbox");
    Ok(sandbox.at(level))
}

/// A program that does nothing.
fn plan() -> Plan {
    Plan {
        program: PROGRAM.into(),
        args: ["-c", ":"].map(str::to_owned).into(),
        env: BTreeMap::new(),
        read: system::existing(system::PROGRAMS.into_iter().map(PathBuf::from)),
        write: Vec::new(),
        network: false,
        metadata: false,
        waits: false,
        limits: LIMITS,
    }
}
