//! The end of a call: its answer leaves, or is put aside, and its delivery is settled.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::join_all;
use toolbus_protocol::{Outcome, Properties};

use super::call::{Attached, Call};
use super::recording::Known;
use super::{Abort, Dispatcher, REPLY_GRACE, cancelled};
use crate::answer::Reply;
use crate::audit::{AuditEvent, AuditRecord, AuditedCall};
use crate::bus::Delivery;
use crate::failure::Cause;
use crate::gates::breaker::{BackendState, BreakerChange, Passage, backend_state};
use crate::reply::{Buried, DEAD_LETTER_TIME, NotDelivered};
use crate::request::{Address, AddressRefused};
use crate::request_key::LocalIdentity;
use crate::telemetry::{CallEnd, DeadReason};
use crate::text::shown;
use crate::tool::{Effect, ToolOutput};

/// Time until an answer is tried anew, and its absence logged, while the broker is away.
const REPLY_PERIOD: Duration = Duration::from_secs(60);
/// Time that each publish still has once the time to finish calls is over.
const CLOSING_GRACE: Duration = Duration::from_secs(5);

/// Where an answer goes, and what the log says of its call.
pub(crate) struct ReplyPath<'a> {
    pub(crate) address: &'a Address,
    /// The queue that the request came from.
    pub(crate) queue: &'a str,
    pub(crate) call_id: &'a str,
    pub(crate) trace_id: Option<&'a str>,
    /// Until when its caller waits.
    pub(crate) deadline: Instant,
}

impl<'a> ReplyPath<'a> {
    fn of(call: &'a Call) -> Self {
        Self {
            address: &call.request.address,
            queue: &call.queue,
            call_id: &call.request.call_id,
            trace_id: call.span.trace_id(),
            deadline: call.deadline,
        }
    }
}

impl Dispatcher {
    /// Notes at its breaker how a tool did, and tells if that trips or closes it.
    pub(super) fn note_breaker(&self, call: &Call, passage: Passage<'_>, result: &Result<ToolOutput, Abort>) {
        let Some(tool) = &call.tool else { return };
        let budgets = self.parts.settings.budgets;
        let granted = tool.timeout.unwrap_or(budgets.default).min(budgets.max);
        let had_its_time = call.ran.is_some_and(|ran| ran >= granted / 2);
        let backend = match result {
            Ok(_) => BackendState::Works,
            Err(Abort::Failed(failure)) => backend_state(failure.cause, tool, had_its_time),
            Err(Abort::Requeued | Abort::Ignored(_) | Abort::Known(_)) => BackendState::Unknown,
        };
        match passage.ended(tool, backend) {
            Some(BreakerChange::Tripped { name, failures, pause }) => {
                let next_trial_ms = pause.as_millis();
                tracing::warn!(
                    name = &*name,
                    failures,
                    next_trial_ms,
                    "breaker: fails again and again, not called for now"
                );
            }
            Some(BreakerChange::Closed { name, open_for }) => {
                tracing::info!(name = &*name, open_ms = open_for.as_millis(), "breaker: works again");
            }
            None => {}
        }
    }

    /// Step 12, reply, and step 13, acknowledge: in this order, always.
    pub(super) async fn send(&self, call: Box<Call>, answer: Arc<Reply>) {
        let (_, attached) = self.send_one(call, &answer).await;
        self.send_to_attached(attached, &answer).await;
    }

    /// Gives duplicates the answer of the call that they attached to: each recipient once.
    async fn send_to_attached(&self, attached: Vec<Attached>, answer: &Arc<Reply>) {
        let mut recipients: Vec<(Attached, Vec<Attached>)> = Vec::new();
        for mut call in attached {
            call.replayed = true;
            match recipients.iter_mut().find(|(first, _)| first.slot.is_same_recipient(&call.slot)) {
                Some((_, others)) => others.push(call),
                None => recipients.push((call, Vec::new())),
            }
        }
        join_all(recipients.into_iter().map(|(mut call, others)| async move {
            let mut answer = answer.for_request(&call.request);
            if call.is_redelivered || others.iter().any(|other| other.is_redelivered) {
                match self.answer_of_copy(&mut call, &answer).await {
                    Ok(None) => {}
                    Ok(Some(known)) => answer = known,
                    Err(_) => {
                        for copy in others.into_iter().chain([call]) {
                            copy.settle_unanswered(false).await;
                        }
                        return;
                    }
                }
            }
            // None of them is under way for others.
            call.identity = None;
            let _ = call.publishing(&answer);
            let (settled, _) = self.send_one(call, &answer).await;
            // Not before: the first may have been delivered again, as one of these.
            for other in others {
                other.settle_unanswered(settled).await;
            }
        }))
        .await;
    }

    /// Steps 12 and 13 of one call; gives whether its request is done with, and the duplicates that have attached to it.
    async fn send_one(&self, mut call: Box<Call>, answer: &Arc<Reply>) -> (bool, Vec<Attached>) {
        // First: an effect must not go unrecorded because its answer cannot be delivered.
        self.audit(&call, answer.end, answer.outcome);
        let built = self.clock().now();
        let is_direct = call.direct.is_some();
        let delivered = match call.direct.take() {
            // A client that has gone asks again by its key.
            Some(client) => {
                let _ = client.send(Arc::clone(answer));
                Ok(())
            }
            None => self.deliver(&ReplyPath::of(&call), answer).await,
        };
        let confirmed = self.clock().since(built);
        if !is_direct {
            call.span.published(delivered.is_ok(), confirmed);
        }
        let mut settled = self.is_over(&ReplyPath::of(&call), answer, delivered).await;
        if let Some(identity) = call.identity {
            if settled && (is_direct || call.slot.is_sure()) {
                self.parts.replay.forget(identity.key, &call.slot);
            } else {
                self.parts.replay.answered(identity, &call.slot, Arc::clone(answer));
            }
        }
        let attached = call.slot.close();
        if settled && call.slot.has_come_again() {
            settled = match self.answer_of_copy(&mut call, answer).await {
                Ok(None) => true,
                Ok(Some(known)) => self.reply(&ReplyPath::of(&call), &known).await,
                Err(_) => false,
            };
        }
        call.settle(settled).await;
        call.conclude(Some(answer.end), built, confirmed);
        (settled, attached)
    }

    /// What a redelivery is answered that attached to a call which is refused. Nothing is recorded of a refusal, and another
    /// daemon may have run this copy of the request before. `None`: the refusal is its answer.
    ///
    /// # Errors
    ///
    /// If it goes back to its queue.
    async fn answer_of_copy(&self, call: &mut Call, refusal: &Reply) -> Result<Option<Arc<Reply>>, Abort> {
        if refusal.outcome != Some(Outcome::NotStarted) {
            return Ok(None);
        }
        match self.known(call, true).await {
            None | Some(Known::Free) => Ok(None),
            Some(Known::Answered(answer) | Known::Unknown(answer)) => Ok(Some(answer)),
            Some(Known::Failed(failure)) => {
                let mut answer = self.refusal(call, &failure, true);
                call.trace(&mut answer);
                Ok(Some(Arc::new(answer)))
            }
            Some(Known::Requeued) => Err(Abort::Requeued),
        }
    }

    /// Delivers an answer, or puts it aside; whether its request is done with. Else that goes back to its queue.
    pub(crate) async fn reply(&self, path: &ReplyPath<'_>, answer: &Reply) -> bool {
        let delivered = self.deliver(path, answer).await;
        self.is_over(path, answer, delivered).await
    }

    /// Whether a request is done with: its answer was delivered, or put aside. Else it goes back to its queue.
    async fn is_over(&self, path: &ReplyPath<'_>, answer: &Reply, delivered: Result<(), NotDelivered>) -> bool {
        match delivered {
            Ok(()) => true,
            Err(NotDelivered::Undeliverable(reason)) => self.bury_answer(path, answer, &reason).await,
            Err(reason @ (NotDelivered::BrokerAway | NotDelivered::Closed)) => {
                if let Some(left_out) = self.parts.log.unconfirmed.due() {
                    tracing::warn!(
                        call_id = %shown(path.call_id),
                        trace_id = path.trace_id,
                        %reason,
                        left_out,
                        "an answer was not confirmed; the request goes back to its queue"
                    );
                }
                false
            }
        }
    }

    /// Records a refusal, and a call of a tool that is not read-only. An answer that was given before was recorded then.
    pub(super) fn audit(&self, call: &Call, end: CallEnd, outcome: Option<Outcome>) {
        if call.replayed {
            return;
        }
        let event = match (&call.tool, call.ran) {
            // The tool began, and had nothing to act with: a refusal, too.
            _ if end.cause == Some(Cause::AuthRequired) => AuditEvent::Refused,
            (Some(tool), Some(_)) if tool.effect == Effect::ReadOnly => return,
            (_, Some(_)) => AuditEvent::Called,
            (_, None) => AuditEvent::Refused,
        };
        let request = &call.request;
        let subject = AuditedCall {
            caller: &request.caller,
            tool: call.tool.as_deref(),
            asked: &request.tool_name,
            call_id: &request.call_id,
        };
        let audit = &self.parts.audit;
        let hash = call.arguments.as_ref().and_then(|arguments| audit.hash(arguments));
        audit.record(AuditRecord::new(event, &subject, end, outcome).with_arguments(hash));
    }

    /// Publishes an answer until the broker confirms, refuses or finally rejects it, or until shutdown. A broker that is
    /// away is waited for: putting the request back would use up its deliveries, and another daemon would run it again.
    async fn deliver(&self, path: &ReplyPath<'_>, answer: &Reply) -> Result<(), NotDelivered> {
        let parts = &*self.parts;
        let trying = async {
            let mut until = path.deadline.max(self.clock().now()) + REPLY_GRACE;
            loop {
                match parts.replies.deliver(path.address, answer, until.into()).await {
                    Err(NotDelivered::BrokerAway) => {}
                    ended => return ended,
                }
                if let Some(left_out) = parts.log.broker_away.due() {
                    tracing::warn!(
                        call_id = %shown(path.call_id),
                        trace_id = path.trace_id,
                        left_out,
                        "the broker does not confirm an answer; it is kept and published again"
                    );
                }
                until = self.clock().now() + REPLY_PERIOD;
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
        self.parts.shutdown.cancelled().await;
        tokio::time::sleep(CLOSING_GRACE).await;
    }

    /// Puts an answer that no queue takes aside, so that it is not lost; false when its request must be kept.
    async fn bury_answer(&self, path: &ReplyPath<'_>, answer: &Reply, reason: &str) -> bool {
        let address = &path.address.written;
        let (properties, body) = (Properties::clone(&answer.properties), answer.body.clone());
        let buried = self.dead_letter(path.queue, None, DeadReason::Undeliverable, address, properties, body).await;
        if buried == Buried::Kept
            && let Some(left_out) = self.parts.log.undeliverable.due()
        {
            tracing::warn!(
                call_id = %shown(path.call_id),
                reply_to = %shown(address),
                trace_id = path.trace_id,
                reason,
                left_out,
                "dead-lettered an answer that cannot be delivered"
            );
        }
        buried.is_over()
    }

    /// Puts a request aside that can be neither run nor answered.
    pub(super) async fn bury(&self, delivery: Delivery, reason: DeadReason, detail: &str) {
        let Delivery { properties, body, queue, routing_key, settle, .. } = delivery;
        let reply_to = properties.reply_to.clone().unwrap_or_default();
        let message_id = properties.message_id.clone();
        let properties = Arc::unwrap_or_clone(properties);
        let buried = self.dead_letter(&queue, Some(&*routing_key), reason, &reply_to, properties, body).await;
        if buried == Buried::Kept
            && let Some(left_out) = self.parts.log.requests.due()
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
        if buried.is_over() {
            settle.acknowledge().await;
        } else {
            settle.requeue().await;
        }
    }

    /// Publishes a dead letter, counts it once it is confirmed, and otherwise says why it is not.
    pub(crate) async fn dead_letter(
        &self,
        queue: &str,
        topic: Option<&str>,
        reason: DeadReason,
        reply_to: &str,
        properties: Properties,
        body: Bytes,
    ) -> Buried {
        let parts = &*self.parts;
        let buried = tokio::select! {
            biased;
            buried = parts.replies.dead_letter(queue, topic, reason, reply_to, properties, body) => buried,
            () = self.closing() => Buried::NotConfirmed("the daemon shuts down".to_owned()),
        };
        let reason_of = reason.as_str();
        match &buried {
            Buried::Kept => parts.telemetry.dead_lettered(queue, reason),
            Buried::NoQueue => {
                if let Some(left_out) = parts.log.no_queue.due() {
                    let reason = reason_of;
                    tracing::error!(queue, reason, left_out, "dropped a dead letter: there is no queue for it");
                }
            }
            Buried::Refused(error) => {
                if let Some(left_out) = parts.log.not_buried.due() {
                    tracing::error!(
                        queue,
                        reason = reason_of,
                        error,
                        left_out,
                        "the broker refuses a dead letter; its request goes back to its queue"
                    );
                }
                self.pause().await;
            }
            Buried::NotConfirmed(error) => {
                if let Some(left_out) = parts.log.not_buried.due() {
                    tracing::warn!(
                        queue,
                        reason = reason_of,
                        error,
                        left_out,
                        "a dead letter was not confirmed; its request goes back to its queue"
                    );
                }
            }
        }
        buried
    }

    /// Waits before a request goes back to its queue that would fail again at once, unless the time to finish calls is over.
    pub(crate) async fn pause(&self) {
        let _ = tokio::time::timeout(DEAD_LETTER_TIME, self.parts.shutdown.cancelled()).await;
    }

    /// Dead-letters a request whose answer would not arrive.
    pub(super) async fn refuse_address(&self, mut call: Box<Call>, delivery: Delivery, refused: &AddressRefused) {
        let attached = self.leave(&mut call).await;
        let settle = call.slot.take().unwrap_or(delivery.settle);
        call.end(None);
        self.bury(Delivery { settle, ..delivery }, DeadReason::ReplyToRefused, &refused.to_string()).await;
        requeue_all(attached).await;
    }

    /// Settles a call that another call answers.
    pub(super) async fn ignore(&self, mut call: Box<Call>) {
        let attached = self.leave(&mut call).await;
        call.settle_unanswered(true).await;
        join_all(attached.into_iter().map(|call| call.settle_unanswered(true))).await;
    }

    /// Gives a call back to its queue; answers one that came from none.
    pub(super) async fn requeue(&self, mut call: Box<Call>) {
        let attached = self.leave(&mut call).await;
        if call.direct.is_some() {
            let answer = self.failure(&mut call, &cancelled("The daemon shut down."));
            let _ = self.send_one(call, &Arc::new(answer)).await;
        } else {
            call.settle_unanswered(false).await;
        }
        requeue_all(attached).await;
    }

    /// Ends what is known of a call that gets no answer; gives the duplicates that have attached to it.
    async fn leave(&self, call: &mut Call) -> Vec<Attached> {
        self.forget_run(call).await;
        if let Some(LocalIdentity { key, .. }) = call.identity {
            self.parts.replay.forget(key, &call.slot);
        }
        call.slot.close()
    }
}

async fn requeue_all(attached: Vec<Attached>) {
    join_all(attached.into_iter().map(|call| call.settle_unanswered(false))).await;
}
