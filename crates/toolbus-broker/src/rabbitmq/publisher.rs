//! Publishing with confirms: proven addresses share one channel, others have one each while it lasts.

use lapin::types::ShortString;
use lapin::{Channel, Confirmation};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Semaphore, watch};
use toolbus_core::bus::{BusState, Outgoing, PublishError, Routing, Target};

use super::cause;
use super::confirm_channel::{Prepared, PublishFailure, SharedChannel, open};
use super::connection::ConnectionHandle;
use super::probe::PublishProbe;
use super::properties;
use super::settings::Checked;

/// Messages to unproven addresses on their way at a time; further ones wait for one of them.
const MAX_CHANNELS: usize = 64;
/// Channels that are kept for the next of these, once a burst of them is over: the client looks at all channels of the
/// connection for each frame that it sends.
const MAX_IDLE: usize = 8;

/// The publishing half of the bus.
///
/// A broker that refuses an address closes the channel, with every publish on it. So a message to an address that never
/// took one has a channel for itself: what closes it is known, and is [`PublishError::Refused`]. All others share one
/// pipelined channel, which carries several times as much. Should a proven address close that one (its permission was
/// taken away), all that was pending there gets [`PublishError::Unavailable`]; the caller repeats it as unproven, and so
/// learns which address is refused.
///
/// RabbitMQ 3.10 rejects all that a channel publishes to a quorum queue if the queue's leader went down before the channel
/// first published there, until that node is back. So what is rejected is tried on a channel of its own, and a channel on
/// which something was rejected is not used again: a new one knows the new leader.
pub(super) struct Publisher {
    exchange: ShortString,
    dead_letter_exchange: ShortString,
    connection: ConnectionHandle,
    state: watch::Receiver<BusState>,
    shared: SharedChannel,
    places: Semaphore,
    /// Channels for unproven addresses that are not in use; the last one used is used next.
    idle: Mutex<Vec<Channel>>,
    probe: PublishProbe,
}

impl Publisher {
    pub(super) fn new(settings: &Checked, handle: ConnectionHandle, state: watch::Receiver<BusState>) -> Self {
        Self {
            exchange: settings.exchange.clone(),
            dead_letter_exchange: settings.dead_letter_exchange.clone(),
            probe: PublishProbe::new(handle.clone()),
            connection: handle,
            state,
            shared: SharedChannel::new(settings.clock),
            places: Semaphore::new(MAX_CHANNELS),
            idle: Mutex::default(),
        }
    }

    /// See [`toolbus_core::bus::Bus::publish`].
    pub(super) async fn publish(&self, message: &Outgoing) -> Result<Routing, PublishError> {
        let prepared = self.prepare(message)?;
        self.wait_while_blocked().await?;
        let published = if message.proven {
            match self.publish_shared(prepared).await {
                Err(PublishError::Rejected(_)) => self.publish_alone(self.prepare(message)?).await,
                published => published,
            }
        } else {
            self.publish_alone(prepared).await
        };
        if published.is_ok() {
            self.connection.carried();
        }
        published
    }

    /// See [`toolbus_core::bus::Bus::refusal`].
    pub(super) async fn refusal(&self, target: &Target) -> Option<String> {
        if self.state.borrow().blocked.is_some() {
            return None;
        }
        let (exchange, address) = self.place(target);
        self.probe.refusal(exchange, properties::short("address", address).ok()?).await
    }

    async fn publish_shared(&self, prepared: Prepared) -> Result<Routing, PublishError> {
        let channel = self.shared.open(&self.connection).await?;
        channel.publish(prepared).await.map_err(|failure| self.error(&failure))
    }

    async fn publish_alone(&self, prepared: Prepared) -> Result<Routing, PublishError> {
        let _place = self.places.acquire().await.map_err(|_| PublishError::Closed)?;
        // A publish given up half-way takes its channel along, and with it the broker's verdict.
        let channel = self.channel().await?;
        let sent = prepared.send(&channel).await;
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

    /// A channel that is open, or a new one as soon as there is a connection.
    async fn channel(&self) -> Result<Channel, PublishError> {
        loop {
            let idle = self.idle().pop();
            match idle {
                Some(channel) if channel.status().connected() => return Ok(channel),
                Some(_) => {}
                None => return open(&self.connection).await,
            }
        }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Channel>> {
        self.idle.lock()
    }

    /// The client writes nothing on a blocked connection, and what is given up there is published later all the same.
    async fn wait_while_blocked(&self) -> Result<(), PublishError> {
        if self.state.borrow().blocked.is_none() {
            return Ok(());
        }
        let mut state = self.state.clone();
        state.wait_for(|state| state.blocked.is_none()).await.map(drop).map_err(|_| PublishError::Closed)
    }

    /// The exchange and the routing key of a target.
    fn place<'a>(&self, target: &'a Target) -> (ShortString, &'a str) {
        match target {
            Target::Topic(topic) => (self.exchange.clone(), topic),
            Target::Queue(queue) => (ShortString::default(), queue),
            Target::DeadLetter(queue) => (self.dead_letter_exchange.clone(), queue),
        }
    }

    fn prepare(&self, message: &Outgoing) -> Result<Prepared, PublishError> {
        let (exchange, address) = self.place(&message.target);
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
