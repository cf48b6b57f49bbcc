//! Scripts in other languages than Python: each in the sandbox, in a program of its own that is started for it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, ready};
use toolbus_sandbox::{Limits, Plan, Sandbox, Watcher};

use super::sandbox::{ENVIRONMENT, job_of, names, run_failure};
use super::{Finished, RunFailure, Runner, RunnerStatus, Script, StartKind};
use crate::commands::{CommandError, paths};
use crate::config::LanguageConfig;
use crate::environment;
use crate::system;

/// Becomes the program, which gets the file of the script as its last argument. The first argument names that file, which is
/// in a folder beside the current one: programs show its path in their errors.
const IN_JOB: &str = r#"export TOOLBUS_INPUT_FILE="$TOOLBUS_JOB/input"; unset TOOLBUS_JOB; exec "$@" "../job/$0" <"$TOOLBUS_INPUT_FILE""#;
/// File that programs with OpenSSL, such as Node.js, end without, where it is there and may not be read.
const OF_OPENSSL: &str = "/etc/ssl/openssl.cnf";
/// Shell that runs `IN_JOB`.
const SHELL: &str = "/bin/sh";

/// Runs the scripts of one language in the sandbox.
pub struct LanguageRunner {
    sandbox: Sandbox,
    plan: Plan,
    file: String,
}

impl LanguageRunner {
    /// Checks that the language's program and what its scripts may read exist, without running anything.
    ///
    /// # Errors
    ///
    /// As for [`new`](Self::new).
    pub fn check(language: &LanguageConfig) -> Result<(), CommandError> {
        found(language).map(drop)
    }

    /// Finds the language's program, as a shell would.
    ///
    /// # Errors
    ///
    /// If there is no such program, it may not be executed, or what scripts may read does not exist.
    pub fn new(language: &LanguageConfig, sandbox: Sandbox, limits: Limits) -> Result<Self, CommandError> {
        let (program, further) = found(language)?;
        let args = language.command.get(1..).unwrap_or_default();
        let read = system::PROGRAMS.iter().map(PathBuf::from).chain([program.clone(), OF_OPENSSL.into()]);
        let read = read.chain(system::store_of(&program)).chain(further);
        let shell = ["-c", IN_JOB, &language.file].map(str::to_owned).into_iter();
        let plan = Plan {
            program: SHELL.into(),
            args: shell.chain([program.to_string_lossy().into_owned()]).chain(args.iter().cloned()).collect(),
            env: ENVIRONMENT.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
            stdin: Bytes::new(),
            read: system::existing(read),
            write: Vec::new(),
            network: false,
            metadata: true,
            waits: false,
            forks: false,
            owner: None,
            limits,
        };
        Ok(Self { sandbox, plan, file: language.file.clone() })
    }
}

/// The language's program, and what its scripts may read besides.
fn found(language: &LanguageConfig) -> Result<(PathBuf, Vec<PathBuf>), CommandError> {
    let here = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/"));
    let daemon: BTreeMap<_, _> = environment::inherited(std::env::vars_os()).collect();
    let name = language.command.first().map_or("", String::as_str);
    let program = environment::find(name, &here, &daemon)?;
    Ok((program, paths("read", &language.read, &here)?))
}

impl Runner for LanguageRunner {
    fn run_watched<'a>(
        &'a self,
        script: Script,
        watcher: Option<&'a Watcher>,
    ) -> BoxFuture<'a, Result<Finished, RunFailure>> {
        let mut plan = self.plan.clone();
        plan.env.extend(script.variables().map(|(name, value)| (name.to_owned(), value.to_owned())));
        let job = job_of(script, &self.file);
        let run = async move {
            let started = self.sandbox.start(&plan).await;
            let waiting = started.map_err(|error| RunFailure::NotStarted(error.to_string()))?;
            let outcome = waiting.run_watched(job, watcher).await.map_err(run_failure)?;
            Ok(Finished::new(outcome, StartKind::Cold, Duration::ZERO))
        };
        run.boxed()
    }

    fn status(&self) -> RunnerStatus {
        RunnerStatus {
            runner: "sandbox",
            level: Some(self.sandbox.level()),
            layers: names(&self.sandbox),
            python: None,
            warm: 0,
            mode: None,
        }
    }

    /// The sandbox belongs to the runner of Python's scripts, which closes it.
    fn shutdown(&self) -> BoxFuture<'_, ()> {
        ready(()).boxed()
    }
}
