//! Everything that can be known to be wrong before the first call.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use serde_json::Value;
use toolbus_core::tool::ToolDescriptor;
use toolbus_core::{Parameters, ParametersError};
use toolbus_sandbox::Sandbox;

use super::executor::{CommandConfinement, CommandExecutor};
use super::template::{CommandTemplate, PlaceholderKind, TemplateError};
use super::{CommandConfig, SOURCE, Stdin};
use crate::environment::{self, ProgramError};
use crate::system;

/// CPU time of a confined command, in thousandths of its time: a core, on average.
const CPU_MILLIS: u32 = 1000;
/// Variables that the sandbox sets itself.
const OF_THE_SANDBOX: [&str; 2] = ["HOME", "TMPDIR"];

/// Fault of a command's section.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// No name.
    #[error("a command needs a name")]
    Name,
    /// The command.
    #[error("the command {0}")]
    Template(#[from] TemplateError),
    /// There is no program to run.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// A placeholder that no argument can fill.
    #[error("the command has a placeholder `{{{0}}}`, but `parameters` has no property of that name")]
    Undeclared(String),
    /// A placeholder for a value of a property that is none.
    #[error("the command has a placeholder `{{{0}}}`, but its property is a list; write `{{{0}...}}`")]
    IsList(String),
    /// A placeholder for a list of a property that is none.
    #[error("the command has a placeholder `{{{0}...}}`, but its property is no list; write `{{{0}}}`")]
    NoList(String),
    /// A placeholder for what can be no argument.
    #[error("the command has a placeholder `{{{0}}}`, but its property is an object, which is no argument")]
    IsObject(String),
    /// A property that does nothing.
    #[error("`parameters` has a property `{0}`, but neither the command nor its standard input has it")]
    Unused(String),
    /// The schema of the arguments.
    #[error(transparent)]
    Parameters(#[from] ParametersError),
    /// `allow_dash` names no placeholder.
    #[error("`allow_dash` has `{0}`, which is no placeholder of the command")]
    AllowDash(String),
    /// The folder cannot be used.
    #[error("'{0}' does not exist or is no folder")]
    Folder(String),
    /// A path that the command may use does not exist.
    #[error("'{path}' does not exist")]
    Path {
        /// The key that has it.
        key: &'static str,
        /// The path.
        path: String,
    },
    /// A name or value that no variable can have.
    #[error("`{0}` cannot be set: neither a name with `=` nor a NUL character can")]
    Variable(String),
    /// A variable that is the sandbox's.
    #[error("`{0}` cannot be set: in the sandbox it leads to a folder of the command's own")]
    Reserved(String),
    /// A key that has a meaning only in the sandbox.
    #[error("without the sandbox the command may use everything; leave `{0}` out")]
    Unconfined(&'static str),
    /// There is no sandbox to confine the command.
    #[error("there is no sandbox to run the command in")]
    NoSandbox,
}

impl CommandError {
    /// The configuration key that is wrong.
    #[must_use]
    pub const fn key(&self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Template(_) | Self::Program(_) | Self::Undeclared(_) => "command",
            Self::IsList(_) | Self::NoList(_) | Self::IsObject(_) => "command",
            Self::Unused(_) | Self::Parameters(_) => "parameters",
            Self::AllowDash(_) => "allow_dash",
            Self::Folder(_) => "cwd",
            Self::Path { key, .. } | Self::Unconfined(key) => key,
            Self::Variable(_) | Self::Reserved(_) => "env",
            Self::NoSandbox => "sandbox",
        }
    }
}

/// Checks a section, and makes of it what runs and what is known of it. Without `sandbox`, a confined command runs nowhere.
pub(super) fn command(
    config: &CommandConfig,
    sandbox: Option<&Sandbox>,
    daemon: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<(ToolDescriptor, CommandExecutor), CommandError> {
    if config.name.trim().is_empty() {
        return Err(CommandError::Name);
    }
    let template = CommandTemplate::parse(&config.command)?;
    let parameters = Parameters::parse(config.parameters.as_deref())?;
    check_placeholders(&template, &parameters, config)?;
    let here = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/"));
    let cwd = config.cwd.as_deref().map(|cwd| folder(&here, cwd)).transpose()?;
    let environment = environment(config, daemon)?;
    let program = environment::find(&template.program, cwd.as_deref().unwrap_or(&here), &environment)?;
    let confinement = match config.sandbox {
        false => unconfined(config).map(|()| CommandConfinement::Unconfined)?,
        true => {
            let write = system::existing(paths("write", &config.write, &here)?);
            let mut read = readable(config, &here, &program, cwd.as_deref())?;
            // What may be changed may be read; named twice, it would be read-only.
            read.retain(|path| !write.iter().any(|write| path.starts_with(write)));
            match sandbox.cloned() {
                Some(sandbox) => CommandConfinement::Sandbox { sandbox, read, write, network: config.network },
                None => CommandConfinement::Nowhere,
            }
        }
    };

    let descriptor = ToolDescriptor {
        description: config.description.clone(),
        parameters: parameters.into_schema(),
        effect: config.effect.unwrap_or_default(),
        timeout: Some(config.timeout.get()),
        ..ToolDescriptor::new(&*config.name, SOURCE, "command")
    };
    let command = CommandExecutor {
        name: config.name.to_string(),
        program,
        template,
        allow_dash: config.allow_dash.clone(),
        stdin: config.stdin,
        output: config.output,
        success_codes: config.success_codes.clone(),
        timeout: config.timeout.get(),
        cwd,
        environment,
        limits: config.limits(),
        cpu_millis: CPU_MILLIS,
        confinement,
    };
    Ok((descriptor, command))
}

fn check_placeholders(
    template: &CommandTemplate,
    parameters: &Parameters,
    config: &CommandConfig,
) -> Result<(), CommandError> {
    for (name, used) in template.placeholders() {
        let property = parameters.property(name).ok_or_else(|| CommandError::Undeclared(name.to_owned()))?;
        match (used, property.get("type").and_then(Value::as_str)) {
            (_, Some("object")) => return Err(CommandError::IsObject(name.to_owned())),
            (PlaceholderKind::Value, Some("array")) => return Err(CommandError::IsList(name.to_owned())),
            (PlaceholderKind::List, Some(kind)) if kind != "array" => {
                return Err(CommandError::NoList(name.to_owned()));
            }
            _ => {}
        }
    }
    let is_used = |name: &str| template.placeholders().any(|(used, _)| used == name);
    if let Some(name) = config.allow_dash.iter().find(|name| !is_used(name)) {
        return Err(CommandError::AllowDash(name.clone()));
    }
    match parameters.names().find(|name| config.stdin == Stdin::None && !is_used(name)) {
        Some(name) => Err(CommandError::Unused(name.clone())),
        None => Ok(()),
    }
}

/// The whole environment of the program, but for what the sandbox adds.
fn environment(
    config: &CommandConfig,
    daemon: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<BTreeMap<OsString, OsString>, CommandError> {
    let is_reserved = |name: &str| config.sandbox && OF_THE_SANDBOX.contains(&name);
    for (name, value) in &config.env {
        if name.is_empty() || name.contains(['=', '\0']) || value.expose().contains('\0') {
            return Err(CommandError::Variable(name.escape_default().to_string()));
        }
        if is_reserved(name) {
            return Err(CommandError::Reserved(name.clone()));
        }
    }
    let inherited = environment::inherited(daemon).filter(|(name, _)| !name.to_str().is_some_and(is_reserved));
    Ok(inherited.chain(config.env.iter().map(|(name, value)| (name.into(), value.expose().into()))).collect())
}

/// Refuses keys that have a meaning only in the sandbox.
fn unconfined(config: &CommandConfig) -> Result<(), CommandError> {
    let given = [("read", !config.read.is_empty()), ("write", !config.write.is_empty()), ("network", config.network)];
    given.iter().find(|(_, is_given)| *is_given).map_or(Ok(()), |(key, _)| Err(CommandError::Unconfined(key)))
}

/// Everything that it may read.
fn readable(
    config: &CommandConfig,
    here: &Path,
    program: &Path,
    cwd: Option<&Path>,
) -> Result<Vec<PathBuf>, CommandError> {
    let own = paths("read", &config.read, here)?;
    let of_the_network = system::NETWORK.iter().filter(|_| config.network);
    let of_the_system = system::PROGRAMS.iter().chain(of_the_network).map(PathBuf::from);
    let of_the_program = [Some(program.to_owned()), system::store_of(program), cwd.map(Path::to_owned)];
    Ok(system::existing(of_the_system.chain(of_the_program.into_iter().flatten()).chain(own)))
}

pub(crate) fn paths(key: &'static str, paths: &[PathBuf], here: &Path) -> Result<Vec<PathBuf>, CommandError> {
    paths
        .iter()
        .map(|path| {
            let absolute = here.join(path);
            let missing = || CommandError::Path { key, path: path.display().to_string() };
            if absolute.exists() { Ok(absolute) } else { Err(missing()) }
        })
        .collect()
}

fn folder(here: &Path, cwd: &Path) -> Result<PathBuf, CommandError> {
    let absolute = here.join(cwd);
    if absolute.is_dir() { Ok(absolute) } else { Err(CommandError::Folder(cwd.display().to_string())) }
}
