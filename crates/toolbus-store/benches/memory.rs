//! Cost of working memory: reads, writes and searches of an agent that has 10 000 entries.
//!
//! `cargo bench -p toolbus-store --bench memory`. Each value has some 60 words.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a bench ends by panicking")]

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use divan::{Bencher, counter::ItemsCount};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use toolbus_core::Clock;
use toolbus_memory::rank::WordIndex;
use toolbus_memory::working_memory::{
    EntryKey, MemoryLimits, MemoryOwner, Namespace, NewEntry, SearchQuery, WorkingMemory,
};
use toolbus_store::{SqliteMemory, VolatileMemory};

const ENTRIES: usize = 10_000;
/// Words of a value.
const WORDS: usize = 60;
/// Different words of all values.
const VOCABULARY: usize = 5_000;
/// A rare word, a frequent one, and one beside it in one of a hundred values.
const QUERY: &str = "w4999 w1 w2";
const LIMITS: MemoryLimits = MemoryLimits {
    max_value: 1024 * 1024,
    max_entries_per_namespace: 100_000,
    max_entries: 100_000,
    max_size: 256 * 1024 * 1024,
    max_total_size: 512 * 1024 * 1024,
};

fn main() {
    divan::main();
}

/// The text of an entry: words of which low numbers are frequent.
fn text(number: usize) -> String {
    let mut state = number as u64 + 1;
    let words = (0..WORDS).map(|_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let share = (state >> 33) as f64 / f64::from(1_u32 << 31);
        format!("w{}", (share * share * VOCABULARY as f64) as usize)
    });
    words.collect::<Vec<_>>().join(" ")
}

fn owner() -> MemoryOwner {
    MemoryOwner { key: "ana".into(), share: "ana".into() }
}

fn entry(number: usize) -> NewEntry {
    let key = EntryKey::parse(&format!("session/bench/{number}")).unwrap();
    NewEntry::new(key, text(number), Duration::from_secs(3600))
}

/// A memory with its entries, the file's folder, and a runtime.
struct Filled {
    memory: Arc<dyn WorkingMemory>,
    runtime: Runtime,
    _folder: TempDir,
}

fn filled(in_file: bool, entries: usize) -> Filled {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let memory: Arc<dyn WorkingMemory> = if in_file {
        Arc::new(SqliteMemory::open(&folder.path().join("memory.db"), LIMITS, Clock::SYSTEM).unwrap())
    } else {
        Arc::new(VolatileMemory::new(LIMITS, Clock::SYSTEM))
    };
    runtime.block_on(memory.save(owner(), (0..entries).map(entry).collect())).unwrap();
    Filled { memory, runtime, _folder: folder }
}

#[divan::bench]
fn rank_10_000_indexed_documents(bencher: Bencher<'_, '_>) {
    let mut index = WordIndex::default();
    (0..ENTRIES).for_each(|number| index.insert(number, &text(number)));
    bencher.bench_local(|| black_box(index.search(black_box(QUERY)).len()));
}

#[divan::bench(args = [false, true])]
fn search_10_000_entries(bencher: Bencher<'_, '_>, in_file: bool) {
    let Filled { memory, runtime, _folder } = filled(in_file, ENTRIES);
    let prefix = Namespace::of(Some("bench")).unwrap().prefix(None).unwrap();
    let query = SearchQuery { text: QUERY.to_owned(), prefix, category: None, tags: Vec::new(), max: 10 };
    bencher.bench_local(|| {
        let hits = runtime.block_on(memory.search(owner(), query.clone())).unwrap();
        assert_eq!(hits.len(), 10);
    });
}

#[divan::bench(args = [false, true], sample_count = 1000)]
fn get(bencher: Bencher<'_, '_>, in_file: bool) {
    let Filled { memory, runtime, _folder } = filled(in_file, ENTRIES);
    let key = entry(ENTRIES / 2).key;
    bencher.bench_local(|| runtime.block_on(memory.get(owner(), key.clone())).unwrap().expect("it is there"));
}

/// One after another, each waiting for its commit.
#[divan::bench(args = [false, true], sample_count = 1000)]
fn save_one(bencher: Bencher<'_, '_>, in_file: bool) {
    let Filled { memory, runtime, _folder } = filled(in_file, 0);
    let mut number = 0;
    bencher.counter(ItemsCount::new(1_usize)).bench_local(|| {
        number += 1;
        runtime.block_on(memory.save(owner(), vec![entry(number % ENTRIES)])).unwrap();
    });
}

/// As 64 calls at a time do.
#[divan::bench(args = [false, true], sample_count = 20, sample_size = 1)]
fn save_1000_of_64_callers(bencher: Bencher<'_, '_>, in_file: bool) {
    let Filled { memory, runtime, _folder } = filled(in_file, 0);
    let entries: Vec<NewEntry> = (0..1000).map(entry).collect();
    bencher.counter(ItemsCount::new(1000_usize)).bench_local(|| {
        runtime.block_on(async {
            let mut tasks = JoinSet::new();
            for caller in 0..64 {
                let mine: Vec<NewEntry> = entries.iter().skip(caller).step_by(64).cloned().collect();
                let memory = Arc::clone(&memory);
                tasks.spawn(async move {
                    for entry in mine {
                        memory.save(owner(), vec![entry]).await.unwrap();
                    }
                });
            }
            tasks.join_all().await;
        });
    });
}
