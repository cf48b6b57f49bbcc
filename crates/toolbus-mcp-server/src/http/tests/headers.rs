//! Content of the headers: kinds of content, versions, and repeated fields of the message.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;

use super::fixture::{BOTH, Fixture, JSON, call, hello, message, standing_alone};

const NEW: (&str, &str) = ("mcp-protocol-version", "2026-07-28");

#[tokio::test(start_paused = true)]
async fn clients_must_accept_json_and_event_streams() {
    let world = Fixture::new();
    for accept in ["application/json", "text/event-stream", "text/html", ""] {
        let refusal = world.send(&world.ana, &[JSON, ("accept", accept)], hello().to_string()).await.refusal().await;
        let text = "406 null -32600 The header Accept must allow application/json and text/event-stream.";
        assert_eq!(refusal, text, "{accept}");
    }
    for accept in ["*/*", "application/*, text/*;q=0.5", "TEXT/Event-Stream,application/JSON; charset=utf-8"] {
        let response = world.send(&world.ana, &[JSON, ("accept", accept)], hello().to_string()).await;
        assert_eq!(response.status.as_u16(), 200, "{accept}");
    }
    let split = [JSON, ("accept", "text/event-stream"), ("accept", "application/json")];
    assert_eq!(world.send(&world.ana, &split, hello().to_string()).await.status.as_u16(), 200);
}

#[tokio::test(start_paused = true)]
async fn the_content_type_must_be_json() {
    let world = Fixture::new();
    for kind in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "application/jsonx", ""] {
        let refusal =
            world.send(&world.ana, &[("content-type", kind), BOTH], hello().to_string()).await.refusal().await;
        let text = "415 null -32600 The header Content-Type must be application/json.";
        assert_eq!(refusal, text, "{kind}");
    }
    assert_eq!(world.send(&world.ana, &[BOTH], hello().to_string()).await.status.as_u16(), 415);
    let charset = [("content-type", "Application/JSON; charset=utf-8"), BOTH];
    assert_eq!(world.send(&world.ana, &charset, hello().to_string()).await.status.as_u16(), 200);
}

#[tokio::test(start_paused = true)]
async fn an_unsupported_version_is_refused_with_the_supported_ones() {
    let (world, session) = Fixture::begun().await;
    let headers = [("mcp-session-id", &*session), ("mcp-protocol-version", "1999-01-01")];
    let body = world.post(&world.ana, &headers, &call(1, "echo")).await.json().await;
    assert_eq!(body["error"]["code"], -32022);
    assert_eq!(body["error"]["data"]["supported"][0], "2026-07-28");
    assert_eq!(body["error"]["data"]["requested"], "1999-01-01");
    let twice = [("mcp-session-id", &*session), ("mcp-protocol-version", "2025-11-25"), NEW];
    let refusal = world.post(&world.ana, &twice, &call(1, "echo")).await.refusal().await;
    assert_eq!(refusal, "400 null -32600 The header mcp-protocol-version must have one value, of ASCII.");
    assert_eq!(world.backend.log(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_session_may_leave_its_version_out() {
    let (world, session) = Fixture::begun().await;
    for version in [None, Some("2025-11-25"), Some("2025-06-18")] {
        let version = version.map(|version| ("mcp-protocol-version", version));
        let headers: Vec<_> = [("mcp-session-id", &*session)].into_iter().chain(version).collect();
        assert_eq!(world.post(&world.ana, &headers, &call(1, "echo")).await.status.as_u16(), 200, "{version:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn headers_of_a_stateless_request_must_match_its_message() {
    let world = Fixture::new();
    let echo = || standing_alone(1, "tools/call", json!({"name": "echo", "arguments": {}}));
    let (method, name) = (("mcp-method", "tools/call"), ("mcp-name", "echo"));
    let table: [(&[(&str, &str)], &str); 9] = [
        (&[NEW, method, name], "200 1 null no error"),
        (&[method, name], "400 1 -32020 The header MCP-Protocol-Version is missing."),
        (
            &[("mcp-protocol-version", "2025-11-25"), method, name],
            "400 1 -32020 The header MCP-Protocol-Version names another version than the request's `_meta`.",
        ),
        (&[NEW, name], "400 1 -32020 The header Mcp-Method is missing."),
        (
            &[NEW, ("mcp-method", "tools/list"), name],
            "400 1 -32020 The header Mcp-Method names another method than the request.",
        ),
        (&[NEW, method], "400 1 -32020 The header Mcp-Name is missing."),
        (
            &[NEW, method, ("mcp-name", "wait")],
            "400 1 -32020 The header Mcp-Name names something else than the request.",
        ),
        (&[NEW, method, ("mcp-name", "=?base64?!!?=")], "400 1 -32020 The header Mcp-Name is not valid Base64."),
        (&[NEW, method, name, name], "400 1 -32600 The header mcp-name must have one value, of ASCII."),
    ];
    for (headers, expected) in table {
        assert_eq!(world.post(&world.ana, headers, &echo()).await.refusal().await, expected, "{headers:?}");
    }
    assert_eq!(world.backend.log(), ["began echo", "ended echo"]);
}

#[tokio::test(start_paused = true)]
async fn a_name_that_no_header_can_hold_comes_in_base64() {
    let world = Fixture::new();
    world.backend.has("ana", &["größe\n"]);
    let message = standing_alone(1, "tools/call", json!({"name": "größe\n"}));
    let encoded = format!("=?base64?{}?=", STANDARD.encode("größe\n"));
    let headers = [NEW, ("mcp-method", "tools/call"), ("mcp-name", &*encoded)];
    assert_eq!(world.post(&world.ana, &headers, &message).await.json().await["result"]["isError"], false);
}

#[tokio::test(start_paused = true)]
async fn no_field_of_the_message_disables_the_check_of_the_name_header() {
    let world = Fixture::new();
    for more in [json!({"uri": 7}), json!({"uri": {"a": 1}}), json!({"_meta": {"uri": 1}})] {
        let mut params = json!({"name": "echo", "arguments": {}});
        params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let message = standing_alone(1, "tools/call", params);
        let headers = [NEW, ("mcp-method", "tools/call"), ("mcp-name", "wait")];
        let refusal = world.post(&world.ana, &headers, &message).await.refusal().await;
        assert_eq!(refusal, "400 1 -32020 The header Mcp-Name names something else than the request.", "{more}");
    }
    assert_eq!(world.backend.log(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_stateless_request_must_state_a_supported_version() {
    let world = Fixture::new();
    let headers = [NEW, ("mcp-method", "tools/list")];
    let refusal = world.post(&world.ana, &headers, &message(1, "tools/list", json!({}))).await.refusal().await;
    insta::assert_snapshot!(refusal, @"400 1 -32602 The request's `_meta` lacks, or has malformed: io.modelcontextprotocol/protocolVersion, io.modelcontextprotocol/clientCapabilities.");
    let mut unknown = standing_alone(1, "tools/list", json!({}));
    unknown["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] = "2099-01-01".into();
    let headers = [("mcp-protocol-version", "2099-01-01"), ("mcp-method", "tools/list")];
    let body = world.post(&world.ana, &headers, &unknown).await.json().await;
    assert_eq!((&body["error"]["code"], &body["error"]["data"]["requested"]), (&json!(-32022), &json!("2099-01-01")));
}

#[tokio::test(start_paused = true)]
async fn methods_of_the_other_generation_are_unknown() {
    let (world, session) = Fixture::begun().await;
    for method in ["server/discover", "subscriptions/listen"] {
        let refusal = world.request(&world.ana, &session, &message(1, method, json!({"notifications": {}}))).await;
        let refusal = refusal.refusal().await;
        assert!(refusal.starts_with("200 1 -32601 ") || refusal.starts_with("400 1 -32602 "), "{method}: {refusal}");
    }
    for method in ["ping", "logging/setLevel", "prompts/list", "completion/complete", "made/up"] {
        let refusal = world.alone(&world.ana, 1, method, json!({})).await.refusal().await;
        assert_eq!(refusal, format!("404 1 -32601 There is no method `{method}` here."));
    }
    let again = world.request(&world.ana, &session, &hello()).await;
    assert_ne!(again.headers["mcp-session-id"], *session, "a second handshake begins another session");
}

#[tokio::test(start_paused = true)]
async fn unreadable_narrowing_headers_are_refused() {
    let world = Fixture::new();
    for name in ["rb-binding", "rb-tool-profile"] {
        for values in [&["caf\u{e9}"][..], &["one", "two"]] {
            let headers: Vec<_> = values.iter().map(|value| (name, *value)).collect();
            let expected = format!("The header {name} must have one value, of ASCII.");
            let refusal = world.post(&world.ana, &headers, &hello()).await.refusal().await;
            assert_eq!(refusal, format!("400 0 -32600 {expected}"), "{values:?}");
            let echo = standing_alone(1, "tools/call", json!({"name": "echo"}));
            let all = [NEW, ("mcp-method", "tools/call"), ("mcp-name", "echo")].into_iter().chain(headers);
            let refusal = world.post(&world.ana, &all.collect::<Vec<_>>(), &echo).await.refusal().await;
            assert_eq!(refusal, format!("400 1 -32600 {expected}"), "{values:?}");
        }
    }
    assert_eq!((world.server.sessions(), world.backend.log()), (0, Vec::new()));
}

#[tokio::test(start_paused = true)]
async fn a_session_keeps_its_narrowing_headers() {
    let world = Fixture::new();
    let began = world.post(&world.ana, &[("rb-tool-profile", "small")], &hello()).await;
    let session = began.headers["mcp-session-id"].to_str().unwrap().to_owned();
    let status_with = async |more: &[(&str, &str)]| {
        let headers: Vec<_> = [("mcp-session-id", &*session)].into_iter().chain(more.iter().copied()).collect();
        world.post(&world.ana, &headers, &call(1, "echo")).await.status.as_u16()
    };
    assert_eq!(status_with(&[]).await, 200);
    assert_eq!(status_with(&[("rb-tool-profile", "small")]).await, 200);
    assert_eq!(status_with(&[("rb-tool-profile", "large")]).await, 400);
    assert_eq!(status_with(&[("rb-tool-profile", "small"), ("rb-tool-profile", "large")]).await, 400);
    assert_eq!(status_with(&[("rb-binding", "telegram:ana")]).await, 400);
}
