//! Telemetry of a daemon's life beside calls, as a collector sees it: spans, and the log.

use std::collections::BTreeSet;

use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::metrics::attribute;
use toolbus_e2e::namespace::BrokerNamespace;
use toolbus_testing::otlp::Receiver;
use toolbus_testing::otlp::proto::common::v1::any_value::Value;
use toolbus_testing::otlp::proto::logs::v1::LogRecord;
use toolbus_testing::otlp::proto::trace::v1::Span;
use toolbus_testing::otlp::proto::trace::v1::status::StatusCode;
use toolbus_testing::patience::eventually;

const PAGE: &str = include_str!("../../../docs/telemetry.md");
const SMALL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/python/mcp_small.py");
const SECRET: &str = "t0ken-of-the-server-that-fails";

/// The rows of a table of the page.
fn rows(heading: &str) -> impl Iterator<Item = Vec<&'static str>> {
    let table = PAGE.lines().skip_while(move |line| !line.starts_with(heading)).skip(2);
    table.take_while(|line| line.starts_with('|')).map(|row| row.trim_matches('|').split('|').map(str::trim).collect())
}

/// Every attribute of every span is in the tables, and every one that is listed as `always` is there.
fn check_documented(spans: &[Span]) {
    let names: BTreeSet<&str> = rows("| Lifecycle span |").map(|columns| columns[0].trim_matches('`')).collect();
    assert_eq!(names.len(), 8, "{names:?}");
    for span in spans {
        assert!(names.contains(span.name.as_str()), "{} is not documented", span.name);
        let own = |columns: &Vec<&str>| columns[0].trim_matches('`') == span.name;
        let documented: Vec<_> = rows("| Lifecycle spans |").filter(own).collect();
        let found: BTreeSet<&str> = span.attributes.iter().map(|attribute| attribute.key.as_str()).collect();
        assert_eq!(found.len(), span.attributes.len(), "{}: an attribute twice", span.name);
        let known: BTreeSet<&str> = documented.iter().map(|columns| columns[1].trim_matches('`')).collect();
        assert!(found.is_subset(&known), "{}: {found:?}", span.name);
        let always = documented.iter().filter(|columns| columns[3] == "always");
        for columns in always {
            assert!(found.contains(columns[1].trim_matches('`')), "{} has no {}", span.name, columns[1]);
        }
    }
}

fn number(span: &Span, name: &str) -> i64 {
    let found = span.attributes.iter().find(|attribute| attribute.key == name);
    match found.and_then(|attribute| attribute.value.as_ref()?.value.as_ref()) {
        Some(Value::IntValue(number)) => *number,
        other => panic!("{name} of {} is {other:?}", span.name),
    }
}

fn code(span: &Span) -> StatusCode {
    span.status.as_ref().map_or(StatusCode::Unset, |status| status.code())
}

fn milliseconds(span: &Span) -> u64 {
    (span.end_time_unix_nano - span.start_time_unix_nano) / 1_000_000
}

fn body(record: &LogRecord) -> &str {
    match record.body.as_ref().and_then(|body| body.value.as_ref()) {
        Some(Value::StringValue(text)) => text,
        other => panic!("a body is {other:?}"),
    }
}

#[tokio::test]
async fn starts_reloads_losses_and_the_drain_are_traced_and_the_log_is_exported() {
    let (site, receiver) = (BrokerNamespace::shared().await, Receiver::start().await.unwrap());
    let (proxy, behind) = site.proxied().await;
    let python = std::env::var("TOOLBUS_PYTHON").expect("TOOLBUS_PYTHON is not set: run ./tests/run");
    let run = std::env::var("TOOLBUS_TEST_RUN").unwrap_or_default();
    let endpoint = receiver.grpc_endpoint();
    let fails = "import os, sys; sys.exit('bad token ' + os.environ['BROKEN_TOKEN'])";
    let more = format!(
        "[telemetry]\notlp_endpoint = {endpoint:?}\n[mcp.servers.slow]\ncommand = {python:?}\n\
         args = [{SMALL:?}, \"slow\", \"one,two\"]\nenv = {{ START_DELAY = \"0.5\", TOOLBUS_TEST_RUN = {run:?} }}\n\
         [mcp.servers.broken]\ncommand = {python:?}\nargs = [\"-c\", {fails:?}]\nenv = {{ BROKEN_TOKEN = {SECRET:?} }}\n"
    );
    let daemon = Daemon::start(&behind, &more).await;
    daemon.logged_times("an MCP server is ready", 1).await;
    eventually("a failed start", async || {
        (!daemon.logged("an MCP server cannot be connected to").is_empty()).then_some(())
    })
    .await;
    daemon.reload(&more).await;
    daemon.reload("[telemetry]\nlog = 7\n").await;
    proxy.cut();
    let lost = "no connection to the broker";
    eventually("the loss of both connections", async || (daemon.logged(lost).len() >= 2).then_some(())).await;
    proxy.restore();
    daemon.logged_times("connected to the broker", 4).await;
    daemon.wait_until_ready().await;
    daemon.stop(&site).await;

    let spans = receiver.spans();
    check_documented(&spans);
    let all = |name: &str| spans.iter().filter(|span| span.name == name).collect::<Vec<_>>();
    let start = |server: &str| {
        let of_server = |span: &&&Span| attribute(&span.attributes, "toolbus.mcp.server") == server;
        *all("mcp start").iter().find(of_server).unwrap()
    };
    let child = |of: &Span, name: &str| {
        spans.iter().find(|span| span.parent_span_id == of.span_id && span.name == name).cloned()
    };
    let slow = start("slow");
    assert!(slow.parent_span_id.is_empty());
    assert_eq!((number(slow, "attempt"), code(slow)), (1, StatusCode::Unset));
    let steps = ["mcp probe", "mcp handshake", "mcp list"].map(|name| child(slow, name).unwrap());
    assert!(steps.iter().all(|step| step.trace_id == slow.trace_id && code(step) == StatusCode::Unset));
    assert!(milliseconds(&steps[0]) >= 300, "the probe took {} ms", milliseconds(&steps[0]));
    assert!(milliseconds(slow) >= steps.iter().map(milliseconds).sum(), "{steps:?}");
    assert!(steps.windows(2).all(|pair| pair[0].start_time_unix_nano < pair[1].start_time_unix_nano), "{steps:?}");
    assert_eq!(number(&steps[2], "toolbus.mcp.tools"), 2);
    let broken = start("broken");
    let status = broken.status.clone().unwrap();
    assert_eq!((status.code(), code(&child(broken, "mcp probe").unwrap())), (StatusCode::Error, StatusCode::Error));
    assert!(!status.message.is_empty() && status.message.len() <= 255, "{}", status.message);
    assert_eq!(all("reload").iter().map(|span| code(span)).collect::<Vec<_>>(), [StatusCode::Unset, StatusCode::Error]);
    let connects = all("broker connect");
    assert_eq!(connects.len(), 4, "{connects:?}");
    for kind in ["consume", "publish"] {
        let own = |span: &&&Span| attribute(&span.attributes, "toolbus.broker.connection") == kind;
        let own: Vec<_> = connects.iter().filter(own).collect();
        let lost: Vec<bool> =
            own.iter().map(|span| !attribute(&span.attributes, "toolbus.broker.lost").is_empty()).collect();
        assert_eq!(lost, [false, true], "{own:?}");
        assert!(number(own[1], "toolbus.broker.attempts") >= 1);
    }
    let drain = all("drain");
    assert_eq!((drain.len(), number(drain[0], "toolbus.drain.cut")), (1, 0));

    let records = receiver.logs();
    let record = |text: &str| &records.iter().find(|(_, record)| body(record) == text).unwrap().1;
    assert_eq!(attribute(&record("an MCP server is ready").attributes, "server"), "slow");
    assert_eq!(record("an MCP server cannot be connected to").severity_text, "WARN");
    assert_eq!(record("draining").span_id, drain[0].span_id);
    assert!(!format!("{spans:?}{records:?}").contains(SECRET));
}
