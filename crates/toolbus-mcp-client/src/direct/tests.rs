//! A real server, called without the bridge.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;
use toolbus_core::caller::Caller;
use toolbus_core::tool::{Naming, Validation};
use toolbus_testing::patience::eventually;

use super::*;
use crate::filter::ToolFilter;
use crate::spec::{Origin, Program, ServerName, TransportSpec};

/// Answers every call with the given text.
const ECHO: &str = r#"
import json, sys
for line in sys.stdin:
    request = json.loads(line)
    if request.get("method") == "initialize":
        result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "e", "version": "1"}}
    else:
        result = {"content": [{"type": "text", "text": request.get("params", {}).get("arguments", {}).get("text", "")}]}
    if "id" in request:
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}), flush=True)
"#;

fn python_echo(script: &str) -> ServerSpec {
    let args = vec!["-c".to_owned(), script.to_owned()];
    let (command, env) = ("python3".to_owned(), BTreeMap::new());
    ServerSpec {
        name: ServerName::parse("echo").unwrap(),
        transport: TransportSpec::Stdio(Program { command, args, env, cwd: None, roots: Vec::new() }),
        tools: ToolFilter::new(Vec::new(), Vec::new()),
        naming: Naming::default(),
        validation: Validation::Enforce,
        tool_timeout: None,
        is_lazy: false,
        is_disabled: false,
        origin: Origin::Configuration,
    }
}

async fn start(script: &str) -> Result<Direct, DirectError> {
    let launcher = Launcher::of_tests(Duration::from_secs(1));
    Direct::start(&python_echo(script), &launcher).await
}

#[tokio::test]
async fn a_call_is_answered_and_nothing_is_left_of_the_server() {
    let direct = start(ECHO).await.unwrap();
    let arguments: Map<String, Value> = [("text".to_owned(), Value::from("hi"))].into_iter().collect();
    let call = ToolCall {
        tool: "echo".into(),
        caller: Arc::new(Caller::unknown()),
        call_id: "1".into(),
        arguments: Arc::new(arguments),
        deadline: Instant::now() + Duration::from_secs(60),
        limit: Duration::from_secs(60),
        cancelled: CancellationToken::new(),
        trace: None,
        progress: None,
    };
    assert_eq!(direct.call("echo", &call).await.unwrap(), ToolOutput::text("hi"));
    let pid = direct.pid().unwrap();
    direct.stop().await;
    let process = std::path::PathBuf::from(format!("/proc/{pid}"));
    eventually("the end of the server", async || (!process.exists()).then_some(())).await;
}

#[tokio::test]
async fn a_server_that_does_not_shake_hands_is_an_error() {
    let error = start("import sys; sys.exit(3)").await.err().unwrap().to_string();
    assert!(error.contains("exit code 3"), "{error}");
}
