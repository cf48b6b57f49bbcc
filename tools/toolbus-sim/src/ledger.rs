//! The ledger as one process sees it: each operation takes time, may fail, and the process may end meanwhile.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use toolbus_core::Clock;
use toolbus_core::ledger::{
    Begin, Begun, Finished, Ledger, LedgerEntry, LedgerLimits, LedgerUsage, RequestKey, RunToken,
};
use toolbus_core::store::StoreError;
use toolbus_store::{MemoryLedger, OpenError, SqliteLedger};

use crate::context::{Fault, ScheduleContext};

/// Limits of what a ledger keeps: more than any schedule needs.
const LIMITS: LedgerLimits = LedgerLimits { max_entries: 10_000, max_bytes: 64 * 1024 * 1024 };

/// Ledgers whose entries outlive a process.
#[derive(Clone)]
pub(crate) enum LedgerStorage {
    Memory(Arc<MemoryLedger>),
    /// A file, which each process opens by itself.
    File(PathBuf, Clock),
}

impl LedgerStorage {
    /// In this file, or else in memory.
    pub(crate) fn new(file: Option<PathBuf>, context: &ScheduleContext) -> Self {
        match file {
            // The thread of a file does not see the paused clock.
            Some(path) => Self::File(path, Clock::manual()),
            None => Self::Memory(Arc::new(MemoryLedger::new(LIMITS, context.clock))),
        }
    }

    fn open(&self) -> Result<Arc<dyn Ledger>, OpenError> {
        Ok(match self {
            Self::Memory(ledger) => Arc::clone(ledger) as Arc<dyn Ledger>,
            Self::File(path, clock) => Arc::new(SqliteLedger::open(path, LIMITS, *clock)?),
        })
    }
}

/// A ledger that several processes share, and that outlives them.
pub(crate) struct SimLedger {
    shared: Arc<dyn Ledger>,
    storage: LedgerStorage,
    context: Arc<ScheduleContext>,
    /// Whether the process lives.
    alive: Arc<AtomicBool>,
}

impl SimLedger {
    pub(crate) fn open(
        storage: &LedgerStorage,
        context: &Arc<ScheduleContext>,
        alive: &Arc<AtomicBool>,
    ) -> Result<Self, OpenError> {
        let (shared, storage) = (storage.open()?, storage.clone());
        Ok(Self { shared, storage, context: Arc::clone(context), alive: Arc::clone(alive) })
    }

    /// Runs one operation between two waits, at either of which a process that is gone stays.
    async fn perform<'a, T>(
        &'a self,
        operation: impl FnOnce() -> BoxFuture<'a, Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        self.wait().await;
        let fails = self.context.strikes(Fault::LedgerFailed, "ledger", "an operation");
        if fails && self.context.chance.percent(50) {
            return Err(StoreError::Failed("on purpose, before it was done".to_owned()));
        }
        if let LedgerStorage::File(_, clock) = &self.storage {
            clock.advance(self.context.clock.since_epoch().saturating_sub(clock.since_epoch()));
        }
        let result = finish_here(operation());
        self.wait().await;
        if fails { Err(StoreError::Failed("on purpose, after it was done".to_owned())) } else { result }
    }

    async fn wait(&self) {
        tokio::time::sleep(self.context.chance.millis(0..=2)).await;
        if !self.alive.load(Ordering::Relaxed) {
            std::future::pending().await
        }
    }
}

/// Waits for a future on this thread, during which no time passes in the schedule.
fn finish_here<T>(future: BoxFuture<'_, T>) -> T {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = tokio::task::unconstrained(future);
    loop {
        match future.poll_unpin(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => thread::park(),
        }
    }
}

impl fmt::Debug for SimLedger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shared.fmt(f)
    }
}

impl Ledger for SimLedger {
    fn look_up(&self, key: RequestKey) -> BoxFuture<'_, Result<Option<LedgerEntry>, StoreError>> {
        self.perform(move || self.shared.look_up(key)).boxed()
    }

    fn begin(&self, begin: Begin) -> BoxFuture<'_, Result<Begun, StoreError>> {
        self.perform(move || self.shared.begin(begin)).boxed()
    }

    fn finish(&self, key: RequestKey, run: RunToken, reply: Bytes) -> BoxFuture<'_, Result<Finished, StoreError>> {
        self.perform(move || self.shared.finish(key, run, reply)).boxed()
    }

    fn release(&self, key: RequestKey, run: RunToken) -> BoxFuture<'_, Result<(), StoreError>> {
        self.perform(move || self.shared.release(key, run)).boxed()
    }

    fn renew(&self, instance: Arc<str>, lease: Duration) -> BoxFuture<'_, Result<(), StoreError>> {
        self.perform(move || self.shared.renew(instance, lease)).boxed()
    }

    fn usage(&self) -> LedgerUsage {
        self.shared.usage()
    }
}
