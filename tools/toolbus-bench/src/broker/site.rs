use lapin::options::{ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions, QueueDeleteOptions};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::uri::AMQPUri;
use lapin::{Channel, Connection, ConnectionProperties, ExchangeKind};

/// Broker objects of a measurement. Everything in it is made for the measurement and removed after it.
#[derive(Debug, Clone)]
pub(crate) struct BrokerSetup {
    /// The broker, credentials included.
    pub(crate) url: String,
    /// The topic exchange.
    pub(crate) exchange: String,
    /// `quorum` or `classic`, for the queue of requests.
    pub(crate) queue_type: String,
    /// Deliveries that may be unsettled at a time.
    pub(crate) prefetch: u16,
}

/// Reason why a measurement could not be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BrokerError {
    /// The broker refused something or went away.
    #[error("the broker: {0}")]
    Broker(#[from] lapin::Error),
    /// The broker's URL cannot be used.
    #[error("the broker's URL: {0}")]
    Url(String),
    /// A name does not fit into a message.
    #[error("`{0}` is longer than 255 bytes")]
    Name(String),
    /// A call got no reply.
    #[error("a call got no answer within {0} s")]
    NoReply(u64),
    /// The consumer of replies ended.
    #[error("the broker stopped delivering answers")]
    Stopped,
    /// A reply was not a result.
    #[error("a call was refused: {0}")]
    Refused(String),
}

pub(crate) fn short(text: &str) -> Result<ShortString, BrokerError> {
    ShortString::try_new(text).map_err(|_| BrokerError::Name(text.to_owned()))
}

impl BrokerSetup {
    pub(crate) async fn connect(&self, name: &str) -> Result<Connection, BrokerError> {
        let properties = ConnectionProperties::default().with_connection_name(name.into());
        let mut uri: AMQPUri = self.url.parse().map_err(BrokerError::Url)?;
        // As the daemon does, so that both sides have the same buffers.
        uri.query.frame_max.get_or_insert(131_072);
        Ok(Connection::connect_uri(uri, properties).await?)
    }

    pub(crate) async fn declare(&self, channel: &Channel, queue: &str, topic: &str) -> Result<(), BrokerError> {
        let durable = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
        let exchange = short(&self.exchange)?;
        channel.exchange_declare(exchange.clone(), ExchangeKind::Topic, durable, FieldTable::default()).await?;
        let mut arguments = FieldTable::default();
        // As the daemon declares its queue: dead letters and a delivery limit cost the broker something.
        let text = |text: &str| AMQPValue::LongString(text.into());
        arguments.insert("x-queue-type".into(), text(&self.queue_type));
        arguments.insert("x-dead-letter-exchange".into(), text(&format!("{}.dlx", self.exchange)));
        arguments.insert("x-dead-letter-routing-key".into(), text(queue));
        if self.queue_type == "quorum" {
            arguments.insert("x-delivery-limit".into(), AMQPValue::LongLongInt(20));
        }
        let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        channel.queue_declare(short(queue)?, durable, arguments).await?;
        channel
            .queue_bind(short(queue)?, exchange, short(topic)?, QueueBindOptions::default(), FieldTable::default())
            .await?;
        Ok(())
    }

    /// Removes the exchanges and queues of a measurement.
    ///
    /// # Errors
    ///
    /// If the broker cannot be reached or refuses.
    pub(crate) async fn remove(&self, exchanges: &[&str], queues: &[&str]) -> Result<(), BrokerError> {
        let connection = self.connect("toolbus bench clean-up").await?;
        let channel = connection.create_channel().await?;
        for queue in queues {
            channel.queue_delete(short(queue)?, QueueDeleteOptions::default()).await?;
        }
        for exchange in exchanges {
            channel.exchange_delete(short(exchange)?, Default::default()).await?;
        }
        connection.close(200, "done".into()).await?;
        Ok(())
    }
}
