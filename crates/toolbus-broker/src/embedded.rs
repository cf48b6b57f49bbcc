//! A bus inside the process, for a first run and for tests.
//!
//! It means the same as RabbitMQ with quorum queues: a topic exchange, a dead-letter exchange, the default exchange,
//! competing consumers, prefetch, redelivery with a count and a limit, unroutable messages. Nothing is kept beyond the
//! process, and a full queue refuses messages.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use toolbus_bus::{Bus, BusState, Clock, Delivery, Outgoing, PublishError, Routing, Subscription};

use crate::embedded_broker::{EmbeddedBroker, EmbeddedConsumer, QueueLimits, SettleContext};

/// Messages that one queue holds by default.
const MAX_MESSAGES: usize = 10_000;
/// Bytes of bodies that one queue holds by default.
const MAX_BYTES: usize = 64 * 1024 * 1024;

/// One client of a bus in memory. Clones are the same client; [`Embedded::connect`] gives another one.
#[derive(Clone)]
pub struct Embedded {
    broker: Arc<Mutex<EmbeddedBroker>>,
    state: Arc<watch::Sender<BusState>>,
}

impl Embedded {
    /// A client of a new, empty bus.
    #[must_use]
    pub fn new() -> Self {
        Self::with_bounds(MAX_MESSAGES, MAX_BYTES)
    }

    /// A client of a new, empty bus whose queues hold at most so many messages, and bytes of bodies, each.
    #[must_use]
    pub fn with_bounds(messages: usize, bytes: usize) -> Self {
        Self::client_of(Arc::new(Mutex::new(EmbeddedBroker::new(QueueLimits { messages, bytes }))))
    }

    /// Another client of the same bus: its consumers are its own, and end when it stops consuming.
    #[must_use]
    pub fn connect(&self) -> Self {
        Self::client_of(self.broker.clone())
    }

    fn client_of(broker: Arc<Mutex<EmbeddedBroker>>) -> Self {
        let state = watch::Sender::new(BusState { connected: true, ..BusState::default() });
        Self { broker, state: Arc::new(state) }
    }
}

impl Default for Embedded {
    fn default() -> Self {
        Self::new()
    }
}

impl Bus for Embedded {
    /// Must be called inside a tokio runtime.
    fn consume(&self, subscription: Subscription) -> mpsc::Receiver<Delivery> {
        let prefetch = usize::from(subscription.prefetch.max(1));
        let (deliveries, receiver) = mpsc::channel(prefetch);
        let mut index = 0;
        self.state.send_modify(|state| {
            index = state.consumers.len();
            state.consumers.push((subscription.queue.clone(), false));
        });
        let consumer = EmbeddedConsumer::new(index, &subscription, deliveries, self.state.clone());
        let context =
            SettleContext { broker: Arc::downgrade(&self.broker), runtime: Handle::current(), clock: Clock::SYSTEM };
        self.broker.lock().consume(&subscription, &self.state, consumer, context);
        receiver
    }

    fn publish<'a>(&'a self, message: &'a Outgoing) -> BoxFuture<'a, Result<Routing, PublishError>> {
        Box::pin(async {
            if !self.state.borrow().connected {
                return Err(PublishError::Closed);
            }
            self.broker.lock().publish(message)
        })
    }

    fn has_queue<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Option<bool>> {
        Box::pin(async { Some(self.broker.lock().has_queue(name)) })
    }

    fn state(&self) -> watch::Receiver<BusState> {
        self.state.subscribe()
    }

    fn stop_consuming(&self) -> BoxFuture<'_, ()> {
        Box::pin(async { self.broker.lock().end_requests(&self.state) })
    }

    /// Unsettled deliveries go back to their queues when they are dropped.
    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            self.broker.lock().close(&self.state);
            self.state.send_modify(|state| state.connected = false);
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;
    use tokio::sync::mpsc;
    use toolbus_bus::{Bus, Delivery, Outgoing, Ownership, PublishError, Routing, Subscription, Target};
    use toolbus_protocol::Properties;

    use super::Embedded;

    fn subscription(queue: &str, ownership: Ownership) -> Subscription {
        Subscription {
            queue: queue.into(),
            topics: vec!["t".into()],
            prefetch: 1,
            max_body: usize::MAX,
            ownership,
            is_inbox: false,
        }
    }

    fn message(target: Target, body: &str) -> Outgoing {
        let body = Bytes::copy_from_slice(body.as_bytes());
        Outgoing { target, mandatory: true, proven: true, properties: Arc::new(Properties::default()), body }
    }

    fn topic(body: &str) -> Outgoing {
        message(Target::Topic("t".into()), body)
    }

    async fn taken(deliveries: &mut mpsc::Receiver<Delivery>) -> Bytes {
        let delivery = deliveries.recv().await.unwrap();
        delivery.settle.acknowledge().await;
        delivery.body
    }

    #[tokio::test]
    async fn a_full_queue_refuses_and_takes_again_once_it_has_room() {
        let bus = Embedded::with_bounds(2, 1_000);
        let mut deliveries = bus.consume(subscription("q", Ownership::Shared));
        for body in ["in hand", "1", "2"] {
            assert_eq!(bus.publish(&topic(body)).await, Ok(Routing::Routed));
        }
        assert!(matches!(bus.publish(&topic("3")).await, Err(PublishError::Rejected(_))));
        deliveries.recv().await.unwrap().settle.acknowledge().await;
        assert_eq!(bus.publish(&topic("3")).await, Ok(Routing::Routed));
    }

    #[tokio::test]
    async fn the_bytes_of_a_queue_are_bounded_too() {
        let bus = Embedded::with_bounds(1_000, 10);
        let _deliveries = bus.consume(subscription("q", Ownership::Shared));
        for _ in 0..2 {
            assert_eq!(bus.publish(&topic("123456")).await, Ok(Routing::Routed));
        }
        assert!(matches!(bus.publish(&topic("123456")).await, Err(PublishError::Rejected(_))));
    }

    #[tokio::test]
    async fn the_error_for_a_message_larger_than_its_queue_names_both_sizes() {
        let bus = Embedded::with_bounds(1_000, 10);
        let _deliveries = bus.consume(subscription("q", Ownership::Shared));
        let error = bus.publish(&topic("12345678901")).await.unwrap_err();
        assert_eq!(error.to_string(), "message rejected: it has 11 bytes, and queue 'q' holds at most 10");
    }

    #[tokio::test]
    async fn the_oldest_dead_letters_make_room_for_new_ones() {
        let bus = Embedded::with_bounds(2, 1_000);
        drop(bus.consume(subscription("q", Ownership::Shared)));
        for body in ["1", "2", "3"] {
            let letter = message(Target::DeadLetter("q".into()), body);
            assert_eq!(bus.publish(&letter).await, Ok(Routing::Routed));
        }
        let mut letters = bus.consume(subscription("q.dlq", Ownership::Existing));
        assert_eq!(letters.recv().await.unwrap().body, "2");
    }

    #[tokio::test]
    async fn a_message_given_back_too_often_becomes_a_dead_letter() {
        let bus = Embedded::new();
        let mut deliveries = bus.consume(subscription("q", Ownership::Shared));
        let mut letters = bus.consume(subscription("q.dlq", Ownership::Existing));
        bus.publish(&topic("poison")).await.unwrap();
        for earlier in 0..=20 {
            let delivery = deliveries.recv().await.unwrap();
            assert_eq!(delivery.earlier_deliveries, earlier);
            delivery.settle.requeue().await;
        }
        assert_eq!(letters.recv().await.unwrap().body, "poison");
    }

    #[tokio::test]
    async fn a_queue_that_comes_or_goes_changes_where_messages_go() {
        let bus = Embedded::new();
        assert_eq!(bus.publish(&topic("unbound")).await, Ok(Routing::Unroutable));
        let mut kept = bus.consume(subscription("kept", Ownership::Shared));
        let other = bus.connect();
        let mut replica = other.consume(subscription("replica", Ownership::Replica));
        for text in ["first", "second"] {
            assert_eq!(bus.publish(&message(Target::Queue("replica".into()), text)).await, Ok(Routing::Routed));
            assert_eq!(taken(&mut replica).await, text);
        }
        assert_eq!(bus.publish(&topic("both")).await, Ok(Routing::Routed));
        assert_eq!((taken(&mut kept).await, taken(&mut replica).await), ("both".into(), "both".into()));
        other.close().await;
        assert_eq!(bus.publish(&message(Target::Queue("replica".into()), "late")).await, Ok(Routing::Unroutable));
        assert_eq!(bus.publish(&topic("one")).await, Ok(Routing::Routed));
    }

    #[tokio::test]
    async fn no_number_of_addresses_fills_the_memory() {
        let bus = Embedded::new();
        for number in 0..5_000 {
            let absent = message(Target::Queue(format!("reply.{number}")), "x");
            assert_eq!(bus.publish(&absent).await, Ok(Routing::Unroutable));
        }
        assert!(bus.broker.lock().remembered() <= 1_024);
    }

    #[tokio::test]
    async fn clients_stop_on_their_own() {
        let bus = Embedded::new();
        let other = bus.connect();
        let mut deliveries = other.consume(subscription("q", Ownership::Shared));
        bus.close().await;
        assert_eq!(bus.publish(&topic("1")).await, Err(PublishError::Closed));
        assert_eq!(other.publish(&topic("2")).await, Ok(Routing::Routed));
        assert_eq!(deliveries.recv().await.unwrap().body, "2");
    }
}
