//! The tools that there are.

use parking_lot::{Mutex, RwLock};
use std::borrow::Cow;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::convert::Infallible;
use std::sync::{Arc, OnceLock};

use tokio::sync::watch;
use toolbus_protocol::llm_name;

use crate::quarantine::{Claim, DefinitionCheck};
use crate::tool::{Executor, Tool, ToolDescriptor};

/// Most names whose owners are remembered while the owners do not publish them.
const MAX_OWNERS: usize = 100_000;

/// Every registered tool, by name.
///
/// Tools of the configuration have names that are theirs alone. What sources publish that come and go, such as MCP
/// servers, may clash with them and with each other. Then the name belongs to, in this order: the tool of the
/// configuration; the source with the higher rank; the source whose tool of that name is pinned, connected or not; once
/// names are [kept](Self::keep_names), the source that had it first; the source that was seen with it first, in this
/// process or an earlier one; the source that comes first by its name. The others are *shadowed*: there, and not
/// reached by name.
///
/// Readers take a snapshot and hold no lock; a change builds the next snapshot and swaps it in.
#[derive(Clone)]
pub struct Registry {
    shared: Arc<RegistryState>,
}

struct RegistryState {
    current: RwLock<Arc<Snapshot>>,
    parts: Mutex<SnapshotParts>,
    definition_check: OnceLock<Arc<dyn DefinitionCheck>>,
    version: watch::Sender<u64>,
}

/// The tools at one moment.
#[derive(Clone, Default)]
pub struct Snapshot {
    tools: HashMap<Arc<str>, Tool>,
    shadowed: BTreeMap<ToolKey, Tool>,
    /// Owners of names that only other sources publish now.
    absent: HashMap<Arc<str>, Arc<str>>,
    /// The number of changes before it and with it.
    version: u64,
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

/// A source and a name, which find a tool also when another source has its name.
type ToolKey = (Arc<str>, Arc<str>);

/// Parts of a snapshot.
#[derive(Clone, Default)]
struct SnapshotParts {
    /// Tools of the configuration.
    fixed: HashMap<Arc<str>, Tool>,
    /// Tools that each source has published.
    published: BTreeMap<(Rank, Arc<str>), Vec<Tool>>,
    /// The source of each name that is kept. One that publishes nothing at the moment, because it is started again, has
    /// its names still.
    owners: HashMap<Arc<str>, (Rank, Arc<str>)>,
    /// Whether names are kept.
    is_keeping: bool,
}

/// A published tool of a name that another source has.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Clash {
    /// The name.
    pub name: Arc<str>,
    /// Source that has the name, whether it publishes a tool of it now or not.
    pub kept: Arc<str>,
    /// Source of the tool that is not called by it.
    pub shadowed: Arc<str>,
}

/// Reason why a change of the registry was refused; nothing was changed.
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

/// There is no such tool, so nothing changes and no notification is sent.
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

    /// Every tool that is not called by its name, with the source that has the name.
    pub fn clashes(&self) -> impl Iterator<Item = Clash> {
        self.shadowed().filter_map(|tool| {
            let ToolDescriptor { name, source, .. } = &*tool.descriptor;
            let kept = Arc::clone(self.owner(name)?);
            Some(Clash { name: Arc::clone(name), kept, shadowed: Arc::clone(source) })
        })
    }

    /// The source that has a name, whether it publishes a tool of it now or not; only of names that some source
    /// publishes.
    fn owner(&self, name: &Arc<str>) -> Option<&Arc<str>> {
        self.tools.get(name).map(|tool| &tool.descriptor.source).or_else(|| self.absent.get(name))
    }

    /// Owners of names that only other sources publish now.
    pub(crate) const fn absent(&self) -> &HashMap<Arc<str>, Arc<str>> {
        &self.absent
    }

    /// The number of changes of the registry that led to it.
    pub(crate) const fn version(&self) -> u64 {
        self.version
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

    fn new(parts: &SnapshotParts, check: Option<&dyn DefinitionCheck>) -> Self {
        let mut snapshot = Self { tools: parts.fixed.clone(), ..Self::default() };
        let mut first: HashMap<&Arc<str>, (Rank, &Tool)> = HashMap::new();
        for ((rank, _), tools) in &parts.published {
            for tool in tools {
                let last = match first.entry(&tool.descriptor.name) {
                    Entry::Vacant(entry) => {
                        entry.insert((*rank, tool));
                        continue;
                    }
                    Entry::Occupied(mut entry) => {
                        let (next, other) = ((*rank, tool), *entry.get());
                        if parts.seniority(next, check) < parts.seniority(other, check) {
                            entry.insert(next).1
                        } else {
                            tool
                        }
                    }
                };
                snapshot.shadow(last);
            }
        }
        let reserved = check.map(DefinitionCheck::reserved).unwrap_or_default();
        // A tool is called by the name that models use for it as well, so that this is its own, too.
        let fixed = parts.fixed.iter().map(|(name, tool)| (name, &tool.descriptor.source));
        let published = first.iter().map(|(name, (_, tool))| (*name, &tool.descriptor.source));
        let aliases: HashMap<String, Arc<str>> = fixed
            .chain(published)
            .chain(&reserved)
            .filter_map(|(name, source)| match llm_name(name) {
                Cow::Owned(alias) => Some((alias, Arc::clone(source))),
                Cow::Borrowed(_) => None,
            })
            .collect();
        for (name, (rank, tool)) in first {
            let owner = reserved.get(name).or_else(|| parts.away(name, rank)).filter(|owner| {
                rank != Rank::Own && **owner != tool.descriptor.source && !snapshot.has_at(owner, name)
            });
            let owner = aliases.get(&**name).or(owner);
            if snapshot.tools.contains_key(name) {
                snapshot.shadow(tool);
            } else if let Some(owner) = owner {
                snapshot.absent.insert(Arc::clone(name), Arc::clone(owner));
                snapshot.shadow(tool);
            } else {
                snapshot.tools.insert(Arc::clone(name), tool.clone());
            }
        }
        snapshot
    }

    fn shadow(&mut self, tool: &Tool) {
        let ToolDescriptor { name, source, .. } = &*tool.descriptor;
        self.shadowed.insert((Arc::clone(source), Arc::clone(name)), tool.clone());
    }

    /// Whether a source has lost this name to another.
    fn has_at(&self, source: &Arc<str>, name: &Arc<str>) -> bool {
        self.shadowed.contains_key(&(Arc::clone(source), Arc::clone(name)))
    }

    /// Whether the same sources have the same names as in `other`, of the same published tools.
    fn gives_names_like(&self, other: &Self) -> bool {
        self.absent == other.absent && self.shadowed.keys().eq(other.shadowed.keys())
    }
}

impl SnapshotParts {
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

    /// Order of the tools that claim one name: the least has it.
    fn seniority<'a>(
        &'a self,
        (rank, tool): (Rank, &'a Tool),
        check: Option<&dyn DefinitionCheck>,
    ) -> impl Ord + use<'a> {
        let ToolDescriptor { name, source, .. } = &*tool.descriptor;
        let Claim { is_pinned, since } = check.map(|check| check.claim(&tool.descriptor)).unwrap_or_default();
        let is_owner = !is_pinned && self.owners.get(name).is_some_and(|(_, owner)| owner == source);
        (rank, !is_pinned, !is_owner, since.is_none(), since, source)
    }

    /// The source that a kept name waits for: its owner, while that publishes nothing. A source of a higher rank waits
    /// for none.
    fn away(&self, name: &Arc<str>, rank: Rank) -> Option<&Arc<str>> {
        let (owners_rank, owner) = self.owners.get(name)?;
        let is_there = || self.published.keys().any(|(_, source)| source == owner);
        (*owners_rank <= rank && !is_there()).then_some(owner)
    }

    /// Notes the owner of each name, where names are kept.
    fn note_owners(&mut self, snapshot: &Snapshot) {
        if !self.is_keeping {
            return;
        }
        for ((rank, source), tools) in &self.published {
            let has = |name: &Arc<str>| snapshot.get(name).is_some_and(|tool| tool.descriptor.source == *source);
            for tool in tools.iter().filter(|tool| has(&tool.descriptor.name)) {
                self.owners.insert(Arc::clone(&tool.descriptor.name), (*rank, Arc::clone(source)));
            }
        }
        if self.owners.len() > MAX_OWNERS {
            let is_there = |name: &Arc<str>| snapshot.tools.contains_key(name) || snapshot.absent.contains_key(name);
            self.owners.retain(|name, _| is_there(name));
        }
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
            shared: Arc::new(RegistryState {
                current: RwLock::default(),
                parts: Mutex::default(),
                definition_check: OnceLock::new(),
                version: watch::Sender::new(0),
            }),
        }
    }

    /// The tools of this moment.
    #[must_use]
    pub fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.shared.current.read())
    }

    /// Sets the check of definitions, and returns whether it was the first. Later calls have no effect.
    pub(crate) fn set_definition_check(&self, check: Arc<dyn DefinitionCheck>) -> bool {
        self.shared.definition_check.set(check).is_ok()
    }

    pub(crate) fn definition_check(&self) -> Option<&dyn DefinitionCheck> {
        self.shared.definition_check.get().map(|check| &**check)
    }

    /// Whether a call that was let in may be run by `executor`, whose tool had this source and name then: it has them
    /// still, or what has them now is not in quarantine. For executors that wait for a source whose tools may have
    /// changed meanwhile.
    pub fn still_admits<E: Executor>(&self, source: &Arc<str>, name: &Arc<str>, executor: &E) -> bool {
        let Some(check) = self.definition_check() else { return true };
        let snapshot = self.snapshot();
        let Some((tool, _)) = snapshot.find(source, name) else { return true };
        let is_same = std::ptr::addr_eq(Arc::as_ptr(&tool.executor), std::ptr::from_ref(executor));
        is_same || check.admits(&tool.descriptor)
    }

    /// Adds one tool.
    ///
    /// # Errors
    ///
    /// If the name is taken or unusable.
    pub fn register(&self, tool: Tool) -> Result<(), RegistryError> {
        self.change(|next| next.insert(tool))
    }

    /// Adds several tools, as one change.
    ///
    /// # Errors
    ///
    /// If a name is taken, given twice or unusable; then no tool is added.
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
    /// If a name is twice in `tools`, or unusable; the source then keeps its tools.
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
            let key = (rank, Arc::clone(source));
            if tools.is_empty() {
                return next.published.remove(&key).map(drop).ok_or(NoSuchTool);
            }
            next.published.insert(key, tools);
            Ok(())
        });
        if change.is_err() {
            return Ok(Vec::new());
        }
        let snapshot = self.snapshot();
        Ok(snapshot.clashes().filter(|clash| clash.shadowed == *source || clash.kept == *source).collect())
    }

    /// Has each name stay with the source that has it from now on, until that lists its tools without it, or is
    /// [forgotten](Self::forget). Before that, as while servers start, what decides does not depend on which comes
    /// first.
    pub fn keep_names(&self) {
        if let Some(check) = self.definition_check() {
            // The last tools of the start may not have been reviewed yet, and would be taken for younger.
            let snapshot = self.snapshot();
            let tools = snapshot.tools.values().chain(snapshot.shadowed.values());
            check.review(&tools.map(|tool| Arc::clone(&tool.descriptor)).collect::<Vec<_>>());
            check.end_start();
        }
        let Ok(()) = self.change(|next| {
            next.is_keeping = true;
            Ok::<_, Infallible>(())
        });
    }

    /// Whether names stay with the sources that have them.
    #[must_use]
    pub fn is_keeping_names(&self) -> bool {
        self.shared.parts.lock().is_keeping
    }

    /// Takes a source away for good, with its right to names.
    pub fn forget(&self, source: &Arc<str>) {
        let forgotten = self.change(|next| {
            let (owners, published) = (next.owners.len(), next.published.len());
            next.owners.retain(|_, (_, owner)| owner != source);
            next.published.retain(|(_, known), _| known != source);
            let is_changed = owners != next.owners.len() || published != next.published.len();
            if is_changed { Ok(()) } else { Err(NoSuchTool) }
        });
        drop(forgotten);
    }

    /// The tools of this moment, with names given as pins have it now.
    pub(crate) fn vetted(&self) -> Arc<Snapshot> {
        if self.definition_check().is_some() {
            let parts = self.shared.parts.lock();
            let next = Snapshot::new(&parts, self.definition_check());
            let is_same = next.gives_names_like(&self.snapshot());
            drop(parts);
            if !is_same {
                let Ok(()) = self.change(|_| Ok::<_, Infallible>(()));
            }
        }
        self.snapshot()
    }

    /// Replaces every tool of the configuration, as one change. What sources have published stays.
    ///
    /// # Errors
    ///
    /// If a name is given twice or unusable; the registry then keeps its tools.
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

    fn change<E>(&self, edit: impl FnOnce(&mut SnapshotParts) -> Result<(), E>) -> Result<(), E> {
        let mut parts = self.shared.parts.lock();
        let mut next = SnapshotParts::clone(&parts);
        edit(&mut next)?;
        let version = self.snapshot().version + 1;
        let snapshot = Arc::new(Snapshot { version, ..Snapshot::new(&next, self.definition_check()) });
        next.note_owners(&snapshot);
        *parts = next;
        *self.shared.current.write() = snapshot;
        self.shared.version.send_modify(|version| *version += 1);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
