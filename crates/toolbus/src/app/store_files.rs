//! The files of the store, which can fail while the daemon runs: their file system is full, or they are removed.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};
use toolbus_core::ledger::Ledger;
use toolbus_store::SqliteMemory;

/// How often the files are checked.
const PERIOD: Duration = Duration::from_secs(5);

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
        if let Some(ledger) = &self.ledger
            && let Err(error) = ledger.check().await
        {
            found.push(format!("ledger: {error}"));
        }
        if let Some(memory) = &self.memory
            && let Err(error) = memory.check().await
        {
            found.push(format!("working memory: {error}"));
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
