//! The steps before the gates: whether the reply can be delivered, whether the request was answered before, and what the
//! caller may use, tools that are pending included.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};
use tokio_util::sync::CancellationToken;
use toolbus_protocol::Outcome;

use super::call::{Call, Slot};
use super::known::Known;
use super::{Abort, Dispatcher, MAX_EARLIER_DELIVERIES, as_begun, cancelled, cancelled_before_start};
use crate::bus::{Delivery, Settle};
use crate::caller::Caller;
use crate::deadline;
use crate::failure::{Cause, ToolFailure};
use crate::gates::find;
use crate::policy::EffectiveTools;
use crate::replay::Seen;
use crate::reply::Reply;
use crate::request::{AddressRefused, Lookup};
use crate::telemetry::LedgerEvent;

/// Most requests that wait for the reply of another one with their key, of those that no message brings: they may be
/// given up, and asked again, as often as a client likes.
const MAX_ATTACHED: usize = 64;

impl Dispatcher {
    /// Returns the reason for which the reply of a request would not arrive. A request that is running or was answered is not asked for: what its
    /// tool did must not be lost with it.
    pub(super) async fn address_refused(&self, call: &Call) -> Option<AddressRefused> {
        self.parts.replier.refusal(&call.request.address).await
    }

    /// Step 3. Gives the call its delivery, unless the request was answered or is running already.
    pub(super) async fn replay(&self, mut call: Box<Call>, delivery: &mut Delivery) -> Option<Box<Call>> {
        let _ = call.delivery.slot.replace(std::mem::replace(&mut delivery.settle, Box::new(Settled)), false);
        call = self.unless_known(call).await?;
        if delivery.earlier_deliveries >= MAX_EARLIER_DELIVERIES {
            let text = "This request is not run again. It was delivered too often without an answer.";
            let reply = self.unrepeated(&mut call, Cause::DeliveredTooOften, text);
            self.send(call, reply).await;
            return None;
        }
        Some(call)
    }

    /// Step 3, for a call that has its delivery. Gives it back unless its request was answered or is running already.
    pub(super) async fn unless_known(&self, mut call: Box<Call>) -> Option<Box<Call>> {
        if let Some(identity) = call.identity.local {
            loop {
                match self.parts.replay.enter(&identity, &call.delivery.slot, call.identity.is_redelivered) {
                    Seen::Never => break,
                    Seen::Running(running) => match self.attach(call, &running).await {
                        None => return None,
                        // It has ended meanwhile.
                        Some(again) => call = again,
                    },
                    Seen::Conflict => {
                        self.finish(call, Err(self.parts.recorder.conflict().into())).await;
                        return None;
                    }
                    Seen::Answered(reply) => {
                        // A refusal is not recorded: another daemon may have run a copy since.
                        if reply.outcome == Some(Outcome::NotStarted)
                            && let Some(known) = self.known(&mut call, true).await
                        {
                            call = self.end_known(call, known).await?;
                        }
                        self.repeat(call, &reply).await;
                        return None;
                    }
                    Seen::Forgotten => {
                        let text =
                            "This request is not run again. It was answered before, and the answer is no longer kept.";
                        let reply = self.unrepeated(&mut call, Cause::DeliveredTooOften, text);
                        self.send(call, reply).await;
                        return None;
                    }
                }
            }
            let is_redelivered = call.identity.is_redelivered;
            if let Some(known) = self.known(&mut call, is_redelivered).await {
                call = self.end_known(call, known).await?;
            }
        }
        Some(call)
    }

    /// Leaves a duplicate to the call that runs, which settles and replies it in the end; gives it back if that has ended.
    async fn attach(&self, call: Box<Call>, running: &Slot) -> Option<Box<Call>> {
        if running.has_same_reply_to(&call.delivery.slot) {
            let settle = call.delivery.slot.take()?;
            match running.replace(settle, call.identity.is_redelivered) {
                Ok(stale) => {
                    if let Some(stale) = stale {
                        stale.acknowledge().await;
                    }
                    call.end(None);
                }
                Err(settle) => {
                    let _ = call.delivery.slot.replace(settle, false);
                    return Some(call);
                }
            }
        } else if call.delivery.direct.is_some() && running.attached() >= MAX_ATTACHED {
            let text = "Too many requests with this idempotency key wait for its answer already. Try again later.";
            self.finish(call, Err(ToolFailure::new(Cause::Overloaded, text).into())).await;
            return None;
        } else if let Err(call) = running.attach(call) {
            return Some(call);
        }
        self.telemetry().ledger(LedgerEvent::Attached);
        None
    }

    /// Ends a call whose request the ledger knows; gives it back if it is to be run.
    pub(super) async fn end_known(&self, call: Box<Call>, known: Known) -> Option<Box<Call>> {
        match known {
            Known::Answered(reply) => self.repeat(call, &reply).await,
            Known::Unknown(reply) => self.send(call, reply).await,
            Known::Failed(failure) => self.finish(call, Err(failure.into())).await,
            Known::Requeued if call.delivery.direct.is_some() => {
                let text =
                    "The daemon shut down while another one ran the call. Call again with the same idempotency key.";
                self.finish(call, Err(as_begun(cancelled(text)).into())).await;
            }
            Known::Requeued => self.requeue(call).await,
            Known::Free => return Some(call),
        }
        None
    }

    /// Answers a request as it, or one like it, was answered before: with the trace that the reply had.
    pub(super) async fn repeat(&self, mut call: Box<Call>, reply: &Arc<Reply>) {
        self.telemetry().ledger(LedgerEvent::Replayed);
        call.identity.replayed = true;
        let reply = reply.for_request(&call.request);
        let _ = call.publishing(&reply);
        self.send(call, reply).await;
    }

    /// What the caller may use. A tool that is not there yet, and may come, is waited for: as a permit is, or else, where the
    /// caller names its server, until the deadline. The call waits among those of its agent, so that an agent that asks for
    /// what is unclaimed takes no place of another.
    pub(super) async fn enter(&self, call: &Call, cancel: &CancellationToken) -> Result<EffectiveTools, Abort> {
        let (gates, request) = (&self.parts.gates, &call.request);
        let effective = gates.enter(&request.caller);
        self.note(&request.caller, &effective);
        let wanted = request.wanted();
        if find(&effective, wanted).is_some() {
            return Ok(effective);
        }
        let now = self.clock().now();
        let latest = match wanted.route {
            // The caller knows where its tool is: there is nothing else to try.
            Lookup::Server(_) => deadline::inner(call.timing.deadline, now),
            Lookup::Name | Lookup::AnyServer => now + call.timing.deadline.saturating_duration_since(now) / 2,
        };
        let arrival = self.parts.arrivals.expect(wanted, &effective, latest);
        let policy = self.policy();
        // The registry has tools before the catalogue does, and `expect` leaves out servers whose tools are registered.
        let is_latest = policy.has_latest(&effective);
        if arrival.is_none() && is_latest {
            drop(arrival);
            return Ok(effective);
        }
        let _waiting = self.parts.permits.wait(effective.gate(), call.request.sharer(), call.delivery.body_size)?;
        if !is_latest {
            policy.catch_up().await;
            let refreshed = gates.enter(&request.caller);
            if arrival.is_none() || find(&refreshed, wanted).is_some() {
                return Ok(refreshed);
            }
        }
        if let Some(arrival) = arrival {
            tokio::select! {
                biased;
                () = cancel.cancelled() => return Err(cancelled_before_start().into()),
                () = self.parts.shutdown.cancelled() => return Err(Abort::Requeued),
                () = call.delivery.slot.lost() => return Err(Abort::Requeued),
                () = arrival => {}
            }
        }
        policy.catch_up().await;
        Ok(gates.enter(&request.caller))
    }

    /// What ends a call whose tool was not found.
    pub(super) fn not_found(&self, call: &Call, effective: &EffectiveTools, failure: ToolFailure) -> Abort {
        let wanted = call.request.wanted();
        let is_others = self.parts.settings.ignores_unknown_servers && failure.cause == Cause::UnknownServer;
        // Another bridge may have the tool now, which is more than that a server here may come to have it.
        if is_others && wanted.route == Lookup::AnyServer {
            return Abort::Ignored(failure);
        }
        if let Some(failure) = self.parts.arrivals.out_of_reach(wanted, effective) {
            return Abort::Failed(failure);
        }
        if is_others { Abort::Ignored(failure) } else { Abort::Failed(failure) }
    }

    /// The reply of a request that must not be run once more.
    pub(super) fn unrepeated(&self, call: &mut Call, cause: Cause, text: &str) -> Arc<Reply> {
        let mut reply = self.refusal(call, &ToolFailure::new(cause, text), true);
        call.trace(&mut reply);
        // It was not resolved, and is counted under the tool that it is for all the same.
        if call.execution.tool.is_none() {
            call.execution.tool = self.wanted(call);
        }
        Arc::new(reply)
    }

    /// Remembers who called, so that it is notified of changes.
    fn note(&self, caller: &Caller, effective: &EffectiveTools) {
        if let Some(agent) = &caller.agent
            && effective.is_everybody()
        {
            self.parts.callers.note(agent, effective.catalogue());
        }
    }
}

/// In the place of what settles a delivery, once its call has that.
struct Settled;

impl Settle for Settled {
    fn acknowledge(self: Box<Self>) -> BoxFuture<'static, ()> {
        ready(()).boxed()
    }

    fn requeue(self: Box<Self>) -> BoxFuture<'static, ()> {
        ready(()).boxed()
    }
}
