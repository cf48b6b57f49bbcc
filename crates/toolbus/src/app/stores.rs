//! State that a process keeps: the store, the ledger and working memory; of a command, for its time.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use toolbus_core::Clock;
use toolbus_core::store::Store;
use toolbus_memory::working_memory::WorkingMemory;
use toolbus_store::{FileClaim, OpenMemory, OpenStore, Redis, SqliteMemory, StoreOpenError, StoreUrl, hand_over};

use super::store_files::StoreFiles;
use super::watched_ledger::WatchedLedger;
use crate::config::Config;
use crate::families::volatile_memory;

/// Time for the end of a daemon after its calls, and between two tries to have its file.
const CLOSING_TIME: Duration = Duration::from_secs(15);
const CLAIM_PERIOD: Duration = Duration::from_millis(250);

/// State that a process keeps.
pub(super) struct Stores {
    pub(super) store: Arc<dyn Store>,
    /// The same, where it is on a server that replicas share.
    pub(super) redis: Option<Arc<Redis>>,
    /// Keeps other daemons from the store's file.
    pub(super) claim: Option<FileClaim>,
    /// Absent in a command.
    pub(super) ledger: Option<Arc<WatchedLedger>>,
    /// Working memory; absent where there is none.
    pub(super) memory: Option<Arc<dyn WorkingMemory>>,
    /// Whether state is in memory because the file of the state folder cannot be used.
    pub(super) is_fallback: bool,
    /// Checks the files of the store, once it is run.
    pub(super) files: StoreFiles,
    /// Reason why they cannot be written, a line for each that cannot.
    pub(super) unwritable: watch::Receiver<Vec<String>>,
}

impl Stores {
    /// Opens those of a daemon.
    ///
    /// # Errors
    ///
    /// If one cannot be opened.
    pub(super) async fn open(config: &Config, holder: &str) -> Result<Self, StoreOpenError> {
        if config.store.url.is_none() {
            match Self::open_in_state_folder(config, holder).await {
                Ok(stores) => return Ok(stores),
                Err(why) => tracing::warn!(
                    why,
                    "state is in memory: after a crash calls that had begun may run twice, and switches, schedules and \
                     working memory are lost when the daemon ends; set store.url"
                ),
            }
            let mut config = config.clone();
            config.store.state_file = None;
            return Ok(Self { is_fallback: true, ..Self::open_named(&config, holder).await? });
        }
        Self::open_named(config, holder).await
    }

    /// Opens those in the state folder, which is made.
    async fn open_in_state_folder(config: &Config, holder: &str) -> Result<Self, String> {
        let file = config.store.state_file.as_ref().ok_or(
            "none of $STATE_DIRECTORY, /var/lib/toolbus, $XDG_STATE_HOME/toolbus and ~/.local/state/toolbus can be written",
        )?;
        if let Some(folder) = file.parent() {
            let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
            made.map_err(|error| format!("the folder `{}` cannot be made: {error}", folder.display()))?;
            hand_over(folder);
        }
        let stores = Self::open_named(config, holder).await.map_err(|error| error.to_string())?;
        tracing::info!(file = %file.display(), "state is kept");
        Ok(stores)
    }

    async fn open_named(config: &Config, holder: &str) -> Result<Self, StoreOpenError> {
        let open = open_store(config, holder).await?;
        let ledger = Arc::new(WatchedLedger::new(config.store.open_ledger(config.ledger.limits(), &open)?));
        let memory = match &config.memory {
            Some(section) => Some(config.store.open_memory(section.limits(), &open)?),
            None => None,
        };
        if memory.is_some() && config.store.url == Some(StoreUrl::Memory) {
            tracing::info!("working memory is lost when the daemon ends: store.url is \"memory:\"");
        }
        let (memory, file) = memory.map(|OpenMemory { memory, file }| (memory, file)).unzip();
        Ok(Self::of(open, Some(ledger), memory, file.flatten()))
    }

    /// Those of a command.
    pub(super) fn in_memory(config: &Config) -> Self {
        Self::of(OpenStore::in_memory(), None, volatile_memory(config), None)
    }

    fn of(
        OpenStore { store, shared: redis, claim }: OpenStore,
        ledger: Option<Arc<WatchedLedger>>,
        memory: Option<Arc<dyn WorkingMemory>>,
        file: Option<Arc<SqliteMemory>>,
    ) -> Self {
        let (files, unwritable) = StoreFiles::new(ledger.clone(), file);
        Self { store, redis, claim, ledger, memory, is_fallback: false, files, unwritable }
    }
}

/// Opens the store. A file that a daemon of the same configuration still has, which drains after a signal, is waited for.
async fn open_store(config: &Config, holder: &str) -> Result<OpenStore, StoreOpenError> {
    let (begun, patience) = (Clock::SYSTEM.now(), config.invoke.drain_timeout.get() + CLOSING_TIME);
    let mut is_logged = false;
    loop {
        match config.store.open(&config.queue_prefix(), holder) {
            Err(error) if error.is_held_by(holder) && Clock::SYSTEM.since(begun) < patience => {
                if !std::mem::replace(&mut is_logged, true) {
                    tracing::info!(
                        holder,
                        "the file of the store is in use: waiting for this daemon's predecessor to end"
                    );
                }
                tokio::time::sleep(CLAIM_PERIOD).await;
            }
            opened => return opened,
        }
    }
}
