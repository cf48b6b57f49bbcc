//! Replies to unusual properties, headers and budgets.

use lapin::types::{AMQPValue, DecimalValue, FieldArray, FieldTable};
use serde_json::json;
use toolbus_e2e::daemon::Daemon;

fn every_amqp_type() -> Vec<AMQPValue> {
    let mut table = FieldTable::default();
    table.insert("inner".into(), AMQPValue::Boolean(true));
    vec![
        AMQPValue::Boolean(true),
        AMQPValue::ShortShortInt(-1),
        AMQPValue::ShortInt(-1),
        AMQPValue::LongInt(-1),
        AMQPValue::LongLongInt(i64::MIN),
        AMQPValue::Float(-0.5),
        AMQPValue::Double(1e300),
        AMQPValue::DecimalValue(DecimalValue { scale: 2, value: 314 }),
        AMQPValue::LongString("".into()),
        AMQPValue::LongString(vec![0xff, 0x00, 0xfe].into()),
        AMQPValue::LongString("x".repeat(10_000).into()),
        AMQPValue::Timestamp(u64::MAX),
        AMQPValue::FieldTable(table),
        AMQPValue::FieldArray(FieldArray::from(vec![AMQPValue::Void])),
        AMQPValue::ByteArray(vec![0xff].into()),
        AMQPValue::Void,
    ]
}

#[tokio::test]
async fn requests_with_headers_of_any_amqp_type_get_a_reply() {
    let (site, daemon, client) = Daemon::with_client("[tools]\necho = true\n").await;
    let names = ["rb-source", "rb-rb-timeout-ms", "rb-traceparent", "traceparent", "x-delivery-count"];
    for value in every_amqp_type() {
        let request = client.request("echo", &json!({"text": "odd"}));
        let request = names.into_iter().fold(request, |request, name| request.header_of(name, value.clone()));
        let reply = client.exchange(&request).await;
        assert_eq!(reply.content(), "odd", "{value:?} got {:?}", reply.body());
        // What is no text names no server; what is names one that is not there.
        let request = client.request("echo", &json!({"text": "odd"})).header_of("rb-rb-mcp-server", value.clone());
        let reply = client.exchange(&request).await;
        let is_known = reply.body()["content"] == "odd" || reply.body()["code"] == "tool_not_found";
        assert!(is_known, "{value:?} got {:?}", reply.body());
    }
    daemon.stop(&site).await;
}

#[tokio::test]
async fn requests_with_properties_of_any_length_get_a_reply_with_the_correlation_id() {
    let (site, daemon, client) = Daemon::with_client("[tools]\necho = true\n").await;
    for text in ["", "ü\u{0}\u{1f600}", &"é".repeat(127), &"x".repeat(255)] {
        let mut request = client.request("echo", &json!({"text": "long"}));
        request = request.with(|properties| {
            properties.with_message_id(text.into()).with_type(text.into()).with_timestamp(u64::MAX).with_priority(255)
        });
        assert_eq!(client.exchange(&request).await.content(), "long");
        request.correlation = format!("{text:.200}");
        request.properties = request.properties.with_correlation_id(request.correlation.as_str().into());
        assert_eq!(client.exchange(&request).await.content(), "long");
    }
    daemon.stop(&site).await;
}

#[tokio::test]
async fn a_tool_without_a_limit_gets_the_default_when_the_budget_is_unusable() {
    let (site, daemon, client) =
        Daemon::with_client("[tools]\necho = true\n[invoke]\ndefault_timeout = \"1s\"\n").await;
    for value in ["0", "-5", "soon"] {
        let request = client.request("echo", &json!({"text": "fine"})).header("rb-timeout-ms", value);
        assert_eq!(client.exchange(&request).await.content(), "fine", "{value}");
    }
    // Once a minute at most.
    daemon.logged_times("ignored an unusable budget", 1).await;
    daemon.stop(&site).await;
}
