//! Size of entries of a ledger.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::iter;
use serde::Serialize;
use toolbus_core::Clock;
use toolbus_core::ledger::{Begin, Fingerprint, Ledger, LedgerLimits, RequestKey, RunToken};
use toolbus_store::{MemoryLedger, SqliteLedger};

use crate::args::MeasureArgs;
use crate::error::MeasureError;
use crate::usage::Usage;

/// A ledger in a file gets one in so many of the entries of one in memory, because each waits for the disk.
const FEWER_IN_FILE: u64 = 10;
/// Bytes of a reply that is kept: as much as one of `echo`.
const REPLY: usize = 512;
/// Operations at a time, which share a commit.
const AT_A_TIME: usize = 256;

/// The folder of one measurement, within the one that is given.
pub(super) fn own_folder(folder: &Path, id: &str) -> PathBuf {
    folder.join(format!("toolbus-bench-{id}"))
}

/// Makes it.
pub(super) fn make_folder(args: &MeasureArgs, id: &str) -> std::io::Result<()> {
    args.ledger.iter().try_for_each(|folder| std::fs::create_dir(own_folder(folder, id)))
}

/// Removes it, with what daemons keep beside their store.
pub(super) fn remove_folder(args: &MeasureArgs, id: &str) {
    if let Some(folder) = &args.ledger {
        let _ = std::fs::remove_dir_all(own_folder(folder, id));
    }
}

/// Size of a million entries, with replies of [`REPLY`] bytes.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct LedgerSizes {
    /// Resident memory with a ledger in memory, in MiB.
    pub(super) memory_mib: f64,
    /// Size of a SQLite file, in MiB.
    pub(super) file_mib: f64,
}

impl LedgerSizes {
    /// Fills both, the one in memory with this many entries.
    pub(super) async fn measure(folder: &Path, id: &str, entries: u64) -> Result<Self, MeasureError> {
        let in_file = entries / FEWER_IN_FILE;
        let limits = LedgerLimits { max_entries: u64::MAX, max_bytes: u64::MAX };
        let resident = || Ok::<_, MeasureError>(Usage::read(std::process::id())?.resident);
        let before = resident()?;
        let memory = MemoryLedger::new(limits, Clock::SYSTEM);
        fill(&memory, entries).await?;
        let taken = resident()?.saturating_sub(before);
        drop(memory);

        let path = own_folder(folder, id).join("size.db");
        let sqlite = SqliteLedger::open(&path, limits, Clock::SYSTEM).map_err(std::io::Error::other)?;
        fill(&sqlite, in_file).await?;
        let size = std::fs::metadata(&path)?.len();
        let million = |bytes: u64, entries: u64| bytes as f64 / f64::from(1 << 20) * (1e6 / entries as f64);
        Ok(Self { memory_mib: million(taken, entries), file_mib: million(size, in_file) })
    }
}

/// Begins and completes this many calls.
async fn fill(ledger: &dyn Ledger, entries: u64) -> Result<(), MeasureError> {
    let instance: Arc<str> = "bench".into();
    let (reply, ttl) = (vec![b'x'; REPLY], Duration::from_hours(24));
    let failed = |error| std::io::Error::other(error);
    let mut calls = iter(0..entries)
        .map(|number| {
            let (instance, reply) = (Arc::clone(&instance), Bytes::from(reply.clone()));
            async move {
                let key = spread(number);
                let run = RunToken(u128::from(number).to_be_bytes());
                let fingerprint = Fingerprint([7; 32]);
                ledger.begin(Begin { key, fingerprint, run, instance, ttl, replaces: false }).await?;
                ledger.finish(key, run, reply).await
            }
        })
        .buffer_unordered(AT_A_TIME);
    while let Some(ended) = calls.next().await {
        ended.map_err(failed)?;
    }
    Ok(())
}

/// A key that is nowhere near that of the next number, as digests are.
fn spread(number: u64) -> RequestKey {
    let mut key = [0; 32];
    for (chunk, byte) in key.chunks_exact_mut(8).zip([1, 3, 5, 7_u64]) {
        let mixed = number.wrapping_add(byte).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        chunk.copy_from_slice(&mixed.wrapping_mul(0xbf58_476d_1ce4_e5b9).to_be_bytes());
    }
    RequestKey(key)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[tokio::test]
    async fn filled_ledgers_have_an_entry_for_each_number() {
        let limits = LedgerLimits { max_entries: u64::MAX, max_bytes: u64::MAX };
        let ledger = MemoryLedger::new(limits, Clock::SYSTEM);
        fill(&ledger, 1000).await.unwrap();
        assert_eq!((ledger.usage().entries, ledger.usage().bytes), (1000, 1000 * (256 + REPLY as u64)));
        let keys: HashSet<_> = (0..1000).map(spread).collect();
        assert_eq!(keys.len(), 1000);
    }
}
