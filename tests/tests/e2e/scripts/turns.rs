//! Agents take turns.

use futures_util::future::join_all;
use serde_json::json;
use toolbus_e2e::client::Request;
use toolbus_testing::patience::eventually;

use super::setup::{script_request, status, with_client};

/// Scripts of ana that wait.
const WAITING: usize = 20;
/// Most replies to ana between bruno's request and its reply: the script that runs, and some for the way.
const BETWEEN: usize = 6;

#[tokio::test]
async fn twenty_waiting_scripts_of_one_agent_delay_another_by_a_run_and_not_by_twenty() {
    let more = "[script]\nmax_in_flight = 1\npool = { max = 0 }\n[invoke]\ndrain_timeout = \"100ms\"\n\
                [identity]\ntrust_headers = true\n[agents.ana]\n[agents.bruno]\n";
    let (site, daemon, client) = with_client(more).await;
    let requests: Vec<Request> = (0..=WAITING)
        .map(|_| script_request(&client, "import time\ntime.sleep(0.3)", &json!({"timeoutSeconds": 60})).by("ana"))
        .collect();
    join_all(requests.iter().map(|request| client.send(request))).await;
    eventually("most of ana's to wait", async || (status(&daemon).await["waiting"].as_u64()? >= 15).then_some(()))
        .await;
    let replied = || requests.iter().filter(|request| !client.replies_to(&request.correlation).is_empty()).count();
    let before = replied();
    let bruno = script_request(&client, "print('bruno')", &json!({"timeoutSeconds": 60})).by("bruno");
    let reply = client.exchange(&bruno).await;
    let after = replied();
    assert_eq!(reply.body()["output"], "bruno\n", "{}", reply.body());
    assert!(after <= before + BETWEEN, "{before} replies to ana before, {after} after");
    assert!(after < WAITING, "ana's were waiting all the time");
    daemon.stop(&site).await;
}
