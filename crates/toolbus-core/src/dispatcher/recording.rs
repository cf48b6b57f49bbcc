//! What the ledger has to do with a call: whether its request is known (step 3), that its tool begins (step 9), and how it
//! was answered, before it is published.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use toolbus_protocol::Outcome;

use super::call::Call;
use super::{Abort, Dispatcher, as_begun, given_up_while_it_ran};
use crate::answer::Reply;
use crate::deadline;
use crate::failure::{Cause, ToolFailure};
use crate::gates::find;
use crate::ledger::{
    Begin, Begun, EntryState, Finished, Ledger, LedgerEntry, LedgerSettings, LedgerUsage, RequestKey, RunToken,
};
use crate::request_key::{IdentityKind, RequestIdentity};
use crate::store::StoreError;
use crate::stored_answer;
use crate::telemetry::LedgerEvent;
use crate::text::shown;
use crate::throttle::Throttle;
use crate::tool::ToolDescriptor;

/// Longest wait for one operation of the ledger.
const LEDGER_TIME: Duration = Duration::from_secs(10);
/// Longest wait until what may have been recorded in vain is forgotten. The ledger gets to it later, too.
const UNDO_TIME: Duration = Duration::from_secs(1);
/// How long a daemon is taken to be alive after it last said so.
const LEASE: Duration = Duration::from_secs(5);
/// Time between two such words while calls run that others may ask for.
const RENEWAL: Duration = Duration::from_millis(1_500);
/// First and longest time between two looks at a call that another daemon runs.
const POLLS: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(1)];
/// How long the entry of a request is kept that cannot be distinguished from others like it: as long as it may take until what was
/// not acknowledged is delivered again.
const ALIKE_TTL: Duration = Duration::from_mins(15);
/// How long a caller should wait while the ledger is full.
const FULL_RETRY: Duration = Duration::from_secs(5);

/// Runs that are remembered because the ledger may have them although they had no effect.
const MAX_VOID: usize = 1024;

/// The name of this daemon in the ledger, and when it last said that it is alive.
pub(super) struct Instance {
    name: Arc<str>,
    /// The latest runs that had no effect and that the ledger may have as begun, because an operation failed.
    void: Mutex<VecDeque<(RequestKey, RunToken)>>,
    renewed: Mutex<Option<Instant>>,
    failures: Throttle,
    /// Answers that the ledger has forgotten before their time, as far as the log says.
    shed: AtomicU64,
}

/// A renewal of the lease. While it is under way, other calls take it for done; unless it is in the end, the next one
/// renews.
struct Renewal<'a> {
    renewed: &'a Mutex<Option<Instant>>,
    began: Instant,
    is_done: bool,
}

impl Drop for Renewal<'_> {
    fn drop(&mut self) {
        let mut renewed = self.renewed.lock();
        if !self.is_done && *renewed == Some(self.began) {
            *renewed = None;
        }
    }
}

/// What becomes of a call whose request the ledger knows.
pub(super) enum Known {
    /// It gets the answer that was given.
    Answered(Arc<Reply>),
    /// It gets this answer, by which the run that had begun has ended.
    Unknown(Arc<Reply>),
    /// It is refused.
    Failed(ToolFailure),
    /// It goes back to its queue.
    Requeued,
    /// The run that had begun had no effect: the request is run.
    Free,
}

impl Instance {
    pub(super) fn new(name: String) -> Self {
        Self {
            name: name.into(),
            void: Mutex::default(),
            renewed: Mutex::default(),
            failures: Throttle::default(),
            shed: AtomicU64::new(0),
        }
    }

    fn note_void(&self, key: RequestKey, run: RunToken) {
        let mut void = self.void.lock();
        if void.len() >= MAX_VOID {
            void.pop_front();
        }
        void.push_back((key, run));
    }

    fn is_void(&self, key: RequestKey, run: RunToken) -> bool {
        self.void.lock().contains(&(key, run))
    }
}

impl Dispatcher {
    /// Step 3, for what outlives the process. `None`: nothing is known, and the request is run.
    pub(super) async fn known(&self, call: &mut Call, is_redelivered: bool) -> Option<Known> {
        let LedgerSettings { ledger, .. } = self.parts.settings.ledger.as_ref()?;
        let is_asked = match call.identity?.kind {
            IdentityKind::Given => true,
            IdentityKind::MessageId => is_redelivered || !self.is_repeatable(call),
            IdentityKind::Content => is_redelivered,
        };
        if !is_asked {
            return None;
        }
        let identity = call.everywhere()?;
        match within(ledger.look_up(identity.key)).await {
            Ok(entry) => Some(self.resolve_entry(call, identity, entry?).await),
            // Step 9 refuses it, unless it is a tool that may run again.
            Err(_) if !is_redelivered && identity.kind == IdentityKind::MessageId => None,
            Err(error) => Some(Known::Failed(self.unreadable(&error))),
        }
    }

    /// The tool of a call, as far as that is known before it is resolved.
    fn wanted(&self, call: &Call) -> Option<Arc<ToolDescriptor>> {
        let effective = self.policy().effective(&call.request.caller);
        find(&effective, call.request.wanted()).map(|allowed| Arc::clone(&allowed.tool.descriptor))
    }

    /// Whether the machinery may run the tool of a call again.
    fn is_repeatable(&self, call: &Call) -> bool {
        self.wanted(call).is_some_and(|tool| tool.effect.is_repeatable())
    }

    /// What an entry means for a call. Waits for a run of another daemon until it ends, at most until the call's deadline.
    pub(super) async fn resolve_entry(
        &self,
        call: &mut Call,
        identity: RequestIdentity,
        mut entry: LedgerEntry,
    ) -> Known {
        let Some(LedgerSettings { ledger, max_answer, .. }) = &self.parts.settings.ledger else { return Known::Free };
        let [mut pause, longest] = POLLS;
        // The run that is waited for has the time of its tool, which may be longer than that of others.
        let tool = self.wanted(call);
        call.grant(tool.as_ref().and_then(|tool| tool.timeout), self.parts.settings.budgets);
        loop {
            // Its caller was told that it did not start, and may ask for something else by the same key.
            if let EntryState::Started { run, .. } = entry.state
                && self.parts.instance.is_void(identity.key, run)
            {
                return match within(ledger.release(identity.key, run)).await {
                    Ok(()) => Known::Free,
                    Err(error) => Known::Failed(self.unrecorded(&error)),
                };
            }
            if entry.fingerprint != identity.fingerprint {
                return Known::Failed(self.conflict());
            }
            let (run, instance, is_live) = match entry.state {
                EntryState::Answered(stored) => return self.answered_before(call, &stored),
                EntryState::Started { run, instance, is_live } => (run, instance, is_live),
            };
            // A run of this process would have been attached to.
            let is_running = is_live && instance != self.parts.instance.name;
            if is_running && self.clock().now() < call.deadline {
                let given_up = async {
                    match &call.cancelled {
                        Some(cancelled) => cancelled.cancelled().await,
                        None => pending().await,
                    }
                };
                tokio::select! {
                    biased;
                    () = self.parts.shutdown.cancelled() => return Known::Requeued,
                    () = given_up => return Known::Failed(given_up_while_it_ran()),
                    () = tokio::time::sleep(pause) => pause = (pause * 2).min(longest),
                }
            } else if !is_running && tool.as_ref().is_some_and(|tool| tool.effect.is_repeatable()) {
                if let Err(error) = within(ledger.release(identity.key, run)).await {
                    return Known::Failed(self.unreadable(&error));
                }
                return Known::Free;
            } else {
                let text = "This request had begun when the daemon that ran it ended or lost its connection. It is not run again.";
                let answer = self.unknown(call, text);
                match within(ledger.finish(identity.key, run, stored_answer::write(&answer, *max_answer))).await {
                    Ok(Finished::Stored) => return Known::Unknown(answer),
                    Ok(Finished::Superseded(stored)) => return self.answered_before(call, &stored),
                    Ok(Finished::Forgotten) => {}
                    Err(error) => return Known::Failed(self.unreadable(&error)),
                }
            }
            entry = match within(ledger.look_up(identity.key)).await {
                Ok(Some(entry)) => entry,
                Ok(None) => return Known::Free,
                Err(error) => return Known::Failed(self.unreadable(&error)),
            };
        }
    }

    fn answered_before(&self, call: &mut Call, stored: &Bytes) -> Known {
        match stored_answer::read(stored) {
            Some(answer) => Known::Answered(Arc::new(answer).for_request(&call.request)),
            None => {
                let text = "This request was answered before, and the answer is no longer kept. It is not run again.";
                Known::Unknown(self.unknown(call, text))
            }
        }
    }

    fn unknown(&self, call: &mut Call, text: &str) -> Arc<Reply> {
        self.telemetry().ledger(LedgerEvent::Unknown);
        self.unrepeated(call, Cause::OutcomeUnknown, text)
    }

    /// The failure of a request whose key stands for another one.
    pub(super) fn conflict(&self) -> ToolFailure {
        self.telemetry().ledger(LedgerEvent::Conflict);
        let text =
            "The idempotency key was used for another tool or other arguments. Use a new key for another request.";
        ToolFailure::new(Cause::KeyReused, text)
    }

    /// The failure of a request that may have begun before, which cannot be found out.
    fn unreadable(&self, error: &StoreError) -> ToolFailure {
        self.telemetry().ledger(LedgerEvent::Failed);
        let text = "Whether this request had begun before cannot be found out now. It is not run.";
        as_begun(ToolFailure::new(Cause::OutcomeUnknown, text).with_detail(error))
    }

    /// The failure of a request that is not run because its beginning cannot be recorded.
    fn unrecorded(&self, error: &StoreError) -> ToolFailure {
        self.telemetry().ledger(LedgerEvent::Failed);
        let text = "That the call begins cannot be recorded now, so it was not run. Try again later.";
        ToolFailure::new(Cause::LedgerUnavailable, text).with_detail(error)
    }

    /// Step 9. Records that the tool begins, where it must not run twice or its caller wants one answer.
    pub(super) async fn start(&self, call: &mut Call, is_repeatable: bool) -> Result<(), Abort> {
        let Some(LedgerSettings { ledger, ttl, .. }) = &self.parts.settings.ledger else { return Ok(()) };
        let is_given = call.identity.is_some_and(|identity| identity.kind == IdentityKind::Given);
        if is_repeatable && !is_given {
            return Ok(());
        }
        let Some(RequestIdentity { key, fingerprint, kind }) = call.everywhere() else { return Ok(()) };
        self.renew_lease().await;
        let run = RunToken(self.random().bits().to_be_bytes());
        let is_alike = kind == IdentityKind::Content;
        let begin = Begin {
            key,
            fingerprint,
            run,
            instance: Arc::clone(&self.parts.instance.name),
            ttl: if is_alike { ALIKE_TTL.min(*ttl) } else { *ttl },
            replaces: is_alike && !call.is_redelivered,
        };
        match within(ledger.begin(begin)).await {
            Ok(Begun::Begun) => {
                call.run = Some(run);
                self.note_shed(&**ledger);
            }
            Ok(Begun::Known(entry)) => return Err(Abort::Known(entry)),
            Ok(Begun::Full) => {
                self.telemetry().ledger(LedgerEvent::Full);
                let text = "Too many calls have begun and were not answered. Try again later.";
                return Err(ToolFailure::new(Cause::Overloaded, text).with_retry_after(FULL_RETRY).into());
            }
            Err(error) => {
                // It may be recorded all the same, also after the release if that overtakes it on another connection. A retry
                // would be told that this run had begun.
                self.parts.instance.note_void(key, run);
                let _ = tokio::time::timeout(UNDO_TIME, ledger.release(key, run)).await;
                // Another daemon may have had it before, and begin it yet.
                if call.is_redelivered {
                    return Err(self.unreadable(&error).into());
                }
                return Err(self.unrecorded(&error).into());
            }
        }
        if call.deadline <= self.clock().now() { Err(deadline::passed().into()) } else { Ok(()) }
    }

    /// Writes to the log if the ledger has forgotten answers to make room: calls that come again are run again then.
    fn note_shed(&self, ledger: &dyn Ledger) {
        let LedgerUsage { shed, entries, bytes } = ledger.usage();
        if self.parts.instance.shed.fetch_max(shed, Ordering::Relaxed) < shed
            && let Some(left_out) = self.parts.log.shed.due()
        {
            tracing::warn!(shed, entries, bytes, left_out, "the ledger is full: the oldest answers are forgotten");
        }
    }

    /// Runs a call that others may ask for, and says meanwhile that this daemon is alive.
    pub(super) async fn running<T>(&self, is_recorded: bool, tool: impl Future<Output = T>) -> T {
        if !is_recorded {
            return tool.await;
        }
        tokio::select! {
            biased;
            ended = tool => ended,
            never = self.keep_lease() => match never {},
        }
    }

    async fn keep_lease(&self) -> Infallible {
        loop {
            tokio::time::sleep(RENEWAL).await;
            self.renew_lease().await;
        }
    }

    /// Says that this daemon is alive, unless that was just said. What goes wrong with it costs others a better answer only.
    async fn renew_lease(&self) {
        let Some(LedgerSettings { ledger, .. }) = &self.parts.settings.ledger else { return };
        let Instance { name, renewed, failures, .. } = &self.parts.instance;
        let now = self.clock().now();
        {
            let mut renewed = renewed.lock();
            if renewed.is_some_and(|renewed| now.saturating_duration_since(renewed) < RENEWAL) {
                return;
            }
            *renewed = Some(now);
        }
        let mut renewal = Renewal { renewed, began: now, is_done: false };
        match within(ledger.renew(Arc::clone(name), LEASE)).await {
            Ok(()) => renewal.is_done = true,
            Err(error) => {
                if let Some(left_out) = failures.due() {
                    tracing::warn!(%error, left_out, "the lease of this daemon was not renewed");
                }
            }
        }
    }

    /// What is published: an answer, once the ledger has it; or the one that another daemon has given meanwhile.
    pub(super) async fn record(&self, call: &mut Call, answer: Arc<Reply>) -> Arc<Reply> {
        let Some((ledger, key, run)) = self.recorded(call) else { return answer };
        let LedgerSettings { ledger, max_answer, .. } = ledger;
        // Nothing happened: a retry by the same key is welcome. The same message gets the same answer.
        let has_key = call.identity.is_some_and(|identity| identity.kind == IdentityKind::Given);
        if has_key && answer.outcome == Some(Outcome::NotStarted) {
            self.forget_run(call).await;
            return answer;
        }
        call.run = None;
        match within(ledger.finish(key, run, stored_answer::write(&answer, *max_answer))).await {
            Ok(Finished::Superseded(stored)) => match self.answered_before(call, &stored) {
                Known::Answered(first) => first,
                _ => answer,
            },
            Ok(Finished::Stored | Finished::Forgotten) => answer,
            Err(error) => {
                self.telemetry().ledger(LedgerEvent::Failed);
                if let Some(left_out) = self.parts.log.unrecorded.due() {
                    tracing::error!(
                        call_id = %shown(&call.request.call_id),
                        trace_id = call.span.trace_id(),
                        %error,
                        left_out,
                        "an answer was not recorded; after a crash its request is answered with an unknown outcome"
                    );
                }
                answer
            }
        }
    }

    /// Forgets that a call began, which had no effect.
    pub(super) async fn forget_run(&self, call: &mut Call) {
        let Some((LedgerSettings { ledger, .. }, key, run)) = self.recorded(call) else { return };
        call.run = None;
        if let Err(error) = within(ledger.release(key, run)).await {
            self.parts.instance.note_void(key, run);
            self.telemetry().ledger(LedgerEvent::Failed);
            tracing::warn!(
                call_id = %shown(&call.request.call_id),
                %error,
                "a call that did not begin stays recorded as begun"
            );
        }
    }

    fn recorded(&self, call: &Call) -> Option<(&LedgerSettings, RequestKey, RunToken)> {
        let (RequestIdentity { key, .. }, run) = call.recorded()?;
        Some((self.parts.settings.ledger.as_ref()?, key, run))
    }
}

/// Waits for the ledger, not without end.
async fn within<T>(operation: BoxFuture<'_, Result<T, StoreError>>) -> Result<T, StoreError> {
    let late = |_| Err(StoreError::Failed(format!("no answer within {} s", LEDGER_TIME.as_secs())));
    tokio::time::timeout(LEDGER_TIME, operation).await.unwrap_or_else(late)
}
