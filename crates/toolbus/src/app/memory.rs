//! Working memory: what keeps it, and its tools.

use std::sync::Arc;

use toolbus_core::Clock;
use toolbus_core::tool::Tool;
use toolbus_core::working_memory::WorkingMemory;
use toolbus_store::VolatileMemory;

use crate::config::store::{OpenMemory, OpenStore, StoreOpenError, StoreUrl};
use crate::config::{Config, MemoryConfig};

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

/// The tools, with their limits.
pub(super) fn tools(config: &Config, memory: Option<&Arc<dyn WorkingMemory>>) -> Vec<Tool> {
    let (Some(section), Some(memory)) = (&config.memory, memory) else { return Vec::new() };
    let is_volatile = config.store.url == StoreUrl::Memory;
    let mut tools = section.tools(Arc::clone(memory), is_volatile, Clock::SYSTEM).tools();
    tools.iter_mut().for_each(|tool| config.limit(tool));
    tools
}
