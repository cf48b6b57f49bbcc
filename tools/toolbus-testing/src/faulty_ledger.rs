//! A ledger that fails as a test decides.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use toolbus_core::ledger::{Begin, Begun, Finished, Ledger, LedgerEntry, LedgerUsage, RequestKey, RunToken};
use toolbus_core::store::StoreError;

use crate::faulty_store::StoreFault;
use crate::locked;

/// A ledger that counts renewals, and fails on demand.
#[derive(Debug)]
pub struct FaultyLedger {
    kept: Arc<dyn Ledger>,
    fault: Mutex<Option<StoreFault>>,
    next: Mutex<Vec<(LedgerOperation, StoreFault)>>,
    renewals: AtomicUsize,
}

/// Kind of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LedgerOperation {
    /// [`Ledger::look_up`].
    LookUp,
    /// [`Ledger::begin`].
    Begin,
    /// [`Ledger::finish`].
    Finish,
    /// [`Ledger::release`].
    Release,
    /// [`Ledger::renew`].
    Renew,
    /// [`Ledger::check`].
    Check,
}

impl FaultyLedger {
    /// Returns a ledger that keeps its entries in another, which does not fail.
    pub fn new(kept: Arc<dyn Ledger>) -> Self {
        Self { kept, fault: Mutex::default(), next: Mutex::default(), renewals: AtomicUsize::new(0) }
    }

    /// Has operations fail from now on, or none.
    pub fn set(&self, fault: impl Into<Option<StoreFault>>) {
        *locked(&self.fault) = fault.into();
    }

    /// Has the next operation of a kind fail; each further call adds one failure.
    pub fn fail_once(&self, operation: LedgerOperation, fault: StoreFault) {
        locked(&self.next).push((operation, fault));
    }

    /// Returns the number of renewals.
    pub fn renewals(&self) -> usize {
        self.renewals.load(Ordering::SeqCst)
    }

    fn run<'a, T: Send + 'a>(
        &self,
        kind: LedgerOperation,
        operation: impl FnOnce() -> BoxFuture<'a, Result<T, StoreError>> + Send + 'a,
    ) -> BoxFuture<'a, Result<T, StoreError>> {
        let mut next = locked(&self.next);
        let once = next.iter().position(|(failing, _)| *failing == kind).map(|first| next.remove(first).1);
        let is_write = !matches!(kind, LedgerOperation::LookUp | LedgerOperation::Check);
        match once.or(*locked(&self.fault)) {
            Some(fault) => fault.apply(operation, is_write).boxed(),
            None => operation(),
        }
    }
}

impl Ledger for FaultyLedger {
    fn look_up(&self, key: RequestKey) -> BoxFuture<'_, Result<Option<LedgerEntry>, StoreError>> {
        self.run(LedgerOperation::LookUp, move || self.kept.look_up(key))
    }

    fn begin(&self, begin: Begin) -> BoxFuture<'_, Result<Begun, StoreError>> {
        self.run(LedgerOperation::Begin, move || self.kept.begin(begin))
    }

    fn finish(&self, key: RequestKey, run: RunToken, reply: Bytes) -> BoxFuture<'_, Result<Finished, StoreError>> {
        self.run(LedgerOperation::Finish, move || self.kept.finish(key, run, reply))
    }

    fn release(&self, key: RequestKey, run: RunToken) -> BoxFuture<'_, Result<(), StoreError>> {
        self.run(LedgerOperation::Release, move || self.kept.release(key, run))
    }

    fn renew(&self, instance: Arc<str>, lease: Duration) -> BoxFuture<'_, Result<(), StoreError>> {
        self.renewals.fetch_add(1, Ordering::SeqCst);
        self.run(LedgerOperation::Renew, move || self.kept.renew(instance, lease))
    }

    fn usage(&self) -> LedgerUsage {
        self.kept.usage()
    }

    fn check(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        self.run(LedgerOperation::Check, move || self.kept.check())
    }
}
