//! A broker in memory: queues, bindings, consumers, and what was delivered and not settled.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Weak};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use toolbus_core::bus::{Delivery, Ownership, Settle, Subscription, Target};
use toolbus_protocol::{Outcome, Properties, ToolError, message_type, topic};

use crate::context::{Fault, Observed, ScheduleContext};

/// Deliveries of one message after which a queue puts it with its dead letters, as RabbitMQ does.
const DELIVERY_LIMIT: u32 = 20;

/// A message, as it lies in a queue.
#[derive(Debug, Clone)]
pub(crate) struct SimMessage {
    pub(crate) properties: Arc<Properties>,
    pub(crate) body: Bytes,
    pub(crate) topic: Arc<str>,
    deliveries: u32,
}

impl SimMessage {
    /// Returns the type and ids of a message, for the trace.
    pub(crate) fn name(properties: &Properties) -> String {
        let kind = properties.message_type.as_deref().unwrap_or("-").rsplit('.').next().unwrap_or_default();
        format!("{kind} {}", properties.correlation_id.as_deref().unwrap_or("-"))
    }
}

/// The broker. Its faults are those of the clients' connections; it itself forgets nothing that is persistent.
pub(crate) struct SimBroker {
    own: Weak<Self>,
    context: Arc<ScheduleContext>,
    tables: Mutex<Tables>,
    /// Whether the broker does nothing for a while.
    frozen: Observed<bool>,
}

#[derive(Default)]
struct Tables {
    queues: BTreeMap<Arc<str>, VecDeque<SimMessage>>,
    bindings: BTreeSet<(String, Arc<str>)>,
    consumers: Vec<Consumer>,
    /// The queues that are gone with a connection.
    exclusive: BTreeSet<(u64, Arc<str>)>,
    /// By delivery tag.
    unsettled: BTreeMap<u64, Unsettled>,
    tag: u64,
    /// Cancelled when the connection ends.
    connections: BTreeMap<u64, CancellationToken>,
    strays: Vec<Stray>,
}

/// A reply that the tool did not start, published by a client that did not have the request any more.
pub(crate) struct Stray {
    pub(crate) by: Arc<str>,
    /// The correlation id of the request.
    pub(crate) request: String,
}

struct Consumer {
    connection: u64,
    owner: Arc<str>,
    queue: Arc<str>,
    prefetch: usize,
    is_inbox: bool,
    deliveries: mpsc::Sender<Delivery>,
}

struct Unsettled {
    connection: u64,
    owner: Arc<str>,
    queue: Arc<str>,
    message: SimMessage,
}

impl SimBroker {
    /// With these queues, which are read by [`Self::messages`] alone, each bound to a topic.
    pub(crate) fn new(context: Arc<ScheduleContext>, inboxes: &[(&str, &str)]) -> Arc<Self> {
        let mut tables = Tables::default();
        for (queue, topic) in inboxes {
            let queue: Arc<str> = (*queue).into();
            tables.bindings.insert(((*topic).to_owned(), Arc::clone(&queue)));
            tables.queues.insert(queue, VecDeque::new());
        }
        let frozen = Observed::new(false);
        Arc::new_cyclic(|own| Self { own: Weak::clone(own), context, tables: Mutex::new(tables), frozen })
    }

    /// Waits while the broker is frozen.
    pub(crate) async fn thawed(&self) {
        self.frozen.wait_for(|frozen| !frozen).await;
    }

    pub(crate) fn freeze(&self, frozen: bool) {
        self.frozen.set(frozen);
        if !frozen {
            self.hand_out();
        }
    }

    /// Returns the messages that are in a queue.
    pub(crate) fn messages(&self, queue: &str) -> Vec<SimMessage> {
        self.tables.lock().queues.get(queue).into_iter().flatten().cloned().collect()
    }

    /// Messages of the queues of this prefix that wait for a consumer, and those that were not settled.
    pub(crate) fn left(&self, prefix: &str) -> (usize, usize) {
        let tables = self.tables.lock();
        let of_daemons = tables.queues.iter().filter(|(name, _)| name.starts_with(prefix) && !name.ends_with(".dlq"));
        (of_daemons.map(|(_, queue)| queue.len()).sum(), tables.unsettled.len())
    }

    /// Takes out what was published by clients that did not have the requests any more.
    pub(crate) fn strays(&self) -> Vec<Stray> {
        std::mem::take(&mut self.tables.lock().strays)
    }

    pub(crate) fn has_queue(&self, name: &str) -> bool {
        self.tables.lock().queues.contains_key(name)
    }

    /// Declares and binds the subscription's queue, and subscribes.
    pub(crate) fn subscribe(
        &self,
        connection: u64,
        owner: &Arc<str>,
        subscription: &Subscription,
        deliveries: mpsc::Sender<Delivery>,
    ) {
        let mut tables = self.tables.lock();
        let queue: Arc<str> = subscription.queue.as_str().into();
        tables.queues.entry(Arc::clone(&queue)).or_default();
        if subscription.ownership == Ownership::Replica {
            tables.exclusive.insert((connection, Arc::clone(&queue)));
        } else {
            tables.queues.entry(dead_letters_of(&queue)).or_default();
        }
        tables.bindings.extend(subscription.topics.iter().map(|topic| (topic.clone(), Arc::clone(&queue))));
        let (prefetch, owner) = (usize::from(subscription.prefetch), Arc::clone(owner));
        let is_inbox = subscription.is_inbox;
        tables.consumers.push(Consumer { connection, owner, queue, prefetch, is_inbox, deliveries });
        drop(tables);
        self.hand_out();
    }

    /// Ends the consumers of a connection that are not of inboxes. What was delivered can still be settled.
    pub(crate) fn unsubscribe(&self, connection: u64) {
        self.tables.lock().consumers.retain(|consumer| consumer.connection != connection || consumer.is_inbox);
    }

    /// Ends a connection: what was not settled is delivered again, and its exclusive queues are gone.
    pub(crate) fn disconnect(&self, connection: u64) {
        let mut tables = self.tables.lock();
        let ended = tables.connections.remove(&connection);
        tables.consumers.retain(|consumer| consumer.connection != connection);
        let exclusive = std::mem::take(&mut tables.exclusive);
        let (gone, kept) = exclusive.into_iter().partition::<BTreeSet<_>, _>(|(of, _)| *of == connection);
        tables.exclusive = kept;
        for (_, queue) in gone {
            tables.queues.remove(&queue);
            tables.bindings.retain(|(_, bound)| *bound != queue);
        }
        let unsettled: Vec<u64> =
            tables.unsettled.iter().filter(|(_, it)| it.connection == connection).map(|(tag, _)| *tag).collect();
        // The last first: each goes back in front.
        let back: Vec<Unsettled> =
            unsettled.into_iter().rev().filter_map(|tag| tables.unsettled.remove(&tag)).collect();
        for unsettled in back {
            self.put_back(&mut tables, unsettled);
        }
        drop(tables);
        if let Some(ended) = ended {
            ended.cancel();
        }
        self.hand_out();
    }

    /// Forgets what is not persistent.
    pub(crate) fn restart(&self) {
        for queue in self.tables.lock().queues.values_mut() {
            queue.retain(|message| message.properties.persistent);
        }
    }

    /// Puts a message into every queue that its target means; how many these are.
    pub(crate) fn route(&self, from: &str, target: &Target, properties: &Arc<Properties>, body: &Bytes) -> usize {
        let mut tables = self.tables.lock();
        let queues: Vec<Arc<str>> = match target {
            Target::Queue(name) => vec![name.as_str().into()],
            Target::DeadLetter(name) => vec![dead_letters_of(name)],
            Target::Topic(topic) => {
                let bound = tables.bindings.iter().filter(|(pattern, _)| topic::matches(pattern, topic));
                bound.map(|(_, queue)| Arc::clone(queue)).collect::<BTreeSet<_>>().into_iter().collect()
            }
        };
        let correlation = properties.correlation_id.as_ref();
        let has_request = |unsettled: &Unsettled| {
            *unsettled.owner == *from && unsettled.message.properties.correlation_id.as_ref() == correlation
        };
        if reports_not_started(properties, body) && !tables.unsettled.values().any(has_request) {
            tables.strays.push(Stray { by: from.into(), request: correlation.cloned().unwrap_or_default() });
        }
        let (Target::Topic(topic) | Target::Queue(topic) | Target::DeadLetter(topic)) = target;
        let topic: Arc<str> = topic.as_str().into();
        let mut routed = 0;
        for name in queues {
            let Some(queue) = tables.queues.get_mut(&name) else { continue };
            let (body, topic) = (body.clone(), Arc::clone(&topic));
            let message = SimMessage { properties: Arc::clone(properties), body, topic, deliveries: 0 };
            let described = SimMessage::name(&message.properties);
            self.context.note(from, format_args!("{described} -> {name}"));
            if !queue.is_empty() && self.context.strikes(Fault::Reordered, from, described) {
                queue.push_front(message);
            } else {
                queue.push_back(message);
            }
            routed += 1;
        }
        drop(tables);
        self.hand_out();
        routed
    }

    fn settle(&self, tag: u64, requeue: bool) {
        // Not locked while a delivery is dropped here: then it is known already.
        let Some(mut tables) = self.tables.try_lock() else { return };
        let Some(unsettled) = tables.unsettled.remove(&tag) else { return };
        let how = if requeue { "requeues" } else { "acknowledges" };
        let described = SimMessage::name(&unsettled.message.properties);
        self.context.note(&unsettled.owner, format_args!("{how} {described} ({tag})"));
        if requeue {
            self.put_back(&mut tables, unsettled);
        }
        drop(tables);
        self.hand_out();
    }

    fn put_back(&self, tables: &mut Tables, unsettled: Unsettled) {
        let Unsettled { queue: name, mut message, .. } = unsettled;
        message.deliveries += 1;
        let described = SimMessage::name(&message.properties);
        if message.deliveries > DELIVERY_LIMIT {
            self.context.note("broker", format_args!("gives up on {described}"));
            tables.queues.entry(dead_letters_of(&name)).or_default().push_back(message);
        } else if let Some(queue) = tables.queues.get_mut(&name) {
            self.context.note("broker", format_args!("takes {described} back into {name}"));
            queue.push_front(message);
        }
    }

    /// Hands out what waits to consumers with room, in turn.
    fn hand_out(&self) {
        if self.frozen.get() {
            return;
        }
        let mut refused = Vec::new();
        let mut tables = self.tables.lock();
        while let Some((index, message)) = tables.next() {
            tables.tag += 1;
            let (tag, consumer) = (tables.tag, tables.consumers.remove(index));
            let described = SimMessage::name(&message.properties);
            self.context.note("broker", format_args!("delivers {described} to {} ({tag})", consumer.owner));
            let lost = tables.connections.entry(consumer.connection).or_default().clone();
            let delivery = self.delivery(tag, &consumer, &message, lost);
            let (connection, owner, queue) =
                (consumer.connection, Arc::clone(&consumer.owner), Arc::clone(&consumer.queue));
            tables.unsettled.insert(tag, Unsettled { connection, owner, queue, message });
            match consumer.deliveries.try_send(delivery) {
                Ok(()) => tables.consumers.push(consumer),
                // Its receiver is gone: it ends with its connection.
                Err(error) => refused.push(error.into_inner()),
            }
        }
        drop(tables);
        drop(refused);
    }

    fn delivery(&self, tag: u64, consumer: &Consumer, message: &SimMessage, lost: CancellationToken) -> Delivery {
        Delivery {
            properties: Arc::clone(&message.properties),
            body: message.body.clone(),
            size: message.body.len(),
            queue: Arc::clone(&consumer.queue),
            routing_key: Arc::clone(&message.topic),
            redelivered: message.deliveries > 0,
            earlier_deliveries: message.deliveries,
            delivery_tag: tag,
            arrived: self.context.clock.now(),
            settle: Box::new(SimSettle { broker: Weak::clone(&self.own), tag: Some(tag), lost }),
        }
    }
}

impl Tables {
    /// The next message that a consumer has room for, and the consumer's index.
    fn next(&mut self) -> Option<(usize, SimMessage)> {
        let Self { queues, consumers, unsettled, .. } = self;
        consumers.iter().enumerate().find_map(|(index, consumer)| {
            let of_consumer = |it: &&Unsettled| it.connection == consumer.connection && it.queue == consumer.queue;
            let has_room = unsettled.values().filter(of_consumer).count() < consumer.prefetch;
            let message = queues.get_mut(&consumer.queue).filter(|_| has_room)?.pop_front()?;
            Some((index, message))
        })
    }
}

/// Whether a message is the reply to a call whose tool did not start.
fn reports_not_started(properties: &Properties, body: &Bytes) -> bool {
    let outcome = |body: &Bytes| serde_json::from_slice::<ToolError>(body).ok()?.outcome;
    properties.message_type.as_deref() == Some(message_type::TOOL_ERROR) && outcome(body) == Some(Outcome::NotStarted)
}

fn dead_letters_of(queue: &str) -> Arc<str> {
    format!("{queue}.dlq").into()
}

/// Settles one delivery: after a while, in which the connection may be lost, and the settlement with it.
struct SimSettle {
    broker: Weak<SimBroker>,
    tag: Option<u64>,
    lost: CancellationToken,
}

impl SimSettle {
    fn settle(mut self: Box<Self>, requeue: bool) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            let (Some(broker), Some(tag)) = (self.broker.upgrade(), self.tag.take()) else { return };
            let context = &broker.context;
            let is_delayed = context.strikes(Fault::Delayed, "broker", format_args!("the settlement of {tag}"));
            tokio::time::sleep(context.chance.millis(if is_delayed { 100..=2_000 } else { 0..=2 })).await;
            broker.thawed().await;
            broker.settle(tag, requeue);
        })
    }
}

impl Settle for SimSettle {
    fn acknowledge(self: Box<Self>) -> BoxFuture<'static, ()> {
        self.settle(false)
    }

    fn requeue(self: Box<Self>) -> BoxFuture<'static, ()> {
        self.settle(true)
    }

    fn lost(&self) -> Option<&CancellationToken> {
        Some(&self.lost)
    }
}

impl Drop for SimSettle {
    fn drop(&mut self) {
        if let (Some(broker), Some(tag)) = (self.broker.upgrade(), self.tag.take()) {
            broker.settle(tag, true);
        }
    }
}
