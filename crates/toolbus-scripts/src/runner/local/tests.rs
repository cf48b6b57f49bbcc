//! Scripts that really run: there is a Python wherever the tests are.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use toolbus_sandbox::{Ending, Limits, Outcome, Stop};

use super::LocalRunner;
use crate::interpreter::Interpreter;
use crate::packages::{Installer, PackageError};
use crate::requirement::Requirement;
use crate::runner::{RunFailure, Runner as _, RunnerStatus, Script, StartKind};

const LIMITS: Limits = Limits {
    memory: 256 << 20,
    disk: 64 << 20,
    files: 4096,
    file_size: 64 << 20,
    open_files: 256,
    processes: 64,
    output: 100_000,
    artifacts: 1_000,
};

async fn runner() -> LocalRunner {
    LocalRunner::new(Interpreter::find("python3").await.unwrap(), LIMITS, None)
}

fn script(source: &str) -> Script {
    Script {
        source: source.to_owned(),
        input: None,
        packages: Vec::new(),
        time: Duration::from_secs(60),
        cpu: Duration::from_secs(60),
        deadline: Instant::now() + Duration::from_secs(120),
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
    let source = "import os\nprint('ROCKBOT_INPUT' in os.environ, len(open(os.environ['TOOLBUS_INPUT_FILE']).read()))";
    for (input, expected) in [("x".repeat(200_000), "False 200000\n"), ("a\0b".to_owned(), "False 3\n")] {
        let outcome = outcome(Script { input: Some(input), ..script(source) }).await;
        assert_eq!(text(&outcome.stdout.bytes), expected);
    }
}

#[tokio::test]
async fn it_sees_only_the_variables_that_are_meant_for_it() {
    let outcome = outcome(script("import os\nprint(*sorted(os.environ), sep='\\n')")).await;
    insta::assert_snapshot!(text(&outcome.stdout.bytes), @"
    HOME
    LANG
    PATH
    PYTHONDONTWRITEBYTECODE
    ROCKBOT_INPUT
    TMPDIR
    TOOLBUS_INPUT_FILE
    TOOLBUS_OUTPUT
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
    let late = Script { deadline: Instant::now() + Duration::from_secs(1), ..script("while True: pass") };
    assert_eq!(outcome(late).await.ending, Ending::Stopped(Stop::Time));
}

#[tokio::test]
async fn a_python_that_is_not_there_is_told_to_the_operator() {
    let runner = runner().await;
    let interpreter = Interpreter { program: "/nowhere/python".into(), ..runner.interpreter.clone() };
    let failure = LocalRunner { interpreter, ..runner }.run(script("")).await.unwrap_err();
    insta::assert_snapshot!(failure, @"cannot start Python: No such file or directory (os error 2)");
}

#[tokio::test]
async fn nothing_keeps_its_scripts_in() {
    let runner = runner().await;
    let python = Some(runner.interpreter.version.clone());
    assert_eq!(runner.status(), RunnerStatus { runner: "local", level: None, python, warm: 0 });
}

/// Has every package in one folder already, unless it refuses.
struct Folder(Result<PathBuf, PackageError>);

impl Installer for Folder {
    fn install<'a>(&'a self, _: &'a [Requirement], _: Instant) -> BoxFuture<'a, Result<PathBuf, PackageError>> {
        std::future::ready(self.0.clone()).boxed()
    }
}

fn with_package() -> Script {
    let packages = vec![Requirement::parse("toolbus-example").unwrap()];
    Script { packages, ..script("import toolbus_example\nprint(toolbus_example.VALUE)") }
}

#[tokio::test]
async fn what_was_installed_can_be_imported() {
    let packages = tempfile::tempdir().unwrap();
    std::fs::write(packages.path().join("toolbus_example.py"), "VALUE = 42").unwrap();
    let installer = Arc::new(Folder(Ok(packages.path().to_owned())));
    let runner = LocalRunner { installer: Some(installer), ..runner().await };
    let finished = runner.run(with_package()).await.unwrap();
    assert_eq!(text(&finished.outcome.stdout.bytes), "42\n");
}

#[tokio::test]
async fn without_its_packages_a_script_does_not_run() {
    let error = PackageError::TimedOut { seconds: 1 };
    let failing = LocalRunner { installer: Some(Arc::new(Folder(Err(error.clone())))), ..runner().await };
    assert_eq!(failing.run(with_package()).await.unwrap_err(), RunFailure::Packages(error));
    let without = runner().await.run(with_package()).await.unwrap_err();
    insta::assert_snapshot!(without, @"No packages can be installed here. Use the standard library.");
}
