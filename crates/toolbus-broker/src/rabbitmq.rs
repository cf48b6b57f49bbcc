//! RabbitMQ as a bus.
//!
//! Connections are kept by a supervisor each: one consumes and acknowledges, another publishes, so that a publisher
//! blocked by the broker does not stop acknowledgements, and a third sends questions that may cost an error. Every
//! consumer has a channel of its own. Whatever is lost (broker, connection, channel, consumer, queue) is declared and
//! subscribed again, with back-off. Heartbeats and sockets have a thread beside those of calls.

mod cause;
mod confirm_channel;
mod connection;
mod consumer;
mod dead_letters;
mod inspection;
mod once;
mod properties;
mod published_lapin;
mod publisher;
mod questions;
mod settings;
mod state;
mod thread;
mod topology;
mod url;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use toolbus_bus::{Bus, BusState, Delivery, Outgoing, Ownership, PublishError, Routing, Subscription, Target};
use tracing::warn;

use self::connection::{ConnectionHandle, ConnectionSupervisor};
use self::consumer::{Consumer, MAX_RENEWALS, window};
pub use self::dead_letters::{DeadLetter, DeadLetterError, DeadLetterQueue, DeadLetters, ReplayOutcome};
pub use self::inspection::{Inspected, Inspection, Node, OwnQueue, inspect};
pub use self::once::{ConnectError, Product};
use self::publisher::Publisher;
use self::questions::Questions;
use self::settings::Checked;
pub use self::settings::{QueueType, RabbitMqSettings, SettingsError, Tls};
use self::state::{ConnectionKind, StateTracker};
pub use self::url::{AddressParts, AmqpUrl, AmqpUrlError};

/// Longest wait for consumers to be cancelled, and for connections to be closed.
const CLOSE_TIME: Duration = Duration::from_secs(8);

/// Longest wait for the broker's counts of a queue.
const LOOK_TIME: Duration = Duration::from_secs(2);
/// Looks after which a queue has no consumers, and the time after each: RabbitMQ reports the same for a quorum queue
/// whose leader does not report it within a quarter of a second.
const IDLE_LOOKS: u32 = 3;
const IDLE_PERIOD: Duration = Duration::from_millis(200);

/// A bus on RabbitMQ. Dropping it ends its tasks without waiting for them; [`Bus::close`] does so in order.
pub struct RabbitMq {
    settings: Arc<Checked>,
    state: Arc<StateTracker>,
    consume: ConnectionHandle,
    publisher: Publisher,
    questions: Arc<Questions>,
    /// Consumed queues that others declared, and that are theirs to delete.
    existing: Mutex<BTreeSet<String>>,
    renewals: Arc<Semaphore>,
    requests: Consumers,
    inboxes: Consumers,
    supervisors: TaskTracker,
    closing: CancellationToken,
}

/// Consumers that end together.
struct Consumers {
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Consumers {
    /// No consumers yet. They end with `closing`, if not before.
    fn new(closing: &CancellationToken) -> Self {
        Self { tasks: TaskTracker::new(), stop: closing.child_token() }
    }

    async fn end(&self) {
        self.stop.cancel();
        self.tasks.close();
        if tokio::time::timeout(CLOSE_TIME, self.tasks.wait()).await.is_err() {
            warn!("the broker did not confirm in time that consuming has ended");
        }
    }
}

impl RabbitMq {
    /// Checks the settings, and connects in the background: a broker that is away is waited for.
    ///
    /// Must be called inside a tokio runtime.
    ///
    /// # Errors
    ///
    /// If the settings are not valid: see [`SettingsError`].
    pub fn start(settings: RabbitMqSettings) -> Result<Self, SettingsError> {
        let settings = Arc::new(Checked::new(settings)?);
        let state = Arc::new(StateTracker::default());
        let (supervisors, closing) = (TaskTracker::new(), CancellationToken::new());
        let supervise = |kind| {
            let (supervisor, handle) =
                ConnectionSupervisor::new(kind, settings.clone(), state.clone(), closing.clone());
            supervisors.spawn(supervisor.run());
            handle
        };
        let (consume, publish) = (supervise(ConnectionKind::Consume), supervise(ConnectionKind::Publish));
        let questions = Questions::new(settings.clone(), state.clone(), supervisors.clone(), closing.clone());
        let questions = Arc::new(questions);
        let publisher = Publisher::new(&settings, publish, state.watch(), questions.clone());
        let (requests, inboxes) = (Consumers::new(&closing), Consumers::new(&closing));
        Ok(Self {
            settings,
            state,
            consume,
            publisher,
            questions,
            existing: Mutex::default(),
            renewals: Arc::new(Semaphore::new(MAX_RENEWALS)),
            requests,
            inboxes,
            supervisors,
            closing,
        })
    }
}

impl Bus for RabbitMq {
    fn consume(&self, subscription: Subscription) -> mpsc::Receiver<Delivery> {
        let (deliveries, receiver) = mpsc::channel(usize::from(window(&subscription)));
        let id = self.state.add_consumer(&subscription.queue);
        if subscription.ownership == Ownership::Existing {
            self.existing.lock().insert(subscription.queue.clone());
        }
        let consumers = if subscription.is_inbox { &self.inboxes } else { &self.requests };
        let consumer = Consumer {
            subscription,
            id,
            settings: self.settings.clone(),
            state: self.state.clone(),
            connection: self.consume.clone(),
            renewals: Arc::clone(&self.renewals),
            stop: consumers.stop.clone(),
        };
        consumers.tasks.spawn(consumer.run(deliveries));
        receiver
    }

    fn publish<'a>(&'a self, message: &'a Outgoing) -> BoxFuture<'a, Result<Routing, PublishError>> {
        Box::pin(async {
            let published = self.publisher.publish(message).await;
            match &message.target {
                // It may be back by now: a returned message is lost only if there is no such queue.
                Target::DeadLetter(queue)
                    if published == Ok(Routing::Unroutable)
                        && self.has_queue(&topology::dead_letters_of(queue)).await != Some(false) =>
                {
                    Err(PublishError::Rejected("the node of its dead-letter queue is down".to_owned()))
                }
                _ => published,
            }
        })
    }

    fn has_queue<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Option<bool>> {
        Box::pin(self.questions.has_queue(name))
    }

    fn refusal<'a>(&'a self, target: &'a Target) -> BoxFuture<'a, Option<String>> {
        Box::pin(self.publisher.refusal(target))
    }

    fn state(&self) -> watch::Receiver<BusState> {
        self.state.watch()
    }

    fn consumer_count<'a>(&'a self, queue: &'a str) -> BoxFuture<'a, Option<u32>> {
        Box::pin(async move {
            let asking = async {
                let connection = self.consume.open().await.ok()?;
                for _ in 0..IDLE_LOOKS {
                    match topology::consumer_count(&connection, queue).await? {
                        0 => tokio::time::sleep(IDLE_PERIOD).await,
                        count => return Some(count),
                    }
                }
                Some(0)
            };
            tokio::time::timeout(LOOK_TIME, asking).await.ok().flatten()
        })
    }

    fn remove<'a>(&'a self, queues: &'a [String]) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let own: Vec<_> = {
                let existing = self.existing.lock();
                queues.iter().filter(|queue| !existing.contains(*queue)).cloned().collect()
            };
            self.inboxes.end().await;
            let removing = async {
                if let Ok(connection) = self.consume.open().await {
                    topology::remove(&connection, &self.settings, &own).await;
                }
            };
            if tokio::time::timeout(CLOSE_TIME, removing).await.is_err() {
                warn!("the broker did not delete everything in time");
            }
        })
    }

    fn stop_consuming(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.requests.end())
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            tokio::join!(self.requests.end(), self.inboxes.end());
            self.closing.cancel();
            self.supervisors.close();
            if tokio::time::timeout(CLOSE_TIME, self.supervisors.wait()).await.is_err() {
                warn!("the connections to the broker did not close in time");
            }
        })
    }
}

impl Drop for RabbitMq {
    fn drop(&mut self) {
        self.closing.cancel();
    }
}
