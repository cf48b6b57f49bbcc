//! One channel that many publishes share, and which of them were returned.
//!
//! The client hands a returned message to whichever confirm comes next on the channel, and that may be another
//! message's: the broker confirms in another order than it returns. So one task owns the channel's publishes and gives
//! verdicts, on what the client guarantees:
//!
//! * A return arrives before the confirm of its own message, and each confirm takes the oldest return that is waiting.
//! * So a message whose confirm brings no return was returned, if at all, with a confirm that came before its own.
//! * A message whose confirm brings another's return may find its own with any publish that was under way at that time,
//!   and with none after those.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use lapin::message::BasicReturnMessage;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::ShortString;
use lapin::{Channel, Confirmation, Error};
use parking_lot::RwLock;
use tokio::sync::{mpsc, oneshot};
use tokio::time::MissedTickBehavior;
use toolbus_bus::{Clock, PublishError, Routing};
use tracing::warn;

use super::cause;
use super::connection::ConnectionHandle;

/// Publishes that may wait for the channel's task.
const BACKLOG: usize = 1024;
/// Longest wait for knowledge of whose a return was. A queue that never confirms must not hold up other verdicts.
const UNCLEAR_TIME: Duration = Duration::from_secs(5);
/// Time between two looks at unclear returns while nothing else happens.
const PULSE: Duration = Duration::from_secs(1);

/// Longest wait for a channel to be opened.
const OPEN_TIME: Duration = Duration::from_secs(10);

/// Reason why a message was not confirmed.
pub(super) enum PublishFailure {
    Amqp(Error),
    /// The broker's own verdict on this message; the channel goes on.
    Nack,
    Gone,
}

/// A message as AMQP wants it.
pub(super) struct Prepared {
    pub(super) exchange: ShortString,
    pub(super) address: ShortString,
    pub(super) properties: lapin::BasicProperties,
    pub(super) mandatory: bool,
    pub(super) body: Bytes,
}

impl Prepared {
    /// Publishes, and waits for the confirm.
    pub(super) async fn send(self, channel: &Channel) -> Result<Confirmation, Error> {
        let Self { exchange, address, properties, mandatory, body } = self;
        let options = BasicPublishOptions { mandatory, immediate: false };
        let confirm = channel.basic_publish(exchange, address, options, &body, properties).await?;
        // The client has its own copy; a confirm may take long.
        drop(body);
        confirm.await
    }
}

/// Waits for the connection, and opens a channel with confirms.
pub(super) async fn open(handle: &ConnectionHandle) -> Result<Channel, PublishError> {
    let unavailable = |error: Error| PublishError::Unavailable(cause::words(&error));
    let connection = handle.open().await.map_err(|_| PublishError::Closed)?;
    let opening = async {
        let channel = connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        Ok(channel)
    };
    match tokio::time::timeout(OPEN_TIME, opening).await {
        Ok(opened) => opened.map_err(unavailable),
        Err(_) => {
            let seconds = OPEN_TIME.as_secs();
            warn!("the broker did not open a channel for publishing within {seconds} s; it is tried again");
            Err(PublishError::Unavailable(format!("no channel within {seconds} s")))
        }
    }
}

/// The channel that publishes share, opened again after its loss.
pub(super) struct SharedChannel {
    clock: Clock,
    current: RwLock<Option<Arc<ConfirmChannel>>>,
    opening: tokio::sync::Mutex<()>,
}

/// A channel and the way to its task, which ends when the last user is gone.
pub(super) struct ConfirmChannel {
    channel: Channel,
    publishes: mpsc::Sender<Publish>,
}

/// A message, and the receiver of its outcome.
struct Publish {
    message: Prepared,
    verdict: oneshot::Sender<Result<Routing, PublishFailure>>,
}

/// Properties that distinguish one message from another when it is returned.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ConfirmKey {
    exchange: ShortString,
    address: ShortString,
    message_id: Option<ShortString>,
}

impl SharedChannel {
    pub(super) fn new(clock: Clock) -> Self {
        Self { clock, current: RwLock::default(), opening: tokio::sync::Mutex::default() }
    }

    /// The channel that is open, or a new one as soon as there is a connection.
    pub(super) async fn open(&self, handle: &ConnectionHandle) -> Result<Arc<ConfirmChannel>, PublishError> {
        if let Some(channel) = self.usable() {
            return Ok(channel);
        }
        let _alone = self.opening.lock().await;
        if let Some(channel) = self.usable() {
            return Ok(channel);
        }
        let channel = Arc::new(ConfirmChannel::start(open(handle).await?, self.clock));
        *self.current.write() = Some(Arc::clone(&channel));
        Ok(channel)
    }

    /// Has the next message open another channel than this one, on which others may still wait for confirms.
    pub(super) fn give_up(&self, channel: &Arc<ConfirmChannel>) {
        self.current.write().take_if(|current| Arc::ptr_eq(current, channel));
    }

    fn usable(&self) -> Option<Arc<ConfirmChannel>> {
        let current = self.current.read();
        current.as_ref().filter(|channel| channel.channel.status().connected()).cloned()
    }
}

impl ConfirmChannel {
    #[expect(clippy::disallowed_methods, reason = "the task ends with the last sender of publishes")]
    fn start(channel: Channel, clock: Clock) -> Self {
        let (publishes, receiver) = mpsc::channel(BACKLOG);
        tokio::spawn(drive(channel.clone(), receiver, clock));
        Self { channel, publishes }
    }

    /// Publishes, and waits for the verdict. A message given up half-way may still arrive.
    pub(super) async fn publish(&self, message: Prepared) -> Result<Routing, PublishFailure> {
        let (verdict, outcome) = oneshot::channel();
        self.publishes.send(Publish { message, verdict }).await.map_err(|_| PublishFailure::Gone)?;
        outcome.await.unwrap_or(Err(PublishFailure::Gone))
    }
}

/// Owns the channel's publishes until the last sender is gone.
async fn drive(channel: Channel, mut publishes: mpsc::Receiver<Publish>, clock: Clock) {
    let mut pending = PendingConfirms::default();
    let mut on_the_way: FuturesUnordered<BoxFuture<'static, (u64, Result<Confirmation, Error>)>> =
        FuturesUnordered::new();
    let mut next = Some(());
    let mut pulse = tokio::time::interval(PULSE);
    pulse.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while next.is_some() || !on_the_way.is_empty() {
        tokio::select! {
            publish = publishes.recv(), if next.is_some() => match publish {
                Some(publish) => on_the_way.push(pending.enter(&channel, publish)),
                None => next = None,
            },
            Some((number, outcome)) = on_the_way.next(), if !on_the_way.is_empty() => pending.note(number, outcome, clock),
            _ = pulse.tick(), if !pending.unclear.is_empty() => {}
        }
        while let Ok(publish) = publishes.try_recv() {
            on_the_way.push(pending.enter(&channel, publish));
        }
        // All that is known has to be noted before anything is judged: a return may have come with another's confirm.
        while let Some(Some((number, outcome))) = on_the_way.next().now_or_never() {
            pending.note(number, outcome, clock);
        }
        pending.judge(clock);
    }
}

/// Knowledge of the publishes of one channel.
#[derive(Default)]
struct PendingConfirms {
    next: u64,
    under_way: BTreeMap<u64, PendingConfirm>,
    /// Confirmed without a return.
    clear: Vec<PendingConfirm>,
    /// Confirmed with a return.
    unclear: Vec<Unclear>,
    /// Rejected.
    nacked: Vec<PendingConfirm>,
    /// Returned, and not yet known whose it is.
    returned: Vec<ConfirmKey>,
}

/// A message that may have been returned with a confirm that is still to come.
struct Unclear {
    waiting: PendingConfirm,
    /// Number of the first publish that was not under way yet.
    after: u64,
    since: Instant,
}

struct PendingConfirm {
    key: ConfirmKey,
    verdict: oneshot::Sender<Result<Routing, PublishFailure>>,
}

impl PendingConfirms {
    fn enter(&mut self, channel: &Channel, publish: Publish) -> BoxFuture<'static, (u64, Result<Confirmation, Error>)> {
        let Publish { message, verdict } = publish;
        let number = self.next;
        self.next += 1;
        self.under_way.insert(number, PendingConfirm { key: ConfirmKey::of(&message), verdict });
        let channel = channel.clone();
        Box::pin(async move { (number, message.send(&channel).await) })
    }

    fn note(&mut self, number: u64, outcome: Result<Confirmation, Error>, clock: Clock) {
        let Some(waiting) = self.under_way.remove(&number) else { return };
        match outcome {
            Ok(Confirmation::Ack(None)) => self.clear.push(waiting),
            Ok(Confirmation::Ack(Some(returned))) => {
                self.returned.push(ConfirmKey::of_returned(&returned));
                self.unclear.push(Unclear { waiting, after: self.next, since: clock.now() });
            }
            Ok(Confirmation::Nack(returned)) => {
                self.returned.extend(returned.map(|returned| ConfirmKey::of_returned(&returned)));
                self.nacked.push(waiting);
            }
            Ok(Confirmation::NotRequested) => waiting.tell(Err(PublishFailure::Nack)),
            Err(error) => waiting.tell(Err(PublishFailure::Amqp(error))),
        }
    }

    fn judge(&mut self, clock: Clock) {
        for waiting in std::mem::take(&mut self.nacked) {
            // Its return must not be taken for that of the same message, published again.
            self.claim(&waiting.key);
            waiting.tell(Err(PublishFailure::Nack));
        }
        for waiting in std::mem::take(&mut self.clear) {
            let routing = if self.claim(&waiting.key) { Routing::Unroutable } else { Routing::Routed };
            waiting.tell(Ok(routing));
        }
        if self.unclear.is_empty() {
            return;
        }
        let oldest = self.under_way.keys().next().copied().unwrap_or(self.next);
        for unclear in std::mem::take(&mut self.unclear) {
            if self.claim(&unclear.waiting.key) {
                unclear.waiting.tell(Ok(Routing::Unroutable));
            } else if oldest >= unclear.after {
                unclear.waiting.tell(Ok(Routing::Routed));
            } else if clock.since(unclear.since) > UNCLEAR_TIME {
                unclear.waiting.tell(Err(PublishFailure::Gone));
            } else {
                self.unclear.push(unclear);
            }
        }
        if self.under_way.is_empty() {
            // The remaining ones belong to publishes that failed otherwise.
            self.returned.clear();
        }
    }

    /// Takes a return of this message out of those that came, if there is one.
    fn claim(&mut self, key: &ConfirmKey) -> bool {
        let index = self.returned.iter().position(|returned| returned == key);
        index.map(|index| self.returned.swap_remove(index)).is_some()
    }
}

impl PendingConfirm {
    /// The receiver may have given up.
    fn tell(self, outcome: Result<Routing, PublishFailure>) {
        let _ = self.verdict.send(outcome);
    }
}

impl ConfirmKey {
    fn of(message: &Prepared) -> Self {
        Self {
            exchange: message.exchange.clone(),
            address: message.address.clone(),
            message_id: message.properties.message_id().clone(),
        }
    }

    fn of_returned(returned: &BasicReturnMessage) -> Self {
        Self {
            exchange: returned.exchange.clone(),
            address: returned.routing_key.clone(),
            message_id: returned.properties.message_id().clone(),
        }
    }
}
