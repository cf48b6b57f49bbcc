//! Telemetry of one call, as a collector sees it: the sender's trace goes on, and the metrics have the contract's
//! names.

use std::collections::BTreeMap;

use serde_json::json;
use toolbus_e2e::backend::Backend;
use toolbus_e2e::client::Client;
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::namespace::BrokerNamespace;
use toolbus_e2e::prometheus::Prometheus;
use toolbus_testing::otlp::Receiver;
use toolbus_testing::otlp::proto::trace::v1::Span;
use toolbus_testing::patience::eventually;

use toolbus_e2e::metrics::{attribute, count, sum};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const SENDER: &str = "b7ad6b7169203331";

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn span<'a>(spans: &'a [Span], start: &str) -> &'a Span {
    let mut found = spans.iter().filter(|span| span.name.starts_with(start));
    let span = found.next().unwrap_or_else(|| panic!("no span {start}: {spans:?}"));
    assert!(found.next().is_none(), "two spans {start}");
    span
}

async fn one_traced_call(protocol: &str, endpoint: &str, receiver: &Receiver) {
    let backend = Backend::start().await;
    let tool = backend.tool("work", "/work?id={id}", "effect = \"read-only\"");
    let more = format!("[telemetry]\notlp_endpoint = \"{endpoint}\"\nprotocol = \"{protocol}\"\n{tool}");
    let (site, daemon, client) = Daemon::with_client(&more).await;
    let request = client.request("work", &json!({"id": "traced"}));
    let request = request.header("rb-traceparent", &format!("00-{TRACE}-{SENDER}-01")).header("rb-tracestate", "ana=1");
    let reply = client.exchange(&request).await;
    assert_eq!(reply.content(), "worked for traced");
    assert_eq!(client.call("absent", &json!({})).await.code(), "tool_not_found");
    // Nothing was exported by now that need have been: the end flushes.
    daemon.stop(&site).await;

    let spans: Vec<Span> = receiver.spans().into_iter().filter(|span| hex(&span.trace_id) == TRACE).collect();
    let (process, execute) = (span(&spans, "process "), span(&spans, "execute_tool work"));
    let publish = span(&spans, "publish reply");
    assert_eq!(spans.len(), 3);
    assert_eq!(hex(&process.parent_span_id), SENDER, "the consumer's span continues the sender's");
    assert_eq!(execute.parent_span_id, process.span_id);
    assert_eq!(publish.parent_span_id, process.span_id);
    assert_eq!(attribute(&execute.attributes, "gen_ai.tool.name"), "work");

    let sent = backend.headers("traced");
    let sent = |name: &str| sent.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
    assert_eq!(sent("traceparent"), format!("00-{TRACE}-{}-01", hex(&execute.span_id)));
    assert_eq!(sent("tracestate"), "ana=1");
    for header in ["rb-traceparent", "traceparent"] {
        assert_eq!(reply.header(header), format!("00-{TRACE}-{}-01", hex(&publish.span_id)));
    }

    let ok = [("tool_name", "work"), ("status", "ok"), ("tool_source", "rest")];
    let unknown = [("tool_name", "_unknown"), ("status", "tool_not_found"), ("tool_source", "_unknown")];
    let counted: BTreeMap<&str, i64> = BTreeMap::from([
        ("ok", sum(receiver, "rockbot.tool.invocations", &ok)),
        ("unknown", sum(receiver, "rockbot.tool.invocations", &unknown)),
        ("connected", sum(receiver, "toolbus.broker.reconnects", &[])),
        ("in flight", sum(receiver, "toolbus.calls.in_flight", &[])),
        ("sent", sum(receiver, "messaging.client.sent.messages", &[("messaging.system", "rabbitmq")])),
    ]);
    assert_eq!(counted, BTreeMap::from([("ok", 1), ("unknown", 1), ("connected", 0), ("in flight", 0), ("sent", 2)]));
    assert_eq!(count(receiver, "rockbot.tool.invoke.duration", &ok), 1);
    assert_eq!(count(receiver, "gen_ai.execute_tool.duration", &[("gen_ai.tool.name", "work")]), 1);
    assert_eq!(count(receiver, "messaging.process.duration", &[]), 2);
    assert_eq!(count(receiver, "toolbus.overhead.duration", &[]), 2);
}

#[tokio::test]
async fn prometheus_has_the_trace_of_a_call_as_an_exemplar_of_its_bucket() {
    let receiver = Receiver::start().await.unwrap();
    let more = format!("[telemetry]\notlp_endpoint = \"{}\"\n[tools]\necho = true\n", receiver.grpc_endpoint());
    let (site, daemon, client) = Daemon::with_client(&more).await;
    for (trace, flags) in [(TRACE, "01"), (TRACE.replace('0', "1").as_str(), "00")] {
        let request = client.request("echo", &json!({"text": "traced"}));
        let request = request.header("rb-traceparent", &format!("00-{trace}-{SENDER}-{flags}"));
        assert_eq!(client.exchange(&request).await.content(), "traced");
    }
    let prometheus = Prometheus::scraping(&daemon, "").await;
    let exemplars = eventually("exemplars", async || {
        let query = "query_exemplars?query=rockbot_tool_invoke_duration_milliseconds_bucket&start=0&end=99999999999";
        prometheus.get(query).await.filter(|data| data.as_array().is_some_and(|series| !series.is_empty()))
    })
    .await;
    let series = &exemplars.as_array().unwrap()[..];
    let [series] = series else { panic!("{series:?}") };
    assert_eq!([&series["seriesLabels"]["tool_name"], &series["seriesLabels"]["status"]], ["echo", "ok"]);
    let found = series["exemplars"].as_array().unwrap();
    assert!(found.iter().all(|exemplar| exemplar["labels"] == json!({ "trace_id": TRACE })), "{found:?}");
    daemon.stop(&site).await;
}

#[tokio::test]
async fn a_call_is_seen_over_grpc_from_its_sender_to_the_backend() {
    let receiver = Receiver::start().await.unwrap();
    one_traced_call("grpc", &receiver.grpc_endpoint(), &receiver).await;
}

#[tokio::test]
async fn a_call_is_seen_over_http_from_its_sender_to_the_backend() {
    let receiver = Receiver::start().await.unwrap();
    one_traced_call("http/protobuf", &receiver.http_endpoint(), &receiver).await;
}

#[tokio::test]
async fn without_a_collector_the_trace_still_goes_on() {
    let backend = Backend::start().await;
    let (site, daemon, client) = Daemon::with_client(&backend.tool("work", "/work?id={id}", "")).await;
    let request = client.request("work", &json!({"id": "traced"}));
    let reply = client.exchange(&request.header("traceparent", &format!("00-{TRACE}-{SENDER}-00"))).await;
    assert!(reply.header("traceparent").starts_with(&format!("00-{TRACE}-")), "{reply:?}");
    let sent = backend.headers("traced");
    assert!(sent["traceparent"].to_str().unwrap().starts_with(&format!("00-{TRACE}-")));
    assert!(sent["traceparent"].to_str().unwrap().ends_with("-00"), "what the sender did not sample stays so");
    daemon.stop(&site).await;
}

#[tokio::test]
async fn a_collector_that_is_away_disturbs_no_call_and_no_end() {
    let site = BrokerNamespace::shared().await;
    let more = "[tools]\necho = true\n[telemetry]\notlp_endpoint = \"http://127.0.0.1:1\"\n";
    let daemon =
        Daemon::launch(&site, more, &[("OTEL_METRIC_EXPORT_INTERVAL", "50"), ("OTEL_BSP_SCHEDULE_DELAY", "50")]).await;
    daemon.wait_until_ready().await;
    let client = Client::connect(&site).await;
    for n in 0..50 {
        assert_eq!(client.call("echo", &json!({"text": n.to_string()})).await.content(), n.to_string());
    }
    daemon.stop(&site).await;
}

#[tokio::test]
async fn arguments_and_results_are_not_in_the_log() {
    let (_site, mut daemon, client) = Daemon::with_client("[tools]\necho = true\n").await;
    assert_eq!(client.call("echo", &json!({"text": "my-secret-text"})).await.content(), "my-secret-text");
    client.call("echo", &json!({"text": 7, "my-secret-key": "my-secret-value"})).await;
    let (_, status) = daemon.get("/status").await.unwrap();
    assert_eq!(status["counts"], json!({"tools": 3, "heldBack": 0, "inFlight": 0, "waiting": 0}));
    daemon.signal("TERM").await;
    daemon.ended().await;
    let log = daemon.text();
    assert!(log.contains("draining") && !log.contains("my-secret"), "{log}");
}
