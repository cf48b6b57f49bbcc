//! Reply to a call whose tool does not behave.

use std::fmt::Write as _;

use serde_json::json;
use toolbus_e2e::backend::Backend;
use toolbus_e2e::daemon::Daemon;

#[tokio::test]
async fn the_method_decides_whether_a_timeout_may_be_retried_and_its_text_has_the_whole_limit() {
    let backend = Backend::start().await;
    let parameters = r#"{"type":"object","properties":{"id":{"type":"string"}},"required":["id"]}"#;
    let tool = |name: &str, keys: &str| {
        backend.endpoint_by_default(name, "/gate?id={id}", parameters, &format!("timeout = \"1s\"\n{keys}"))
    };
    let tools = [
        tool("look", ""),
        tool("put", "method = \"PUT\""),
        tool("post", "method = \"POST\""),
        tool("act", "effect = \"effectful\""),
    ];
    let (site, daemon, client) = Daemon::with_client(&tools.concat()).await;
    let mut calls: Vec<_> = ["look", "put", "post", "act"].map(|tool| (tool, "1000")).into();
    // A limit of the caller's own, below the tool's.
    calls.push(("look", "600"));
    let requests: Vec<_> = calls
        .iter()
        .map(|(tool, limit)| client.request(tool, &json!({"id": tool})).header("rb-timeout-ms", limit))
        .collect();
    for request in &requests {
        client.send(request).await;
    }
    let mut results = String::new();
    for ((tool, limit), request) in calls.iter().zip(&requests) {
        let body = client.reply(request).await.body();
        let text = |name: &str| body.get(name).and_then(serde_json::Value::as_str).unwrap_or("-").to_owned();
        let [code, outcome, message] = ["code", "outcome", "message"].map(text);
        writeln!(results, "{tool} in {limit} ms: {code} | {outcome} | retryable {} | {message}", body["isRetryable"])
            .unwrap();
    }
    insta::assert_snapshot!(results, @"
    look in 1000 ms: timeout | - | retryable true | Tool 'look' did not answer within 1 s.
    put in 1000 ms: timeout | unknown | retryable true | Tool 'put' did not answer within 1 s. It may have had its effect: calling again may repeat that.
    post in 1000 ms: timeout | unknown | retryable true | Tool 'post' did not answer within 1 s. It may have had its effect: calling again may repeat that.
    act in 1000 ms: timeout | unknown | retryable false | Tool 'act' did not answer within 1 s. Whether it had its effect is not known: find out before calling again.
    look in 600 ms: timeout | - | retryable true | Tool 'look' did not answer within 600 ms.
    ");
    backend.open();
    daemon.stop(&site).await;
}

#[tokio::test]
async fn results_that_are_too_large_or_no_text_are_failures_with_one_reply_each() {
    let backend = Backend::start().await;
    let any = r#"{"type":"object"}"#;
    let tools = [
        backend.endpoint("fits", "/bytes/1024", any, "max_response = \"1KiB\""),
        backend.endpoint("over", "/bytes/1025", any, "max_response = \"1KiB\""),
        backend.endpoint("huge", "/bytes/104857600", any, ""),
        backend.endpoint("over_the_bus", "/bytes/20000000", any, "max_response = \"64MiB\""),
        backend.endpoint("garbage", "/garbage", any, ""),
        backend.endpoint("unavailable", "/status/503", any, "effect = \"read-only\""),
        backend.endpoint("teapot", "/status/418", any, ""),
        backend.endpoint("nobody", "", any, "").replace(&backend.port(), "1"),
    ];
    let (site, daemon, client) = Daemon::with_client(&tools.concat()).await;
    assert_eq!(client.call("fits", &json!({})).await.content().len(), 1024);
    let mut errors = Vec::new();
    for tool in ["over", "huge", "over_the_bus", "garbage", "unavailable", "teapot", "nobody"] {
        let body = client.call(tool, &json!({})).await.body();
        let text = |name: &str| body.get(name).and_then(serde_json::Value::as_str).unwrap_or("-").to_owned();
        let line = [text("code"), text("outcome"), text("message"), text("content")].join(" | ");
        errors.push(format!("{tool}: {line} | retryable {}", body["isRetryable"]));
    }
    insta::assert_snapshot!(errors.join("\n"), @"
    over: execution_failed | unknown | Tool 'over' answered with more than the 1024 bytes that are allowed. Ask for less. Whether it had its effect is not known: find out before calling again. | - | retryable false
    huge: execution_failed | unknown | Tool 'huge' answered with more than the 1048576 bytes that are allowed. Ask for less. Whether it had its effect is not known: find out before calling again. | - | retryable false
    over_the_bus: execution_failed | unknown | The result is too large to be sent: 20000000 bytes, and the limit is 16711680. Ask the tool for less at a time. Whether it had its effect is not known: find out before calling again. | - | retryable false
    garbage: execution_failed | unknown | Tool 'garbage' answered with application/octet-stream, which is not text. Whether it had its effect is not known: find out before calling again. | - | retryable false
    unavailable: execution_failed | - | Tool 'unavailable' cannot serve now: HTTP 503 Service Unavailable. | - | retryable true
    teapot: - | - | - | HTTP 418 I'm a teapot: as asked | retryable null
    nobody: execution_failed | not_started | Tool 'nobody' could not be reached: there was no connection. Nothing was sent; try again later. | - | retryable true
    ");
    assert_eq!(client.received().len(), 8, "one reply each");
    daemon.stop(&site).await;
}
