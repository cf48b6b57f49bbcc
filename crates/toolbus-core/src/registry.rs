//! The tools that there are.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use tokio::sync::watch;

use crate::tool::{Tool, ToolDescriptor};

/// Every registered tool, by name.
///
/// Readers take a snapshot and hold no lock; a change builds the next snapshot and swaps it in.
#[derive(Clone)]
pub struct Registry {
    shared: Arc<Shared>,
}

struct Shared {
    current: RwLock<Arc<Snapshot>>,
    changing: Mutex<()>,
    version: watch::Sender<u64>,
}

/// The tools at one moment.
#[derive(Clone, Default)]
pub struct Snapshot {
    tools: HashMap<Arc<str>, Tool>,
}

/// Why a change of the registry was refused; nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RegistryError {
    /// Two tools of one name.
    #[error("tool `{name}` of source `{source_name}` is already registered by source `{owner}`")]
    Duplicate {
        /// The name.
        name: Arc<str>,
        /// Source that registers it.
        source_name: Arc<str>,
        /// Source that has it.
        owner: Arc<str>,
    },
    /// A tool without a name, or with one that no message can carry.
    #[error("tool name {name:?} is not usable: it must have 1 to 255 bytes and no control character")]
    Name {
        /// The name.
        name: Arc<str>,
    },
}

/// A change that changes nothing is none: nobody is notified.
struct NoSuchTool;

impl Snapshot {
    /// The tool of exactly this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Tool> {
        self.tools.get(name)
    }

    /// Every tool, sorted by name.
    #[must_use]
    pub fn list(&self) -> Vec<Arc<ToolDescriptor>> {
        let mut tools: Vec<_> = self.tools.values().map(|tool| Arc::clone(&tool.descriptor)).collect();
        tools.sort_by(|a, b| a.name.cmp(&b.name));
        tools
    }

    /// Every tool, in no order.
    pub fn tools(&self) -> impl Iterator<Item = &Tool> {
        self.tools.values()
    }

    /// Every name, in no order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tools.keys().map(AsRef::as_ref)
    }

    /// Number of tools.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tools.len()
    }

    /// Whether there is no tool.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tools.is_empty()
    }

    fn insert(&mut self, tool: Tool) -> Result<(), RegistryError> {
        let descriptor = &tool.descriptor;
        let name = Arc::clone(&descriptor.name);
        if name.is_empty() || name.len() > toolbus_protocol::MAX_SHORT_STRING || name.chars().any(char::is_control) {
            return Err(RegistryError::Name { name });
        }
        if let Some(existing) = self.tools.get(&name) {
            let owner = Arc::clone(&existing.descriptor.source);
            return Err(RegistryError::Duplicate { name, source_name: Arc::clone(&descriptor.source), owner });
        }
        self.tools.insert(name, tool);
        Ok(())
    }
}

impl Default for Registry {
    fn default() -> Self {
        Self::new()
    }
}

impl Registry {
    /// A registry without tools.
    #[must_use]
    pub fn new() -> Self {
        Self {
            shared: Arc::new(Shared {
                current: RwLock::default(),
                changing: Mutex::default(),
                version: watch::Sender::new(0),
            }),
        }
    }

    /// The tools of this moment.
    #[must_use]
    pub fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.shared.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Adds one tool.
    ///
    /// # Errors
    ///
    /// When the name is taken or unusable.
    pub fn register(&self, tool: Tool) -> Result<(), RegistryError> {
        self.change(|next| next.insert(tool))
    }

    /// Adds several tools, as one change.
    ///
    /// # Errors
    ///
    /// When a name is taken, given twice or unusable; then none is added.
    pub fn register_all(&self, tools: Vec<Tool>) -> Result<(), RegistryError> {
        self.change(|next| tools.into_iter().try_for_each(|tool| next.insert(tool)))
    }

    /// Removes one tool; false when there was none of that name.
    pub fn unregister(&self, name: &str) -> bool {
        self.change(|next| next.tools.remove(name).map(drop).ok_or(NoSuchTool)).is_ok()
    }

    /// Replaces all tools of one source, as one change: no caller sees a half of it.
    ///
    /// # Errors
    ///
    /// When a name is taken by another source, twice in `tools`, or unusable; the source then keeps what it had.
    pub fn replace_source(&self, source: &str, tools: Vec<Tool>) -> Result<(), RegistryError> {
        self.change(|next| {
            next.tools.retain(|_, tool| &*tool.descriptor.source != source);
            tools.into_iter().try_for_each(|tool| next.insert(tool))
        })
    }

    /// Replaces every tool, as one change.
    ///
    /// # Errors
    ///
    /// When a name is given twice or unusable; the registry then keeps what it had.
    pub fn replace_all(&self, tools: Vec<Tool>) -> Result<(), RegistryError> {
        self.change(|next| {
            next.tools.clear();
            tools.into_iter().try_for_each(|tool| next.insert(tool))
        })
    }

    /// Notifies of every change; the value counts them.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.shared.version.subscribe()
    }

    fn change<E>(&self, edit: impl FnOnce(&mut Snapshot) -> Result<(), E>) -> Result<(), E> {
        let _one_at_a_time = self.shared.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut next = Snapshot::clone(&self.snapshot());
        edit(&mut next)?;
        *self.shared.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(next);
        self.shared.version.send_modify(|version| *version += 1);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
