//! The end of a call: its reply leaves, or is put aside, and its delivery is settled.

use std::sync::Arc;

use futures_util::future::join_all;
use toolbus_protocol::Outcome;

use super::call::{Attached, Call};
use super::earlier::{Earlier, EarlierRuns};
use super::replying::ReplyBuilder;
use super::{Abort, cancelled, shut_down};
use crate::Clock;
use crate::audit::{Audit, AuditEvent, AuditRecord, AuditedCall};
use crate::bus::Delivery;
use crate::failure::Cause;
use crate::idempotency::{LocalIdentity, Recorder, Replay};
use crate::reply::{NotDelivered, Replier, Reply};
use crate::reply_address::AddressRefused;
use crate::telemetry::{CallEnd, DeadReason, LedgerEvent, Telemetry};
use crate::text::shown;
use crate::tool::{Effect, ToolOutput};

/// Completes calls: publishes their replies, and settles their deliveries and those of their duplicates.
pub(super) struct Completer {
    pub(super) replier: Arc<Replier>,
    pub(super) replies: Arc<ReplyBuilder>,
    pub(super) replay: Arc<Replay<Attached>>,
    pub(super) recorder: Arc<Recorder>,
    pub(super) earlier: Arc<EarlierRuns>,
    pub(super) audit: Arc<dyn Audit>,
    pub(super) telemetry: Arc<dyn Telemetry>,
    pub(super) clock: Clock,
}

impl Completer {
    /// Steps 12 and 13 for whatever became of a call.
    pub(super) async fn finish(&self, mut call: Box<Call>, result: Result<ToolOutput, Abort>) {
        let reply = match result {
            _ if call.is_lost() => return self.requeue(call).await,
            Ok(output) => self.replies.result(&mut call, output).await,
            Err(Abort::Failed(failure)) => self.replies.failure(&mut call, &failure),
            Err(Abort::Ignored(failure)) if call.delivery.direct.is_some() => self.replies.failure(&mut call, &failure),
            Err(Abort::Ignored(_)) => return self.ignore(call).await,
            // `Known` is unreachable: `run_to_end` resolves known entries.
            Err(Abort::Requeued | Abort::Known(_)) => return self.requeue(call).await,
        };
        let Call { identity, request, span, .. } = &mut *call;
        let reply = self.recorder.record(identity, request, span.trace_id(), Arc::new(reply)).await;
        self.send(call, reply).await;
    }

    /// Ends a call whose request is known; gives it back if it is to be run.
    pub(super) async fn end_known(&self, call: Box<Call>, earlier: Earlier) -> Option<Box<Call>> {
        match earlier {
            Earlier::Free => return Some(call),
            Earlier::Answered(reply) => self.repeat(call, &reply).await,
            Earlier::Unknown(reply) => self.send(call, reply).await,
            Earlier::Failed(failure) => self.finish(call, Err(failure.into())).await,
            Earlier::Requeued if call.delivery.direct.is_some() => {
                let text =
                    "The daemon shut down while another one ran the call. Call again with the same idempotency key.";
                self.finish(call, Err(cancelled(text).begun().into())).await;
            }
            Earlier::Requeued => self.requeue(call).await,
        }
        None
    }

    /// Sends the reply that the request, or one like it, had before: with the trace that the reply had.
    async fn repeat(&self, mut call: Box<Call>, reply: &Arc<Reply>) {
        self.telemetry.ledger(LedgerEvent::Replayed);
        call.delivery.replayed = true;
        let reply = reply.for_request(&call.request);
        let _ = call.publishing(&reply);
        self.send(call, reply).await;
    }

    /// Step 12, reply, and step 13, acknowledge: in this order, always.
    async fn send(&self, call: Box<Call>, reply: Arc<Reply>) {
        if call.is_lost() {
            return self.requeue(call).await;
        }
        let (_, attached) = self.send_one(call, &reply).await;
        self.send_to_attached(attached, &reply).await;
    }

    /// Gives duplicates the reply of the call that they attached to: each recipient once.
    async fn send_to_attached(&self, attached: Vec<Attached>, reply: &Arc<Reply>) {
        let mut recipients: Vec<(Attached, Vec<Attached>)> = Vec::new();
        for mut call in attached {
            if call.is_lost() {
                call.settle_without_reply(false).await;
                continue;
            }
            call.delivery.replayed = true;
            call.delivery.attached = true;
            match recipients.iter_mut().find(|(first, _)| first.delivery.slot.has_same_reply_to(&call.delivery.slot)) {
                Some((_, others)) => others.push(call),
                None => recipients.push((call, Vec::new())),
            }
        }
        join_all(recipients.into_iter().map(|(mut call, others)| async move {
            let mut reply = reply.for_request(&call.request);
            if call.identity.is_redelivered || others.iter().any(|other| other.identity.is_redelivered) {
                match self.reply_of_copy(&mut call, &reply).await {
                    Ok(None) => {}
                    Ok(Some(known)) => reply = known,
                    Err(_) => {
                        for copy in others.into_iter().chain([call]) {
                            copy.settle_without_reply(false).await;
                        }
                        return;
                    }
                }
            }
            // None of them is under way for others.
            call.identity.local = None;
            let _ = call.publishing(&reply);
            let (settled, _) = self.send_one(call, &reply).await;
            // Not before: the first may have been delivered again, as one of these.
            for other in others {
                other.settle_without_reply(settled).await;
            }
        }))
        .await;
    }

    /// Steps 12 and 13 of one call; gives whether its request is done with, and the duplicates that have attached to
    /// it.
    async fn send_one(&self, mut call: Box<Call>, reply: &Arc<Reply>) -> (bool, Vec<Attached>) {
        // First: an effect must not go unrecorded because its reply cannot be delivered.
        self.record_audit(&call, reply.end, reply.outcome);
        let built = self.clock.now();
        let is_direct = call.delivery.direct.is_some();
        let delivered = match call.delivery.direct.take() {
            // A client that has gone repeats the call by its key.
            Some(client) => {
                let _ = client.send(Arc::clone(reply));
                Ok(())
            }
            None => {
                let delivered = call.unless_lost(self.replier.deliver(&call.reply_path(), reply)).await;
                delivered.unwrap_or(Err(NotDelivered::BrokerAway))
            }
        };
        let confirmed = self.clock.since(built);
        if !is_direct {
            call.span.published(delivered.is_ok(), confirmed);
        }
        let over = call.unless_lost(self.replier.is_over(&call.reply_path(), reply, delivered)).await;
        let mut settled = over.unwrap_or(false);
        if let Some(identity) = call.identity.local {
            if settled && (is_direct || call.delivery.slot.is_sure()) {
                self.replay.forget(identity.key, &call.delivery.slot);
            } else {
                self.replay.replied(identity, &call.delivery.slot, Arc::clone(reply));
            }
        }
        let attached = call.delivery.slot.close();
        if settled && call.delivery.slot.has_come_again() {
            settled = match self.reply_of_copy(&mut call, reply).await {
                Ok(None) => true,
                Ok(Some(known)) => {
                    call.unless_lost(self.replier.reply(&call.reply_path(), &known)).await.unwrap_or(false)
                }
                Err(_) => false,
            };
        }
        call.settle(settled).await;
        call.conclude(Some(reply.end), built, confirmed);
        (settled, attached)
    }

    /// Reply for a redelivery that attached to a call which is refused. Nothing is recorded of a refusal, and another
    /// daemon may have run this copy of the request before. `None`: the refusal is its reply.
    ///
    /// # Errors
    ///
    /// If it goes back to its queue.
    async fn reply_of_copy(&self, call: &mut Call, refusal: &Reply) -> Result<Option<Arc<Reply>>, Abort> {
        if refusal.outcome != Some(Outcome::NotStarted) {
            return Ok(None);
        }
        match self.earlier.find(call, true).await {
            None | Some(Earlier::Free) => Ok(None),
            Some(Earlier::Answered(reply) | Earlier::Unknown(reply)) => Ok(Some(reply)),
            Some(Earlier::Failed(failure)) => Ok(Some(self.replies.failure_of_copy(call, &failure))),
            Some(Earlier::Requeued) => Err(Abort::Requeued),
        }
    }

    /// Records a refusal, and a call of a tool that is not read-only. A reply that was given before was recorded then.
    pub(super) fn record_audit(&self, call: &Call, end: CallEnd, outcome: Option<Outcome>) {
        if call.delivery.replayed {
            return;
        }
        let event = match (&call.execution.tool, call.timing.ran) {
            // The tool began, and had nothing to act with: a refusal, too.
            _ if end.cause == Some(Cause::AuthRequired) => AuditEvent::Refused,
            (Some(tool), Some(_)) if tool.effect == Effect::ReadOnly => return,
            (_, Some(_)) => AuditEvent::Called,
            (_, None) => AuditEvent::Refused,
        };
        let request = &call.request;
        let subject = AuditedCall {
            caller: &request.caller,
            tool: call.execution.tool.as_deref(),
            requested: &request.tool_name,
            call_id: &request.call_id,
        };
        let hash = call.execution.arguments.as_ref().and_then(|arguments| self.audit.hash(arguments));
        self.audit.record(AuditRecord::new(event, &subject, end, outcome).with_arguments(hash));
    }

    /// Dead-letters a request whose reply would not arrive.
    pub(super) async fn refuse_address(&self, mut call: Box<Call>, delivery: Delivery, refused: &AddressRefused) {
        let attached = self.leave(&mut call).await;
        let settle = call.delivery.slot.take().unwrap_or(delivery.settle);
        call.end(None);
        self.replier
            .dead_letter_request(Delivery { settle, ..delivery }, DeadReason::ReplyToRefused, &refused.to_string())
            .await;
        requeue_all(attached).await;
    }

    /// Settles a call that is left to another bridge, without a reply.
    async fn ignore(&self, mut call: Box<Call>) {
        let attached = self.leave(&mut call).await;
        call.settle_without_reply(true).await;
        join_all(attached.into_iter().map(|call| call.settle_without_reply(true))).await;
    }

    /// Gives a call back to its queue, where it is already if its connection has ended; replies to one that came from
    /// none.
    async fn requeue(&self, mut call: Box<Call>) {
        if call.is_lost() {
            tracing::debug!(call_id = %shown(&call.request.call_id), "dropped a call that the broker delivers again");
        }
        let attached = self.leave(&mut call).await;
        if call.delivery.direct.is_some() {
            let failure = shut_down(call.timing.ran.is_some());
            let reply = self.replies.failure(&mut call, &failure);
            let _ = self.send_one(call, &Arc::new(reply)).await;
        } else {
            call.settle_without_reply(false).await;
        }
        requeue_all(attached).await;
    }

    /// Ends what is known of a call that gets no reply; gives the duplicates that have attached to it.
    async fn leave(&self, call: &mut Call) -> Vec<Attached> {
        self.recorder.forget_run(&mut call.identity, &call.request.call_id).await;
        if let Some(LocalIdentity { key, .. }) = call.identity.local {
            self.replay.forget(key, &call.delivery.slot);
        }
        call.delivery.slot.close()
    }
}

async fn requeue_all(attached: Vec<Attached>) {
    join_all(attached.into_iter().map(|call| call.settle_without_reply(false))).await;
}
