//! Recent calls, as operators look them up.

use serde_json::{Value, json};
use toolbus_e2e::client::Client;
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::namespace::BrokerNamespace;
use toolbus_e2e::program::toolbus_in;
use toolbus_testing::patience::eventually;

#[tokio::test]
async fn operators_see_the_outcome_of_a_call_and_the_time_of_its_steps() {
    let (site, daemon, client) = Daemon::with_client("[tools]\necho = true\n").await;
    let echoed = client.request("echo", &json!({"text": "a secret text"}));
    assert_eq!(client.exchange(&echoed).await.content(), "a secret text");
    assert_eq!(client.call("absent", &json!({})).await.code(), "tool_not_found");

    let all = eventually("both calls", async || {
        let found = daemon.operate(&["trace", "--output", "json"]).await.json();
        let is_over = |call: &Value| call["totalMs"].is_number();
        let calls = found["calls"].as_array()?.clone();
        (calls.len() == 2 && calls.iter().all(is_over)).then_some(calls)
    })
    .await;
    assert_eq!([&all[0]["tool"], &all[0]["status"]], ["absent", "tool_not_found"]);
    assert_eq!([&all[1]["tool"], &all[1]["status"], &all[1]["source"]], ["echo", "ok", "echo"]);
    let steps: Vec<&str> =
        all[1]["steps"].as_array().unwrap().iter().map(|step| step["name"].as_str().unwrap()).collect();
    assert_eq!(steps, ["check", "wait", "run", "reply", "confirm", "settle"], "{}", all[1]);

    let failed = daemon.operate(&["trace", "--status", "failed", "--output", "json"]).await.json();
    assert_eq!(failed["calls"], json!([all[0]]));
    let one = daemon.operate(&["trace", &echoed.correlation]).await;
    assert_eq!(one.code, 0, "{one:?}");
    assert!(
        one.out.contains("echo") && one.out.contains("settle") && !one.out.contains("a secret text"),
        "{}",
        one.out
    );
    let none = daemon.operate(&["trace", "no-such-id"]).await;
    assert_eq!(
        (none.code, &*none.out),
        (1, "no recent call has this id: the daemon keeps the last thousand, since its start\n")
    );
    daemon.stop(&site).await;
}

#[tokio::test]
async fn a_call_of_an_earlier_start_is_found_in_the_audit_file() {
    let (site, folder) = (BrokerNamespace::shared().await, tempfile::tempdir().unwrap());
    let audited = format!("[audit]\nfile = {:?}\n", folder.path().join("audit.jsonl"));
    let daemon = Daemon::start(&site, &audited).await;
    let client = Client::connect(&site).await;
    let request = client.request("absent", &json!({}));
    let reply = client.exchange(&request).await;
    let call_id = reply.body()["toolCallId"].as_str().unwrap().to_owned();
    daemon.stop(&site).await;

    let daemon = Daemon::start(&site, &audited).await;
    let trace = ["trace", &call_id, "--config", "site.toml", "--config", "more.toml"];
    let found = daemon.operate(&trace).await;
    assert!(found.code == 0 && found.out.contains("tool_not_found") && found.out.contains("ended"), "{found:?}");
    let found = daemon.operate(&[&trace[..], &["--output", "json"]].concat()).await.json();
    assert_eq!((&found["calls"], &found["recorded"][0]["event"]), (&json!([]), &json!("refused")), "{found}");
    daemon.stop(&site).await;

    // Without a daemon; the file is not taken for that of a daemon which is named.
    let absent = folder.path().join("absent.sock");
    let configuration = format!("{audited}[daemon]\nsocket = {absent:?}\n");
    std::fs::write(folder.path().join("audited.toml"), configuration).unwrap();
    let trace = ["trace", &call_id, "--config", "audited.toml"];
    let found = toolbus_in(folder.path(), &trace).await;
    assert!(found.code == 0 && found.out.contains("tool_not_found"), "{found:?}");
    assert!(found.err.starts_with("note: no daemon is asked, the audit file alone is looked at: "), "{found:?}");
    let named = toolbus_in(folder.path(), &[&trace[..], &["--socket", absent.to_str().unwrap()]].concat()).await;
    assert!(named.code != 0 && !named.out.contains("tool_not_found"), "{named:?}");
}
