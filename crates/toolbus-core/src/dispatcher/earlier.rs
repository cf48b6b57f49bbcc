//! Step 3 for what outlives the process: whether the ledger knows a request, and what becomes of one that it knows.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio_util::sync::CancellationToken;

use super::call::Call;
use super::given_up_while_it_ran;
use super::replying::ReplyBuilder;
use crate::Clock;
use crate::deadline::Budgets;
use crate::failure::{Cause, ToolFailure};
use crate::gates::permit::Permits;
use crate::idempotency::ledger::{EntryState, Finished, LedgerEntry};
use crate::idempotency::{IdentityKind, Recorder, RequestIdentity};
use crate::policy::PolicyHandle;
use crate::reply::{Reply, stored};
use crate::store::StoreError;
use crate::telemetry::{LedgerEvent, Telemetry};

/// First and longest time between two looks at a call that another daemon runs.
const POLLS: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(1)];

/// Meaning of earlier deliveries for a call.
pub(super) enum Earlier {
    /// Reply that was given before.
    Answered(Arc<Reply>),
    /// Reply that ends the run which had begun.
    Unknown(Arc<Reply>),
    /// Refused with this failure.
    Failed(ToolFailure),
    /// Requeued.
    Requeued,
    /// Nothing, or a run that had begun and had no effect: the request is run.
    Free,
}

/// Finds what the ledger knows of requests.
pub(super) struct EarlierRuns {
    pub(super) recorder: Arc<Recorder>,
    pub(super) policy: PolicyHandle,
    pub(super) permits: Arc<Permits>,
    pub(super) replies: Arc<ReplyBuilder>,
    pub(super) telemetry: Arc<dyn Telemetry>,
    pub(super) clock: Clock,
    pub(super) budgets: Budgets,
    /// Cancelled when the time to finish calls is over.
    pub(super) shutdown: CancellationToken,
}

impl EarlierRuns {
    /// Step 3, for what outlives the process. `None`: nothing is known, and the request is run.
    pub(super) async fn find(&self, call: &mut Call, is_redelivered: bool) -> Option<Earlier> {
        let recorder = &self.recorder;
        recorder.ledger()?;
        let needs_lookup = match call.identity.local?.kind {
            IdentityKind::Given => true,
            IdentityKind::MessageId => is_redelivered || !self.is_repeatable(call),
            IdentityKind::Content => is_redelivered,
        };
        if !needs_lookup {
            return None;
        }
        let identity = call.everywhere()?;
        match recorder.look_up(identity.key).await {
            Ok(entry) => Some(self.resolve(call, identity, entry?).await),
            // Step 9 refuses it, unless it is a tool that may run again.
            Err(_) if !is_redelivered && identity.kind == IdentityKind::MessageId => None,
            Err(_) if self.is_repeatable(call) => None,
            Err(error) => Some(match self.look_up_again(call, identity, error).await {
                Ok(entry) => self.resolve(call, identity, entry?).await,
                Err(known) => known,
            }),
        }
    }

    /// Reads again while the ledger cannot be read, for half of the time that is left: another daemon may have run the
    /// request, and its reply is better than an unknown outcome. The call waits among those of its agent.
    async fn look_up_again(
        &self,
        call: &Call,
        identity: RequestIdentity,
        mut error: StoreError,
    ) -> Result<Option<LedgerEntry>, Earlier> {
        let unreadable = |error: &StoreError| Earlier::Failed(self.recorder.unreadable(error));
        let recorder = &self.recorder;
        let effective = self.policy.effective(&call.request.caller);
        let waiting = self.permits.wait(effective.gate(), call.request.sharer(), call.delivery.body_size);
        let _waiting = waiting.map_err(|_| unreadable(&error))?;
        let now = self.clock.now();
        let latest = now + call.timing.deadline.saturating_duration_since(now) / 2;
        let [mut pause, longest] = POLLS;
        while self.clock.now() < latest {
            self.paused(call, pause).await?;
            pause = (pause * 2).min(longest);
            match recorder.look_up(identity.key).await {
                Ok(entry) => return Ok(entry),
                Err(again) => error = again,
            }
        }
        Err(unreadable(&error))
    }

    /// Waits before the ledger is read again, unless the call ends meanwhile.
    async fn paused(&self, call: &Call, pause: Duration) -> Result<(), Earlier> {
        let given_up = async {
            match &call.execution.cancelled {
                Some(cancelled) => cancelled.cancelled().await,
                None => pending().await,
            }
        };
        tokio::select! {
            biased;
            () = self.shutdown.cancelled() => Err(Earlier::Requeued),
            () = call.delivery.slot.lost() => Err(Earlier::Requeued),
            () = given_up => Err(Earlier::Failed(given_up_while_it_ran())),
            () = tokio::time::sleep(pause) => Ok(()),
        }
    }

    /// Whether the machinery may run the tool of a call again.
    fn is_repeatable(&self, call: &Call) -> bool {
        call.wanted(&self.policy).is_some_and(|tool| tool.effect.is_repeatable())
    }

    /// Resolves a ledger entry for a call. Waits for a run of another daemon until it ends, at most until the call's
    /// deadline.
    pub(super) async fn resolve(&self, call: &mut Call, identity: RequestIdentity, mut entry: LedgerEntry) -> Earlier {
        let recorder = &self.recorder;
        let [mut pause, longest] = POLLS;
        // The run that is waited for has the time of its tool, which may be longer than that of others.
        let tool = call.wanted(&self.policy);
        call.grant(tool.as_ref().and_then(|tool| tool.timeout), self.budgets);
        loop {
            // Its caller got the outcome `not_started`, and may use the same key for another request.
            if let EntryState::Started { run, .. } = entry.state
                && recorder.is_void(identity.key, run)
            {
                return match recorder.release(identity.key, run).await {
                    Ok(()) => Earlier::Free,
                    Err(error) => Earlier::Failed(self.recorder.unrecorded(&error)),
                };
            }
            if entry.fingerprint != identity.fingerprint {
                return Earlier::Failed(self.recorder.conflict());
            }
            let (run, instance, is_live) = match entry.state {
                EntryState::Answered(stored) => return self.replied_before(call, &stored),
                EntryState::Started { run, instance, is_live } => (run, instance, is_live),
            };
            // A run of this process would have been attached to.
            let is_running = is_live && recorder.is_of_other(&instance);
            if is_running && self.clock.now() < call.timing.deadline {
                if let Err(ended) = self.paused(call, pause).await {
                    return ended;
                }
                pause = (pause * 2).min(longest);
            } else if !is_running && tool.as_ref().is_some_and(|tool| tool.effect.is_repeatable()) {
                if let Err(error) = recorder.release(identity.key, run).await {
                    return Earlier::Failed(self.recorder.unreadable(&error));
                }
                return Earlier::Free;
            } else {
                let text = "This request had begun when the daemon that ran it ended or lost its connection. It is not run again.";
                let reply = self.unknown(call, text);
                match recorder.finish(identity.key, run, &reply).await {
                    Ok(Finished::Stored) => return Earlier::Unknown(reply),
                    Ok(Finished::Superseded(stored)) => return self.replied_before(call, &stored),
                    Ok(Finished::Forgotten) => {}
                    Err(error) => return Earlier::Failed(self.recorder.unreadable(&error)),
                }
            }
            entry = match recorder.look_up(identity.key).await {
                Ok(Some(entry)) => entry,
                Ok(None) => return Earlier::Free,
                Err(error) => match self.look_up_again(call, identity, error).await {
                    Ok(Some(entry)) => entry,
                    Ok(None) => return Earlier::Free,
                    Err(known) => return known,
                },
            };
        }
    }

    fn replied_before(&self, call: &mut Call, stored: &Bytes) -> Earlier {
        match stored::read(stored) {
            Some(reply) => Earlier::Answered(Arc::new(reply).for_request(&call.request)),
            None => {
                let text = "This request was answered before, and the answer is no longer kept. It is not run again.";
                Earlier::Unknown(self.unknown(call, text))
            }
        }
    }

    fn unknown(&self, call: &mut Call, text: &str) -> Arc<Reply> {
        self.telemetry.ledger(LedgerEvent::Unknown);
        self.replies.unrepeated(call, Cause::OutcomeUnknown, text)
    }
}
