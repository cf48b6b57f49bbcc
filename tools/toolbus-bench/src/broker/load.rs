use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::future::try_join_all;
use lapin::options::{BasicConsumeOptions, BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable, LongString, ShortString};
use lapin::{BasicProperties, Channel, Connection};
use tokio::sync::mpsc;
use toolbus_protocol::new_message_id;

use crate::broker::site::{BrokerError, BrokerSetup, short};

/// The agent that calls, by its `rb-source`.
pub(crate) const AGENT: &str = "bench";
/// The text that every call has echoed.
pub(crate) const TEXT: &str = "hello";
/// Longest wait for one reply.
const REPLY_TIME: Duration = Duration::from_secs(30);

/// Callers in a closed loop: each publishes, waits for its reply, and publishes again.
///
/// Requests are persistent and confirmed, as an agent's are. All callers share one queue for replies.
pub(crate) struct BrokerLoad {
    exchange: ShortString,
    publishing: Connection,
    consuming: Connection,
    requests: Channel,
    reply_to: ShortString,
    callers: Vec<mpsc::Receiver<CallerReply>>,
}

/// Target of calls.
#[derive(Debug, Clone)]
pub(crate) struct LoadTarget {
    /// Topic of the calls.
    pub(crate) topic: String,
    /// The tool's name there.
    pub(crate) tool: &'static str,
    /// Whether calls are recorded, so that each needs a message id of its own.
    pub(crate) is_recorded: bool,
}

impl LoadTarget {
    /// The tool `echo`, whose calls are not recorded.
    pub(crate) fn echo(topic: String) -> Self {
        Self { topic, tool: "echo", is_recorded: false }
    }
}

/// The outcome of a call, for its caller.
#[derive(Debug)]
struct CallerReply {
    /// The text of the error, when it was none.
    refused: Option<String>,
}

/// Latencies of one measurement.
#[derive(Debug, Clone)]
pub(crate) struct Sample {
    /// Latency of each call.
    pub(crate) latencies: Vec<Duration>,
    /// From the first request to the last reply.
    pub(crate) elapsed: Duration,
}

impl BrokerLoad {
    /// Connects this many callers.
    ///
    /// # Errors
    ///
    /// If the broker cannot be reached or refuses.
    pub(crate) async fn connect(site: &BrokerSetup, callers: usize) -> Result<Self, BrokerError> {
        let publishing = site.connect("toolbus bench load publish").await?;
        let consuming = site.connect("toolbus bench load consume").await?;
        let requests = publishing.create_channel().await?;
        requests.confirm_select(ConfirmSelectOptions::default()).await?;
        let replies = consuming.create_channel().await?;
        let reply_to = short(&format!("bench.reply.{}.{callers}", site.exchange))?;
        let exclusive = QueueDeclareOptions { exclusive: true, ..QueueDeclareOptions::default() };
        replies.queue_declare(reply_to.clone(), exclusive, FieldTable::default()).await?;
        let options = BasicConsumeOptions { no_ack: true, ..BasicConsumeOptions::default() };
        let mut consumer =
            replies.basic_consume(reply_to.clone(), "load".into(), options, FieldTable::default()).await?;
        let (senders, receivers): (Vec<_>, Vec<_>) = (0..callers).map(|_| mpsc::channel(4)).unzip();
        tokio::spawn(async move {
            while let Some(Ok(delivery)) = consumer.next().await {
                let correlation = delivery.properties.correlation_id().as_ref().map(ShortString::as_str);
                let caller = correlation.and_then(|id| id.parse::<usize>().ok()).and_then(|index| senders.get(index));
                let failed =
                    delivery.properties.kind().as_ref().is_some_and(|kind| kind.as_str().ends_with("ToolError"));
                let refused = failed.then(|| String::from_utf8_lossy(&delivery.data).into_owned());
                if let Some(caller) = caller {
                    let _ = caller.try_send(CallerReply { refused });
                }
            }
        });
        let exchange = short(&site.exchange)?;
        Ok(Self { exchange, publishing, consuming, requests, reply_to, callers: receivers })
    }

    /// Calls a tool for about this long.
    ///
    /// # Errors
    ///
    /// If a call gets no reply, or an error.
    pub(crate) async fn run(&mut self, target: &LoadTarget, time: Duration) -> Result<Sample, BrokerError> {
        let started = Instant::now();
        let (channel, exchange, reply_to) = (&self.requests, &self.exchange, &self.reply_to);
        let LoadTarget { topic, tool, is_recorded } = target;
        let topic = short(topic)?;
        let callers = self.callers.iter_mut().enumerate().map(|(index, replies)| {
            let request = LoadRequest::new(index, tool, exchange.clone(), topic.clone(), reply_to.clone());
            async move {
                let mut latencies = Vec::new();
                while started.elapsed() < time {
                    let id = is_recorded.then(new_message_id);
                    latencies.push(request.call(channel, id.as_deref(), replies).await?);
                }
                Ok::<_, BrokerError>(latencies)
            }
        });
        let latencies = try_join_all(callers).await?.concat();
        Ok(Sample { latencies, elapsed: started.elapsed() })
    }

    /// Closes both connections, and with them the queue for replies.
    ///
    /// # Errors
    ///
    /// If the broker does not confirm in time, or the connection is lost.
    pub(crate) async fn close(self) -> Result<(), BrokerError> {
        self.publishing.close(200, "done".into()).await?;
        self.consuming.close(200, "done".into()).await?;
        Ok(())
    }
}

struct LoadRequest {
    exchange: ShortString,
    topic: ShortString,
    properties: BasicProperties,
    body: Arc<[u8]>,
}

impl LoadRequest {
    fn new(caller: usize, tool: &str, exchange: ShortString, topic: ShortString, reply_to: ShortString) -> Self {
        let mut headers = FieldTable::default();
        headers.insert("rb-source".into(), AMQPValue::LongString(LongString::from(AGENT)));
        let properties = BasicProperties::default()
            .with_content_type("application/json".into())
            .with_delivery_mode(2)
            .with_headers(headers)
            .with_correlation_id(ShortString::try_new(caller.to_string()).unwrap_or_default())
            .with_reply_to(reply_to);
        let body =
            format!(r#"{{"toolCallId":"call_{caller}","toolName":"{tool}","arguments":"{{\"text\":\"{TEXT}\"}}"}}"#);
        Self { exchange, topic, properties, body: body.into_bytes().into() }
    }

    async fn call(
        &self,
        channel: &Channel,
        message_id: Option<&str>,
        replies: &mut mpsc::Receiver<CallerReply>,
    ) -> Result<Duration, BrokerError> {
        let begun = Instant::now();
        let mut properties = self.properties.clone();
        if let Some(id) = message_id {
            properties = properties.with_message_id(short(id)?);
        }
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let (exchange, topic) = (self.exchange.clone(), self.topic.clone());
        let confirm = channel.basic_publish(exchange, topic, options, &self.body, properties).await?;
        let reply = tokio::time::timeout(REPLY_TIME, replies.recv());
        match reply.await {
            Ok(Some(CallerReply { refused: None })) => {}
            Ok(Some(CallerReply { refused: Some(text) })) => return Err(BrokerError::Refused(text)),
            Ok(None) => return Err(BrokerError::Stopped),
            Err(_) => return Err(BrokerError::NoReply(REPLY_TIME.as_secs())),
        }
        let latency = begun.elapsed();
        confirm.await?;
        Ok(latency)
    }
}
