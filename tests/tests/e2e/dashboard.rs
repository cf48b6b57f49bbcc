//! The dashboards and the alerts, evaluated by Prometheus over what it scrapes from a real daemon.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use toolbus_e2e::client::Client;
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::http::{Connection, hello};
use toolbus_e2e::namespace::BrokerNamespace;
use toolbus_e2e::program::interpreter;
use toolbus_e2e::prometheus::{ALERTS, Prometheus};
use toolbus_testing::otlp::Receiver;
use toolbus_testing::otlp::proto::metrics::v1::Metric;
use toolbus_testing::otlp::proto::metrics::v1::metric::Data;
use toolbus_testing::patience::eventually;

const DASHBOARDS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/grafana/dashboards");
const SMALL_SERVER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/python/mcp_small.py");
const ANA: &str = "Authorization: Bearer the-token-of-ana";
/// Parts of the queries that show nothing here: no alert fires, no agent works for another, no other daemon or store
/// reports its time, no page or search reaches a site, no MCP server is lost, and no MCP client leaves.
const WITHOUT: [&str; 10] = [
    "toolbus_clock_skew_",
    "ALERTS{",
    "toolbus_a2a_",
    "toolbus_subagent_",
    "toolbus_replicas",
    "toolbus_remote_list_",
    "toolbus_web_page_size_",
    "toolbus_web_searches_",
    "mcp_client_session_duration_seconds_count",
    "mcp_server_session_duration_",
];

/// A metric's name as the collector's exporter for Prometheus writes it.
fn series_name(metric: &Metric) -> String {
    let is_counter = matches!(&metric.data, Some(Data::Sum(sum)) if sum.is_monotonic);
    let is_gauge = matches!(metric.data, Some(Data::Gauge(_)));
    let unit = match metric.unit.as_str() {
        "ms" => "_milliseconds",
        "s" => "_seconds",
        "By" => "_bytes",
        "1" if is_gauge => "_ratio",
        _ => "",
    };
    let total = if is_counter { "_total" } else { "" };
    format!("{}{unit}{total}", metric.name.replace('.', "_"))
}

fn dashboards() -> Vec<Value> {
    let files = std::fs::read_dir(DASHBOARDS).unwrap().map(|entry| std::fs::read(entry.unwrap().path()).unwrap());
    files.map(|text| serde_json::from_slice(&text).unwrap()).collect()
}

/// Lists the queries of all dashboards, with their variables as they are at first.
fn expressions() -> Vec<String> {
    dashboards().iter().flat_map(expressions_of).collect()
}

fn expressions_of(dashboard: &Value) -> Vec<String> {
    let variables = dashboard["templating"]["list"].as_array().unwrap().iter();
    let variables: Vec<&Value> = variables.filter(|variable| variable["type"] == "query").collect();
    let lookups = variables.iter().map(|variable| {
        let query = variable["query"]["query"].as_str().unwrap();
        let inner = query.strip_prefix("label_values(").and_then(|rest| rest.strip_suffix(')')).unwrap();
        let (metric, label) = inner.split_once(", ").unwrap();
        format!("{metric}{{{label}!=\"\"}}")
    });
    let mut queries = Vec::new();
    every("expr", dashboard, &mut queries);
    let filled = queries.into_iter().map(|query| {
        let query = query.as_str().unwrap().replace("$__rate_interval", "1m");
        let names = variables.iter().map(|variable| format!("${}", variable["name"].as_str().unwrap()));
        names.fold(query, |text, name| text.replace(&name, ".*"))
    });
    lookups.chain(filled).collect()
}

/// Every value of a field, however deep it is.
fn every<'a>(field: &str, value: &'a Value, found: &mut Vec<&'a Value>) {
    match value {
        Value::Object(fields) => {
            found.extend(fields.get(field));
            fields.values().for_each(|value| every(field, value, found));
        }
        Value::Array(values) => values.iter().for_each(|value| every(field, value, found)),
        _ => {}
    }
}

#[test]
fn the_dashboards_query_the_data_source_that_their_reader_chooses() {
    for dashboard in dashboards() {
        let first = &dashboard["templating"]["list"][0];
        assert_eq!([&first["name"], &first["type"], &first["query"]], ["datasource", "datasource", "prometheus"]);
        let mut sources = Vec::new();
        every("datasource", &dashboard, &mut sources);
        assert!(sources.len() > 20, "{}", sources.len());
        assert!(
            sources.iter().all(|source| **source == json!({"type": "prometheus", "uid": "${datasource}"})),
            "{sources:?}"
        );
    }
}

/// A daemon with tools, scripts, MCP servers of which one does not run, and an MCP client.
struct Fixture {
    site: BrokerNamespace,
    daemon: Daemon,
    agent: Client,
    client: Connection,
    session: String,
}

impl Fixture {
    /// `more` is added to the configuration.
    async fn start(more: &str) -> Self {
        let site = BrokerNamespace::shared().await;
        let more = format!(
            "[tools]\necho = true\n[http]\ntokens = {{ ana = \"the-token-of-ana\" }}\n\
             [web]\n\
             [script]\npool = {{ max = 0 }}\n\
             [mcp.servers.words]\ncommand = {:?}\nargs = [{SMALL_SERVER:?}, \"words\", \"say\"]\n\
             [mcp.servers.broken]\ncommand = \"false\"\n{more}",
            interpreter(),
        );
        let path = std::env::var("PATH").unwrap();
        let environment = [("OTEL_METRIC_EXPORT_INTERVAL", "200"), ("PATH", &*path)];
        let daemon = Daemon::launch(&site, &more, &environment).await;
        daemon.wait_until_ready().await;
        let agent = Client::connect(&site).await;
        let mut client = Connection::open(daemon.listen()).await;
        let id = client.post(&[ANA], &hello()).await.header("mcp-session-id").unwrap().to_owned();
        Self { site, daemon, agent, client, session: format!("Mcp-Session-Id: {id}") }
    }

    /// Calls that succeed and calls that fail, by the bus and by MCP, and a handshake with an MCP server.
    async fn call_everything(&mut self) {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
        let stamped = self.agent.request("echo", &json!({"text": "a"}));
        let stamped = stamped.with(|properties| properties.with_timestamp(now));
        assert_eq!(self.agent.exchange(&stamped).await.content(), "a");
        assert_eq!(self.agent.call("say", &json!({"text": "a"})).await.content(), "words.say: a");
        assert_eq!(self.agent.call("absent", &json!({})).await.code(), "tool_not_found");
        let failed = self.agent.call("execute_python_script", &json!({"script": "raise SystemExit(1)"})).await;
        assert_eq!(failed.body()["isError"], true, "{failed:?}");
        for tool in ["echo", "absent"] {
            let params = json!({"name": tool, "arguments": {"text": "a"}});
            let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
            assert_eq!(self.client.post(&[ANA, &self.session], &call).await.code, 200);
        }
        assert_eq!(self.daemon.operate(&["mcp", "restart", "words"]).await.code, 0);
    }
}

#[tokio::test]
async fn every_query_of_the_dashboards_shows_what_a_daemon_offers_to_prometheus() {
    let mut fixture = Fixture::start("").await;
    let prometheus = Prometheus::scraping(&fixture.daemon, ALERTS).await;
    let is_without = |text: &String| WITHOUT.iter().any(|part| text.contains(part));
    let (without, mut empty): (Vec<_>, Vec<_>) = expressions().into_iter().partition(is_without);
    assert!(empty.len() >= 70, "{} queries: the dashboards were not read whole", empty.len());
    let started = std::time::Instant::now();
    while !empty.is_empty() {
        let patient = started.elapsed() < toolbus_testing::patience::PATIENCE;
        assert!(patient, "queries without a value: {empty:#?}");
        fixture.call_everything().await;
        let mut still_empty = Vec::new();
        for expression in empty {
            if prometheus.values(&expression).await.is_empty() {
                still_empty.push(expression);
            }
        }
        empty = still_empty;
    }
    for expression in without {
        let values = prometheus.values(&expression).await;
        assert!(values.is_empty(), "{expression} has the values {values:?}: it can be queried like the others");
    }
    fixture.daemon.stop(&fixture.site).await;
}

#[tokio::test]
async fn the_first_dead_letter_of_each_queue_is_an_increase_and_raises_the_alert() {
    let fixture = Fixture::start("").await;
    let prometheus = Prometheus::scraping(&fixture.daemon, ALERTS).await;
    // Two samples at zero, before anything happens.
    eventually("counts from zero", async || {
        let counts = prometheus.values("count_over_time(toolbus_dead_letters_total[5m]) >= 2").await;
        (counts.len() >= 8).then_some(())
    })
    .await;
    assert_eq!(prometheus.values("toolbus_dead_letters_total > 0").await, [0.0; 0]);
    for topic in ["tool.invoke", "tool.list"] {
        // A reply must not go where requests travel.
        fixture.agent.send(&fixture.agent.raw("{}").on(topic).reply_to("tool.invoke")).await;
    }
    let of_panel = expressions().into_iter().find(|text| text.contains("toolbus_dead_letters_total")).unwrap();
    let increased = format!("{of_panel} > 0");
    eventually("an increase", async || (!prometheus.values(&increased).await.is_empty()).then_some(())).await;
    let alerts = "count by (queue) (ALERTS{alertname=\"ToolbusDeadLetters\", alertstate=\"firing\"})";
    eventually("the alert, of both queues", async || (prometheus.values(alerts).await.len() == 2).then_some(())).await;
    let fired = prometheus.firing().await;
    for alert in fired.iter().filter(|one| one["labels"]["alertname"] == "ToolbusDeadLetters") {
        let labels = &alert["labels"];
        assert_eq!(labels["instance"], fixture.daemon.listen());
        let expected = ["job", "instance", "queue", "reason"].map(|label| labels[label].as_str().unwrap().to_owned());
        let summary = alert["annotations"]["summary"].as_str().unwrap();
        assert!(expected.iter().all(|part| summary.contains(part)), "{summary}");
    }
    let rules = prometheus.get("rules").await.unwrap();
    for rule in rules["groups"][0]["rules"].as_array().unwrap() {
        assert_eq!(rule["health"], "ok", "{rule}");
    }
    for queue in [fixture.site.queue(), format!("{}.control", fixture.site.prefix)] {
        fixture.site.take_dead_letter_of(&queue).await;
    }
    fixture.daemon.stop(&fixture.site).await;
}

#[tokio::test]
async fn metrics_have_the_names_that_the_collector_gives_them() {
    let receiver = Receiver::start().await.unwrap();
    let telemetry = format!("[telemetry]\notlp_endpoint = {:?}\n", receiver.grpc_endpoint());
    let mut fixture = Fixture::start(&telemetry).await;
    fixture.call_everything().await;
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    eventually("the same metrics", async || {
        let exported: BTreeSet<String> = receiver.metrics().iter().map(series_name).collect();
        let url = format!("http://{}/metrics", fixture.daemon.listen());
        let text = client.get(url).send().await.unwrap().text().await.unwrap();
        let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
        let scraped: BTreeSet<String> = types.filter(|name| *name != "target_info").map(str::to_owned).collect();
        (scraped.len() > 40 && scraped == exported).then_some(())
    })
    .await;
    fixture.daemon.stop(&fixture.site).await;
}
