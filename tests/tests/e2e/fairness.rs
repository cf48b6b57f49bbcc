//! One agent's backlog holds nobody else up, and is bounded.

use std::time::{Duration, Instant};

use serde_json::json;
use toolbus_e2e::backend::Backend;
use toolbus_e2e::client::{Client, Request};
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::site::Site;
use toolbus_testing::patience::{at_most, eventually};

/// Calls of ana that run and wait.
const RUNNING: usize = 16;
const QUEUED: usize = 1_000;
/// Calls of which the median is taken.
const CALLS: usize = 20;
/// Longest time that a call of bruno may take more while ana's wait, on a machine with nothing else to do.
const MORE: Duration = Duration::from_millis(50);

fn rules(backend: &Backend) -> String {
    let hold = backend.tool("hold", "/gate?id={id}", "timeout = \"100s\"");
    format!(
        "[tools]\necho = true\n[invoke]\ndefault_timeout = \"110s\"\nmax_waiting = 2048\n[identity]\n\
         trust_headers = true\n[agents.ana]\nmax_in_flight = {RUNNING}\nmax_queued = {QUEUED}\n[agents.bruno]\n{hold}"
    )
}

fn slow(client: &Client, agent: &str) -> Request {
    client.request("hold", &json!({"id": agent})).by(agent)
}

/// The median time of calls by bruno, from before each is sent until it is answered.
async fn median(client: &Client) -> Duration {
    let mut times = Vec::new();
    for number in 0..CALLS {
        let request = client.request("echo", &json!({"text": number.to_string()})).by("bruno");
        let started = Instant::now();
        assert_eq!(client.exchange(&request).await.content(), number.to_string());
        times.push(started.elapsed());
    }
    times.sort();
    times[CALLS / 2]
}

async fn counts(daemon: &Daemon) -> (u64, u64) {
    let (_, status) = daemon.get("/status").await.unwrap();
    let count = |name: &str| status["counts"][name].as_u64().unwrap();
    (count("inFlight"), count("waiting"))
}

#[tokio::test]
async fn a_thousand_waiting_calls_of_one_agent_do_not_slow_down_another_and_no_more_may_wait() {
    let (site, backend) = (Site::shared().await, Backend::start().await);
    let daemon = Daemon::start(&site, &rules(&backend)).await;
    let (ana, bruno) = (Client::connect(&site).await, Client::connect(&site).await);
    // The first calls pay for connections and sets that are made once.
    median(&bruno).await;
    let alone = median(&bruno).await;

    let requests: Vec<_> = (0..RUNNING + QUEUED).map(|_| slow(&ana, "ana")).collect();
    for request in &requests {
        ana.send(request).await;
    }
    eventually("ana's calls to run and to wait", async || {
        (counts(&daemon).await == (RUNNING as u64, QUEUED as u64)).then_some(())
    })
    .await;
    let beside = median(&bruno).await;
    assert!(beside < alone + at_most(MORE), "{beside:?} beside ana, {alone:?} alone");
    assert_eq!(counts(&daemon).await, (RUNNING as u64, QUEUED as u64), "ana's were waiting all the time");

    let started = Instant::now();
    let mut refused = ana.exchange(&slow(&ana, "ana")).await.body();
    assert!(started.elapsed() < Duration::from_secs(50), "at once, and not when its time to wait is over");
    refused["toolCallId"] = json!("[the message's id]");
    insta::assert_json_snapshot!(refused, @r#"
    {
      "code": "overloaded",
      "isRetryable": true,
      "message": "Too many calls of this agent are waiting. Try again later.",
      "outcome": "not_started",
      "retryAfterMs": 1000,
      "toolCallId": "[the message's id]",
      "toolName": "hold"
    }
    "#);
    // Bruno may still use what ana waits for.
    let held = slow(&bruno, "bruno");
    bruno.send(&held).await;
    backend.wait_for("bruno").await;
    assert_eq!(backend.count("ana"), RUNNING);

    backend.open();
    assert_eq!(bruno.answer(&held).await.content(), "passed bruno");
    eventually("every answer", async || (ana.received().len() > requests.len()).then_some(())).await;
    assert_eq!(backend.count("ana"), RUNNING + QUEUED);
    daemon.stop(&site).await;
}
