//! Replies to unusable bodies.

use serde_json::json;
use toolbus_e2e::daemon::Daemon;
use toolbus_testing::otlp::Receiver;

use toolbus_e2e::metrics::sum;

/// Bodies that hold no JSON object.
const MALFORMED: [&[u8]; 4] = [b"\xff\xfe{}", b"{\"toolName\": ", b"[\"echo\"]", b""];

#[tokio::test]
async fn a_body_that_is_no_json_object_is_refused_with_the_position() {
    let (site, daemon, client) = Daemon::with_client("[tools]\necho = true\n[invoke]\nmax_body = \"1KiB\"\n").await;
    let mut errors = Vec::new();
    // A body over the limit is refused by its length, before it is parsed.
    let large = [b'x'; 1025];
    for body in MALFORMED.into_iter().chain([large.as_slice()]) {
        let reply = client.exchange(&client.raw(body)).await;
        assert_eq!((reply.code().as_str(), &reply.body()["isRetryable"]), ("invalid_arguments", &json!(false)));
        errors.push(reply.error());
    }
    insta::assert_snapshot!(errors.join("\n"), @"
    The request is not usable: not UTF-8: invalid byte at offset 0.
    The request is not usable: EOF while parsing a value at line 1 column 13.
    The request is not usable: expected a JSON object, found an array.
    The request is not usable: EOF while parsing a value at line 1 column 0.
    The request has 1025 bytes; at most 1024 are taken. Send less.
    ");
    let found = daemon.operate(&["trace", "--output", "json"]).await.json();
    let first = found["calls"].as_array().and_then(|calls| calls.last()).unwrap();
    assert_eq!(first["refusal"], "The request is not usable: not UTF-8: invalid byte at offset 0.");
    assert_eq!(site.ready(&site.dead_letters()).await, 0);
    let reply = client.call("echo", &json!({"text": "still here"})).await;
    assert_eq!(reply.content(), "still here");
    daemon.stop(&site).await;
}

#[tokio::test]
async fn without_an_address_such_a_body_is_dead_lettered_once_and_counted() {
    let receiver = Receiver::start().await.unwrap();
    let endpoint = receiver.grpc_endpoint();
    let more = format!("[tools]\necho = true\n[telemetry]\notlp_endpoint = \"{endpoint}\"\n");
    let (site, daemon, client) = Daemon::with_client(&more).await;
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
