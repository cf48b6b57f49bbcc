//! Step 3: whether a request was answered before or is running, here or at another daemon.

use std::sync::Arc;

use toolbus_protocol::Outcome;

use super::MAX_EARLIER_DELIVERIES;
use super::call::{Attached, Call, Slot};
use super::earlier::{Earlier, EarlierRuns};
use super::replying::ReplyBuilder;
use crate::failure::{Cause, ToolFailure};
use crate::idempotency::{Recorder, Replay, Seen};
use crate::reply::Reply;
use crate::telemetry::{LedgerEvent, Telemetry};

/// Most requests that wait for the reply of another one with their key, of those that no message brings: clients may
/// give them up and repeat them as often as they like.
const MAX_ATTACHED: usize = 64;

/// Recognises requests that come again.
pub(super) struct Duplicates {
    pub(super) replay: Arc<Replay<Attached>>,
    pub(super) recorder: Arc<Recorder>,
    pub(super) earlier: Arc<EarlierRuns>,
    pub(super) replies: Arc<ReplyBuilder>,
    pub(super) telemetry: Arc<dyn Telemetry>,
}

impl Duplicates {
    /// Notes that a call is under way, and finds what earlier deliveries of its request mean for it. `None`: another
    /// call that runs settles it and sends its reply in the end.
    pub(super) async fn enter(&self, mut call: Box<Call>) -> Option<(Box<Call>, Earlier)> {
        let mut earlier = match call.identity.local {
            None => Earlier::Free,
            Some(identity) => loop {
                match self.replay.enter(&identity, &call.delivery.slot, call.identity.is_redelivered) {
                    Seen::Never => break self.find(&mut call).await,
                    Seen::Running(running) => match self.attach(call, &running).await {
                        Attachment::Attached => return None,
                        Attachment::Refused(refused, failure) => return Some((refused, Earlier::Failed(failure))),
                        Attachment::Ended(again) => call = again,
                    },
                    Seen::Conflict => break Earlier::Failed(self.recorder.conflict()),
                    Seen::Answered(reply) => break self.earlier_reply(&mut call, reply).await,
                    Seen::Forgotten => {
                        let text =
                            "This request is not run again. It was answered before, and the answer is no longer kept.";
                        break self.unrepeated(&mut call, text);
                    }
                }
            },
        };
        if matches!(earlier, Earlier::Free) && call.delivery.earlier >= MAX_EARLIER_DELIVERIES {
            let text = "This request is not run again. It was delivered too often without an answer.";
            earlier = self.unrepeated(&mut call, text);
        }
        Some((call, earlier))
    }

    async fn find(&self, call: &mut Call) -> Earlier {
        let is_redelivered = call.identity.is_redelivered;
        self.earlier.find(call, is_redelivered).await.unwrap_or(Earlier::Free)
    }

    /// A refusal is not recorded: another daemon may have run a copy since.
    async fn earlier_reply(&self, call: &mut Call, reply: Arc<Reply>) -> Earlier {
        let is_refusal = reply.outcome == Some(Outcome::NotStarted);
        match if is_refusal { self.earlier.find(call, true).await } else { None } {
            None | Some(Earlier::Free) => Earlier::Answered(reply),
            Some(known) => known,
        }
    }

    fn unrepeated(&self, call: &mut Call, text: &str) -> Earlier {
        Earlier::Unknown(self.replies.unrepeated(call, Cause::DeliveredTooOften, text))
    }

    /// Leaves a duplicate to the call that runs, which settles and replies it in the end.
    async fn attach(&self, mut call: Box<Call>, running: &Slot) -> Attachment {
        if running.has_same_reply_to(&call.delivery.slot) {
            let Some(settle) = call.delivery.slot.take() else { return Attachment::Attached };
            match running.replace(settle, call.identity.is_redelivered) {
                Ok(stale) => {
                    if let Some(stale) = stale {
                        stale.acknowledge().await;
                    }
                    call.delivery.attached = true;
                    call.end(None);
                }
                Err(settle) => {
                    let _ = call.delivery.slot.replace(settle, false);
                    return Attachment::Ended(call);
                }
            }
        } else if call.delivery.direct.is_some() && running.attached() >= MAX_ATTACHED {
            let text = "Too many requests with this idempotency key wait for its answer already. Try again later.";
            return Attachment::Refused(call, ToolFailure::new(Cause::Overloaded, text));
        } else if let Err(call) = running.attach(call) {
            return Attachment::Ended(call);
        }
        self.telemetry.ledger(LedgerEvent::Attached);
        Attachment::Attached
    }
}

/// Outcome of leaving a duplicate to the call that runs.
enum Attachment {
    Attached,
    /// The call has ended meanwhile.
    Ended(Box<Call>),
    /// Too many wait for it already.
    Refused(Box<Call>, ToolFailure),
}
