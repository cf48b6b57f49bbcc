//! Step 3: was this very request answered before, or begun?

use std::sync::Arc;

use super::call::Call;
use super::{Dispatcher, MAX_EARLIER_DELIVERIES};
use crate::address::AddressRefused;
use crate::bus::Delivery;
use crate::failure::{Cause, ToolFailure};
use crate::replay::{Seen, Slot};
use crate::request::Request;

impl Dispatcher {
    /// Step 3. Gives the call its delivery, unless the request was answered or is running already.
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

    /// Why the answer of a request would not arrive. A request that is running or was answered is not asked for: what its
    /// tool did must not be lost with it.
    pub(super) async fn address_refused(&self, request: &Request, delivery: &Delivery) -> Option<AddressRefused> {
        let replay = &self.parts.replay;
        if is_redelivered(delivery) && replay.key(delivery, request.has_call_id).is_some_and(|key| replay.knows(key)) {
            return None;
        }
        self.parts.replies.refusal(&request.address).await
    }

    /// Answers a request that must not be run once more.
    async fn give_up(&self, mut call: Box<Call>, reason: &str) {
        let text = format!("This request is not run again. {reason}.");
        let mut answer = self.refusal(&call, &ToolFailure::new(Cause::DeliveredTooOften, text), true);
        call.trace(&mut answer);
        self.send(call, Arc::new(answer)).await;
    }
}

const fn is_redelivered(delivery: &Delivery) -> bool {
    delivery.redelivered || delivery.earlier_deliveries > 0
}
