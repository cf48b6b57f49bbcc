//! Delivery of replies to the broker, with that of dead letters.
//!
//! Until an address has taken a reply, the daemon checks with the broker that it may publish there. A failed reply
//! shows that a queue may be missing; only then is the queue checked.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use lru::LruCache;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::Instant;
use toolbus_protocol::{Properties, bounded, header};

use crate::Clock;
use crate::bus::{Bus, Outgoing, PublishError, Routing, Target};
use crate::reply::Reply;
use crate::reply_address::{Address, AddressRefused, ReplyRules};
use crate::telemetry::DeadReason;

/// Addresses whose working route is remembered, and addresses that are remembered because they had none.
const MAX_REMEMBERED: NonZeroUsize = NonZeroUsize::new(4096).unwrap();
/// First wait before a reply is published again.
const FIRST_RETRY: Duration = Duration::from_millis(20);
/// Longest wait before a reply is published again.
const LAST_RETRY: Duration = Duration::from_secs(1);
/// Rejections of a reply until it is given up: with the waits between them, some half a minute, in which a queue of a
/// cluster has a new leader.
const MAX_REJECTIONS: u32 = 32;
/// Longest wait for the confirm of a dead letter.
pub(crate) const DEAD_LETTER_TIME: Duration = Duration::from_secs(10);
/// Longest wait for the broker to take what may be lost.
const BEST_EFFORT_TIME: Duration = Duration::from_secs(1);
/// Headers that a dead letter takes over from its request, in bytes: what surely fits into one frame.
const MAX_COPIED_HEADERS: usize = 32 * 1024;

/// Reason for which a reply did not arrive.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotDelivered {
    /// No queue took it on any route, or one rejected it again and again.
    #[error("{0}")]
    Undeliverable(String),
    /// The broker could not be reached in time.
    #[error("the broker did not confirm it in time")]
    BrokerAway,
    /// The bus has been closed. Repeating is of no use.
    #[error("the bus is closed")]
    Closed,
}

/// A message that is kept because nothing else can be done with it.
pub(crate) struct DeadLetter<'a> {
    /// The queue that it belongs to.
    pub(crate) queue: &'a str,
    /// The topic on which a request came.
    pub(crate) topic: Option<&'a str>,
    pub(crate) reason: DeadReason,
    pub(crate) reply_to: &'a str,
    pub(crate) properties: Properties,
    pub(crate) body: Bytes,
}

/// Outcome of publishing a dead letter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DeadLettered {
    /// A queue took it.
    Kept,
    /// There is no queue for it.
    NoQueue,
    /// The broker does not take dead letters from the daemon.
    Refused(String),
    /// The broker did not confirm it in time.
    NotConfirmed(String),
}

/// Publishes replies, remembering which route worked for which address.
pub(crate) struct Replies {
    bus: Arc<dyn Bus>,
    rules: ReplyRules,
    proven: Mutex<LruCache<Target, Target>>,
    /// Addresses at which no queue took the last reply.
    failed: Mutex<LruCache<Target, ()>>,
    /// Slots for rejected replies that wait to be published again. A full queue is its owner's doing, and each reply
    /// that waits for it keeps its request unsettled: were all allowed to, one caller could stop the daemon for all
    /// others.
    slots: Semaphore,
}

/// Number of times that the broker rejected one reply, and its slot among those that wait.
struct Rejections<'a> {
    slots: &'a Semaphore,
    slot: Option<SemaphorePermit<'a>>,
    count: u32,
}

impl Rejections<'_> {
    /// Counts one more; whether the reply may wait and be published again.
    fn may_wait(&mut self) -> bool {
        self.count += 1;
        if self.slot.is_none() {
            self.slot = self.slots.try_acquire().ok();
        }
        self.slot.is_some() && self.count < MAX_REJECTIONS
    }
}

impl DeadLettered {
    /// Whether nothing more can be done for the message.
    pub(crate) const fn is_over(&self) -> bool {
        matches!(self, Self::Kept | Self::NoQueue)
    }
}

impl Replies {
    /// At most `slots` replies that the broker rejects wait at a time; the others are undeliverable at once.
    pub(crate) fn new(bus: Arc<dyn Bus>, rules: ReplyRules, slots: usize) -> Self {
        let slots = Semaphore::new(slots.min(Semaphore::MAX_PERMITS));
        let (proven, failed) = (LruCache::new(MAX_REMEMBERED), LruCache::new(MAX_REMEMBERED));
        Self { bus, rules, proven: Mutex::new(proven), failed: Mutex::new(failed), slots }
    }

    pub(crate) fn rules(&self) -> &ReplyRules {
        &self.rules
    }

    /// Returns the reason for which no reply would arrive at an address, as far as the broker reports it. One that took
    /// a reply is not checked.
    pub(crate) async fn refusal(&self, address: &Address) -> Option<AddressRefused> {
        // RabbitMQ delivers to an address of its direct reply-to at once, also what is only tried in a transaction.
        if !address.mandatory || self.proven.lock().contains(&address.first) {
            return None;
        }
        let is_suspect = self.failed.lock().contains(&address.first);
        let mut refusal = self.refusal_of(&address.first, is_suspect).await?;
        if let Some(second) = &address.second {
            refusal = self.refusal_of(second, true).await?;
        }
        Some(if address.is_doubtful && refusal == AddressRefused::NoQueue { AddressRefused::Nowhere } else { refusal })
    }

    /// The queue is checked only if there is a reason: the check of an exclusive queue of another connection is an
    /// error.
    async fn refusal_of(&self, target: &Target, is_suspect: bool) -> Option<AddressRefused> {
        match target {
            Target::Queue(name) if is_suspect && self.bus.has_queue(name).await == Some(false) => {
                Some(AddressRefused::NoQueue)
            }
            _ => self.bus.refusal(target).await.map(AddressRefused::Forbidden),
        }
    }

    /// Publishes a reply until the broker confirms it, at most until `until`, and a few times if it is rejected.
    pub(crate) async fn deliver(&self, address: &Address, reply: &Reply, until: Instant) -> Result<(), NotDelivered> {
        let mut rejections = Rejections { slots: &self.slots, slot: None, count: 0 };
        let again = |error: &PublishError| match error {
            PublishError::Unavailable(_) => true,
            PublishError::Rejected(_) => rejections.may_wait(),
            PublishError::Refused(_) | PublishError::Closed => false,
        };
        retry(until, again, || self.attempt(address, reply)).await.map_err(|error| match error {
            PublishError::Refused(reason) | PublishError::Rejected(reason) => NotDelivered::Undeliverable(reason),
            PublishError::Unavailable(_) => NotDelivered::BrokerAway,
            PublishError::Closed => NotDelivered::Closed,
        })
    }

    /// Publishes what may be lost: once, by the route that is known to work.
    pub(crate) async fn publish_once(&self, address: &Address, properties: Properties, body: Bytes) {
        let remembered = self.proven.lock().get(&address.first).cloned();
        let proven = remembered.is_some();
        let target = remembered.unwrap_or_else(|| address.first.clone());
        let message = Outgoing { target, mandatory: false, proven, properties: properties.into(), body };
        let _ = tokio::time::timeout(BEST_EFFORT_TIME, self.bus.publish(&message)).await;
    }

    /// Tries each route once: the one that worked before, or else all in order.
    async fn attempt(&self, address: &Address, reply: &Reply) -> Result<(), PublishError> {
        let mut message = Outgoing {
            target: address.first.clone(),
            mandatory: address.mandatory,
            proven: false,
            properties: Arc::clone(&reply.properties),
            body: reply.body.clone(),
        };
        let remembered = self.proven.lock().get(&address.first).cloned();
        if let Some(target) = remembered {
            (message.target, message.proven) = (target, true);
            let tried = self.bus.publish(&message).await;
            match tried {
                Ok(Routing::Routed) => return Ok(()),
                // That closes no channel, so the route stays proven.
                Err(PublishError::Rejected(_)) => return tried.map(drop),
                _ => {}
            }
            // A route that worked and fails now may have lost its permission: it has to prove itself again, apart
            // from the channel that all others share.
            self.proven.lock().pop(&address.first);
            if let Err(error @ (PublishError::Unavailable(_) | PublishError::Closed)) = tried {
                return Err(error);
            }
            message.proven = false;
        }
        let mut refusal = match address.is_doubtful {
            true => AddressRefused::Nowhere.to_string(),
            false => "no queue takes messages for it".to_owned(),
        };
        for target in [Some(&address.first), address.second.as_ref()].into_iter().flatten() {
            message.target = target.clone();
            match self.bus.publish(&message).await {
                Ok(Routing::Routed) => {
                    self.proven.lock().put(address.first.clone(), message.target);
                    self.failed.lock().pop(&address.first);
                    return Ok(());
                }
                Ok(Routing::Unroutable) => {}
                Err(PublishError::Refused(reason)) => refusal = reason,
                Err(error) => return Err(error),
            }
        }
        self.failed.lock().put(address.first.clone(), ());
        Err(PublishError::Refused(refusal))
    }

    /// Publishes a dead letter under the name of the queue that it belongs to, until the broker confirms it, at most
    /// for [`DEAD_LETTER_TIME`].
    pub(crate) async fn dead_letter(&self, letter: DeadLetter<'_>) -> DeadLettered {
        let DeadLetter { queue, topic, reason, reply_to, mut properties, body } = letter;
        properties.user_id = None;
        keep_headers(&mut properties.headers);
        properties.headers.push((header::DEAD_REASON.to_owned(), reason.as_str().to_owned()));
        properties.headers.push((header::DEAD_REPLY_TO.to_owned(), bounded(reply_to).to_owned()));
        properties.headers.push((header::DEAD_SINCE.to_owned(), Clock::SYSTEM.since_epoch().as_secs().to_string()));
        properties.headers.extend(topic.map(|topic| (header::DEAD_TOPIC.to_owned(), topic.to_owned())));
        // Never proven: a broker that refuses dead letters must not close the channel that all replies share.
        let (target, properties) = (Target::DeadLetter(queue.to_owned()), Arc::new(properties));
        let message = Outgoing { target, mandatory: true, proven: false, properties, body };
        let again = |error: &PublishError| matches!(error, PublishError::Unavailable(_) | PublishError::Rejected(_));
        match retry(Instant::from_std(Clock::SYSTEM.now()) + DEAD_LETTER_TIME, again, || self.bus.publish(&message))
            .await
        {
            Ok(Routing::Routed) => DeadLettered::Kept,
            Ok(Routing::Unroutable) => DeadLettered::NoQueue,
            Err(PublishError::Refused(reason)) => DeadLettered::Refused(reason),
            Err(error) => DeadLettered::NotConfirmed(error.to_string()),
        }
    }
}

/// Tries again, at growing intervals, after what `again` agrees to, at most until `until`.
async fn retry<T, F>(
    until: Instant,
    mut again: impl FnMut(&PublishError) -> bool,
    attempt: impl Fn() -> F,
) -> Result<T, PublishError>
where
    F: Future<Output = Result<T, PublishError>>,
{
    let mut wait = FIRST_RETRY;
    loop {
        match tokio::time::timeout_at(until, attempt()).await {
            Ok(Err(error)) if again(&error) && Instant::from_std(Clock::SYSTEM.now()) + wait < until => {
                tokio::time::sleep(wait).await;
                wait = (wait * 2).min(LAST_RETRY);
            }
            Ok(ended) => return ended,
            Err(_) => return Err(PublishError::Unavailable("no confirm in time".to_owned())),
        }
    }
}

/// Keeps the first headers that fit into [`MAX_COPIED_HEADERS`] together.
fn keep_headers(headers: &mut Vec<(String, String)>) {
    let mut left = MAX_COPIED_HEADERS;
    headers.retain(|(name, value)| match left.checked_sub(name.len() + value.len()) {
        Some(rest) => {
            left = rest;
            true
        }
        None => false,
    });
}
