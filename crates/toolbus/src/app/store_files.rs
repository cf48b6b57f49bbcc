//! The parts of the store that calls need, which can fail while the daemon runs: a file system is full, a file is damaged or
//! removed, a server takes no writes.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use toolbus_core::ledger::Ledger;
use toolbus_core::store::StoreError;
use toolbus_store::SqliteMemory;

use super::watched_ledger::WatchedLedger;

/// Interval of checks of the files.
const PERIOD: Duration = Duration::from_secs(5);
/// First time between a failure of the ledger and a trial. It doubles up to [`PERIOD`].
const FIRST_TRIAL: Duration = Duration::from_millis(250);
/// Longest time for the check of a file, and for a trial, which hang where the file system does.
const CHECK_TIME: Duration = Duration::from_secs(5);

/// Checks the store until it is dropped, and reports why a part of it cannot be used.
#[derive(Debug)]
pub(super) struct StoreFiles {
    ledger: Option<Arc<WatchedLedger>>,
    memory: Option<Arc<SqliteMemory>>,
    state: watch::Sender<Vec<String>>,
}

impl StoreFiles {
    /// Checks nothing before it is run; the receiver has a line for each part that cannot be used.
    pub(super) fn new(
        ledger: Option<Arc<WatchedLedger>>,
        memory: Option<Arc<SqliteMemory>>,
    ) -> (Self, watch::Receiver<Vec<String>>) {
        let (state, receiver) = watch::channel(Vec::new());
        (Self { ledger, memory, state }, receiver)
    }

    pub(super) async fn run(self) {
        let mut failure = self.ledger.as_ref().map(|ledger| ledger.failure());
        let mut pause = FIRST_TRIAL;
        loop {
            self.step().await;
            let is_failing = failure.as_mut().is_some_and(|failure| failure.borrow_and_update().is_some());
            if is_failing {
                sleep(pause).await;
                pause = (pause * 2).min(PERIOD);
                if let Some(ledger) = &self.ledger {
                    // Its error has been reported, or the next step reports it.
                    let _ = timeout(CHECK_TIME, ledger.attempt()).await;
                }
                continue;
            }
            pause = FIRST_TRIAL;
            let failed = async {
                match &mut failure {
                    // The sender is in the ledger, which is here.
                    Some(failure) => drop(failure.changed().await),
                    None => std::future::pending().await,
                }
            };
            // A failure is reported at once.
            let _ = timeout(PERIOD, failed).await;
        }
    }

    async fn step(&self) {
        let mut found = Vec::new();
        if let Some(ledger) = &self.ledger {
            let failed = ledger.failure().borrow().as_ref().map(|failure| format!("ledger: {}", failure.error));
            found.extend(match failed {
                Some(failed) => Some(failed),
                None => failure("ledger", ledger.check()).await,
            });
        }
        if let Some(memory) = &self.memory {
            found.extend(failure("working memory", memory.check()).await);
        }
        self.state.send_if_modified(|known| {
            for reason in found.iter().filter(|reason| !known.contains(reason)) {
                tracing::warn!(reason, "the store cannot be used: calls that need it are refused");
            }
            if found.is_empty() && !known.is_empty() {
                tracing::info!("the store can be used again");
            }
            std::mem::replace(known, found.clone()) != found
        });
    }
}

/// Returns the reason for which a part cannot be used, if its check fails or does not end.
async fn failure(file: &str, check: impl Future<Output = Result<(), StoreError>>) -> Option<String> {
    match timeout(CHECK_TIME, check).await {
        Ok(checked) => checked.err().map(|error| format!("{file}: {error}")),
        Err(_) => Some(format!("{file}: its file system has not answered for {} s", CHECK_TIME.as_secs())),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use toolbus_core::Clock;
    use toolbus_core::ledger::{Begin, Begun, Fingerprint, LedgerLimits, RequestKey, RunToken};
    use toolbus_store::{MemoryLedger, SqliteLedger};
    use toolbus_testing::faulty_ledger::FaultyLedger;
    use toolbus_testing::faulty_store::StoreFault;

    use super::*;

    const LIMITS: LedgerLimits = LedgerLimits { max_entries: 10_000, max_bytes: 1 << 30 };
    fn faulty(fault: impl Into<Option<StoreFault>>) -> Arc<FaultyLedger> {
        let ledger = FaultyLedger::new(Arc::new(MemoryLedger::new(LIMITS, Clock::SYSTEM)));
        ledger.set(fault);
        Arc::new(ledger)
    }

    fn begin(key: RequestKey) -> Begin {
        let (fingerprint, run, instance) = (Fingerprint([1; 32]), RunToken([2; 16]), "lab".into());
        Begin { key, fingerprint, run, instance, ttl: Duration::from_secs(3600), replaces: false }
    }

    #[tokio::test(start_paused = true)]
    async fn a_hanging_file_system_is_reported() {
        let (files, state) = StoreFiles::new(Some(Arc::new(WatchedLedger::new(faulty(StoreFault::Silent)))), None);
        timeout(CHECK_TIME * 2, files.step()).await.unwrap();
        assert_eq!(*state.borrow(), ["ledger: its file system has not answered for 5 s"]);
    }

    #[tokio::test(start_paused = true)]
    async fn an_unwritable_ledger_is_reported_from_the_first_failure_until_it_recovers() {
        let faulty = faulty(None);
        let ledger = Arc::new(WatchedLedger::new(Arc::clone(&faulty) as _));
        let (files, mut state) = StoreFiles::new(Some(Arc::clone(&ledger)), None);
        let mut running = tokio::task::JoinSet::new();
        running.spawn(files.run());
        assert_eq!(ledger.begin(begin(RequestKey([0; 32]))).await, Ok(Begun::Begun));
        assert!(state.borrow().is_empty());
        faulty.set(StoreFault::Unwritable);
        let failed = Clock::SYSTEM.now();
        ledger.begin(begin(RequestKey([1; 32]))).await.unwrap_err();
        state.wait_for(|found| *found == ["ledger: the store failed: the disk is full"]).await.unwrap();
        assert_eq!(Clock::SYSTEM.since(failed), Duration::ZERO);
        // No call comes meanwhile.
        assert!(timeout(Duration::from_secs(60), state.changed()).await.is_err());
        faulty.set(None);
        timeout(PERIOD + CHECK_TIME, state.wait_for(Vec::is_empty)).await.unwrap().unwrap();
        assert_eq!(ledger.look_up(RequestKey([1; 32])).await, Ok(None));
    }

    /// Overwrites the page of the index of keys that has this one.
    fn damage(path: &Path, key: RequestKey) {
        const PAGE: usize = 4096;
        const LEAF_OF_INDEX: u8 = 10;
        let mut file = std::fs::read(path).unwrap();
        let has_key = |page: &&mut [u8]| page[0] == LEAF_OF_INDEX && page.windows(32).any(|bytes| bytes == key.0);
        file.chunks_mut(PAGE).find(has_key).unwrap().fill(0xff);
        std::fs::write(path, file).unwrap();
    }

    #[tokio::test]
    async fn a_damaged_page_is_reported_as_long_as_it_is_damaged() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("toolbus.db");
        let key = |number: u16| {
            let mut key = [0; 32];
            key[..2].copy_from_slice(&number.wrapping_mul(40_503).to_be_bytes());
            RequestKey(key)
        };
        let open = || Arc::new(WatchedLedger::new(Arc::new(SqliteLedger::open(&path, LIMITS, Clock::SYSTEM).unwrap())));
        let ledger = open();
        for number in 0..1_000 {
            ledger.begin(begin(key(number))).await.unwrap();
        }
        // The threads write the log into the file when they end; two that end at the same moment may both leave that to the
        // other.
        drop(ledger);
        let log = path.with_extension("db-wal");
        toolbus_testing::patience::eventually("the end of the log", async || {
            let is_written = !log.exists();
            if !is_written {
                drop(open());
            }
            is_written.then_some(())
        })
        .await;
        damage(&path, key(501));

        let ledger = open();
        ledger.begin(begin(key(1_500))).await.unwrap();
        assert!(ledger.failure().borrow().is_none(), "other pages are whole");
        let RequestKey(mut beside) = key(501);
        beside[31] = 8;
        ledger.begin(begin(RequestKey(beside))).await.unwrap_err();
        assert_eq!(ledger.check().await, Ok(()));
        ledger.attempt().await.unwrap_err();
        assert!(ledger.failure().borrow().is_some());
    }
}
