//! The steps before the gates: whether the answer can be delivered, whether the request was answered before, and what the
//! caller may use, tools that are pending included.

use std::sync::Arc;

use super::call::Call;
use super::{Abort, Dispatcher, MAX_EARLIER_DELIVERIES};
use crate::bus::Delivery;
use crate::caller::Caller;
use crate::deadline;
use crate::failure::{Cause, ToolFailure};
use crate::gates::find;
use crate::policy::EffectiveTools;
use crate::replay::{Seen, Slot};
use crate::request::{AddressRefused, Lookup, Request};

impl Dispatcher {
    /// Why the answer of a request would not arrive. A request that is running or was answered is not asked for: what its
    /// tool did must not be lost with it.
    pub(super) async fn address_refused(&self, request: &Request, delivery: &Delivery) -> Option<AddressRefused> {
        let replay = &self.parts.replay;
        if is_redelivered(delivery) && replay.key(delivery, request.has_call_id).is_some_and(|key| replay.knows(key)) {
            return None;
        }
        self.parts.replies.refusal(&request.address).await
    }

    /// Gives the call its delivery, unless the request was answered or is running already.
    pub(super) async fn replay(&self, mut call: Box<Call>, delivery: Delivery) -> Option<Box<Call>> {
        let replay = &self.parts.replay;
        call.key = replay.key(&delivery, call.request.has_call_id);
        let seen = match call.key {
            Some(key) if is_redelivered(&delivery) => replay.look_up(key, delivery.settle),
            _ => Seen::Never(delivery.settle),
        };
        match seen {
            Seen::Never(settle) => call.slot = Slot::new(settle),
            Seen::Running(stale) => {
                // The running call has taken the delivery over, and settles it with its answer.
                if let Some(stale) = stale {
                    stale.acknowledge().await;
                }
                call.end(None);
                return None;
            }
            Seen::Answered(settle, answer) => {
                call.slot = Slot::new(settle);
                call.replayed = true;
                if let Some(key) = call.key {
                    replay.resume(key, &call.slot);
                }
                // The answer is repeated as it was: with the trace that it had.
                let _ = call.span.publishing(answer.properties.message_id.as_deref().unwrap_or_default());
                self.send(call, answer).await;
                return None;
            }
            Seen::Forgotten(settle) => {
                call.slot = Slot::new(settle);
                if let Some(key) = call.key {
                    replay.resume(key, &call.slot);
                }
                self.give_up(call, "It was answered before, and the answer is no longer kept").await;
                return None;
            }
        }
        if let Some(key) = call.key {
            replay.begin(key, &call.slot);
        }
        if delivery.earlier_deliveries >= MAX_EARLIER_DELIVERIES {
            self.give_up(call, "It was delivered too often without an answer").await;
            return None;
        }
        Some(call)
    }

    /// What the caller may use. A tool that is not there yet, and may come, is waited for: as a permit is, or else, where the
    /// caller names its server, until the deadline. The call waits among those of its agent, so that an agent that asks for
    /// what nobody has takes no place of another.
    pub(super) async fn enter(&self, call: &Call) -> Result<EffectiveTools, Abort> {
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
            Lookup::Server(_) => deadline::inner(call.deadline, now),
            Lookup::Name | Lookup::AnyServer => now + call.deadline.saturating_duration_since(now) / 2,
        };
        let arrival = self.parts.arrivals.expect(wanted, &effective, latest);
        let access = self.access();
        // The registry has tools before the catalogue does, and `expect` leaves out servers whose tools are registered.
        let is_latest = access.has_latest(&effective);
        if arrival.is_none() && is_latest {
            drop(arrival);
            return Ok(effective);
        }
        let _waiting = self.parts.permits.wait(effective.gate(), call.request.sharer(), call.body_size)?;
        if !is_latest {
            access.catch_up().await;
            let refreshed = gates.enter(&request.caller);
            if arrival.is_none() || find(&refreshed, wanted).is_some() {
                return Ok(refreshed);
            }
        }
        if let Some(arrival) = arrival {
            tokio::select! {
                biased;
                () = self.parts.shutdown.cancelled() => return Err(Abort::Requeued),
                () = arrival => {}
            }
        }
        access.catch_up().await;
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

    /// Answers a request that must not be run once more.
    async fn give_up(&self, mut call: Box<Call>, reason: &str) {
        let text = format!("This request is not run again. {reason}.");
        let mut answer = self.refusal(&call, &ToolFailure::new(Cause::DeliveredTooOften, text), true);
        call.trace(&mut answer);
        self.send(call, Arc::new(answer)).await;
    }

    /// Remembers who called, so that it is told of changes.
    fn note(&self, caller: &Caller, effective: &EffectiveTools) {
        if let Some(agent) = &caller.agent
            && effective.is_everybody()
        {
            self.parts.callers.note(agent, effective.catalogue());
        }
    }
}

const fn is_redelivered(delivery: &Delivery) -> bool {
    delivery.redelivered || delivery.earlier_deliveries > 0
}
