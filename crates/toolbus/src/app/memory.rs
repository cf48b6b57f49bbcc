//! Working memory: what keeps it, and its tools.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};
use toolbus_core::Clock;
use toolbus_core::tool::Tool;
use toolbus_core::working_memory::WorkingMemory;
use toolbus_store::{SqliteMemory, VolatileMemory};

use crate::config::store::{OpenMemory, OpenStore, StoreOpenError, StoreUrl};
use crate::config::{Config, MemoryConfig};

/// How often the file of working memory is checked.
const PERIOD: Duration = Duration::from_secs(5);

/// Opens what keeps the entries of a daemon, if the configuration has a section for it. `open` is the store.
///
/// # Errors
///
/// If its file cannot be opened.
pub(super) fn open(config: &Config, open: &OpenStore) -> Result<Option<OpenMemory>, StoreOpenError> {
    let Some(section) = &config.memory else { return Ok(None) };
    let memory = config.store.open_memory(section.limits(), open)?;
    if config.store.url == StoreUrl::Memory {
        tracing::info!("working memory is lost when the daemon ends: store.url is \"memory:\"");
    }
    Ok(Some(memory))
}

/// What keeps the entries of a command, for its time.
pub(super) fn of_command(config: &Config) -> Option<Arc<dyn WorkingMemory>> {
    let volatile = |section: &MemoryConfig| VolatileMemory::new(section.limits(), Clock::SYSTEM);
    config.memory.as_ref().map(|section| Arc::new(volatile(section)) as Arc<dyn WorkingMemory>)
}

/// Checks the file of working memory until it is dropped, and tells why entries cannot be saved, if they cannot.
#[derive(Debug)]
pub(super) struct FileCheck {
    file: Arc<SqliteMemory>,
    state: watch::Sender<Option<String>>,
}

impl FileCheck {
    /// Checks nothing before it is run; the receiver has the state.
    pub(super) fn new(file: Option<Arc<SqliteMemory>>) -> (Option<Self>, watch::Receiver<Option<String>>) {
        let (state, receiver) = watch::channel(None);
        (file.map(|file| Self { file, state }), receiver)
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
        let found = self.file.check().await.err().map(|error| format!("working memory: {error}"));
        self.state.send_if_modified(|known| {
            match (&known, &found) {
                (None, Some(reason)) => tracing::warn!(reason, "entries of working memory cannot be saved"),
                (Some(_), None) => tracing::info!("entries of working memory can be saved again"),
                _ => {}
            }
            std::mem::replace(known, found.clone()) != found
        });
    }
}

/// The tools, with their limits.
pub(super) fn tools(config: &Config, memory: Option<&Arc<dyn WorkingMemory>>) -> Vec<Tool> {
    let (Some(section), Some(memory)) = (&config.memory, memory) else { return Vec::new() };
    let is_volatile = config.store.url == StoreUrl::Memory;
    let mut tools = section.tools(Arc::clone(memory), is_volatile, Clock::SYSTEM).tools();
    tools.iter_mut().for_each(|tool| config.limit(tool));
    tools
}
