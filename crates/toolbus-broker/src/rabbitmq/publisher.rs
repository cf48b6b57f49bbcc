//! Publishing with confirms, on a pool of channels that carry one message at a time.

use std::sync::{Mutex, MutexGuard, PoisonError};

use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::ShortString;
use lapin::{Channel, Confirmation, Error};
use tokio::sync::{Semaphore, watch};
use toolbus_core::bus::{BusState, Outgoing, PublishError, Routing, Target};

use super::cause::{self, ACCESS_REFUSED, NOT_FOUND, PRECONDITION_FAILED};
use super::link::Link;
use super::properties;
use super::settings::Checked;

/// Messages on their way at a time; further ones wait for one of them.
const MAX_CHANNELS: usize = 64;

/// The publishing half of the bus.
///
/// Each channel carries one message at a time, because on a shared one verdicts get mixed up. The broker may confirm in
/// another order than it returns, and the client gives a returned message to whichever confirm comes next. And a
/// broker that refuses an address closes the channel, with everything on it. Here both belong to one message for
/// certain, also to an address that took messages before, so `Outgoing::proven` makes no difference.
pub(super) struct Publisher {
    exchange: ShortString,
    dead_letter_exchange: ShortString,
    link: Link,
    state: watch::Receiver<BusState>,
    places: Semaphore,
    /// Channels not in use; the last one used is used next.
    idle: Mutex<Vec<Channel>>,
}

impl Publisher {
    pub(super) fn new(settings: &Checked, link: Link, state: watch::Receiver<BusState>) -> Self {
        Self {
            exchange: settings.exchange.clone(),
            dead_letter_exchange: settings.dead_letter_exchange.clone(),
            link,
            state,
            places: Semaphore::new(MAX_CHANNELS),
            idle: Mutex::default(),
        }
    }

    /// See [`toolbus_core::bus::Bus::publish`].
    pub(super) async fn publish(&self, message: &Outgoing) -> Result<Routing, PublishError> {
        let prepared = self.prepare(message)?;
        let _place = self.places.acquire().await.map_err(|_| PublishError::Closed)?;
        self.wait_while_blocked().await?;
        // A publish given up half-way takes its channel along, and with it the broker's verdict.
        let channel = self.channel().await?;
        let sent = prepared.send(&channel).await;
        if channel.status().connected() {
            self.idle().push(channel);
        }
        sent.map_err(|failure| match failure.refusal() {
            Some(words) => PublishError::Refused(words),
            None => self.unavailable(&failure),
        })
    }

    /// A channel that is open, or a new one as soon as there is a connection.
    async fn channel(&self) -> Result<Channel, PublishError> {
        loop {
            let idle = self.idle().pop();
            match idle {
                Some(channel) if channel.status().connected() => return Ok(channel),
                Some(_) => {}
                None => return open(&self.link).await,
            }
        }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Channel>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The client writes nothing on a blocked connection, and what is given up there is published later all the same.
    async fn wait_while_blocked(&self) -> Result<(), PublishError> {
        if self.state.borrow().blocked.is_none() {
            return Ok(());
        }
        let mut state = self.state.clone();
        state.wait_for(|state| state.blocked.is_none()).await.map(drop).map_err(|_| PublishError::Closed)
    }

    fn prepare<'a>(&self, message: &'a Outgoing) -> Result<Prepared<'a>, PublishError> {
        let (exchange, address) = match &message.target {
            Target::Topic(topic) => (self.exchange.clone(), topic),
            Target::Queue(queue) => (ShortString::default(), queue),
            Target::DeadLetter(queue) => (self.dead_letter_exchange.clone(), queue),
        };
        Ok(Prepared {
            exchange,
            address: properties::short("address", address)?,
            properties: properties::write(&message.properties)?,
            message,
        })
    }

    fn unavailable(&self, error: &Failure) -> PublishError {
        if self.link.is_closed() {
            return PublishError::Closed;
        }
        PublishError::Unavailable(match error {
            Failure::Amqp(error) => cause::words(error),
            Failure::Nack => "the broker could not take the message".to_owned(),
        })
    }
}

/// Why a message was not confirmed.
enum Failure {
    Amqp(Error),
    Nack,
}

impl Failure {
    /// The broker's words, if it refused the address.
    fn refusal(&self) -> Option<String> {
        match self {
            Self::Amqp(error) => matches!(cause::code(error)?, ACCESS_REFUSED | NOT_FOUND | PRECONDITION_FAILED)
                .then(|| cause::words(error)),
            Self::Nack => None,
        }
    }
}

/// A message as AMQP wants it.
struct Prepared<'a> {
    exchange: ShortString,
    address: ShortString,
    properties: lapin::BasicProperties,
    message: &'a Outgoing,
}

impl Prepared<'_> {
    /// Publishes, and waits for the confirm.
    async fn send(self, channel: &Channel) -> Result<Routing, Failure> {
        let options = BasicPublishOptions { mandatory: self.message.mandatory, immediate: false };
        let written = channel.basic_publish(self.exchange, self.address, options, &self.message.body, self.properties);
        match written.await.map_err(Failure::Amqp)?.await.map_err(Failure::Amqp)? {
            Confirmation::Ack(None) => Ok(Routing::Routed),
            Confirmation::Ack(Some(_)) => Ok(Routing::Unroutable),
            Confirmation::Nack(_) | Confirmation::NotRequested => Err(Failure::Nack),
        }
    }
}

/// Waits for the connection, and opens a channel with confirms.
async fn open(link: &Link) -> Result<Channel, PublishError> {
    let unavailable = |error: Error| PublishError::Unavailable(cause::words(&error));
    let connection = link.open().await.map_err(|_| PublishError::Closed)?;
    let channel = connection.create_channel().await.map_err(unavailable)?;
    channel.confirm_select(ConfirmSelectOptions::default()).await.map_err(unavailable)?;
    Ok(channel)
}
