//! Publishing with confirms: proven addresses share one channel, others have one each while it lasts.

use std::sync::Arc;

use lapin::types::ShortString;
use lapin::{Channel, Confirmation};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Semaphore, watch};
use toolbus_bus::{BusState, Outgoing, PublishError, Routing, Target};

use super::cause;
use super::confirm_channel::{Prepared, PublishFailure, SharedChannel, open};
use super::connection::ConnectionHandle;
use super::properties;
use super::questions::Questions;
use super::settings::Checked;

/// Messages to unproven addresses on their way at a time; further ones wait for one of them. A broker may grant few
/// channels.
const MAX_CHANNELS: usize = 24;
/// Channels that are kept for the next of these, once a burst of them is over: the client looks at all channels of the
/// connection for each frame that it sends.
const MAX_IDLE: usize = 8;

/// The publishing half of the bus.
///
/// A broker that refuses an address closes the channel, with every publish on it. So a message to an address that never
/// took one, and whose permission was not checked, has a channel for itself: what closes it is known, and is
/// [`PublishError::Refused`]. All others share one pipelined channel, which carries several times as much. Should one
/// of these close that one (its permission was taken away), all that was pending there gets
/// [`PublishError::Unavailable`]; the caller repeats it as unproven, and so learns which address is refused.
///
/// RabbitMQ 3.10 rejects all that a channel publishes to a quorum queue if the queue's leader went down before the channel
/// first published there, until that node is back. So what a channel rejects is tried on one that is opened for it and knows
/// the new leader. If that one takes it, idle channels and the shared one may know as little as the one that rejected
/// it, and are given up. They stay if that one rejects it, too: the queue is full then, and its owner must not have all
/// others wait for new channels.
pub(super) struct Publisher {
    exchange: ShortString,
    dead_letter_exchange: ShortString,
    connection: ConnectionHandle,
    state: watch::Receiver<BusState>,
    shared: SharedChannel,
    slots: Semaphore,
    /// Channels for unproven addresses that are not in use; the last one used is used next.
    idle: Mutex<Vec<Channel>>,
    questions: Arc<Questions>,
}

impl Publisher {
    pub(super) fn new(
        settings: &Checked,
        handle: ConnectionHandle,
        state: watch::Receiver<BusState>,
        questions: Arc<Questions>,
    ) -> Self {
        Self {
            exchange: settings.exchange.clone(),
            dead_letter_exchange: settings.dead_letter_exchange.clone(),
            connection: handle,
            state,
            shared: SharedChannel::new(settings.clock),
            slots: Semaphore::new(MAX_CHANNELS),
            idle: Mutex::default(),
            questions,
        }
    }

    /// See [`toolbus_bus::Bus::publish`].
    pub(super) async fn publish(&self, message: &Outgoing) -> Result<Routing, PublishError> {
        let prepared = self.prepare(message)?;
        self.wait_while_blocked().await?;
        let published = match message.proven || self.questions.is_permitted(&prepared.exchange, &prepared.address) {
            true => self.publish_shared(message, prepared).await,
            false => self.publish_alone(message, prepared).await,
        };
        match &published {
            Ok(_) => self.connection.carried(),
            Err(PublishError::Refused(_)) => {
                let Prepared { exchange, address, .. } = self.prepare(message)?;
                self.questions.forget(&exchange, &address);
            }
            Err(_) => {}
        }
        published
    }

    /// See [`toolbus_bus::Bus::refusal`].
    pub(super) async fn refusal(&self, target: &Target) -> Option<String> {
        let (exchange, address) = self.routing(target);
        self.questions.refusal(&exchange, &properties::short("address", address).ok()?).await
    }

    async fn publish_shared(&self, message: &Outgoing, prepared: Prepared) -> Result<Routing, PublishError> {
        let channel = self.shared.open(&self.connection).await?;
        let published = channel.publish(prepared).await;
        if let Err(PublishFailure::Amqp(error)) = &published
            && cause::refusal(error).is_some()
        {
            // Which address it was is not known.
            self.questions.forget_all();
        }
        match published.map_err(|failure| self.error(&failure)) {
            Err(PublishError::Rejected(_)) => {
                let published = self.publish_alone(message, self.prepare(message)?).await;
                if published.is_ok() {
                    self.shared.give_up(&channel);
                }
                published
            }
            published => published,
        }
    }

    async fn publish_alone(&self, message: &Outgoing, prepared: Prepared) -> Result<Routing, PublishError> {
        let _slot = self.slots.acquire().await.map_err(|_| PublishError::Closed)?;
        let Some(channel) = self.idle_channel() else {
            return self.publish_on(open(&self.connection).await?, prepared).await;
        };
        match self.publish_on(channel, prepared).await {
            Err(PublishError::Rejected(_)) => {
                let published = self.publish_on(open(&self.connection).await?, self.prepare(message)?).await;
                if published.is_ok() {
                    self.idle().clear();
                }
                published
            }
            published => published,
        }
    }

    /// Publishes on a channel that has no other message. A publish given up half-way takes the channel along, and with
    /// it the broker's verdict.
    async fn publish_on(&self, channel: Channel, message: Prepared) -> Result<Routing, PublishError> {
        let sent = message.send(&channel).await;
        if channel.status().connected() && !matches!(sent, Ok(Confirmation::Nack(_))) {
            let mut idle = self.idle();
            if idle.len() < MAX_IDLE {
                idle.push(channel);
            }
        }
        match sent {
            Ok(Confirmation::Ack(None)) => Ok(Routing::Routed),
            Ok(Confirmation::Ack(Some(_))) => Ok(Routing::Unroutable),
            Ok(Confirmation::Nack(_) | Confirmation::NotRequested) => Err(self.error(&PublishFailure::Nack)),
            Err(error) => match cause::refusal(&error) {
                Some(words) => Err(PublishError::Refused(words)),
                None => Err(self.error(&PublishFailure::Amqp(error))),
            },
        }
    }

    /// A channel that is open and not in use.
    fn idle_channel(&self) -> Option<Channel> {
        let mut idle = self.idle();
        while let Some(channel) = idle.pop() {
            if channel.status().connected() {
                return Some(channel);
            }
        }
        None
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Channel>> {
        self.idle.lock()
    }

    /// The client writes nothing on a blocked connection, and a message that is given up there is published later all
    /// the same.
    async fn wait_while_blocked(&self) -> Result<(), PublishError> {
        if self.state.borrow().blocked.is_none() {
            return Ok(());
        }
        let mut state = self.state.clone();
        state.wait_for(|state| state.blocked.is_none()).await.map(drop).map_err(|_| PublishError::Closed)
    }

    /// The exchange and the routing key of a target.
    fn routing<'a>(&self, target: &'a Target) -> (ShortString, &'a str) {
        match target {
            Target::Topic(topic) => (self.exchange.clone(), topic),
            Target::Queue(queue) => (ShortString::default(), queue),
            Target::DeadLetter(queue) => (self.dead_letter_exchange.clone(), queue),
        }
    }

    fn prepare(&self, message: &Outgoing) -> Result<Prepared, PublishError> {
        let (exchange, address) = self.routing(&message.target);
        Ok(Prepared {
            exchange,
            address: properties::short("address", address)?,
            properties: properties::write(&message.properties)?,
            mandatory: message.mandatory,
            body: message.body.clone(),
        })
    }

    fn error(&self, failure: &PublishFailure) -> PublishError {
        if self.connection.is_closed() {
            return PublishError::Closed;
        }
        match failure {
            PublishFailure::Amqp(error) => PublishError::Unavailable(cause::words(error)),
            PublishFailure::Nack => PublishError::Rejected("a queue for it is full or down".to_owned()),
            PublishFailure::Gone => PublishError::Unavailable("the channel was lost".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;
    use lapin::options::{QueueDeclareOptions, QueuePurgeOptions};
    use lapin::types::{AMQPValue, FieldTable};
    use toolbus_bus::{Bus as _, Clock};
    use toolbus_protocol::Properties;
    use toolbus_testing::rabbit::RabbitNode;

    use super::*;
    use crate::rabbitmq::{QueueType, RabbitMq, RabbitMqSettings};

    fn to_queue(queue: &str, proven: bool) -> Outgoing {
        let (target, body) = (Target::Queue(queue.to_owned()), Bytes::from_static(b"x"));
        Outgoing { target, mandatory: true, proven, properties: Properties::default().into(), body }
    }

    #[tokio::test]
    async fn a_full_queue_costs_others_neither_the_idle_channels_nor_the_shared_one() {
        let name = format!("rejecting-{}", std::process::id());
        let bus = RabbitMq::start(RabbitMqSettings {
            urls: vec![RabbitNode::shared().await.url()],
            name: name.clone(),
            exchange: name.clone(),
            dead_letter_exchange: format!("{name}.dlx"),
            queue_type: QueueType::Classic,
            tls: None,
            clock: Clock::SYSTEM,
        })
        .unwrap();
        let publisher = &bus.publisher;
        let channel = open(&publisher.connection).await.unwrap();
        let own = QueueDeclareOptions { exclusive: true, ..QueueDeclareOptions::default() };
        let mut bounds = FieldTable::default();
        bounds.insert("x-max-length".into(), AMQPValue::LongInt(1));
        bounds.insert("x-overflow".into(), AMQPValue::LongString("reject-publish".into()));
        channel.queue_declare(name.as_str().into(), own, bounds).await.unwrap();
        assert_eq!(bus.publish(&to_queue(&name, true)).await, Ok(Routing::Routed));
        let shared = publisher.shared.open(&publisher.connection).await.unwrap();

        for _ in 0..2 {
            let channel = open(&publisher.connection).await.unwrap();
            publisher.idle().push(channel);
        }
        let idle = publisher.idle().len();
        assert!(matches!(bus.publish(&to_queue(&name, false)).await, Err(PublishError::Rejected(_))));
        assert_eq!(publisher.idle().len(), idle - 1, "the one that rejected it is not used again");
        assert!(matches!(bus.publish(&to_queue(&name, true)).await, Err(PublishError::Rejected(_))));
        assert!(
            Arc::ptr_eq(&shared, &publisher.shared.open(&publisher.connection).await.unwrap()),
            "its queue is full"
        );

        channel.queue_purge(name.as_str().into(), QueuePurgeOptions::default()).await.unwrap();
        assert_eq!(bus.publish(&to_queue(&name, false)).await, Ok(Routing::Routed));
        assert!(!publisher.idle().is_empty());
        publisher.shared.give_up(&shared);
        assert!(!Arc::ptr_eq(&shared, &publisher.shared.open(&publisher.connection).await.unwrap()));
        bus.close().await;
    }
}
