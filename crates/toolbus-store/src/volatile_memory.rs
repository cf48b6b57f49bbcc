//! Working memory that lives as long as its process.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};
use parking_lot::Mutex;
use toolbus_core::Clock;
use toolbus_memory::usage::{MemoryUsage, NamespaceUsage, ShareUsage};
use toolbus_memory::working_memory::{
    EntryInfo, EntryKey, KeyPrefix, MemoryEntry, MemoryError, MemoryLimits, MemoryOwner, NewEntry, SearchHit,
    SearchQuery, WorkingMemory,
};

use crate::entry_index::{EntryChanges, EntryIndexes, MemoryMark};

/// Keeps entries in memory. It forgets them with the process, and other processes do not have them.
#[derive(Debug)]
pub struct VolatileMemory {
    limits: MemoryLimits,
    clock: Clock,
    state: Mutex<MemoryState>,
    indexes: Arc<EntryIndexes>,
}

#[derive(Debug, Default)]
struct MemoryState {
    owners: HashMap<Arc<str>, BTreeMap<EntryKey, HeldEntry>>,
    /// End of each entry, with its owner.
    ends: BTreeSet<(Duration, Arc<str>, EntryKey)>,
    shares: HashMap<Arc<str>, UsedMemory>,
    /// Entries of each owner's namespaces.
    namespaces: HashMap<(Arc<str>, Arc<str>), u64>,
    total: u64,
    revision: u64,
    deletions: u64,
}

#[derive(Debug)]
struct HeldEntry {
    entry: Arc<MemoryEntry>,
    share: Arc<str>,
    size: u64,
    revision: u64,
}

/// Entries and bytes that a share or a namespace has.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct UsedMemory {
    pub(crate) entries: u64,
    pub(crate) bytes: u64,
}

impl VolatileMemory {
    /// Creates an empty memory.
    #[must_use]
    pub fn new(limits: MemoryLimits, clock: Clock) -> Self {
        Self { limits, clock, state: Mutex::default(), indexes: Arc::default() }
    }

    fn save(&self, owner: &MemoryOwner, entries: Vec<NewEntry>) -> Result<(), MemoryError> {
        let entries = self.limits.checked(entries)?;
        let now = self.clock.since_epoch();
        let mut state = self.state.lock();
        state.expire(now);
        state.check(owner, &entries, &self.limits)?;
        entries.into_iter().for_each(|entry| state.insert(owner, entry, now));
        Ok(())
    }

    /// The entries that have not expired.
    fn state(&self) -> parking_lot::MutexGuard<'_, MemoryState> {
        let mut state = self.state.lock();
        state.expire(self.clock.since_epoch());
        state
    }
}

impl MemoryState {
    /// Whether there is room for entries, of which each has another key.
    fn check(&self, owner: &MemoryOwner, entries: &[NewEntry], limits: &MemoryLimits) -> Result<(), MemoryError> {
        let known = self.owners.get(&owner.key);
        let share = self.shares.get(&owner.share).copied().unwrap_or_default();
        let (mut after, mut total) = (share, self.total);
        let mut namespaces: HashMap<&str, u64> = HashMap::new();
        for entry in entries {
            let (size, namespace) = (entry.size(), entry.key.namespace());
            match known.and_then(|known| known.get(&entry.key)) {
                Some(replaced) => {
                    total -= replaced.size;
                    if replaced.share == owner.share {
                        after = UsedMemory { entries: after.entries - 1, bytes: after.bytes - replaced.size };
                    }
                }
                None => {
                    let name = || (Arc::clone(&owner.key), Arc::from(namespace));
                    let held = || self.namespaces.get(&name()).copied().unwrap_or_default();
                    let entries = namespaces.entry(namespace).or_insert_with(held);
                    *entries += 1;
                    if *entries > limits.max_entries_per_namespace {
                        let max = limits.max_entries_per_namespace;
                        return Err(MemoryError::Namespace { namespace: namespace.into(), max });
                    }
                }
            }
            after = UsedMemory { entries: after.entries + 1, bytes: after.bytes + size };
            total += size;
        }
        // Without growth nothing is refused, also where a limit was lowered.
        let is_over = |before: u64, after: u64, max: u64| after > before && after > max;
        if is_over(share.entries, after.entries, limits.max_entries) {
            return Err(MemoryError::Entries(limits.max_entries));
        }
        if is_over(share.bytes, after.bytes, limits.max_size) {
            return Err(MemoryError::Size(limits.max_size));
        }
        if is_over(self.total, total, limits.max_total_size) {
            return Err(MemoryError::Total(limits.max_total_size));
        }
        Ok(())
    }

    fn insert(&mut self, owner: &MemoryOwner, new: NewEntry, now: Duration) {
        self.remove(&owner.key, &new.key);
        let (info, size) = (new.info(now), new.size());
        self.revision += 1;
        self.ends.insert((info.expires_at, Arc::clone(&owner.key), info.key.clone()));
        let share = self.shares.entry(Arc::clone(&owner.share)).or_default();
        *share = UsedMemory { entries: share.entries + 1, bytes: share.bytes + size };
        *self.namespaces.entry((Arc::clone(&owner.key), new.key.namespace().into())).or_default() += 1;
        self.total += size;
        let entry = Arc::new(MemoryEntry { info, value: new.value });
        let held = HeldEntry { entry, share: Arc::clone(&owner.share), size, revision: self.revision };
        self.owners.entry(Arc::clone(&owner.key)).or_default().insert(new.key, held);
    }

    fn remove(&mut self, owner: &Arc<str>, key: &EntryKey) -> bool {
        let Some(entries) = self.owners.get_mut(owner) else { return false };
        let Some(HeldEntry { entry, share, size, .. }) = entries.remove(key) else { return false };
        if entries.is_empty() {
            self.owners.remove(owner);
        }
        self.ends.remove(&(entry.info.expires_at, Arc::clone(owner), key.clone()));
        self.total -= size;
        if let Some(held) = self.shares.get_mut(&share) {
            *held = UsedMemory { entries: held.entries - 1, bytes: held.bytes - size };
            if held.entries == 0 {
                self.shares.remove(&share);
            }
        }
        let namespace = (Arc::clone(owner), Arc::from(key.namespace()));
        if let Some(entries) = self.namespaces.get_mut(&namespace) {
            *entries -= 1;
            if *entries == 0 {
                self.namespaces.remove(&namespace);
            }
        }
        true
    }

    fn expire(&mut self, now: Duration) {
        while let Some((_, owner, key)) = self.ends.first().filter(|(end, ..)| *end <= now) {
            let (owner, key) = (Arc::clone(owner), key.clone());
            self.remove(&owner, &key);
        }
    }

    fn changes(&self, owner: &MemoryOwner, since: Option<MemoryMark>) -> EntryChanges {
        let mark = MemoryMark { epoch: 0, deletions: self.deletions, revision: self.revision };
        let entries = self.owners.get(&owner.key);
        let held = || entries.into_iter().flat_map(BTreeMap::values);
        let last = since.map_or(0, |since| since.revision);
        let saved = held().filter(|held| held.revision > last).map(|held| Arc::clone(&held.entry)).collect();
        let keys = || held().map(|held| held.entry.info.key.clone()).collect();
        let keys = since.filter(|since| since.deletions != self.deletions).map(|_| keys());
        EntryChanges { mark, is_complete: since.is_none(), saved, keys }
    }
}

impl WorkingMemory for VolatileMemory {
    fn save(&self, owner: MemoryOwner, entries: Vec<NewEntry>) -> BoxFuture<'_, Result<(), MemoryError>> {
        ready(Self::save(self, &owner, entries)).boxed()
    }

    fn get(&self, owner: MemoryOwner, key: EntryKey) -> BoxFuture<'_, Result<Option<MemoryEntry>, MemoryError>> {
        let state = self.state();
        let held = state.owners.get(&owner.key).and_then(|entries| entries.get(&key));
        ready(Ok(held.map(|held| MemoryEntry::clone(&held.entry)))).boxed()
    }

    fn list(&self, owner: MemoryOwner, prefix: KeyPrefix) -> BoxFuture<'_, Result<Vec<EntryInfo>, MemoryError>> {
        let state = self.state();
        let entries = state.owners.get(&owner.key).into_iter();
        let from = (Bound::Included(prefix.as_str()), Bound::Unbounded);
        let entries = entries.flat_map(|entries| entries.range::<str, _>(from));
        let entries = entries.take_while(|(key, _)| prefix.matches(key)).map(|(_, held)| held.entry.info.clone());
        ready(Ok(entries.collect())).boxed()
    }

    fn search(&self, owner: MemoryOwner, query: SearchQuery) -> BoxFuture<'_, Result<Vec<SearchHit>, MemoryError>> {
        async move {
            let changes = |since| ready(Ok(self.state().changes(&owner, since)));
            self.indexes.search(owner.clone(), query, self.clock.since_epoch(), changes).await
        }
        .boxed()
    }

    fn delete(&self, owner: MemoryOwner, key: EntryKey) -> BoxFuture<'_, Result<bool, MemoryError>> {
        let mut state = self.state();
        let was_there = state.remove(&owner.key, &key);
        state.deletions += u64::from(was_there);
        ready(Ok(was_there)).boxed()
    }

    fn usage(&self) -> BoxFuture<'_, Result<MemoryUsage, MemoryError>> {
        let state = self.state();
        let shares = state.shares.iter().map(|(share, used)| {
            let UsedMemory { entries, bytes } = *used;
            ShareUsage { share: Arc::clone(share), entries, bytes }
        });
        let namespaces = state.namespaces.iter().map(|((owner, namespace), entries)| {
            let (owner, namespace) = (Arc::clone(owner), Arc::clone(namespace));
            NamespaceUsage { owner, namespace, entries: *entries }
        });
        ready(Ok(MemoryUsage::new(state.total, shares.collect(), namespaces.collect(), true))).boxed()
    }
}
