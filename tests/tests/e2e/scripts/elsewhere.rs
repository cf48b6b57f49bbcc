//! Scripts that run at another daemon than the one that agents call.

use serde_json::{Value, json};
use toolbus_e2e::client::{Client, Request};
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::mcp::with_progress;
use toolbus_e2e::namespace::BrokerNamespace;
use toolbus_testing::patience::eventually;

use super::setup::{SCRIPT, start};

/// The daemon that runs scripts, with working memory for their files.
const LAB: &str = r#"
[invoke]
topics = ["tool.invoke.lab"]
[identity]
trust_headers = true
[agents.front]
[agents.ana]
[memory]
"#;

/// The daemon that agents call.
const FRONT: &str = r#"
[bus]
name = "front"
[identity]
trust_headers = true
[agents.ana]
toolsets = ["lab"]
[toolsets.lab]
kind = "remote"
topic = "tool.invoke.lab"
"#;

/// A call of a tool at the other daemon, in one session.
fn call(client: &Client, tool: &str, arguments: &Value) -> Request {
    let body = json!({"toolName": format!("lab.{tool}"), "arguments": arguments, "sessionId": "s1"});
    client.raw(body.to_string()).by("ana")
}

#[tokio::test]
async fn files_progress_codes_and_limits_of_a_remote_script_are_those_of_a_local_one() {
    let site = BrokerNamespace::shared().await;
    let other = site.beside();
    let back = start(&other, &format!("{SCRIPT}{LAB}")).await;
    let front = Daemon::start(&site, FRONT).await;
    eventually("the tools of the other daemon", async || {
        let (_, status) = front.get("/status").await?;
        (status["remote"][0]["phase"] == "ready").then_some(())
    })
    .await;
    let client = Client::connect(&site).await;
    let run = |arguments: &Value| call(&client, "execute_python_script", arguments);

    let saved = call(&client, "save_to_working_memory", &json!({"key": "numbers.txt", "value": "1\n2\n3\n"}));
    let saved = client.exchange(&saved).await;
    assert_eq!(saved.code(), "", "{saved:?}");
    let script = "import os, time\n\
                  numbers = [int(line) for line in open('numbers.txt')]\n\
                  for number in numbers:\n    print('number', number)\n    time.sleep(1)\n\
                  open(os.path.join(os.environ['TOOLBUS_OUTPUT'], 'sum.txt'), 'w').write(str(sum(numbers)))\n";
    let files = json!({"script": script, "input_keys": ["numbers.txt"], "output_keys": ["sum.txt"]});
    let request = run(&files).header("rb-rb-progress", "1");
    client.send(&request).await;
    let (reports, reply) = with_progress(&client, &request).await;
    let messages: Vec<_> = reports.iter().map(|report| report["message"].as_str().unwrap()).collect();
    assert_eq!(messages, ["number 1", "number 2", "number 3"], "{reply:?}");
    assert!(reply.content().starts_with("number 1\nnumber 2\nnumber 3\n"), "{reply:?}");
    let sum = client.exchange(&call(&client, "get_from_working_memory", &json!({"key": "sum.txt"}))).await;
    assert_eq!(sum.content(), "6");

    let failed = client.exchange(&run(&json!({"script": "import sys\nprint('so far')\nsys.exit(3)"}))).await;
    assert_eq!(failed.body()["isError"], true, "{failed:?}");
    assert!(failed.content().contains("so far") && failed.content().contains('3'), "{failed:?}");
    let late = json!({"script": "import time\ntime.sleep(600)", "timeout_seconds": 1});
    let late = client.exchange(&run(&late)).await;
    assert!(late.content().contains("timed out after 1s"), "{late:?}");
    back.stop(&other).await;
    front.stop(&site).await;
}

/// A daemon whose scripts run at RockBot's scripts manager.
const MANAGED: &str = r#"
[identity]
trust_headers = true
[agents.ana]
toolsets = ["py"]
[toolsets.py]
kind = "remote"
topic = "script.invoke"
"#;

#[tokio::test]
async fn a_script_runs_at_the_scripts_manager_of_the_peers_under_an_id_of_its_own() {
    let (site, front, client) = Daemon::with_client(MANAGED).await;
    let run = |arguments: Value| {
        let body = json!({"toolCallId": "call_1", "toolName": "py.execute_python_script", "arguments": arguments});
        client.raw(body.to_string()).by("ana")
    };
    let early = client.exchange(&run(json!({"script": "print(1)"}))).await;
    assert_eq!(early.code(), "execution_failed", "no manager: {early:?}");

    let manager = Client::connect(&site).await;
    manager.bind("script.invoke").await;
    let replies = [
        json!({"output": "1\n", "stderr": null, "exitCode": 0, "isSuccess": true, "elapsedMs": 20}),
        json!({"output": null, "stderr": null, "exitCode": 0, "isSuccess": true, "elapsedMs": 20}),
        json!({"output": null, "stderr": "Traceback", "exitCode": 1, "isSuccess": false, "elapsedMs": 20}),
        json!({"output": null, "stderr": "Pod timed out after 30s", "exitCode": -1, "isSuccess": false, "elapsedMs": 0}),
    ];
    let mut results = Vec::new();
    for (number, mut reply) in replies.into_iter().enumerate() {
        let request = run(json!({"script": "print(1)", "input_data": "x", "pip_packages": ["six"]}));
        client.send(&request).await;
        let forwarded = eventually("a request for a script", async || manager.received().into_iter().nth(number)).await;
        let body = forwarded.body();
        let id = body["toolCallId"].as_str().unwrap();
        assert!(id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit()), "{id}");
        let wanted = json!({"toolCallId": id, "script": "print(1)", "inputData": "x", "timeoutSeconds": body["timeoutSeconds"],
            "pipPackages": ["six"]});
        assert_eq!(body, wanted);
        reply["toolCallId"] = json!(id);
        // As the manager replies: on a topic, and with the call's id in the body alone.
        let topic = forwarded.properties.reply_to().as_ref().unwrap().to_string();
        let reply = manager.raw(reply.to_string()).on(&topic).of_type("RockBot.Scripts.ScriptInvokeResponse");
        manager.send(&reply.with(|properties| properties.with_correlation_id("".into()))).await;
        let reply = client.reply(&request).await;
        results.push(format!("{} {} {}", reply.code(), reply.body()["isError"], reply.body()));
    }
    for (result, expected) in
        results.iter().zip(["1\\n", "(no output)", "Script failed (exit 1):\\nTraceback", "timed out"])
    {
        assert!(result.contains(expected), "{expected}: {result}");
    }
    assert!(results[3].starts_with("timeout"), "{results:?}");
    front.stop(&site).await;
}
