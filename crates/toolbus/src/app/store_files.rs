//! The files of the store, which can fail while the daemon runs: their file system is full, or they are removed.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, timeout};
use toolbus_core::ledger::Ledger;
use toolbus_core::store::StoreError;
use toolbus_store::SqliteMemory;

/// How often the files are checked.
const PERIOD: Duration = Duration::from_secs(5);
/// Longest time for the check of a file. It does not end while the file system does not answer.
const CHECK_TIME: Duration = Duration::from_secs(5);

/// Checks the files of the store until it is dropped, and tells why one cannot be written.
#[derive(Debug)]
pub(super) struct StoreFiles {
    ledger: Option<Arc<dyn Ledger>>,
    memory: Option<Arc<SqliteMemory>>,
    state: watch::Sender<Vec<String>>,
}

impl StoreFiles {
    /// Checks nothing before it is run; the receiver has a line for each file that cannot be written.
    pub(super) fn new(
        ledger: Option<Arc<dyn Ledger>>,
        memory: Option<Arc<SqliteMemory>>,
    ) -> (Self, watch::Receiver<Vec<String>>) {
        let (state, receiver) = watch::channel(Vec::new());
        (Self { ledger, memory, state }, receiver)
    }

    pub(super) async fn run(self) {
        let mut ticks = interval(PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.step().await;
        }
    }

    async fn step(&self) {
        let mut found = Vec::new();
        if let Some(ledger) = &self.ledger {
            found.extend(failure("ledger", ledger.check()).await);
        }
        if let Some(memory) = &self.memory {
            found.extend(failure("working memory", memory.check()).await);
        }
        self.state.send_if_modified(|known| {
            for reason in found.iter().filter(|reason| !known.contains(reason)) {
                tracing::warn!(reason, "a file of the store cannot be written");
            }
            if found.is_empty() && !known.is_empty() {
                tracing::info!("the files of the store can be written again");
            }
            std::mem::replace(known, found.clone()) != found
        });
    }
}

/// Why a file cannot be written, if its check fails or does not end.
async fn failure(file: &str, check: impl Future<Output = Result<(), StoreError>>) -> Option<String> {
    match timeout(CHECK_TIME, check).await {
        Ok(checked) => checked.err().map(|error| format!("{file}: {error}")),
        Err(_) => Some(format!("{file}: its file system has not answered for {} s", CHECK_TIME.as_secs())),
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use futures_util::FutureExt;
    use futures_util::future::{BoxFuture, pending};
    use toolbus_core::ledger::{Begin, Begun, Finished, LedgerEntry, LedgerUsage, RequestKey, RunToken};

    use super::*;

    /// A ledger on a file system that does not answer.
    #[derive(Debug)]
    struct Hanging;

    impl Ledger for Hanging {
        fn look_up(&self, _: RequestKey) -> BoxFuture<'_, Result<Option<LedgerEntry>, StoreError>> {
            pending().boxed()
        }

        fn begin(&self, _: Begin) -> BoxFuture<'_, Result<Begun, StoreError>> {
            pending().boxed()
        }

        fn finish(&self, _: RequestKey, _: RunToken, _: Bytes) -> BoxFuture<'_, Result<Finished, StoreError>> {
            pending().boxed()
        }

        fn release(&self, _: RequestKey, _: RunToken) -> BoxFuture<'_, Result<(), StoreError>> {
            pending().boxed()
        }

        fn renew(&self, _: Arc<str>, _: Duration) -> BoxFuture<'_, Result<(), StoreError>> {
            pending().boxed()
        }

        fn usage(&self) -> LedgerUsage {
            LedgerUsage::default()
        }

        fn check(&self) -> BoxFuture<'_, Result<(), StoreError>> {
            pending().boxed()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_file_system_that_does_not_answer_is_told() {
        let (files, state) = StoreFiles::new(Some(Arc::new(Hanging)), None);
        timeout(CHECK_TIME * 2, files.step()).await.unwrap();
        assert_eq!(*state.borrow(), ["ledger: its file system has not answered for 5 s"]);
    }
}
