//! A broker, and the names that one test uses on it.

use std::collections::BTreeMap;

use lapin::options::{BasicAckOptions, BasicGetOptions, QueueDeclareOptions, QueuePurgeOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, Connection, ConnectionProperties};
use toolbus_testing::patience::eventually;
use toolbus_testing::proxy::Proxy;
use toolbus_testing::rabbit::RabbitNode;
use uuid::Uuid;

use crate::message::Message;

/// Names that no other test uses, on one broker.
#[derive(Debug, Clone)]
pub struct BrokerNamespace {
    /// URL of the broker.
    pub url: String,
    /// Exchange of requests and replies.
    pub exchange: String,
    /// Start of the names of the daemon's queues.
    pub prefix: String,
}

impl BrokerNamespace {
    /// New names on the shared node.
    pub async fn shared() -> Self {
        Self::on(RabbitNode::shared().await)
    }

    /// Namespace of another daemon on the same broker and exchange, with queues of its own.
    #[must_use]
    pub fn beside(&self) -> Self {
        Self { prefix: format!("{}-lab", self.prefix), ..self.clone() }
    }

    /// New names on this node.
    #[must_use]
    pub fn on(node: &RabbitNode) -> Self {
        let id = Uuid::new_v4().simple().to_string();
        Self { url: node.url(), exchange: format!("e2e.{id}"), prefix: format!("e2e-{id}") }
    }

    /// Namespace behind a proxy, which can freeze and cut the connections of a daemon that uses it.
    ///
    /// # Panics
    ///
    /// When no port can be bound, or the URL names no host.
    pub async fn proxied(&self) -> (Proxy, Self) {
        let (before, address) = self.url.split_once('@').unwrap();
        let (address, vhost) =
            address.split_once('/').map_or((address, String::new()), |(at, vhost)| (at, format!("/{vhost}")));
        let target = tokio::net::lookup_host(address).await.unwrap().next().unwrap();
        let proxy = Proxy::start(target).await.unwrap();
        let url = format!("{before}@{}{vhost}", proxy.address());
        (proxy, Self { url, ..self.clone() })
    }

    /// The bus inside the daemon, which needs no broker and reaches no other process.
    #[must_use]
    pub fn embedded() -> Self {
        Self { url: "embedded".to_owned(), exchange: "e2e".to_owned(), prefix: "e2e".to_owned() }
    }

    /// Namespace of a sidecar of this agent on the same broker and exchange.
    #[must_use]
    pub fn of_sidecar(&self, agent: &str) -> Self {
        Self { prefix: format!("toolbus.{agent}"), ..self.clone() }
    }

    /// The queue that the daemon takes requests from.
    #[must_use]
    pub fn queue(&self) -> String {
        format!("{}.invoke", self.prefix)
    }

    /// The queue of dead letters.
    #[must_use]
    pub fn dead_letters(&self) -> String {
        format!("{}.dlq", self.queue())
    }

    /// The exchange of dead letters.
    #[must_use]
    pub fn dead_letter_exchange(&self) -> String {
        format!("{}.dlx", self.exchange)
    }

    /// Configuration of a daemon here, logging JSON and listening on a free port.
    #[must_use]
    pub fn config(&self) -> String {
        let (url, exchange, dlx, prefix) = (&self.url, &self.exchange, self.dead_letter_exchange(), &self.prefix);
        // Names that are the daemon's defaults are not configured.
        let name = if prefix.starts_with("toolbus") { String::new() } else { format!("queue_prefix = {prefix:?}\n") };
        format!(
            "[bus]\nurl = {url:?}\nexchange = {exchange:?}\ndead_letter_exchange = {dlx:?}\n{name}\
             [http]\nlisten = \"127.0.0.1:0\"\n[telemetry]\nlog_format = \"json\"\n"
        )
    }

    /// The arguments that make a command of the binary use these names.
    #[must_use]
    pub fn arguments(&self) -> Vec<String> {
        let set = |key: &str, value: &str| ["--set".to_owned(), format!("{key}={value}")];
        let keys = [
            set("bus.url", &self.url),
            set("bus.exchange", &self.exchange),
            set("bus.dead_letter_exchange", &self.dead_letter_exchange()),
            set("bus.queue_prefix", &self.prefix),
        ];
        keys.concat()
    }

    /// A channel of the test's own; the connection lives as long as the pair is held.
    ///
    /// # Panics
    ///
    /// When the broker cannot be reached.
    pub async fn channel(&self) -> (Connection, Channel) {
        let connection = Connection::connect(&self.url, ConnectionProperties::default()).await.unwrap();
        let channel = connection.create_channel().await.unwrap();
        (connection, channel)
    }

    /// Declares a durable queue with these arguments.
    ///
    /// # Panics
    ///
    /// When the broker refuses.
    pub async fn declare(&self, queue: &str, arguments: BTreeMap<&str, AMQPValue>) {
        let (_connection, channel) = self.channel().await;
        let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        let mut table = FieldTable::default();
        for (name, value) in arguments {
            table.insert(name.into(), value);
        }
        channel.queue_declare(queue.into(), options, table).await.unwrap();
    }

    /// Counts the consumers of a queue, if there is one of this name.
    pub async fn consumers(&self, queue: &str) -> Option<u32> {
        let (_connection, channel) = self.channel().await;
        let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let declared = channel.queue_declare(queue.into(), passive, FieldTable::default()).await;
        declared.ok().map(|queue| queue.consumer_count())
    }

    /// Messages that are ready in a queue.
    ///
    /// # Panics
    ///
    /// When there is no such queue.
    pub async fn ready(&self, queue: &str) -> u32 {
        let (_connection, channel) = self.channel().await;
        let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        channel.queue_declare(queue.into(), passive, FieldTable::default()).await.unwrap().message_count()
    }

    /// Waits until this many messages are ready in a queue.
    pub async fn wait_for_ready(&self, queue: &str, count: u32) {
        eventually(&format!("{count} messages in {queue}"), async || (self.ready(queue).await == count).then_some(()))
            .await;
    }

    /// Takes the first message of a queue, if there is one.
    ///
    /// # Panics
    ///
    /// When there is no such queue.
    pub async fn take(&self, queue: &str) -> Option<Message> {
        let (_connection, channel) = self.channel().await;
        let taken = channel.basic_get(queue.into(), BasicGetOptions { no_ack: false }).await.unwrap()?;
        taken.acker.ack(BasicAckOptions::default()).await.unwrap();
        Some(Message::from(taken.delivery))
    }

    /// Waits for a dead letter and takes it.
    pub async fn take_dead_letter(&self) -> Message {
        self.take_dead_letter_of(&self.queue()).await
    }

    /// Waits for a dead letter of this queue and takes it.
    pub async fn take_dead_letter_of(&self, queue: &str) -> Message {
        let queue = format!("{queue}.dlq");
        eventually("a dead letter", async || self.take(&queue).await).await
    }

    /// Removes what a test leaves on purpose.
    ///
    /// # Panics
    ///
    /// When there is no such queue.
    pub async fn purge(&self, queue: &str) {
        let (_connection, channel) = self.channel().await;
        channel.queue_purge(queue.into(), QueuePurgeOptions::default()).await.unwrap();
    }
}
