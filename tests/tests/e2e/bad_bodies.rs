//! Replies to unusable bodies and arguments.

use serde_json::{Value, json};
use toolbus_e2e::backend::Backend;
use toolbus_e2e::client::{Client, Request};
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::namespace::BrokerNamespace;
use toolbus_testing::otlp::Receiver;

use toolbus_e2e::metrics::sum;

/// Bodies that hold no JSON object.
const MALFORMED: [&[u8]; 4] = [b"\xff\xfe{}", b"{\"toolName\": ", b"[\"echo\"]", b""];

struct Fixture {
    site: BrokerNamespace,
    daemon: Daemon,
    client: Client,
}

impl Fixture {
    async fn with(more: &str) -> Self {
        let site = BrokerNamespace::shared().await;
        let daemon = Daemon::start(&site, more).await;
        let client = Client::connect(&site).await;
        Self { site, daemon, client }
    }

    /// Sends each body and gives the texts of the errors, all of which must be `invalid_arguments`.
    async fn refusals(&self, bodies: &[impl AsRef<[u8]>]) -> String {
        let mut texts = Vec::new();
        for body in bodies {
            let reply = self.client.exchange(&self.client.raw(body.as_ref())).await;
            assert_eq!(reply.code(), "invalid_arguments", "{:?}", reply.body());
            assert_eq!(reply.body()["isRetryable"], false);
            texts.push(reply.error());
        }
        texts.join("\n")
    }

    async fn end(self) {
        let reply = self.client.call("echo", &json!({"text": "still here"})).await;
        assert_eq!(reply.content(), "still here");
        self.daemon.stop(&self.site).await;
    }
}

#[tokio::test]
async fn a_body_that_is_no_json_object_is_refused_with_the_position() {
    let fixture = Fixture::with("[tools]\necho = true\n").await;
    insta::assert_snapshot!(fixture.refusals(&MALFORMED).await, @"
    The request is not usable: not UTF-8: invalid byte at offset 0.
    The request is not usable: EOF while parsing a value at line 1 column 13.
    The request is not usable: expected a JSON object, found an array.
    The request is not usable: EOF while parsing a value at line 1 column 0.
    ");
    let found = fixture.daemon.operate(&["trace", "--output", "json"]).await.json();
    let first = found["calls"].as_array().and_then(|calls| calls.last()).unwrap();
    assert_eq!(first["refusal"], "The request is not usable: not UTF-8: invalid byte at offset 0.");
    assert_eq!(fixture.site.ready(&fixture.site.dead_letters()).await, 0);
    fixture.end().await;
}

#[tokio::test]
async fn without_an_address_such_a_body_is_dead_lettered_once_and_counted() {
    let (site, receiver) = (BrokerNamespace::shared().await, Receiver::start().await.unwrap());
    let endpoint = receiver.grpc_endpoint();
    let more = format!("[tools]\necho = true\n[telemetry]\notlp_endpoint = \"{endpoint}\"\n");
    let daemon = Daemon::start(&site, &more).await;
    let client = Client::connect(&site).await;
    for body in MALFORMED {
        let request = client.raw(body).with(|_| lapin::BasicProperties::default().with_user_id("guest".into()));
        client.send(&request).await;
        let dead = site.take_dead_letter().await;
        assert_eq!(dead.data, body);
        assert_eq!(dead.header("rb-dead-reason"), "malformed_request");
        assert_eq!(dead.header("rb-dead-reply-to"), "");
        assert_eq!(dead.properties.user_id(), &None);
    }
    // Once a minute at most.
    daemon.logged_times("dead-lettered a request", 1).await;
    daemon.stop(&site).await;
    assert_eq!(site.ready(&site.dead_letters()).await, 0, "once each");
    let counted = sum(&receiver, "toolbus.dead_letters", &[("reason", "malformed_request"), ("queue", &site.queue())]);
    assert_eq!(counted, MALFORMED.len() as i64);
}

#[tokio::test]
async fn a_request_without_a_tool_name_is_refused() {
    let fixture = Fixture::with("[tools]\necho = true\n").await;
    let bodies = [r#"{}"#, r#"{"toolName":""}"#, r#"{"toolName":null}"#, r#"{"toolName":7}"#];
    insta::assert_snapshot!(fixture.refusals(&bodies).await, @"
    The request is not usable: missing member `toolName`.
    The request is not usable: missing member `toolName`.
    The request is not usable: missing member `toolName`.
    The request is not usable: invalid type: integer `7`, expected a string at line 1 column 13.
    ");
    fixture.end().await;
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused_before_it_is_read() {
    let fixture = Fixture::with("[tools]\necho = true\n[invoke]\nmax_body = \"1KiB\"\n").await;
    // Not even JSON: nobody looked.
    let bodies = ["x".repeat(1025), "x".repeat(2 << 20)];
    insta::assert_snapshot!(fixture.refusals(&bodies).await, @"
    The request has 1025 bytes; at most 1024 are taken. Send less.
    The request has 2097152 bytes; at most 1024 are taken. Send less.
    ");
    let fits = json!({"toolName": "echo", "arguments": {"text": "x".repeat(900)}}).to_string();
    assert!(fits.len() <= 1024);
    assert_eq!(fixture.client.exchange(&fixture.client.raw(fits)).await.code(), "");
    fixture.end().await;
}

#[tokio::test]
async fn nesting_beyond_64_levels_is_refused() {
    let fixture = Fixture::with("[tools]\necho = true\n").await;
    let nested = |levels: usize| {
        let value = format!("{}1{}", "[".repeat(levels), "]".repeat(levels));
        [
            format!(r#"{{"toolName":"echo","arguments":{{"text":{value}}}}}"#),
            json!({"toolName": "echo", "arguments": format!(r#"{{"text":{value}}}"#)}).to_string(),
        ]
    };
    let deep = [nested(70), nested(100_000)].concat();
    insta::assert_snapshot!(fixture.refusals(&deep).await, @"
    The request is not usable: nested deeper than 64 levels at offset 101.
    The arguments are not usable: nested deeper than 64 levels at offset 71.
    The request is not usable: nested deeper than 64 levels at offset 101.
    The arguments are not usable: nested deeper than 64 levels at offset 71.
    ");
    fixture.end().await;
}

#[tokio::test]
async fn arguments_that_are_no_object_or_name_a_member_twice_are_refused() {
    let fixture = Fixture::with("[tools]\necho = true\n").await;
    let bodies = [
        r#"{"toolName":"echo","arguments":"not JSON"}"#,
        r#"{"toolName":"echo","arguments":"[1]"}"#,
        r#"{"toolName":"echo","arguments":[1]}"#,
        r#"{"toolName":"echo","arguments":7}"#,
        r#"{"toolName":"echo","arguments":{"text":"a","text":"b"}}"#,
        r#"{"toolName":"echo","arguments":"{\"text\":\"a\",\"text\":\"b\"}"}"#,
        r#"{"toolName":"echo","toolname":"other","arguments":{"text":"a"}}"#,
    ];
    insta::assert_snapshot!(fixture.refusals(&bodies).await, @"
    The arguments are not usable: expected ident at line 1 column 2.
    The arguments are not usable: expected a JSON object, found an array.
    The arguments are not usable: expected a JSON object, found an array.
    The arguments are not usable: expected a JSON object, found a number.
    The arguments are not usable: duplicate member `text` at line 1 column 18.
    The arguments are not usable: duplicate member `text` at line 1 column 18.
    The request is not usable: duplicate member `toolname` at line 1 column 29.
    ");
    fixture.end().await;
}

#[tokio::test]
async fn arguments_against_the_schema_are_refused_with_their_paths_and_without_their_values() {
    let backend = Backend::start().await;
    let properties: String = (0..30).map(|n| format!(r#""n{n}":{{"type":"integer"}},"#)).collect();
    let schema = format!(
        r#"{{"type":"object","properties":{{{properties}"card":{{"type":"string","pattern":"^[0-9]{{16}}$"}}}},"required":["card"],"additionalProperties":false}}"#
    );
    let tools = format!("[tools]\necho = true\n{}", backend.endpoint("pay", "/work?id=paid", &schema, ""));
    let fixture = Fixture::with(&tools).await;
    let call = |arguments: Value| json!({"toolName": "pay", "arguments": arguments}).to_string();
    let bodies = [call(json!({})), call(json!({"card": "hunter2"})), call(json!({"card": 1234, "extra": "hunter2"}))];
    let told = fixture.refusals(&bodies).await;
    insta::assert_snapshot!(told, @r#"
    The arguments do not fit the tool's parameters: /: "card" is a required property
    The arguments do not fit the tool's parameters: /card: value does not match "^[0-9]{16}$"
    The arguments do not fit the tool's parameters: /card: value is not of type "string"; /: Additional properties are not allowed ('extra' was unexpected)
    "#);
    assert!(!told.contains("hunter2") && !fixture.daemon.text().contains("hunter2"));

    let many: serde_json::Map<String, Value> = (0..30).map(|n| (format!("n{n}"), json!("hunter2"))).collect();
    let told = fixture.refusals(&[call(Value::Object(many))]).await;
    assert_eq!(told.matches("/n").count(), 20, "{told}");
    assert_eq!(backend.total(), 0, "nothing was run");
    fixture.end().await;
}

#[tokio::test]
async fn an_answer_published_to_the_request_topic_is_settled_and_never_answered() {
    let fixture = Fixture::with("[tools]\necho = true\n").await;
    let body = json!({"toolCallId": "1", "toolName": "echo", "arguments": {"text": "x"}, "content": "x"}).to_string();
    let of_type = |kind: &str| fixture.client.raw(body.as_str()).with(|properties| properties.with_type(kind.into()));
    let replies =
        ["RockBot.Tools.ToolInvokeResponse", "RockBot.Tools.ToolError", "RockBot.Tools.Mcp.McpServersIndexed"];
    let sent: Vec<Request> = replies.map(of_type).into_iter().collect();
    for request in &sent {
        fixture.client.send(request).await;
    }
    let foreign = of_type("RockBot.Scripts.ScriptInvokeRequest");
    fixture.client.send(&foreign).await;
    let dead = fixture.site.take_dead_letter().await;
    assert_eq!(dead.header("rb-dead-reason"), "unknown_type");
    assert_eq!(dead.correlation_id(), foreign.correlation);
    let replies = [sent, vec![foreign]].concat();
    let (site, client) = (fixture.site.clone(), fixture.client);
    fixture.daemon.stop(&site).await;
    assert!(replies.iter().all(|request| client.replies_to(&request.correlation).is_empty()));
    assert_eq!(site.ready(&site.dead_letters()).await, 0);
}
