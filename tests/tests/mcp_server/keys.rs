//! Calls of MCP clients that have an idempotency key.

use serde_json::{Value, json};
use toolbus_e2e::backend::Backend;
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::namespace::BrokerNamespace;
use toolbus_e2e::stdio::Stdio;
use toolbus_testing::patience::eventually;

use crate::fixture::{ANA, BEA, Fixture, alone, call, rules};

/// A ledger that outlives the daemon.
const SQLITE: &str = "[store]\nurl = \"sqlite:store.db\"\n";

fn keyed(tool: &str, arguments: &Value) -> Value {
    let mut message = call(1, tool, arguments);
    message["params"]["_meta"] = json!({"rb-idempotency-key": "order-7"});
    message
}

fn gate(id: &str) -> Value {
    keyed("gate", &json!({"id": id}))
}

fn text(response: &Value) -> &str {
    response["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{response}"))
}

async fn durable() -> Fixture {
    let backend = Backend::start().await;
    let daemon = Daemon::alone(&format!("{SQLITE}{}", rules(&backend, &["gate", "echo"], ""))).await;
    Fixture { backend, daemon }
}

#[tokio::test]
async fn a_repeated_call_gets_the_recorded_result_in_any_session_and_after_a_restart() {
    let Fixture { backend, daemon } = durable().await;
    backend.open();
    let fixture = Fixture { backend, daemon };
    let [one, other] = [fixture.session(ANA).await, fixture.session(ANA).await];
    for session in [&one, &one, &other] {
        assert_eq!(text(&fixture.exchange(&[ANA, session], &gate("paid")).await), "passed paid");
    }
    let key = fixture.backend.headers("paid")["idempotency-key"].to_str().unwrap().to_owned();
    assert!(key.len() == 64 && key.bytes().all(|byte| byte.is_ascii_hexdigit()), "{key}");
    let refused = fixture.exchange(&[ANA, &one], &gate("other")).await;
    assert_eq!(refused["result"]["_meta"]["toolbus/error"]["code"], "invalid_arguments", "{refused}");
    let bea = fixture.session(BEA).await;
    let of_bea = fixture.exchange(&[BEA, &bea], &keyed("echo", &json!({"text": "hers"}))).await;
    assert_eq!(text(&of_bea), "hers", "each caller has its own keys");

    let Fixture { backend, daemon } = fixture;
    let fixture = Fixture { backend, daemon: daemon.killed().await };
    let session = fixture.session(ANA).await;
    assert_eq!(text(&fixture.exchange(&[ANA, &session], &gate("paid")).await), "passed paid");
    assert_eq!((fixture.backend.count("paid"), fixture.backend.count("other")), (1, 0));
    assert_eq!(fixture.audited("gate").iter().filter(|record| *record == "called ok").count(), 1);
    fixture.daemon.end().await;
}

#[tokio::test]
async fn a_call_whose_daemon_is_killed_gets_an_unknown_outcome_and_is_not_run_again() {
    let Fixture { backend, daemon } = durable().await;
    let fixture = Fixture { backend, daemon };
    let session = fixture.session(ANA).await;
    let _lost = fixture.send(&[ANA, &session], &gate("held")).await;
    fixture.backend.wait_for("held").await;
    let Fixture { backend, daemon } = fixture;
    let fixture = Fixture { backend, daemon: daemon.killed().await };
    fixture.backend.open();
    let session = fixture.session(ANA).await;
    for _ in 0..2 {
        // A stream, where the lease of the daemon that was killed has to run out first.
        let mut response = fixture.send(&[ANA, &session, "Connection: close"], &gate("held")).await;
        assert!(response.saw(r#""outcome":"unknown""#).await);
    }
    assert_eq!(fixture.backend.count("held"), 1);
    fixture.daemon.end().await;
}

#[tokio::test]
async fn a_client_that_lost_its_connection_calls_again_and_gets_the_result_of_the_call_that_ran_on() {
    let fixture = Fixture::new(&["gate"]).await;
    let (headers, mut message) = alone(7, "gate", &json!({"id": "left"}));
    message["params"]["_meta"]["rb-idempotency-key"] = json!("order-7");
    let head: Vec<&str> = [ANA].into_iter().chain(headers.iter().map(String::as_str)).collect();
    let left = fixture.send(&head, &message).await;
    fixture.backend.wait_for("left").await;
    drop(left);
    let mut again = fixture.send(&head, &message).await;
    // It has become a stream, so that it waits for the call under way.
    assert!(again.saw(": here").await);
    fixture.backend.open();
    assert!(again.saw("passed left").await);
    assert_eq!(fixture.backend.count("left"), 1);
    eventually("the record", async || (!fixture.audited("gate").is_empty()).then_some(())).await;
    assert_eq!(fixture.audited("gate"), ["called ok"]);
    fixture.daemon.end().await;
}

#[tokio::test]
async fn over_standard_input_and_output_the_key_goes_on_to_the_daemon() {
    let (site, backend) = (BrokerNamespace::shared().await, Backend::start().await);
    let daemon = Daemon::start(&site, &backend.tool("work", "/work?id={id}", "")).await;
    let params = json!({"name": "work", "arguments": {"id": "once"}, "_meta": {"rb-idempotency-key": "order-7"}});
    for _ in 0..2 {
        let mut client = Stdio::start(&site, "ana");
        client.begin().await;
        for _ in 0..2 {
            assert_eq!(text(&client.exchange("tools/call", &params).await), "worked for once");
        }
        client.close();
        assert_eq!(client.ended().await.0, Some(0));
    }
    assert_eq!(backend.count("once"), 1);
    daemon.stop(&site).await;
}
