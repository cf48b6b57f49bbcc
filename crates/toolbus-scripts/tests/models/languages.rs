//! Scripts in other languages than Python.

use insta::assert_snapshot;
use serde_json::{Value, json};
use toolbus_sandbox::Level;

use crate::fixture::result_in;

/// The result of a script of this language, which is the same at `full` and at `no-namespaces`.
async fn at_both(language: &str, command: &str, arguments: Value) -> String {
    let at = |level| result_in(level, language, command, &arguments);
    let (full, less) = tokio::join!(at(Level::Full), at(Level::NoNamespaces));
    assert_eq!(full, less, "full and no-namespaces");
    full
}

async fn bash(arguments: Value) -> String {
    at_both("bash", "bash", arguments).await
}

async fn javascript(arguments: Value) -> String {
    at_both("javascript", "node", arguments).await
}

#[tokio::test]
async fn a_script_reads_its_input_and_files_and_leaves_files() {
    let script = r#"
        const { readFileSync, writeFileSync } = require("node:fs");
        const rows = readFileSync("data.csv", "utf8").trim().split("\n").map(Number);
        const input = JSON.parse(readFileSync(process.env.TOOLBUS_INPUT_FILE, "utf8"));
        console.log(input.name, rows.reduce((a, b) => a + b, 0), process.env.ROCKBOT_INPUT.length);
        writeFileSync(process.env.TOOLBUS_OUTPUT + "/sum.json", JSON.stringify({ rows }));
    "#;
    let arguments = json!({"script": script, "input_data": {"name": "sum"}, "input_files": {"data.csv": "1\n2\n39\n"}});
    assert_snapshot!(javascript(arguments).await, @r#"
    sum 42 14

    [toolbus:output/sum.json application/json: {"rows":[1,2,39]}]
    "#);
    let script = r#"
        read -r first < numbers; echo "$first of $ROCKBOT_INPUT, $TOOLBUS_IDEMPOTENCY_KEY"
        printf 'a\nb\n' > "$TOOLBUS_OUTPUT/list.txt"; echo "job: ${TOOLBUS_JOB-none}, $# arguments"
    "#;
    let arguments = json!({"script": script, "input_data": "ten", "input_files": {"numbers": "1 2\n"}, "key": "k-1"});
    assert_snapshot!(bash(arguments).await, @"
    1 2 of ten, k-1
    job: none, 0 arguments

    [toolbus:output/list.txt text/plain: a
    b]
    ");
}

#[tokio::test]
async fn a_script_that_fails_shows_its_error_and_exit_code() {
    assert_snapshot!(bash(json!({"script": "echo partly; ls() { return 3; }; ls || exit 3"})).await, @"
    isError: Script failed (exit 3):
    partly
    ");
    assert_snapshot!(bash(json!({"script": "ten=10\necho $((ten / 0))"})).await, @r#"
    isError: Script failed (exit 1):
    ../job/script: line 2: ten / 0: division by 0 (error token is "0")
    "#);
    let arguments = json!({"script": "throw new TypeError('no such column')"});
    let result = result_in(Level::Full, "javascript", "node", &arguments).await;
    assert!(result.starts_with("isError: Script failed (exit 1):\n"), "{result}");
    assert!(result.contains("TypeError: no such column"), "{result}");
}

#[tokio::test]
async fn a_timeout_names_the_tool() {
    let script = "console.log('begun'); setTimeout(() => {}, 60_000);";
    assert_snapshot!(javascript(json!({"script": script, "timeout_seconds": 3})).await, @"
    isError: execute_javascript_script timed out after 3s. Either increase timeout_seconds, simplify the script, or consider an alternative approach that does not require script execution.
    Its output until then:
    begun
    ");
}

#[tokio::test]
async fn a_script_has_no_network_and_no_more_than_its_memory() {
    let script = r#"
        require("node:net").connect(80, "127.0.0.1").on("error", error => console.log(error.code));
    "#;
    assert_snapshot!(javascript(json!({"script": script})).await, @"EPERM");
    let script = "const all = []; while (true) all.push(Buffer.alloc(1 << 20, 1));";
    let result = javascript(json!({"script": script})).await;
    assert!(result.contains("used more than 256 MiB of memory"), "{result}");
}

#[tokio::test]
async fn arguments_that_only_python_has_are_refused() {
    let result = bash(json!({"script": "true", "pip_packages": ["numpy"]})).await;
    assert_snapshot!(result, @"InvalidArguments: There is no argument `pip_packages`. There are: script, input_data, input_files, timeout_seconds.");
    assert_snapshot!(bash(json!({"script": "true", "session": true})).await, @"InvalidArguments: There is no argument `session`. There are: script, input_data, input_files, timeout_seconds.");
}
