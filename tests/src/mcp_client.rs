//! MCP clients that others wrote, as `tests/run` installs them, each driven by a script in `tests/clients`.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::process::Command;
use toolbus_testing::patience::PATIENCE;

/// The line that a script prints when it waits for a change.
const WATCHING: &str = "watching";

/// A client with its script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientKind {
    /// The SDK for Python, second generation.
    Python,
    /// The SDK for Python, first generation.
    PythonOne,
    /// FastMCP's client.
    FastMcp,
    /// The SDK for TypeScript, both generations.
    TypeScript,
}

impl ClientKind {
    /// The interpreter, and the script.
    fn command(self) -> Command {
        let servers = || brought("TOOLBUS_MCP");
        let clients = || brought("TOOLBUS_MCP_CLIENTS");
        let (program, script) = match self {
            Self::Python => (servers().join("current/bin/python"), "python_sdk.py"),
            Self::PythonOne => (servers().join("old/bin/python"), "python_sdk_1.py"),
            Self::FastMcp => (clients().join("fastmcp/bin/python"), "fastmcp_client.py"),
            Self::TypeScript => (PathBuf::from("node"), "typescript_sdk.cjs"),
        };
        let mut command = Command::new(program);
        command.arg(scripts().join(script)).env("NODE_PATH", clients().join("node_modules"));
        command
    }

    /// Runs the script, has `change` change something when it waits for that, and gives what it saw.
    ///
    /// # Panics
    ///
    /// When it fails.
    pub async fn run(self, arguments: &[&str], change: impl AsyncFnOnce()) -> Value {
        let mut command = self.command();
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{self:?} cannot be started: {error}"));
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let mut stderr = child.stderr.take().expect("a pipe");
        let complaints = tokio::spawn(async move {
            let mut text = String::new();
            stderr.read_to_string(&mut text).await.map(|_| text)
        });
        let (mut change, mut output) = (Some(change), None);
        let reading = async {
            while let Some(line) = lines.next_line().await.unwrap() {
                match change.take_if(|_| line == WATCHING) {
                    Some(change) => change().await,
                    None => output = Some(line),
                }
            }
        };
        let ended = tokio::time::timeout(PATIENCE, reading).await.is_ok();
        drop(child.start_kill());
        let complaints = complaints.await.unwrap().unwrap_or_default();
        assert!(ended, "{self:?} {arguments:?} did not end in time: {complaints}");
        let output = output.unwrap_or_else(|| panic!("{self:?} {arguments:?} failed: {complaints}"));
        serde_json::from_str(&output).unwrap_or_else(|_| panic!("{self:?} {arguments:?} wrote {output}: {complaints}"))
    }
}

/// Runs the inspector's command line: a method of a server over HTTP, and further arguments of it.
///
/// # Panics
///
/// When it does not end in time.
pub async fn inspect(url: &str, token: &str, method: &str, arguments: &[&str]) -> crate::program::Run {
    let package = brought("TOOLBUS_MCP_CLIENTS").join("node_modules/@modelcontextprotocol/inspector-cli");
    let mut command = Command::new("node");
    let header = format!("Authorization: Bearer {token}");
    command.arg(package.join("build/cli.js")).args(["--cli", url, "--transport", "http", "--header", &header]);
    // It looks for its package in the folder above the working directory.
    command.args(["--method", method]).args(arguments).current_dir(package.join("build"));
    crate::program::run(command, PATIENCE).await
}

fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("clients")
}

/// A folder that `tests/run` makes.
fn brought(name: &str) -> PathBuf {
    let folder = std::env::var_os(name).unwrap_or_else(|| panic!("{name} is not set: run ./tests/run"));
    PathBuf::from(folder)
}
