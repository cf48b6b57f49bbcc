//! One consumer: declares its queue, subscribes, forwards deliveries, and starts again after every loss.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use lapin::options::{BasicAckOptions, BasicCancelOptions, BasicConsumeOptions, BasicNackOptions, BasicQosOptions};
use lapin::types::FieldTable;
use lapin::{Channel, Connection};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;
use toolbus_bus::{Clock, Delivery, Ownership, Settle, Subscription};
use tracing::{debug, error, info, warn};

use super::connection::{Backoff, ConnectionHandle, HEALTHY};
use super::settings::Checked;
use super::state::StateTracker;
use super::topology::{self, Bindings, TopologyError};
use super::{LOOK_TIME, cause, properties, published_lapin};

/// Longest wait for the broker to confirm that a consumer is cancelled.
const CANCEL_TIME: Duration = Duration::from_secs(5);

/// Longest wait for a queue to be declared, bound and subscribed, and for its bindings to be renewed. A quorum queue
/// without a leader does not respond.
const SUBSCRIBE_TIME: Duration = Duration::from_secs(10);

/// Time between two renewals of a queue's bindings, which end with their exchange; the broker announces that to no client.
const RENEW_PERIOD: Duration = Duration::from_secs(10);

/// Consumers that renew their bindings at a time: each opens a channel for it, and a connection has few.
pub(super) const MAX_RENEWALS: usize = 4;

/// Parts that a consumer's task needs.
pub(super) struct Consumer {
    pub(super) subscription: Subscription,
    /// Number of the consumer in the state.
    pub(super) id: u64,
    pub(super) settings: Arc<Checked>,
    pub(super) state: Arc<StateTracker>,
    pub(super) connection: ConnectionHandle,
    /// Has a permit for each consumer that may renew its bindings now.
    pub(super) renewals: Arc<Semaphore>,
    pub(super) stop: CancellationToken,
}

/// Deliveries that may be unacknowledged, and the capacity of the channel to the receiver. Where deliveries are acknowledged
/// when they enter that channel, both together are the prefetch.
pub(super) fn window(subscription: &Subscription) -> u16 {
    let prefetch = subscription.prefetch.max(1);
    if subscription.ownership == Ownership::Replies { prefetch.div_ceil(2) } else { prefetch }
}

impl Consumer {
    /// Runs until consuming is stopped, or the receiver of the deliveries is gone.
    pub(super) async fn run(self, deliveries: mpsc::Sender<Delivery>) {
        let mut backoff = Backoff::new();
        let mut logged = String::new();
        let queue = self.subscription.queue.as_str();
        loop {
            let Some(Ok(connection)) = self.stop.run_until_cancelled(self.connection.open()).await else { return };
            let mut opened = None;
            let subscribing = self.in_time(self.subscribe(&connection));
            let reason = match self.stop.run_until_cancelled(subscribing).await {
                None => return,
                Some(Ok(Subscribed { channel, stream, bindings })) => {
                    opened = Some(self.settings.clock.now());
                    info!(queue, "consuming");
                    self.state.consuming(self.id, true);
                    let lost = tokio::select! {
                        lost = self.hand_on(&channel, stream, &deliveries) => lost,
                        never = self.renew(&connection, bindings) => match never {},
                    };
                    self.state.consuming(self.id, false);
                    self.state.depth(queue, None, None);
                    let Some(reason) = lost else {
                        if !self.stop.is_cancelled() {
                            self.state.remove_consumer(self.id);
                        }
                        return;
                    };
                    reason
                }
                Some(Err(TopologyError::Lost(reason))) => reason,
                Some(Err(TopologyError::Refused(reason))) => {
                    self.state.refused(&reason);
                    reason
                }
                Some(Err(TopologyError::Fatal(reason))) => {
                    error!(queue, reason, "the queue cannot be consumed like this");
                    self.state.fatal(&reason);
                    return self.stop.cancelled().await;
                }
            };
            let wait = backoff.after(opened.is_some_and(|opened| self.settings.clock.since(opened) >= HEALTHY));
            if self.connection.is_open() {
                self.state.failed(&reason);
                // Logged once per loss, and again when the reason changes.
                if opened.is_some() || logged != reason {
                    warn!(queue, reason, next_attempt_ms = wait.as_millis(), "not consuming");
                    logged = reason;
                } else {
                    debug!(queue, reason, next_attempt_ms = wait.as_millis(), "still not consuming");
                }
            } else {
                // The loss of the connection has been logged by its supervisor.
                debug!(queue, reason, "not consuming until the broker is back");
            }
            if self.stop.run_until_cancelled(tokio::time::sleep(wait)).await.is_none() {
                return;
            }
        }
    }

    /// Gives up an operation without a response, with what an operator can do about it.
    async fn in_time<T>(&self, work: impl Future<Output = Result<T, TopologyError>>) -> Result<T, TopologyError> {
        tokio::time::timeout(SUBSCRIBE_TIME, work).await.unwrap_or_else(|_| {
            let (queue, seconds) = (&self.subscription.queue, SUBSCRIBE_TIME.as_secs());
            Err(TopologyError::Lost(format!(
                "the broker did not answer about queue '{queue}' within {seconds} s; it is tried again. If that goes on, the queue is damaged or has no leader: see 'rabbitmqctl list_queues name type state leader', and delete it, or restart the broker"
            )))
        })
    }

    /// Renews the bindings at intervals, so that an exchange that was deleted and declared anew leads here again. While
    /// that fails, the consumer does not count as confirmed.
    async fn renew(&self, connection: &Connection, mut bindings: Bindings) -> Infallible {
        let mut is_deaf = false;
        loop {
            tokio::time::sleep(RENEW_PERIOD).await;
            let _permit = self.renewals.acquire().await;
            let renewing = topology::renew(connection, &self.settings, &self.subscription, &bindings);
            let queue = self.subscription.queue.as_str();
            match self.in_time(renewing).await {
                Ok(renewed) => {
                    bindings = renewed.unwrap_or(bindings);
                    if is_deaf {
                        info!(queue, "bindings restored");
                        self.state.consuming(self.id, true);
                    }
                    is_deaf = false;
                    self.look(connection).await;
                }
                Err(TopologyError::Lost(reason) | TopologyError::Refused(reason) | TopologyError::Fatal(reason)) => {
                    // The loss of a connection has been logged by its supervisor.
                    if !self.connection.is_open() {
                        continue;
                    }
                    if !is_deaf {
                        warn!(queue, reason, "the bindings could not be renewed, and requests may not arrive");
                    }
                    is_deaf = true;
                    self.state.failed(&reason);
                    self.state.consuming(self.id, false);
                }
            }
        }
    }

    /// Notes how many messages wait in a queue that outlives the process, and in the dead-letter queue beside it.
    async fn look(&self, connection: &Connection) {
        let Subscription { queue, ownership, .. } = &self.subscription;
        let count = async |queue: &str| {
            let looking = topology::message_count(connection, queue);
            tokio::time::timeout(LOOK_TIME, looking).await.ok().flatten()
        };
        let dead_letters = match ownership {
            Ownership::Replica | Ownership::Replies => return,
            Ownership::Shared | Ownership::ShortLived => count(&topology::dead_letters_of(queue)).await,
            // It need not have any, and looking for a missing one leaves an error in the broker's log.
            Ownership::Existing => None,
        };
        self.state.depth(queue, count(queue).await, dead_letters);
    }

    async fn subscribe(&self, connection: &Connection) -> Result<Subscribed, TopologyError> {
        let bindings = topology::queue(connection, &self.settings, &self.subscription).await?;
        let lost = |error: lapin::Error| TopologyError::Lost(cause::words(&error));
        let queue = properties::short("queue name", &self.subscription.queue)
            .map_err(|error| TopologyError::Fatal(error.to_string()))?;
        let channel = connection.create_channel().await.map_err(lost)?;
        let mut opening = OpeningChannel { channel: Some(channel.clone()), runtime: Handle::current() };
        // Without a bound the client would buffer the whole queue.
        channel.basic_qos(window(&self.subscription), BasicQosOptions::default()).await.map_err(lost)?;
        published_lapin::bound_bodies(&channel, self.subscription.max_body);
        let (options, arguments) = (BasicConsumeOptions::default(), FieldTable::default());
        let consumed = channel.basic_consume(queue.clone(), "".into(), options, arguments).await;
        let stream = consumed.map_err(|error| topology::refused_or_lost(&queue, &error))?;
        opening.channel = None;
        let channel = ConsumerChannel {
            channel,
            queue: self.subscription.queue.as_str().into(),
            runtime: Handle::current(),
            is_early: self.subscription.ownership == Ownership::Replies,
            max_body: self.subscription.max_body,
            clock: self.settings.clock,
            lost: self.connection.ended().child_token(),
        };
        Ok(Subscribed { channel: Arc::new(channel), stream, bindings })
    }

    /// Hands deliveries on until the subscription is lost (the reason is returned), or until it is to end (`None`).
    async fn hand_on(
        &self,
        channel: &Arc<ConsumerChannel>,
        mut stream: lapin::Consumer,
        deliveries: &mpsc::Sender<Delivery>,
    ) -> Option<String> {
        let mut ended = pin!(async {
            tokio::select! {
                () = self.stop.cancelled() => {}
                () = deliveries.closed() => {}
            }
        });
        let most = window(&self.subscription).div_ceil(2);
        // The last delivery that is to be acknowledged, and how many with it.
        let (mut last, mut count) = (0, 0);
        loop {
            let next = tokio::select! {
                biased;
                () = &mut ended => break,
                next = stream.next(), if count < most => next,
                // Nothing more has come, or half of what may come.
                () = std::future::ready(()), if count > 0 => {
                    channel.acknowledge(last, true).await;
                    count = 0;
                    continue;
                }
            };
            let delivery = match next {
                Some(Ok(delivery)) => {
                    self.connection.carried();
                    channel.delivery(delivery)
                }
                Some(Err(error)) => {
                    channel.lost.cancel();
                    return Some(cause::words(&error));
                }
                None => return Some("the broker cancelled the consumer (was the queue deleted?)".to_owned()),
            };
            if channel.is_early {
                (last, count) = (delivery.delivery_tag, count + 1);
            }
            // There is room, as a rule: the channel is as long as the prefetch.
            tokio::select! {
                biased;
                sent = deliveries.send(delivery) => if sent.is_err() { break },
                () = &mut ended => break,
            }
        }
        channel.cancel(stream).await;
        None
    }
}

/// A channel whose consumer is not confirmed yet. One that is given up is closed: otherwise the broker might confirm the
/// consumer later and deliver to a channel without a reader.
struct OpeningChannel {
    channel: Option<Channel>,
    runtime: Handle,
}

impl Drop for OpeningChannel {
    fn drop(&mut self) {
        if let Some(channel) = self.channel.take() {
            // Failing means that it is closed already.
            self.runtime.spawn(async move { channel.close(200, "given up".into()).await });
        }
    }
}

/// Parts of a queue's consumer.
struct Subscribed {
    channel: Arc<ConsumerChannel>,
    stream: lapin::Consumer,
    bindings: Bindings,
}

/// A subscription and its channel. The channel lives until its last delivery is settled.
struct ConsumerChannel {
    channel: Channel,
    queue: Arc<str>,
    runtime: Handle,
    /// Whether deliveries are acknowledged when they are handed on.
    is_early: bool,
    /// Largest body that is handed on, in bytes.
    max_body: usize,
    clock: Clock,
    /// Cancelled once the channel has ended, or its connection.
    lost: CancellationToken,
}

impl ConsumerChannel {
    fn delivery(self: &Arc<Self>, mut amqp: lapin::message::Delivery) -> Delivery {
        let (body, size) = published_lapin::body_of(&mut amqp, self.max_body);
        let settle: Box<dyn Settle> = match self.is_early {
            true => Box::new(AlreadySettled),
            false => Box::new(Settler { channel: self.clone(), tag: amqp.delivery_tag, settled: false }),
        };
        Delivery {
            properties: properties::read(&amqp.properties).into(),
            // On a first delivery the header is the sender's own invention.
            earlier_deliveries: if amqp.redelivered { properties::earlier_deliveries(&amqp.properties) } else { 0 },
            body,
            size,
            queue: self.queue.clone(),
            routing_key: amqp.routing_key.as_str().into(),
            redelivered: amqp.redelivered,
            delivery_tag: amqp.delivery_tag,
            arrived: self.clock.now(),
            settle,
        }
    }

    /// Ends the subscription, and gives back the deliveries that the client had fetched ahead.
    async fn cancel(self: &Arc<Self>, mut stream: lapin::Consumer) {
        let cancelled = async {
            self.channel.basic_cancel(stream.tag(), BasicCancelOptions::default()).await?;
            while let Some(Ok(delivery)) = stream.next().await {
                self.requeue(delivery.delivery_tag).await;
            }
            Ok::<_, lapin::Error>(())
        };
        match tokio::time::timeout(CANCEL_TIME, cancelled).await {
            Ok(Ok(())) => debug!(queue = &*self.queue, "no longer consuming"),
            Ok(Err(error)) => debug!(queue = &*self.queue, %error, "the subscription was lost before its end"),
            Err(_) => warn!(queue = &*self.queue, "the broker did not confirm the end of the subscription in time"),
        }
    }

    /// The broker requeues the deliveries of a closed channel, so failing to settle one there is not an error.
    async fn acknowledge(&self, tag: u64, multiple: bool) {
        if let Err(error) = self.channel.basic_ack(tag, BasicAckOptions { multiple }).await {
            debug!(queue = &*self.queue, tag, %error, "stale delivery not acknowledged");
        }
    }

    async fn requeue(&self, tag: u64) {
        let options = BasicNackOptions { requeue: true, multiple: false };
        if let Err(error) = self.channel.basic_nack(tag, options).await {
            debug!(queue = &*self.queue, tag, %error, "stale delivery not requeued");
        }
    }
}

/// Settles deliveries that are acknowledged without it.
struct AlreadySettled;

impl Settle for AlreadySettled {
    fn acknowledge(self: Box<Self>) -> BoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }

    fn requeue(self: Box<Self>) -> BoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }
}

struct Settler {
    channel: Arc<ConsumerChannel>,
    tag: u64,
    settled: bool,
}

impl Settle for Settler {
    fn acknowledge(mut self: Box<Self>) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            self.settled = true;
            self.channel.acknowledge(self.tag, false).await;
        })
    }

    fn requeue(mut self: Box<Self>) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            self.settled = true;
            self.channel.requeue(self.tag).await;
        })
    }

    fn lost(&self) -> Option<&CancellationToken> {
        Some(&self.channel.lost)
    }
}

impl Drop for Settler {
    fn drop(&mut self) {
        if self.settled {
            return;
        }
        warn!(queue = &*self.channel.queue, tag = self.tag, "delivery dropped unsettled; it goes back to its queue");
        let (channel, tag) = (self.channel.clone(), self.tag);
        self.channel.runtime.spawn(async move { channel.requeue(tag).await });
    }
}
