//! Whether the broker would take a message, without sending one.
//!
//! RabbitMQ checks the permissions for a publish at once, also within a transaction, and delivers at its end. So a
//! publish in a transaction that is rolled back tells whether it is permitted, and arrives nowhere.

use std::time::Duration;

use lapin::options::BasicPublishOptions;
use lapin::types::ShortString;
use lapin::{BasicProperties, Channel, Error};
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use toolbus_core::bus::PublishError;

use super::cause;
use super::connection::ConnectionHandle;

/// Probes under way at a time; further ones wait for one of them.
const MAX_PROBES: usize = 16;
/// Channels that are tried for one verdict.
const MAX_TRIES: usize = 8;
/// Longest wait for the broker's verdict.
const PROBE_TIME: Duration = Duration::from_secs(2);

/// Channels in transaction mode, opened when one is needed and used again.
pub(super) struct PublishProbe {
    connection: ConnectionHandle,
    places: Semaphore,
    idle: Mutex<Vec<Channel>>,
}

impl PublishProbe {
    pub(super) fn new(handle: ConnectionHandle) -> Self {
        Self { connection: handle, places: Semaphore::new(MAX_PROBES), idle: Mutex::default() }
    }

    /// Why the broker refuses a publish, in the broker's words; `None` if it does not refuse, or does not answer in time.
    pub(super) async fn refusal(&self, exchange: ShortString, address: ShortString) -> Option<String> {
        tokio::time::timeout(PROBE_TIME, self.ask(exchange, address)).await.ok()?
    }

    /// The client keeps no reason of a channel that is closed between two requests, and may have trouble with the next
    /// one of that number. So whatever is no verdict is tried again.
    async fn ask(&self, exchange: ShortString, address: ShortString) -> Option<String> {
        let _place = self.places.acquire().await.ok()?;
        for _ in 0..MAX_TRIES {
            let Ok(channel) = self.channel().await else { continue };
            match attempt(&channel, exchange.clone(), address.clone()).await {
                Ok(()) => {
                    self.idle.lock().push(channel);
                    return None;
                }
                Err(error) => {
                    if let Some(words) = cause::refusal(&error) {
                        return Some(words);
                    }
                }
            }
        }
        None
    }

    /// A channel that is open, or a new one.
    async fn channel(&self) -> Result<Channel, PublishError> {
        loop {
            let idle = self.idle.lock().pop();
            match idle {
                Some(channel) if channel.status().connected() => return Ok(channel),
                Some(_) => {}
                None => break,
            }
        }
        let unavailable = |error: Error| PublishError::Unavailable(cause::words(&error));
        let connection = self.connection.open().await.map_err(|_| PublishError::Closed)?;
        let channel = connection.create_channel().await.map_err(unavailable)?;
        channel.tx_select().await.map_err(unavailable)?;
        Ok(channel)
    }
}

/// Publishes, and takes it back.
async fn attempt(channel: &Channel, exchange: ShortString, address: ShortString) -> Result<(), Error> {
    let options = BasicPublishOptions::default();
    drop(channel.basic_publish(exchange, address, options, &[], BasicProperties::default()).await?);
    channel.tx_rollback().await
}
