//! One agent's backlog delays no other agent, and is bounded.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use serde_json::json;
use toolbus_e2e::backend::Backend;
use toolbus_e2e::client::{Client, Request};
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::namespace::BrokerNamespace;
use toolbus_testing::patience::{PATIENCE, at_most, eventually};

use crate::turn;

/// Calls of ana that run and wait.
const RUNNING: usize = 16;
const QUEUED: usize = 1_000;
/// Calls of which the median is taken.
const CALLS: usize = 20;
/// Longest time that a call of bruno may take more while ana's wait, on a machine with nothing else to do.
const MORE: Duration = Duration::from_millis(50);
/// Calls of one that floods: more than may run and wait.
const FLOOD: usize = 1_500;
/// Longest call of bruno while such a flood is coming in, on such a machine.
const LONGEST: Duration = Duration::from_secs(2);

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

/// The time of a call by bruno, from before it is sent until its reply.
async fn call(client: &Client) -> Duration {
    let request = client.request("echo", &json!({"text": "well"})).by("bruno");
    let started = Instant::now();
    let reply = client.exchange(&request).await;
    assert_eq!(reply.content(), "well", "{:?}", reply.body());
    started.elapsed()
}

/// The median time of some of them.
async fn median(client: &Client) -> Duration {
    let mut times = Vec::new();
    for _ in 0..CALLS {
        times.push(call(client).await);
    }
    times.sort();
    times[CALLS / 2]
}

/// Sends slow calls all at once, and gives the longest time of bruno's calls until each of them runs, waits or is
/// refused, and the median afterwards.
async fn flooded(daemon: &Daemon, flood: &Client, agent: &str, bruno: &Client) -> (Duration, Duration) {
    let before = counts(daemon).await;
    let requests: Vec<_> = (0..FLOOD).map(|_| slow(flood, agent)).collect();
    let started = Instant::now();
    let send = async { join_all(requests.iter().map(|request| flood.send(request))).await.len() };
    let measure = async {
        let mut longest = Duration::ZERO;
        loop {
            longest = longest.max(call(bruno).await);
            let (running, waiting) = counts(daemon).await;
            let taken = running + waiting - before.0 - before.1;
            if usize::try_from(taken).unwrap() + flood.received().len() == FLOOD {
                break longest;
            }
            assert!(started.elapsed() < PATIENCE, "{running} run, {waiting} wait, {} replies", flood.received().len());
        }
    };
    let (_, longest) = tokio::join!(send, measure);
    let after = median(bruno).await;
    println!("{:?}: {longest:?}, then {after:?}; {:?}", started.elapsed(), counts(daemon).await);
    assert!(flood.received().iter().all(|reply| reply.code() == "overloaded"));
    (longest, after)
}

async fn counts(daemon: &Daemon) -> (u64, u64) {
    let (_, status) = daemon.get("/status").await.unwrap();
    let count = |name: &str| status["counts"][name].as_u64().unwrap();
    (count("inFlight"), count("waiting"))
}

#[tokio::test]
async fn a_thousand_waiting_calls_of_one_agent_do_not_slow_down_another_and_no_more_may_wait() {
    let _turn = turn().await;
    let (site, backend) = (BrokerNamespace::shared().await, Backend::start().await);
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
    assert_eq!(bruno.reply(&held).await.content(), "passed bruno");
    eventually("every reply", async || (ana.received().len() > requests.len()).then_some(())).await;
    assert_eq!(backend.count("ana"), RUNNING + QUEUED);
    daemon.stop(&site).await;
}

#[tokio::test]
async fn a_second_agent_that_floods_costs_another_no_more_than_the_first() {
    let _turn = turn().await;
    let (site, backend) = (BrokerNamespace::shared().await, Backend::start().await);
    let rules = "[tools]\necho = true\n[invoke]\ndefault_timeout = \"110s\"\n[identity]\ntrust_headers = true\n\
                 [agents.ana]\n[agents.bea]\n[agents.bruno]\n";
    let hold = backend.tool("hold", "/gate?id={id}", "timeout = \"100s\"");
    let daemon = Daemon::start(&site, &format!("{rules}{hold}")).await;
    let (ana, bea, bruno) = (Client::connect(&site).await, Client::connect(&site).await, Client::connect(&site).await);
    median(&bruno).await;
    let alone = median(&bruno).await;
    let (during_one, beside_one) = flooded(&daemon, &ana, "ana", &bruno).await;
    let (during_two, beside_two) = flooded(&daemon, &bea, "bea", &bruno).await;
    println!("{alone:?} alone");
    assert!(during_one.max(during_two) < at_most(LONGEST), "{during_one:?}, {during_two:?}");
    assert!(beside_one < alone + at_most(MORE), "{beside_one:?} beside one, {alone:?} alone");
    assert!(beside_two < alone + at_most(MORE), "{beside_two:?} beside two, {alone:?} alone");
    // Bruno's slow calls have slots, too.
    let held = slow(&bruno, "bruno");
    bruno.send(&held).await;
    backend.wait_for("bruno").await;
    backend.open();
    assert_eq!(bruno.reply(&held).await.content(), "passed bruno");
    for flood in [&ana, &bea] {
        eventually("every reply", async || (flood.received().len() == FLOOD).then_some(())).await;
    }
    daemon.stop(&site).await;
}

#[tokio::test]
async fn a_flooding_caller_without_a_section_leaves_another_its_slots() {
    let _turn = turn().await;
    let (site, backend) = (BrokerNamespace::shared().await, Backend::start().await);
    let rules = "[tools]\necho = true\n[invoke]\ndefault_timeout = \"110s\"\n";
    let hold = backend.tool("hold", "/gate?id={id}", "timeout = \"100s\"");
    let daemon = Daemon::start(&site, &format!("{rules}{hold}")).await;
    let (ana, bruno) = (Client::connect(&site).await, Client::connect(&site).await);
    median(&bruno).await;
    let alone = median(&bruno).await;
    let (during, beside) = flooded(&daemon, &ana, "ana", &bruno).await;
    println!("{alone:?} alone");
    assert!(during < at_most(LONGEST), "{during:?}");
    assert!(beside < alone + at_most(MORE), "{beside:?} beside ana, {alone:?} alone");
    let held = slow(&bruno, "bruno");
    bruno.send(&held).await;
    backend.wait_for("bruno").await;
    backend.open();
    assert_eq!(bruno.reply(&held).await.content(), "passed bruno");
    eventually("every reply", async || (ana.received().len() == FLOOD).then_some(())).await;
    daemon.stop(&site).await;
}
