//! The broker lost under load, a queue deleted: everything comes back by itself, and nothing is run twice.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::{FutureExt, StreamExt};
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, ConfirmSelectOptions, QueueDeleteOptions,
};
use lapin::types::FieldTable;
use lapin::{BasicProperties, Channel, Confirmation, Connection, ConnectionProperties};
use serde_json::json;
use tokio::task::JoinSet;
use toolbus_e2e::backend::Backend;
use toolbus_e2e::client::Client;
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::message::Message;
use toolbus_e2e::namespace::BrokerNamespace;
use toolbus_testing::patience::eventually;
use toolbus_testing::rabbit::RabbitNode;

/// Requests in all, and how many are under way at a time.
const REQUESTS: usize = 400;
const CALLERS: usize = 32;
/// Wait for one confirm: the broker may be gone.
const CONFIRM_TIME: Duration = Duration::from_secs(5);

/// A client that outlives its broker: a durable queue for answers, and every request published until it is confirmed.
struct Survivor {
    site: BrokerNamespace,
    queue: String,
    /// A channel that confirms, opened again after a loss.
    channel: tokio::sync::Mutex<Option<(Connection, Channel)>>,
    answers: Mutex<BTreeMap<String, Vec<Message>>>,
    /// How often each request was published.
    published: Vec<AtomicU32>,
}

impl Survivor {
    async fn new(site: &BrokerNamespace) -> Arc<Self> {
        let queue = format!("survivor.{}", site.prefix);
        site.declare(&queue, BTreeMap::new()).await;
        let published = std::iter::repeat_with(AtomicU32::default).take(REQUESTS).collect();
        Arc::new(Self { site: site.clone(), queue, channel: Default::default(), answers: Mutex::default(), published })
    }

    /// Receives for ever, over every loss.
    async fn receive(self: Arc<Self>) {
        let mut pace = tokio::time::interval(Duration::from_millis(100));
        loop {
            pace.tick().await;
            if let Err(error) = self.receive_until_lost().await {
                println!("receiving again after: {error}");
            }
        }
    }

    async fn receive_until_lost(&self) -> Result<(), lapin::Error> {
        let connection = Connection::connect(&self.site.url, ConnectionProperties::default()).await?;
        let channel = connection.create_channel().await?;
        let (queue, options) = (self.queue.as_str().into(), BasicConsumeOptions::default());
        let mut stream = channel.basic_consume(queue, "".into(), options, FieldTable::default()).await?;
        while let Some(delivery) = stream.next().await {
            let delivery = delivery?;
            let acker = delivery.acker.clone();
            let message = Message::from(delivery);
            let correlation = message.correlation_id().to_owned();
            self.answers.lock().unwrap_or_else(PoisonError::into_inner).entry(correlation).or_default().push(message);
            acker.ack(BasicAckOptions::default()).await?;
        }
        Ok(())
    }

    fn answers(&self, id: &str) -> Vec<Message> {
        let answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        answers.get(id).cloned().unwrap_or_default()
    }

    /// One request: published until confirmed, and then answered.
    async fn exchange(&self, number: usize) -> Message {
        let id = format!("call-{number}");
        eventually("a confirm", async || {
            let confirmed = tokio::time::timeout(CONFIRM_TIME, self.publish(number, &id)).await;
            matches!(confirmed, Ok(Ok(Confirmation::Ack(None)))).then_some(())
        })
        .await;
        eventually(&format!("the answer to {id}"), async || self.answers(&id).into_iter().next()).await
    }

    async fn publish(&self, number: usize, id: &str) -> Result<Confirmation, lapin::Error> {
        let channel = self.channel().await?;
        let properties = BasicProperties::default()
            .with_delivery_mode(2)
            .with_message_id(id.into())
            .with_correlation_id(id.into())
            .with_reply_to(self.queue.as_str().into());
        let body = json!({"toolCallId": id, "toolName": "work", "arguments": {"id": id}}).to_string();
        let options = BasicPublishOptions { mandatory: true, immediate: false };
        let exchange = self.site.exchange.as_str().into();
        self.published[number].fetch_add(1, Ordering::Relaxed);
        channel.basic_publish(exchange, "tool.invoke".into(), options, body.as_bytes(), properties).await?.await
    }

    async fn channel(&self) -> Result<Channel, lapin::Error> {
        let mut kept = self.channel.lock().await;
        if let Some((connection, channel)) = &*kept
            && connection.status().connected()
            && channel.status().connected()
        {
            return Ok(channel.clone());
        }
        *kept = None;
        let connection = Connection::connect(&self.site.url, ConnectionProperties::default()).await?;
        let channel = connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        *kept = Some((connection, channel.clone()));
        Ok(channel)
    }
}

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
        .for_each_concurrent(CALLERS, |number| survivor.exchange(number).map(drop));
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
        let published = survivor.published[number].load(Ordering::Relaxed) as usize;
        assert!(answers.iter().all(|answer| answer.content() == format!("worked for {id}")), "{answers:?}");
        assert!(backend.count(&id) <= published, "{id}: published {published} times, ran {}", backend.count(&id));
        // A repeated answer is the same one.
        let mut ids: Vec<&str> = answers.iter().map(Message::message_id).collect();
        ids.dedup();
        assert_eq!(ids.len(), 1, "{id}");
    }
    let once = survivor.published.iter().filter(|published| published.load(Ordering::Relaxed) == 1).count();
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
