//! Scripts of one session over the bus, and what is reported while a script runs.

use serde_json::{Value, json};
use toolbus_e2e::client::Client;
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::mcp::with_progress;
use toolbus_testing::patience::eventually;

use super::setup::{SCRIPT, call, descendants, lives, running, status, with_client};

/// The content of the reply to a script in this session of an agent.
async fn step(client: &Client, agent: &str, session: &str, script: &str) -> String {
    let mut request = call(client, script, &json!({"session": true})).by(agent);
    let mut body: Value = serde_json::from_slice(&request.body).unwrap();
    body["sessionId"] = json!(session);
    request.body = body.to_string().into_bytes();
    client.exchange(&request).await.content()
}

async fn sessions(daemon: &Daemon, number: u64) {
    eventually("as many sessions", async || (status(daemon).await["sessions"] == number).then_some(())).await;
}

#[tokio::test]
async fn an_agent_works_step_by_step_until_its_session_ends() {
    let more = format!("{SCRIPT}[identity]\ntrust_headers = true\n[agents.ana]\n[agents.bruno]\n");
    let (site, daemon, client) = with_client(&more).await;
    assert_eq!(step(&client, "ana", "s", "x = 1").await, "(no output)");
    assert_eq!(step(&client, "ana", "s", "x + 1").await, "2");
    assert!(step(&client, "bruno", "s", "x").await.contains("NameError"));
    sessions(&daemon, 2).await;
    let without = client.exchange(&call(&client, "x", &json!({"session": true})).by("ana")).await;
    assert_eq!(without.code(), "invalid_arguments");

    let end = client.raw(json!({"sessionId": "s"}).to_string()).on("tool.session.end");
    client.send(&end.by("ana")).await;
    sessions(&daemon, 1).await;
    assert!(step(&client, "ana", "s", "x").await.contains("NameError"), "another session has begun");

    let disabled = daemon.operate(&["disable", "agent", "bruno"]).await;
    assert_eq!(disabled.code, 0, "{disabled:?}");
    sessions(&daemon, 1).await;

    let python = running(&daemon).await;
    daemon.stop(&site).await;
    eventually("the end of the interpreters", async || (!python.iter().any(|pid| lives(*pid))).then_some(())).await;
}

#[tokio::test]
async fn output_of_a_script_is_reported_in_order_before_its_reply() {
    let (site, daemon, client) = with_client(SCRIPT).await;
    let script = "import time\nfor step in range(3):\n    print('step', step)\n    time.sleep(1)\n";
    let request = call(&client, script, &json!({})).header("rb-rb-progress", "1");
    client.send(&request).await;
    let (reports, reply) = with_progress(&client, &request).await;
    let messages: Vec<_> = reports.iter().map(|report| report["message"].as_str().unwrap()).collect();
    assert_eq!(messages, ["step 0", "step 1", "step 2"]);
    assert_eq!(reply.body()["content"], "step 0\nstep 1\nstep 2\n");
    let silent = client.exchange(&call(&client, script, &json!({}))).await;
    assert_eq!(silent.body()["content"], "step 0\nstep 1\nstep 2\n", "a caller that wants no reports gets none");
    let is_left = async || (descendants(daemon.pid()).len() <= 2).then_some(());
    eventually("nothing to be left but what starts scripts", is_left).await;
    daemon.stop(&site).await;
}
