//! Permitted cost of a call: how often a tool may be called, and what counts towards that.

use std::time::{Duration, Instant};

use serde_json::json;
use toolbus_e2e::backend::Backend;
use toolbus_e2e::client::{Client, Request};
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::message::Message;

/// A token in four seconds for ana, and one in a thousand for what must not be refilled by itself.
const RULES: &str = r#"
[identity]
trust_headers = true

[agents.ana]
toolsets = ["fs"]
outbound_allowlist = { phone = ["+573001112233"] }
tool_rate_limits = { "work" = { rps = 0.25, burst = 2 }, "*" = { rps = 0.001, burst = 1 } }

[[agents.ana.bindings]]
channel = "whatsapp"
account = "sales"

[[agents.ana.bindings]]
channel = "whatsapp"
account = "support"
tool_rate_limits = { "*" = { rps = 0.001, burst = 3 } }

[agents.bruno]
toolsets = ["fs"]
tool_rate_limits = { "*" = { rps = 0.001, burst = 1 } }

[outbound.phone]
tools = ["call"]
recipients = ["/id"]
compare = "digits"

[toolsets.fs]
kind = "rest"
endpoints = ["read"]
"#;

fn rules(backend: &Backend) -> String {
    let tools = ["work", "call", "other", "read"].map(|name| backend.tool(name, "/work?id={id}", ""));
    format!("{RULES}{}", tools.concat())
}

fn by(client: &Client, agent: &str, tool: &str) -> Request {
    client.request(tool, &json!({"id": "+573001112233"})).by(agent)
}

fn is_limited(reply: &Message) -> bool {
    assert!(matches!(&*reply.code(), "" | "rate_limited"), "{reply:?}");
    reply.code() == "rate_limited"
}

async fn limited(client: &Client, request: Request) -> bool {
    is_limited(&client.exchange(&request).await)
}

#[tokio::test]
async fn a_burst_passes_and_the_next_call_gets_the_exact_time_to_retry() {
    let backend = Backend::start().await;
    let (site, daemon, client) = Daemon::with_client(&rules(&backend)).await;
    for _ in 0..2 {
        assert!(!limited(&client, by(&client, "ana", "work")).await);
    }
    let reply = client.exchange(&by(&client, "ana", "work")).await;
    let replied = Instant::now();
    let mut body = reply.body();
    let wait = Duration::from_millis(body["retryAfterMs"].as_u64().unwrap());
    assert!(wait > Duration::ZERO && wait <= Duration::from_secs(4), "{wait:?}");
    body["retryAfterMs"] = json!("[until the next token]");
    body["toolCallId"] = json!("[the message's id]");
    insta::assert_json_snapshot!(body, @r#"
    {
      "code": "rate_limited",
      "isRetryable": true,
      "message": "Tool 'work' was called too often. Try again later.",
      "outcome": "not_started",
      "retryAfterMs": "[until the next token]",
      "toolCallId": "[the message's id]",
      "toolName": "work"
    }
    "#);

    // An earlier call is refused with the remaining time. A call of a busy machine may arrive late.
    let mut ends = vec![replied + wait];
    while replied.elapsed() < wait / 2 {
        let early = client.exchange(&by(&client, "ana", "work")).await;
        assert!(is_limited(&early), "{:?} of {wait:?}", replied.elapsed());
        ends.push(Instant::now() + Duration::from_millis(early.body()["retryAfterMs"].as_u64().unwrap()));
    }
    assert!(ends.len() > 1, "{wait:?}");
    // A reply arrives a little after its time was computed, never before.
    let earliest = *ends.iter().min().unwrap();
    tokio::time::sleep_until(earliest.into()).await;
    assert!(!limited(&client, by(&client, "ana", "work")).await, "after the reported time");
    assert!(limited(&client, by(&client, "ana", "work")).await, "one token had come, and no second one");
    daemon.stop(&site).await;
}

#[tokio::test]
async fn each_agent_binding_and_tool_has_a_budget_of_its_own_and_each_tool_one_under_both_names() {
    let backend = Backend::start().await;
    let (site, daemon, client) = Daemon::with_client(&rules(&backend)).await;
    let bound = |tool: &str, binding: &str| by(&client, "ana", tool).header("rb-binding", binding);
    assert!(!limited(&client, by(&client, "ana", "other")).await);
    assert!(limited(&client, by(&client, "ana", "other")).await);
    // Another binding, and in the other spelling of its header; one that replaces the agent's limits.
    assert!(!limited(&client, bound("other", "whatsapp:sales")).await);
    assert!(limited(&client, by(&client, "ana", "other").header("rb-rb-binding", "whatsapp:sales")).await);
    for _ in 0..3 {
        assert!(!limited(&client, bound("other", "whatsapp:support")).await);
    }
    assert!(limited(&client, bound("other", "whatsapp:support")).await);
    // Another agent.
    assert!(!limited(&client, by(&client, "bruno", "other")).await);
    assert!(limited(&client, by(&client, "bruno", "other")).await);
    // Another tool, under the name that models use; a session is no other caller.
    let list = client.exchange(&client.raw("{}").on("tool.list").by("ana")).await.body();
    let tools = list["tools"].as_array().unwrap();
    let read = tools.iter().find(|tool| tool["name"] == "fs.read").unwrap();
    let llm_name = read["llmName"].as_str().unwrap();
    assert_ne!(llm_name, "fs.read");
    assert!(!limited(&client, by(&client, "ana", llm_name)).await);
    assert!(limited(&client, by(&client, "ana", "fs.read")).await);
    let in_session = json!({"toolName": "fs.read", "sessionId": "s", "arguments": {"id": "x"}}).to_string();
    assert!(limited(&client, client.raw(in_session).by("ana")).await);
    assert!(!limited(&client, by(&client, "bruno", "fs.read")).await);
    assert!(limited(&client, by(&client, "bruno", llm_name)).await);
    daemon.stop(&site).await;
}

#[tokio::test]
async fn calls_refused_by_earlier_gates_spend_no_token() {
    let backend = Backend::start().await;
    let (site, daemon, client) = Daemon::with_client(&rules(&backend)).await;
    for _ in 0..3 {
        let wrong = client.exchange(&client.request("call", &json!({"id": 7})).by("ana")).await;
        assert_eq!(wrong.code(), "invalid_arguments");
        let refused = client.exchange(&client.request("call", &json!({"id": "+1"})).by("ana")).await;
        assert_eq!(refused.code(), "not_allowed");
    }
    assert!(!limited(&client, by(&client, "ana", "call")).await);
    assert!(limited(&client, by(&client, "ana", "call")).await);
    assert_eq!(backend.total(), 1);
    daemon.stop(&site).await;
}
