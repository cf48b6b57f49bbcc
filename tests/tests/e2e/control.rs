//! Small requests: what the daemon is, and what becomes of those that it cannot use.

use lapin::BasicProperties;
use serde_json::json;
use toolbus_e2e::backend::Backend;
use toolbus_e2e::client::Request;
use toolbus_e2e::daemon::Daemon;

const ECHO: &str = "[tools]\necho = true\n";

#[tokio::test]
async fn a_ping_returns_the_daemons_identity() {
    let backend = Backend::start().await;
    let (site, daemon, client) = Daemon::with_client(&backend.tool("hold", "/gate?id={id}", "")).await;
    let held = client.request("hold", &json!({"id": "held"}));
    client.send(&held).await;
    backend.wait_for("held").await;
    let mut pongs = Vec::new();
    for ping in [client.raw(""), client.raw("{}").of_type("Toolbus.Ping").by("dora")] {
        let reply = client.exchange(&ping.on("tool.ping")).await;
        assert_eq!((reply.kind(), *reply.properties.delivery_mode()), ("Toolbus.Pong", Some(1)));
        pongs.push(reply.body());
    }
    assert_eq!(pongs[0]["configDigest"], pongs[1]["configDigest"]);
    let mut body = pongs.remove(0);
    assert!(body["version"].as_str().unwrap().starts_with(env!("CARGO_PKG_VERSION")), "{body}");
    assert!(body["uptimeSeconds"].as_u64().unwrap() < 60, "{body}");
    let digest = body["configDigest"].as_str().unwrap();
    assert!(digest.len() >= 16 && digest.bytes().all(|byte| byte.is_ascii_hexdigit()), "{digest}");
    for field in ["version", "uptimeSeconds", "configDigest"] {
        body[field] = json!("[differs]");
    }
    insta::assert_json_snapshot!(body, @r#"
    {
      "configDigest": "[differs]",
      "inFlight": 1,
      "name": "toolbus",
      "roles": [
        "invoke"
      ],
      "tools": 3,
      "uptimeSeconds": "[differs]",
      "version": "[differs]"
    }
    "#);
    backend.open();
    assert_eq!(client.reply(&held).await.content(), "passed held");
    daemon.stop(&site).await;
}

#[tokio::test]
async fn unusable_messages_on_the_control_queue_get_an_error_or_are_dead_lettered() {
    let (site, daemon, client) = Daemon::with_client(ECHO).await;
    let broken = |body: &str| client.raw(body).on("tool.list");
    let mut errors = Vec::new();
    let long = format!("{{\"sessionId\":\"{}\"}}", "x".repeat(70_000));
    let many = json!({"names": vec!["x"; 1001]}).to_string();
    for body in ["", "[1]", "{\"names\":", "{\"format\":\"yaml\"}", "{\"names\":\"echo\"}", &long, &many] {
        let reply = client.exchange(&broken(body)).await;
        assert_eq!(reply.kind(), "RockBot.Tools.ToolError");
        errors.push(format!("{}: {}", reply.code(), reply.error()));
    }
    insta::assert_snapshot!(errors.join("\n"), @"
    invalid_arguments: The request is not usable: it cannot be read: EOF while parsing a value at line 1 column 0.
    invalid_arguments: The request is not usable: it cannot be read: expected a JSON object, found an array.
    invalid_arguments: The request is not usable: it cannot be read: EOF while parsing a value at line 1 column 9.
    invalid_arguments: The request is not usable: it cannot be read: unknown format; expected `registration`, `openai`, `openai-responses`, `anthropic`, `gemini`, `bedrock` or `mcp` at line 1 column 17.
    invalid_arguments: The request is not usable: it cannot be read: expected a list of names, found a string at line 1 column 15.
    invalid_arguments: The request is not usable: it has 70016 bytes; at most 65536 are read.
    invalid_arguments: The request is not usable: it cannot be read: more than 1000 names at line 1 column 4014.
    ");

    // Without an address, of another type, or with an address that is refused: no reply is possible.
    let nowhere = |request: Request| request.with(|_| BasicProperties::default());
    let dead = [
        (nowhere(broken("{")), "malformed_request"),
        (broken("{}").of_type("RockBot.Tools.ToolInvokeRequest"), "unknown_type"),
        (broken("{}").of_type("Toolbus.Ping"), "unknown_type"),
        (broken("{}").reply_to("tool.invoke"), "reply_to_refused"),
        (broken("{}").reply_to(&site.queue()), "reply_to_refused"),
    ];
    let queue = format!("{}.control", site.prefix);
    for (request, reason) in dead {
        client.send(&request).await;
        let letter = site.take_dead_letter_of(&queue).await;
        assert_eq!((letter.header("rb-dead-reason"), &letter.data), (reason, &request.body));
        assert_eq!(client.replies_to(&request.correlation), []);
    }

    // A reply on a topic for requests is no request.
    let before = client.received().len();
    for kind in ["Toolbus.ToolListResponse", "Toolbus.Pong", "RockBot.Tools.ToolError", "Toolbus.ToolsChanged"] {
        client.send(&broken("{}").of_type(kind)).await;
    }
    assert_eq!(client.exchange(&broken("{}")).await.kind(), "Toolbus.ToolListResponse");
    daemon.stop(&site).await;
    assert_eq!(client.caught_up().await.len(), before + 1, "replies get no reply");
    assert!(site.take(&queue).await.is_none());
    assert!(site.take(&format!("{queue}.dlq")).await.is_none());
}
