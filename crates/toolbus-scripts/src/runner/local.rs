//! Runs scripts as the daemon runs, without keeping them in: for development.

mod folder;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use toolbus_sandbox::{Limits, Outcome};

use super::{Finished, RunFailure, Runner, RunnerStatus, Script, StartKind};
use crate::interpreter::Interpreter;
use crate::packages::{Installer, PackageError};
use crate::unconfined::{self, Run};
use folder::Folder;

/// The longest text that one variable of the environment can hold on Linux, with its name.
const MAX_VARIABLE: usize = 128 * 1024;

/// A script sees the files, the processes and the network of the daemon, with its rights. Of its limits only time, output and
/// the size of what comes back are kept. Processes that leave its process group outlive it.
///
/// What it gets is what it gets in the sandbox: the same variables, no others, and a work folder of its own.
pub struct LocalRunner {
    interpreter: Interpreter,
    limits: Limits,
    installer: Option<Arc<dyn Installer>>,
}

impl LocalRunner {
    /// Runs scripts with this Python. Without an installer there are no packages.
    #[must_use]
    pub fn new(interpreter: Interpreter, limits: Limits, installer: Option<Arc<dyn Installer>>) -> Self {
        Self { interpreter, limits, installer }
    }

    async fn run_script(&self, script: Script) -> Result<Finished, RunFailure> {
        let (packages, installing) = self.packages(&script).await?;
        let folder = Folder::new(&script).map_err(|error| unavailable("make a work folder", &error))?;
        let (args, env) = (["script.py".to_owned()], environment(&script, &folder, packages));
        let ended = unconfined::run(Run {
            program: &self.interpreter.program,
            args: &args,
            env: &env,
            cwd: Some(folder.path()),
            stdin: Bytes::new(),
            time: script.time_left(),
            output: self.limits.output,
        });
        let ended = ended.await.map_err(|error| unavailable("start Python", &error))?;
        let most = self.limits.artifacts;
        let collected = tokio::task::spawn_blocking(move || folder.collect(most)).await;
        let (artifacts, left_out) = collected.map_err(|error| unavailable("collect files", &error))?;
        Ok(Finished { outcome: Outcome { artifacts, left_out, ..ended }, start: StartKind::Cold, installing })
    }

    async fn packages(&self, script: &Script) -> Result<(Option<PathBuf>, Duration), RunFailure> {
        if script.packages.is_empty() {
            return Ok((None, Duration::ZERO));
        }
        let begun = Instant::now();
        let installer = self.installer.as_ref().ok_or_else(|| {
            PackageError::Refused("No packages can be installed here. Use the standard library.".to_owned())
        })?;
        let folder = installer.install(&script.packages, script.deadline).await?;
        Ok((Some(folder), begun.elapsed()))
    }
}

/// All variables of a script.
fn environment(script: &Script, folder: &Folder, packages: Option<PathBuf>) -> BTreeMap<OsString, OsString> {
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
    let mut environment = BTreeMap::from([
        ("PATH".into(), path),
        ("LANG".into(), "C.UTF-8".into()),
        ("PYTHONDONTWRITEBYTECODE".into(), "1".into()),
        ("HOME".into(), folder.path().into()),
        ("TMPDIR".into(), folder.temporary().into()),
        ("TOOLBUS_INPUT_FILE".into(), folder.input().into()),
        ("TOOLBUS_OUTPUT".into(), folder.output().into()),
    ]);
    let input = variable("ROCKBOT_INPUT", script.input.as_deref().unwrap_or_default());
    environment.extend(input.map(|input| ("ROCKBOT_INPUT".into(), input.into())));
    environment.extend(packages.map(|packages| ("PYTHONPATH".into(), packages.into())));
    environment
}

/// The text, if a variable can hold it: a script that asks for one that is not there fails, and does not work on half.
fn variable<'a>(name: &str, text: &'a str) -> Option<&'a str> {
    let fits = name.len() + "=".len() + text.len() < MAX_VARIABLE && !text.contains('\0');
    fits.then_some(text)
}

fn unavailable(what: &str, error: &dyn std::error::Error) -> RunFailure {
    RunFailure::Unavailable(format!("cannot {what}: {error}"))
}

impl Runner for LocalRunner {
    fn run(&self, script: Script) -> BoxFuture<'_, Result<Finished, RunFailure>> {
        self.run_script(script).boxed()
    }

    fn status(&self) -> RunnerStatus {
        RunnerStatus { runner: "local", level: None, python: Some(self.interpreter.version.clone()), warm: 0 }
    }

    fn shutdown(&self) -> BoxFuture<'_, ()> {
        std::future::ready(()).boxed()
    }
}

#[cfg(test)]
mod tests;
