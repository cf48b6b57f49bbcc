//! Exchanges, queues and consumers of the embedded bus.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, Weak};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use toolbus_bus::{
    BusState, Clock, Delivery, Outgoing, Ownership, PublishError, Routing, Settle, Subscription, Target,
};
use toolbus_protocol::{Properties, topic};
use tracing::warn;

/// Addresses whose routes are cached. Publishers choose them.
const MAX_ROUTES: usize = 1_024;
/// Deliveries of one message after which a queue with dead letters gives up on it, as RabbitMQ does.
const DELIVERY_LIMIT: u32 = 20;

/// Parts that a delivery needs to be settled.
#[derive(Clone)]
pub(super) struct SettleContext {
    pub(super) broker: Weak<Mutex<EmbeddedBroker>>,
    pub(super) runtime: Handle,
    pub(super) clock: Clock,
}

/// All queues and bindings. Consumers and topics come from configuration, so neither map grows with traffic.
pub(super) struct EmbeddedBroker {
    bounds: QueueLimits,
    queues: HashMap<Arc<str>, Queue>,
    /// Patterns, and the queues bound by them.
    bindings: BTreeSet<(String, Arc<str>)>,
    /// Routes by target, valid as long as queues and bindings stay as they are.
    routes: HashMap<Target, AddressRoute>,
    /// Queues that are gone with the client that has them to itself.
    replicas: Vec<(Arc<str>, Arc<watch::Sender<BusState>>)>,
    consumers: u64,
    delivery_tag: u64,
    context: Option<SettleContext>,
}

/// Route of the messages with one address.
#[derive(Clone)]
struct AddressRoute {
    routing_key: Arc<str>,
    queues: Arc<[Arc<str>]>,
}

impl EmbeddedBroker {
    pub(super) fn new(bounds: QueueLimits) -> Self {
        Self {
            bounds,
            queues: HashMap::new(),
            bindings: BTreeSet::new(),
            routes: HashMap::new(),
            replicas: Vec::new(),
            consumers: 0,
            delivery_tag: 0,
            context: None,
        }
    }

    pub(super) fn has_queue(&self, name: &str) -> bool {
        self.queues.get(name).is_some_and(Queue::is_declared)
    }

    /// Declares and binds the queue of the subscription, and subscribes.
    pub(super) fn consume(
        &mut self,
        subscription: &Subscription,
        client: &Arc<watch::Sender<BusState>>,
        consumer: EmbeddedConsumer,
        context: SettleContext,
    ) {
        self.context = Some(context);
        self.routes.clear();
        let name: Arc<str> = subscription.queue.as_str().into();
        if matches!(subscription.ownership, Ownership::Replica | Ownership::Replies) {
            self.replicas.push((name.clone(), client.clone()));
        }
        if matches!(subscription.ownership, Ownership::Shared | Ownership::ShortLived) {
            self.queue(&dead_letters_of(&name)).declare(Overflow::DropHead);
        }
        if subscription.ownership != Ownership::Existing {
            self.queue(&name).declare(Overflow::Refuse);
            self.bindings.extend(subscription.topics.iter().map(|topic| (topic.clone(), name.clone())));
        }
        self.consumers += 1;
        let id = self.consumers;
        self.queue(&name).subscribe(id, consumer);
        self.hand_out(&name);
    }

    /// Routes a message: to all its queues, or, when one of them is full, to none.
    pub(super) fn publish(&mut self, message: &Outgoing) -> Result<Routing, PublishError> {
        let AddressRoute { routing_key, queues } = self.route(&message.target);
        let full = |queue: &&Arc<str>| self.queues.get(*queue).is_some_and(|it| !it.has_room(message.body.len()));
        if let Some(full) = queues.iter().find(full) {
            let (size, most) = (message.body.len(), self.bounds.bytes);
            let reason = match size > most {
                true => format!("it has {size} bytes, and queue '{full}' holds at most {most}"),
                false => format!("queue '{full}' is full"),
            };
            return Err(PublishError::Rejected(reason));
        }
        // No login is verified here, so none is passed on.
        let properties = match message.properties.user_id {
            None => Arc::clone(&message.properties),
            Some(_) => Arc::new(Properties { user_id: None, ..Properties::clone(&message.properties) }),
        };
        for name in &*queues {
            if let Some(queue) = self.queues.get_mut(name) {
                queue.push(QueuedMessage {
                    properties: Arc::clone(&properties),
                    body: message.body.clone(),
                    routing_key: Arc::clone(&routing_key),
                    deliveries: 0,
                });
            }
            self.hand_out(name);
        }
        Ok(if queues.is_empty() && message.mandatory { Routing::Unroutable } else { Routing::Routed })
    }

    /// A delivery has been settled; a message that comes with it goes back to the queue, or to its dead letters.
    pub(super) fn settle(&mut self, name: &Arc<str>, consumer: u64, back: Option<QueuedMessage>) {
        if let Some(queue) = self.queues.get_mut(name) {
            queue.settled(consumer);
        }
        if let Some(mut message) = back {
            message.deliveries += 1;
            let dead_letters = dead_letters_of(name);
            if message.deliveries > DELIVERY_LIMIT && self.queues.contains_key(&dead_letters) {
                self.queue(&dead_letters).push(message);
                self.hand_out(&dead_letters);
            } else if let Some(queue) = self.queues.get_mut(name) {
                queue.put_back(message);
            }
        }
        self.hand_out(name);
    }

    /// Ends the consumers of a client that are not of inboxes.
    pub(super) fn end_requests(&mut self, client: &Arc<watch::Sender<BusState>>) {
        self.queues.values_mut().for_each(|queue| queue.end_consumers(client, false));
    }

    /// Ends a client: its consumers, and the queues that it has to itself.
    pub(super) fn close(&mut self, client: &Arc<watch::Sender<BusState>>) {
        self.queues.values_mut().for_each(|queue| queue.end_consumers(client, true));
        self.routes.clear();
        let (gone, kept) = std::mem::take(&mut self.replicas).into_iter().partition(|(_, it)| Arc::ptr_eq(it, client));
        self.replicas = kept;
        for (name, _) in gone {
            self.queues.remove(&name);
            self.bindings.retain(|(_, queue)| *queue != name);
        }
    }

    fn route(&mut self, target: &Target) -> AddressRoute {
        if let Some(known) = self.routes.get(target) {
            return known.clone();
        }
        let route = self.find_route(target);
        if self.routes.len() >= MAX_ROUTES {
            self.routes.clear();
        }
        self.routes.insert(target.clone(), route.clone());
        route
    }

    #[cfg(test)]
    pub(super) fn remembered(&self) -> usize {
        self.routes.len()
    }

    fn find_route(&self, target: &Target) -> AddressRoute {
        let one = |name: &str| self.queues.get(name).filter(|it| it.is_declared()).map(|it| it.name().clone());
        let (routing_key, queues) = match target {
            Target::Queue(name) => (name, one(name).into_iter().collect()),
            Target::DeadLetter(name) => (name, one(&dead_letters_of(name)).into_iter().collect()),
            Target::Topic(topic) => {
                let bound = self.bindings.iter().filter(|(pattern, _)| topic::matches(pattern, topic));
                let queues: BTreeSet<_> = bound.map(|(_, queue)| queue.clone()).collect();
                (topic, queues.into_iter().collect())
            }
        };
        AddressRoute { routing_key: routing_key.as_str().into(), queues }
    }

    fn queue(&mut self, name: &Arc<str>) -> &mut Queue {
        let bounds = self.bounds;
        self.queues.entry(name.clone()).or_insert_with(|| Queue::new(name, bounds))
    }

    fn hand_out(&mut self, name: &Arc<str>) {
        let (Some(queue), Some(context)) = (self.queues.get_mut(name), &self.context) else { return };
        let tag = &mut self.delivery_tag;
        queue.hand_out(|consumer, message| {
            *tag += 1;
            deliver(name, consumer, *tag, message, context)
        });
    }
}

fn deliver(
    queue: &Arc<str>,
    consumer: u64,
    delivery_tag: u64,
    message: QueuedMessage,
    context: &SettleContext,
) -> Delivery {
    let QueuedMessage { properties, body, routing_key, deliveries } = message.clone();
    let settler = EmbeddedSettler {
        broker: context.broker.clone(),
        runtime: context.runtime.clone(),
        queue: queue.clone(),
        consumer,
        message: Some(message),
    };
    Delivery {
        properties,
        size: body.len(),
        body,
        queue: queue.clone(),
        routing_key,
        redelivered: deliveries > 0,
        earlier_deliveries: deliveries,
        delivery_tag,
        arrived: context.clock.now(),
        settle: Box::new(settler),
    }
}

fn dead_letters_of(queue: &str) -> Arc<str> {
    format!("{queue}.dlq").into()
}

/// A message, as it lies in a queue.
#[derive(Debug, Clone)]
pub(super) struct QueuedMessage {
    pub(super) properties: Arc<Properties>,
    pub(super) body: Bytes,
    pub(super) routing_key: Arc<str>,
    /// Number of earlier deliveries of the message.
    pub(super) deliveries: u32,
}

/// Most that a queue holds.
#[derive(Debug, Clone, Copy)]
pub(super) struct QueueLimits {
    pub(super) messages: usize,
    /// Bytes of bodies.
    pub(super) bytes: usize,
}

/// Treatment of a message that does not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Overflow {
    /// Refusal of the message.
    Refuse,
    /// The oldest messages make room.
    DropHead,
}

/// A consumer of one queue.
pub(super) struct EmbeddedConsumer {
    /// Number of the consumer, once the broker has given it one.
    id: u64,
    /// Index of the consumer in its client's state.
    index: usize,
    is_inbox: bool,
    prefetch: usize,
    unsettled: usize,
    deliveries: mpsc::Sender<Delivery>,
    client: Arc<watch::Sender<BusState>>,
}

impl EmbeddedConsumer {
    pub(super) fn new(
        index: usize,
        subscription: &Subscription,
        deliveries: mpsc::Sender<Delivery>,
        client: Arc<watch::Sender<BusState>>,
    ) -> Self {
        let (is_inbox, prefetch) = (subscription.is_inbox, usize::from(subscription.prefetch.max(1)));
        Self { id: 0, index, is_inbox, prefetch, unsettled: 0, deliveries, client }
    }

    /// Shows in its client's state whether it is confirmed.
    fn confirm(&self, confirmed: bool) {
        self.client.send_modify(|state| {
            if let Some(consumer) = state.consumers.get_mut(self.index) {
                consumer.1 = confirmed;
            }
        });
    }
}

/// A queue. Until it is declared, it takes no messages, and its consumers wait.
pub(super) struct Queue {
    name: Arc<str>,
    overflow: Option<Overflow>,
    bounds: QueueLimits,
    ready: VecDeque<QueuedMessage>,
    bytes: usize,
    consumers: VecDeque<EmbeddedConsumer>,
}

impl Queue {
    pub(super) fn new(name: &str, bounds: QueueLimits) -> Self {
        let (ready, consumers) = (VecDeque::new(), VecDeque::new());
        Self { name: name.into(), overflow: None, bounds, ready, bytes: 0, consumers }
    }

    pub(super) fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Declares it, if it is not yet, which confirms the consumers that waited for it.
    pub(super) fn declare(&mut self, overflow: Overflow) {
        if self.overflow.is_none() {
            self.overflow = Some(overflow);
            self.consumers.iter().for_each(|consumer| consumer.confirm(true));
        }
    }

    pub(super) fn is_declared(&self) -> bool {
        self.overflow.is_some()
    }

    /// Whether a body of this length would be taken.
    pub(super) fn has_room(&self, length: usize) -> bool {
        let fits = self.ready.len() < self.bounds.messages && self.bytes + length <= self.bounds.bytes;
        fits || (self.overflow == Some(Overflow::DropHead) && length <= self.bounds.bytes)
    }

    /// Adds a message at the end. Ask [`Queue::has_room`] before.
    pub(super) fn push(&mut self, message: QueuedMessage) {
        self.bytes += message.body.len();
        self.ready.push_back(message);
        while self.ready.len() > self.bounds.messages || self.bytes > self.bounds.bytes {
            self.pop();
        }
    }

    /// Puts a message back where it came from: in front.
    pub(super) fn put_back(&mut self, message: QueuedMessage) {
        self.bytes += message.body.len();
        self.ready.push_front(message);
    }

    /// Adds a consumer under this number.
    pub(super) fn subscribe(&mut self, id: u64, consumer: EmbeddedConsumer) {
        if self.is_declared() {
            consumer.confirm(true);
        }
        self.consumers.push_back(EmbeddedConsumer { id, ..consumer });
    }

    /// Ends the consumers of a client; all of them, or without those of inboxes.
    pub(super) fn end_consumers(&mut self, client: &Arc<watch::Sender<BusState>>, all: bool) {
        self.consumers.retain(|consumer| {
            let ends = Arc::ptr_eq(&consumer.client, client) && (all || !consumer.is_inbox);
            if ends {
                consumer.confirm(false);
            }
            !ends
        });
    }

    /// A delivery of this consumer has been settled. The consumer may be gone.
    pub(super) fn settled(&mut self, id: u64) {
        if let Some(consumer) = self.consumers.iter_mut().find(|consumer| consumer.id == id) {
            consumer.unsettled = consumer.unsettled.saturating_sub(1);
        }
    }

    /// Hands out what waits to consumers with room, in turn. `deliver` makes the delivery for a consumer's number.
    pub(super) fn hand_out(&mut self, mut deliver: impl FnMut(u64, QueuedMessage) -> Delivery) {
        while !self.ready.is_empty() {
            self.consumers.retain(|consumer| !consumer.deliveries.is_closed());
            let turn = self.consumers.iter().position(|consumer| consumer.unsettled < consumer.prefetch);
            let Some(mut consumer) = turn.and_then(|turn| self.consumers.remove(turn)) else { return };
            let Some(message) = self.pop() else { return };
            consumer.unsettled += 1;
            // There is room: its channel is as long as its prefetch. Should its receiver end just now, the delivery is
            // dropped, which puts the message back.
            drop(consumer.deliveries.try_send(deliver(consumer.id, message)));
            self.consumers.push_back(consumer);
        }
    }

    fn pop(&mut self) -> Option<QueuedMessage> {
        let message = self.ready.pop_front()?;
        self.bytes = self.bytes.saturating_sub(message.body.len());
        Some(message)
    }
}

/// Settles one delivery. It does not keep the bus alive.
struct EmbeddedSettler {
    broker: Weak<Mutex<EmbeddedBroker>>,
    runtime: Handle,
    queue: Arc<str>,
    consumer: u64,
    /// Message that goes back to the queue if it is not acknowledged.
    message: Option<QueuedMessage>,
}

impl EmbeddedSettler {
    fn settle(&mut self, requeue: bool) {
        let message = self.message.take().filter(|_| requeue);
        if let Some(broker) = self.broker.upgrade() {
            broker.lock().settle(&self.queue, self.consumer, message);
        }
    }
}

impl Settle for EmbeddedSettler {
    fn acknowledge(mut self: Box<Self>) -> BoxFuture<'static, ()> {
        Box::pin(async move { self.settle(false) })
    }

    fn requeue(mut self: Box<Self>) -> BoxFuture<'static, ()> {
        Box::pin(async move { self.settle(true) })
    }

    fn is_sure(&self) -> bool {
        true
    }
}

impl Drop for EmbeddedSettler {
    fn drop(&mut self) {
        let Some(message) = self.message.take() else { return };
        warn!(queue = &*self.queue, "delivery dropped unsettled; it goes back to its queue");
        let (broker, queue, consumer) = (self.broker.clone(), self.queue.clone(), self.consumer);
        // Not here and now: it may be dropped while the bus is locked.
        self.runtime.spawn(async move {
            if let Some(broker) = broker.upgrade() {
                broker.lock().settle(&queue, consumer, Some(message));
            }
        });
    }
}
