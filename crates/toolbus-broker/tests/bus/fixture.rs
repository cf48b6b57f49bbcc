//! Brokers, names and messages for the tests.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use lapin::{Channel, Connection, ConnectionProperties};
use tokio::sync::mpsc;
use toolbus_broker::rabbitmq::{QueueType, RabbitMq, RabbitMqSettings, Tls};
use toolbus_bus::{Bus, BusState, Clock, Delivery, Outgoing, Ownership, Routing, Subscription, Target};
use toolbus_protocol::Properties;
use toolbus_testing::log::LogCapture;
use toolbus_testing::patience::PATIENCE;
use toolbus_testing::rabbit::RabbitNode;
use tracing::Level;
use tracing::subscriber::DefaultGuard;

/// Time for which nothing must happen before it counts as not happening.
const QUIET: Duration = Duration::from_millis(300);

/// The node that most tests share. Nothing that is done to it may disturb other tests.
pub(crate) async fn node() -> &'static RabbitNode {
    RabbitNode::shared().await
}

/// Keeps the log of this test, whose tasks run on its thread.
pub(crate) fn logged() -> (LogCapture, DefaultGuard) {
    let log = LogCapture::default();
    let subscriber = tracing_subscriber::fmt().with_max_level(Level::DEBUG).with_ansi(false).with_writer(log.clone());
    (log, tracing::subscriber::set_default(subscriber.finish()))
}

/// A name that no other test uses, in no other process either.
pub(crate) fn unique(name: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("{name}-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

/// Settings with exchanges of the test's own.
pub(crate) fn settings(url: &str) -> RabbitMqSettings {
    // The log of a failed test is shown with it; only the first attempt to set this up succeeds.
    drop(tracing_subscriber::fmt().with_env_filter("toolbus_broker=debug,bus=debug").with_test_writer().try_init());
    let exchange = unique("exchange");
    RabbitMqSettings {
        urls: vec![url.to_owned()],
        name: unique("instance"),
        dead_letter_exchange: format!("{exchange}.dlx"),
        exchange,
        queue_type: QueueType::Quorum,
        tls: None,
        clock: Clock::SYSTEM,
    }
}

pub(crate) fn settings_with_ca(url: &str, ca: std::path::PathBuf) -> RabbitMqSettings {
    RabbitMqSettings { tls: Some(Tls { ca: Some(ca), cert: None, key: None }), ..settings(url) }
}

/// A connection to the shared node of another client, and a channel of it.
pub(crate) async fn client() -> (Connection, Channel) {
    let client = Connection::connect(&node().await.url(), ConnectionProperties::default()).await.unwrap();
    let channel = client.create_channel().await.unwrap();
    (client, channel)
}

/// Declares a queue, and ends.
pub(crate) async fn prepare(settings: &RabbitMqSettings, queue: &str, topics: &[&str]) {
    let bus = RabbitMq::start(settings.clone()).unwrap();
    drop(consume(&bus, queue, topics).await);
    bus.close().await;
}

/// Waits for an error, and gives the state with it.
pub(crate) async fn failed(bus: &dyn Bus) -> (String, BusState) {
    let state = until(bus, "a reason", |state| state.last_error.is_some()).await;
    (state.last_error.clone().unwrap(), state)
}

/// A bus on the shared node.
pub(crate) async fn rabbitmq() -> RabbitMq {
    RabbitMq::start(settings(&node().await.url())).unwrap()
}

pub(crate) fn subscription(queue: &str, topics: &[&str]) -> Subscription {
    Subscription {
        queue: queue.to_owned(),
        topics: topics.iter().map(|topic| (*topic).to_owned()).collect(),
        prefetch: 10,
        max_body: usize::MAX,
        ownership: Ownership::Shared,
        is_inbox: false,
    }
}

/// Consumes a queue of our own, and waits for the broker to confirm it.
pub(crate) async fn consume(bus: &dyn Bus, queue: &str, topics: &[&str]) -> mpsc::Receiver<Delivery> {
    let deliveries = bus.consume(subscription(queue, topics));
    ready(bus).await;
    deliveries
}

/// Consumes a queue that exists.
pub(crate) async fn consume_existing(bus: &dyn Bus, queue: &str) -> mpsc::Receiver<Delivery> {
    let deliveries = bus.consume(Subscription { ownership: Ownership::Existing, ..subscription(queue, &[]) });
    ready(bus).await;
    deliveries
}

pub(crate) async fn ready(bus: &dyn Bus) {
    until(bus, "readiness", BusState::is_ready).await;
}

/// Waits for a state, and gives it.
pub(crate) async fn until(bus: &dyn Bus, what: &str, condition: impl FnMut(&BusState) -> bool) -> BusState {
    let mut state = bus.state();
    let reached = tokio::time::timeout(PATIENCE, state.wait_for(condition)).await.map(|it| it.unwrap().clone());
    reached.unwrap_or_else(|_| panic!("waited in vain for {what}: {:?}", bus.state().borrow()))
}

pub(crate) async fn receive(deliveries: &mut mpsc::Receiver<Delivery>) -> Delivery {
    tokio::time::timeout(PATIENCE, deliveries.recv()).await.expect("no delivery").expect("consuming has ended")
}

/// Receives and acknowledges; gives the body.
pub(crate) async fn take(deliveries: &mut mpsc::Receiver<Delivery>) -> String {
    let delivery = receive(deliveries).await;
    let body = text(&delivery);
    delivery.settle.acknowledge().await;
    body
}

pub(crate) async fn quiet(deliveries: &mut mpsc::Receiver<Delivery>) {
    if let Ok(Some(delivery)) = tokio::time::timeout(QUIET, deliveries.recv()).await {
        panic!("nothing should arrive, but {:?} did", text(&delivery));
    }
}

pub(crate) fn text(delivery: &Delivery) -> String {
    String::from_utf8(delivery.body.to_vec()).unwrap()
}

/// A mandatory, persistent message to a proven address.
pub(crate) fn message(target: Target, body: &str) -> Outgoing {
    Outgoing {
        target,
        mandatory: true,
        proven: true,
        properties: Properties { persistent: true, ..Properties::default() }.into(),
        body: Bytes::copy_from_slice(body.as_bytes()),
    }
}

pub(crate) fn to_topic(topic: &str, body: &str) -> Outgoing {
    message(Target::Topic(topic.to_owned()), body)
}

pub(crate) fn to_queue(queue: &str, body: &str) -> Outgoing {
    message(Target::Queue(queue.to_owned()), body)
}

/// Publishes, also again while the broker is away, and expects a queue to take it.
pub(crate) async fn deliver(bus: &dyn Bus, message: &Outgoing) {
    let published = tokio::time::timeout(PATIENCE, async {
        loop {
            match bus.publish(message).await {
                Ok(routing) => return routing,
                Err(error) => tracing::debug!(%error, "again"),
            }
            tokio::task::yield_now().await;
        }
    });
    assert_eq!(published.await.expect("not published"), Routing::Routed);
}
