//! The broker lost under load, a connection, a queue, the disk of the ledger: everything comes back by itself, and
//! nothing is run twice.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use lapin::options::QueueDeleteOptions;
use serde_json::json;
use tokio::task::JoinSet;
use toolbus_e2e::backend::Backend;
use toolbus_e2e::client::Client;
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::message::Message;
use toolbus_e2e::namespace::BrokerNamespace;
use toolbus_e2e::program::toolbus_at;
use toolbus_e2e::survivor::Survivor;
use toolbus_testing::patience::{at_most, eventually};
use toolbus_testing::rabbit::RabbitNode;
use toolbus_testing::redis::RedisServer;

/// Requests in all, and how many are under way at a time.
const REQUESTS: usize = 400;
const CALLERS: usize = 32;
/// Longest time from a restarted broker's first connection to the first reply, on a machine with nothing else to do.
const FIRST_REPLY: Duration = Duration::from_secs(2);

/// Kills the broker while calls are under way, starts it again, and checks every call.
async fn every_request_survives(queue_type: &str) {
    let (node, backend) = (RabbitNode::start().await, Backend::start().await);
    let site = BrokerNamespace::on(&node);
    let tools = backend.tool("work", "/work?id={id}", "effect = \"effectful\"");
    let daemon = Daemon::start(&site, &format!("[bus]\nqueue_type = \"{queue_type}\"\n{tools}")).await;
    let survivor = Survivor::new(&site).await;
    // The broker writes what was declared to disk some time later. It is not to forget the queues themselves.
    node.ctl(&["eval", "mnesia:sync_log()."]).await;
    node.flush().await;
    let mut receiver = JoinSet::new();
    receiver.spawn(Arc::clone(&survivor).receive());

    let load = futures_util::stream::iter(0..REQUESTS)
        .for_each_concurrent(CALLERS, async |number| drop(survivor.exchange(&format!("call-{number}")).await));
    let loss = async {
        eventually("load", async || (backend.total() > REQUESTS / 4).then_some(())).await;
        node.kill();
        daemon.blocked_by("disconnected").await;
        assert!(backend.total() < REQUESTS, "the broker was to die under load");
        node.restart().await;
        daemon.wait_until_ready().await;
    };
    tokio::join!(load, loss);

    for number in 0..REQUESTS {
        let id = format!("call-{number}");
        let replies = survivor.replies(&id);
        let published = survivor.published(&id);
        assert!(replies.iter().all(|reply| reply.content() == format!("worked for {id}")), "{replies:?}");
        assert!(backend.count(&id) <= published, "{id}: published {published} times, ran {}", backend.count(&id));
        // A repeated reply is the same one.
        let mut ids: Vec<&str> = replies.iter().map(Message::message_id).collect();
        ids.dedup();
        assert_eq!(ids.len(), 1, "{id}");
    }
    let once = (0..REQUESTS).filter(|number| survivor.published(&format!("call-{number}")) == 1).count();
    assert!(once > REQUESTS / 2, "most requests were published once, so that running twice would show: {once}");
    let (_, status) = daemon.get("/status").await.unwrap();
    assert!(status["broker"]["reconnects"].as_u64().unwrap() >= 2, "{status}");
    daemon.stop(&site).await;
    receiver.abort_all();
    while receiver.join_next().await.is_some() {}
}

#[tokio::test]
async fn a_broker_killed_under_load_loses_no_request_and_nothing_runs_twice() {
    every_request_survives("quorum").await;
}

#[tokio::test]
async fn a_broker_killed_under_load_loses_no_request_of_a_classic_queue() {
    every_request_survives("classic").await;
}

#[tokio::test]
async fn the_first_reply_follows_soon_after_a_restarted_broker_takes_connections() {
    let node = RabbitNode::start().await;
    let site = BrokerNamespace::on(&node);
    let daemon = Daemon::start(&site, "[tools]\necho = true\n").await;
    node.ctl(&["eval", "mnesia:sync_log()."]).await;
    node.flush().await;
    node.kill();
    daemon.blocked_by("disconnected").await;
    // A start takes seconds, so that the daemon waits as long as it ever does between two attempts.
    node.restart().await;
    let began = Instant::now();
    let client = Client::connect(&site).await;
    assert_eq!(client.call("echo", &json!({"text": "again"})).await.content(), "again");
    println!("the first answer came after {:?}", began.elapsed());
    assert!(began.elapsed() < at_most(FIRST_REPLY), "{:?}", began.elapsed());
    daemon.stop(&site).await;
}

#[tokio::test]
async fn a_deleted_queue_is_declared_and_consumed_again() {
    let site = BrokerNamespace::shared().await;
    let daemon = Daemon::start(&site, "[tools]\necho = true\n").await;
    let (_connection, channel) = site.channel().await;
    channel.queue_delete(site.queue().as_str().into(), QueueDeleteOptions::default()).await.unwrap();
    eventually("the queue to be there again", async || {
        (daemon.logged("consuming").iter().filter(|line| line["queue"] == site.queue().as_str()).count() == 2)
            .then_some(())
    })
    .await;
    daemon.wait_until_ready().await;
    let client = Client::connect(&site).await;
    assert_eq!(client.call("echo", &json!({"text": "again"})).await.content(), "again");
    daemon.stop(&site).await;
}

#[tokio::test]
async fn a_broker_that_takes_no_messages_is_named_and_replies_follow_when_it_does() {
    let (node, backend) = (RabbitNode::start().await, Backend::start().await);
    let site = BrokerNamespace::on(&node);
    let daemon = Daemon::start(&site, &backend.tool("hold", "/gate?id={id}", "")).await;
    let client = Client::connect(&site).await;
    let request = client.request("hold", &json!({"id": "held"}));
    client.send(&request).await;
    backend.wait_for("held").await;
    // The broker blocks a connection when it publishes: the reply is what it blocks.
    node.ctl(&["set_vm_memory_high_watermark", "0.000001"]).await;
    backend.open();
    daemon.blocked_by("broker_blocked").await;
    assert_eq!(client.replies_to(&request.correlation), []);
    let late = toolbus_at(&site, &["call", "hold", "id=late"]).await;
    assert!(late.code == 7 && late.err.contains("the broker takes no messages now"), "{late:?}");
    node.ctl(&["set_vm_memory_high_watermark", "0.4"]).await;
    assert_eq!(client.reply(&request).await.content(), "passed held");
    assert_eq!(backend.count("held"), 1);
    daemon.wait_until_ready().await;
    daemon.stop(&site).await;
    // A reply that stays blocked for longer than the broker may take to confirm it is published again, as the same.
    let replies = client.replies_to(&request.correlation);
    let mut ids: Vec<&str> = replies.iter().map(Message::message_id).collect();
    ids.dedup();
    assert_eq!(ids.len(), 1, "{replies:?}");
}

#[tokio::test]
async fn connections_closed_by_the_broker_are_opened_again_and_the_running_call_gets_one_reply() {
    let (node, backend) = (RabbitNode::start().await, Backend::start().await);
    let site = BrokerNamespace::on(&node);
    let daemon = Daemon::start(&site, &backend.tool("hold", "/gate?id={id}", "")).await;
    let survivor = Survivor::new(&site).await;
    let client = Client::connect(&site).await;
    let request = client.request("hold", &json!({"id": "held"})).reply_to(&survivor.queue);
    client.send(&request).await;
    backend.wait_for("held").await;
    node.ctl(&["close_all_connections", "maintenance"]).await;
    eventually("both connections to be lost", async || {
        let (_, status) = daemon.get("/status").await?;
        (status["broker"]["reconnects"].as_u64()? >= 2).then_some(())
    })
    .await;
    daemon.wait_until_ready().await;
    // The request has come again by now, and has found its call running.
    backend.open();
    let reply = eventually("the reply", async || site.take(&survivor.queue).await).await;
    assert_eq!((reply.content().as_str(), reply.correlation_id()), ("passed held", request.correlation.as_str()));
    daemon.stop(&site).await;
    assert_eq!(backend.count("held"), 1);
    assert!(site.take(&survivor.queue).await.is_none(), "one reply");
}

#[tokio::test]
async fn a_daemon_that_lost_its_connection_reports_nothing_of_calls_that_another_runs() {
    let (site, backend, redis) = (BrokerNamespace::shared().await, Backend::start().await, RedisServer::start().await);
    let (proxy, behind) = site.proxied().await;
    let tools = backend.tool("pay", "/gate?id={id}", "effect = \"effectful\"\ntimeout = \"10m\"");
    let settings =
        |more: &str| format!("[store]\nurl = \"{}\"\n[invoke]\nmax_timeout = \"10m\"\n{more}{tools}", redis.url());
    let first = Daemon::start(&behind, &settings("max_in_flight = 2\n")).await;
    let client = Client::connect(&site).await;
    let ids: Vec<String> = (0..6).map(|number| format!("call-{number}")).collect();
    let requests: Vec<_> = ids.iter().map(|id| client.request("pay", &json!({"id": id}))).collect();
    for request in &requests {
        client.send(request).await;
    }
    let waiting = async |count: u64| {
        eventually("calls that wait", async || {
            let (_, status) = first.get("/status").await?;
            (status["counts"]["waiting"] == count).then_some(())
        })
        .await;
    };
    // An agent runs at most three quarters of the calls that the daemon may.
    waiting(5).await;
    let second = Daemon::start(&site, &settings("")).await;
    proxy.cut();
    eventually("all calls at the backend", async || (backend.total() == ids.len()).then_some(())).await;
    waiting(0).await;
    proxy.restore();
    first.wait_until_ready().await;
    backend.open();
    for (request, id) in requests.iter().zip(&ids) {
        assert_eq!(client.reply(request).await.content(), format!("passed {id}"));
    }
    first.stop(&site).await;
    second.stop(&site).await;
    // Both report what the first one ran.
    let all = client.caught_up().await;
    assert!(all.iter().all(|reply| reply.code().is_empty()), "{all:?}");
    assert!(ids.iter().all(|id| backend.count(id) == 1));
}

/// Limits the length of files that a daemon may write, which has SIGXFSZ ignored.
async fn limit_files(daemon: &Daemon, most: &str) {
    let arguments = [format!("--pid={}", daemon.pid()), format!("--fsize={most}:")];
    let status = tokio::process::Command::new("prlimit").args(arguments).status().await.unwrap();
    assert!(status.success(), "{status}");
}

#[tokio::test]
async fn a_ledger_that_takes_no_call_takes_readiness_away_and_gives_it_back_without_one() {
    let (site, backend) = (BrokerNamespace::shared().await, Backend::start().await);
    let pay = backend.tool("pay", "/work?id={id}", "effect = \"effectful\"");
    let launcher = ["/bin/sh", "-c", "trap '' XFSZ; exec \"$@\"", "sh"];
    let settings = format!("[store]\nurl = \"sqlite:toolbus.db\"\n{pay}");
    let mut daemon = Daemon::spawn_by(&launcher, &site, &settings, &[]);
    daemon.wait_until_listening().await;
    daemon.wait_until_ready().await;
    let client = Client::connect(&site).await;
    limit_files(&daemon, "0").await;
    let refused = client.call("pay", &json!({"id": "refused"})).await;
    let failure = (refused.code(), refused.body()["outcome"].clone(), refused.body()["isRetryable"].clone());
    assert_eq!(failure, ("execution_failed".to_owned(), json!("not_started"), json!(true)));
    let blocker = daemon.blocked_by("store_away").await;
    assert!(blocker["detail"].as_str().unwrap().starts_with("ledger: "), "{blocker}");
    limit_files(&daemon, "unlimited").await;
    daemon.wait_until_ready().await;
    assert_eq!(client.call("pay", &json!({"id": "paid"})).await.content(), "worked for paid");
    assert_eq!((backend.count("refused"), backend.count("paid")), (0, 1));
    daemon.stop(&site).await;
}
