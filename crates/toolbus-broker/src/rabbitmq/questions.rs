//! Questions to the broker about addresses and queues, on a connection of their own: for a response that is an error,
//! the broker closes the channel, and writes a line into its log.
//!
//! RabbitMQ checks the permissions for a publish at once, also within a transaction, and delivers at its end. So a
//! publish in a transaction that is rolled back shows whether it is permitted, and arrives nowhere.

use std::num::NonZeroUsize;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use lapin::options::BasicPublishOptions;
use lapin::types::ShortString;
use lapin::{BasicProperties, Channel, Connection, Error};
use lru::LruCache;
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::connection::{ConnectionHandle, ConnectionSupervisor};
use super::settings::Checked;
use super::state::{ConnectionKind, StateTracker};
use super::{cause, published_lapin, topology};

/// Questions under way at a time; further ones wait for one of them.
const MAX_QUESTIONS: usize = 16;
/// Channels that are tried for one verdict.
pub(super) const MAX_TRIES: usize = 8;
/// Longest wait for the broker's verdict.
const VERDICT_TIME: Duration = Duration::from_secs(2);
/// Verdicts on permissions that are remembered.
const MAX_REMEMBERED: NonZeroUsize = NonZeroUsize::new(4096).unwrap();
/// Time for which a refusal is remembered: an operator may give the permission at any time.
const REFUSED_TIME: Duration = Duration::from_secs(1);
/// Errors that questions may cost at once, and the time in which one more is earned. Beyond that no question is sent.
const MAX_ERRORS: u32 = 32;
const ERROR_PERIOD: Duration = Duration::from_millis(20);

/// Questions to the broker, and its verdicts. The connection is opened for the first question.
pub(super) struct Questions {
    settings: Arc<Checked>,
    state: Arc<StateTracker>,
    supervisors: TaskTracker,
    closing: CancellationToken,
    /// The connection, and since when there is one to be.
    connection: OnceLock<(ConnectionHandle, Instant)>,
    slots: Semaphore,
    /// Channels in transaction mode that are not in use.
    idle: Mutex<Vec<Channel>>,
    verdicts: Mutex<LruCache<Permission, Verdict>>,
    /// Time at which every error that questions have cost is earned again.
    even: Mutex<Instant>,
}

/// Key of a permission to publish: the exchange, and on a topic exchange the topic.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Permission {
    exchange: ShortString,
    topic: ShortString,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Verdict {
    Permitted,
    /// In the broker's words, at this time.
    Refused(String, Instant),
}

impl Verdict {
    fn refusal(self) -> Option<String> {
        match self {
            Self::Permitted => None,
            Self::Refused(words, _) => Some(words),
        }
    }
}

impl Permission {
    fn new(exchange: &ShortString, address: &ShortString) -> Self {
        let topic = if exchange.as_str().is_empty() { ShortString::default() } else { address.clone() };
        Self { exchange: exchange.clone(), topic }
    }
}

impl Questions {
    pub(super) fn new(
        settings: Arc<Checked>,
        state: Arc<StateTracker>,
        supervisors: TaskTracker,
        closing: CancellationToken,
    ) -> Self {
        Self {
            even: Mutex::new(settings.clock.now()),
            settings,
            state,
            supervisors,
            closing,
            connection: OnceLock::new(),
            slots: Semaphore::new(MAX_QUESTIONS),
            idle: Mutex::default(),
            verdicts: Mutex::new(LruCache::new(MAX_REMEMBERED)),
        }
    }

    /// Returns the broker's words for refusing a publish; `None` if it does not refuse, or no question may be sent now.
    pub(super) async fn refusal(&self, exchange: &ShortString, address: &ShortString) -> Option<String> {
        let permission = Permission::new(exchange, address);
        if let Some(verdict) = self.remembered(&permission) {
            return verdict.refusal();
        }
        if !self.may_ask() {
            return None;
        }
        let verdict = self.ask(permission, exchange, address);
        tokio::time::timeout(VERDICT_TIME, verdict).await.ok()??.refusal()
    }

    /// Whether the broker permitted a publish, and refused none since.
    pub(super) fn is_permitted(&self, exchange: &ShortString, address: &ShortString) -> bool {
        self.remembered(&Permission::new(exchange, address)) == Some(Verdict::Permitted)
    }

    /// Forgets the permission of a publish that the broker has refused since.
    pub(super) fn forget(&self, exchange: &ShortString, address: &ShortString) {
        self.verdicts.lock().pop(&Permission::new(exchange, address));
        self.give_up_channels();
    }

    /// Forgets every verdict, after one of many publishes was refused.
    pub(super) fn forget_all(&self) {
        self.verdicts.lock().clear();
        self.give_up_channels();
    }

    /// The broker keeps what a user may do for as long as a channel lasts.
    fn give_up_channels(&self) {
        self.idle.lock().clear();
    }

    /// Whether a queue of this name exists; `None` if the broker does not respond, or no question may be sent now.
    pub(super) async fn has_queue(&self, name: &str) -> Option<bool> {
        let name = ShortString::try_new(name).ok()?;
        let _slot = self.slots.try_acquire().ok().filter(|_| self.may_ask())?;
        let asking = async {
            let found = topology::find_queue(&*self.connection().await?, &name).await;
            if found.is_err() {
                self.spend();
            }
            topology::is_there(found)
        };
        tokio::time::timeout(VERDICT_TIME, asking).await.ok()?
    }

    /// The client keeps no reason of a channel that is closed between two requests. So any other error is tried
    /// again.
    async fn ask(&self, permission: Permission, exchange: &ShortString, address: &ShortString) -> Option<Verdict> {
        let _slot = self.slots.acquire().await.ok()?;
        // Another call may have got a verdict meanwhile.
        if let Some(verdict) = self.remembered(&permission) {
            return Some(verdict);
        }
        for _ in 0..MAX_TRIES {
            let channel = self.channel().await?;
            let verdict = match attempt(&channel, exchange.clone(), address.clone()).await {
                Ok(()) => {
                    self.idle.lock().push(channel);
                    Some(Verdict::Permitted)
                }
                Err(error) => {
                    self.spend();
                    cause::refusal(&error).map(|words| Verdict::Refused(words, self.settings.clock.now()))
                }
            };
            if let Some(verdict) = verdict {
                self.verdicts.lock().put(permission, verdict.clone());
                return Some(verdict);
            }
        }
        None
    }

    fn remembered(&self, permission: &Permission) -> Option<Verdict> {
        let verdict = self.verdicts.lock().get(permission).cloned()?;
        let is_old = |at: Instant| self.settings.clock.since(at) > REFUSED_TIME;
        if matches!(verdict, Verdict::Refused(_, at) if is_old(at)) { None } else { Some(verdict) }
    }

    /// Whether a question that may cost an error may be sent. A broker that blocks publishers does not respond.
    fn may_ask(&self) -> bool {
        let debt = self.even.lock().saturating_duration_since(self.settings.clock.now());
        debt < ERROR_PERIOD * MAX_ERRORS && !self.state.is_blocked()
    }

    /// Notes that a question has cost an error.
    fn spend(&self) {
        let mut even = self.even.lock();
        *even = (*even).max(self.settings.clock.now()) + ERROR_PERIOD;
    }

    /// A channel in transaction mode: one that is open, or a new one.
    async fn channel(&self) -> Option<Channel> {
        loop {
            let idle = self.idle.lock().pop();
            match idle {
                Some(channel) if channel.status().connected() => return Some(channel),
                Some(_) => {}
                None => break,
            }
        }
        let channel = self.connection().await?.create_channel().await.ok()?;
        channel.tx_select().await.ok()?;
        Some(channel)
    }

    /// The connection for questions. Its loss harms no call, so it counts nothing in the state that the bus shows, and one
    /// that the broker does not grant is waited for only at first.
    async fn connection(&self) -> Option<Arc<Connection>> {
        let (handle, since) = self.connection.get_or_init(|| {
            let (settings, closing) = (Arc::clone(&self.settings), self.closing.clone());
            let (supervisor, handle) =
                ConnectionSupervisor::new(ConnectionKind::Ask, settings, Arc::default(), closing);
            self.supervisors.spawn(supervisor.run());
            (handle, self.settings.clock.now())
        });
        if !handle.is_open() && self.settings.clock.since(*since) > VERDICT_TIME {
            return None;
        }
        let connection = handle.open().await.ok()?;
        handle.carried();
        Some(connection)
    }
}

/// Publishes, and takes it back.
pub(super) async fn attempt(channel: &Channel, exchange: ShortString, address: ShortString) -> Result<(), Error> {
    let options = BasicPublishOptions::default();
    drop(channel.basic_publish(exchange, address, options, &[], BasicProperties::default()).await?);
    let taken_back = channel.tx_rollback().await;
    // The broker may have closed the channel over the message before this sent the rollback.
    taken_back.map_err(|error| published_lapin::error_of(channel).unwrap_or(error))
}
