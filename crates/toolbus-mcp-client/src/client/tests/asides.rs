use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::Either;
use rmcp::RoleClient;
use rmcp::model::{ClientJsonRpcMessage, ServerJsonRpcMessage};
use rmcp::transport::Transport;
use serde_json::{Value, json};
use toolbus_core::tool::ToolOutput;
use toolbus_testing::patience::eventually;

use super::{How, Script, Wire, call, initialized, open, sent, session, stateless, text, wire};
use crate::client::SessionMode;

/// A wire whose server reads no reply to its own requests.
struct Unread {
    wire: Wire,
    stuck: Arc<AtomicUsize>,
}

impl Transport<RoleClient> for Unread {
    type Error = io::Error;

    fn send(&mut self, message: ClientJsonRpcMessage) -> impl Future<Output = io::Result<()>> + Send + 'static {
        if matches!(message, ClientJsonRpcMessage::Response(_) | ClientJsonRpcMessage::Error(_)) {
            self.stuck.fetch_add(1, Ordering::Relaxed);
            return Either::Left(std::future::pending());
        }
        Either::Right(self.wire.send(message))
    }

    fn receive(&mut self) -> impl Future<Output = Option<ServerJsonRpcMessage>> + Send {
        self.wire.receive()
    }

    fn close(&mut self) -> impl Future<Output = io::Result<()>> + Send {
        self.wire.close()
    }
}

#[tokio::test]
async fn changes_of_the_list_are_counted_in_sessions() {
    let (connection, script) = session(How::default()).await;
    let mut changes = connection.list_changes();
    assert_eq!(*changes.borrow_and_update(), 0);
    script.notify("notifications/tools/list_changed", json!({}));
    changes.changed().await.unwrap();
    assert_eq!(*changes.borrow(), 1);
}

/// Acknowledges the client's subscription.
fn acknowledge(script: &Script, listen: &Value) {
    let meta = json!({ "io.modelcontextprotocol/subscriptionId": listen["id"] });
    let acknowledged = json!({ "_meta": meta, "notifications": { "toolsListChanged": true } });
    script.notify("notifications/subscriptions/acknowledged", acknowledged);
}

#[tokio::test]
async fn changes_of_the_list_are_counted_in_subscriptions() {
    let (connection, script, listen) = stateless(How::default()).await;
    assert_eq!(listen["params"]["notifications"], json!({ "toolsListChanged": true }));
    let meta = json!({ "io.modelcontextprotocol/subscriptionId": listen["id"] });
    let mut changes = connection.list_changes();
    acknowledge(&script, &listen);
    script.notify("notifications/tools/list_changed", json!({ "_meta": meta }));
    changes.changed().await.unwrap();
    assert_eq!(*changes.borrow(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_subscription_that_ends_is_opened_again_and_counts_as_a_change() {
    let (connection, mut script, listen) = stateless(How::default()).await;
    let mut changes = connection.list_changes();
    acknowledge(&script, &listen);
    script.notify("notifications/cancelled", json!({ "requestId": listen["id"], "reason": "restart" }));
    let again = script.expect("subscriptions/listen").await;
    assert_eq!(*changes.borrow_and_update(), 0);
    acknowledge(&script, &again);
    changes.changed().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_server_without_subscriptions_gets_no_second_request() {
    let (connection, mut script, listen) = stateless(How::default()).await;
    script.refuse(&listen, -32601, "Method not found");
    tokio::time::advance(std::time::Duration::from_secs(3600)).await;
    let pinged = tokio::spawn(async move { connection.ping().await });
    let request = script.expect("server/discover").await;
    script.respond(&request, super::discovered());
    pinged.await.unwrap().unwrap();
}

#[tokio::test]
async fn unsupported_server_requests_are_refused() {
    let (_connection, mut script) = session(How::default()).await;
    let requests = [
        ("ping", json!({})),
        ("roots/list", json!({})),
        ("sampling/createMessage", json!({ "messages": [], "maxTokens": 1 })),
        ("elicitation/create", json!({ "message": "who?", "requestedSchema": { "type": "object", "properties": {} } })),
        ("made/up", json!({})),
    ];
    let mut replies = Vec::new();
    for (id, (method, params)) in requests.into_iter().enumerate() {
        script.send(json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }));
        let reply = script.receive().await;
        assert_eq!(reply["id"], id);
        replies.push(format!("{method}: {}{}", reply["result"], reply["error"]));
    }
    insta::assert_snapshot!(replies.join("\n"), @r#"
    ping: {}null
    roots/list: null{"code":-32601,"message":"not offered by this client"}
    sampling/createMessage: null{"code":-32601,"message":"not offered by this client"}
    elicitation/create: null{"code":-32601,"message":"not offered by this client"}
    made/up: null{"code":-32601,"message":"not offered by this client"}
    "#);
}

#[tokio::test]
async fn replies_to_a_server_that_reads_none_are_bounded() {
    let (wire, mut script) = wire();
    let stuck = Arc::new(AtomicUsize::new(0));
    let opened = open(
        Unread { wire, stuck: Arc::clone(&stuck) },
        How { session_mode: Some(SessionMode::Sessions), ..How::default() },
    );
    let request = script.expect("initialize").await;
    for id in 0..1_000 {
        script.send(json!({ "jsonrpc": "2.0", "id": id, "method": "ping" }));
    }
    script.respond(&request, initialized());
    let connection = opened.await.unwrap().unwrap();
    assert_eq!(stuck.load(Ordering::Relaxed), 64);
    script.expect("notifications/initialized").await;
    let (called, request) = sent(&connection, &mut script, call()).await;
    script.respond(&request, text("hi"));
    assert_eq!(called.await.unwrap().unwrap(), ToolOutput::text("hi"));
}

#[tokio::test]
async fn a_flood_of_notifications_keeps_no_call_waiting() {
    const FLOOD: usize = 10_000;
    let (connection, mut script) = session(How::default()).await;
    for n in 0..FLOOD {
        let message = json!({ "level": "info", "data": "x".repeat(100), "n": n });
        script.notify("notifications/message", message);
        script.notify("notifications/tools/list_changed", json!({}));
        script.notify("notifications/progress", json!({ "progressToken": n, "progress": 1 }));
        script.notify("made/up", json!({}));
    }
    let (called, request) = sent(&connection, &mut script, call()).await;
    assert!(*connection.list_changes().borrow() < FLOOD as u64, "the call went out before the flood was over");
    script.respond(&request, text("dry"));
    assert_eq!(called.await.unwrap().unwrap(), ToolOutput::text("dry"));
    let changes = connection.list_changes();
    eventually("every change is counted", async || (*changes.borrow() == FLOOD as u64).then_some(())).await;
}
