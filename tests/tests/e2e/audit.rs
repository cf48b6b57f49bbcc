//! The file of audit records: what was refused and what was done, and never with what.

use std::path::Path;

use serde_json::{Value, json};
use toolbus_e2e::backend::Backend;
use toolbus_e2e::client::{Client, Request};
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::namespace::BrokerNamespace;
use toolbus_testing::patience::eventually;

/// In every argument, and nowhere else.
const CANARY: &str = "canary-7f3a";
const OF_BRUNO: &str = "auth = { type = \"bearer\", per_agent = { bruno = { token = \"of-bruno\" } } }";
const AUDIT: &str = "[audit]\nfile = \"audit.jsonl\"\n";

fn rules(backend: &Backend) -> String {
    let tools = [
        backend.tool("look", "/work?id={id}", "effect = \"read-only\""),
        backend.tool("store", "/work?id={id}", "effect = \"effectful\""),
        backend.tool("put", "/work?id={id}", "effect = \"idempotent\""),
        backend.tool("any", "/work?id={id}", ""),
        backend.tool("hidden", "/work?id={id}", ""),
        backend.tool("keyed", "/work?id={id}", &format!("effect = \"read-only\"\n{OF_BRUNO}")),
        backend.endpoint("teapot", "/status/418", r#"{"type":"object"}"#, "effect = \"effectful\""),
    ];
    format!(
        "{AUDIT}[identity]\ntrust_headers = true\n[agents.ana]\ndenied_tools = [\"hidden\"]\n\
         tool_rate_limits = {{ put = {{ rps = 0.001, burst = 1 }} }}\n{}",
        tools.concat()
    )
}

fn call(client: &Client, tool: &str) -> Request {
    client.request(tool, &json!({"id": CANARY})).by("ana")
}

/// The records of a file. Each line must be one.
fn records(file: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    // A line may be read while it is written.
    let whole = text.rfind('\n').map_or("", |end| &text[..=end]);
    whole.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
}

async fn wait_for(file: &Path, count: usize) -> Vec<Value> {
    eventually(&format!("{count} records"), async || {
        let records = records(file);
        (records.len() >= count).then_some(records)
    })
    .await
}

#[tokio::test]
async fn each_refusal_and_each_effect_is_one_line_without_its_arguments() {
    let backend = Backend::start().await;
    let (site, daemon, client) = Daemon::with_client(&rules(&backend)).await;
    let file = daemon.folder().join("audit.jsonl");
    let requests = [
        call(&client, "look"),
        call(&client, "store"),
        call(&client, "put"),
        call(&client, "put"),
        call(&client, "any"),
        call(&client, "teapot"),
        call(&client, "keyed"),
        call(&client, "hidden"),
        call(&client, "nothing"),
        client.request("look", &json!({"id": 7, CANARY: CANARY})).by("ana"),
        client.raw(format!("{{\"toolName\":\"look\",\"arguments\":\"{CANARY}\"}}")).by("ana"),
        client.raw(format!("[\"{CANARY}\"]")).by("ana"),
        call(&client, "look").header("rb-binding", "whatsapp:sales"),
        client.request("store", &json!({"id": CANARY})),
    ];
    let mut found = Vec::new();
    for (number, request) in requests.iter().enumerate() {
        client.exchange(request).await;
        // The first, which only looks and succeeds, leaves no record.
        found = wait_for(&file, number).await;
    }
    let shown: Vec<String> = found
        .iter()
        .map(|record| {
            let text = |name: &str| record[name].as_str().unwrap_or("-").to_owned();
            let fields =
                ["event", "agent", "claimed", "binding", "tool", "asked", "status", "cause", "outcome"].map(text);
            format!("{} {}", fields.join(" "), if record["arguments_hash"].is_string() { "hash" } else { "-" })
        })
        .collect();
    insta::assert_snapshot!(shown.join("\n"), @"
    called ana - - store - ok - - hash
    called ana - - put - ok - - hash
    refused ana - - put - rate_limited rate_limited not_started hash
    called ana - - any - ok - - hash
    called ana - - teapot - error - - hash
    refused ana - - keyed - auth_required auth_required not_started hash
    refused ana - - - hidden tool_not_found tool_not_found - -
    refused ana - - - nothing tool_not_found tool_not_found - -
    refused ana - - look - invalid_arguments invalid_arguments - -
    refused ana - - look - invalid_arguments invalid_arguments - -
    refused ana - - -  invalid_arguments malformed_request - -
    refused ana - whatsapp:sales - look tool_not_found tool_not_found - -
    refused - unknown - - store tool_not_found tool_not_found - -
    ");

    let hash = |number: usize| found[number]["arguments_hash"].as_str().unwrap();
    assert_eq!(hash(0), hash(1), "equal arguments have one hash, whichever the tool");
    let other = client.request("store", &json!({"id": "other"})).by("ana");
    client.exchange(&other).await;
    let found = wait_for(&file, requests.len()).await;
    assert_ne!(found[0]["arguments_hash"], found[requests.len() - 1]["arguments_hash"]);
    for text in [std::fs::read_to_string(&file).unwrap(), daemon.text()] {
        assert!(!text.contains(CANARY), "{text}");
    }
    daemon.stop(&site).await;
    assert_eq!(found.len(), requests.len());
}

#[tokio::test]
async fn text_from_callers_breaks_no_line() {
    let backend = Backend::start().await;
    let (site, daemon, client) = Daemon::with_client(&rules(&backend)).await;
    let file = daemon.folder().join("audit.jsonl");
    let hostile = "x\n{\"event\":\"called\"}\r\n\u{1b}[2J\u{2028}\u{0}\u{202e}";
    let body = json!({"toolName": hostile, "toolCallId": hostile, "sessionId": hostile, "arguments": {}}).to_string();
    let request = client.raw(body).by(hostile).header("rb-binding", hostile).header("rb-tool-profile", hostile);
    client.exchange(&request).await;
    client.exchange(&call(&client, "store")).await;
    let found = wait_for(&file, 2).await;
    assert_eq!(found.len(), 2);
    for name in ["claimed", "asked", "call_id", "binding", "profile", "session"] {
        let text = found[0][name].as_str().unwrap();
        assert!(
            text.starts_with("x\\n{") && !text.chars().any(|c| c.is_control() || c == '\u{202e}'),
            "{name}: {text}"
        );
    }
    daemon.stop(&site).await;
}

#[tokio::test]
async fn a_file_that_was_renamed_is_left_behind_on_sighup_and_nothing_is_lost() {
    let backend = Backend::start().await;
    let rules = rules(&backend);
    let (site, daemon, client) = Daemon::with_client(&rules).await;
    let [file, old] = ["audit.jsonl", "audit.jsonl.1"].map(|name| daemon.folder().join(name));
    client.exchange(&call(&client, "store")).await;
    wait_for(&file, 1).await;
    std::fs::rename(&file, &old).unwrap();
    client.exchange(&call(&client, "any")).await;
    assert_eq!(wait_for(&old, 2).await[1]["tool"], "any", "it writes on until SIGHUP");
    daemon.reload(&rules).await;
    client.exchange(&call(&client, "put")).await;
    assert_eq!(wait_for(&file, 1).await[0]["tool"], "put");
    daemon.stop(&site).await;
}

#[tokio::test]
async fn the_file_does_not_depend_on_what_the_log_shows() {
    let (site, backend) = (BrokerNamespace::shared().await, Backend::start().await);
    let rules = format!("[telemetry]\nlog = \"warn\"\n{}", rules(&backend));
    let mut daemon = Daemon::spawn(&site, &rules, &[]);
    let file = daemon.folder().join("audit.jsonl");
    let client = Client::connect(&site).await;
    eventually("a consumer", async || site.consumers(&site.queue()).await.filter(|count| *count > 0)).await;
    client.exchange(&call(&client, "store")).await;
    client.exchange(&call(&client, "hidden")).await;
    daemon.signal("TERM").await;
    assert_eq!(daemon.ended().await.code(), Some(0));
    let found = records(&file);
    assert_eq!(found.iter().map(|record| &record["event"]).collect::<Vec<_>>(), ["called", "refused"]);
    assert!(daemon.logged("consuming").is_empty(), "the log shows warnings alone: {}", daemon.text());
}
