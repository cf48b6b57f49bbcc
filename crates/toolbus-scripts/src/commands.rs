//! Configured programs as tools.
//!
//! A [`CommandConfig`] is one section of the configuration: a list of arguments with placeholders. It is run without a
//! shell: a caller's value stays within its own argument.

mod check;
mod config;
mod executor;
mod output;
mod template;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use toolbus_core::tool::Tool;
use toolbus_sandbox::{Job, Level, Plan, Probed, Sandbox};

pub use self::check::CommandError;
pub(crate) use self::check::paths;
pub use self::config::{CommandConfig, Output, Stdin};
use self::executor::CommandConfinement;
pub use self::template::TemplateError;
use crate::runner::sandbox::{StartError, log_layers, reached};
use crate::system;

/// The source of commands' tools.
pub const SOURCE: &str = "command";
/// Guide to the use of commands, for models.
pub const GUIDE: &str = include_str!("commands/guide.md");

/// Program that is run to find out which sandbox level commands reach.
const PROBE: &str = "/bin/sh";
/// Time that this program has.
const PROBE_TIME: Duration = Duration::from_secs(10);

/// Makes a tool of a command. `sandbox` is where confined ones run; without it they are refused.
///
/// # Errors
///
/// If the section is mistaken, the program is missing, or `sandbox` is none and the command wants one.
pub fn tool(config: &CommandConfig, sandbox: Option<&Sandbox>) -> Result<Tool, CommandError> {
    let (descriptor, command) = check::command(config, sandbox, std::env::vars_os())?;
    match command.confinement {
        CommandConfinement::Nowhere => Err(CommandError::NoSandbox),
        _ => Ok(Tool::new(descriptor, command)),
    }
}

/// Describes a command without running it: needs no sandbox, and calls of a confined command fail.
///
/// # Errors
///
/// If the section is mistaken, or the program is missing.
pub fn described(config: &CommandConfig) -> Result<Tool, CommandError> {
    let (descriptor, command) = check::command(config, None, std::env::vars_os())?;
    Ok(Tool::new(descriptor, command))
}

/// Finds out by trying how much keeps commands in, where no script has shown that.
///
/// # Errors
///
/// If this system supports no level, or less than `require`.
pub async fn sandbox(require: Level) -> Result<Sandbox, StartError> {
    let sandbox = Sandbox::new(Level::Full)?;
    let sandbox = sandbox.with(reached(try_sandbox(&sandbox).await, require)?);
    log_layers(&sandbox, "commands run in the sandbox");
    Ok(sandbox)
}

/// Tries which layers this system allows for commands, up to those of `sandbox`. Nothing runs afterwards.
pub async fn try_sandbox(sandbox: &Sandbox) -> Probed {
    sandbox.probe(&probe(), |_| Job { time: PROBE_TIME, cpu: PROBE_TIME, ..Job::default() }).await
}

/// A program that does nothing.
pub(crate) fn probe() -> Plan {
    Plan {
        program: PROBE.into(),
        args: ["-c", ":"].map(str::to_owned).into(),
        env: BTreeMap::new(),
        stdin: Bytes::new(),
        read: system::existing(system::PROGRAMS.into_iter().map(PathBuf::from)),
        write: Vec::new(),
        network: false,
        metadata: false,
        waits: false,
        forks: false,
        owner: None,
        limits: CommandConfig::new(PROBE, [PROBE]).limits(),
    }
}
