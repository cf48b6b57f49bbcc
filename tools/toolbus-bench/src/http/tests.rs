//! The load over HTTP, against a server with the responses of a test.

mod server;

use std::time::Duration;

use crate::exchange::{Exchange as _, closed_loop};
use crate::http::MeasuredPage;
use crate::mcp_http::{McpCaller, McpClient, McpEndpoint, ToolUse};
use serde_json::{Map, Value, json};
use server::{Response, Server};
use toolbus_testing::patience::eventually;

const SHORT: Duration = Duration::from_millis(50);

fn endpoint(server: &Server) -> McpEndpoint {
    McpEndpoint { address: server.address(), path: "/mcp".to_owned(), token: Some("a-token".to_owned()) }
}

fn call(text: Option<&str>) -> ToolUse {
    let arguments = Map::from_iter([("text".to_owned(), json!("hi"))]);
    ToolUse { tool: "echo".to_owned(), arguments, text: text.map(str::to_owned) }
}

/// A server whose sessions work, and whose tool calls get this response.
async fn with_tool(response: fn(&Value) -> Response) -> (Server, McpCaller) {
    let server = Server::start(move |request| match request.body["method"].as_str() {
        Some("initialize") => Response::json(
            &json!({"jsonrpc": "2.0", "id": request.body["id"], "result": {"protocolVersion": "2025-11-25"}}),
        )
        .header("Mcp-Session-Id: s-1"),
        Some("tools/call") => response(&request.body["id"]),
        _ => Response::status("202 Accepted"),
    })
    .await;
    let client = McpClient::initialize(&endpoint(&server)).await.unwrap();
    (server, client.repeating(&call(Some("hi"))).unwrap())
}

fn result(id: &Value, text: &str) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "result": {"content": [{"type": "text", "text": text}], "isError": false}})
}

#[tokio::test]
async fn a_page_is_requested_on_one_connection_and_must_stay_the_same() {
    let server = Server::start(|request| Response::text(if request.number < 3 { "ok" } else { "no" })).await;
    let mut page = MeasuredPage::new(server.address(), "/healthz").unwrap();
    for _ in 0..3 {
        page.once().await.unwrap();
    }
    let changed = page.once().await.unwrap_err();
    assert_eq!(changed.to_string(), "answered 200: no");
    let requests = server.requests();
    assert!(requests.iter().all(|request| request.line == "GET /healthz HTTP/1.1" && request.connection == 0));
    assert_eq!(requests.len(), 4);
}

#[tokio::test]
async fn a_connection_that_the_server_closes_is_opened_again() {
    let server = Server::start(|_| Response::text("ok").closing()).await;
    let mut page = MeasuredPage::new(server.address(), "/").unwrap();
    for _ in 0..3 {
        page.once().await.unwrap();
    }
    let connections: Vec<usize> = server.requests().iter().map(|request| request.connection).collect();
    assert_eq!(connections, [0, 1, 2]);
}

#[tokio::test]
async fn a_session_is_begun_and_named_in_every_request_after_it() {
    let (server, mut caller) = with_tool(|id| Response::json(&result(id, "hi"))).await;
    caller.once().await.unwrap();
    caller.once().await.unwrap();
    let requests = server.requests();
    let methods: Vec<&str> = requests.iter().map(|request| request.body["method"].as_str().unwrap()).collect();
    assert_eq!(methods, ["initialize", "notifications/initialized", "tools/call", "tools/call"]);
    assert!(requests.iter().all(|request| request.header("authorization") == Some("Bearer a-token")));
    let sessions: Vec<Option<&str>> = requests.iter().map(|request| request.header("mcp-session-id")).collect();
    assert_eq!(sessions, [None, Some("s-1"), Some("s-1"), Some("s-1")]);
    assert_eq!(requests[3].header("mcp-protocol-version"), Some("2025-11-25"), "the one that the server chose");
    assert_eq!(requests[3].body["params"], json!({"name": "echo", "arguments": {"text": "hi"}}));
    assert_ne!(requests[2].body["id"], requests[3].body["id"]);
}

#[tokio::test]
async fn without_sessions_every_request_has_its_own_metadata() {
    let server = Server::start(|request| Response::json(&result(&request.body["id"], "hi"))).await;
    let client = McpClient::stateless(&endpoint(&server)).unwrap();
    client.repeating(&call(None)).unwrap().once().await.unwrap();
    let requests = server.requests();
    let [request] = &*requests else { panic!("{requests:?}") };
    let headers = ["mcp-protocol-version", "mcp-method", "mcp-name", "mcp-session-id"].map(|name| request.header(name));
    assert_eq!(headers, [Some("2026-07-28"), Some("tools/call"), Some("echo"), None]);
    let meta = &request.body["params"]["_meta"];
    assert_eq!(meta["io.modelcontextprotocol/protocolVersion"], "2026-07-28");
    assert_eq!(meta["io.modelcontextprotocol/clientCapabilities"], json!({}));
}

#[tokio::test]
async fn the_response_is_found_among_events() {
    let (_server, mut caller) = with_tool(|id| {
        let news = json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {}});
        Response::events(&[news, result(&json!(0), "another"), result(id, "hi")])
    })
    .await;
    caller.once().await.unwrap();
}

#[tokio::test]
async fn any_other_response_is_a_failure() {
    let wrong: [fn(&Value) -> Response; 6] = [
        |id| Response::json(&result(id, "bye")),
        |_| Response::json(&result(&json!(0), "hi")),
        |id| Response::json(&json!({"jsonrpc": "2.0", "id": id, "error": {"code": -32603, "message": "broken"}})),
        |id| {
            Response::json(
                &json!({"jsonrpc": "2.0", "id": id, "result": {"content": [{"type": "text", "text": "hi"}], "isError": true}}),
            )
        },
        |_| Response::status("404 Not Found"),
        |_| Response::events(&[]),
    ];
    for response in wrong {
        let (_server, mut caller) = with_tool(response).await;
        let error = caller.once().await.unwrap_err().to_string();
        assert!(error.starts_with("answered "), "{error}");
    }
}

#[tokio::test]
async fn a_tool_is_found_under_the_name_that_a_proxy_gives_it() {
    let server = Server::start(|request| match request.body["method"].as_str() {
        Some("tools/list") => Response::json(
            &json!({"id": request.body["id"], "result": {"tools": [{"name": "x/other"}, {"name": "x/echo"}]}}),
        ),
        _ => Response::json(&json!({"id": request.body["id"], "result": {}})),
    })
    .await;
    let mut client = McpClient::initialize(&endpoint(&server)).await.unwrap();
    assert_eq!(client.find("echo").await.unwrap(), "x/echo");
    let absent = client.find("clock").await.unwrap_err().to_string();
    assert_eq!(absent, r#"clock is not among the tools ["x/other", "x/echo"]"#);
}

#[tokio::test]
async fn a_closed_loop_counts_good_responses_and_failures() {
    let server = Server::start(|request| Response::text(if request.number % 2 == 0 { "ok" } else { "no" })).await;
    let mut pages =
        vec![MeasuredPage::new(server.address(), "/").unwrap(), MeasuredPage::new(server.address(), "/").unwrap()];
    // One response is good for each of them before any other can differ from it.
    let outcome = closed_loop(&mut pages, SHORT).await.unwrap();
    assert_eq!(pages.len(), 2);
    let good = outcome.sample.latencies.len() as u64;
    assert_eq!(good + outcome.failures, server.requests().len() as u64);
    assert!(good > 0 && outcome.sample.elapsed >= SHORT, "{outcome:?}");
    assert!(outcome.failures == 0 || outcome.clone().flawless().is_err());
}

#[tokio::test]
async fn a_loop_without_a_server_fails_with_the_reason() {
    let server = Server::start(|_| Response::text("ok")).await;
    let address = server.address();
    drop(server);
    let mut pages = vec![MeasuredPage::new(address, "/").unwrap()];
    let outcome = closed_loop(&mut pages, SHORT).await.unwrap();
    assert!(outcome.failures > 0 && outcome.sample.latencies.is_empty());
    let why = outcome.flawless().unwrap_err().to_string();
    assert!(why.starts_with("cannot be connected: "), "{why}");
}

#[tokio::test]
async fn a_stream_is_open_until_the_server_ends_it() {
    let server = Server::start(|request| match &*request.line {
        "GET /mcp HTTP/1.1" => Response::stream(),
        _ => Response::json(&json!({"id": request.body["id"], "result": {}})),
    })
    .await;
    let client = McpClient::initialize(&endpoint(&server)).await.unwrap();
    let stream = client.listen().await.unwrap();
    assert!(!stream.is_over());
    assert_eq!(server.requests().last().unwrap().header("accept"), Some("text/event-stream"));
    drop(server);
    eventually("the end of the stream", async || stream.is_over().then_some(())).await;
}
