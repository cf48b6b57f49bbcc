//! Calls that take long, at a server that others wrote: progress, and the cancellation once no caller waits any more.

use serde_json::{Value, json};
use toolbus_e2e::client::{Client, Request};
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::mcp::{Workplace, at, ready, status, with_progress};
use toolbus_e2e::namespace::BrokerNamespace;
use toolbus_testing::patience::eventually;

/// File of what the server was sent.
const LOG: &str = "sent.jsonl";
const LONG: &str = "trigger-long-running-operation";

/// A daemon whose server's input is recorded.
async fn world() -> (BrokerNamespace, Workplace, Daemon, Client) {
    let (site, work) = (BrokerNamespace::shared().await, Workplace::new().await);
    let daemon = work.daemon(&site, &json!({"everything": work.overheard("everything", LOG)}), "").await;
    ready(&daemon, "everything").await;
    let client = Client::connect(&site).await;
    (site, work, daemon, client)
}

/// A call that runs for longer than the test.
fn endless(client: &Client, id: &str) -> Request {
    let body = json!({"toolCallId": id, "toolName": LONG, "arguments": {"duration": 600, "steps": 1}});
    client.raw(body.to_string())
}

/// Waits until the server was sent the call, and gives the id of that request.
async fn sent(work: &Workplace) -> Value {
    eventually("the call at the server", async || Some(work.heard(LOG, "tools/call").pop()?["id"].clone())).await
}

/// Waits until the server has received the cancellation of a request.
async fn cancelled_at_server(work: &Workplace, request: &Value) {
    eventually("the cancellation at the server", async || {
        let notifications = work.heard(LOG, "notifications/cancelled");
        notifications.iter().any(|notification| notification["params"]["requestId"] == *request).then_some(())
    })
    .await;
}

#[tokio::test]
async fn progress_is_forwarded_to_callers_that_request_it() {
    let (site, _work, daemon, client) = world().await;
    let call = at(&client, "everything", LONG, &json!({"duration": 1.2, "steps": 3})).header("rb-rb-progress", "1");
    client.send(&call).await;
    let (reports, reply) = with_progress(&client, &call).await;
    assert_eq!(reply.content(), "Long running operation completed. Duration: 1.2 seconds, Steps: 3.");
    let steps: Vec<_> = reports.iter().map(|report| (report["progress"].as_f64(), report["total"].as_f64())).collect();
    assert_eq!(steps, [1.0, 2.0, 3.0].map(|step| (Some(step), Some(3.0))));
    assert_eq!(reports[0]["toolName"], LONG);

    let quiet = client.exchange(&at(&client, "everything", LONG, &json!({"duration": 0.3, "steps": 3}))).await;
    assert_eq!(quiet.body()["isError"], false);
    client.caught_up().await;
    assert_eq!(client.replies_to(quiet.correlation_id()).len(), 1, "no progress");
    daemon.stop(&site).await;
}

#[tokio::test]
async fn a_passed_deadline_reaches_the_server() {
    let (site, work, daemon, client) = world().await;
    let call = endless(&client, "late").header("rb-rb-timeout-ms", "1500");
    client.send(&call).await;
    let request = sent(&work).await;
    let mut body = client.reply(&call).await.body();
    let message = body["message"].take();
    assert!(message.as_str().unwrap().starts_with(&format!("Tool '{LONG}' did not answer within ")), "{message}");
    insta::assert_json_snapshot!(body, @r#"
    {
      "code": "timeout",
      "isRetryable": true,
      "message": null,
      "toolCallId": "late",
      "toolName": "trigger-long-running-operation"
    }
    "#);
    cancelled_at_server(&work, &request).await;
    eventually("no call in flight", async || (status(&daemon, "everything").await["inFlight"] == 0).then_some(()))
        .await;
    let next = client.call("echo", &json!({"message": "next"})).await;
    assert_eq!(next.content(), "Echo: next", "the server goes on");
    daemon.stop(&site).await;
}

#[tokio::test]
async fn a_cancelled_call_is_cancelled_at_the_server_and_no_other() {
    let (site, work, daemon, client) = world().await;
    let call = endless(&client, "call-1").by("ana");
    client.send(&call).await;
    let request = sent(&work).await;
    assert_eq!(status(&daemon, "everything").await["inFlight"], 1);
    let cancel = client.raw(json!({"toolCallId": "call-1"}).to_string()).on("tool.cancel").by("ana");
    assert_eq!(client.exchange(&cancel).await.body()["cancelled"], true);
    let reply = client.reply(&call).await;
    insta::assert_json_snapshot!(reply.body(), @r#"
    {
      "code": "cancelled",
      "isRetryable": false,
      "message": "The call of tool 'trigger-long-running-operation' was cancelled.",
      "toolCallId": "call-1",
      "toolName": "trigger-long-running-operation"
    }
    "#);
    cancelled_at_server(&work, &request).await;
    let next = client.call("echo", &json!({"message": "next"})).await;
    assert_eq!(next.content(), "Echo: next", "the server goes on");
    assert_eq!(work.heard(LOG, "notifications/cancelled").len(), 1);
    daemon.stop(&site).await;
}
