//! Programs that tests run to their end: the binary, Python and Node.

use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use serde_json::Value;
use tokio::process::Command;

use crate::namespace::BrokerNamespace;

/// Longest run of a program.
const PATIENCE: Duration = Duration::from_secs(90);

/// The binary under test.
///
/// # Panics
///
/// When it has not been built.
#[must_use]
pub fn binary() -> PathBuf {
    let test = std::env::current_exe().expect("the path of this test");
    let built = test.ancestors().nth(2).expect("a target folder").join("toolbus");
    assert!(built.exists(), "{} is missing: build it first, with `cargo build`, or run ./tests/run", built.display());
    built
}

/// End of a program, and what it wrote.
#[derive(Debug)]
pub struct Run {
    /// Exit code; -1 when a signal ended it.
    pub code: i32,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

impl Run {
    /// Standard output as JSON.
    ///
    /// # Panics
    ///
    /// When it is none.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("no JSON ({error}): {self:?}"))
    }
}

/// Runs `toolbus` with these arguments, away from any configuration of this machine.
///
/// # Panics
///
/// When it does not end in time.
pub async fn toolbus(arguments: &[&str]) -> Run {
    let folder = tempfile::tempdir().expect("a folder");
    toolbus_in(folder.path(), arguments).await
}

/// Runs `toolbus` with these arguments, and the names of this site.
///
/// # Panics
///
/// When it does not end in time.
pub async fn toolbus_at(site: &BrokerNamespace, arguments: &[&str]) -> Run {
    let names = site.arguments();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    toolbus(&[arguments, &names].concat()).await
}

/// Runs `toolbus` with these arguments in a folder, whose configuration it finds.
///
/// # Panics
///
/// When it does not end in time.
pub async fn toolbus_in(folder: &Path, arguments: &[&str]) -> Run {
    let mut command = Command::new(binary());
    command.args(arguments).env_clear().current_dir(folder);
    run(command, PATIENCE).await
}

/// Python with the packages of the tests.
///
/// # Panics
///
/// When it was not brought.
#[must_use]
pub fn interpreter() -> PathBuf {
    let python = std::env::var_os("TOOLBUS_PYTHON");
    python.expect("TOOLBUS_PYTHON is not set: run ./tests/run, which brings Python with its packages").into()
}

/// Runs a Python program with the packages of the tests.
///
/// # Panics
///
/// When there is no Python environment, or the program does not end in time.
pub async fn python(script: &Path, arguments: &[&str], environment: &[(&str, &str)]) -> Run {
    let mut command = Command::new(interpreter());
    command.arg(script).args(arguments).envs(environment.iter().copied());
    run(command, PATIENCE).await
}

/// Checks a file of tools by what model providers publish, with `tests/providers/check.py`.
///
/// # Panics
///
/// When their packages were not brought, or the check does not end in time.
pub async fn check_by_providers(file: &Path) -> Run {
    let environment = std::env::var_os("TOOLBUS_PROVIDERS");
    let environment = environment.expect("TOOLBUS_PROVIDERS is not set: run ./tests/run, which brings their packages");
    let mut command = Command::new(Path::new(&environment).join("bin/python"));
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("providers/check.py")).arg(file);
    run(command, PATIENCE).await
}

/// Reads a document with AsyncAPI's parser, by `tests/clients/asyncapi.cjs`.
///
/// # Panics
///
/// When the parser was not brought, or does not end in time.
pub async fn read_asyncapi(file: &Path) -> Run {
    let packages = std::env::var_os("TOOLBUS_MCP_CLIENTS");
    let packages = packages.expect("TOOLBUS_MCP_CLIENTS is not set: run ./tests/run, which brings the parser");
    let mut command = Command::new("node");
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/asyncapi.cjs")).arg(file);
    command.env("NODE_PATH", Path::new(&packages).join("node_modules"));
    run(command, PATIENCE).await
}

/// Runs a program to its end, which it must find in this time.
pub(crate) async fn run(mut command: Command, limit: Duration) -> Run {
    let output = command.stdin(Stdio::null()).kill_on_drop(true).output();
    let Output { status, stdout, stderr } =
        tokio::time::timeout(limit, output).await.expect("a program that ends in time").expect("a program");
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Run { code: status.code().unwrap_or(-1), out: text(stdout), err: text(stderr) }
}
