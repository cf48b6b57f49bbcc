//! A raw AMQP client: everything it sends is the test's to choose.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::StreamExt;
use lapin::options::{
    BasicConsumeOptions, BasicPublishOptions, ConfirmSelectOptions, ExchangeDeclareOptions, QueueBindOptions,
    QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Confirmation, Connection, ConnectionProperties, ExchangeKind};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use toolbus_testing::patience::eventually;
use uuid::Uuid;

use crate::described;
use crate::message::Message;
use crate::namespace::BrokerNamespace;

/// A caller with a queue of its own for replies.
pub struct Client {
    exchange: String,
    replies: String,
    channel: Channel,
    _connection: Connection,
    inbox: Arc<Mutex<Vec<Message>>>,
    receiver: JoinHandle<()>,
}

/// A message to publish.
#[derive(Debug, Clone)]
pub struct Request {
    /// Topic, or queue on the default exchange.
    pub routing_key: String,
    /// Properties of the request, headers apart.
    pub properties: BasicProperties,
    /// Headers of the request.
    pub headers: FieldTable,
    /// Body of the request.
    pub body: Vec<u8>,
    /// By which its reply is known.
    pub correlation: String,
}

impl Client {
    /// Connects, and starts receiving on a new exclusive queue.
    ///
    /// # Panics
    ///
    /// When the broker refuses anything.
    pub async fn connect(site: &BrokerNamespace) -> Self {
        Self::connect_as(site, &site.url).await
    }

    /// Connects with the login of this URL.
    ///
    /// # Panics
    ///
    /// When the broker refuses anything.
    pub async fn connect_as(site: &BrokerNamespace, url: &str) -> Self {
        let (connection, channel) = open(url).await;
        let replies = format!("answers.{}", Uuid::new_v4().simple());
        let own = QueueDeclareOptions { exclusive: true, ..QueueDeclareOptions::default() };
        channel.queue_declare(replies.as_str().into(), own, FieldTable::default()).await.unwrap();
        Self::receive(site, connection, channel, replies).await
    }

    /// Connects with the login of this URL, and receives on a queue that exists, or on `amq.rabbitmq.reply-to`.
    ///
    /// # Panics
    ///
    /// When the broker refuses anything.
    pub async fn listening_on(site: &BrokerNamespace, url: &str, queue: &str) -> Self {
        let (connection, channel) = open(url).await;
        Self::receive(site, connection, channel, queue.to_owned()).await
    }

    async fn receive(site: &BrokerNamespace, connection: Connection, channel: Channel, replies: String) -> Self {
        let consume = BasicConsumeOptions { no_ack: true, ..BasicConsumeOptions::default() };
        let mut stream =
            channel.basic_consume(replies.as_str().into(), "".into(), consume, FieldTable::default()).await.unwrap();
        let inbox = Arc::<Mutex<Vec<Message>>>::default();
        let kept = Arc::clone(&inbox);
        let receiver = tokio::spawn(async move {
            while let Some(Ok(delivery)) = stream.next().await {
                kept.lock().unwrap_or_else(PoisonError::into_inner).push(Message::from(delivery));
            }
        });
        Self { exchange: site.exchange.clone(), replies, channel, _connection: connection, inbox, receiver }
    }

    /// The queue that replies come to.
    #[must_use]
    pub fn queue(&self) -> &str {
        &self.replies
    }

    /// Binds the queue of replies to a topic, as agents do.
    ///
    /// # Panics
    ///
    /// When the broker refuses.
    pub async fn bind(&self, topic: &str) {
        bind(&self.channel, &self.exchange, &self.replies, topic).await;
    }

    /// Declares a queue of this client's without a consumer, bound to a topic.
    ///
    /// # Panics
    ///
    /// When the broker refuses.
    pub async fn bystander(&self, topic: &str) {
        let queue = format!("bystander.{}", Uuid::new_v4().simple());
        let own = QueueDeclareOptions { exclusive: true, ..QueueDeclareOptions::default() };
        self.channel.queue_declare(queue.as_str().into(), own, FieldTable::default()).await.unwrap();
        bind(&self.channel, &self.exchange, &queue, topic).await;
    }

    /// Declares a queue of this client's that is full, and rejects what comes.
    ///
    /// # Panics
    ///
    /// When the broker refuses.
    pub async fn full_queue(&self) -> String {
        let queue = format!("full.{}", Uuid::new_v4().simple());
        let mut bounds = FieldTable::default();
        bounds.insert("x-max-length".into(), AMQPValue::LongInt(1));
        bounds.insert("x-overflow".into(), AMQPValue::LongString("reject-publish".into()));
        let own = QueueDeclareOptions { exclusive: true, ..QueueDeclareOptions::default() };
        self.channel.queue_declare(queue.as_str().into(), own, bounds).await.unwrap();
        self.publish("", &self.raw("fills it").on(&queue)).await;
        queue
    }

    /// A plain client's request: an object as arguments, and the queue of replies.
    #[must_use]
    pub fn request(&self, tool: &str, arguments: &Value) -> Request {
        self.raw(json!({"toolName": tool, "arguments": arguments}).to_string())
    }

    /// A plain client's message with any body.
    #[must_use]
    pub fn raw(&self, body: impl Into<Vec<u8>>) -> Request {
        let id = Uuid::new_v4().simple().to_string();
        Request {
            routing_key: "tool.invoke".to_owned(),
            properties: BasicProperties::default()
                .with_delivery_mode(2)
                .with_message_id(id.as_str().into())
                .with_correlation_id(id.as_str().into())
                .with_reply_to(self.replies.as_str().into()),
            headers: FieldTable::default(),
            body: body.into(),
            correlation: id,
        }
    }

    /// Publishes, and waits for the broker's confirm.
    ///
    /// # Panics
    ///
    /// When the broker does not take it, or no queue does.
    pub async fn send(&self, request: &Request) {
        self.publish(&self.exchange, request).await;
    }

    /// Publishes on any exchange.
    ///
    /// # Panics
    ///
    /// When the broker does not take it, or no queue does.
    pub async fn publish(&self, exchange: &str, request: &Request) {
        let properties = request.properties.clone().with_headers(request.headers.clone());
        let options = BasicPublishOptions { mandatory: true, immediate: false };
        let key = request.routing_key.as_str().into();
        let published = self.channel.basic_publish(exchange.into(), key, options, &request.body, properties);
        let confirmed = published.await.unwrap().await.unwrap();
        assert_eq!(confirmed, Confirmation::Ack(None), "no queue takes {}", request.routing_key);
    }

    /// Waits for the reply to a request.
    ///
    /// # Panics
    ///
    /// When it is not as `docs/wire` describes replies of its type.
    pub async fn reply(&self, request: &Request) -> Message {
        let what =
            format!("the reply to {}", String::from_utf8_lossy(&request.body).chars().take(200).collect::<String>());
        let reply = eventually(&what, async || self.replies_to(&request.correlation).into_iter().next()).await;
        described::check(&reply);
        reply
    }

    /// Sends a request and waits for its reply.
    pub async fn exchange(&self, request: &Request) -> Message {
        self.send(request).await;
        self.reply(request).await
    }

    /// Calls a tool and waits for its reply.
    pub async fn call(&self, tool: &str, arguments: &Value) -> Message {
        self.exchange(&self.request(tool, arguments)).await
    }

    /// Calls a tool for an agent, which must succeed, and gives the text of its result.
    pub async fn text(&self, agent: &str, tool: &str, arguments: &Value) -> String {
        self.exchange(&self.request(tool, arguments).by(agent)).await.success()
    }

    /// Waits for whatever is in the queue of replies by now, and gives everything received.
    pub async fn caught_up(&self) -> Vec<Message> {
        let last = self.raw("the last").on(&self.replies);
        self.publish("", &last).await;
        self.reply(&last).await;
        let mut received = self.received();
        received.retain(|message| message.correlation_id() != last.correlation);
        received
    }

    /// Everything received with this correlation id.
    #[must_use]
    pub fn replies_to(&self, correlation: &str) -> Vec<Message> {
        self.inbox().iter().filter(|message| message.correlation_id() == correlation).cloned().collect()
    }

    /// Everything received.
    #[must_use]
    pub fn received(&self) -> Vec<Message> {
        self.inbox().clone()
    }

    /// Counts the messages that were received.
    #[must_use]
    pub fn count(&self) -> usize {
        self.inbox().len()
    }

    fn inbox(&self) -> MutexGuard<'_, Vec<Message>> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.receiver.abort();
    }
}

impl Request {
    /// Changes the properties.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(BasicProperties) -> BasicProperties) -> Self {
        self.properties = change(self.properties);
        self
    }

    /// Adds a header of text.
    #[must_use]
    pub fn header(self, name: &str, value: &str) -> Self {
        self.header_of(name, AMQPValue::LongString(value.into()))
    }

    /// Adds a header of any type.
    #[must_use]
    pub fn header_of(mut self, name: &str, value: AMQPValue) -> Self {
        self.headers.insert(name.into(), value);
        self
    }

    /// Changes the topic.
    #[must_use]
    pub fn on(self, topic: &str) -> Self {
        Self { routing_key: topic.to_owned(), ..self }
    }

    /// Makes it this agent's, where headers are believed.
    #[must_use]
    pub fn by(self, agent: &str) -> Self {
        self.header("rb-source", agent)
    }

    /// Changes the property `type`.
    #[must_use]
    pub fn of_type(self, kind: &str) -> Self {
        self.with(|properties| properties.with_type(kind.into()))
    }

    /// Changes where replies go.
    #[must_use]
    pub fn reply_to(self, address: &str) -> Self {
        self.with(|properties| properties.with_reply_to(address.into()))
    }
}

async fn open(url: &str) -> (Connection, Channel) {
    let connection = Connection::connect(url, ConnectionProperties::default()).await.unwrap();
    let channel = connection.create_channel().await.unwrap();
    channel.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
    (connection, channel)
}

async fn bind(channel: &Channel, exchange: &str, queue: &str, topic: &str) {
    let durable = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
    let none = FieldTable::default();
    channel.exchange_declare(exchange.into(), ExchangeKind::Topic, durable, none.clone()).await.unwrap();
    channel.queue_bind(queue.into(), exchange.into(), topic.into(), QueueBindOptions::default(), none).await.unwrap();
}
