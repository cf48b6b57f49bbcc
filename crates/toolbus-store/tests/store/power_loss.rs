//! Knowledge of a ledger in a file when the machine stopped in the middle of a write, and when bits of its log changed.
//!
//! The files are copied after each operation. A power loss leaves something between two copies: of what an operation wrote,
//! the log up to some byte, or some sectors of it; or the whole log, and some sectors of the file.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tempfile::TempDir;
use toolbus_core::Clock;
use toolbus_core::ledger::{
    Begin, Begun, EntryState, Fingerprint, Finished, Ledger, LedgerLimits, RequestKey, RunToken,
};
use toolbus_protocol::Random;
use toolbus_store::SqliteLedger;

const SEED: u64 = 76;
/// Operations: enough for SQLite to move the log into the file, and to begin it anew.
const OPERATIONS: usize = 240;
/// Power losses for each operation, and bits that change, in every so many of them.
const LOSSES: usize = 2;
const FLIPS: usize = 3;
const EVERY: usize = 3;
/// Size of what a disk writes whole or not at all.
const SECTOR: usize = 512;
/// The header of a log, which is on the disk before the frames that follow.
const HEADER: usize = 32;
/// Largest reply; some take several pages.
const MAX_REPLY: usize = 30_000;

struct Chance(Random);

impl Chance {
    fn below(&mut self, most: usize) -> usize {
        usize::try_from(self.0.bits() >> 96).unwrap() % most.max(1)
    }

    fn is(&mut self) -> bool {
        self.below(2) == 0
    }
}

/// Both files, as a disk has them.
#[derive(Clone)]
struct Disk {
    file: Vec<u8>,
    log: Vec<u8>,
}

impl Disk {
    fn of(folder: &Path) -> Self {
        let read = |name| std::fs::read(folder.join(name)).unwrap();
        Self { file: read("store.db"), log: read("store.db-wal") }
    }

    /// Returns what a power loss leaves on the way from here to another state.
    fn on_the_way(&self, to: &Self, chance: &mut Chance) -> Self {
        if chance.below(4) == 0 {
            return Self { file: torn(&self.file, &to.file, chance), log: to.log.clone() };
        }
        let is_anew = self.log[..HEADER] != to.log[..HEADER];
        let log = if is_anew && chance.is() {
            // The header alone.
            let mut log = self.log.clone();
            log[..HEADER].copy_from_slice(&to.log[..HEADER]);
            log
        } else {
            let mut log = torn(&self.log, &to.log, chance);
            log[..HEADER].copy_from_slice(&to.log[..HEADER]);
            log
        };
        Self { file: self.file.clone(), log }
    }

    /// Opens what is left, in a folder of its own.
    fn open(&self) -> Result<(TempDir, SqliteLedger), String> {
        let folder = folder();
        std::fs::write(folder.path().join("store.db"), &self.file).unwrap();
        std::fs::write(folder.path().join("store.db-wal"), &self.log).unwrap();
        open(folder.path()).map(|ledger| (folder, ledger))
    }
}

/// A prefix of what was written, or some of its sectors.
fn torn(old: &[u8], new: &[u8], chance: &mut Chance) -> Vec<u8> {
    if new.len() > old.len() && new.starts_with(old) && chance.is() {
        return new[..old.len() + chance.below(new.len() - old.len())].to_vec();
    }
    let mut mixed = new.to_vec();
    let mut length = old.len();
    for (number, sector) in mixed.chunks_mut(SECTOR).enumerate() {
        let start = number * SECTOR;
        if chance.is() {
            length = length.max(start + sector.len());
            continue;
        }
        let before = old.get(start..).unwrap_or_default();
        for (index, byte) in sector.iter_mut().enumerate() {
            *byte = before.get(index).copied().unwrap_or_default();
        }
    }
    mixed.truncate(length);
    mixed
}

fn flipped(bytes: &[u8], chance: &mut Chance) -> Vec<u8> {
    let mut flipped = bytes.to_vec();
    let bit = chance.below(bytes.len() * 8);
    flipped[bit / 8] ^= 1 << (bit % 8);
    flipped
}

/// A folder in memory where there is one: each operation waits for the disk.
fn folder() -> TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap_or_else(|_| tempfile::tempdir().unwrap())
}

fn open(folder: &Path) -> Result<SqliteLedger, String> {
    let limits = LedgerLimits { max_entries: 10_000, max_bytes: 64 * 1024 * 1024 };
    SqliteLedger::open(&folder.join("store.db"), limits, Clock::SYSTEM).map_err(|error| error.to_string())
}

/// Known state of the keys: that they began, and their replies.
type Known = BTreeMap<u16, Option<Bytes>>;

#[derive(Clone)]
enum Operation {
    Begin(u16),
    Finish(u16, Bytes),
}

impl Operation {
    /// The next one: a key that is new, or one that began.
    fn next(known: &Known, chance: &mut Chance) -> Self {
        let open: Vec<u16> = known.iter().filter(|(_, reply)| reply.is_none()).map(|(key, _)| *key).collect();
        if open.is_empty() || (open.len() < 8 && chance.is()) {
            return Self::Begin(u16::try_from(known.len()).unwrap());
        }
        let key = open[chance.below(open.len())];
        Self::Finish(key, vec![b'a' + u8::try_from(key % 26).unwrap(); chance.below(MAX_REPLY)].into())
    }

    async fn run(&self, ledger: &SqliteLedger) {
        match self {
            Self::Begin(number) => {
                let (key, fingerprint, run) = (key(*number), Fingerprint([9; 32]), RunToken([1; 16]));
                let (instance, ttl) = (Arc::from("one"), Duration::from_secs(3600));
                let begin = Begin { key, fingerprint, run, instance, ttl, replaces: false };
                assert_eq!(ledger.begin(begin).await, Ok(Begun::Begun));
            }
            Self::Finish(number, reply) => {
                let finished = ledger.finish(key(*number), RunToken([1; 16]), reply.clone()).await;
                assert_eq!(finished, Ok(Finished::Stored));
            }
        }
    }

    fn apply(&self, known: &mut Known) {
        match self {
            Self::Begin(number) => known.insert(*number, None),
            Self::Finish(number, reply) => known.insert(*number, Some(reply.clone())),
        };
    }
}

fn key(number: u16) -> RequestKey {
    let mut key = [0; 32];
    // Keys are digests: in any order.
    key[..2].copy_from_slice(&number.wrapping_mul(40_503).to_be_bytes());
    key[2..4].copy_from_slice(&number.to_be_bytes());
    RequestKey(key)
}

/// Returns what a ledger knows of some keys.
async fn knows(ledger: &SqliteLedger, keys: impl Iterator<Item = u16>) -> Known {
    let mut known = Known::new();
    for number in keys {
        match ledger.look_up(key(number)).await.unwrap().map(|entry| entry.state) {
            None => {}
            Some(EntryState::Started { .. }) => drop(known.insert(number, None)),
            Some(EntryState::Answered(reply)) => drop(known.insert(number, Some(reply))),
        }
    }
    known
}

/// Runs operations, and hands each step to `look`: the files before and after, and what was known.
async fn history(seed: u64, mut look: impl AsyncFnMut(usize, &[Disk; 2], &[Known; 2], &mut Chance)) {
    let (folder, mut chance) = (folder(), Chance(Random::seeded(seed)));
    let ledger = open(folder.path()).unwrap();
    let (mut before, mut known) = (Disk::of(folder.path()), Known::new());
    for number in 0..OPERATIONS {
        let operation = Operation::next(&known, &mut chance);
        operation.run(&ledger).await;
        let after = Disk::of(folder.path());
        let mut then = known.clone();
        operation.apply(&mut then);
        let steps = ([before, after], [known, then]);
        look(number, &steps.0, &steps.1, &mut chance).await;
        ([_, before], [_, known]) = steps;
    }
}

#[tokio::test]
async fn after_a_power_loss_everything_that_was_reported_is_known_and_the_rest_happened_whole_or_not() {
    println!("seed {SEED}");
    let (mut kept, mut undone, mut anew) = (0, 0, 0);
    history(SEED, async |number, [before, after], [known, then], chance| {
        let is_anew = before.log[..HEADER] != after.log[..HEADER];
        anew += usize::from(is_anew);
        if !is_anew && number % EVERY != 0 {
            return;
        }
        for _ in 0..LOSSES {
            let (_folder, ledger) = before.on_the_way(after, chance).open().unwrap();
            let found = knows(&ledger, then.keys().copied()).await;
            if found == *then {
                kept += 1;
            } else {
                assert_eq!(found, *known, "neither before nor after the operation");
                undone += 1;
            }
        }
    })
    .await;
    println!("{kept} operations were whole, {undone} undone; the log began anew {anew} times");
    assert!(kept > 20 && undone > 20 && anew > 0, "{kept} {undone} {anew}");
}

#[tokio::test]
async fn a_bit_of_the_log_that_changed_costs_at_most_the_last_operation_or_the_file_is_refused() {
    println!("seed {SEED}");
    let (mut refused, mut harmless, mut last) = (0, 0, 0);
    history(SEED, async |number, [_, after], [known, then], chance| {
        for _ in 0..if number % EVERY == 0 { FLIPS } else { 0 } {
            let damaged = Disk { log: flipped(&after.log, chance), ..after.clone() };
            let ledger = match damaged.open() {
                Ok((_folder, ledger)) => ledger,
                Err(why) => {
                    assert!(why.contains("is damaged, and calls that began or were answered"), "{why}");
                    refused += 1;
                    continue;
                }
            };
            let found = knows(&ledger, then.keys().copied()).await;
            if found == *then {
                harmless += 1;
            } else {
                assert_eq!(found, *known, "more than the last operation is gone");
                last += 1;
            }
        }
    })
    .await;
    println!("{refused} refused, {harmless} without harm, {last} without the last operation");
    assert!(refused > 100 && harmless > 0 && last > 0, "{refused} {harmless} {last}");
}

#[tokio::test]
async fn a_cut_log_leaves_an_earlier_state() {
    let (mut earlier, mut all) = (0, vec![Known::new()]);
    history(SEED ^ 1, async |number, [_, after], [_, then], chance| {
        all.push(then.clone());
        if number % EVERY != 0 {
            return;
        }
        let cut = chance.below(after.log.len());
        let (_folder, ledger) = Disk { log: after.log[..cut].to_vec(), ..after.clone() }.open().unwrap();
        let found = knows(&ledger, then.keys().copied()).await;
        assert!(all.contains(&found), "an impossible state: {found:?}");
        earlier += usize::from(found != *then);
    })
    .await;
    assert!(earlier > 50, "{earlier}");
}
