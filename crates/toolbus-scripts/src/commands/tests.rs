mod confined;
mod documented;
mod endings;
mod mistakes;

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use toolbus_config::HumanDuration;
use toolbus_core::failure::{Cause, ToolFailure};
use toolbus_core::progress::ProgressSink;
use toolbus_core::tool::{Effect, ToolCall, ToolOutput};
use toolbus_testing::patience::PATIENCE;

use super::*;
use crate::testing;

/// Longer than any call here.
const LONG: HumanDuration = HumanDuration::from_secs(3600);

/// A command without the sandbox.
fn unconfined(command: &[&str]) -> CommandConfig {
    // The time of a call is what ends it, unless a test is about the time of the command.
    CommandConfig { sandbox: false, timeout: LONG, ..CommandConfig::new("command", command.iter().copied()) }
}

/// The same with arguments of these names.
fn with(command: &[&str], names: &[&str]) -> CommandConfig {
    let properties: serde_json::Map<String, Value> = names.iter().map(|name| ((*name).to_owned(), json!({}))).collect();
    let parameters = json!({"type": "object", "properties": properties});
    CommandConfig { parameters: Some(parameters.to_string()), ..unconfined(command) }
}

async fn run(settings: CommandConfig, arguments: Value) -> Result<ToolOutput, ToolFailure> {
    run_until(settings, arguments, Duration::from_secs(60)).await
}

/// Runs a command in a sandbox.
async fn run_in(sandbox: &Sandbox, settings: CommandConfig, arguments: Value) -> Result<ToolOutput, ToolFailure> {
    run_tool(&tool(&settings, Some(sandbox)).unwrap(), arguments, PATIENCE).await
}

async fn run_until(settings: CommandConfig, arguments: Value, time: Duration) -> Result<ToolOutput, ToolFailure> {
    run_tool(&tool(&settings, None).unwrap(), arguments, time).await
}

async fn run_tool(tool: &Tool, arguments: Value, time: Duration) -> Result<ToolOutput, ToolFailure> {
    run_reporting(tool, arguments, time, None).await
}

async fn run_reporting(
    tool: &Tool,
    arguments: Value,
    time: Duration,
    progress: Option<ProgressSink>,
) -> Result<ToolOutput, ToolFailure> {
    let call = ToolCall { progress, ..testing::call(tool, time, arguments) };
    Arc::clone(&tool.executor).execute_boxed(call).await
}

async fn text(settings: CommandConfig, arguments: Value) -> String {
    let output = run(settings, arguments).await.unwrap();
    assert!(!output.is_error, "{output:?}");
    output.content.unwrap()
}

#[tokio::test]
async fn an_argument_of_a_caller_stays_one_argument() {
    let hostile = "$(id) `id` ; id | cat > /tmp/x \"'\n two  spaces";
    let settings = with(&["/bin/echo", "a {text}", "{list...}", "{absent}", "b"], &["text", "list", "absent"]);
    let printed = text(settings, json!({"text": hostile, "list": ["c d", "*"]})).await;
    assert_eq!(printed, format!("a {hostile} c d * b"));
}

#[tokio::test]
async fn arguments_that_make_no_command_are_invalid_arguments() {
    let failure = run(with(&["/bin/echo", "{text}"], &["text"]), json!({"text": "-n"})).await.unwrap_err();
    assert_eq!(failure.cause, Cause::InvalidArguments);
    assert_eq!(failure.message, "Argument `text` must not begin with `-`: the program would take it for an option.");
    let mut settings = with(&["/bin/echo", "{text}"], &["text"]);
    settings.allow_dash = vec!["text".to_owned()];
    assert_eq!(text(settings, json!({"text": "-x"})).await, "-x");
}

#[tokio::test]
async fn a_program_reads_the_arguments_as_json_where_it_is_to() {
    let mut settings = with(&["/bin/cat"], &["b", "a"]);
    settings.stdin = Stdin::Arguments;
    assert_eq!(text(settings.clone(), json!({"b": 1, "a": [null, "é"]})).await, r#"{"a":[null,"é"],"b":1}"#);
    settings.output = Output::Json;
    assert_eq!(text(settings, json!({})).await, "{}");
    assert_eq!(text(unconfined(&["/bin/cat"]), json!({})).await, "(no output)");
}

#[tokio::test]
async fn json_is_written_again_without_spaces() {
    let mut settings = unconfined(&["/bin/echo", r#" {{ "b" : [1, 2.50,"x"] ,  "a": null }} "#]);
    settings.output = Output::Json;
    assert_eq!(text(settings, json!({})).await, r#"{"a":null,"b":[1,2.5,"x"]}"#);
}

#[tokio::test]
async fn a_program_has_its_own_environment_and_folder() {
    let folder = tempfile::tempdir().unwrap();
    let folder = std::fs::canonicalize(folder.path()).unwrap();
    let mut settings = unconfined(&["/bin/sh", "-c", "pwd; echo $GREETING; env | grep -c CARGO"]);
    settings.cwd = Some(folder.clone());
    settings.env = BTreeMap::from([("GREETING".to_owned(), "hello".into())]);
    // The daemon of these tests has variables of cargo's; grep finds none of them and so fails at the end.
    let output = run(settings, json!({})).await.unwrap();
    assert!(std::env::vars().any(|(name, _)| name.contains("CARGO")));
    assert_eq!(output.content.unwrap(), format!("Command failed (exit 1):\n{}\nhello\n0", folder.display()));
}

#[tokio::test]
async fn a_program_without_a_path_is_found_as_it_would_be_in_a_shell() {
    assert_eq!(text(unconfined(&["echo", "x"]), json!({})).await, "x");
}

#[test]
fn a_tool_is_described_as_configured() {
    let mut settings = with(&["echo", "{a}"], &["a"]);
    (settings.description, settings.timeout) = ("Says something".to_owned(), HumanDuration::from_secs(10));
    settings.effect = Some(Effect::ReadOnly);
    let tool = tool(&settings, None).unwrap();
    let descriptor = &tool.descriptor;
    assert_eq!((&*descriptor.name, &*descriptor.source, descriptor.provider), ("command", "command", "command"));
    assert_eq!((&*descriptor.description, descriptor.effect), ("Says something", Effect::ReadOnly));
    assert_eq!(descriptor.timeout, Some(Duration::from_secs(10)));
    assert_eq!(descriptor.parameters.as_ref().unwrap()["properties"]["a"], json!({}));
}

#[test]
fn a_command_is_confined_and_its_effect_undeclared_unless_it_says_otherwise() {
    let settings = CommandConfig::new("command", ["echo"]);
    assert!(settings.sandbox && !settings.network);
    assert_eq!(tool(&settings, None).unwrap_err(), CommandError::NoSandbox);
    assert_eq!(described(&settings).unwrap().descriptor.effect, Effect::Undeclared);
}

#[tokio::test]
async fn a_confined_command_that_is_only_described_runs_nowhere() {
    let tool = described(&CommandConfig::new("command", ["echo"])).unwrap();
    let failure = run_tool(&tool, json!({}), PATIENCE).await.unwrap_err();
    assert_eq!(failure.cause, Cause::ConnectFailed);
    assert_eq!(failure.detail.as_deref(), Some("there is no sandbox to run the command in"));
}

#[test]
fn debug_shows_no_secret() {
    let mut settings = unconfined(&["echo"]);
    settings.env = BTreeMap::from([("TOKEN".to_owned(), "hunter2-hunter2".into())]);
    assert!(!format!("{settings:?}").contains("hunter2"));
}
