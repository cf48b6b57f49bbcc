//! Running the calls of one command.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use toolbus_core::failure::{Cause, ToolFailure};
use toolbus_core::tool::{Executor, ToolCall, ToolOutput};
use toolbus_sandbox::{Job, Limits, Outcome, Plan, Sandbox, SandboxError, Watcher};

use super::template::CommandTemplate;
use super::{CommandError, Output, Stdin, output};
use crate::environment::KEY_VARIABLE;
use crate::progress::ProgressLines;
use crate::unconfined::{self, UnconfinedRun};

/// Most time that is kept for ending a program and reading what is left.
const MAX_MARGIN: Duration = Duration::from_millis(100);

/// Goes to the folder and becomes the program. What it is given are arguments, of which nothing is expanded again.
const IN_FOLDER: &str = r#"cd -- "$0" && exec "$@""#;
/// Shell that runs `IN_FOLDER`.
const SHELL: &str = "/bin/sh";

/// A command whose section has been checked.
#[derive(Debug)]
pub(super) struct CommandExecutor {
    pub(super) name: String,
    pub(super) program: PathBuf,
    pub(super) template: CommandTemplate,
    pub(super) allow_dash: Vec<String>,
    pub(super) stdin: Stdin,
    pub(super) output: Output,
    pub(super) success_codes: Vec<u8>,
    pub(super) timeout: Duration,
    pub(super) cwd: Option<PathBuf>,
    pub(super) environment: BTreeMap<OsString, OsString>,
    pub(super) limits: Limits,
    pub(super) cpu_millis: u32,
    pub(super) confinement: CommandConfinement,
}

/// Where a command runs.
#[derive(Debug)]
pub(super) enum CommandConfinement {
    /// Confined.
    Sandbox { sandbox: Sandbox, read: Vec<PathBuf>, write: Vec<PathBuf>, network: bool },
    /// As the daemon itself does.
    Unconfined,
    /// In no sandbox, because there is none: in a process that only describes it.
    Nowhere,
}

/// Command line of one call.
struct CommandLine {
    args: Vec<String>,
    stdin: Bytes,
    time: Duration,
    environment: BTreeMap<OsString, OsString>,
}

impl Executor for CommandExecutor {
    async fn execute(&self, call: ToolCall) -> Result<ToolOutput, ToolFailure> {
        let filled = self.fill(&call)?;
        let limit = self.timeout.min(call.limit);
        let watcher = call.progress.clone().map(ProgressLines::watcher);
        let watcher = watcher.as_ref();
        let outcome = match &self.confinement {
            CommandConfinement::Unconfined => self.run_unconfined(filled, watcher).await,
            CommandConfinement::Sandbox { sandbox, read, write, network } => {
                self.run_confined(sandbox, (read, write, *network), filled, watcher).await
            }
            CommandConfinement::Nowhere => Err((Cause::ConnectFailed, CommandError::NoSandbox.to_string())),
        };
        let unavailable =
            |(cause, detail)| ToolFailure::new(cause, "The command cannot be run now.").with_detail(detail);
        output::read(&outcome.map_err(unavailable)?, self.output, &self.success_codes, limit, &self.limits)
    }
}

impl CommandExecutor {
    fn fill(&self, call: &ToolCall) -> Result<CommandLine, ToolFailure> {
        let args = self.template.fill(&call.arguments, &self.allow_dash);
        let args = args.map_err(|error| ToolFailure::invalid(error.to_string()))?;
        let stdin = match self.stdin {
            Stdin::None => Bytes::new(),
            Stdin::Arguments => serde_json::to_vec(&*call.arguments).unwrap_or_default().into(),
        };
        let left = call.remaining();
        let time = left.saturating_sub((left / 20).min(MAX_MARGIN)).min(self.timeout);
        let mut environment = self.environment.clone();
        environment.extend(call.idempotency_key.as_ref().map(|key| (KEY_VARIABLE.into(), OsString::from(&**key))));
        Ok(CommandLine { args, stdin, time, environment })
    }

    async fn run_unconfined(
        &self,
        command: CommandLine,
        watcher: Option<&Watcher>,
    ) -> Result<Outcome, (Cause, String)> {
        let CommandLine { args, stdin, time, environment: env } = command;
        let (program, env, cwd, output) = (&self.program, &env, self.cwd.as_deref(), self.limits.output);
        let run = unconfined::run(UnconfinedRun { program, args: &args, env, cwd, stdin, time, output, watcher });
        run.await.map_err(|error| (Cause::ConnectFailed, format!("cannot start '{}': {error}", program.display())))
    }

    async fn run_confined(
        &self,
        sandbox: &Sandbox,
        (read, write, network): (&[PathBuf], &[PathBuf], bool),
        CommandLine { args, stdin, time, environment }: CommandLine,
        watcher: Option<&Watcher>,
    ) -> Result<Outcome, (Cause, String)> {
        let (program, args) = match &self.cwd {
            None => (self.program.clone(), args),
            Some(cwd) => (PathBuf::from(SHELL), in_folder(cwd, &self.program, args)),
        };
        let text = |text: &OsString| text.to_string_lossy().into_owned();
        let plan = Plan {
            program,
            args,
            env: environment.iter().map(|(name, value)| (text(name), text(value))).collect(),
            stdin: Bytes::new(),
            read: read.to_owned(),
            write: write.to_owned(),
            network,
            metadata: true,
            waits: false,
            forks: false,
            // What one call leaves in a folder, the next may change.
            owner: Some(self.name.clone()),
            limits: self.limits,
        };
        let failed = |error: SandboxError| {
            let cause = if error.has_begun() { Cause::Unavailable } else { Cause::ConnectFailed };
            (cause, error.to_string())
        };
        let waiting = sandbox.start(&plan).await.map_err(|error| (Cause::ConnectFailed, error.to_string()))?;
        let cpu = time.saturating_mul(self.cpu_millis) / 1000;
        waiting.run_watched(Job { stdin, time, cpu, ..Job::default() }, watcher).await.map_err(failed)
    }
}

/// The arguments of the shell that goes to the folder and becomes the program.
fn in_folder(cwd: &Path, program: &Path, args: Vec<String>) -> Vec<String> {
    let text = |path: &Path| path.to_string_lossy().into_owned();
    ["-c".to_owned(), IN_FOLDER.to_owned(), text(cwd), text(program)].into_iter().chain(args).collect()
}
