//! Sessions of Streamable HTTP.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::http::{Method, StatusCode};
use rmcp::transport::Transport as _;
use serde_json::json;
use tokio::time::Instant;
use toolbus_testing::patience::eventually;

use super::server::{Server, events, json_of, orderly, silent_after, status, text_result};
use super::{begun, called, error_of, open, received, response_of};
use crate::spec::HttpKind;

#[tokio::test]
async fn a_session_that_the_server_forgot_is_opened_again_and_the_call_repeated() {
    let calls = AtomicUsize::new(0);
    let server = Server::responding("tools/call", move |request| match calls.fetch_add(1, Ordering::SeqCst) {
        0 => status(404, "no such session"),
        _ => orderly(request),
    })
    .await;
    assert_eq!(response_of(&server).await["result"], text_result("hello"));
    assert_eq!([server.count("initialize"), server.count("tools/call")], [2, 2]);
}

#[tokio::test]
async fn a_forgotten_session_is_recognised_by_the_error_text() {
    let table = [(-32000, "Bad Request: No valid session ID provided", 2), (-32602, "session_id is not a number", 1)];
    for (code, message, sessions) in table {
        let calls = AtomicUsize::new(0);
        let server = Server::responding("tools/call", move |request| {
            if calls.fetch_add(1, Ordering::SeqCst) > 0 {
                return orderly(request);
            }
            let mut refusal = json_of(&json!({"jsonrpc": "2.0", "error": {"code": code, "message": message}}));
            *refusal.status_mut() = StatusCode::BAD_REQUEST;
            refusal
        })
        .await;
        let response = response_of(&server).await;
        assert_eq!(response["result"] == text_result("hello"), sessions == 2, "{response}");
        assert_eq!([server.count("initialize"), server.count("tools/call")], [sessions, sessions], "{message}");
    }
}

#[tokio::test]
async fn a_session_that_cannot_be_opened_again_fails_the_call() {
    let server = Server::responding("tools/call", |_| status(404, "no such session")).await;
    insta::assert_snapshot!(error_of(&server).await, @"the MCP server no longer knows the session");
}

#[tokio::test]
async fn a_session_is_deleted_when_the_connection_is_closed_or_dropped() {
    for is_dropped in [true, false] {
        let server = Server::start(orderly).await;
        let mut transport = begun(&server.url).await;
        if is_dropped {
            drop(transport);
        } else {
            transport.close().await.unwrap();
        }
        let deletion = server.wait_for_request("the deletion", |request| request.method == Method::DELETE).await;
        assert_eq!(deletion.header("mcp-session-id"), Some("s1"));
    }
}

#[tokio::test]
async fn an_unusable_name_of_a_session_is_refused() {
    let server = Server::start(|request| {
        let mut response = orderly(request);
        response.headers_mut().insert("mcp-session-id", "x".repeat(2000).parse().unwrap());
        response
    })
    .await;
    let mut transport = open(&server.url, HttpKind::Streamable).await.unwrap();
    let error = transport.send(super::initialize()).await.unwrap_err();
    assert!(error.to_string().ends_with("named an unusable session"), "{error}");
}

#[tokio::test]
async fn notifications_come_by_a_stream_of_their_own() {
    let open = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&open);
    let note = json!({ "jsonrpc": "2.0", "method": "notifications/tools/list_changed" });
    let server = Server::streaming(move |_| silent_after(&format!("data: {note}\n\n"), &counter)).await;
    let mut transport = begun(&server.url).await;
    assert_eq!(received(&mut transport).await["method"], "notifications/tools/list_changed");
    transport.close().await.unwrap();
    eventually("the end of the stream", async || (open.load(Ordering::SeqCst) == 0).then_some(())).await;
}

#[tokio::test]
async fn a_stream_of_notifications_that_was_interrupted_counts_as_a_change() {
    let streams = AtomicUsize::new(0);
    let server = Server::streaming(move |_| match streams.fetch_add(1, Ordering::SeqCst) {
        0 => events("retry: 500\n\n"),
        _ => silent_after(": wait\n\n", &Arc::default()),
    })
    .await;
    let mut transport = begun(&server.url).await;
    assert_eq!(received(&mut transport).await["method"], "notifications/tools/list_changed");
    assert_eq!(called(&mut transport, 1).await["result"], text_result("hello"), "it counts once");
}

#[tokio::test]
async fn streams_that_soon_end_count_as_one_change_a_minute() {
    let server = Server::streaming(|_| events("retry: 500\n\n")).await;
    let mut transport = begun(&server.url).await;
    assert_eq!(received(&mut transport).await["method"], "notifications/tools/list_changed");
    let first = server.streams();
    let many = eventually("further streams", async || (server.streams() >= first + 2).then_some(()));
    tokio::select! {
        biased;
        message = received(&mut transport) => panic!("{message}"),
        () = many => {}
    }
}

#[tokio::test]
async fn a_server_without_a_stream_of_notifications_works() {
    for code in [400, 404, 405, 501] {
        let server = Server::streaming(move |_| status(code, "no")).await;
        let mut transport = begun(&server.url).await;
        server.wait_for_request("the stream", |request| request.method == Method::GET).await;
        assert_eq!(called(&mut transport, 1).await["result"], text_result("hello"));
        assert_eq!(server.streams(), 1, "{code}");
    }
}

#[tokio::test]
async fn a_stream_that_always_ends_is_requested_again_after_a_pause() {
    let server = Server::streaming(|_| events("id: 1\nretry: 0\n\n")).await;
    let began = Instant::now();
    let mut transport = begun(&server.url).await;
    server.wait_for_request("the stream", |request| request.method == Method::GET).await;
    for id in 1..=50 {
        called(&mut transport, id).await;
    }
    let streams = server.streams();
    let most = 2 + usize::try_from(began.elapsed().as_millis() / 500).unwrap();
    assert!(streams <= most, "{streams} streams for 50 calls");
}
