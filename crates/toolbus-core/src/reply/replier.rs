//! The end of a reply: delivered while its caller can still use it, else dead-lettered; and of a request without one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio_util::sync::CancellationToken;
use toolbus_protocol::Properties;

use super::build::Reply;
use super::deliver::{DEAD_LETTER_TIME, DeadLetter, DeadLettered, NotDelivered, Replies};
use crate::Clock;
use crate::bus::Delivery;
use crate::reply_address::{Address, AddressRefused, ReplyRules};
use crate::telemetry::{DeadReason, Telemetry};
use crate::text::shown;
use crate::throttle::Throttle;

/// Time beyond a call's deadline in which its reply may still be delivered.
pub(crate) const REPLY_GRACE: Duration = Duration::from_secs(10);
/// Time until a reply is tried anew, and its absence logged, while the broker is away.
const REPLY_PERIOD: Duration = Duration::from_secs(60);
/// Time that each publish still has once the time to finish calls is over.
const CLOSING_GRACE: Duration = Duration::from_secs(5);

/// Address of a reply, and the fields of its call in the log.
pub(crate) struct ReplyPath<'a> {
    pub(crate) address: &'a Address,
    /// The queue that the request came from.
    pub(crate) queue: &'a str,
    pub(crate) call_id: &'a str,
    pub(crate) trace_id: Option<&'a str>,
    /// Until when its caller waits.
    pub(crate) deadline: Instant,
}

/// Delivers replies and dead letters, and writes their failures to the log.
pub(crate) struct Replier {
    replies: Replies,
    telemetry: Arc<dyn Telemetry>,
    clock: Clock,
    /// Cancelled when the time to finish calls is over.
    shutdown: CancellationToken,
    log: ReplyLog,
}

/// Lines that may repeat for as long as a state lasts, or as often as a caller likes.
#[derive(Default)]
struct ReplyLog {
    requests: Throttle,
    undeliverable: Throttle,
    unconfirmed: Throttle,
    not_dead_lettered: Throttle,
    no_queue: Throttle,
    broker_away: Throttle,
}

impl Replier {
    pub(crate) fn new(
        replies: Replies,
        telemetry: Arc<dyn Telemetry>,
        clock: Clock,
        shutdown: CancellationToken,
    ) -> Self {
        Self { replies, telemetry, clock, shutdown, log: ReplyLog::default() }
    }

    pub(crate) fn rules(&self) -> &ReplyRules {
        self.replies.rules()
    }

    /// Returns the reason for which no reply would arrive at an address, as far as the broker reports it.
    pub(crate) async fn refusal(&self, address: &Address) -> Option<AddressRefused> {
        self.replies.refusal(address).await
    }

    /// Publishes what may be lost, such as progress.
    pub(crate) async fn publish_once(&self, address: &Address, properties: Properties, body: Bytes) {
        self.replies.publish_once(address, properties, body).await;
    }

    /// Delivers or dead-letters a reply; whether its request is done with. Otherwise that goes back to its queue.
    pub(crate) async fn reply(&self, path: &ReplyPath<'_>, reply: &Reply) -> bool {
        let delivered = self.deliver(path, reply).await;
        self.is_over(path, reply, delivered).await
    }

    /// Whether a request is done with: its reply was delivered or dead-lettered. Otherwise it goes back to its queue.
    pub(crate) async fn is_over(
        &self,
        path: &ReplyPath<'_>,
        reply: &Reply,
        delivered: Result<(), NotDelivered>,
    ) -> bool {
        match delivered {
            Ok(()) => true,
            Err(NotDelivered::Undeliverable(reason)) => self.dead_letter_reply(path, reply, &reason).await,
            Err(reason @ (NotDelivered::BrokerAway | NotDelivered::Closed)) => {
                if let Some(left_out) = self.log.unconfirmed.due() {
                    tracing::warn!(
                        call_id = %shown(path.call_id),
                        trace_id = path.trace_id,
                        %reason,
                        left_out,
                        "a reply was not confirmed; its request was requeued"
                    );
                }
                false
            }
        }
    }

    /// Publishes a reply until the broker confirms, refuses or finally rejects it, or until shutdown. A broker that is
    /// away is waited for: putting the request back would use up its deliveries, and another daemon would run it again.
    pub(crate) async fn deliver(&self, path: &ReplyPath<'_>, reply: &Reply) -> Result<(), NotDelivered> {
        let trying = async {
            let mut until = path.deadline.max(self.clock.now()) + REPLY_GRACE;
            loop {
                match self.replies.deliver(path.address, reply, until.into()).await {
                    Err(NotDelivered::BrokerAway) => {}
                    ended => return ended,
                }
                if let Some(left_out) = self.log.broker_away.due() {
                    tracing::warn!(
                        call_id = %shown(path.call_id),
                        trace_id = path.trace_id,
                        left_out,
                        "the broker does not confirm a reply; it is published again"
                    );
                }
                until = self.clock.now() + REPLY_PERIOD;
            }
        };
        tokio::select! {
            biased;
            ended = trying => ended,
            () = self.closing() => Err(NotDelivered::BrokerAway),
        }
    }

    /// Over when the time to finish calls is over, and the last publishes have had theirs.
    async fn closing(&self) {
        self.shutdown.cancelled().await;
        tokio::time::sleep(CLOSING_GRACE).await;
    }

    /// Dead-letters a reply that no queue takes; false when its request must be kept.
    async fn dead_letter_reply(&self, path: &ReplyPath<'_>, reply: &Reply, reason: &str) -> bool {
        let address = &path.address.written;
        let letter = DeadLetter {
            queue: path.queue,
            topic: None,
            reason: DeadReason::Undeliverable,
            reply_to: address,
            properties: Properties::clone(&reply.properties),
            body: reply.body.clone(),
        };
        let outcome = self.dead_letter(letter).await;
        if outcome == DeadLettered::Kept
            && let Some(left_out) = self.log.undeliverable.due()
        {
            tracing::warn!(
                call_id = %shown(path.call_id),
                reply_to = %shown(address),
                trace_id = path.trace_id,
                reason,
                left_out,
                "dead-lettered a reply that cannot be delivered"
            );
        }
        outcome.is_over()
    }

    /// Dead-letters a request that can neither be run nor get a reply.
    pub(crate) async fn dead_letter_request(&self, delivery: Delivery, reason: DeadReason, detail: &str) {
        if delivery.settle.lost().is_some_and(CancellationToken::is_cancelled) {
            return delivery.settle.requeue().await;
        }
        let Delivery { properties, body, queue, routing_key, settle, .. } = delivery;
        let reply_to = properties.reply_to.clone().unwrap_or_default();
        let message_id = properties.message_id.clone();
        let properties = Arc::unwrap_or_clone(properties);
        let topic = Some(&*routing_key);
        let letter = DeadLetter { queue: &queue, topic, reason, reply_to: &reply_to, properties, body };
        let outcome = self.dead_letter(letter).await;
        if outcome == DeadLettered::Kept
            && let Some(left_out) = self.log.requests.due()
        {
            tracing::warn!(
                %queue,
                message_id = message_id.as_deref().map(shown),
                reply_to = %shown(&reply_to),
                reason = reason.as_str(),
                detail,
                left_out,
                "dead-lettered a request"
            );
        }
        if outcome.is_over() {
            settle.acknowledge().await;
        } else {
            settle.requeue().await;
        }
    }

    /// Publishes a dead letter, counts it once it is confirmed, and otherwise logs why it is not.
    pub(crate) async fn dead_letter(&self, letter: DeadLetter<'_>) -> DeadLettered {
        let DeadLetter { queue, reason, .. } = letter;
        let outcome = tokio::select! {
            biased;
            outcome = self.replies.dead_letter(letter) => outcome,
            () = self.closing() => DeadLettered::NotConfirmed("the daemon shuts down".to_owned()),
        };
        let reason_of = reason.as_str();
        match &outcome {
            DeadLettered::Kept => self.telemetry.dead_lettered(queue, reason),
            DeadLettered::NoQueue => {
                if let Some(left_out) = self.log.no_queue.due() {
                    let reason = reason_of;
                    tracing::error!(queue, reason, left_out, "dropped a dead letter: there is no queue for it");
                }
            }
            DeadLettered::Refused(error) => {
                if let Some(left_out) = self.log.not_dead_lettered.due() {
                    tracing::error!(
                        queue,
                        reason = reason_of,
                        error,
                        left_out,
                        "the broker refuses a dead letter; its request was requeued"
                    );
                }
                self.pause().await;
            }
            DeadLettered::NotConfirmed(error) => {
                if let Some(left_out) = self.log.not_dead_lettered.due() {
                    tracing::warn!(
                        queue,
                        reason = reason_of,
                        error,
                        left_out,
                        "a dead letter was not confirmed; its request was requeued"
                    );
                }
            }
        }
        outcome
    }

    /// Waits before a request goes back to its queue that would fail again at once, unless the time to finish calls is
    /// over.
    pub(crate) async fn pause(&self) {
        let _ = tokio::time::timeout(DEAD_LETTER_TIME, self.shutdown.cancelled()).await;
    }
}
