//! The ledger as the dispatcher uses it, which notes failed operations and can try one itself.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use tokio::sync::watch;
use toolbus_core::ledger::{
    Begin, Begun, Fingerprint, Finished, Ledger, LedgerEntry, LedgerUsage, RequestKey, RunToken,
};
use toolbus_core::store::StoreError;
use toolbus_protocol::Random;

/// Time for which the entry of a trial is kept.
const TRIAL_TTL: Duration = Duration::from_secs(1);
/// Length of the reply of a trial, in bytes: as long as a large one.
const TRIAL_REPLY: usize = 64 * 1024;

/// A ledger, and whether calls can use it.
#[derive(Debug)]
pub(super) struct WatchedLedger {
    ledger: Arc<dyn Ledger>,
    failure: watch::Sender<Option<LedgerFailure>>,
}

/// An operation that failed.
#[derive(Debug, Clone)]
pub(super) struct LedgerFailure {
    key: RequestKey,
    pub(super) error: StoreError,
}

impl WatchedLedger {
    pub(super) fn new(ledger: Arc<dyn Ledger>) -> Self {
        Self { ledger, failure: watch::Sender::default() }
    }

    /// The first failed operation of a call since the last successful [trial](Self::attempt). Later failures are no
    /// change.
    pub(super) fn failure(&self) -> watch::Receiver<Option<LedgerFailure>> {
        self.failure.subscribe()
    }

    /// Tries after a failure the operations of a call: begins, and records a reply. The key is beside the failed one,
    /// and so is its entry in a file, of which a part may be damaged. A success ends the failure.
    ///
    /// # Errors
    ///
    /// As the operation that fails.
    pub(super) async fn attempt(&self) -> Result<(), StoreError> {
        let Some(LedgerFailure { key, .. }) = self.failure.borrow().clone() else { return Ok(()) };
        let RequestKey(mut beside) = key;
        if let Some(last) = beside.last_mut() {
            *last ^= 1;
        }
        let (key, run) = (RequestKey(beside), RunToken(Random::SYSTEM.bits().to_be_bytes()));
        self.ledger.look_up(key).await?;
        let (fingerprint, instance) = (Fingerprint([0; 32]), "trial".into());
        let begun =
            self.ledger.begin(Begin { key, fingerprint, run, instance, ttl: TRIAL_TTL, replaces: true }).await?;
        if begun == Begun::Begun {
            self.ledger.finish(key, run, vec![0; TRIAL_REPLY].into()).await?;
        }
        self.failure.send_replace(None);
        Ok(())
    }

    /// Waits for an operation, and notes if it fails.
    fn noted<'a, T: Send + 'a>(
        &'a self,
        key: RequestKey,
        operation: BoxFuture<'a, Result<T, StoreError>>,
    ) -> BoxFuture<'a, Result<T, StoreError>> {
        async move {
            let result = operation.await;
            if let Err(error) = &result {
                let failure = LedgerFailure { key, error: error.clone() };
                self.failure.send_if_modified(|last| last.replace(failure).is_none());
            }
            result
        }
        .boxed()
    }
}

impl Ledger for WatchedLedger {
    fn look_up(&self, key: RequestKey) -> BoxFuture<'_, Result<Option<LedgerEntry>, StoreError>> {
        self.noted(key, self.ledger.look_up(key))
    }

    fn begin(&self, begin: Begin) -> BoxFuture<'_, Result<Begun, StoreError>> {
        self.noted(begin.key, self.ledger.begin(begin))
    }

    fn finish(&self, key: RequestKey, run: RunToken, reply: Bytes) -> BoxFuture<'_, Result<Finished, StoreError>> {
        self.noted(key, self.ledger.finish(key, run, reply))
    }

    fn release(&self, key: RequestKey, run: RunToken) -> BoxFuture<'_, Result<(), StoreError>> {
        self.noted(key, self.ledger.release(key, run))
    }

    /// Not noted: no call is refused for it.
    fn renew(&self, instance: Arc<str>, lease: Duration) -> BoxFuture<'_, Result<(), StoreError>> {
        self.ledger.renew(instance, lease)
    }

    fn usage(&self) -> LedgerUsage {
        self.ledger.usage()
    }

    fn check(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        self.ledger.check()
    }
}
