//! Finding out which transport a server speaks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::http::Method;
use axum::response::{IntoResponse as _, Response};
use rmcp::transport::Transport as _;
use serde_json::json;
use tokio_util::sync::CancellationToken;
use toolbus_core::events::{Discard, McpClientEvents};
use tracing::Span;

use super::server::{RecordedRequest, Server, json_of, orderly, result_of, silent_after, status, text_result};
use super::{begin, called, endpoint, opener};
use crate::process::Launcher;
use crate::spec::{HttpKind, ServerSpec, TransportSpec};
use crate::supervise::connect::Connector;
use crate::transport::http::{HttpOpenError, HttpTransport};

/// A server of HTTP+SSE that refuses posts to its URL with `code`.
fn only_sse(request: &RecordedRequest, code: u16) -> Response {
    match request.method {
        Method::GET => silent_after("event: endpoint\ndata: /messages\n\n", &Arc::default()),
        _ if request.path == "/messages" => status(202, ""),
        _ => status(code, "Cannot POST /mcp"),
    }
}

fn refusal_in_json(code: u16) -> Response {
    let error = json!({ "code": -32000, "message": "no valid session" });
    let mut response = json_of(&json!({ "jsonrpc": "2.0", "id": null, "error": error }));
    *response.status_mut() = code.try_into().unwrap();
    response
}

/// A server that responds by `before`, and by `after` once the flag is set.
async fn replaced(
    before: fn(&RecordedRequest) -> Response,
    after: fn(&RecordedRequest) -> Response,
) -> (Server, Arc<AtomicBool>) {
    let is_replaced = Arc::new(AtomicBool::new(false));
    let replaced = Arc::clone(&is_replaced);
    let respond =
        move |request: &RecordedRequest| if replaced.load(Ordering::SeqCst) { after(request) } else { before(request) };
    (Server::start(respond).await, is_replaced)
}

#[tokio::test]
async fn a_server_that_takes_messages_at_its_url_speaks_streamable_http() {
    let table: [fn(&RecordedRequest) -> Response; 7] = [
        |request| result_of(request, &json!({})),
        |_| status(202, ""),
        |_| refusal_in_json(400),
        |_| refusal_in_json(404),
        |_| refusal_in_json(405),
        |_| status(406, ""),
        |_| status(422, "expected initialize"),
    ];
    for respond in table {
        let server = Server::responding("ping", respond).await;
        let opener = opener(&server.url, HttpKind::Detect, None);
        assert_eq!(opener.kind_name(), "http?");
        let mut transport = opener.open().await.unwrap();
        assert_eq!(opener.kind_name(), "http");
        begin(&mut transport).await.unwrap();
        assert_eq!(called(&mut transport, 1).await["result"], text_result("hello"));
        opener.open().await.unwrap();
        assert_eq!(server.count("ping"), 1, "what was found out is remembered");
    }
}

#[tokio::test]
async fn a_server_that_refuses_posts_is_tried_as_sse() {
    for code in [400, 404, 405] {
        let server = Server::start(move |request| only_sse(request, code)).await;
        let opener = opener(&server.url, HttpKind::Detect, None);
        assert!(matches!(opener.open().await.unwrap(), HttpTransport::Sse(_)));
        assert_eq!(opener.kind_name(), "sse");
        opener.open().await.unwrap();
        assert_eq!(server.count("ping"), 1, "what was found out is remembered");
    }
}

#[tokio::test]
async fn a_change_of_transport_is_detected_after_a_failure() {
    let (server, is_replaced) = replaced(|request| only_sse(request, 405), orderly).await;
    let opener = opener(&server.url, HttpKind::Detect, None);
    opener.open().await.unwrap();
    is_replaced.store(true, Ordering::SeqCst);
    assert!(opener.open().await.is_err());
    assert_eq!(opener.kind_name(), "http?");
    assert!(matches!(opener.open().await.unwrap(), HttpTransport::Streamable(_)));
}

#[tokio::test]
async fn a_web_page_is_not_remembered_as_a_server() {
    let page = |_: &RecordedRequest| ([("content-type", "text/html")], "<h1>Back soon</h1>").into_response();
    let (server, is_there) = replaced(page, |request| only_sse(request, 405)).await;
    let opener = opener(&server.url, HttpKind::Detect, None);
    assert!(matches!(opener.open().await.unwrap(), HttpTransport::Streamable(_)));
    assert_eq!(opener.kind_name(), "http?");
    is_there.store(true, Ordering::SeqCst);
    assert!(matches!(opener.open().await.unwrap(), HttpTransport::Sse(_)));
}

#[tokio::test]
async fn a_detected_transport_is_forgotten_after_a_failed_connection() {
    let (server, is_replaced) = replaced(orderly, |request| only_sse(request, 405)).await;
    let spec = ServerSpec::of_tests("remote", TransportSpec::Http(endpoint(&server.url, HttpKind::Detect)));
    let observer: Arc<dyn McpClientEvents> = Arc::new(Discard);
    let connector = Connector::new(&spec, None, &Launcher::of_tests(Duration::ZERO), &observer);
    let (given_up, span) = (CancellationToken::new(), Span::none());
    let connect = async || connector.connect(Duration::from_secs(60), &given_up, &span).await;
    connect().await.unwrap().close(Duration::from_secs(5)).await;
    assert_eq!(connector.transport_name(), "http");
    is_replaced.store(true, Ordering::SeqCst);
    connect().await.err().unwrap();
    assert_eq!(connector.transport_name(), "http?");
}

#[tokio::test]
async fn no_transport_is_remembered_of_a_server_that_supports_neither() {
    for code in [400, 404, 405, 500, 503] {
        let server = Server::start(move |_| status(code, "no")).await;
        let opener = opener(&server.url, HttpKind::Detect, None);
        match opener.open().await {
            Ok(mut transport) => assert_eq!(transport.send(super::initialize()).await.unwrap_err().status, Some(code)),
            Err(HttpOpenError::Other(text)) => assert!(text.contains(&format!("answered HTTP {code}; ")), "{text}"),
            Err(error) => panic!("{error:?}"),
        }
        assert_eq!(opener.kind_name(), "http?");
    }
}

#[tokio::test]
async fn a_configured_transport_is_not_probed() {
    let server = Server::start(orderly).await;
    for (kind, name) in [(HttpKind::Streamable, "http"), (HttpKind::Sse, "sse")] {
        let opener = opener(&server.url, kind, None);
        let _ = opener.open().await;
        assert_eq!(opener.kind_name(), name);
    }
    assert_eq!(server.count("ping"), 0);
}

#[tokio::test]
async fn a_session_that_a_probe_opened_is_deleted() {
    let server = Server::start(|request| {
        let mut response = if request.does("ping") { refusal_in_json(400) } else { orderly(request) };
        response.headers_mut().insert("mcp-session-id", "by-probe".parse().unwrap());
        response
    })
    .await;
    opener(&server.url, HttpKind::Detect, None).open().await.unwrap();
    let requests = server.requests();
    let deletion = requests.iter().find(|request| request.method == Method::DELETE).unwrap();
    assert_eq!(deletion.header("mcp-session-id"), Some("by-probe"));
}

#[tokio::test]
async fn a_server_without_a_response_to_a_probe_is_given_up() {
    let server = Server::slow(|_| {
        tokio::time::pause();
        Box::pin(std::future::pending())
    })
    .await;
    let error = opener(&server.url, HttpKind::Detect, None).open().await.err().unwrap();
    insta::assert_snapshot!(error, @"the MCP server did not answer within 15 s");
}
