//! Dead letters for an operator: each is read without being taken, and then left, removed, or published again.
//!
//! A queue's messages are fetched one after the other and acknowledged only if they are removed. What is left goes back to
//! its queue when the channel ends, in whatever way. A message is removed once the broker has confirmed its replay: an
//! interruption between the two leaves it, and a second replay has the same ids.

use std::time::Duration;

use lapin::message::Delivery;
use lapin::options::{
    BasicAckOptions, BasicGetOptions, BasicPublishOptions, ConfirmSelectOptions, ExchangeDeclareOptions,
    QueueBindOptions, QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{BasicProperties, Channel, Confirmation, Connection, Error, ExchangeKind};
use toolbus_bus::Target;
use toolbus_protocol::{Properties, header};

use super::cause::{self, ACCESS_REFUSED, NOT_FOUND, PRECONDITION_FAILED, RESOURCE_LOCKED};
use super::settings::{Checked, RabbitMqSettings, SettingsError, host_of};
use super::{once, properties};

/// Longest time until one broker has taken the login.
const CONNECT_TIME: Duration = Duration::from_secs(10);
/// Longest wait for the broker's response to one request.
const RESPONSE_TIME: Duration = Duration::from_secs(30);
/// Topics to which a replay binds a queue. Further ones are refused, so that a queue gets no unbounded number of bindings.
const MAX_TOPICS: usize = 256;
/// Headers that a broker writes about earlier deliveries of a message, and those that make it deliver copies.
const OF_EARLIER_DELIVERIES: [&str; 8] =
    ["x-death", "x-first-death-", "x-last-death-", "x-delivery-count", "x-acquired-count", "x-opt-deaths", "CC", "BCC"];

/// Reason why dead letters cannot be read, or one not be published.
#[derive(Debug, thiserror::Error)]
pub enum DeadLetterError {
    /// The settings are not valid.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// No broker could be reached.
    #[error("no connection to the broker: {0}")]
    Connect(String),
    /// There is no such queue.
    #[error("queue '{0}' does not exist: it is declared by the daemon whose `bus.queue_prefix` it begins with")]
    NoQueue(String),
    /// The user may not do that.
    #[error("the broker does not permit this: {0}. Give the user of bus.url the right to {1}")]
    Refused(String, &'static str),
    /// The broker went away, or did not respond.
    #[error("the broker was lost: {0}. Nothing is removed that was not confirmed")]
    Lost(String),
}

/// A connection on which dead letters are read.
pub struct DeadLetters {
    connection: Connection,
}

/// The dead letters of one queue. What was neither removed nor replayed is back in its queue once this is dropped.
pub struct DeadLetterQueue<'a> {
    connection: &'a Connection,
    reading: Channel,
    name: ShortString,
    /// The queue that they came from.
    origin: String,
    /// Messages that were there at the start and are not read yet.
    left: u32,
    publishing: Option<ReplayChannel>,
}

/// A channel on which letters are published, and the exchange that leads to the queue that they came from.
struct ReplayChannel {
    channel: Channel,
    exchange: Option<ShortString>,
    topics: Vec<ShortString>,
}

/// One dead letter.
#[derive(Debug)]
pub struct DeadLetter {
    amqp: Delivery,
    /// Properties of the dead letter.
    pub properties: Properties,
    /// Reason of its death: one of the daemon's reasons, or the broker's (`expired`, `delivery_limit`, …); empty: not
    /// known.
    pub reason: String,
    /// Reply address, if it is a reply.
    pub reply_to: Option<String>,
    /// Since when, in seconds since 1970.
    pub since: Option<u64>,
    /// The topic that it came on, if it is a request.
    pub topic: Option<String>,
}

/// Outcome of a dead letter that was published again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReplayOutcome {
    /// A queue has it; it is no dead letter any more.
    Routed,
    /// No queue took it, for this reason; it is left.
    Left(String),
}

impl DeadLetters {
    /// Connects to the first broker of the settings that responds.
    ///
    /// # Errors
    ///
    /// If the settings are not valid, or no broker takes the login.
    pub async fn connect(settings: RabbitMqSettings) -> Result<Self, DeadLetterError> {
        let settings = Checked::new(settings)?;
        let mut reason = String::new();
        for endpoint in &settings.endpoints {
            reason = match tokio::time::timeout(CONNECT_TIME, once::open(endpoint, &settings, "dlq")).await {
                Ok(Ok(connection)) => return Ok(Self { connection }),
                Ok(Err(error)) => format!("{}: {error}", host_of(endpoint)),
                Err(_) => format!("{}: no answer within {} s", host_of(endpoint), CONNECT_TIME.as_secs()),
            };
        }
        Err(DeadLetterError::Connect(reason))
    }

    /// The dead letters of this queue.
    ///
    /// # Errors
    ///
    /// If it has no queue for dead letters, or the user may not read it.
    pub async fn of_queue(&self, origin: &str) -> Result<DeadLetterQueue<'_>, DeadLetterError> {
        let missing = || DeadLetterError::NoQueue(format!("{origin}.dlq"));
        let name = ShortString::try_new(format!("{origin}.dlq")).map_err(|_| missing())?;
        let reading = within(self.connection.create_channel()).await?.map_err(lost)?;
        let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let declared = within(reading.queue_declare(name.clone(), passive, FieldTable::default())).await?;
        let queue = declared.map_err(|error| match cause::code(&error) {
            Some(NOT_FOUND) => missing(),
            _ => of_reading(&error),
        })?;
        let (origin, left) = (origin.to_owned(), queue.message_count());
        Ok(DeadLetterQueue { connection: &self.connection, reading, name, origin, left, publishing: None })
    }

    /// Closes the connection in order.
    pub async fn close(self) {
        // Unsettled messages go back in any case.
        let _ = within(self.connection.close(200, "done".into())).await;
    }
}

impl DeadLetterQueue<'_> {
    /// The queue's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.name.as_str()
    }

    /// The queue that the letters came from.
    #[must_use]
    pub fn origin(&self) -> &str {
        &self.origin
    }

    /// Letters that were there when the queue was opened, and were not read yet.
    #[must_use]
    pub const fn left(&self) -> u32 {
        self.left
    }

    /// The next of the letters that were there when the queue was opened, the oldest first. Those that come meanwhile are
    /// left alone: a replay that fails again does not go on for ever.
    ///
    /// # Errors
    ///
    /// If the user may not read the queue, or the broker is lost.
    pub async fn next(&mut self) -> Result<Option<DeadLetter>, DeadLetterError> {
        let Some(left) = self.left.checked_sub(1) else { return Ok(None) };
        self.left = left;
        let options = BasicGetOptions { no_ack: false };
        let message = within(self.reading.basic_get(self.name.clone(), options)).await?;
        Ok(message.map_err(|error| of_reading(&error))?.map(|message| DeadLetter::new(message.delivery)))
    }

    /// Removes the letter with this number.
    ///
    /// # Errors
    ///
    /// If the broker is lost.
    pub async fn remove(&mut self, number: u64) -> Result<(), DeadLetterError> {
        within(self.reading.basic_ack(number, BasicAckOptions::default())).await?.map_err(lost)
    }

    /// Puts a request back into the queue that it came from, on `topic` and as it was: with its ids, its address and its
    /// own headers, delivered for the first time at `now`, in seconds since 1970. It comes from the user of this
    /// connection if `user_id` is given, and else from no sender that the broker has verified.
    ///
    /// # Errors
    ///
    /// If the user may not do that, the queue is gone, or the broker is lost.
    pub async fn request_again(
        &mut self,
        letter: &DeadLetter,
        topic: &str,
        user_id: Option<&str>,
        now: u64,
    ) -> Result<ReplayOutcome, DeadLetterError> {
        let topic = match properties::short("topic", topic) {
            Ok(topic) => topic,
            Err(error) => return Ok(ReplayOutcome::Left(error.to_string())),
        };
        let mut again = letter.as_sent().with_timestamp(now);
        if let Some(user_id) = user_id.and_then(|user| ShortString::try_new(user).ok()) {
            again = again.with_user_id(user_id);
        }
        let Some(exchange) = self.exchange(&topic).await? else {
            return Ok(ReplayOutcome::Left(format!("more than {MAX_TOPICS} topics at once; replay the rest again")));
        };
        let routed = self.publish(exchange, topic, &letter.amqp.data, again).await?;
        self.settle(letter, routed).await
    }

    /// Sends a reply again: to the first of these addresses that a queue is at.
    ///
    /// # Errors
    ///
    /// If the broker is lost.
    pub async fn reply_again(
        &mut self,
        letter: &DeadLetter,
        exchange: &str,
        targets: &[Target],
    ) -> Result<ReplayOutcome, DeadLetterError> {
        let mut reason = "it has no address".to_owned();
        for target in targets {
            let (exchange, address) = match target {
                Target::Topic(topic) => (exchange, topic),
                Target::Queue(queue) | Target::DeadLetter(queue) => ("", queue),
            };
            let (Ok(exchange), Ok(address)) =
                (properties::short("exchange", exchange), properties::short("address", address))
            else {
                continue;
            };
            match self.publish(exchange, address, &letter.amqp.data, letter.as_sent()).await {
                Ok(ReplayOutcome::Routed) => return self.settle(letter, ReplayOutcome::Routed).await,
                Ok(ReplayOutcome::Left(why)) | Err(DeadLetterError::Refused(why, _)) => reason = why,
                Err(error) => return Err(error),
            }
        }
        Ok(ReplayOutcome::Left(reason))
    }

    async fn settle(&mut self, letter: &DeadLetter, replayed: ReplayOutcome) -> Result<ReplayOutcome, DeadLetterError> {
        if replayed == ReplayOutcome::Routed {
            self.remove(letter.number()).await?;
        }
        Ok(replayed)
    }

    /// Ends reading: removes the messages that are to be removed for sure, and takes back the declarations of the
    /// replay.
    ///
    /// # Errors
    ///
    /// If the broker is lost: then some letters that were removed may still be there.
    pub async fn end(mut self) -> Result<(), DeadLetterError> {
        if self.publishing.is_some() {
            self.publishing().await?;
        }
        if let Some(ReplayChannel { channel, exchange: Some(exchange), topics }) = self.publishing {
            // The exchange goes with its last binding.
            for topic in topics {
                let name = ShortString::from(self.origin.as_str());
                let unbind = channel.queue_unbind(name, exchange.clone(), topic, FieldTable::default());
                if within(unbind).await?.is_err() {
                    break;
                }
            }
        }
        // The broker responds after it has seen every acknowledgement.
        within(self.reading.close(200, "done".into())).await?.map_err(lost)
    }

    /// An exchange from which messages on `topic` go to the queue that the letters came from, and nowhere else: others may
    /// listen to that topic on the exchange that the daemons share. `None` if there are too many topics.
    async fn exchange(&mut self, topic: &ShortString) -> Result<Option<ShortString>, DeadLetterError> {
        let name = properties::short("exchange", &format!("{}.replay", self.origin));
        let name = name.map_err(|error| DeadLetterError::Lost(error.to_string()))?;
        let origin = self.origin.clone();
        let publishing = self.publishing().await?;
        if publishing.topics.contains(topic) {
            return Ok(Some(name));
        }
        if publishing.topics.len() >= MAX_TOPICS {
            return Ok(None);
        }
        let channel = publishing.channel.clone();
        if publishing.exchange.is_none() {
            let options = ExchangeDeclareOptions { auto_delete: true, ..ExchangeDeclareOptions::default() };
            let declare = channel.exchange_declare(name.clone(), ExchangeKind::Topic, options, FieldTable::default());
            within(declare).await?.map_err(|error| of_declaring(&error))?;
        }
        let (queue, none) = (ShortString::from(origin.as_str()), FieldTable::default());
        let bind = channel.queue_bind(queue, name.clone(), topic.clone(), QueueBindOptions::default(), none);
        within(bind).await?.map_err(|error| match cause::code(&error) {
            Some(NOT_FOUND) => DeadLetterError::NoQueue(origin),
            _ => of_declaring(&error),
        })?;
        let publishing = self.publishing().await?;
        publishing.exchange = Some(name.clone());
        publishing.topics.push(topic.clone());
        Ok(Some(name))
    }

    /// The channel for publishing: apart from the one that reads, because the broker closes it when it refuses something.
    async fn publishing(&mut self) -> Result<&mut ReplayChannel, DeadLetterError> {
        let open = match self.publishing.take() {
            Some(open) if open.channel.status().connected() => open,
            // Its declarations are still there.
            lost_channel => {
                let channel = within(self.connection.create_channel()).await?.map_err(lost)?;
                within(channel.confirm_select(ConfirmSelectOptions::default())).await?.map_err(lost)?;
                let (exchange, topics) = lost_channel.map(|lost| (lost.exchange, lost.topics)).unwrap_or_default();
                ReplayChannel { channel, exchange, topics }
            }
        };
        Ok(self.publishing.insert(open))
    }

    /// Publishes one message and waits for the confirm: one after the other, so that a return is that of its message.
    async fn publish(
        &mut self,
        exchange: ShortString,
        address: ShortString,
        body: &[u8],
        properties: BasicProperties,
    ) -> Result<ReplayOutcome, DeadLetterError> {
        let channel = self.publishing().await?.channel.clone();
        let options = BasicPublishOptions { mandatory: true, immediate: false };
        let publish = async { channel.basic_publish(exchange, address, options, body, properties).await?.await };
        match within(publish).await? {
            Ok(Confirmation::Ack(None)) => Ok(ReplayOutcome::Routed),
            Ok(Confirmation::Ack(Some(_))) => Ok(ReplayOutcome::Left("no queue takes messages for it".to_owned())),
            Ok(_) => Ok(ReplayOutcome::Left("a queue for it is full or down".to_owned())),
            Err(error) => Err(match cause::code(&error) {
                Some(ACCESS_REFUSED | NOT_FOUND | PRECONDITION_FAILED) => {
                    DeadLetterError::Refused(cause::words(&error), "write there")
                }
                _ => lost(error),
            }),
        }
    }
}

impl DeadLetter {
    fn new(amqp: Delivery) -> Self {
        let properties = properties::read(&amqp.properties);
        let death = amqp.properties.headers().as_ref().and_then(first_death);
        // A message that the broker dead-letters has the headers of its sender, which may have written any.
        let ours = |name| if death.is_none() { properties.header(name).map(str::to_owned) } else { None };
        let reason = ours(header::DEAD_REASON).or_else(|| text_of(death.as_ref()?, "reason")).unwrap_or_default();
        let reply_to = ours(header::DEAD_REPLY_TO);
        let since = ours(header::DEAD_SINCE).and_then(|seconds| seconds.parse().ok());
        let since = since.or_else(|| match death.as_ref()?.inner().get("time")? {
            AMQPValue::Timestamp(seconds) => Some(*seconds),
            _ => None,
        });
        let topic = ours(header::DEAD_TOPIC).or_else(|| match death.as_ref()?.inner().get("routing-keys")? {
            AMQPValue::FieldArray(keys) => keys.as_slice().first().and_then(string),
            _ => None,
        });
        Self { properties, reason, reply_to, since, topic, amqp }
    }

    /// Returns the number of the dead letter among those that were read, for [`DeadLetterQueue::remove`].
    #[must_use]
    pub const fn number(&self) -> u64 {
        self.amqp.delivery_tag
    }

    /// Returns the body of the dead letter.
    #[must_use]
    pub fn body(&self) -> &[u8] {
        &self.amqp.data
    }

    /// The properties with which it was sent, but for its user, whom only that user can name, and its expiry.
    fn as_sent(&self) -> BasicProperties {
        type SetText = fn(BasicProperties, ShortString) -> BasicProperties;
        let sent = &self.amqp.properties;
        let with = |again: BasicProperties, text: &Option<ShortString>, set: SetText| match text {
            Some(text) => set(again, text.clone()),
            None => again,
        };
        let again = BasicProperties::default().with_delivery_mode(2);
        let again = with(again, sent.content_type(), BasicProperties::with_content_type);
        let again = with(again, sent.content_encoding(), BasicProperties::with_content_encoding);
        let again = with(again, sent.correlation_id(), BasicProperties::with_correlation_id);
        let again = with(again, sent.reply_to(), BasicProperties::with_reply_to);
        let again = with(again, sent.message_id(), BasicProperties::with_message_id);
        let again = with(again, sent.kind(), BasicProperties::with_type);
        let mut again = with(again, sent.app_id(), BasicProperties::with_app_id);
        if let Some(timestamp) = sent.timestamp() {
            again = again.with_timestamp(*timestamp);
        }
        if let Some(priority) = sent.priority() {
            again = again.with_priority(*priority);
        }
        let mut headers = FieldTable::default();
        for (name, value) in sent.headers().iter().flat_map(FieldTable::inner) {
            if is_senders(name.as_str()) {
                headers.insert(name.clone(), value.clone());
            }
        }
        again.with_headers(headers)
    }
}

/// Whether a header is the sender's, and not about an earlier delivery or the death of the message.
fn is_senders(name: &str) -> bool {
    let of_death = [header::DEAD_REASON, header::DEAD_REPLY_TO, header::DEAD_TOPIC, header::DEAD_SINCE];
    !of_death.contains(&name)
        && !OF_EARLIER_DELIVERIES
            .iter()
            .any(|of_broker| name == *of_broker || (of_broker.ends_with('-') && name.starts_with(of_broker)))
}

/// Returns the broker's records of the deaths of a message, the last one first.
fn first_death(headers: &FieldTable) -> Option<FieldTable> {
    match headers.inner().get("x-death")? {
        AMQPValue::FieldArray(deaths) => match deaths.as_slice().first()? {
            AMQPValue::FieldTable(death) => Some(death.clone()),
            _ => None,
        },
        _ => None,
    }
}

fn text_of(table: &FieldTable, name: &str) -> Option<String> {
    table.inner().get(name).and_then(string)
}

fn string(value: &AMQPValue) -> Option<String> {
    match value {
        AMQPValue::LongString(text) => Some(String::from_utf8_lossy(text.as_bytes()).into_owned()),
        AMQPValue::ShortString(text) => Some(text.as_str().to_owned()),
        _ => None,
    }
}

/// Gives up an operation without a response.
async fn within<T>(work: impl Future<Output = T>) -> Result<T, DeadLetterError> {
    let seconds = RESPONSE_TIME.as_secs();
    tokio::time::timeout(RESPONSE_TIME, work)
        .await
        .map_err(|_| DeadLetterError::Lost(format!("it did not answer within {seconds} s")))
}

fn lost(error: Error) -> DeadLetterError {
    DeadLetterError::Lost(cause::words(&error))
}

fn of_reading(error: &Error) -> DeadLetterError {
    match cause::code(error) {
        Some(ACCESS_REFUSED | RESOURCE_LOCKED) => DeadLetterError::Refused(cause::words(error), "read this queue"),
        _ => DeadLetterError::Lost(cause::words(error)),
    }
}

fn of_declaring(error: &Error) -> DeadLetterError {
    match cause::code(error) {
        Some(ACCESS_REFUSED) => DeadLetterError::Refused(
            cause::words(error),
            "configure, write and read what begins with `bus.queue_prefix`, as the daemon's own user has it",
        ),
        _ => DeadLetterError::Lost(cause::words(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::is_senders;

    #[test]
    fn headers_of_the_broker_and_of_the_death_are_not_the_senders() {
        for name in
            ["x-death", "x-first-death-queue", "x-last-death-reason", "x-delivery-count", "CC", "rb-dead-reason"]
        {
            assert!(!is_senders(name), "{name}");
        }
        for name in ["rb-source", "rb-rb-timeout-ms", "x-trace", "traceparent", "CCC"] {
            assert!(is_senders(name), "{name}");
        }
    }
}
