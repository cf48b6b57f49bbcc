//! The broker lost under load, a queue deleted: everything comes back by itself, and nothing is run twice.

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
use toolbus_e2e::survivor::Survivor;
use toolbus_testing::patience::{at_most, eventually};
use toolbus_testing::rabbit::RabbitNode;

/// Requests in all, and how many are under way at a time.
const REQUESTS: usize = 400;
const CALLERS: usize = 32;
/// Longest time from a restarted broker's first connection to the first answer, on a machine with nothing else to do.
const FIRST_ANSWER: Duration = Duration::from_secs(2);

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
        let answers = survivor.answers(&id);
        let published = survivor.published(&id);
        assert!(answers.iter().all(|answer| answer.content() == format!("worked for {id}")), "{answers:?}");
        assert!(backend.count(&id) <= published, "{id}: published {published} times, ran {}", backend.count(&id));
        // A repeated answer is the same one.
        let mut ids: Vec<&str> = answers.iter().map(Message::message_id).collect();
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
async fn the_same_holds_for_a_classic_queue() {
    every_request_survives("classic").await;
}

#[tokio::test]
async fn the_first_answer_follows_soon_after_a_restarted_broker_takes_connections() {
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
    assert!(began.elapsed() < at_most(FIRST_ANSWER), "{:?}", began.elapsed());
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
async fn a_broker_that_takes_no_messages_is_named_and_answers_follow_when_it_does() {
    let (node, backend) = (RabbitNode::start().await, Backend::start().await);
    let site = BrokerNamespace::on(&node);
    let daemon = Daemon::start(&site, &backend.tool("hold", "/gate?id={id}", "")).await;
    let client = Client::connect(&site).await;
    let request = client.request("hold", &json!({"id": "held"}));
    client.send(&request).await;
    backend.wait_for("held").await;
    // The broker blocks a connection when it publishes: the answer is what it blocks.
    node.ctl(&["set_vm_memory_high_watermark", "0.000001"]).await;
    backend.open();
    daemon.blocked_by("broker_blocked").await;
    assert_eq!(client.answers_to(&request.correlation), []);
    node.ctl(&["set_vm_memory_high_watermark", "0.4"]).await;
    assert_eq!(client.answer(&request).await.content(), "passed held");
    assert_eq!(backend.count("held"), 1);
    daemon.wait_until_ready().await;
    daemon.stop(&site).await;
    // An answer that stays blocked for longer than the broker may take to confirm it is published again, as the same.
    let answers = client.answers_to(&request.correlation);
    let mut ids: Vec<&str> = answers.iter().map(Message::message_id).collect();
    ids.dedup();
    assert_eq!(ids.len(), 1, "{answers:?}");
}

#[tokio::test]
async fn connections_closed_by_the_broker_are_opened_again_and_the_running_call_is_answered_once() {
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
    let answer = eventually("the answer", async || site.take(&survivor.queue).await).await;
    assert_eq!((answer.content().as_str(), answer.correlation_id()), ("passed held", request.correlation.as_str()));
    daemon.stop(&site).await;
    assert_eq!(backend.count("held"), 1);
    assert!(site.take(&survivor.queue).await.is_none(), "one answer");
}
