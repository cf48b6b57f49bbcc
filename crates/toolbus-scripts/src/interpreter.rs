//! The Python that runs scripts: where it really is, and what it must be able to read.

mod places;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use serde::Deserialize;
use toolbus_sandbox::{Ending, Stop};

use crate::environment::{self, ProgramError};
use crate::unconfined::{self, Run};

/// Time that an interpreter has to say what it is.
const TIME: Duration = Duration::from_secs(10);
/// Bytes that it may say.
const MOST: u64 = 16 * 1024;
/// The oldest version that runs scripts.
const OLDEST: (u32, u32) = (3, 9);
/// Longest part of its error text that is shown, in characters.
const MAX_SHOWN: usize = 300;
/// What the names of variables begin with by which version managers choose.
const MANAGERS: [&str; 3] = ["PYENV_", "ASDF_", "MISE_"];

/// Says what the interpreter is. Understood by every version, so that one which is too old can be told so.
const QUESTION: &str = "\
import json, os, sys, sysconfig
print(json.dumps({
    'executable': sys.executable or '',
    'real': os.path.realpath(sys.executable or ''),
    'prefixes': [sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix],
    'library': os.path.dirname(os.path.realpath(os.__file__)),
    'version': list(sys.version_info[:3]),
    'abi': '%s-%s' % (sysconfig.get_config_var('SOABI') or sys.implementation.cache_tag, sysconfig.get_platform()),
}))
";

/// A Python interpreter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interpreter {
    /// The executable itself: an absolute path, behind every script and link that leads to it. In a virtual environment,
    /// the link there, by which the interpreter finds the environment's packages.
    pub program: PathBuf,
    /// What must be readable for it to run: absolute paths that exist.
    pub read: Vec<PathBuf>,
    /// Its version, as `3.11.7`.
    pub version: String,
    /// Which built packages it takes, and for which platform: part of the key of what is installed for it.
    pub abi: String,
}

/// Why a command is no interpreter for scripts. The texts are for an operator.
#[derive(Debug, thiserror::Error)]
pub enum InterpreterError {
    /// There is no program to run.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// The operating system refused.
    #[error("program '{command}' cannot be started: {error}")]
    System {
        /// What was to be run.
        command: String,
        /// Why it was not.
        error: io::Error,
    },
    /// It says nothing, or something else than a Python.
    #[error("program '{0}' does not answer as a Python does")]
    NotPython(String),
    /// Python, but too old.
    #[error("program '{command}' is Python {version}; scripts need 3.9 or newer")]
    TooOld {
        /// What was run.
        command: String,
        /// Its version.
        version: String,
    },
    /// It does not end.
    #[error("program '{0}' did not say which Python it is within {limit} s", limit = TIME.as_secs())]
    TimedOut(String),
    /// It says that it cannot.
    #[error("program '{command}' failed when it was asked which Python it is: {reason}")]
    Failed {
        /// What was run.
        command: String,
        /// Its own words, or how it ended.
        reason: String,
    },
}

/// What an interpreter says of itself.
#[derive(Debug, Deserialize)]
struct Said {
    executable: PathBuf,
    real: PathBuf,
    prefixes: Vec<PathBuf>,
    library: PathBuf,
    version: Vec<u32>,
    abi: String,
}

impl Interpreter {
    /// Finds the interpreter that a command leads to, by running it once. The command may be a script that chooses one.
    ///
    /// # Errors
    ///
    /// When there is none, or it is no Python that runs scripts.
    pub async fn find(command: &str) -> Result<Self, InterpreterError> {
        let env = environment(std::env::vars_os());
        let cwd = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/"));
        Self::ask(command, &cwd, &env, TIME).await
    }

    async fn ask(
        command: &str,
        cwd: &Path,
        env: &BTreeMap<OsString, OsString>,
        time: Duration,
    ) -> Result<Self, InterpreterError> {
        let program = environment::find(command, cwd, env)?;
        let args = ["-I", "-c", QUESTION].map(str::to_owned);
        let run = Run { program: &program, args: &args, env, cwd: Some(cwd), stdin: Bytes::new(), time, output: MOST };
        let command = command.to_owned();
        let outcome = match unconfined::run(run).await {
            Ok(outcome) => outcome,
            Err(error) => return Err(InterpreterError::System { command, error }),
        };
        let reason = match outcome.ending {
            Ending::Exited(0) => return read(&outcome.stdout.bytes, command),
            Ending::Stopped(Stop::Time) => return Err(InterpreterError::TimedOut(command)),
            Ending::Stopped(_) => return Err(InterpreterError::NotPython(command)),
            Ending::Exited(code) => format!("exit {code}"),
            Ending::Signalled(signal) => format!("signal {signal}"),
        };
        let reason = last_line(&outcome.stderr.bytes).map_or(reason.clone(), |line| format!("{reason}, {line}"));
        Err(InterpreterError::Failed { command, reason })
    }
}

/// What the command gets: what every program gets, and what version managers choose by.
fn environment(daemon: impl IntoIterator<Item = (OsString, OsString)>) -> BTreeMap<OsString, OsString> {
    let (managers, others): (Vec<_>, Vec<_>) = daemon.into_iter().partition(|(name, _)| {
        name.to_str().is_some_and(|name| MANAGERS.iter().any(|prefix| name.starts_with(prefix)))
    });
    environment::inherited(others).chain(managers).collect()
}

/// Reads what an interpreter said. Scripts that lead to it may have said something before.
fn read(stdout: &[u8], command: String) -> Result<Interpreter, InterpreterError> {
    let text = String::from_utf8_lossy(stdout);
    let line = text.lines().next_back().unwrap_or_default();
    let Some(said) = serde_json::from_str::<Said>(line).ok().filter(|said| said.executable.is_absolute()) else {
        return Err(InterpreterError::NotPython(command));
    };
    let version = said.version.iter().map(u32::to_string).collect::<Vec<_>>().join(".");
    let is_new = matches!(said.version.as_slice(), [major, minor, ..] if (*major, *minor) >= OLDEST);
    if !is_new {
        return Err(InterpreterError::TooOld { command, version });
    }
    let program = if places::is_virtual(&said.executable) { said.executable.clone() } else { said.real.clone() };
    let read = places::needed(&program, &said.library, &said.prefixes);
    Ok(Interpreter { program, read, version, abi: said.abi })
}

/// The last line with something in it, short enough to be shown.
fn last_line(stderr: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(stderr);
    let line = text.lines().map(str::trim).rfind(|line| !line.is_empty())?;
    Some(line.chars().filter(|c| !c.is_control()).take(MAX_SHOWN).collect())
}
