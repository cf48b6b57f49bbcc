//! Messages that a client receives, and the calls that wait for them.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, watch};
use toolbus_bus::{Bus, Delivery, Ownership, PublishError, Subscription};
use toolbus_protocol::{Properties, ToolError, ToolProgress, message_type, new_message_id};

/// Unacknowledged deliveries of one client.
const PREFETCH: u16 = 64;
/// Progress reports that wait to be read; further ones are dropped, because a later one supersedes them.
const REPORTS: usize = 16;

/// A message as it came.
#[derive(Debug, Clone)]
pub struct Received {
    /// The message's properties.
    pub properties: Arc<Properties>,
    /// The message's body.
    pub body: Bytes,
}

/// Reason why there is no reply.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The broker did not take the request.
    #[error("the request could not be published: {0}")]
    Publish(#[from] PublishError),
    /// No queue is bound to the topic.
    #[error("no queue of this exchange takes topic `{0}`: is a daemon running with this topic in invoke.topics?")]
    NoConsumer(String),
    /// The queue of the daemon has no consumer.
    #[error(
        "no daemon takes calls from the queue `{0}`: start one, or check that its bus.url (virtual host) and \
         bus.queue_prefix are these"
    )]
    NoDaemon(String),
    /// The broker refuses this client.
    #[error("the bus cannot be used: {0}")]
    Refused(String),
    /// The broker takes no messages.
    #[error("the broker takes no messages now: {0}. A tool whose call it took before may still run")]
    Blocked(String),
    /// The broker could not be reached in time.
    #[error("the broker could not be reached within {0:.1?}{1}")]
    Unreachable(Duration, String),
    /// No reply came in time.
    #[error("no answer came within {0:.1?}")]
    NoReply(Duration),
    /// The reply is over the limit of its size.
    #[error("the answer has {0} bytes")]
    TooLarge(usize),
    /// The reply is no message of the wire.
    #[error("the answer could not be read: {0}")]
    Unreadable(String),
    /// The daemon refuses a request that is no call.
    #[error("{}: {}", .0.code, .0.message)]
    Tool(ToolError),
    /// The broker holds something that no retry mends.
    #[error("the bus cannot be used: {0}")]
    Fatal(String),
    /// The bus was closed.
    #[error("the bus was closed")]
    Closed,
}

/// The queue from which a client receives replies and announcements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Inbox {
    /// A queue that lasts as long as the connection.
    Own {
        /// Topics that it is bound to besides.
        topics: Vec<String>,
        /// Largest body that is read, in bytes.
        max_body: usize,
        /// Whether the queue is bound to a topic of its own name as well: RockBot's programs know no other addresses.
        is_topic: bool,
    },
    /// An existing queue, which is bound to topics.
    Given {
        /// The queue.
        queue: String,
        /// The topic that replies are to go to.
        reply_to: String,
        /// The other topics that count. A message that came by another way may be from any sender, and is dropped.
        topics: Vec<String>,
    },
}

/// An inbox that is consumed.
pub(crate) struct Opened {
    pub(crate) queue: String,
    pub(crate) reply_to: String,
    /// The topics that count; absent: everything that comes.
    trusted: Option<Vec<String>>,
    deliveries: mpsc::Receiver<Delivery>,
}

impl Default for Inbox {
    fn default() -> Self {
        Self::Own { topics: Vec::new(), max_body: usize::MAX, is_topic: false }
    }
}

impl Inbox {
    pub(crate) fn open(self, bus: &dyn Bus) -> Opened {
        let (subscription, reply_to, trusted) = match self {
            Self::Own { mut topics, max_body, is_topic } => {
                let queue = format!("reply.{}", new_message_id());
                topics.extend(is_topic.then(|| queue.clone()));
                let (reply_to, ownership) = (queue.clone(), Ownership::Replies);
                (
                    Subscription { queue, topics, prefetch: PREFETCH, max_body, ownership, is_inbox: true },
                    reply_to,
                    None,
                )
            }
            Self::Given { queue, reply_to, topics } => {
                let trusted = topics.into_iter().chain([reply_to.clone()]).collect();
                let topics = Vec::new();
                let (ownership, max_body) = (Ownership::Existing, usize::MAX);
                (
                    Subscription { queue, topics, prefetch: PREFETCH, max_body, ownership, is_inbox: true },
                    reply_to,
                    Some(trusted),
                )
            }
        };
        let queue = subscription.queue.clone();
        Opened { queue, reply_to, trusted, deliveries: bus.consume(subscription) }
    }
}

impl Opened {
    /// Hands each delivery to the call that waits for it, until the bus is closed.
    pub(crate) async fn receive(mut self, pending: Arc<Pending>, news: watch::Sender<u64>) {
        while let Some(delivery) = self.deliveries.recv().await {
            let is_trusted =
                self.trusted.as_ref().is_none_or(|topics| topics.iter().any(|topic| **topic == *delivery.routing_key));
            let kind = delivery.properties.message_type.as_deref();
            let unclaimed = match kind {
                _ if !is_trusted => Some(delivery),
                Some(
                    message_type::TOOLS_CHANGED | message_type::MCP_SERVERS_INDEXED | message_type::TOOL_ANNOUNCEMENT,
                ) => {
                    news.send_modify(|count| *count += 1);
                    Some(delivery)
                }
                Some(message_type::TOOL_PROGRESS) => {
                    pending.report(&delivery);
                    Some(delivery)
                }
                _ => pending.deliver(delivery),
            };
            if let Some(done) = unclaimed {
                done.settle.acknowledge().await;
            }
        }
    }
}

/// The calls that wait for a reply, by correlation id.
#[derive(Default)]
pub(crate) struct Pending(Mutex<HashMap<String, PendingCall>>);

struct PendingCall {
    replies: mpsc::Sender<Delivery>,
    /// Replies that are still taken.
    left: usize,
    from: Option<SenderCheck>,
    /// Properties of the last reply that did not count.
    other: Option<Arc<Properties>>,
    progress: Option<ProgressHandler>,
}

/// Receives the progress reports of a call. It is called where messages are received, and must not wait.
pub type ProgressHandler = Arc<dyn Fn(ToolProgress) + Send + Sync>;

/// Whether messages with these properties count: whether they come from the sender of whom something is expected.
pub type SenderCheck = Arc<dyn Fn(&Properties) -> bool + Send + Sync>;

/// Messages that are expected after a request.
#[derive(Clone)]
pub struct Expectation {
    /// Receives progress reports; absent: they are dropped.
    pub progress: Option<ProgressHandler>,
    /// The sender whose replies and reports count; absent: any.
    pub from: Option<SenderCheck>,
    /// Replies that are taken, at least 1.
    pub replies: usize,
}

/// A reply that is waited for as long as this is held.
pub struct Expected {
    correlation: String,
    pending: Arc<Pending>,
    replies: mpsc::Receiver<Delivery>,
    /// The reply that is being acknowledged. If the caller drops [`Self::received`] during the acknowledgement, the next
    /// call of it returns this reply.
    taken: Option<Received>,
}

impl Default for Expectation {
    fn default() -> Self {
        Self { progress: None, from: None, replies: 1 }
    }
}

impl Expectation {
    /// Returns the expectation of one reply, and the receiver of the progress reports before it. Some wait to be read,
    /// and further ones are dropped.
    #[must_use]
    pub fn with_progress() -> (Self, mpsc::Receiver<ToolProgress>) {
        let (sender, reports) = mpsc::channel(REPORTS);
        let progress: ProgressHandler = Arc::new(move |report| drop(sender.try_send(report)));
        (Self { progress: Some(progress), ..Self::default() }, reports)
    }
}

impl Pending {
    pub(crate) fn expect(self: &Arc<Self>, correlation: String, expectation: Expectation) -> Expected {
        let Expectation { progress, from, replies: left } = expectation;
        let (sender, replies) = mpsc::channel(left.max(1));
        self.lock().insert(correlation.clone(), PendingCall { replies: sender, left, from, other: None, progress });
        Expected { correlation, pending: Arc::clone(self), replies, taken: None }
    }

    /// Hands a reply to the call that waits for it; returns the delivery if none does.
    pub(crate) fn deliver(&self, delivery: Delivery) -> Option<Delivery> {
        let properties = Arc::clone(&delivery.properties);
        let correlation = correlation(&properties, &delivery.body);
        let mut calls = self.lock();
        let Some(call) = calls.get_mut(&*correlation) else { return Some(delivery) };
        if call.from.as_ref().is_some_and(|from| !from(&properties)) {
            call.other = Some(properties);
            return Some(delivery);
        }
        call.left = call.left.saturating_sub(1);
        let sent = call.replies.try_send(delivery);
        if call.left == 0 {
            calls.remove(&*correlation);
        }
        sent.err().map(|(TrySendError::Full(delivery) | TrySendError::Closed(delivery))| delivery)
    }

    /// Hands a progress report to the call that waits.
    pub(crate) fn report(&self, delivery: &Delivery) {
        let correlation = delivery.properties.correlation_id.as_deref().unwrap_or_default();
        let wants = |call: &&PendingCall| call.from.as_ref().is_none_or(|from| from(&delivery.properties));
        let handler = self.lock().get(correlation).filter(wants).and_then(|call| call.progress.clone());
        if let Some(handler) = handler
            && let Ok(report) = serde_json::from_slice(&delivery.body)
        {
            handler(report);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, PendingCall>> {
        self.0.lock()
    }
}

/// The id under which a reply is waited for. RockBot's scripts manager names it in the body alone.
fn correlation<'a>(properties: &'a Properties, body: &[u8]) -> Cow<'a, str> {
    #[derive(serde::Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct ReplyIds {
        tool_call_id: String,
    }
    let is_script = properties.message_type.as_deref() == Some(message_type::SCRIPT_INVOKE_RESPONSE);
    match properties.correlation_id.as_deref().unwrap_or_default() {
        "" if is_script => {
            let named = serde_json::from_slice::<ReplyIds>(body);
            named.map_or(Cow::Borrowed(""), |named| Cow::Owned(named.tool_call_id))
        }
        correlation => Cow::Borrowed(correlation),
    }
}

impl Expected {
    /// Properties of the last reply that did not count, because it came from another sender.
    #[must_use]
    pub fn other_reply(&self) -> Option<Arc<Properties>> {
        self.pending.lock().get(&self.correlation)?.other.clone()
    }

    /// Waits for the reply, without limit.
    ///
    /// # Errors
    ///
    /// If the bus has been closed, or the reply is too large.
    pub async fn received(&mut self) -> Result<Received, ClientError> {
        if let Some(received) = self.taken.take() {
            return Ok(received);
        }
        let delivery = self.replies.recv().await.ok_or(ClientError::Closed)?;
        let Delivery { properties, body, size, settle, .. } = delivery;
        if size > body.len() {
            settle.acknowledge().await;
            return Err(ClientError::TooLarge(size));
        }
        let received = self.taken.insert(Received { properties, body }).clone();
        settle.acknowledge().await;
        self.taken = None;
        Ok(received)
    }
}

impl Drop for Expected {
    fn drop(&mut self) {
        self.pending.lock().remove(&self.correlation);
    }
}
