//! Exchanges and queues of the embedded bus.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, Weak};
use std::time::Instant;

use tokio::runtime::Handle;
use tokio::sync::watch;
use toolbus_core::bus::{BusState, Delivery, Outgoing, Ownership, PublishError, Routing, Subscription, Target};
use toolbus_protocol::{Properties, topic};

use super::Settler;
use super::queue::{Bounds, Consumer, Message, Overflow, Queue};

/// Addresses whose queues are remembered. Whoever publishes chooses them.
const MAX_ROUTES: usize = 1_024;
/// Deliveries of one message after which a queue with dead letters gives up on it, as RabbitMQ does.
const DELIVERY_LIMIT: u32 = 20;

/// What a delivery needs to be settled.
#[derive(Clone)]
pub(super) struct Hand {
    pub(super) broker: Weak<Mutex<Broker>>,
    pub(super) runtime: Handle,
}

/// All queues and bindings. Consumers and topics come from configuration, so neither map grows with traffic.
pub(super) struct Broker {
    bounds: Bounds,
    queues: HashMap<Arc<str>, Queue>,
    /// Patterns, and the queues bound by them.
    bindings: BTreeSet<(String, Arc<str>)>,
    /// Where messages go, as long as queues and bindings stay as they are.
    routes: HashMap<Target, Route>,
    /// Queues that are gone with the client that has them to itself.
    replicas: Vec<(Arc<str>, Arc<watch::Sender<BusState>>)>,
    consumers: u64,
    delivery_tag: u64,
    hand: Option<Hand>,
}

/// Where messages with one address go.
#[derive(Clone)]
struct Route {
    routing_key: Arc<str>,
    queues: Arc<[Arc<str>]>,
}

impl Broker {
    pub(super) fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            queues: HashMap::new(),
            bindings: BTreeSet::new(),
            routes: HashMap::new(),
            replicas: Vec::new(),
            consumers: 0,
            delivery_tag: 0,
            hand: None,
        }
    }

    pub(super) fn has_queue(&self, name: &str) -> bool {
        self.queues.get(name).is_some_and(Queue::is_declared)
    }

    /// Declares and binds what the subscription says, and subscribes.
    pub(super) fn consume(
        &mut self,
        subscription: &Subscription,
        client: &Arc<watch::Sender<BusState>>,
        consumer: Consumer,
        hand: Hand,
    ) {
        self.hand = Some(hand);
        self.routes.clear();
        let name: Arc<str> = subscription.queue.as_str().into();
        if subscription.ownership == Ownership::Replica {
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
        let Route { routing_key, queues } = self.route(&message.target);
        let full = |queue: &&Arc<str>| self.queues.get(*queue).is_some_and(|it| !it.has_room(message.body.len()));
        if let Some(full) = queues.iter().find(full) {
            return Err(PublishError::Rejected(format!("queue '{full}' is full")));
        }
        // Nobody verifies a login here, so none is passed on.
        let properties = match message.properties.user_id {
            None => Arc::clone(&message.properties),
            Some(_) => Arc::new(Properties { user_id: None, ..Properties::clone(&message.properties) }),
        };
        for name in &*queues {
            if let Some(queue) = self.queues.get_mut(name) {
                queue.push(Message {
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
    pub(super) fn settle(&mut self, name: &Arc<str>, consumer: u64, back: Option<Message>) {
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

    /// Ends all consumers of a client.
    pub(super) fn end_consumers(&mut self, client: &Arc<watch::Sender<BusState>>) {
        self.queues.values_mut().for_each(|queue| queue.end_consumers(client));
    }

    /// Ends a client: its consumers, and the queues that it has to itself.
    pub(super) fn close(&mut self, client: &Arc<watch::Sender<BusState>>) {
        self.end_consumers(client);
        self.routes.clear();
        let (gone, kept) = std::mem::take(&mut self.replicas).into_iter().partition(|(_, it)| Arc::ptr_eq(it, client));
        self.replicas = kept;
        for (name, _) in gone {
            self.queues.remove(&name);
            self.bindings.retain(|(_, queue)| *queue != name);
        }
    }

    fn route(&mut self, target: &Target) -> Route {
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

    fn find_route(&self, target: &Target) -> Route {
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
        Route { routing_key: routing_key.as_str().into(), queues }
    }

    fn queue(&mut self, name: &Arc<str>) -> &mut Queue {
        let bounds = self.bounds;
        self.queues.entry(name.clone()).or_insert_with(|| Queue::new(name, bounds))
    }

    fn hand_out(&mut self, name: &Arc<str>) {
        let (Some(queue), Some(hand)) = (self.queues.get_mut(name), &self.hand) else { return };
        let tag = &mut self.delivery_tag;
        queue.hand_out(|consumer, message| {
            *tag += 1;
            deliver(name, consumer, *tag, message, hand)
        });
    }
}

fn deliver(queue: &Arc<str>, consumer: u64, delivery_tag: u64, message: Message, hand: &Hand) -> Delivery {
    let Message { properties, body, routing_key, deliveries } = message.clone();
    let settler = Settler {
        broker: hand.broker.clone(),
        runtime: hand.runtime.clone(),
        queue: queue.clone(),
        consumer,
        message: Some(message),
    };
    Delivery {
        properties,
        body,
        queue: queue.clone(),
        routing_key,
        redelivered: deliveries > 0,
        earlier_deliveries: deliveries,
        delivery_tag,
        arrived: Instant::now(),
        settle: Box::new(settler),
    }
}

fn dead_letters_of(queue: &str) -> Arc<str> {
    format!("{queue}.dlq").into()
}
