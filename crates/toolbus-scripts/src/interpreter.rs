//! The Python that runs scripts: where it really is, and what it must be able to read.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use serde::Deserialize;
use toolbus_core::text::shortened;
use toolbus_sandbox::{Ending, Stop};

use crate::environment::{self, ProgramError};
use crate::system;
use crate::unconfined::{self, UnconfinedRun};

/// Time that an interpreter has to report its version and paths.
const TIME: Duration = Duration::from_secs(10);
/// Largest report, in bytes.
const MOST: u64 = 16 * 1024;
/// The oldest version that runs scripts.
const OLDEST: (u32, u32) = (3, 9);
/// Longest part of its error text that is shown, in characters.
const MAX_SHOWN: usize = 300;
/// Prefixes of the variables by which version managers choose.
const MANAGERS: [&str; 3] = ["PYENV_", "ASDF_", "MISE_"];

/// Prints what the interpreter is. Every version understands it, so that a message can name one that is too old.
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
    /// Paths that must be readable for it to run: absolute, and they exist.
    pub read: Vec<PathBuf>,
    /// Version, as `3.11.7`.
    pub version: String,
    /// Which built packages it takes, and for which platform: part of the key of what is installed for it.
    pub abi: String,
}

/// Reason why a command is no interpreter for scripts. The texts are for an operator.
#[derive(Debug, thiserror::Error)]
pub enum InterpreterError {
    /// There is no program to run.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// The operating system refused.
    #[error("program '{command}' cannot be started: {error}")]
    System {
        /// Command that was to be run.
        command: String,
        /// The system's error.
        error: io::Error,
    },
    /// The program prints nothing, or is no Python.
    #[error("program '{0}' does not answer as a Python does")]
    NotPython(String),
    /// Python, but too old.
    #[error("program '{command}' is Python {version}; scripts need 3.9 or newer")]
    TooOld {
        /// Command that was run.
        command: String,
        /// Version of that Python.
        version: String,
    },
    /// The program does not end.
    #[error("program '{0}' did not say which Python it is within {limit} s", limit = TIME.as_secs())]
    TimedOut(String),
    /// The program reports a failure.
    #[error("program '{command}' failed when it was asked which Python it is: {reason}")]
    Failed {
        /// Command that was run.
        command: String,
        /// The program's own words, or how it ended.
        reason: String,
    },
}

/// Report of an interpreter on itself.
#[derive(Debug, Deserialize)]
struct InterpreterInfo {
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
    /// If no such program exists, or it is not a Python that can run scripts.
    pub async fn find(command: &str) -> Result<Self, InterpreterError> {
        let env = environment(std::env::vars_os());
        let cwd = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/"));
        Self::query(command, &cwd, &env, TIME).await
    }

    /// Checks that a command names a program, without running it.
    ///
    /// # Errors
    ///
    /// If no such program exists.
    pub fn check(command: &str) -> Result<(), ProgramError> {
        let cwd = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/"));
        environment::find(command, &cwd, &environment(std::env::vars_os())).map(drop)
    }

    async fn query(
        command: &str,
        cwd: &Path,
        env: &BTreeMap<OsString, OsString>,
        time: Duration,
    ) -> Result<Self, InterpreterError> {
        let program = environment::find(command, cwd, env)?;
        let args = ["-I", "-c", QUESTION].map(str::to_owned);
        let run = UnconfinedRun {
            program: &program,
            args: &args,
            env,
            cwd: Some(cwd),
            stdin: Bytes::new(),
            time,
            output: MOST,
            watcher: None,
        };
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

/// Environment of the command: that of every program, and the variables by which version managers choose.
fn environment(daemon: impl IntoIterator<Item = (OsString, OsString)>) -> BTreeMap<OsString, OsString> {
    let (managers, others): (Vec<_>, Vec<_>) = daemon.into_iter().partition(|(name, _)| {
        name.to_str().is_some_and(|name| MANAGERS.iter().any(|prefix| name.starts_with(prefix)))
    });
    environment::inherited(others).chain(managers).collect()
}

/// Reads what an interpreter printed. Scripts that start it may have printed something before.
fn read(stdout: &[u8], command: String) -> Result<Interpreter, InterpreterError> {
    let text = String::from_utf8_lossy(stdout);
    let line = text.lines().next_back().unwrap_or_default();
    let Some(info) = serde_json::from_str::<InterpreterInfo>(line).ok().filter(|info| info.executable.is_absolute())
    else {
        return Err(InterpreterError::NotPython(command));
    };
    let version = info.version.iter().map(u32::to_string).collect::<Vec<_>>().join(".");
    let is_new = matches!(info.version.as_slice(), [major, minor, ..] if (*major, *minor) >= OLDEST);
    if !is_new {
        return Err(InterpreterError::TooOld { command, version });
    }
    let program = if is_virtual(&info.executable) { info.executable.clone() } else { info.real.clone() };
    let read = needed(&program, &info.library, &info.prefixes);
    Ok(Interpreter { program, read, version, abi: info.abi })
}

/// The last line that is not empty, shortened.
fn last_line(stderr: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(stderr);
    let line = text.lines().map(str::trim).rfind(|line| !line.is_empty())?;
    let line: String = line.chars().filter(|c| !c.is_control()).collect();
    Some(shortened(&line, MAX_SHOWN).into_owned())
}

/// Entries of the folder that Python is installed in. The folder itself may be `/usr`, and hold much more.
const INSTALLED: [&str; 6] = ["bin", "lib", "lib64", "ssl", "share/zoneinfo", "pyvenv.cfg"];

/// Files that modules of the standard library read where they see that they exist, and fail if they cannot.
const OF_MODULES: [&str; 2] = ["/etc/mime.types", "/etc/httpd/mime.types"];

/// Whether an executable is that of a virtual environment.
fn is_virtual(executable: &Path) -> bool {
    executable.ancestors().skip(1).take(2).any(|folder| folder.join("pyvenv.cfg").is_file())
}

/// Paths that the interpreter needs, as far as they exist.
fn needed(program: &Path, library: &Path, prefixes: &[PathBuf]) -> Vec<PathBuf> {
    let installed = prefixes.iter().flat_map(|prefix| INSTALLED.map(|part| prefix.join(part)));
    let own = [program.to_owned(), library.to_owned()].into_iter().chain(system::store_of(library));
    system::existing(system::LIBRARIES.iter().chain(&OF_MODULES).map(PathBuf::from).chain(installed).chain(own))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    /// A folder with an executable shell script in it, as `python`.
    struct Shim(tempfile::TempDir);

    impl Shim {
        fn new(script: &str) -> Self {
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join("python");
            fs::write(&file, format!("#!/bin/sh\n{script}\n")).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
            Self(folder)
        }

        async fn query(&self, time: Duration) -> Result<Interpreter, InterpreterError> {
            let env = environment(std::env::vars_os());
            Interpreter::query("./python", self.0.path(), &env, time).await
        }

        async fn refused(&self) -> String {
            self.query(Duration::from_secs(60)).await.unwrap_err().to_string()
        }
    }

    /// Report of a Python of that version.
    fn reporting(version: &str) -> String {
        format!(
            r#"echo '{{"executable":"/usr/bin/env","real":"/usr/bin/env","prefixes":["/usr"],"library":"/usr/lib","version":[{version}],"abi":"x"}}'"#
        )
    }

    #[tokio::test]
    async fn the_interpreter_behind_a_script_is_found_with_what_it_reads() {
        let direct = Interpreter::find("python3").await.unwrap();
        assert!(direct.program.is_absolute() && direct.program.exists(), "{direct:?}");
        assert!(direct.version.starts_with("3.") && direct.abi.contains("linux"), "{direct:?}");
        assert!(direct.read.iter().all(|path| path.is_absolute() && path.exists() && path != Path::new("/")));
        assert!(direct.read.iter().any(|path| direct.program.starts_with(path)), "{direct:?}");

        let shim = Shim::new("echo choosing\nexec python3 \"$@\"");
        assert_eq!(shim.query(Duration::from_secs(60)).await.unwrap(), direct);
    }

    #[tokio::test]
    async fn the_interpreter_of_a_virtual_environment_stays_the_one_there() {
        let folder = tempfile::tempdir().unwrap();
        let venv = fs::canonicalize(folder.path()).unwrap().join("venv");
        let made = std::process::Command::new("python3").args(["-m", "venv", "--without-pip"]).arg(&venv).status();
        assert!(made.unwrap().success());
        let found = Interpreter::find(venv.join("bin/python").to_str().unwrap()).await.unwrap();
        assert_eq!(found.program, venv.join("bin/python"));
        for path in [venv.join("bin"), venv.join("lib"), fs::canonicalize(&found.program).unwrap()] {
            assert!(found.read.iter().any(|read| path.starts_with(read)), "{path:?}: {found:?}");
        }
    }

    #[tokio::test]
    async fn a_version_that_is_too_old_is_named() {
        assert_eq!(
            Shim::new(&reporting("3,8,18")).refused().await,
            "program './python' is Python 3.8.18; scripts need 3.9 or newer"
        );
        for version in ["3,9,0", "3,13,1", "4,0,0"] {
            assert!(Shim::new(&reporting(version)).query(Duration::from_secs(60)).await.is_ok(), "{version}");
        }
    }

    #[tokio::test]
    async fn a_program_that_is_no_python_is_refused_with_the_reason() {
        let table = [
            ("echo hello", "program './python' does not answer as a Python does"),
            ("true", "program './python' does not answer as a Python does"),
            ("while :; do echo hello; done", "program './python' does not answer as a Python does"),
            ("exit 3", "program './python' failed when it was asked which Python it is: exit 3"),
            (
                "echo 'version `3.99` is not installed' >&2; exit 127",
                "program './python' failed when it was asked which Python it is: exit 127, version `3.99` is not installed",
            ),
            ("kill -SEGV $$", "program './python' failed when it was asked which Python it is: signal 11"),
        ];
        for (script, expected) in table {
            assert_eq!(Shim::new(script).refused().await, expected, "{script}");
        }
        let error = Interpreter::find("no-such-python").await.unwrap_err();
        assert_eq!(error.to_string(), "program 'no-such-python' was not found; give its full path, or check PATH");
    }

    #[tokio::test]
    async fn an_interpreter_that_does_not_end_is_ended() {
        let error = Shim::new("sleep 1000").query(Duration::from_millis(200)).await.unwrap_err();
        assert_eq!(error.to_string(), "program './python' did not say which Python it is within 10 s");
    }

    #[test]
    fn version_managers_choose_as_they_do_for_the_daemon() {
        let daemon = ["PATH", "PYENV_VERSION", "PYENVX", "ASDF_DIR", "PYTHONPATH", "TOKEN"];
        let kept = environment(daemon.map(|name| (name.into(), "x".into())));
        let names: Vec<_> = kept.keys().map(|name| name.to_str().unwrap()).collect();
        assert_eq!(names, ["ASDF_DIR", "PATH", "PYENV_VERSION"]);
    }

    #[test]
    fn only_parts_of_the_folder_that_python_is_installed_in_are_needed() {
        let root = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(root.path()).unwrap();
        for folder in ["bin", "lib/python3.12", "share/doc", "private"] {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        fs::write(root.join("bin/python3.12"), "").unwrap();
        let needed = needed(&root.join("bin/python3.12"), &root.join("lib/python3.12"), &[root.clone(), root.clone()]);
        let own: Vec<_> = needed.iter().filter(|path| path.starts_with(&root)).collect();
        assert_eq!(own, [&root.join("bin"), &root.join("lib")]);
    }

    #[test]
    fn every_link_that_leads_to_the_program_is_needed() {
        let root = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(root.path()).unwrap();
        fs::create_dir_all(root.join("venv/bin")).unwrap();
        fs::write(root.join("venv/pyvenv.cfg"), "").unwrap();
        fs::write(root.join("real"), "").unwrap();
        symlink("real", root.join("alternative")).unwrap();
        symlink("../../alternative", root.join("venv/bin/python")).unwrap();
        let program = root.join("venv/bin/python");
        let needed = needed(&program, Path::new("/usr/lib"), &[root.join("venv")]);
        for path in ["alternative", "real", "venv/bin", "venv/pyvenv.cfg"] {
            assert!(needed.contains(&root.join(path)), "{path}: {needed:?}");
        }
        assert!(is_virtual(&program) && !is_virtual(&root.join("real")));
    }
}
