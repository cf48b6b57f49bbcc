//! Responses of Streamable HTTP that are too much, too little or none.

use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::response::{IntoResponse as _, Response};
use futures_util::{StreamExt as _, stream};
use rmcp::transport::Transport as _;
use serde_json::{Value, json};
use tokio::sync::{Barrier, Notify};
use toolbus_core::failure::Cause;
use toolbus_core::results::ResultBudget;
use toolbus_testing::patience::eventually;

use super::server::{
    Open, RecordedRequest, Server, endless, events, json_of, orderly, result_of, silent_after, status, text_result,
};
use super::{begin, begun, call, called, cancel, error_of, open, opener, received, response_of};
use crate::client::message;
use crate::spec::HttpKind;
use crate::transport::http::{HttpTransport, classify};
use crate::transport::{LargeMessages, MAX_VALUES};

/// Room that the two ends of a connection and the parser need beside the limit.
const SLACK: usize = 16 * 1024 * 1024;
const LIMIT: usize = 16 * 1024 * 1024;

/// A server that responds to calls by `respond`, and to other requests in order.
async fn responding(respond: impl Fn(&RecordedRequest) -> Response + Send + Sync + 'static) -> Server {
    Server::responding("tools/call", respond).await
}

/// The response with this result: to the call 1 by JSON, to others by an event.
fn by_both_ways(request: &RecordedRequest, result: &Value) -> Response {
    let response = json!({ "jsonrpc": "2.0", "id": request.id(), "result": result });
    if request.id() == 1 { json_of(&response) } else { events(format!("data: {response}\n\n")) }
}

#[tokio::test]
async fn json_and_events_are_responses() {
    let server = responding(|request| {
        by_both_ways(request, &text_result(if request.id() == 1 { "by JSON" } else { "by event" }))
    })
    .await;
    let mut transport = begun(&server.url).await;
    for (id, text) in [(1, "by JSON"), (2, "by event")] {
        assert_eq!(called(&mut transport, id).await["result"]["content"][0]["text"], text);
    }
    let request = server.requests().pop().unwrap();
    assert_eq!(request.header("user-agent"), Some(concat!("toolbus/", env!("CARGO_PKG_VERSION"))));
    assert_eq!(request.header("mcp-protocol-version"), Some("2025-06-18"));
    assert_eq!(request.header("accept"), Some("application/json, text/event-stream"));
}

#[tokio::test]
async fn an_event_is_read_like_the_same_json() {
    let tools = json!([{ "name": "bad" }]);
    let table = [
        json!({ "jsonrpc": "2.0", "id": 1, "result": text_result("text"), "error": null }),
        json!({ "jsonrpc": "2.0", "id": 2, "result": { "_meta": {}, "tools": tools, "nextCursor": "2" } }),
        json!({ "jsonrpc": "2.0", "id": "3", "result": { "_meta": { "a": 1 }, "resultType": "other" } }),
        json!({ "jsonrpc": "2.0", "id": 4, "error": { "code": -32_000, "message": "no", "data": [1] } }),
        json!({ "jsonrpc": "2.0", "id": 5, "result": { "tools": [{ "name": "good", "inputSchema": {} }] } }),
        json!({ "jsonrpc": "2.0", "id": 6, "result": text_result(&"x".repeat(LIMIT - 1000)) }),
        json!({ "jsonrpc": "2.0", "error": { "code": -32_000, "message": "an error that names no request" } }),
    ];
    let responses = table.clone();
    let server = responding(move |request| {
        let response = &responses[usize::try_from(request.id().as_u64().unwrap()).unwrap() - 1];
        // rmcp drops a second response.
        let second = json!({ "jsonrpc": "2.0", "id": request.id(), "result": text_result("second") });
        events(format!("data: {response}\n\ndata: {second}\n\n"))
    })
    .await;
    let HttpTransport::Streamable(mut transport) = begun(&server.url).await else { unreachable!() };
    for (id, response) in (1..).zip(&table) {
        transport.worker.send(call(id)).await.unwrap();
        let received = transport.receive().await.unwrap();
        let read = message::read(response.to_string().as_bytes()).unwrap();
        assert_eq!(format!("{received:?}"), format!("{read:?}"));
    }
    // rmcp reads on for less than this.
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(transport.client.event_responses().0.lock().is_empty());
}

#[tokio::test]
async fn an_event_over_the_limit_fails_the_call_with_a_text_and_is_not_kept() {
    let sent = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&sent);
    let server = responding(move |request| match request.id() == 1 {
        true => events(endless("x", &counter)),
        false => result_of(request, &text_result("still here")),
    })
    .await;
    let mut transport = begun(&server.url).await;
    let response = called(&mut transport, 1).await;
    let text = response["error"]["message"].as_str().unwrap();
    assert!(text.ends_with("sent an event of more than 16777216 bytes. Ask for less."), "{text}");
    let taken = sent.load(Ordering::Relaxed);
    assert!((LIMIT..LIMIT + SLACK).contains(&taken), "{taken}");
    assert_eq!(called(&mut transport, 2).await["result"], text_result("still here"));
}

#[tokio::test]
async fn a_json_body_over_the_limit_fails_the_call_and_is_not_kept() {
    let sent = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&sent);
    let server = responding(move |_| ([("content-type", "application/json")], endless("x", &counter)).into_response());
    let error = error_of(&server.await).await;
    assert_eq!(classify(&error), Some(Cause::ResultTooLarge));
    assert!(error.to_string().ends_with("answered more than 16777216 bytes"), "{error}");
    let taken = sent.load(Ordering::Relaxed);
    assert!((LIMIT..LIMIT + SLACK).contains(&taken), "{taken}");
}

/// The result of a call that has too many values.
fn crowded() -> Value {
    json!({ "content": [], "structuredContent": { "a": vec![0; MAX_VALUES] } })
}

#[tokio::test]
async fn a_response_of_too_many_values_fails_the_call_with_a_text() {
    let server = responding(|request| by_both_ways(request, &crowded())).await;
    let mut transport = begun(&server.url).await;
    let error = transport.send(call(1)).await.unwrap_err();
    assert_eq!(classify(&error), Some(Cause::ResultTooLarge));
    assert!(error.to_string().ends_with("answered more than 500000 values"), "{error}");
    let response = called(&mut transport, 2).await;
    assert_eq!(response["id"], 2);
    assert_eq!(response["error"]["message"], "its server sent an event of more than 500000 values. Ask for less.");
}

#[tokio::test]
async fn an_event_of_too_many_values_is_left_out_of_the_stream_of_notifications() {
    let note = json!({ "jsonrpc": "2.0", "method": "notifications/tools/list_changed" });
    let crowd = json!({ "jsonrpc": "2.0", "id": 1, "result": crowded() });
    let text = format!("data: {crowd}\n\ndata: {note}\n\n");
    let server = Server::streaming(move |_| silent_after(&text, &Arc::default())).await;
    let mut transport = begun(&server.url).await;
    assert_eq!(received(&mut transport).await, note);
}

/// The response to a call whose stream ends and, once it is resumed, has this result.
async fn resumed(result: impl Display) -> Value {
    let text = format!("data: {{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{result}}}\n\n");
    let server = Server::start(move |request| match request.header("last-event-id") {
        Some(_) => events(text.clone()),
        None if request.does("tools/call") => events("id: 1\nretry: 500\n\n"),
        None => orderly(request),
    });
    response_of(&server.await).await
}

#[tokio::test]
async fn a_response_of_too_many_values_by_a_resumed_stream_fails_the_call() {
    let response = resumed(crowded()).await;
    assert_eq!(response["id"], 1);
    assert_eq!(response["error"]["message"], "its server sent an event of more than 500000 values. Ask for less.");
}

#[tokio::test]
async fn the_body_of_a_refusal_is_not_read_for_long() {
    let sent = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&sent);
    let server = responding(move |_| {
        let mut response = status(500, "");
        *response.body_mut() = endless("x", &counter);
        response
    });
    let error = error_of(&server.await).await;
    assert_eq!(error.status, Some(500));
    assert!(sent.load(Ordering::Relaxed) < SLACK);
}

#[tokio::test]
async fn an_invalid_response_fails_the_call_at_once() {
    let other_id = json!({ "jsonrpc": "2.0", "id": 99, "result": text_result("for another client") }).to_string();
    let table = [
        ("application/json", "", "JSON that is no answer to the request"),
        ("application/json", "{\"half\":", "JSON that is no answer to the request"),
        ("application/json", "[]", "JSON that is no answer to the request"),
        ("application/json", other_id.as_str(), "JSON that is no answer to the request"),
        ("text/html", "<h1>Welcome</h1>", "neither JSON nor events: check the path of its URL"),
    ];
    for (kind, body, expected) in table {
        let (kind, body) = (kind.to_owned(), body.to_owned());
        let server = responding(move |_| ([("content-type", kind.clone())], body.clone()).into_response()).await;
        let error = error_of(&server).await;
        assert_eq!(classify(&error), Some(Cause::InvalidResult));
        assert!(error.to_string().ends_with(expected), "{error}");
    }
}

#[tokio::test]
async fn a_call_and_a_handshake_go_on_after_events_that_are_no_messages() {
    let info = json!({ "name": "a", "version": "1" });
    let begun = json!({ "protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": info });
    for (method, result, expected) in
        [("tools/call", text_result("at last"), "at last"), ("initialize", begun, "hello")]
    {
        let server = Server::responding(method, move |request| {
            let response = json!({ "jsonrpc": "2.0", "id": request.id(), "result": result });
            events(format!(": comment\n\nnonsense\n\nevent: ping\ndata: x\n\ndata: {{half\n\ndata: {response}\n\n"))
        })
        .await;
        assert_eq!(response_of(&server).await["result"], text_result(expected), "{method}");
    }
}

fn deep() -> String {
    format!("{}{}", "[".repeat(200), "]".repeat(200))
}

#[tokio::test]
async fn an_unreadable_event_is_a_response_without_a_result() {
    for result in [deep(), r#"{"content":"\ud83d"}"#.to_owned()] {
        for head in ["", "id: 1\n"] {
            let result = result.clone();
            let server = responding(move |request| {
                events(format!("{head}data: {{\"jsonrpc\":\"2.0\",\"id\":{},\"result\":{result}}}\n\n", request.id()))
            })
            .await;
            assert_eq!(response_of(&server).await, json!({ "jsonrpc": "2.0", "id": 1, "result": null }));
        }
    }
}

#[tokio::test]
async fn an_unreadable_response_by_a_resumed_stream_has_no_result() {
    assert_eq!(resumed(deep()).await, json!({ "jsonrpc": "2.0", "id": 1, "result": null }));
}

#[tokio::test]
async fn one_definition_in_an_event_that_is_nested_too_deep_does_not_hide_the_others() {
    let server = Server::responding("tools/list", |request| {
        let page = format!(r#"{{"tools":[{{"name":"bad","inputSchema":{}}},{{"name":"good"}}]}}"#, deep());
        events(format!("data: {{\"jsonrpc\":\"2.0\",\"id\":{},\"result\":{page}}}\n\n", request.id()))
    })
    .await;
    let mut transport = begun(&server.url).await;
    transport.send(super::message(json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list" }))).await.unwrap();
    let response = received(&mut transport).await;
    assert_eq!(response["result"]["tools"], json!([{ "name": "bad" }, { "name": "good" }]));
}

#[tokio::test]
async fn a_stream_that_ends_without_the_response_fails_the_call() {
    for text in ["", "data: {}\n\n", "data: half"] {
        let response = response_of(&responding(move |_| events(text)).await).await;
        assert_eq!((&response["id"], &response["error"]["code"]), (&json!(1), &json!(-32603)), "{text}");
    }
}

#[tokio::test]
async fn the_error_of_a_refusal_is_passed_on_with_the_id_of_the_request() {
    let server = responding(|_| {
        let error = json!({ "code": -32000, "message": "bad request" });
        let mut response = json_of(&json!({ "jsonrpc": "2.0", "id": "server-error", "error": error }));
        *response.status_mut() = axum::http::StatusCode::BAD_REQUEST;
        response
    })
    .await;
    let response = called(&mut begun(&server.url).await, 7).await;
    assert_eq!(response, json!({ "jsonrpc": "2.0", "id": 7, "error": { "code": -32000, "message": "bad request" } }));
}

#[tokio::test]
async fn discovery_that_is_refused_with_a_status_ends_with_an_error() {
    let discover = || {
        let meta = json!({
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": { "name": "test", "version": "0" },
            "io.modelcontextprotocol/clientCapabilities": {},
        });
        super::message(json!({ "jsonrpc": "2.0", "id": 5, "method": "server/discover", "params": { "_meta": meta } }))
    };
    for code in [400, 404, 405, 422] {
        let server = Server::responding("server/discover", move |_| status(code, "no")).await;
        let mut transport = open(&server.url, HttpKind::Streamable).await.unwrap();
        transport.send(discover()).await.unwrap();
        let response = received(&mut transport).await;
        assert_eq!((&response["id"], &response["error"]["code"]), (&json!(5), &json!(-32600)), "{code}");
        begin(&mut transport).await.unwrap();
        assert_eq!(called(&mut transport, 6).await["result"], text_result("hello"));
    }
}

/// A server that hangs at some messages, before or after the head of its response; the number of hanging responses.
async fn hanging(has_head: bool, hangs: fn(&RecordedRequest) -> bool) -> (Server, Arc<AtomicUsize>) {
    let open = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&open);
    let server = Server::slow(move |request| {
        let counter = Arc::clone(&counter);
        Box::pin(async move {
            if !hangs(&request) {
                return orderly(&request);
            }
            if has_head {
                return silent_after(": wait\n\n", &counter);
            }
            let _open = Open::new(&counter);
            std::future::pending().await
        })
    });
    (server.await, open)
}

fn is_first_call(request: &RecordedRequest) -> bool {
    request.does("tools/call") && request.id() == 1
}

async fn until(count: usize, open: &AtomicUsize) {
    eventually("the number of open responses", async || (open.load(Ordering::SeqCst) == count).then_some(())).await;
}

#[tokio::test]
async fn a_hanging_call_delays_no_other_and_ends_when_cancelled() {
    for has_head in [true, false] {
        let (server, open) = hanging(has_head, is_first_call).await;
        let mut transport = begun(&server.url).await;
        let hanging = tokio::spawn(transport.send(call(1)));
        until(1, &open).await;
        assert_eq!(called(&mut transport, 2).await["id"], 2);
        transport.send(cancel(1)).await.unwrap();
        until(0, &open).await;
        hanging.await.unwrap().unwrap();
        assert_eq!(server.count("notifications/cancelled"), 1);
    }
}

#[tokio::test]
async fn a_request_whose_sender_is_gone_ends() {
    let (server, open) = hanging(false, is_first_call).await;
    let mut transport = begun(&server.url).await;
    let hanging = tokio::spawn(transport.send(call(1)));
    until(1, &open).await;
    hanging.abort();
    until(0, &open).await;
}

#[tokio::test]
async fn a_handshake_that_hangs_ends_with_the_connection() {
    for has_head in [true, false] {
        for is_dropped in [true, false] {
            let (server, open_responses) = hanging(has_head, |_| true).await;
            let mut transport = open(&server.url, HttpKind::Streamable).await.unwrap();
            let mut sending = tokio::spawn(transport.send(super::initialize()));
            until(1, &open_responses).await;
            if has_head {
                (&mut sending).await.unwrap().unwrap();
            }
            if is_dropped {
                drop(transport);
            } else {
                transport.close().await.unwrap();
            }
            until(0, &open_responses).await;
            assert!(has_head || sending.await.unwrap().is_err());
        }
    }
}

#[tokio::test]
async fn a_handshake_that_is_cut_short_has_a_reason() {
    let server = Server::start(|_| events(Body::from(format!("data: {}\n\n", "x".repeat(LIMIT + 1))))).await;
    let mut transport = open(&server.url, HttpKind::Streamable).await.unwrap();
    transport.send(super::initialize()).await.unwrap();
    let response = received(&mut transport).await;
    assert_eq!(response["error"]["message"], "its server sent an event of more than 16777216 bytes. Ask for less.");

    let breaking = Arc::new(Notify::new());
    let broken = Arc::clone(&breaking);
    let server = Server::start(move |_| {
        let broken = Arc::clone(&broken);
        let end = async move {
            broken.notified().await;
            Err(std::io::Error::other("broken"))
        };
        let begin = stream::iter([Ok(Bytes::from_static(b": wait\n\n"))]);
        events(Body::from_stream(begin.chain(stream::once(end))))
    })
    .await;
    let mut transport = open(&server.url, HttpKind::Streamable).await.unwrap();
    transport.send(super::initialize()).await.unwrap();
    breaking.notify_one();
    assert!(transport.receive().await.is_none());
    assert!(transport.failure().get().unwrap().ends_with("ended before the answer was complete"));
}

#[tokio::test]
async fn a_hundred_calls_are_on_their_way_at_a_time() {
    const CALLS: usize = 100;
    let barrier = Arc::new(Barrier::new(CALLS));
    let server = Server::slow(move |request| {
        let barrier = Arc::clone(&barrier);
        Box::pin(async move {
            if request.does("tools/call") {
                barrier.wait().await;
            }
            orderly(&request)
        })
    });
    let server = server.await;
    let mut transport = begun(&server.url).await;
    for id in 1..=CALLS {
        tokio::spawn(transport.send(call(i64::try_from(id).unwrap())));
    }
    let mut ids: Vec<Value> = Vec::new();
    for _ in 0..CALLS {
        ids.push(received(&mut transport).await["id"].clone());
    }
    ids.sort_by_key(Value::as_i64);
    assert_eq!(ids, (1..=CALLS).map(|id| json!(id)).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_large_response_is_read_where_results_have_room_for_it() {
    let text = "x".repeat(LIMIT + 1);
    let server = responding(move |request| by_both_ways(request, &text_result(&text))).await;
    let budget = ResultBudget::new(32 << 20, 32 << 20);
    let opener = opener(&server.url, HttpKind::Streamable, None)
        .with_large(LargeMessages { results: Some(budget.clone()), ..LargeMessages::default() });
    let mut transport = opener.open().await.unwrap();
    begin(&mut transport).await.unwrap();
    for id in [1, 2] {
        let response = called(&mut transport, id).await;
        assert_eq!(response["result"]["content"][0]["text"].as_str().map(str::len), Some(LIMIT + 1));
    }
    drop(transport);
    eventually("all room to be free", async || budget.room().take("t", 32 << 20).ok()).await;
}
