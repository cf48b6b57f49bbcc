//! The broker and the daemon gone, while a client is served over standard input and output.

use serde_json::json;
use toolbus_e2e::backend::Backend;
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::namespace::BrokerNamespace;
use toolbus_e2e::stdio::Stdio;
use toolbus_testing::patience::eventually;
use toolbus_testing::rabbit::RabbitNode;

#[tokio::test]
async fn a_missing_broker_and_a_missing_daemon_are_reported_to_the_client() {
    let nowhere = BrokerNamespace {
        url: "amqp://127.0.0.1:1".to_owned(),
        exchange: "none".to_owned(),
        prefix: "none".to_owned(),
    };
    let mut client = Stdio::start(&nowhere, "ana");
    client.begin().await;
    let (list, call) =
        (client.request("tools/list", &json!({})).await, client.request("tools/call", &json!({"name": "echo"})).await);
    let listed = client.response(list).await;
    let text = listed["error"]["message"].as_str().unwrap().to_owned();
    assert!(text.contains("the broker could not be reached within 10.0s") && text.contains("bus.url"), "{listed}");
    let called = client.response(call).await;
    insta::assert_json_snapshot!(called["result"]["_meta"]["toolbus/error"], @r#"
    {
      "code": "execution_failed",
      "isRetryable": true,
      "outcome": "not_started"
    }
    "#);
    client.close();
    assert_eq!(client.ended().await.0, Some(0));

    let mut client = Stdio::start(&BrokerNamespace::shared().await, "ana");
    client.begin().await;
    let text = client.names().await;
    assert!(text.as_str().unwrap().contains("no queue of this exchange takes topic `tool.list`"), "{text}");
    let called = client.call("echo", &json!({})).await;
    assert_eq!(called["_meta"]["toolbus/error"]["outcome"], "not_started", "{called}");
}

#[tokio::test]
async fn a_client_that_was_there_first_is_notified_when_the_daemon_comes() {
    let site = BrokerNamespace::shared().await;
    let mut client = Stdio::start(&site, "ana");
    client.begin().await;
    assert!(client.names().await.is_string());
    let daemon = Daemon::start(&site, "[tools]\necho = true\n").await;
    client.notification("notifications/tools/list_changed").await;
    assert!(client.names().await.as_array().unwrap().contains(&json!("echo")));
    daemon.stop(&site).await;
}

#[tokio::test]
async fn a_call_outlives_a_lost_connection_and_a_loss_is_reported() {
    let (node, backend) = (RabbitNode::start().await, Backend::start().await);
    let site = BrokerNamespace::on(&node);
    let tools = backend.tool("hold", "/gate?id={id}", "timeout = \"110s\"");
    let daemon = Daemon::start(&site, &format!("[tools]\necho = true\n{tools}")).await;
    let mut client = Stdio::start(&site, "ana");
    client.begin().await;
    assert!(client.names().await.is_array());
    let call = client.request("tools/call", &json!({"name": "hold", "arguments": {"id": "held"}})).await;
    backend.wait_for("held").await;
    node.ctl(&["close_all_connections", "maintenance"]).await;
    eventually("the client's loss", async || client.log().contains("no connection to the broker").then_some(())).await;
    // New calls wait for the connection.
    let echoed = client.call("echo", &json!({"text": "again"})).await;
    assert_eq!(echoed["content"][0]["text"], "again", "{echoed}");
    daemon.wait_until_ready().await;
    backend.open();
    let response = client.response(call).await;
    assert_eq!(response["result"]["content"][0]["text"], "passed held", "{response}");
    client.close();
    assert_eq!(client.ended().await.0, Some(0));
    daemon.stop(&site).await;
}

#[tokio::test]
async fn a_call_whose_reply_never_comes_fails_with_what_is_known() {
    let (node, backend) = (RabbitNode::start().await, Backend::start().await);
    let site = BrokerNamespace::on(&node);
    let tools = backend.tool("hold", "/gate?id={id}", "timeout = \"110s\"");
    let daemon = Daemon::start(&site, &format!("[invoke]\ndrain_timeout = \"1s\"\n{tools}")).await;
    let mut client = Stdio::start(&site, "ana");
    client.begin().await;
    assert!(client.names().await.is_array());
    let call = client.request("tools/call", &json!({"name": "hold", "arguments": {"id": "held"}})).await;
    backend.wait_for("held").await;
    node.kill();
    let response = client.response(call).await;
    assert_eq!(response["result"]["isError"], true, "{response}");
    let text = response["result"]["content"][0]["text"].as_str().unwrap();
    insta::assert_snapshot!(text, @"The connection to the broker was lost, and no answer has come since. Whether it had its effect is not known: find out before calling again.");
    assert_eq!(response["result"]["_meta"]["toolbus/error"]["outcome"], "unknown");
    client.close();
    assert_eq!(client.ended().await.0, Some(0), "without the broker, too");
    daemon.end().await;
}
