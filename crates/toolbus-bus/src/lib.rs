#![doc = include_str!("../README.md")]

mod clock;
mod dates;
pub mod lifecycle;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use toolbus_protocol::Properties;

pub use clock::{Clock, milliseconds};
pub use dates::with_dates;

/// A message broker with a topic exchange, a default exchange and dead-letter queues, as `docs/wire.md` describes it.
pub trait Bus: Send + Sync + 'static {
    /// Starts consuming a queue, declaring and binding it as its subscription configures.
    ///
    /// Returns at once: whether the broker has confirmed the consumer is in [`BusState::consumers`]. The bus
    /// re-subscribes by itself after every kind of loss; the channel closes only when consuming has been stopped.
    /// At most [`Subscription::prefetch`] deliveries are unsettled at a time.
    fn consume(&self, subscription: Subscription) -> mpsc::Receiver<Delivery>;

    /// Publishes one message and waits for the broker's confirm.
    ///
    /// Waits without limit while the broker is away or blocked: the caller bounds the wait. A publish given up half-way
    /// may still arrive.
    ///
    /// # Errors
    ///
    /// See [`PublishError`]; unless that [is certain](PublishError::is_certain), the message may or may not have arrived.
    fn publish<'a>(&'a self, message: &'a Outgoing) -> BoxFuture<'a, Result<Routing, PublishError>>;

    /// Whether a queue of this name exists; `None` if that cannot be determined now, or was queried too often.
    fn has_queue<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Option<bool>>;

    /// Reason why the broker would refuse a message for this target, in its own words; absent where it would take it,
    /// or where that cannot be determined now. Nothing is published.
    fn refusal<'a>(&'a self, _target: &'a Target) -> BoxFuture<'a, Option<String>> {
        Box::pin(std::future::ready(None))
    }

    /// Current state of the bus, and every change of it.
    fn state(&self) -> watch::Receiver<BusState>;

    /// Number of consumers of a queue; absent where there is no such queue, or the broker does not report it.
    fn consumer_count<'a>(&'a self, _queue: &'a str) -> BoxFuture<'a, Option<u32>> {
        Box::pin(std::future::ready(None))
    }

    /// Ends inboxes, and deletes what outlives the process: these queues and their dead-letter queues if they have no
    /// consumer, and the exchanges where nothing is bound to them any more. Queues that were consumed as
    /// [`Ownership::Existing`] stay.
    fn remove<'a>(&'a self, _queues: &'a [String]) -> BoxFuture<'a, ()> {
        Box::pin(std::future::ready(()))
    }

    /// Cancels every consumer but those of inboxes, so that no further request arrives. Deliveries in hand can still be
    /// settled.
    fn stop_consuming(&self) -> BoxFuture<'_, ()>;

    /// Cancels the remaining consumers, and closes all connections in order. Unsettled deliveries are requeued.
    fn close(&self) -> BoxFuture<'_, ()>;
}

/// A queue to consume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subscription {
    /// The queue's full name.
    pub queue: String,
    /// Topics that it is bound to.
    pub topics: Vec<String>,
    /// Deliveries that may be unsettled at a time.
    pub prefetch: u16,
    /// Largest body that is wanted, in bytes. RabbitMQ has no limit of its own: of a larger one, the
    /// beginning is delivered, so long, and the rest is dropped as it arrives.
    pub max_body: usize,
    /// Owner of the queue, and form of its declaration.
    pub ownership: Ownership,
    /// Whether running calls wait for its deliveries, such as the replies of other daemons. It is consumed until
    /// [`Bus::close`], so that a drain cuts no call off from its reply.
    pub is_inbox: bool,
}

/// Kind of a queue's declaration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ownership {
    /// Ours and durable, with a dead-letter queue beside it.
    Shared,
    /// Variant of `Shared` for messages that live for seconds: it need not outlast a node of the broker, so it is never
    /// replicated where we declare it.
    ShortLived,
    /// Ours alone: exclusive, gone with the connection, no dead letters.
    Replica,
    /// Variant of `Replica` for replies: deliveries are taken from [`Bus::consume`] at once, by what never requeues
    /// them. So the bus may acknowledge them itself, many at a time, once they are there.
    Replies,
    /// Another program's: it must exist, and is consumed as it is.
    Existing,
}

/// A message that arrived.
pub struct Delivery {
    /// The message's properties. Shared with the settler, which needs them to requeue the message.
    pub properties: Arc<Properties>,
    /// The message's body, or the beginning of one that is larger than [`Subscription::max_body`].
    pub body: Bytes,
    /// Length of the whole body, in bytes.
    pub size: usize,
    /// Name of the queue that it came from.
    pub queue: Arc<str>,
    /// Topic that it was published with.
    pub routing_key: Arc<str>,
    /// Whether the broker has delivered it before, to us or to another consumer.
    pub redelivered: bool,
    /// Number of earlier deliveries, where the broker counts them (quorum queues and the embedded bus).
    pub earlier_deliveries: u32,
    /// The broker's number for this delivery.
    pub delivery_tag: u64,
    /// Time of its arrival here.
    pub arrived: Instant,
    /// Settles the delivery.
    pub settle: Box<dyn Settle>,
}

impl fmt::Debug for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delivery")
            .field("queue", &self.queue)
            .field("message_id", &self.properties.message_id)
            .field("delivery_tag", &self.delivery_tag)
            .finish_non_exhaustive()
    }
}

/// Settles one delivery. One that is dropped unsettled is requeued by the bus, and logged.
///
/// Settling a delivery whose connection is gone does nothing: the broker delivers the message again.
pub trait Settle: Send + Sync {
    /// The message is done with.
    fn acknowledge(self: Box<Self>) -> BoxFuture<'static, ()>;
    /// The message goes back to its queue, for this consumer or another.
    fn requeue(self: Box<Self>) -> BoxFuture<'static, ()>;
    /// Whether an acknowledgement cannot be lost on its way, so that the message never comes again after it.
    fn is_sure(&self) -> bool {
        false
    }
    /// Cancelled once the connection or channel of the delivery has ended: the broker delivers the message again, perhaps
    /// to another daemon. `None` where that cannot happen.
    fn lost(&self) -> Option<&CancellationToken> {
        None
    }
}

/// A message to publish.
#[derive(Debug, Clone)]
pub struct Outgoing {
    /// Target of the message.
    pub target: Target,
    /// Whether the broker must report that no queue takes it. Without, [`Routing::Routed`] may be wrong.
    pub mandatory: bool,
    /// Whether this address took a message before. An address that did not is published to apart from all others,
    /// because a broker that refuses an address closes the channel.
    pub proven: bool,
    /// The message's properties. Shared, so that a bus in memory passes them on as they are.
    pub properties: Arc<Properties>,
    /// The message's body.
    pub body: Bytes,
}

/// Target of a message.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Target {
    /// The topic exchange, with this topic.
    Topic(String),
    /// The default exchange, to the queue of this name.
    Queue(String),
    /// The dead-letter exchange, under the name of the queue that the message came from.
    DeadLetter(String),
}

/// The broker's routing of a message that it confirmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Routing {
    /// At least one queue took it (or it was not mandatory).
    Routed,
    /// No queue took it; it was returned.
    Unroutable,
}

/// Reason why a message was not confirmed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PublishError {
    /// The broker does not permit this address, or it cannot be written at all. Repeating is of no use.
    #[error("address refused: {0}")]
    Refused(String),
    /// A queue for this message is full, or down. Other queues for it may have taken it, and other messages are taken.
    /// Repeating helps once that has changed, and not otherwise. See
    /// [overflow behaviour](https://www.rabbitmq.com/docs/maxlength#overflow-behaviour).
    #[error("message rejected: {0}")]
    Rejected(String),
    /// The connection or channel went away. Repeating helps once it is back.
    #[error("broker unavailable: {0}")]
    Unavailable(String),
    /// The bus has been closed.
    #[error("bus closed")]
    Closed,
}

impl PublishError {
    /// Whether the message is in no queue. After any other error, it may be in one.
    #[must_use]
    pub const fn is_certain(&self) -> bool {
        matches!(self, Self::Refused(_))
    }
}

/// State of a bus.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BusState {
    /// Whether both connections, for consuming and for publishing, are open.
    pub connected: bool,
    /// Reason why the broker takes no messages now, if it does not (memory or disk alarm).
    pub blocked: Option<String>,
    /// Every queue that is meant to be consumed, and whether the broker has confirmed its consumer.
    pub consumers: Vec<(String, bool)>,
    /// Messages that wait in consumed queues that outlive the process, as the broker last reported. A change of these
    /// alone wakes no watcher.
    pub depths: BTreeMap<String, u32>,
    /// The same of the dead-letter queues beside them, by the name of the queue that the letters came from.
    pub dead_letters: BTreeMap<String, u32>,
    /// Number of lost connections since the start.
    pub reconnects: u64,
    /// The last reason for being unconnected, for an operator.
    pub last_error: Option<String>,
    /// Reason for which the broker refuses this client (its login, its virtual host, an exchange, a queue), if it does.
    /// It is tried again, and helps once an operator has changed that.
    pub refused: Option<String>,
    /// A mistake that no retry mends, and what to do about it: the daemon stops with this text.
    pub fatal: Option<String>,
}

impl BusState {
    /// Whether a request could be taken, and its reply sent, now.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.connected && self.blocked.is_none() && !self.consumers.is_empty() && self.consumers.iter().all(|c| c.1)
    }
}
