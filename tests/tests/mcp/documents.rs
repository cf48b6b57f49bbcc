//! What `README.md` and `docs/mcp.md` show: the commands print what they say, and the configurations are valid.

use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use tokio::process::Command;
use toolbus_e2e::program::binary;

const README: &str = include_str!("../../../README.md");
const MANUAL: &str = include_str!("../../../docs/mcp.md");
const EXAMPLE: &str = include_str!("../../../examples/mcp.json");

/// The blocks of code in this language.
fn blocks(document: &'static str, language: &str) -> Vec<&'static str> {
    let start = format!("\n```{language}\n");
    document.split(start.as_str()).skip(1).map(|rest| rest.split("```").next().unwrap()).collect()
}

/// Runs a line of a shell in a folder; what a terminal would show.
async fn run(folder: &Path, line: &str, environment: &[(&str, &str)]) -> (Option<i32>, String) {
    let programs = binary().parent().unwrap().display().to_string();
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(format!("{line} 2>&1")).current_dir(folder).env_clear().stdin(Stdio::null());
    shell.envs(environment.iter().copied()).env("PATH", format!("{programs}:/usr/local/bin:/usr/bin:/bin"));
    let Output { status, stdout, .. } = shell.output().await.unwrap();
    (status.code(), String::from_utf8(stdout).unwrap())
}

#[test]
fn the_readme_shows_the_file_that_ships() {
    // Another block is for clients of the door.
    assert_eq!(blocks(README, "json").first(), Some(&EXAMPLE));
}

#[tokio::test]
async fn every_command_of_the_readme_prints_what_it_says() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..");
    let shown = blocks(README, "console");
    assert!(!shown.is_empty());
    for block in shown {
        let (command, expected) = block.split_once('\n').unwrap();
        let (code, printed) = run(&root, command.strip_prefix("$ ").unwrap(), &[]).await;
        assert_eq!((code, printed.trim_end()), (Some(0), expected.trim_end()), "{command}");
    }
}

#[tokio::test]
async fn every_configuration_of_the_manual_is_valid() {
    let folder = tempfile::tempdir().unwrap();
    let files = blocks(MANUAL, "json");
    assert_eq!(files.len(), 1);
    std::fs::write(folder.path().join("mcp.json"), files[0]).unwrap();
    let sections = blocks(MANUAL, "toml");
    assert!(sections.len() >= 2, "{} blocks: the document was not read whole", sections.len());
    let environment = [("HOME", "/srv"), ("SEARCH_TOKEN", "a-token-of-the-tests")];
    for section in sections {
        let text = section.replace("/etc/toolbus/mcp.json", "mcp.json");
        std::fs::write(folder.path().join("a.toml"), text).unwrap();
        let (code, printed) = run(folder.path(), "toolbus check --config a.toml", &environment).await;
        assert_eq!(code, Some(0), "{printed}");
    }
}
