//! Where an answer goes, and getting it there.
//!
//! An answer is a message with our authority, so its address is checked before the tool runs.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use lru::LruCache;
use toolbus_protocol::{MAX_SHORT_STRING, Properties, ReplyTo, header, topic};

use crate::answer::Answer;
use crate::bus::{Bus, Outgoing, PublishError, Routing, Target};
use crate::telemetry::DeadReason;

/// Addresses whose working route is remembered.
const MAX_REMEMBERED: NonZeroUsize = NonZeroUsize::new(4096).unwrap();
/// First wait before an answer is published again.
const FIRST_RETRY: Duration = Duration::from_millis(20);
/// Longest wait before an answer is published again.
const LAST_RETRY: Duration = Duration::from_secs(1);
/// Longest wait for the confirm of a dead letter.
const DEAD_LETTER_TIME: Duration = Duration::from_secs(10);

/// Which addresses answers may go to.
#[derive(Debug, Clone)]
pub struct ReplyRules {
    /// Patterns of the topics that answers may go to.
    pub reply_topics: Vec<String>,
    /// Topics on which this daemon takes requests.
    pub request_topics: Vec<String>,
    /// Prefix of this daemon's own queues.
    pub queue_prefix: String,
    /// Topic for answers to requests without an address.
    pub default_topic: String,
}

/// A checked address: the routes to try, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Address {
    first: Target,
    second: Option<Target>,
    mandatory: bool,
    /// As the sender wrote it; empty when absent.
    pub(crate) written: String,
}

/// An address that no answer may go to.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AddressRefused {
    #[error("it is a topic for requests")]
    RequestTopic,
    #[error("it is a queue of a daemon or an agent")]
    OwnedQueue,
    #[error("it is longer than {MAX_SHORT_STRING} bytes")]
    TooLong,
}

/// Why an answer did not arrive.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotDelivered {
    /// No queue took it on any route. Repeating is of no use.
    #[error("{0}")]
    Undeliverable(String),
    /// The broker could not be asked in time.
    #[error("the broker did not confirm it in time")]
    BrokerAway,
}

/// Publishes answers, remembering which route worked for which address.
pub(crate) struct Replies {
    bus: Arc<dyn Bus>,
    rules: ReplyRules,
    proven: Mutex<LruCache<Target, Target>>,
}

impl ReplyRules {
    /// Reads an address and decides which routes it has.
    pub(crate) fn check(&self, reply_to: &str, message_type: &str) -> Result<Address, AddressRefused> {
        let address = |first: Target, second: Option<Target>, mandatory| Address {
            first,
            second,
            mandatory,
            written: reply_to.to_owned(),
        };
        let topic = |name: &str| self.is_reply_topic(name).then(|| Target::Topic(name.to_owned()));
        let queue = |name: &str| Target::Queue(name.to_owned());
        Ok(match ReplyTo::read(reply_to, message_type) {
            ReplyTo::Absent => address(Target::Topic(self.default_topic.clone()), None, true),
            // Never mandatory: the broker returns such a message although it delivers it.
            ReplyTo::Direct(name) => address(queue(checked_length(name)?), None, false),
            ReplyTo::TopicFirst(name) => {
                self.check_name(name)?;
                match topic(name) {
                    Some(topic) => address(topic, Some(queue(name)), true),
                    None => address(queue(name), None, true),
                }
            }
            ReplyTo::QueueFirst(name) => {
                self.check_name(name)?;
                address(queue(name), topic(name), true)
            }
        })
    }

    fn check_name(&self, name: &str) -> Result<(), AddressRefused> {
        checked_length(name)?;
        let requests = self.request_topics.iter().map(String::as_str).chain(topic::REQUEST_TOPICS);
        if requests.into_iter().any(|pattern| topic::matches(pattern, name)) {
            return Err(AddressRefused::RequestTopic);
        }
        let owned = |prefix: &str| name.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('.'));
        if owned(&self.queue_prefix) || owned("toolbus") || owned("rockbot") {
            return Err(AddressRefused::OwnedQueue);
        }
        Ok(())
    }

    fn is_reply_topic(&self, name: &str) -> bool {
        self.reply_topics.iter().any(|pattern| topic::matches(pattern, name))
    }
}

fn checked_length(name: &str) -> Result<&str, AddressRefused> {
    if name.len() > MAX_SHORT_STRING { Err(AddressRefused::TooLong) } else { Ok(name) }
}

impl Replies {
    pub(crate) fn new(bus: Arc<dyn Bus>, rules: ReplyRules) -> Self {
        Self { bus, rules, proven: Mutex::new(LruCache::new(MAX_REMEMBERED)) }
    }

    pub(crate) fn rules(&self) -> &ReplyRules {
        &self.rules
    }

    /// Publishes an answer until the broker confirms it, at most until `until`.
    pub(crate) async fn deliver(&self, address: &Address, answer: &Answer, until: Instant) -> Result<(), NotDelivered> {
        let mut wait = FIRST_RETRY;
        loop {
            match tokio::time::timeout_at(until.into(), self.attempt(address, answer)).await {
                Ok(Err(PublishError::Unavailable(_))) if Instant::now() + wait < until => {
                    tokio::time::sleep(wait).await;
                    wait = (wait * 2).min(LAST_RETRY);
                }
                Ok(Ok(())) => return Ok(()),
                Ok(Err(PublishError::Refused(reason))) => return Err(NotDelivered::Undeliverable(reason)),
                Ok(Err(PublishError::Unavailable(_) | PublishError::Closed)) | Err(_) => {
                    return Err(NotDelivered::BrokerAway);
                }
            }
        }
    }

    /// Tries each route once: the one that worked before, or else all in order.
    async fn attempt(&self, address: &Address, answer: &Answer) -> Result<(), PublishError> {
        let mut message = Outgoing {
            target: address.first.clone(),
            mandatory: address.mandatory,
            proven: false,
            properties: answer.properties.clone(),
            body: answer.body.clone(),
        };
        let remembered = self.proven().get(&address.first).cloned();
        if let Some(target) = remembered {
            (message.target, message.proven) = (target, true);
            let tried = self.bus.publish(&message).await;
            if tried == Ok(Routing::Routed) {
                return Ok(());
            }
            // A route that worked and fails now may have lost its permission: it has to prove itself again, apart
            // from the channel that all others share.
            self.proven().pop(&address.first);
            if let Err(error @ (PublishError::Unavailable(_) | PublishError::Closed)) = tried {
                return Err(error);
            }
            message.proven = false;
        }
        let mut refusal = "no queue takes messages for it".to_owned();
        for target in [Some(&address.first), address.second.as_ref()].into_iter().flatten() {
            message.target = target.clone();
            match self.bus.publish(&message).await {
                Ok(Routing::Routed) => {
                    self.proven().put(address.first.clone(), message.target);
                    return Ok(());
                }
                Ok(Routing::Unroutable) => {}
                Err(PublishError::Refused(reason)) => refusal = reason,
                Err(error) => return Err(error),
            }
        }
        Err(PublishError::Refused(refusal))
    }

    /// Publishes a dead letter under the name of the queue that it belongs to; false when it was not confirmed.
    pub(crate) async fn dead_letter(
        &self,
        queue: &str,
        reason: DeadReason,
        reply_to: &str,
        mut properties: Properties,
        body: bytes::Bytes,
    ) -> bool {
        properties.user_id = None;
        properties.headers.push((header::DEAD_REASON.to_owned(), reason.as_str().to_owned()));
        properties.headers.push((header::DEAD_REPLY_TO.to_owned(), reply_to.to_owned()));
        let message =
            Outgoing { target: Target::DeadLetter(queue.to_owned()), mandatory: true, proven: true, properties, body };
        match tokio::time::timeout(DEAD_LETTER_TIME, self.bus.publish(&message)).await {
            Ok(Ok(Routing::Routed)) => true,
            Ok(Ok(Routing::Unroutable)) => {
                tracing::error!(queue, reason = reason.as_str(), "dropped a dead letter: there is no queue for it");
                true
            }
            Ok(Err(_)) | Err(_) => false,
        }
    }

    fn proven(&self) -> MutexGuard<'_, LruCache<Target, Target>> {
        self.proven.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
