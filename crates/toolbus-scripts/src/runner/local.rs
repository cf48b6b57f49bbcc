//! Runs scripts as the daemon runs, without keeping them in: for development.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use tempfile::TempDir;
use toolbus_core::Clock;
use toolbus_sandbox::{CollectedFiles, Limits, Outcome, Watcher};

use super::{Finished, RunFailure, Runner, RunnerStatus, Script, StartKind};
use crate::interpreter::Interpreter;
use crate::packages::{Installer, PackageError};
use crate::unconfined::{self, UnconfinedRun};

/// Code that an interpreter runs without a sandbox, or with another one around it: `script.py` beside the file that
/// `TOOLBUS_INPUT_FILE` names, as in the sandbox.
pub const BOOTSTRAP: &str = concat!(
    include_str!("run.py"),
    r#"

def start():
    import os
    given = os.environ["TOOLBUS_INPUT_FILE"]
    job = os.path.dirname(given)
    with open(given, "rb") as file:
        os.dup2(file.fileno(), 0)
    sys.argv[:] = ["script.py"]
    sys.path[0] = os.getcwd()
    sys.path.append(job)
    with open(job + "/script.py", "rb") as file:
        run(file.read(), os.environ["TOOLBUS_OUTPUT"])

start()
"#
);

/// Runs scripts without a sandbox.
///
/// A script sees the files, the processes and the network of the daemon, with its rights. Of its limits only time,
/// output and the size of returned files are kept. Processes that leave its process group outlive it. A script has the
/// same variables as in the sandbox, no others, and a work folder of its own.
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

    async fn run_script(&self, script: Script, watcher: Option<&Watcher>) -> Result<Finished, RunFailure> {
        let (packages, installing) = self.packages(&script).await?;
        let folder = ScriptFolder::new(&script)
            .map_err(|error| RunFailure::NotStarted(format!("cannot make a work folder: {error}; check TMPDIR")))?;
        let (args, env) = (["-c".to_owned(), BOOTSTRAP.to_owned()], environment(&script, &folder, packages));
        let home = folder.part("home");
        let ended = unconfined::run(UnconfinedRun {
            program: &self.interpreter.program,
            args: &args,
            env: &env,
            cwd: Some(&home),
            stdin: Bytes::new(),
            time: script.time_left(),
            output: self.limits.output,
            watcher,
        });
        let ended = ended.await.map_err(|error| RunFailure::NotStarted(format!("cannot start Python: {error}")))?;
        let most = self.limits.artifacts;
        let collected = tokio::task::spawn_blocking(move || {
            let given: Vec<&str> = script.files.iter().map(|(name, _)| name.as_str()).collect();
            CollectedFiles::of(folder.0.path(), most, &given)
        });
        let CollectedFiles { artifacts, left_out, not_returned } =
            collected.await.map_err(|error| RunFailure::Unavailable(format!("cannot collect files: {error}")))?;
        let outcome = Outcome { artifacts, left_out, not_returned, ..ended };
        Ok(Finished::new(outcome, StartKind::Cold, installing))
    }

    async fn packages(&self, script: &Script) -> Result<(Option<PathBuf>, Duration), RunFailure> {
        if script.packages.is_empty() {
            return Ok((None, Duration::ZERO));
        }
        let begun = Clock::SYSTEM.now();
        let installer = self.installer.as_ref().ok_or_else(|| {
            PackageError::Refused("No packages can be installed here. Use the standard library.".to_owned())
        })?;
        let folder = installer.install(&script.packages, script.deadline).await?;
        Ok((Some(folder), Clock::SYSTEM.since(begun)))
    }
}

/// All variables of a script.
fn environment(script: &Script, folder: &ScriptFolder, packages: Option<PathBuf>) -> BTreeMap<OsString, OsString> {
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
    let mut environment = BTreeMap::from([
        ("PATH".into(), path),
        ("LANG".into(), "C.UTF-8".into()),
        ("PYTHONDONTWRITEBYTECODE".into(), "1".into()),
        ("MPLBACKEND".into(), "Agg".into()),
        ("USER".into(), "script".into()),
        ("HOME".into(), folder.part("home").into()),
        ("TMPDIR".into(), folder.part("tmp").into()),
        ("TOOLBUS_INPUT_FILE".into(), folder.part("job/input").into()),
        ("TOOLBUS_OUTPUT".into(), folder.part("out").into()),
    ]);
    environment.extend(script.variables().map(|(name, value)| (name.into(), value.into())));
    environment.extend(packages.map(|packages| ("PYTHONPATH".into(), packages.into())));
    environment
}

impl Runner for LocalRunner {
    fn run_watched<'a>(
        &'a self,
        script: Script,
        watcher: Option<&'a Watcher>,
    ) -> BoxFuture<'a, Result<Finished, RunFailure>> {
        self.run_script(script, watcher).boxed()
    }

    fn status(&self) -> RunnerStatus {
        RunnerStatus {
            runner: "local",
            level: None,
            layers: Vec::new(),
            python: Some(self.interpreter.version.clone()),
            warm: 0,
            mode: None,
        }
    }

    fn shutdown(&self) -> BoxFuture<'_, ()> {
        std::future::ready(()).boxed()
    }
}

/// A folder that is gone with this.
struct ScriptFolder(TempDir);

impl ScriptFolder {
    fn new(script: &Script) -> io::Result<Self> {
        let folder = Self(tempfile::Builder::new().prefix("toolbus-script-").tempdir()?);
        for part in ["home", "job", "out", "tmp"] {
            std::fs::create_dir(folder.part(part))?;
        }
        std::fs::write(folder.part("job/script.py"), &script.source)?;
        std::fs::write(folder.part("job/input"), script.input.as_deref().unwrap_or_default())?;
        for (name, bytes) in &script.files {
            std::fs::write(folder.part("home").join(name), bytes)?;
        }
        Ok(folder)
    }

    /// A part of it, all of which are named as in the sandbox.
    fn part(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use futures_util::FutureExt as _;
    use futures_util::future::BoxFuture;
    use toolbus_core::Clock;
    use toolbus_sandbox::{Ending, Limits, Outcome, Stop};

    use super::LocalRunner;
    use crate::interpreter::Interpreter;
    use crate::packages::{Installer, PackageError};
    use crate::requirement::Requirement;
    use crate::runner::{RunFailure, Runner as _, RunnerStatus, Script, StartKind};

    const LIMITS: Limits = Limits { output: 100_000, artifacts: 1_000, ..crate::testing::LIMITS };

    async fn runner() -> LocalRunner {
        LocalRunner::new(Interpreter::find("python3").await.unwrap(), LIMITS, None)
    }

    fn script(source: &str) -> Script {
        Script {
            call_id: "call-1".into(),
            owner: None,
            source: source.to_owned(),
            input: None,
            files: Vec::new(),
            packages: Vec::new(),
            time: Duration::from_secs(60),
            cpu: Duration::from_secs(60),
            deadline: Clock::SYSTEM.now() + Duration::from_secs(120),
            idempotency_key: None,
        }
    }

    async fn outcome(script: Script) -> Outcome {
        let finished = runner().await.run(script).await.unwrap();
        assert_eq!((finished.start, finished.installing), (StartKind::Cold, Duration::ZERO));
        finished.outcome
    }

    fn text(bytes: &[u8]) -> &str {
        std::str::from_utf8(bytes).unwrap()
    }

    #[tokio::test]
    async fn a_script_runs_and_its_output_comes_back() {
        let outcome = outcome(script("import sys\nprint('ä')\nprint('err', file=sys.stderr)\nsys.exit(3)")).await;
        assert_eq!(outcome.ending, Ending::Exited(3));
        assert_eq!((text(&outcome.stdout.bytes), text(&outcome.stderr.bytes)), ("ä\n", "err\n"));
    }

    #[tokio::test]
    async fn its_input_is_in_a_variable_and_in_a_file() {
        let both = "import os\nprint(os.environ['ROCKBOT_INPUT'], open(os.environ['TOOLBUS_INPUT_FILE']).read())";
        let given = Script { input: Some("{\"n\": 1}".to_owned()), ..script(both) };
        assert_eq!(text(&outcome(given).await.stdout.bytes), "{\"n\": 1} {\"n\": 1}\n");
        assert_eq!(text(&outcome(script(both)).await.stdout.bytes), " \n");
    }

    #[tokio::test]
    async fn an_input_that_no_variable_can_hold_is_in_the_file_alone() {
        let source =
            "import os\nprint('ROCKBOT_INPUT' in os.environ, len(open(os.environ['TOOLBUS_INPUT_FILE']).read()))";
        for (input, expected) in [("x".repeat(200_000), "False 200000\n"), ("a\0b".to_owned(), "False 3\n")] {
            let outcome = outcome(Script { input: Some(input), ..script(source) }).await;
            assert_eq!(text(&outcome.stdout.bytes), expected);
        }
    }

    #[tokio::test]
    async fn the_key_of_its_call_is_in_a_variable() {
        let source = "import os\nprint(os.environ['TOOLBUS_IDEMPOTENCY_KEY'])";
        let keyed = Script { idempotency_key: Some("k7".into()), ..script(source) };
        assert_eq!(text(&outcome(keyed).await.stdout.bytes), "k7\n");
    }

    #[tokio::test]
    async fn it_sees_only_the_variables_that_are_meant_for_it() {
        let outcome = outcome(script("import os\nprint(*sorted(os.environ), sep='\\n')")).await;
        insta::assert_snapshot!(text(&outcome.stdout.bytes), @"
    HOME
    LANG
    MPLBACKEND
    PATH
    PYTHONDONTWRITEBYTECODE
    ROCKBOT_INPUT
    TMPDIR
    TOOLBUS_INPUT_FILE
    TOOLBUS_OUTPUT
    USER
    ");
    }

    #[tokio::test]
    async fn files_come_back_by_name_and_others_are_counted() {
        let source = "
import os
out = os.environ['TOOLBUS_OUTPUT']
write = lambda name, text: open(os.path.join(out, name), 'w').write(text)
write('b.txt', 'b'); write('a.txt', 'a'); write('large', 'x' * 1001)
os.mkdir(os.path.join(out, 'folder')); os.mkfifo(os.path.join(out, 'pipe')); os.symlink('a.txt', os.path.join(out, 'link'))
open(os.path.join(out.encode(), b'\\xff'), 'w')
";
        let outcome = outcome(script(source)).await;
        assert_eq!(outcome.ending, Ending::Exited(0), "{}", text(&outcome.stderr.bytes));
        let found: Vec<_> = outcome.artifacts.iter().map(|file| (file.name.as_str(), text(&file.bytes))).collect();
        assert_eq!(found, [("a.txt", "a"), ("b.txt", "b")]);
        assert_eq!(outcome.left_out, 5);
    }

    #[tokio::test]
    async fn its_folder_is_gone_afterwards() {
        let outcome = outcome(script("import os\nprint(os.getcwd(), end='')")).await;
        let folder = PathBuf::from(text(&outcome.stdout.bytes));
        assert!(folder.is_absolute() && !folder.exists(), "{}", folder.display());
    }

    #[tokio::test]
    async fn it_ends_at_the_deadline_of_its_call_if_that_is_sooner() {
        let late = Script { deadline: Clock::SYSTEM.now() + Duration::from_secs(1), ..script("while True: pass") };
        assert_eq!(outcome(late).await.ending, Ending::Stopped(Stop::Time));
    }

    #[tokio::test]
    async fn a_missing_python_is_reported_to_the_operator() {
        let runner = runner().await;
        let interpreter = Interpreter { program: "/nowhere/python".into(), ..runner.interpreter.clone() };
        let failure = LocalRunner { interpreter, ..runner }.run(script("")).await.unwrap_err();
        insta::assert_snapshot!(failure, @"cannot start Python: No such file or directory (os error 2)");
    }

    #[tokio::test]
    async fn scripts_run_without_a_sandbox() {
        let runner = runner().await;
        let python = Some(runner.interpreter.version.clone());
        assert_eq!(
            runner.status(),
            RunnerStatus { runner: "local", level: None, layers: Vec::new(), python, warm: 0, mode: None }
        );
    }

    /// Has every package in one folder already, unless it refuses.
    struct ScriptFolder(Result<PathBuf, PackageError>);

    impl Installer for ScriptFolder {
        fn install<'a>(&'a self, _: &'a [Requirement], _: Instant) -> BoxFuture<'a, Result<PathBuf, PackageError>> {
            std::future::ready(self.0.clone()).boxed()
        }
    }

    fn with_package() -> Script {
        let packages = vec![Requirement::parse("toolbus-example").unwrap()];
        Script { packages, ..script("import toolbus_example\nprint(toolbus_example.VALUE)") }
    }

    #[tokio::test]
    async fn installed_packages_can_be_imported() {
        let packages = tempfile::tempdir().unwrap();
        std::fs::write(packages.path().join("toolbus_example.py"), "VALUE = 42").unwrap();
        let installer = Arc::new(ScriptFolder(Ok(packages.path().to_owned())));
        let runner = LocalRunner { installer: Some(installer), ..runner().await };
        let finished = runner.run(with_package()).await.unwrap();
        assert_eq!(text(&finished.outcome.stdout.bytes), "42\n");
    }

    #[tokio::test]
    async fn without_its_packages_a_script_does_not_run() {
        let error = PackageError::TimedOut { seconds: 1 };
        let failing = LocalRunner { installer: Some(Arc::new(ScriptFolder(Err(error.clone())))), ..runner().await };
        assert_eq!(failing.run(with_package()).await.unwrap_err(), RunFailure::Packages(error));
        let without = runner().await.run(with_package()).await.unwrap_err();
        insta::assert_snapshot!(without, @"No packages can be installed here. Use the standard library.");
    }
}
