//! Ordinary AMQP clients in Python: nothing of ours, and no envelope.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use toolbus_e2e::backend::Backend;
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::namespace::BrokerNamespace;
use toolbus_e2e::program::{Run, python};

const CITY: &str = r#"{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}"#;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

async fn plain_client(site: &BrokerNamespace, own_queue: &str, requests: &[&str]) -> Run {
    let script = root().join("tests/python/plain_client.py");
    python(&script, &[&[site.url.as_str(), site.exchange.as_str(), own_queue], requests].concat(), &[]).await
}

fn lines(run: &Run) -> Vec<Value> {
    assert_eq!(run.code, 0, "{run:?}");
    run.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[tokio::test]
async fn a_python_client_calls_a_rest_tool_and_gets_the_reply_on_its_own_queue() {
    let (site, backend) = (BrokerNamespace::shared().await, Backend::start().await);
    let daemon = Daemon::start(&site, &backend.endpoint("get_weather", "/weather/{city}", CITY, "")).await;
    let object = json!({"body": {"toolName": "get_weather", "arguments": {"city": "Quito"}}}).to_string();
    let text = json!({"body": {"toolName": "get_weather", "arguments": r#"{"city":"Lima"}"#, "toolCallId": "mine"}});
    let replies = lines(&plain_client(&site, "", &[&object, &text.to_string()]).await);
    insta::assert_json_snapshot!(replies, { "[0].body.toolCallId" => "[an id of the daemon's]" }, @r#"
    [
      {
        "body": {
          "content": "{\"city\":\"Quito\",\"sky\":\"clear\"}",
          "isError": false,
          "toolCallId": "[an id of the daemon's]",
          "toolName": "get_weather"
        },
        "echoed": true,
        "exchange": "",
        "queue_is_own": true,
        "type": "RockBot.Tools.ToolInvokeResponse"
      },
      {
        "body": {
          "content": "{\"city\":\"Lima\",\"sky\":\"clear\"}",
          "isError": false,
          "toolCallId": "mine",
          "toolName": "get_weather"
        },
        "echoed": true,
        "exchange": "",
        "queue_is_own": true,
        "type": "RockBot.Tools.ToolInvokeResponse"
      }
    ]
    "#);
    daemon.stop(&site).await;
}

#[tokio::test]
async fn the_shipped_example_calls_a_tool_as_the_readme_describes() {
    let (mut site, backend) = (BrokerNamespace::shared().await, Backend::start().await);
    // The example uses the default exchange of the configuration; no other test does.
    site.exchange = "rockbot".to_owned();
    let daemon = Daemon::start(&site, &backend.endpoint("get_weather", "/weather/{city}", CITY, "")).await;
    let example = root().join("examples/python/call_tool.py");
    let environment = [("AMQP_URL", site.url.as_str())];
    let run = python(&example, &["get_weather", r#"{"city":"Bogotá"}"#], &environment).await;
    assert_eq!((run.code, run.out.trim()), (0, r#"{"city":"Bogotá","sky":"clear"}"#), "{run:?}");
    let run = python(&example, &["get_wether"], &environment).await;
    assert_eq!(run.code, 1);
    insta::assert_snapshot!(run.err.trim(), @"tool_not_found: Tool 'get_wether' is not registered. Did you mean 'get_weather'? (retryable: False)");
    let mistakes = [(&["get_weather", "{city"][..], "the arguments are not JSON: "), (&[], "Calls a tool with")];
    for (arguments, message) in mistakes {
        let run = python(&example, arguments, &environment).await;
        assert!(run.code == 1 && run.err.starts_with(message), "{run:?}");
    }
    daemon.stop(&site).await;
}

#[tokio::test]
async fn requests_with_properties_that_are_no_text_get_a_reply_and_cost_no_connection() {
    let site = BrokerNamespace::shared().await;
    let daemon = Daemon::start(&site, "[tools]\necho = true\n").await;
    let requests: Vec<String> = [
        json!({"correlation_id": "hex:fffe00"}),
        json!({"type": "hex:ff"}),
        json!({"message_id": "hex:c328"}),
        json!({"headers": {"hex:ff": "name", "rb-source": "hex:ff"}}),
        json!({}),
    ]
    .into_iter()
    .map(|properties| json!({"body": {"toolName": "echo", "arguments": {"text": "hi"}}, "properties": properties}))
    .map(|request| request.to_string())
    .collect();
    let requests: Vec<&str> = requests.iter().map(String::as_str).collect();
    let replies = lines(&plain_client(&site, "", &requests).await);
    assert!(replies.iter().all(|reply| reply["body"]["content"] == "hi"), "{replies:?}");
    let echoed: Vec<bool> = replies.iter().map(|reply| reply["echoed"] == true).collect();
    assert_eq!(echoed, [false, true, true, true, true], "what is no text cannot come back as it was");
    let (_, status) = daemon.get("/status").await.unwrap();
    assert_eq!(status["broker"]["reconnects"], 0, "a message must not cost a connection");
    daemon.stop(&site).await;
}
