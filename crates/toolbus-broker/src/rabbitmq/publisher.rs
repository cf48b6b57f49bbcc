//! Publishing with confirms: many at a time to proven addresses, one at a time to others.

use std::future::Future;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::ShortString;
use lapin::{Channel, Confirmation, Error};
use tokio::sync::watch;
use toolbus_core::bus::{BusState, Outgoing, PublishError, Routing, Target};

use super::cause::{self, ACCESS_REFUSED, NOT_FOUND, PRECONDITION_FAILED};
use super::link::Link;
use super::properties;
use super::settings::Checked;

/// The publishing half of the bus.
///
/// A broker that refuses an address closes the channel, with every publish pending on it. So addresses that never took
/// a message have a channel of their own, one message at a time: what closes it is known, and is
/// [`PublishError::Refused`]. Should a proven address close the shared channel (its permission was taken away), all
/// that was pending there gets [`PublishError::Unavailable`]; the caller repeats it as unproven, and so learns which
/// address is refused.
pub(super) struct Publisher {
    exchange: ShortString,
    dead_letter_exchange: ShortString,
    link: Link,
    state: watch::Receiver<BusState>,
    proven: Shared,
    unproven: tokio::sync::Mutex<Option<Channel>>,
}

impl Publisher {
    pub(super) fn new(settings: &Checked, link: Link, state: watch::Receiver<BusState>) -> Self {
        Self {
            exchange: settings.exchange.clone(),
            dead_letter_exchange: settings.dead_letter_exchange.clone(),
            link,
            state,
            proven: Shared::default(),
            unproven: tokio::sync::Mutex::new(None),
        }
    }

    /// See [`toolbus_core::bus::Bus::publish`].
    pub(super) async fn publish(&self, message: &Outgoing) -> Result<Routing, PublishError> {
        let prepared = self.prepare(message)?;
        self.wait_while_blocked().await?;
        if message.proven { self.publish_proven(prepared).await } else { self.publish_unproven(prepared).await }
    }

    async fn publish_proven(&self, prepared: Prepared<'_>) -> Result<Routing, PublishError> {
        let channel = self.proven.open(&self.link).await?;
        prepared.send(&channel, &self.proven.order).await.map_err(|error| self.unavailable(&error))
    }

    async fn publish_unproven(&self, prepared: Prepared<'_>) -> Result<Routing, PublishError> {
        let mut slot = self.unproven.lock().await;
        // Taken out while in use: a publish given up half-way takes its channel along, and with it the broker's
        // verdict, which would otherwise hit the next publish.
        let channel = match slot.take() {
            Some(channel) if channel.status().connected() => channel,
            _ => open(&self.link).await?,
        };
        let sent = prepared.send(&channel, &Mutex::default()).await;
        if channel.status().connected() {
            *slot = Some(channel);
        }
        sent.map_err(|failure| match failure.refusal() {
            Some(words) => PublishError::Refused(words),
            None => self.unavailable(&failure),
        })
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
    async fn send(self, channel: &Channel, order: &Mutex<()>) -> Result<Routing, Failure> {
        let options = BasicPublishOptions { mandatory: self.message.mandatory, immediate: false };
        let mut written =
            pin!(channel.basic_publish(self.exchange, self.address, options, &self.message.body, self.properties));
        // The client numbers a message and queues it in two steps. Two threads between them would swap the numbers,
        // and each would get the other's confirm.
        let in_order = poll_fn(|context| {
            let _order = order.lock().unwrap_or_else(PoisonError::into_inner);
            written.as_mut().poll(context)
        });
        match in_order.await.map_err(Failure::Amqp)?.await.map_err(Failure::Amqp)? {
            Confirmation::Ack(None) => Ok(Routing::Routed),
            Confirmation::Ack(Some(_)) => Ok(Routing::Unroutable),
            Confirmation::Nack(_) | Confirmation::NotRequested => Err(Failure::Nack),
        }
    }
}

/// A channel that many publishes share, opened again when it is gone.
#[derive(Default)]
struct Shared {
    channel: RwLock<Option<Arc<Channel>>>,
    opening: tokio::sync::Mutex<()>,
    order: Mutex<()>,
}

impl Shared {
    async fn open(&self, link: &Link) -> Result<Arc<Channel>, PublishError> {
        if let Some(channel) = self.usable() {
            return Ok(channel);
        }
        let _alone = self.opening.lock().await;
        if let Some(channel) = self.usable() {
            return Ok(channel);
        }
        let channel = Arc::new(open(link).await?);
        *self.channel.write().unwrap_or_else(PoisonError::into_inner) = Some(channel.clone());
        Ok(channel)
    }

    fn usable(&self) -> Option<Arc<Channel>> {
        let channel = self.channel.read().unwrap_or_else(PoisonError::into_inner);
        channel.as_ref().filter(|channel| channel.status().connected()).cloned()
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
