//! Configured programs as tools.
//!
//! A command is a list of arguments with placeholders. It is run without a shell: whatever a caller sends stays within
//! its own argument.

mod check;
mod executor;
mod output;
mod template;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolbus_core::secret::Secret;
use toolbus_core::tool::{Effect, Tool};
use toolbus_sandbox::{Job, Level, Limits, Plan, Sandbox};

pub use self::check::CommandError;
pub use self::template::TemplateError;
use crate::runner::sandbox::{StartError, log_layers, reached};
use crate::system;

/// One command, as configured. Nothing is checked yet: see [`tool`].
#[derive(Debug, Clone)]
pub struct CommandSettings {
    /// Name of the tool.
    pub name: String,
    /// What it does, for a model.
    pub description: String,
    /// The program and its arguments. `{name}` in an argument stands for the caller's argument `name`; an element with an
    /// argument that is absent is left out. `{name...}` alone stands for every item of a list. `{{` and `}}` are braces.
    pub command: Vec<String>,
    /// JSON Schema of the arguments, as text; absent: any object, and no placeholders.
    pub parameters: Option<String>,
    /// What the program reads from its standard input.
    pub stdin: Stdin,
    /// What it prints.
    pub output: Output,
    /// Exit codes with which it has succeeded.
    pub success_codes: Vec<u8>,
    /// Whether it is confined.
    pub sandbox: bool,
    /// Longest run of one call; absent: the daemon's.
    pub timeout: Option<Duration>,
    /// What repeating a call would do.
    pub effect: Effect,
    /// Where it runs, which it may read; absent: in the sandbox an empty folder of its own, outside where the daemon runs.
    pub cwd: Option<PathBuf>,
    /// Variables beside those that every program gets. Values may be secrets.
    pub env: BTreeMap<String, Secret>,
    /// What it may read in the sandbox, beside the programs and libraries of the system.
    pub read: Vec<PathBuf>,
    /// What it may read and change in the sandbox.
    pub write: Vec<PathBuf>,
    /// Whether it may use the network in the sandbox.
    pub network: bool,
    /// Placeholders whose values may begin with `-` where an argument begins with them.
    pub allow_dash: Vec<String>,
    /// The most that it may use. Outside of the sandbox, only the bound of its output holds.
    pub limits: Limits,
    /// In the sandbox: thousandths of a core, on average.
    pub cpu_millis: u32,
}

/// What a command reads from its standard input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Stdin {
    /// Nothing.
    #[default]
    None,
    /// The arguments of the call, as a JSON object.
    Arguments,
}

/// What a command writes to its standard output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Output {
    /// Text.
    #[default]
    Text,
    /// One JSON value.
    Json,
}

impl CommandSettings {
    /// A confined command with defaults: no arguments, nothing on standard input, text on standard output, an effect that nobody declared.
    #[must_use]
    pub fn new(name: impl Into<String>, command: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            name: name.into(),
            description: String::new(),
            command: command.into_iter().map(Into::into).collect(),
            parameters: None,
            stdin: Stdin::default(),
            output: Output::default(),
            success_codes: vec![0],
            sandbox: true,
            timeout: None,
            effect: Effect::Undeclared,
            cwd: None,
            env: BTreeMap::new(),
            read: Vec::new(),
            write: Vec::new(),
            network: false,
            allow_dash: Vec::new(),
            limits: LIMITS,
            cpu_millis: 1000,
        }
    }
}

/// What is run to find out how much keeps commands in.
const PROBE: &str = "/bin/sh";
/// Time that it has.
const PROBE_TIME: Duration = Duration::from_secs(10);

/// What a command may use unless it is configured otherwise.
const LIMITS: Limits = Limits {
    memory: 512 * 1024 * 1024,
    disk: 64 * 1024 * 1024,
    files: 4096,
    file_size: 64 * 1024 * 1024,
    open_files: 256,
    processes: 64,
    output: 1024 * 1024,
    artifacts: 0,
};

/// Makes a tool of a command. `sandbox` is where confined ones run; without it they are refused.
///
/// # Errors
///
/// If the settings are mistaken, the program is missing, or `sandbox` is none and the command wants one.
pub fn tool(settings: CommandSettings, sandbox: Option<&Sandbox>) -> Result<Tool, CommandError> {
    let (descriptor, command) = check::command(settings, sandbox, std::env::vars_os())?;
    Ok(Tool::new(descriptor, command))
}

/// Makes tools of commands.
///
/// # Errors
///
/// Every mistake, with the position of the command that has it.
pub fn tools(
    commands: impl IntoIterator<Item = CommandSettings>,
    sandbox: Option<&Sandbox>,
) -> Result<Vec<Tool>, Vec<(usize, CommandError)>> {
    let (mut tools, mut mistakes) = (Vec::new(), Vec::new());
    for (position, settings) in commands.into_iter().enumerate() {
        match tool(settings, sandbox) {
            Ok(tool) => tools.push(tool),
            Err(mistake) => mistakes.push((position, mistake)),
        }
    }
    if mistakes.is_empty() { Ok(tools) } else { Err(mistakes) }
}

/// Finds out by trying how much keeps commands in, where no script has shown that.
///
/// # Errors
///
/// If this system supports no level, or less than `require`.
pub async fn sandbox(require: Level) -> Result<Sandbox, StartError> {
    let sandbox = Sandbox::new(Level::Full)?;
    let probed = sandbox.probe(&probe(), |_| Job { time: PROBE_TIME, cpu: PROBE_TIME, ..Job::default() }).await;
    let sandbox = sandbox.with(reached(probed, require)?);
    log_layers(&sandbox, "commands run in the sandbox");
    Ok(sandbox)
}

/// A program that does nothing.
fn probe() -> Plan {
    Plan {
        program: PROBE.into(),
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
