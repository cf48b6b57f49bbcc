//! The ledger's records of calls: that a tool begins (step 9), and the reply, before it is published.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use toolbus_protocol::{Outcome, Random};

use super::key::{CallIdentity, IdentityKind, RequestIdentity};
use super::ledger::{Begin, Begun, Finished, Ledger, LedgerEntry, LedgerSettings, LedgerUsage, RequestKey, RunToken};
use crate::Clock;
use crate::deadline;
use crate::failure::{Cause, ToolFailure};
use crate::reply::{Reply, stored};
use crate::request::Request;
use crate::store::StoreError;
use crate::telemetry::{LedgerEvent, Telemetry};
use crate::text::shown;
use crate::throttle::Throttle;

/// Longest wait for one operation of the ledger.
const LEDGER_TIME: Duration = Duration::from_secs(10);
/// Longest wait until what may have been recorded in vain is forgotten. The ledger gets to it later, too.
const UNDO_TIME: Duration = Duration::from_secs(1);
/// Time for which a daemon is taken to be alive after its last sign of life.
const LEASE: Duration = Duration::from_secs(5);
/// Time between two renewals of the lease while calls run that may come again.
const RENEWAL: Duration = Duration::from_millis(1_500);
/// Time that the entry of a request is kept that cannot be distinguished from others like it: as long as it may take
/// until an unacknowledged message is delivered again.
const ALIKE_TTL: Duration = Duration::from_mins(15);
/// Wait that a caller is given while the ledger is full.
const FULL_RETRY: Duration = Duration::from_secs(5);

/// Runs that are remembered because the ledger may have them although they had no effect.
const MAX_VOID: usize = 1024;

/// Keeps the ledger for this daemon: what began here, the replies, and the lease of the daemon.
pub(crate) struct Recorder {
    settings: Option<LedgerSettings>,
    telemetry: Arc<dyn Telemetry>,
    clock: Clock,
    random: Random,
    /// Name of this daemon in the ledger.
    name: Arc<str>,
    /// The latest runs that had no effect and that the ledger may have as begun, because an operation failed.
    void: Mutex<VecDeque<(RequestKey, RunToken)>>,
    /// Time at which the daemon last renewed its lease.
    renewed: Mutex<Option<Instant>>,
    /// Replies that the ledger has forgotten before their time, as last logged.
    shed: AtomicU64,
    log: RecorderLog,
}

/// Reason for which a tool must not begin.
pub(crate) enum NotBegun {
    /// Another daemon has begun the request, or answered it.
    Known(LedgerEntry),
    /// The caller gets this failure.
    Refused(ToolFailure),
}

/// Lines that may repeat for as long as a state lasts.
#[derive(Default)]
struct RecorderLog {
    not_renewed: Throttle,
    shed: Throttle,
    unrecorded: Throttle,
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

impl Recorder {
    /// Keeps no ledger if `settings` has none.
    pub(crate) fn new(
        settings: Option<LedgerSettings>,
        telemetry: Arc<dyn Telemetry>,
        clock: Clock,
        random: Random,
    ) -> Self {
        Self {
            settings,
            telemetry,
            clock,
            random,
            name: random.id().into(),
            void: Mutex::default(),
            renewed: Mutex::default(),
            shed: AtomicU64::new(0),
            log: RecorderLog::default(),
        }
    }

    /// The ledger, if there is one.
    pub(crate) fn ledger(&self) -> Option<&dyn Ledger> {
        self.settings.as_ref().map(|settings| &*settings.ledger)
    }

    /// Looks a request up.
    ///
    /// # Errors
    ///
    /// If the ledger cannot be read.
    pub(crate) async fn look_up(&self, key: RequestKey) -> Result<Option<LedgerEntry>, StoreError> {
        match self.ledger() {
            Some(ledger) => within(ledger.look_up(key)).await,
            None => Ok(None),
        }
    }

    /// Forgets a run.
    ///
    /// # Errors
    ///
    /// If the ledger cannot be written.
    pub(crate) async fn release(&self, key: RequestKey, run: RunToken) -> Result<(), StoreError> {
        match self.ledger() {
            Some(ledger) => within(ledger.release(key, run)).await,
            None => Ok(()),
        }
    }

    /// Ends a run with its reply.
    ///
    /// # Errors
    ///
    /// If the ledger cannot be written.
    pub(crate) async fn finish(&self, key: RequestKey, run: RunToken, reply: &Reply) -> Result<Finished, StoreError> {
        match &self.settings {
            Some(LedgerSettings { ledger, max_reply, .. }) => {
                within(ledger.finish(key, run, stored::write(reply, *max_reply))).await
            }
            None => Ok(Finished::Forgotten),
        }
    }

    /// Whether a run that the ledger has as begun is one of another daemon.
    pub(crate) fn is_of_other(&self, instance: &str) -> bool {
        *self.name != *instance
    }

    fn note_void(&self, key: RequestKey, run: RunToken) {
        let mut void = self.void.lock();
        if void.len() >= MAX_VOID {
            void.pop_front();
        }
        void.push_back((key, run));
    }

    /// Whether a run that the ledger has as begun had no effect here. Its caller got the outcome `not_started`, and may
    /// use the same key for another request.
    pub(crate) fn is_void(&self, key: RequestKey, run: RunToken) -> bool {
        self.void.lock().contains(&(key, run))
    }

    /// The failure of a request whose key stands for another one.
    pub(crate) fn conflict(&self) -> ToolFailure {
        self.telemetry.ledger(LedgerEvent::Conflict);
        let text =
            "The idempotency key was used for another tool or other arguments. Use a new key for another request.";
        ToolFailure::new(Cause::KeyReused, text)
    }

    /// The failure of a request that may have begun before, which cannot be found out.
    pub(crate) fn unreadable(&self, error: &StoreError) -> ToolFailure {
        self.telemetry.ledger(LedgerEvent::Failed);
        let text = "Whether this request had begun before cannot be found out now. It is not run.";
        ToolFailure::new(Cause::OutcomeUnknown, text).with_detail(error).begun()
    }

    /// The failure of a request that is not run because its beginning cannot be recorded.
    pub(crate) fn unrecorded(&self, error: &StoreError) -> ToolFailure {
        self.telemetry.ledger(LedgerEvent::Failed);
        let text = "That the call begins cannot be recorded now, so it was not run. Try again later.";
        ToolFailure::new(Cause::LedgerUnavailable, text).with_detail(error)
    }

    /// Step 9. Records that the tool begins, where it must not run twice or its caller wants one reply.
    ///
    /// # Errors
    ///
    /// If the tool must not begin.
    pub(crate) async fn start(
        &self,
        identity: &mut CallIdentity,
        request: &Request,
        deadline: Instant,
        is_repeatable: bool,
    ) -> Result<(), NotBegun> {
        let Some(LedgerSettings { ledger, ttl, .. }) = &self.settings else { return Ok(()) };
        if is_repeatable && !identity.is_given() {
            return Ok(());
        }
        let Some(RequestIdentity { key, fingerprint, kind }) = identity.everywhere(request) else { return Ok(()) };
        self.renew_lease().await;
        let run = RunToken(self.random.bits().to_be_bytes());
        let is_alike = kind == IdentityKind::Content;
        let begin = Begin {
            key,
            fingerprint,
            run,
            instance: Arc::clone(&self.name),
            ttl: if is_alike { ALIKE_TTL.min(*ttl) } else { *ttl },
            replaces: is_alike && !identity.is_redelivered,
        };
        let refused = match within(ledger.begin(begin)).await {
            Ok(Begun::Begun) => {
                identity.run = Some(run);
                self.note_shed(&**ledger);
                None
            }
            Ok(Begun::Known(entry)) => Some(NotBegun::Known(entry)),
            Ok(Begun::Full) => {
                self.telemetry.ledger(LedgerEvent::Full);
                let text = "Too many calls have begun and were not answered. Try again later.";
                Some(NotBegun::Refused(ToolFailure::new(Cause::Overloaded, text).with_retry_after(FULL_RETRY)))
            }
            // It needs no record. There may be one all the same, which its reply ends.
            Err(_) if is_repeatable => {
                self.telemetry.ledger(LedgerEvent::Failed);
                identity.run = Some(run);
                None
            }
            Err(error) => {
                // It may be recorded all the same, also after the release if that overtakes it on another connection. A
                // retry would find this run begun.
                self.note_void(key, run);
                let _ = tokio::time::timeout(UNDO_TIME, ledger.release(key, run)).await;
                // Another daemon may have had it before, and begin it yet.
                Some(NotBegun::Refused(match identity.is_redelivered {
                    true => self.unreadable(&error),
                    false => self.unrecorded(&error),
                }))
            }
        };
        let is_late = || deadline <= self.clock.now();
        refused.or_else(|| is_late().then(|| NotBegun::Refused(deadline::passed()))).map_or(Ok(()), Err)
    }

    /// Writes to the log if the ledger has forgotten replies to make room: calls that come again are run again then.
    fn note_shed(&self, ledger: &dyn Ledger) {
        let LedgerUsage { shed, entries, bytes } = ledger.usage();
        if self.shed.fetch_max(shed, Ordering::Relaxed) < shed
            && let Some(left_out) = self.log.shed.due()
        {
            tracing::warn!(shed, entries, bytes, left_out, "the ledger is full: the oldest replies are forgotten");
        }
    }

    /// Runs a call that may come again, and renews the lease of this daemon meanwhile.
    pub(crate) async fn running<T>(&self, is_recorded: bool, tool: impl Future<Output = T>) -> T {
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

    /// Renews the lease of this daemon, unless it was just renewed. A failure only costs others a better reply.
    async fn renew_lease(&self) {
        let Some(LedgerSettings { ledger, .. }) = &self.settings else { return };
        let Self { name, renewed, log, .. } = self;
        let now = self.clock.now();
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
                if let Some(left_out) = log.not_renewed.due() {
                    tracing::warn!(%error, left_out, "the lease of this daemon was not renewed");
                }
            }
        }
    }

    /// Returns the reply to publish: this one, once the ledger has it; or the one that another daemon has given
    /// meanwhile.
    pub(crate) async fn record(
        &self,
        identity: &mut CallIdentity,
        request: &Request,
        trace_id: Option<&str>,
        reply: Arc<Reply>,
    ) -> Arc<Reply> {
        let Some((key, run)) = self.recorded(identity) else { return reply };
        // Nothing happened: a retry by the same key is welcome. The same message gets the same reply.
        if identity.is_given() && reply.outcome == Some(Outcome::NotStarted) {
            self.forget_run(identity, &request.call_id).await;
            return reply;
        }
        identity.run = None;
        match self.finish(key, run, &reply).await {
            Ok(Finished::Superseded(kept)) => {
                stored::read(&kept).map_or(reply, |first| Arc::new(first).for_request(request))
            }
            Ok(Finished::Stored | Finished::Forgotten) => reply,
            Err(error) => {
                self.telemetry.ledger(LedgerEvent::Failed);
                if let Some(left_out) = self.log.unrecorded.due() {
                    tracing::error!(
                        call_id = %shown(&request.call_id),
                        trace_id,
                        %error,
                        left_out,
                        "a reply was not recorded in the ledger; after a crash its request gets outcome unknown"
                    );
                }
                reply
            }
        }
    }

    /// Forgets that a call began, which had no effect.
    pub(crate) async fn forget_run(&self, identity: &mut CallIdentity, call_id: &str) {
        let Some((key, run)) = self.recorded(identity) else { return };
        identity.run = None;
        if let Err(error) = self.release(key, run).await {
            self.note_void(key, run);
            self.telemetry.ledger(LedgerEvent::Failed);
            tracing::warn!(
                call_id = %shown(call_id),
                %error,
                "a call that did not begin stays recorded as begun"
            );
        }
    }

    fn recorded(&self, identity: &CallIdentity) -> Option<(RequestKey, RunToken)> {
        self.settings.as_ref().and_then(|_| identity.recorded())
    }
}

/// Waits for the ledger, not without end.
async fn within<T>(operation: BoxFuture<'_, Result<T, StoreError>>) -> Result<T, StoreError> {
    let late = |_| Err(StoreError::Failed(format!("no answer within {} s", LEDGER_TIME.as_secs())));
    tokio::time::timeout(LEDGER_TIME, operation).await.unwrap_or_else(late)
}
