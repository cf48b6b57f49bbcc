//! Calls that must not run twice, while daemons are killed and messages are published again.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use futures_util::StreamExt;
use serde_json::json;
use toolbus_e2e::backend::Backend;
use toolbus_e2e::client::{Client, Request};
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::history::{Tally, is_unknown, random};
use toolbus_e2e::namespace::BrokerNamespace;
use toolbus_testing::patience::eventually;
use toolbus_testing::redis::RedisServer;

/// Calls in all, how many are under way at a time, and how often the daemon is killed meanwhile.
const CALLS: usize = 300;
const CALLERS: usize = 16;
const KILLS: usize = 8;
/// Decides after how many runs the daemon is killed.
const SEED: u64 = 16;
/// A ledger that outlives the daemon.
const SQLITE: &str = "[store]\nurl = \"sqlite:store.db\"\n";

fn work(client: &Client, tool: &str, id: &str) -> Request {
    client.request(tool, &json!({"id": id}))
}

/// Kills one daemon after another while calls are under way, each started again at once, and checks every call.
async fn every_call_survives(what: &str, store: &str, number: usize) {
    let (site, backend) = (BrokerNamespace::shared().await, Backend::start().await);
    let config = format!("{store}{}", backend.tool("work", "/work?id={id}", "effect = \"effectful\""));
    let mut daemons = VecDeque::new();
    for _ in 0..number {
        daemons.push_back(Daemon::start(&site, &config).await);
    }
    let client = Client::connect(&site).await;
    let requests: BTreeMap<String, Request> =
        (0..CALLS).map(|number| format!("call-{number}")).map(|id| (id.clone(), work(&client, "work", &id))).collect();

    let load = futures_util::stream::iter(&requests).for_each_concurrent(CALLERS, async |(_, request)| {
        client.exchange(request).await;
    });
    let kills = async {
        let mut state = SEED;
        for kill in 1..=KILLS {
            let due = backend.total().max(kill * CALLS / (KILLS + 4)) + random(&mut state, CALLERS);
            let passed = async || (backend.total() >= due.min(CALLS / 2)).then_some(());
            eventually("calls to run", passed).await;
            let daemon = daemons.pop_front().unwrap();
            daemons.push_back(daemon.killed().await);
        }
        daemons
    };
    let begun = Instant::now();
    let ((), mut daemons) = tokio::join!(load, kills);
    client.caught_up().await;

    let mut tally = Tally::default();
    for (id, request) in &requests {
        let replies = client.replies_to(&request.correlation);
        tally.count(id, &replies, backend.count(id), &format!("worked for {id}"));
    }
    tally.check(&format!("{what}: {KILLS} times SIGKILL within {:?} (seed {SEED})", begun.elapsed()));
    assert_eq!(tally.attempts, CALLS);
    let last = daemons.pop_back().unwrap();
    for daemon in daemons {
        daemon.end().await;
    }
    last.stop(&site).await;
}

#[tokio::test]
async fn a_daemon_that_is_killed_again_and_again_loses_no_call_and_runs_none_twice() {
    every_call_survives("one daemon with SQLite", SQLITE, 1).await;
}

#[tokio::test]
async fn two_daemons_that_are_killed_in_turn_lose_no_call_and_run_none_twice() {
    let redis = RedisServer::start().await;
    let store = format!("[store]\nurl = \"{}\"\n", redis.url());
    every_call_survives("two daemons with Redis", &store, 2).await;
}

#[tokio::test]
async fn a_call_whose_daemon_is_killed_gets_an_unknown_outcome_and_is_not_run_again() {
    let backend = Backend::start().await;
    let (site, daemon, client) =
        Daemon::with_client(&format!("{SQLITE}{}", backend.tool("hold", "/gate?id={id}", ""))).await;
    let request = work(&client, "hold", "held");
    client.send(&request).await;
    backend.wait_for("held").await;
    let daemon = daemon.killed().await;
    let reply = client.reply(&request).await;
    assert!(is_unknown(&reply), "{reply:?}");
    backend.open();
    // A request that is published again gets the same reply.
    client.send(&request).await;
    let replies = eventually("the same reply", async || {
        Some(client.replies_to(&request.correlation)).filter(|all| all.len() == 2)
    });
    let replies = replies.await;
    assert_eq!((replies[0].message_id(), &replies[0].data), (replies[1].message_id(), &replies[1].data));
    assert_eq!(backend.count("held"), 1);
    daemon.stop(&site).await;
}

#[tokio::test]
async fn a_recorded_reply_is_published_after_the_next_start_without_running_the_tool_again() {
    let (site, backend) = (BrokerNamespace::shared().await, Backend::start().await);
    let (proxy, behind) = site.proxied().await;
    let tools = backend.tool("hold", "/gate?id={id}", "");
    let daemon = Daemon::start(&behind, &format!("{SQLITE}[audit]\nfile = \"audit.jsonl\"\n{tools}")).await;
    let client = Client::connect(&site).await;
    let request = work(&client, "hold", "held");
    client.send(&request).await;
    backend.wait_for("held").await;
    // Nothing reaches the broker any more, and the tool ends.
    proxy.freeze();
    backend.open();
    let audit = daemon.folder().join("audit.jsonl");
    // It is recorded before that.
    eventually("the record of the call", async || {
        std::fs::read_to_string(&audit).ok().filter(|text| text.contains("\"called\""))
    })
    .await;
    daemon.signal("STOP").await;
    proxy.cut();
    proxy.restore();
    assert_eq!(client.replies_to(&request.correlation), []);
    let daemon = daemon.killed().await;
    let reply = client.reply(&request).await;
    assert_eq!((reply.content().as_str(), backend.count("held")), ("passed held", 1));
    client.caught_up().await;
    assert_eq!(client.replies_to(&request.correlation).len(), 1);
    daemon.stop(&site).await;
}

#[tokio::test]
async fn a_message_that_is_published_twice_runs_once_also_after_a_restart() {
    let backend = Backend::start().await;
    let (site, daemon, client) =
        Daemon::with_client(&format!("{SQLITE}{}", backend.tool("work", "/work?id={id}", ""))).await;
    let request = work(&client, "work", "twice");
    client.exchange(&request).await;
    client.send(&request).await;
    let daemon = daemon.restarted().await;
    client.send(&request).await;
    let replies = eventually("three replies", async || {
        Some(client.replies_to(&request.correlation)).filter(|all| all.len() == 3)
    });
    let replies = replies.await;
    for again in &replies[1..] {
        assert_eq!((again.message_id(), &again.data), (replies[0].message_id(), &replies[0].data));
    }
    assert_eq!((backend.count("twice"), replies[0].content().as_str()), (1, "worked for twice"));
    daemon.stop(&site).await;
}
