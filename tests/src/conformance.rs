//! The public conformance suite, as `tests/run` installs it, and which of its scenarios are known not to pass.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::process::Command;

use crate::mcp::environment;
use crate::program::{Run, run};

/// Longest run of all scenarios of a server.
const PATIENCE: Duration = Duration::from_secs(300);

/// Scenarios that do not pass, by the reason why; in the order of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Reason why they do not pass.
    pub reason: String,
    /// Names of the scenarios.
    pub scenarios: Vec<String>,
}

/// Folder of the suite's data and helpers.
#[must_use]
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("conformance")
}

/// Returns what is listed for one side: `client` or `server`.
///
/// # Panics
///
/// When the file has another form.
#[must_use]
pub fn listed(side: &str) -> Vec<Listed> {
    let text = std::fs::read_to_string(list()).unwrap();
    let header = format!("{side}:");
    let lines = text.lines().skip_while(|line| *line != header).skip(1).take_while(|line| line.starts_with("  "));
    let mut listed: Vec<Listed> = Vec::new();
    for line in lines.map(str::trim) {
        match (line.strip_prefix("# "), line.strip_prefix("- "), listed.last_mut()) {
            (Some(more), _, Some(last)) if last.scenarios.is_empty() => last.reason = format!("{} {more}", last.reason),
            (Some(reason), ..) => listed.push(Listed { reason: reason.to_owned(), scenarios: Vec::new() }),
            (None, Some(scenario), Some(last)) => last.scenarios.push(scenario.to_owned()),
            _ => panic!("neither a reason nor a scenario: {line}"),
        }
    }
    listed
}

/// The names of all scenarios of one side.
///
/// # Panics
///
/// When the suite lists none.
pub async fn scenarios(side: &str) -> Vec<String> {
    let listing = suite(&["list", &format!("--{side}")]).await;
    let names: Vec<_> =
        listing.out.lines().filter_map(|line| line.trim().strip_prefix("- ")).map(str::to_owned).collect();
    assert!(!names.is_empty(), "{listing:?}");
    names
}

/// Returns what a run finds wrong in the list: scenarios that do not pass and are not listed, and those that are and
/// do.
#[must_use]
pub fn unexpected(run: &Run) -> Vec<&str> {
    run.out.lines().filter_map(|line| line.strip_prefix("  ✗ ").or_else(|| line.strip_prefix("  ✓ "))).collect()
}

/// Runs the suite. It ends with 0 when those scenarios do not pass that are listed, and no others.
///
/// # Panics
///
/// When it is not there, or does not end in time.
pub async fn suite(arguments: &[&str]) -> Run {
    let packages = std::env::var_os("TOOLBUS_MCP_CLIENTS")
        .expect("TOOLBUS_MCP_CLIENTS is not set: run ./tests/run, which brings the conformance suite");
    let mut command = Command::new(Path::new(&packages).join("node_modules/.bin/conformance"));
    let environment: BTreeMap<String, String> = serde_json::from_value(environment()).unwrap();
    command.args(arguments).env_clear().envs(environment);
    if !arguments.contains(&"list") {
        command.arg("--expected-failures").arg(list());
    }
    run(command, PATIENCE).await
}

fn list() -> PathBuf {
    folder().join("expected-failures.yml")
}
