//! The tools that there are.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use tokio::sync::watch;

use crate::policy::Vetting;
use crate::tool::{Executor, Tool, ToolDescriptor};

/// Every registered tool, by name.
///
/// Tools of the configuration have names that are theirs alone. What sources publish that come and go, such as MCP servers,
/// may clash with them and with each other: then the tool of the configuration has the name, or else that of the source
/// with the higher rank, or else that of the source that comes first by its name, whichever was there first. The others are
/// *shadowed*: there, and not reached by name.
///
/// Readers take a snapshot and hold no lock; a change builds the next snapshot and swaps it in.
#[derive(Clone)]
pub struct Registry {
    shared: Arc<Shared>,
}

struct Shared {
    current: RwLock<Arc<Snapshot>>,
    parts: Mutex<Parts>,
    vetting: OnceLock<Arc<dyn Vetting>>,
    version: watch::Sender<u64>,
}

/// The tools at one moment.
#[derive(Clone, Default)]
pub struct Snapshot {
    tools: HashMap<Arc<str>, Tool>,
    shadowed: BTreeMap<Place, Tool>,
}

/// Whose tools have a name that several sources publish.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rank {
    /// A part of the daemon: no server takes a name from it, whatever it lists.
    Own,
    /// A source of the configuration.
    Configured,
    /// A source that a caller added: it takes no name from any that an operator chose.
    Registered,
}

/// A source and a name: where a tool is found that others of its name do not hide.
type Place = (Arc<str>, Arc<str>);

/// What makes a snapshot.
#[derive(Clone, Default)]
struct Parts {
    /// Tools of the configuration.
    fixed: HashMap<Arc<str>, Tool>,
    /// What each source has published.
    published: BTreeMap<(Rank, Arc<str>), Vec<Tool>>,
}

/// Two published tools of one name: which of them has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Clash {
    /// The name.
    pub name: Arc<str>,
    /// Source of the tool that is called by it.
    pub kept: Arc<str>,
    /// Source of the tool that is not.
    pub shadowed: Arc<str>,
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

    /// The tool of this source and this name, also when it is shadowed; and whether it is.
    pub(crate) fn find(&self, source: &Arc<str>, name: &Arc<str>) -> Option<(&Tool, bool)> {
        let by_name = self.tools.get(name).filter(|tool| tool.descriptor.source == *source).map(|tool| (tool, false));
        by_name.or_else(|| Some((self.shadowed.get(&(Arc::clone(source), Arc::clone(name)))?, true)))
    }

    /// Every tool that another hides, by source and name.
    pub fn shadowed(&self) -> impl Iterator<Item = &Tool> {
        self.shadowed.values()
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

    /// Of what sources publish, the one that comes first has a name.
    fn new(parts: &Parts) -> Self {
        let mut snapshot = Self { tools: parts.fixed.clone(), shadowed: BTreeMap::new() };
        for tool in parts.published.values().flatten() {
            let ToolDescriptor { name, source, .. } = &*tool.descriptor;
            if snapshot.tools.contains_key(name) {
                snapshot.shadowed.insert((Arc::clone(source), Arc::clone(name)), tool.clone());
            } else {
                snapshot.tools.insert(Arc::clone(name), tool.clone());
            }
        }
        snapshot
    }
}

impl Parts {
    fn insert(&mut self, tool: Tool) -> Result<(), RegistryError> {
        let descriptor = &tool.descriptor;
        let name = Arc::clone(&descriptor.name);
        check(&name)?;
        if let Some(existing) = self.fixed.get(&name) {
            let owner = Arc::clone(&existing.descriptor.source);
            return Err(RegistryError::Duplicate { name, source_name: Arc::clone(&descriptor.source), owner });
        }
        self.fixed.insert(name, tool);
        Ok(())
    }
}

fn check(name: &Arc<str>) -> Result<(), RegistryError> {
    if name.is_empty() || name.len() > toolbus_protocol::MAX_SHORT_STRING || name.chars().any(char::is_control) {
        return Err(RegistryError::Name { name: Arc::clone(name) });
    }
    Ok(())
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
                parts: Mutex::default(),
                vetting: OnceLock::new(),
                version: watch::Sender::new(0),
            }),
        }
    }

    /// The tools of this moment.
    #[must_use]
    pub fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.shared.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Has `vetting` asked about tools, from now on. The first counts; whether this is it.
    pub(crate) fn vet(&self, vetting: Arc<dyn Vetting>) -> bool {
        self.shared.vetting.set(vetting).is_ok()
    }

    pub(crate) fn vetting(&self) -> Option<&dyn Vetting> {
        self.shared.vetting.get().map(|vetting| &**vetting)
    }

    /// Whether a call that was let in may be run by `executor`, whose tool had this source and name then: it has them still,
    /// or what has them now is not held back. For executors that wait for a source whose tools may have changed meanwhile.
    pub fn still_admits<E: Executor>(&self, source: &Arc<str>, name: &Arc<str>, executor: &E) -> bool {
        let Some(vetting) = self.vetting() else { return true };
        let snapshot = self.snapshot();
        let Some((tool, _)) = snapshot.find(source, name) else { return true };
        let is_same = std::ptr::addr_eq(Arc::as_ptr(&tool.executor), std::ptr::from_ref(executor));
        is_same || vetting.admits(&tool.descriptor)
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
        self.change(|next| next.fixed.remove(name).map(drop).ok_or(NoSuchTool)).is_ok()
    }

    /// Replaces what one source has published, as one change: no caller sees a half of it. None takes the source away.
    /// Returns the names of its tools that others have, and of others' that it has now.
    ///
    /// # Errors
    ///
    /// When a name is twice in `tools`, or unusable; the source then keeps what it had.
    pub fn publish(&self, rank: Rank, source: &Arc<str>, tools: Vec<Tool>) -> Result<Vec<Clash>, RegistryError> {
        let mut names = HashSet::with_capacity(tools.len());
        for tool in &tools {
            let name = &tool.descriptor.name;
            check(name)?;
            if !names.insert(Arc::clone(name)) {
                let (name, source) = (Arc::clone(name), Arc::clone(source));
                return Err(RegistryError::Duplicate { name, source_name: Arc::clone(&source), owner: source });
            }
        }
        let change = self.change(|next| {
            let place = (rank, Arc::clone(source));
            if tools.is_empty() {
                return next.published.remove(&place).map(drop).ok_or(NoSuchTool);
            }
            next.published.insert(place, tools);
            Ok(())
        });
        if change.is_err() {
            return Ok(Vec::new());
        }
        let snapshot = self.snapshot();
        let clash = |tool: &Tool| {
            let ToolDescriptor { name, source: shadowed, .. } = &*tool.descriptor;
            let kept = &snapshot.get(name)?.descriptor.source;
            let concerns = shadowed == source || kept == source;
            concerns.then(|| Clash { name: Arc::clone(name), kept: Arc::clone(kept), shadowed: Arc::clone(shadowed) })
        };
        Ok(snapshot.shadowed().filter_map(clash).collect())
    }

    /// Replaces every tool of the configuration, as one change. What sources have published stays.
    ///
    /// # Errors
    ///
    /// When a name is given twice or unusable; the registry then keeps what it had.
    pub fn replace_all(&self, tools: Vec<Tool>) -> Result<(), RegistryError> {
        self.change(|next| {
            next.fixed.clear();
            tools.into_iter().try_for_each(|tool| next.insert(tool))
        })
    }

    /// Notifies of every change; the value counts them.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.shared.version.subscribe()
    }

    fn change<E>(&self, edit: impl FnOnce(&mut Parts) -> Result<(), E>) -> Result<(), E> {
        let mut parts = self.shared.parts.lock().unwrap_or_else(PoisonError::into_inner);
        let mut next = Parts::clone(&parts);
        edit(&mut next)?;
        let snapshot = Arc::new(Snapshot::new(&next));
        *parts = next;
        *self.shared.current.write().unwrap_or_else(PoisonError::into_inner) = snapshot;
        self.shared.version.send_modify(|version| *version += 1);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
