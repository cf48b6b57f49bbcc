use futures_util::StreamExt;
use lapin::message::Delivery;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions, ConfirmSelectOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel};

use crate::broker::site::{BrokerError, BrokerSetup, short};

/// The floor: replies to every request with the same bytes, and still loses nothing.
///
/// Concurrent, persistent, confirmed per message (pipelined on the channel) and acknowledged after the confirm; on two
/// connections, as the daemon. Its replies carry the properties and headers that this wire requires of any reply: what
/// the broker and the caller spend on those is the wire's cost, not the daemon's.
#[derive(Debug, Clone)]
pub(crate) struct Responder {
    /// Broker objects that it uses.
    pub(crate) site: BrokerSetup,
    /// Queue of the responder.
    pub(crate) queue: String,
    /// The topic that its queue is bound to.
    pub(crate) topic: String,
}

const REPLY: &[u8] =
    br#"{"toolCallId":"0123456789abcdef0123456789abcdef","toolName":"echo","content":"hello","isError":false}"#;

/// Headers that replies of the daemon to the same call carry.
const HEADERS: [(&str, &str); 6] = [
    ("rb-source", "toolbus"),
    ("rb-destination", "bench"),
    ("rb-rb-content-trust", "tool-output"),
    ("rb-rb-tool-provider", "local"),
    ("rb-rb-queue-ms", "0"),
    ("rb-rb-duration-ms", "0"),
];

impl Responder {
    /// Replies until the broker stops delivering; calls `ready` once it listens.
    ///
    /// # Errors
    ///
    /// If the broker cannot be reached or refuses.
    pub(crate) async fn run(&self, ready: impl FnOnce()) -> Result<(), BrokerError> {
        let consuming = self.site.connect("toolbus bench responder consume").await?;
        let publishing = self.site.connect("toolbus bench responder publish").await?;
        let channel = consuming.create_channel().await?;
        self.site.declare(&channel, &self.queue, &self.topic).await?;
        channel.basic_qos(self.site.prefetch, BasicQosOptions::default()).await?;
        let replies = publishing.create_channel().await?;
        replies.confirm_select(ConfirmSelectOptions::default()).await?;
        let options = BasicConsumeOptions::default();
        let mut consumer =
            channel.basic_consume(short(&self.queue)?, "bare".into(), options, FieldTable::default()).await?;
        ready();
        while let Some(delivery) = consumer.next().await {
            tokio::spawn(send_reply(replies.clone(), delivery?));
        }
        Err(BrokerError::Stopped)
    }
}

async fn send_reply(channel: Channel, delivery: Delivery) -> Result<(), BrokerError> {
    let properties = &delivery.properties;
    let empty = "".into();
    let reply_to = properties.reply_to().clone().unwrap_or_default();
    let direct = reply_to.as_str().starts_with("amq.rabbitmq.reply-to.");
    let mut headers = FieldTable::default();
    for (name, value) in HEADERS {
        headers.insert(name.into(), AMQPValue::LongString(value.into()));
    }
    let properties = BasicProperties::default()
        .with_delivery_mode(2)
        .with_content_type("application/json".into())
        .with_type("RockBot.Tools.ToolInvokeResponse".into())
        .with_message_id("0123456789abcdef0123456789abcdef".into())
        .with_reply_to("".into())
        .with_timestamp(1_700_000_000)
        .with_headers(headers)
        .with_correlation_id(properties.correlation_id().clone().unwrap_or_default());
    let options = BasicPublishOptions { mandatory: !direct, ..BasicPublishOptions::default() };
    channel.basic_publish(empty, reply_to, options, REPLY, properties).await?.await?;
    delivery.ack(BasicAckOptions::default()).await?;
    Ok(())
}
