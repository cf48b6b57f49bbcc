//! Telemetry of a client, as a collector sees it: the client's trace goes on through the tool, and its requests and
//! sessions are counted.

use serde_json::{Value, json};
use toolbus_e2e::backend::Backend;
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::http::{Connection, hello};
use toolbus_e2e::metrics::{attribute, count, sum};
use toolbus_testing::otlp::Receiver;
use toolbus_testing::otlp::proto::trace::v1::Span;
use toolbus_testing::patience::eventually;

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const CLIENT: &str = "b7ad6b7169203331";
const ANA: &str = "Authorization: Bearer the-token-of-ana";

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn span<'a>(spans: &'a [Span], name: &str) -> &'a Span {
    let mut found = spans.iter().filter(|span| span.name == name);
    let span = found.next().unwrap_or_else(|| panic!("no span {name}: {spans:?}"));
    assert!(found.next().is_none(), "two spans {name}");
    span
}

fn call(id: &str, tool: &str, meta: &Value) -> Value {
    let params = json!({"name": tool, "arguments": {"id": id}, "_meta": meta});
    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params})
}

async fn start(backend: &Backend, endpoint: &str, environment: &[(&str, &str)]) -> Daemon {
    let tools = backend.tool("work", "/work?id={id}", "effect = \"read-only\"");
    let http = "[http]\ntokens = { ana = \"the-token-of-ana\" }\n";
    Daemon::alone_with(&format!("{http}[telemetry]\notlp_endpoint = \"{endpoint}\"\n{tools}"), environment).await
}

#[tokio::test]
async fn a_call_is_seen_from_the_client_to_the_backend() {
    let (receiver, backend) = (Receiver::start().await.unwrap(), Backend::start().await);
    let mut daemon = start(&backend, &receiver.grpc_endpoint(), &[]).await;
    let mut client = Connection::open(daemon.listen()).await;
    let id = client.post(&[ANA], &hello()).await.header("mcp-session-id").unwrap().to_owned();
    let session = format!("Mcp-Session-Id: {id}");
    let meta = json!({"traceparent": format!("00-{TRACE}-{CLIENT}-01"), "tracestate": "ana=1"});
    // The message's own trace goes before that of the connection.
    let of_proxy = format!("traceparent: 00-{}-{CLIENT}-01", "1".repeat(32));
    let response = client.post(&[ANA, &session, &of_proxy], &call("traced", "work", &meta)).await;
    assert_eq!(response.json()["result"]["content"][0]["text"], "worked for traced");
    let response = client.post(&[ANA, &session], &call("missing", "absent", &json!({}))).await;
    assert_eq!(response.json()["error"]["code"], -32602);
    daemon.signal("TERM").await;
    assert_eq!(daemon.ended().await.code(), Some(0));

    let all = receiver.spans();
    let spans: Vec<Span> = all.iter().filter(|span| hex(&span.trace_id) == TRACE).cloned().collect();
    assert_eq!(spans.len(), 2, "{spans:?}");
    let (server, execute) = (span(&spans, "tools/call work"), span(&spans, "execute_tool work"));
    assert_eq!(hex(&server.parent_span_id), CLIENT);
    assert_eq!(execute.parent_span_id, server.span_id);
    let names = ["mcp.session.id", "jsonrpc.request.id", "mcp.protocol.version", "network.protocol.name"];
    assert_eq!(names.map(|name| attribute(&server.attributes, name)), [&*id, "traced", "2025-06-18", "http"]);
    assert_eq!(backend.headers("traced")["traceparent"], format!("00-{TRACE}-{}-01", hex(&execute.span_id)));
    // What is no tool names no span.
    assert_eq!(attribute(&span(&all, "tools/call").attributes, "error.type"), "-32602");

    let operations = |labels| count(&receiver, "mcp.server.operation.duration", labels);
    assert_eq!(operations(&[("mcp.method.name", "initialize"), ("network.transport", "tcp")]), 1);
    assert_eq!(operations(&[("mcp.method.name", "tools/call"), ("gen_ai.tool.name", "work"), ("error.type", "")]), 1);
    assert_eq!(operations(&[("gen_ai.tool.name", ""), ("error.type", "-32602")]), 1);
    assert_eq!(count(&receiver, "mcp.server.session.duration", &[("mcp.protocol.version", "2025-06-18")]), 1);
}

#[tokio::test]
async fn the_trace_of_the_http_request_counts_where_the_message_has_none() {
    let (receiver, backend) = (Receiver::start().await.unwrap(), Backend::start().await);
    let mut daemon = start(&backend, &receiver.grpc_endpoint(), &[]).await;
    let mut client = Connection::open(daemon.listen()).await;
    let header = format!("traceparent: 00-{TRACE}-{CLIENT}-01");
    let session = client.post(&[ANA, &header], &hello()).await.header("mcp-session-id").unwrap().to_owned();
    let session = format!("Mcp-Session-Id: {session}");
    client.post(&[ANA, &session, &header], &call("traced", "work", &json!({}))).await;
    let unsampled = format!("traceparent: 00-{TRACE}-{CLIENT}-00");
    client.post(&[ANA, &session, &unsampled], &call("quiet", "work", &json!({}))).await;
    daemon.signal("TERM").await;
    daemon.ended().await;

    let mut spans = receiver.spans();
    // The drain has a trace of its own.
    spans.retain(|span| span.name != "drain");
    assert_eq!(spans.len(), 3, "{spans:?}");
    for name in ["initialize", "tools/call work"] {
        assert_eq!(hex(&span(&spans, name).parent_span_id), CLIENT, "{name}");
    }
    let quiet = backend.headers("quiet");
    // The span in between has an id, and is not exported.
    let carried = quiet["traceparent"].to_str().unwrap();
    let stays = carried.starts_with(&format!("00-{TRACE}-")) && carried.ends_with("-00");
    assert!(stays, "what the sender did not sample stays so: {carried}");
}

#[tokio::test]
async fn sessions_are_counted_while_they_last() {
    let (receiver, backend) = (Receiver::start().await.unwrap(), Backend::start().await);
    let daemon = start(&backend, &receiver.grpc_endpoint(), &[("OTEL_METRIC_EXPORT_INTERVAL", "20")]).await;
    let mut client = Connection::open(daemon.listen()).await;
    let mut sessions = Vec::new();
    for _ in 0..3 {
        sessions.push(client.post(&[ANA], &hello()).await.header("mcp-session-id").unwrap().to_owned());
    }
    let now = || sum(&receiver, "toolbus.mcp_server.sessions", &[]);
    eventually("three sessions", async || (now() == 3).then_some(())).await;
    let head = format!("{ANA}\r\nMcp-Session-Id: {}", sessions[0]);
    client.write(&format!("DELETE /mcp HTTP/1.1\r\nHost: localhost\r\n{head}\r\n\r\n")).await;
    assert_eq!(client.response().await.code, 204);
    eventually("two sessions", async || (now() == 2).then_some(())).await;
    let ended = || count(&receiver, "mcp.server.session.duration", &[]);
    eventually("the end of one", async || (ended() == 1).then_some(())).await;
    daemon.end().await;
}
