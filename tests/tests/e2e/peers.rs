//! Clients that speak the peers' envelope.

use serde_json::json;
use toolbus_e2e::client::{Client, Request};
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::message::Message;
use toolbus_e2e::namespace::BrokerNamespace;
use uuid::Uuid;

/// Builds the request that a peer named RockBot sends, with properties and headers as it sends them.
fn peers_request(client: &Client, body: &str) -> Request {
    let request = client.raw(body);
    let sent = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let request = request.with(|properties| {
        properties
            .with_content_type("application/json".into())
            .with_type("RockBot.Tools.ToolInvokeRequest".into())
            .with_timestamp(sent)
            .with_reply_to("tool.result.RockBot".into())
    });
    request.header("rb-source", "RockBot").header("rb-rb-timeout-ms", "60000")
}

/// Properties, headers and decoded body, without what differs from run to run.
fn shown(message: &Message) -> serde_json::Value {
    let properties = &message.properties;
    let mut headers = message.headers.clone();
    for (name, value) in &mut headers {
        if name.ends_with("-ms") && value.parse::<u64>().is_ok() {
            *value = "[ms]".to_owned();
        }
    }
    let text = |value: &Option<lapin::types::ShortString>| value.as_ref().map(ToString::to_string);
    json!({
        "exchange is the site's": !message.exchange.is_empty(),
        "routingKey": message.routing_key,
        "contentType": text(properties.content_type()),
        "deliveryMode": properties.delivery_mode(),
        "type": text(properties.kind()),
        "replyTo": text(properties.reply_to()),
        "userId": text(properties.user_id()),
        "headers": headers,
        "body": message.body(),
    })
}

async fn world() -> (BrokerNamespace, Daemon, Client) {
    let (site, daemon, client) = Daemon::with_client("[bus]\nname = \"tool-agent\"\n[tools]\necho = true\n").await;
    client.bind("tool.result.RockBot").await;
    (site, daemon, client)
}

#[tokio::test]
async fn a_peer_gets_its_reply_on_its_topic_with_the_peers_properties() {
    let (site, daemon, client) = world().await;
    let body = r#"{"toolCallId":"call_1","toolName":"echo","arguments":"{\u0022text\u0022:\u0022rust amqp\u0022}","sessionId":"session/abc123","batchId":null}"#;
    let request = peers_request(&client, body);
    let reply = client.exchange(&request).await;
    insta::assert_json_snapshot!(shown(&reply), @r#"
    {
      "body": {
        "content": "rust amqp",
        "isError": false,
        "toolCallId": "call_1",
        "toolName": "echo"
      },
      "contentType": "application/json",
      "deliveryMode": 2,
      "exchange is the site's": true,
      "headers": {
        "rb-destination": "RockBot",
        "rb-rb-content-trust": "tool-output",
        "rb-rb-duration-ms": "[ms]",
        "rb-rb-queue-ms": "[ms]",
        "rb-rb-tool-provider": "local",
        "rb-source": "tool-agent"
      },
      "replyTo": "",
      "routingKey": "tool.result.RockBot",
      "type": "RockBot.Tools.ToolInvokeResponse",
      "userId": null
    }
    "#);
    assert_eq!(reply.correlation_id(), request.correlation);
    let id = reply.message_id();
    assert!(id.len() == 32 && id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')), "{id}");
    let (before, after) = (request.properties.timestamp().unwrap(), reply.properties.timestamp().unwrap());
    assert!((before..before + 120).contains(&after), "{before} {after}");
    daemon.stop(&site).await;
}

#[tokio::test]
async fn a_peer_that_requests_an_unknown_tool_gets_the_peers_error() {
    let (site, daemon, client) = world().await;
    let body = r#"{"toolCallId":"call_1","toolName":"no_such_tool","arguments":null,"sessionId":null}"#;
    let reply = client.exchange(&peers_request(&client, body)).await;
    insta::assert_json_snapshot!(shown(&reply), @r#"
    {
      "body": {
        "code": "tool_not_found",
        "isRetryable": false,
        "message": "Tool 'no_such_tool' is not registered.",
        "toolCallId": "call_1",
        "toolName": "no_such_tool"
      },
      "contentType": "application/json",
      "deliveryMode": 2,
      "exchange is the site's": true,
      "headers": {
        "rb-destination": "RockBot",
        "rb-rb-content-trust": "tool-output",
        "rb-rb-queue-ms": "[ms]",
        "rb-source": "tool-agent"
      },
      "replyTo": "",
      "routingKey": "tool.result.RockBot",
      "type": "RockBot.Tools.ToolError",
      "userId": null
    }
    "#);
    daemon.stop(&site).await;
}

#[tokio::test]
async fn two_daemons_share_the_requests_of_one_queue() {
    let site = BrokerNamespace::shared().await;
    let one = Daemon::start(&site, "[bus]\nname = \"one\"\n[tools]\necho = true\n").await;
    let two = Daemon::start(&site, "[bus]\nname = \"two\"\n[tools]\necho = true\n").await;
    let client = Client::connect(&site).await;
    let requests: Vec<Request> =
        (0..40).map(|n| client.request("echo", &json!({"text": format!("{n} {}", Uuid::new_v4())}))).collect();
    for request in &requests {
        client.send(request).await;
    }
    let mut sources = std::collections::BTreeSet::new();
    for request in &requests {
        sources.insert(client.reply(request).await.header("rb-source").to_owned());
    }
    assert_eq!(sources.into_iter().collect::<Vec<_>>(), ["one", "two"]);
    assert_eq!(client.received().len(), requests.len(), "one reply each");
    one.stop(&site).await;
    two.stop(&site).await;
}
