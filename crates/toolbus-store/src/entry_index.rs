//! Indexes for searches of working memory: one for each owner, brought up to date by each search.
//!
//! A memory reports what has changed since a [`MemoryMark`]. Expiry is no change: an index knows when each entry ends.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lru::LruCache;
use parking_lot::Mutex;
use tokio::sync::Mutex as Turn;
use tokio::task::spawn_blocking;
use toolbus_core::store::StoreError;
use toolbus_memory::rank::{WordIndex, rank_with_scores};
use toolbus_memory::working_memory::{
    EntryInfo, EntryKey, MAX_START, MemoryEntry, MemoryError, MemoryOwner, SearchHit, SearchQuery,
};

/// Owners with an index; the one that has not searched for longest loses its own.
const MAX_OWNERS: NonZeroUsize = NonZeroUsize::new(256).unwrap();
/// Bytes that all indexes take.
const MAX_INDEXES: usize = 96 * 1024 * 1024;
/// Bytes of an owner's texts that are indexed. Those of an owner with more are read by each search.
const MAX_TEXTS: usize = 32 * 1024 * 1024;

/// A state of a memory. Its numbers only grow, until another memory, or an older copy, replaces it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MemoryMark {
    /// Identity of the memory.
    pub(crate) epoch: u64,
    /// Entries that were deleted before their time.
    pub(crate) deletions: u64,
    /// Number of the last entry that was saved.
    pub(crate) revision: u64,
}

/// Changes in the entries of an owner.
pub(crate) struct EntryChanges {
    /// The state that it leads to.
    pub(crate) mark: MemoryMark,
    /// Whether `saved` is all that there is.
    pub(crate) is_complete: bool,
    /// Entries that were saved.
    pub(crate) saved: Vec<Arc<MemoryEntry>>,
    /// The keys that are left, where some were deleted.
    pub(crate) keys: Option<HashSet<EntryKey>>,
}

/// The indexes of a memory.
#[derive(Debug)]
pub(crate) struct EntryIndexes(Mutex<LruCache<Arc<str>, Arc<OwnerIndex>>>);

#[derive(Debug, Default)]
struct OwnerIndex {
    /// Held by one search at a time: those that wait find the entries that it has read.
    turn: Turn<()>,
    size: AtomicUsize,
    entries: Mutex<IndexedEntries>,
}

#[derive(Debug, Default)]
struct IndexedEntries {
    /// The state that is known; `None` where nothing is.
    mark: Option<MemoryMark>,
    words: WordIndex<EntryKey>,
    entries: HashMap<EntryKey, (EntryInfo, Arc<str>)>,
    ends: BTreeSet<(Duration, EntryKey)>,
}

impl Default for EntryIndexes {
    fn default() -> Self {
        Self(Mutex::new(LruCache::new(MAX_OWNERS)))
    }
}

impl EntryIndexes {
    /// Searches the entries of an owner, as they are at the time `now`. `changes` reads what has changed since a state.
    pub(crate) async fn search<C: Future<Output = Result<EntryChanges, MemoryError>>>(
        self: &Arc<Self>,
        owner: MemoryOwner,
        query: SearchQuery,
        now: Duration,
        changes: impl Fn(Option<MemoryMark>) -> C,
    ) -> Result<Vec<SearchHit>, MemoryError> {
        let index = Arc::clone(self.0.lock().get_or_insert(Arc::clone(&owner.key), Arc::default));
        let _turn = index.turn.lock().await;
        let mut known = index.entries.lock().mark;
        loop {
            let found = changes(known).await?;
            let (index, query) = (Arc::clone(&index), query.clone());
            let searched = spawn_blocking(move || index.search(found, now, &query, MAX_TEXTS)).await;
            let searched = searched.map_err(|error| StoreError::Failed(format!("the search failed: {error}")))?;
            if let Some(hits) = searched {
                self.trim(&owner.key);
                return Ok(hits);
            }
            known = None;
        }
    }

    /// Keeps the indexes within their limit: those of others first, then that of this owner.
    fn trim(&self, owner: &Arc<str>) {
        let mut indexes = self.0.lock();
        indexes.promote(owner);
        let size = |indexes: &LruCache<_, Arc<OwnerIndex>>| -> usize {
            indexes.iter().map(|(_, index)| index.size.load(Ordering::Relaxed)).sum()
        };
        while size(&indexes) > MAX_INDEXES && indexes.pop_lru().is_some() {}
    }
}

impl OwnerIndex {
    /// The hits, after the changes were taken over; `None` if these do not fit the index.
    fn search(
        &self,
        changes: EntryChanges,
        now: Duration,
        query: &SearchQuery,
        max_texts: usize,
    ) -> Option<Vec<SearchHit>> {
        let texts: usize = changes.saved.iter().map(|entry| entry.value.len()).sum();
        if changes.is_complete && texts > max_texts {
            return Some(read_all(&changes.saved, now, query));
        }
        let mut entries = self.entries.lock();
        entries.take_over(changes)?;
        entries.expire(now);
        self.size.store(entries.words.size(), Ordering::Relaxed);
        let known = |key: &EntryKey| entries.entries.get(key).filter(|(info, _)| query.admits(info));
        let ranked = entries.words.search(&query.text).into_iter();
        let hits = ranked.filter_map(|(key, score)| known(key).map(|(info, start)| (info, start, score)));
        let hits = hits.take(query.max);
        Some(hits.map(|(info, start, score)| SearchHit { info: info.clone(), score, start: start.clone() }).collect())
    }
}

impl IndexedEntries {
    fn take_over(&mut self, changes: EntryChanges) -> Option<()> {
        let EntryChanges { mark, is_complete, saved, keys } = changes;
        if self.mark == Some(mark) {
            return Some(());
        }
        // An owner's searches come one after the other, so lower numbers are those of a store that has lost its last writes.
        let continues = self.mark.is_some_and(|known| {
            known.epoch == mark.epoch && known.revision <= mark.revision && known.deletions <= mark.deletions
        });
        if !continues && !is_complete {
            return None;
        }
        if is_complete {
            *self = Self::default();
        }
        if let Some(keys) = keys {
            let gone: Vec<EntryKey> = self.entries.keys().filter(|key| !keys.contains(*key)).cloned().collect();
            gone.iter().for_each(|key| self.remove(key));
        }
        saved.iter().for_each(|entry| self.insert(entry));
        self.mark = Some(mark);
        Some(())
    }

    fn insert(&mut self, entry: &MemoryEntry) {
        let info = entry.info.clone();
        self.remove(&info.key);
        self.words.insert(info.key.clone(), &text_of(entry));
        self.ends.insert((info.expires_at, info.key.clone()));
        self.entries.insert(info.key.clone(), (info, start_of(entry)));
    }

    fn remove(&mut self, key: &EntryKey) {
        if let Some((info, _)) = self.entries.remove(key) {
            self.ends.remove(&(info.expires_at, info.key));
            self.words.remove(key);
        }
    }

    fn expire(&mut self, now: Duration) {
        while let Some((_, key)) = self.ends.first().filter(|(end, _)| *end <= now) {
            let key = key.clone();
            self.remove(&key);
        }
    }
}

/// Searches entries without an index.
fn read_all(entries: &[Arc<MemoryEntry>], now: Duration, query: &SearchQuery) -> Vec<SearchHit> {
    let live: Vec<&Arc<MemoryEntry>> = entries.iter().filter(|entry| entry.info.expires_at > now).collect();
    let texts: Vec<String> = live.iter().map(|entry| text_of(entry)).collect();
    let ranked = rank_with_scores(&query.text, &texts).into_iter();
    let hits = ranked.filter_map(|(position, score)| live.get(position).map(|entry| (entry, score)));
    let hits = hits.filter(|(entry, _)| query.admits(&entry.info)).take(query.max);
    hits.map(|(entry, score)| SearchHit { info: entry.info.clone(), score, start: start_of(entry) }).collect()
}

/// Returns the text of an entry that is searched.
fn text_of(MemoryEntry { info, value }: &MemoryEntry) -> String {
    let labels = info.category.iter().chain(&info.tags).map(AsRef::as_ref);
    let labels: Vec<&str> = [info.key.as_str()].into_iter().chain(labels).collect();
    format!("{}\n{value}", labels.join("\n"))
}

fn start_of(entry: &MemoryEntry) -> Arc<str> {
    entry.value.chars().take(MAX_START).collect::<String>().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(key: &str, value: &str, expires_at: u64) -> Arc<MemoryEntry> {
        let key = EntryKey::parse(key).unwrap();
        let end = Duration::from_secs(expires_at);
        let info = EntryInfo {
            key,
            category: None,
            tags: Vec::new(),
            characters: 0,
            saved_at: Duration::ZERO,
            expires_at: end,
        };
        Arc::new(MemoryEntry { info, value: value.into() })
    }

    fn mark(deletions: u64, revision: u64) -> MemoryMark {
        MemoryMark { epoch: 1, deletions, revision }
    }

    fn query(text: &str) -> SearchQuery {
        let prefix = toolbus_memory::working_memory::Namespace::of(None).unwrap().prefix(Some("/")).unwrap();
        SearchQuery { text: text.to_owned(), prefix, category: None, tags: Vec::new(), max: 10 }
    }

    fn found(index: &OwnerIndex, changes: EntryChanges, now: u64) -> Option<Vec<String>> {
        let hits = index.search(changes, Duration::from_secs(now), &query("plan"), 20)?;
        Some(hits.into_iter().map(|hit| hit.info.key.to_string()).collect())
    }

    fn changes(mark: MemoryMark, is_complete: bool, saved: Vec<Arc<MemoryEntry>>) -> EntryChanges {
        EntryChanges { mark, is_complete, saved, keys: None }
    }

    #[test]
    fn an_index_follows_saved_deleted_and_lost_entries() {
        let index = OwnerIndex::default();
        assert_eq!(found(&index, changes(mark(0, 1), false, Vec::new()), 0), None, "nothing is known yet");
        let both = vec![entry("a/one", "plan", 9), entry("a/two", "plan plan", 5)];
        assert_eq!(found(&index, changes(mark(0, 2), true, both), 0).unwrap(), ["a/two", "a/one"]);
        assert_eq!(found(&index, changes(mark(0, 2), false, Vec::new()), 5).unwrap(), ["a/one"], "one has expired");
        let saved = changes(mark(0, 3), false, vec![entry("a/three", "plan", 9)]);
        assert_eq!(found(&index, saved, 5).unwrap(), ["a/one", "a/three"]);
        let keys = Some(HashSet::from([EntryKey::parse("a/three").unwrap()]));
        let deleted = EntryChanges { keys, ..changes(mark(1, 3), false, Vec::new()) };
        assert_eq!(found(&index, deleted, 5).unwrap(), ["a/three"]);
        assert_eq!(found(&index, changes(mark(1, 2), false, Vec::new()), 5), None, "the last writes were lost");
        let before = changes(mark(1, 2), true, vec![entry("a/one", "plan", 9)]);
        assert_eq!(found(&index, before, 5).unwrap(), ["a/one"]);
        let other = MemoryMark { epoch: 2, deletions: 0, revision: 1 };
        assert_eq!(found(&index, changes(other, false, Vec::new()), 5), None, "another memory");
        assert_eq!(found(&index, changes(other, true, Vec::new()), 5).unwrap(), [""; 0]);
    }

    #[test]
    fn very_many_texts_are_searched_without_an_index() {
        let index = OwnerIndex::default();
        let long = "x ".repeat(20);
        let all = vec![entry("a/long", &long, 9), entry("a/plan", "", 9), entry("a/old", "plan", 1)];
        assert_eq!(found(&index, changes(mark(0, 3), true, all), 1).unwrap(), ["a/plan"]);
        assert_eq!(index.size.load(Ordering::Relaxed), 0);
        assert!(index.entries.lock().mark.is_none());
    }
}
