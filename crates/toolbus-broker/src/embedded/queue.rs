//! One queue: messages that wait, and consumers that take turns.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{mpsc, watch};
use toolbus_core::bus::{BusState, Delivery};
use toolbus_protocol::Properties;

/// A message, as it lies in a queue.
#[derive(Debug, Clone)]
pub(super) struct Message {
    pub(super) properties: Arc<Properties>,
    pub(super) body: Bytes,
    pub(super) routing_key: Arc<str>,
    /// How often it was delivered before.
    pub(super) deliveries: u32,
}

/// Most that a queue holds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    pub(super) messages: usize,
    /// Bytes of bodies.
    pub(super) bytes: usize,
}

/// What happens to a message that does not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Overflow {
    /// It is refused.
    Refuse,
    /// The oldest messages make room.
    DropHead,
}

/// A consumer of one queue.
pub(super) struct Consumer {
    /// Its number, once the broker has given it one.
    id: u64,
    /// Its place in its client's state.
    place: usize,
    prefetch: usize,
    unsettled: usize,
    deliveries: mpsc::Sender<Delivery>,
    client: Arc<watch::Sender<BusState>>,
}

impl Consumer {
    pub(super) fn new(
        place: usize,
        prefetch: usize,
        deliveries: mpsc::Sender<Delivery>,
        client: Arc<watch::Sender<BusState>>,
    ) -> Self {
        Self { id: 0, place, prefetch, unsettled: 0, deliveries, client }
    }

    fn confirm(&self) {
        self.client.send_modify(|state| {
            if let Some(consumer) = state.consumers.get_mut(self.place) {
                consumer.1 = true;
            }
        });
    }
}

/// A queue. Until it is declared, it takes no messages, and its consumers wait.
pub(super) struct Queue {
    name: Arc<str>,
    overflow: Option<Overflow>,
    bounds: Bounds,
    ready: VecDeque<Message>,
    bytes: usize,
    consumers: VecDeque<Consumer>,
}

impl Queue {
    pub(super) fn new(name: &str, bounds: Bounds) -> Self {
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
            self.consumers.iter().for_each(Consumer::confirm);
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
    pub(super) fn push(&mut self, message: Message) {
        self.bytes += message.body.len();
        self.ready.push_back(message);
        while self.ready.len() > self.bounds.messages || self.bytes > self.bounds.bytes {
            self.pop();
        }
    }

    /// Puts a message back where it came from: in front.
    pub(super) fn put_back(&mut self, message: Message) {
        self.bytes += message.body.len();
        self.ready.push_front(message);
    }

    /// Adds a consumer under this number.
    pub(super) fn subscribe(&mut self, id: u64, consumer: Consumer) {
        if self.is_declared() {
            consumer.confirm();
        }
        self.consumers.push_back(Consumer { id, ..consumer });
    }

    /// Ends all consumers of a client.
    pub(super) fn end_consumers(&mut self, client: &Arc<watch::Sender<BusState>>) {
        self.consumers.retain(|consumer| !Arc::ptr_eq(&consumer.client, client));
    }

    /// A delivery of this consumer has been settled. The consumer may be gone.
    pub(super) fn settled(&mut self, id: u64) {
        if let Some(consumer) = self.consumers.iter_mut().find(|consumer| consumer.id == id) {
            consumer.unsettled = consumer.unsettled.saturating_sub(1);
        }
    }

    /// Hands out what waits to consumers with room, in turn. `deliver` makes the delivery for a consumer's number.
    pub(super) fn hand_out(&mut self, mut deliver: impl FnMut(u64, Message) -> Delivery) {
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

    fn pop(&mut self) -> Option<Message> {
        let message = self.ready.pop_front()?;
        self.bytes = self.bytes.saturating_sub(message.body.len());
        Some(message)
    }
}
