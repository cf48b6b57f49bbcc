//! Results that are too long for a model, over the bus: a table, an outline and chunks.

use serde_json::{Value, json};
use toolbus_e2e::backend::Backend;
use toolbus_e2e::client::Client;
use toolbus_e2e::daemon::Daemon;

const RULES: &str = r#"
[identity]
trust_headers = true
[agents.ana]
[agents.bruno]
allowed_tools = ["echo"]
[tools]
echo = true
[invoke]
max_body = "2MiB"
[memory]
[results]
threshold = 8000
[results.models]
"small*" = 2000
"#;

/// A page with sections of some 3 000 characters, each with code in it that looks like a heading.
fn page() -> String {
    let section = |number: usize| {
        format!("## Section {number}\n\n{}```sh\n# no heading {number}\n```\n\n", "Some words of it.\n\n".repeat(150))
    };
    (0..8).map(section).collect()
}

async fn call(client: &Client, agent: &str, model: Option<&str>, tool: &str, arguments: Value) -> String {
    let body = json!({"toolName": tool, "arguments": arguments, "sessionId": "s1"});
    let mut request = client.raw(body.to_string()).by(agent);
    if let Some(model) = model {
        request = request.header("rb-rb-model", model);
    }
    let reply = client.exchange(&request).await;
    assert_eq!(reply.code(), "", "{reply:?}");
    reply.content()
}

/// The keys that a text names.
fn keys(text: &str) -> Vec<String> {
    let named = text.split('`').filter(|part| part.starts_with("session/s1/tool-echo-"));
    named.map(str::to_owned).collect()
}

#[tokio::test]
async fn an_agent_gets_a_table_reads_the_outline_and_chunks_and_together_they_are_the_result() {
    let page = page();
    let (site, daemon, client) = Daemon::with_client(RULES).await;
    let table = call(&client, "ana", None, "echo", json!({"text": page})).await;
    assert!(table.starts_with("Tool result for 'echo' is large ("), "{table}");
    let [index, chunks @ ..] = &keys(&table)[..] else { panic!("{table}") };
    assert!(index.ends_with("-index") && chunks.len() >= 3, "{table}");
    let get = async |key: &str| call(&client, "ana", None, "get_from_working_memory", json!({"key": key})).await;
    let outline = get(index).await;
    let mut outlined = keys(&outline);
    outlined.dedup();
    assert_eq!((&outlined[..], outline.contains("no heading")), (chunks, false), "{outline}");
    let mut whole = String::new();
    for chunk in chunks {
        whole.push_str(&get(chunk).await);
    }
    assert_eq!(whole, page);
    daemon.stop(&site).await;
}

#[tokio::test]
async fn the_model_of_a_caller_decides_and_a_caller_that_cannot_read_chunks_gets_the_beginning() {
    let (site, daemon, client) = Daemon::with_client(RULES).await;
    let text = "x".repeat(5000);
    assert_eq!(call(&client, "ana", None, "echo", json!({"text": text})).await, text);
    let table = call(&client, "ana", Some("small-1"), "echo", json!({"text": text})).await;
    assert!(table.starts_with("Tool result for 'echo' is large (5,000 chars)"), "{table}");
    let cut = call(&client, "bruno", Some("small-1"), "echo", json!({"text": text})).await;
    assert_eq!(cut, format!("{}\n[result truncated — 3,000 chars omitted]", "x".repeat(2000)));
    daemon.stop(&site).await;
}

#[tokio::test]
async fn a_result_far_above_the_limit_of_its_endpoint_is_read_whole_and_kept_in_parts() {
    let backend = Backend::start().await;
    let endpoint = backend.tool("large", "/bytes/20000000", "");
    // By default, a session has room for a thousand parts.
    let rules = RULES.replace("threshold = 8000", "threshold = 64000").replace(r#"["echo"]"#, r#"["large"]"#);
    let (site, daemon, client) = Daemon::with_client(&format!("{rules}{endpoint}")).await;
    let table = call(&client, "ana", None, "large", json!({"id": "1"})).await;
    assert!(table.starts_with("Tool result for 'large' is large (20,000,000 chars)"), "{table}");
    let cut = call(&client, "bruno", None, "large", json!({"id": "1"})).await;
    assert!(cut.ends_with("chars omitted]") && cut.chars().count() < 65_000, "{cut}");
    daemon.stop(&site).await;
}
