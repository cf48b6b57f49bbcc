//! Bodies that are no message, or an unacceptable one.

use axum::body::Bytes;
use serde_json::json;

use super::fixture::{BOTH, Fixture, JSON, MAX_BODY, call, cancel, hello, message};

/// Returns the refusal of a body in a session of ana's.
async fn refused(body: impl Into<Bytes>) -> String {
    let (world, session) = Fixture::begun().await;
    let refusal = world.send(&world.ana, &[JSON, BOTH, ("mcp-session-id", &session)], body).await.refusal().await;
    assert_eq!(world.backend.log(), [""; 0], "nothing ran");
    refusal
}

#[tokio::test(start_paused = true)]
async fn an_invalid_or_incomplete_json_body_is_refused() {
    insta::assert_snapshot!(refused(b"\xff\xfe{}".to_vec()).await, @"400 null -32700 The message is no JSON: expected value at line 1 column 1.");
    let invalid = [&b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"p\xffng\"}"[..]].concat();
    insta::assert_snapshot!(refused(invalid).await, @"400 null -32700 The message is no JSON: invalid unicode code point at line 1 column 36.");
    insta::assert_snapshot!(refused("").await, @"400 null -32700 The message is no JSON: EOF while parsing a value at line 1 column 0.");
    insta::assert_snapshot!(refused("hello").await, @"400 null -32700 The message is no JSON: expected value at line 1 column 1.");
    insta::assert_snapshot!(refused(r#"{"jsonrpc":"2.0","id":1,"meth"#).await, @"400 null -32700 The message is no JSON: EOF while parsing a string at line 1 column 29.");
    insta::assert_snapshot!(refused("{} {}").await, @"400 null -32700 The message is no JSON: trailing characters at line 1 column 4.");
}

#[tokio::test(start_paused = true)]
async fn an_error_shortens_the_input_that_it_repeats() {
    let long = "x".repeat(MAX_BODY / 2);
    for body in [
        json!(long),
        json!({"jsonrpc": "2.0", "id": 1, "method": long}),
        json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": long}),
        json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": long}),
        json!({"jsonrpc": "2.0", "id": 1, "method": "resources/read", "params": long}),
        json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": long}),
        json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": long}}),
        json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"cursor": long}}),
    ] {
        let (world, session) = Fixture::begun().await;
        let text = world.request(&world.ana, &session, &body).await.text().await;
        assert!(text.len() < 500 && text.contains(r#""error":{"code":-32"#), "{} bytes: {text:.500}", text.len());
    }
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_levels_neither_end_the_process_nor_reach_a_tool_as_parameters() {
    let deep = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
    let body = |params: String| format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{params}}}"#);
    insta::assert_snapshot!(refused(deep(10_000)).await, @"400 null -32600 Batches are not taken: send one message at a time.");
    let refusal = refused(body(deep(10_000))).await;
    assert_eq!(refusal, "400 1 -32602 The parameters are no JSON object.");
    let refusal = refused(body(format!(r#"{{"name":"echo","arguments":{}}}"#, deep(10_000)))).await;
    assert_eq!(refusal, "200 1 -32602 The arguments are no JSON object.");
    let refusal = refused(body(format!(r#"{{"name":{}}}"#, deep(10_000)))).await;
    assert!(refusal.starts_with("200 1 -32602 "), "{refusal}");
}

#[tokio::test(start_paused = true)]
async fn a_name_that_is_empty_huge_or_no_text_is_refused_or_names_no_tool() {
    let (world, session) = Fixture::begun().await;
    let mut refusals = String::new();
    for name in [json!(""), json!("a\u{0}\u{202e}b"), json!("x".repeat(1_025)), json!(7), json!(null)] {
        let message = message(1, "tools/call", json!({"name": name}));
        refusals += &(world.request(&world.ana, &session, &message).await.refusal().await + "\n");
    }
    let missing = message(1, "tools/call", json!({}));
    refusals += &world.request(&world.ana, &session, &missing).await.refusal().await;
    insta::assert_snapshot!(refusals.escape_debug().to_string().replace("\\n", "\n"), @r"
    200 1 -32602 Tool \'\' is not registered.
    200 1 -32602 Tool \'a\0\u{202e}b\' is not registered.
    200 1 -32602 The name has 1025 bytes; at most 1024 are taken.
    200 1 -32602 The parameters are not what the method takes: invalid type: integer `7`, expected a string at line 1 column 9.
    200 1 -32602 The parameters are not what the method takes: invalid type: null, expected a string at line 1 column 12.
    200 1 -32602 The parameters are not what the method takes: missing field `name` at line 1 column 2.
    ");
    assert_eq!(world.backend.log(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn arguments_that_are_no_object_are_refused() {
    let (world, session) = Fixture::begun().await;
    for arguments in [json!([1]), json!("{}"), json!(7), json!(true)] {
        let message = message(1, "tools/call", json!({"name": "echo", "arguments": arguments}));
        let refusal = world.request(&world.ana, &session, &message).await.refusal().await;
        assert_eq!(refusal, "200 1 -32602 The arguments are no JSON object.", "{arguments}");
    }
    let none = message(1, "tools/call", json!({"name": "echo", "arguments": null}));
    assert_eq!(world.request(&world.ana, &session, &none).await.json().await["result"]["isError"], false);
    assert_eq!(world.backend.log(), ["began echo", "ended echo"]);
}

/// Ambiguous and deep ones are for the checks of arguments.
#[tokio::test(start_paused = true)]
async fn arguments_reach_the_backend_as_they_are_written() {
    let (world, session) = Fixture::begun().await;
    let written = format!(r#"{{"id":"one", "id":"two","deep":{}1{}}}"#, "[".repeat(10_000), "]".repeat(10_000));
    let params = format!(r#"{{"name":"echo","arguments":{written}}}"#);
    let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{params}}}"#);
    let response = world.send(&world.ana, &[JSON, BOTH, ("mcp-session-id", &session)], body).await.json().await;
    assert_eq!(response["result"]["content"][0]["text"], written);
}

#[tokio::test(start_paused = true)]
async fn responses_and_notifications_are_accepted_without_a_response() {
    let (world, session) = Fixture::begun().await;
    let response = json!({"jsonrpc": "2.0", "id": 1, "result": {}});
    let unknown = json!({"jsonrpc": "2.0", "method": "notifications/made_up", "params": {"a": 1}});
    let malformed = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": {}}});
    for body in [response, unknown, malformed, cancel(99)] {
        let response = world.request(&world.ana, &session, &body).await;
        assert_eq!((response.status.as_u16(), response.text().await.as_str()), (202, ""), "{body}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_handshake_without_a_version_is_refused_and_begins_no_session() {
    let world = Fixture::new();
    for params in [json!({}), json!({"protocolVersion": 7}), json!(["2025-11-25"])] {
        let refusal = world.post(&world.ana, &[], &message(1, "initialize", params)).await.refusal().await;
        assert!(refusal.starts_with("400 1 -32602 The parameters are no"), "{refusal}");
    }
    assert_eq!(world.server.sessions(), 0);
    world.post(&world.ana, &[], &hello()).await;
    assert_eq!(world.server.sessions(), 1);
}

#[tokio::test(start_paused = true)]
async fn ids_that_are_written_in_other_letters_are_the_same() {
    let (world, session) = Fixture::begun().await;
    let raw = |id: &str| format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"wait"}}}}"#);
    let headers = [JSON, BOTH, ("mcp-session-id", &*session)];
    let first = world.send(&world.ana, &headers, raw(r#""a/é""#));
    tokio::pin!(first);
    assert!(futures_util::poll!(&mut first).is_pending());
    let second = world.send(&world.ana, &headers, raw(r#""\u0061\/\u00e9""#)).await.refusal().await;
    insta::assert_snapshot!(second, @r#"200 "a/é" -32600 A request of the id "a/é" is under way in this session. Use each id once."#);
    let cancelled = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"\u0061/é"}}"#;
    world.send(&world.ana, &headers, cancelled).await;
    assert_eq!(first.await.event().await, None, "a request that was cancelled gets no response");
    assert_eq!(world.request(&world.ana, &session, &call(2, "echo")).await.status.as_u16(), 200);
}
