//! `tool.cancel`: a caller takes back a call of its own.

use serde_json::json;
use toolbus_e2e::backend::Backend;
use toolbus_e2e::client::{Client, Request};
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::namespace::BrokerNamespace;

/// A request to cancel the call `id`, by `caller`.
fn cancel(client: &Client, caller: &str, id: &str) -> Request {
    let mut request = client.raw(json!({"toolCallId": id}).to_string()).header("rb-source", caller);
    request.routing_key = "tool.cancel".to_owned();
    request
}

#[tokio::test]
async fn a_caller_ends_a_running_call_of_its_own_and_of_nobody_else() {
    let (site, backend) = (BrokerNamespace::shared().await, Backend::start().await);
    let daemon = Daemon::start(&site, &backend.tool("hold", "/gate?id={id}", "")).await;
    let client = Client::connect(&site).await;
    let body = json!({"toolCallId": "call-1", "toolName": "hold", "arguments": {"id": "held"}});
    let call = client.raw(body.to_string()).header("rb-source", "ana");
    client.send(&call).await;
    backend.wait_for("held").await;

    let of_another = client.exchange(&cancel(&client, "ben", "call-1")).await;
    assert_eq!(of_another.body(), json!({"toolCallId": "call-1", "cancelled": false}));
    assert_eq!(client.replies_to(&call.correlation), []);

    let own = client.exchange(&cancel(&client, "ana", "call-1")).await;
    assert_eq!(own.kind(), "Toolbus.ToolCancelResponse");
    assert_eq!(own.body(), json!({"toolCallId": "call-1", "cancelled": true}));
    let reply = client.reply(&call).await;
    insta::assert_json_snapshot!(reply.body(), @r#"
    {
      "code": "cancelled",
      "isRetryable": false,
      "message": "The call was cancelled while the tool ran. Whether it had its effect is not known: find out before calling again.",
      "outcome": "unknown",
      "toolCallId": "call-1",
      "toolName": "hold"
    }
    "#);
    daemon.stop(&site).await;
}

#[tokio::test]
async fn a_call_that_still_lies_in_the_broker_is_cancelled_when_it_arrives() {
    const SENT: u64 = 1_700_000_000;
    let (site, backend) = (BrokerNamespace::shared().await, Backend::start().await);
    let one_at_a_time = "[invoke]\nmax_in_flight = 1\nmax_waiting = 0\n";
    let daemon = Daemon::start(&site, &format!("{one_at_a_time}{}", backend.tool("hold", "/gate?id={id}", ""))).await;
    let client = Client::connect(&site).await;
    let call = |id: &str| {
        let body = json!({"toolCallId": id, "toolName": "hold", "arguments": {"id": id}});
        client.raw(body.to_string()).by("ana").with(|properties| properties.with_timestamp(SENT))
    };
    let (first, second, next_turn) = (call("first"), call("second"), call("second"));
    let next_turn = next_turn.with(|properties| properties.with_timestamp(SENT + 1));
    client.send(&first).await;
    backend.wait_for("first").await;
    client.send(&second).await;
    client.send(&next_turn).await;
    let cancel = cancel(&client, "ana", "second").with(|properties| properties.with_timestamp(SENT));
    assert_eq!(client.exchange(&cancel).await.body(), json!({"toolCallId": "second", "cancelled": false}));
    backend.open();
    let cancelled = client.reply(&second).await.body();
    assert_eq!((&cancelled["code"], &cancelled["outcome"]), (&json!("cancelled"), &json!("not_started")));
    assert_eq!(client.reply(&first).await.code(), "");
    assert_eq!(client.reply(&next_turn).await.code(), "", "the model uses its id again");
    assert_eq!(backend.count("second"), 1, "the next turn's alone");
    daemon.stop(&site).await;
}
