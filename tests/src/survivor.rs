//! A client that outlives its broker.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use lapin::options::{BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Confirmation, Connection, ConnectionProperties};
use serde_json::json;
use toolbus_testing::patience::eventually;

use crate::message::Message;
use crate::namespace::BrokerNamespace;

/// Wait for one confirm, and for one connection: the broker may be gone.
const CONFIRM_TIME: Duration = Duration::from_secs(5);

/// A caller with a durable queue for replies, which publishes every request until it is confirmed.
pub struct Survivor {
    urls: Vec<String>,
    exchange: String,
    /// The queue that replies come to.
    pub queue: String,
    /// A channel that confirms, opened again after a loss.
    channel: tokio::sync::Mutex<Option<(Connection, Channel)>>,
    /// Connections that were tried, of which each goes to the next of the URLs.
    tried: AtomicUsize,
    replies: Mutex<BTreeMap<String, Vec<Message>>>,
    /// Number of publications of each request.
    published: Mutex<BTreeMap<String, usize>>,
}

impl Survivor {
    /// A caller at one broker.
    pub async fn new(site: &BrokerNamespace) -> Arc<Self> {
        Self::of_cluster(site, vec![site.url.clone()], "classic").await
    }

    /// A caller at the nodes of a cluster, with a queue of this type.
    pub async fn of_cluster(site: &BrokerNamespace, urls: Vec<String>, queue_type: &str) -> Arc<Self> {
        let queue = format!("survivor.{}", site.prefix);
        let kind = AMQPValue::LongString(queue_type.into());
        site.declare(&queue, BTreeMap::from([("x-queue-type", kind)])).await;
        Arc::new(Self {
            urls,
            exchange: site.exchange.clone(),
            queue,
            channel: tokio::sync::Mutex::default(),
            tried: AtomicUsize::default(),
            replies: Mutex::default(),
            published: Mutex::default(),
        })
    }

    /// Receives for ever, over every loss.
    pub async fn receive(self: Arc<Self>) {
        let mut pace = tokio::time::interval(Duration::from_millis(100));
        loop {
            pace.tick().await;
            if let Err(error) = self.receive_until_lost().await {
                println!("receiving again after: {error}");
            }
        }
    }

    async fn receive_until_lost(&self) -> Result<(), lapin::Error> {
        let connection = self.connect().await?;
        let channel = connection.create_channel().await?;
        let (queue, options) = (self.queue.as_str().into(), BasicConsumeOptions::default());
        let mut stream = channel.basic_consume(queue, "".into(), options, FieldTable::default()).await?;
        while let Some(delivery) = stream.next().await {
            let delivery = delivery?;
            let acker = delivery.acker.clone();
            let message = Message::from(delivery);
            let correlation = message.correlation_id().to_owned();
            self.replies.lock().unwrap_or_else(PoisonError::into_inner).entry(correlation).or_default().push(message);
            acker.ack(BasicAckOptions::default()).await?;
        }
        Ok(())
    }

    /// The next of the nodes. A node without a network does not refuse.
    async fn connect(&self) -> Result<Connection, lapin::Error> {
        let url = &self.urls[self.tried.fetch_add(1, Ordering::Relaxed) % self.urls.len()];
        let url = format!("{url}?heartbeat=2");
        let connecting = Connection::connect(&url, ConnectionProperties::default());
        let timed_out = |_| lapin::Error::from(std::io::Error::from(std::io::ErrorKind::TimedOut));
        tokio::time::timeout(CONFIRM_TIME, connecting).await.unwrap_or_else(|late| Err(timed_out(late)))
    }

    /// Returns the replies that were received for a request.
    pub fn replies(&self, id: &str) -> Vec<Message> {
        let replies = self.replies.lock().unwrap_or_else(PoisonError::into_inner);
        replies.get(id).cloned().unwrap_or_default()
    }

    /// Counts the publications of a request.
    pub fn published(&self, id: &str) -> usize {
        self.published.lock().unwrap_or_else(PoisonError::into_inner).get(id).copied().unwrap_or_default()
    }

    /// One call of `work`: published until confirmed, until its reply has come.
    pub async fn exchange(&self, id: &str) -> Message {
        eventually("a confirm", async || {
            let confirmed = tokio::time::timeout(CONFIRM_TIME, self.publish(id)).await;
            if !matches!(confirmed, Ok(Ok(Confirmation::Ack(None)))) {
                // What does not confirm may never do so, and what rejects may do so until the node of a leader is back.
                *self.channel.lock().await = None;
            }
            matches!(confirmed, Ok(Ok(Confirmation::Ack(None)))).then_some(())
        })
        .await;
        eventually(&format!("the reply to {id}"), async || self.replies(id).into_iter().next()).await
    }

    async fn publish(&self, id: &str) -> Result<Confirmation, lapin::Error> {
        let channel = self.channel().await?;
        let properties = BasicProperties::default()
            .with_delivery_mode(2)
            .with_message_id(id.into())
            .with_correlation_id(id.into())
            .with_reply_to(self.queue.as_str().into());
        let body = json!({"toolCallId": id, "toolName": "work", "arguments": {"id": id}}).to_string();
        let options = BasicPublishOptions { mandatory: true, immediate: false };
        let exchange = self.exchange.as_str().into();
        *self.published.lock().unwrap_or_else(PoisonError::into_inner).entry(id.to_owned()).or_default() += 1;
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
        let connection = self.connect().await?;
        let channel = connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        *kept = Some((connection, channel.clone()));
        Ok(channel)
    }
}
