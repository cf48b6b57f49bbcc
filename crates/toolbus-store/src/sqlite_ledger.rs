//! A ledger in the SQLite file of a store.
//!
//! A thread owns the connection that writes. It runs all operations that wait in one transaction, so that many calls share
//! one wait for the disk, and reports each once the transaction is committed. Another connection reads meanwhile.

use std::cell::Cell;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use rusqlite::{Connection, OptionalExtension, Row, params};
use toolbus_core::Clock;
use toolbus_core::ledger::{
    Begin, Begun, ENTRY_BYTES, EntryState, Fingerprint, Finished, Ledger, LedgerEntry, LedgerLimits, LedgerUsage,
    RequestKey, RunToken,
};
use toolbus_core::store::StoreError;

use crate::sqlite::{OpenError, STORE, milliseconds, signed};
use crate::sqlite_threads::{self, SqliteThreads};

/// Time after which a lapsed lease is removed, in milliseconds.
const OLD_LEASE: i64 = 24 * 60 * 60 * 1000;

/// Writes as much as a large reply has, and removes it.
const CHECK: &str = "
INSERT INTO ledger (key, fingerprint, run, instance, expires_at, size, answer)
    VALUES (x'00', x'00', x'00', '', 0, 0, zeroblob(65536));
DELETE FROM ledger WHERE key = x'00'";

/// Additions of version 2 of the file. `ledger_usage` is one row, the sums of all entries.
pub(crate) const MIGRATION: &str = "
CREATE TABLE ledger (
    id INTEGER PRIMARY KEY,
    key BLOB NOT NULL UNIQUE,
    fingerprint BLOB NOT NULL,
    run BLOB NOT NULL,
    instance TEXT NOT NULL,
    expires_at INTEGER NOT NULL,
    size INTEGER NOT NULL,
    answer BLOB
) STRICT;
CREATE TABLE ledger_leases (instance TEXT PRIMARY KEY, until INTEGER NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE ledger_usage (one INTEGER PRIMARY KEY CHECK (one = 1), entries INTEGER NOT NULL, bytes INTEGER NOT NULL)
    STRICT;
INSERT INTO ledger_usage VALUES (1, 0, 0);
CREATE TRIGGER ledger_inserted AFTER INSERT ON ledger BEGIN
    UPDATE ledger_usage SET entries = entries + 1, bytes = bytes + 256 + new.size;
END;
CREATE TRIGGER ledger_answered AFTER UPDATE OF size ON ledger BEGIN
    UPDATE ledger_usage SET bytes = bytes + new.size - old.size;
END;
CREATE TRIGGER ledger_deleted AFTER DELETE ON ledger BEGIN
    UPDATE ledger_usage SET entries = entries - 1, bytes = bytes - 256 - old.size;
END";

/// Changes of version 3: each transaction writes the sums once, which costs less than triggers for each entry.
pub(crate) const WITHOUT_TRIGGERS: &str =
    "DROP TRIGGER ledger_inserted; DROP TRIGGER ledger_answered; DROP TRIGGER ledger_deleted";

/// Addition of version 4: expired entries are found whatever the order in which they began, because times to live
/// differ.
pub(crate) const EXPIRY_INDEX: &str = "CREATE INDEX IF NOT EXISTS ledger_expires_at ON ledger (expires_at)";

/// Keeps entries in a file, which several processes on one machine may share.
#[derive(Debug)]
pub struct SqliteLedger {
    threads: SqliteThreads<Writer>,
    clock: Clock,
    usage: Arc<Usage>,
}

#[derive(Debug, Default)]
struct Usage {
    entries: AtomicU64,
    bytes: AtomicU64,
    shed: AtomicU64,
}

/// State of the writing thread.
#[derive(Debug)]
struct Writer {
    limits: LedgerLimits,
    clock: Clock,
    /// The sums as the transaction has them.
    sums: Cell<Sums>,
    /// Answered entries that the transaction removes to make room.
    shed: Cell<u64>,
    usage: Arc<Usage>,
}

/// Entries, and their bytes as [`LedgerLimits`] counts them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Sums {
    entries: u64,
    bytes: u64,
}

impl SqliteLedger {
    /// Opens a file, or creates it for this user alone. Blocks as [`Sqlite::open`](crate::Sqlite::open) does.
    ///
    /// # Errors
    ///
    /// If the file cannot be opened for reading and writing, or is not a store of this program: see [`OpenError`].
    pub fn open(path: &Path, limits: LedgerLimits, clock: Clock) -> Result<Self, OpenError> {
        let usage = Arc::<Usage>::default();
        let writer = Writer { limits, clock, sums: Cell::default(), shed: Cell::default(), usage: Arc::clone(&usage) };
        let threads = SqliteThreads::open(path, &STORE, "toolbus-ledger", writer)?;
        Ok(Self { threads, clock, usage })
    }
}

impl Ledger for SqliteLedger {
    fn look_up(&self, key: RequestKey) -> BoxFuture<'_, Result<Option<LedgerEntry>, StoreError>> {
        let now = now(self.clock);
        self.threads
            .read(move |connection| {
                let found = find(connection, key, now)?;
                Ok(found.filter(|found| !found.is_expired).map(|found| found.entry))
            })
            .boxed()
    }

    fn begin(&self, begin: Begin) -> BoxFuture<'_, Result<Begun, StoreError>> {
        self.threads.write(move |writer, connection| writer.begin(connection, &begin)).boxed()
    }

    fn finish(&self, key: RequestKey, run: RunToken, reply: Bytes) -> BoxFuture<'_, Result<Finished, StoreError>> {
        self.threads.write(move |writer, connection| writer.finish(connection, key, run, &reply)).boxed()
    }

    fn release(&self, key: RequestKey, run: RunToken) -> BoxFuture<'_, Result<(), StoreError>> {
        self.threads
            .write(move |writer, connection| {
                let query = "DELETE FROM ledger WHERE key = ?1 AND run = ?2 AND answer IS NULL";
                if connection.prepare_cached(query)?.execute(params![key.0, run.0])? > 0 {
                    writer.uncount(0);
                }
                Ok(())
            })
            .boxed()
    }

    fn renew(&self, instance: Arc<str>, lease: Duration) -> BoxFuture<'_, Result<(), StoreError>> {
        self.threads
            .write(move |writer, connection| {
                let now = now(writer.clock);
                let query =
                    "INSERT INTO ledger_leases VALUES (?1, ?2) ON CONFLICT DO UPDATE SET until = excluded.until";
                connection
                    .prepare_cached(query)?
                    .execute(params![instance, now.saturating_add(milliseconds(lease))])?;
                let query = "DELETE FROM ledger_leases WHERE until < ?1";
                connection.prepare_cached(query)?.execute([now - OLD_LEASE]).map(drop)
            })
            .boxed()
    }

    fn usage(&self) -> LedgerUsage {
        let Usage { entries, bytes, shed } = &*self.usage;
        let [entries, bytes, shed] = [entries, bytes, shed].map(|number| number.load(Ordering::Relaxed));
        LedgerUsage { entries, bytes, shed }
    }

    /// Looks at the file, waits for writes under way, and writes once after a write that failed.
    fn check(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        async {
            if self.threads.has_failed().await? {
                self.threads.write(|_, connection| connection.execute_batch(CHECK)).await?;
            }
            self.threads.check_name().await
        }
        .boxed()
    }
}

impl sqlite_threads::Writer for Writer {
    fn start(&self, connection: &Connection) -> rusqlite::Result<()> {
        let unsigned =
            |row: &Row<'_>, column| row.get::<_, i64>(column).map(|number| u64::try_from(number).unwrap_or(0));
        let sums = connection
            .prepare_cached("SELECT entries, bytes FROM ledger_usage")?
            .query_row((), |row| Ok(Sums { entries: unsigned(row, 0)?, bytes: unsigned(row, 1)? }))?;
        self.sums.set(sums);
        self.shed.set(0);
        Ok(())
    }

    fn finish(&self, connection: &Connection, operations: usize) -> rusqlite::Result<()> {
        if operations == 0 {
            self.start(connection)?;
        } else {
            // More than the operations add, so that they become fewer.
            self.remove_expired(connection, signed(operations as u64 * 2 + 8), now(self.clock))?;
            let Sums { entries, bytes } = self.sums.get();
            connection
                .prepare_cached("UPDATE ledger_usage SET entries = ?1, bytes = ?2")?
                .execute([signed(entries), signed(bytes)])?;
        }
        Ok(())
    }

    fn committed(&self) {
        let Sums { entries, bytes } = self.sums.get();
        self.usage.entries.store(entries, Ordering::Relaxed);
        self.usage.bytes.store(bytes, Ordering::Relaxed);
        self.usage.shed.fetch_add(self.shed.take(), Ordering::Relaxed);
    }
}

impl Writer {
    fn begin(&self, connection: &Connection, begin: &Begin) -> rusqlite::Result<Begun> {
        let now = now(self.clock);
        if self.insert(connection, begin, now)? {
            return Ok(Begun::Begun);
        }
        if let Some(found) = find(connection, begin.key, now)? {
            if found.run == begin.run && !found.is_expired {
                return Ok(Begun::Begun);
            }
            if !found.is_expired && !begin.replaces {
                return Ok(Begun::Known(found.entry));
            }
            self.delete(connection, found.id, found.size)?;
        }
        self.make_room(connection, 1, ENTRY_BYTES, begin.key, now)?;
        Ok(if self.insert(connection, begin, now)? { Begun::Begun } else { Begun::Full })
    }

    /// Inserts an entry if there is none and there is room: one conditional write.
    fn insert(&self, connection: &Connection, begin: &Begin, now: i64) -> rusqlite::Result<bool> {
        let Begin { key, fingerprint, run, instance, ttl, .. } = begin;
        if !self.has_room(1, ENTRY_BYTES) {
            return Ok(false);
        }
        let inserted = connection
            .prepare_cached(
                "INSERT INTO ledger (key, fingerprint, run, instance, expires_at, size) \
                 VALUES (?1, ?2, ?3, ?4, ?5, 0) ON CONFLICT DO NOTHING",
            )?
            .execute(params![key.0, fingerprint.0, run.0, instance, now.saturating_add(milliseconds(*ttl))])?;
        if inserted > 0 {
            let Sums { entries, bytes } = self.sums.get();
            self.sums.set(Sums { entries: entries + 1, bytes: bytes + ENTRY_BYTES });
        }
        Ok(inserted > 0)
    }

    /// Removes an entry with a reply of this size.
    fn delete(&self, connection: &Connection, id: i64, size: i64) -> rusqlite::Result<()> {
        connection.prepare_cached("DELETE FROM ledger WHERE id = ?1")?.execute([id])?;
        self.uncount(size);
        Ok(())
    }

    fn uncount(&self, size: i64) {
        let Sums { entries, bytes } = self.sums.get();
        let removed = ENTRY_BYTES + u64::try_from(size).unwrap_or(0);
        self.sums.set(Sums { entries: entries.saturating_sub(1), bytes: bytes.saturating_sub(removed) });
    }

    fn has_room(&self, entries: u64, bytes: u64) -> bool {
        let (has, LedgerLimits { max_entries, max_bytes }) = (self.sums.get(), self.limits);
        has.entries + entries <= max_entries && has.bytes + bytes <= max_bytes
    }

    fn finish(
        &self,
        connection: &Connection,
        key: RequestKey,
        run: RunToken,
        reply: &Bytes,
    ) -> rusqlite::Result<Finished> {
        let now = now(self.clock);
        let changed = connection
            .prepare_cached(
                "UPDATE ledger SET answer = ?3, size = ?4 \
                 WHERE key = ?1 AND run = ?2 AND answer IS NULL AND expires_at > ?5",
            )?
            .execute(params![key.0, run.0, &**reply, signed(reply.len() as u64), now])?;
        if changed > 0 {
            let Sums { entries, bytes } = self.sums.get();
            self.sums.set(Sums { entries, bytes: bytes + reply.len() as u64 });
            self.make_room(connection, 0, 0, key, now)?;
            return Ok(Finished::Stored);
        }
        let found = find(connection, key, now)?.filter(|found| found.run == run && !found.is_expired);
        Ok(match found.map(|found| found.entry.state) {
            Some(EntryState::Answered(known)) if known == *reply => Finished::Stored,
            Some(EntryState::Answered(known)) => Finished::Superseded(known),
            _ => Finished::Forgotten,
        })
    }

    /// Removes expired entries, then the oldest answered ones but that of `kept`, until there is room for as much more.
    fn make_room(
        &self,
        connection: &Connection,
        entries: u64,
        bytes: u64,
        kept: RequestKey,
        now: i64,
    ) -> rusqlite::Result<()> {
        while !self.has_room(entries, bytes) {
            if self.remove_expired(connection, 1, now)? > 0 {
                continue;
            }
            let oldest = connection
                .prepare_cached(
                    "SELECT id, size FROM ledger WHERE answer IS NOT NULL AND key <> ?1 ORDER BY id LIMIT 1",
                )?
                .query_row([kept.0], |row| Ok((row.get(0)?, row.get(1)?)))
                .optional()?;
            let Some((id, size)) = oldest else { break };
            self.delete(connection, id, size)?;
            self.shed.set(self.shed.get() + 1);
        }
        Ok(())
    }

    /// Removes the entries that expired first, at most so many; returns how many.
    fn remove_expired(&self, connection: &Connection, most: i64, now: i64) -> rusqlite::Result<usize> {
        // One statement that selects and deletes would make a table of its own for its selection, each time.
        let expired = connection
            .prepare_cached("SELECT id, size FROM ledger WHERE expires_at <= ?1 ORDER BY expires_at LIMIT ?2")?
            .query_map([now, most], |row| Ok((row.get(0)?, row.get(1)?)))?
            .collect::<rusqlite::Result<Vec<_>>>()?;
        let removed = expired.len();
        expired.into_iter().try_for_each(|(id, size)| self.delete(connection, id, size))?;
        Ok(removed)
    }
}

/// An entry of the file.
struct Found {
    id: i64,
    size: i64,
    run: RunToken,
    is_expired: bool,
    entry: LedgerEntry,
}

fn find(connection: &Connection, key: RequestKey, now: i64) -> rusqlite::Result<Option<Found>> {
    connection
        .prepare_cached(
            "SELECT fingerprint, run, instance, expires_at <= ?2, answer, \
             EXISTS (SELECT 1 FROM ledger_leases AS l WHERE l.instance = ledger.instance AND l.until > ?2), id, size \
             FROM ledger WHERE key = ?1",
        )?
        .query_row(params![key.0, now], found)
        .optional()
}

fn found(row: &Row<'_>) -> rusqlite::Result<Found> {
    let run = RunToken(row.get(1)?);
    let state = match row.get::<_, Option<Vec<u8>>>(4)? {
        Some(reply) => EntryState::Answered(reply.into()),
        None => EntryState::Started { run, instance: row.get::<_, String>(2)?.into(), is_live: row.get(5)? },
    };
    let entry = LedgerEntry { fingerprint: Fingerprint(row.get(0)?), state };
    Ok(Found { id: row.get(6)?, size: row.get(7)?, run, is_expired: row.get(3)?, entry })
}

/// Milliseconds since 1970.
fn now(clock: Clock) -> i64 {
    milliseconds(clock.since_epoch())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: LedgerLimits = LedgerLimits { max_entries: 1000, max_bytes: 64 << 20 };

    async fn record_reply(ledger: &SqliteLedger, size: usize) -> Result<(), StoreError> {
        let (key, run) = (RequestKey([u8::try_from(size % 251).unwrap_or_default(); 32]), RunToken([1; 16]));
        let (fingerprint, instance) = (Fingerprint([2; 32]), Arc::from("a"));
        let ttl = Duration::from_secs(60);
        ledger.begin(Begin { key, fingerprint, run, instance, ttl, replaces: false }).await?;
        ledger.finish(key, run, vec![b'x'; size].into()).await.map(drop)
    }

    #[tokio::test]
    async fn a_full_disk_is_reported_from_the_first_failed_write_until_there_is_room() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = SqliteLedger::open(&folder.path().join("store.db"), LIMITS, Clock::SYSTEM).unwrap();
        let pages = |number: u32| {
            let set =
                move |_: &Writer, connection: &Connection| connection.pragma_update(None, "max_page_count", number);
            ledger.threads.write(set)
        };
        record_reply(&ledger, 10).await.unwrap();
        pages(20).await.unwrap();
        assert_eq!(ledger.check().await, Ok(()), "nothing has failed");
        let full = Err(StoreError::Failed("database or disk is full".to_owned()));
        assert_eq!(record_reply(&ledger, 1 << 20).await, full);
        assert_eq!(ledger.check().await, full);
        pages(1 << 20).await.unwrap();
        assert_eq!(ledger.check().await, Ok(()));
        assert_eq!(ledger.look_up(RequestKey([0; 32])).await, Ok(None));
        record_reply(&ledger, 1 << 20).await.unwrap();
    }

    #[tokio::test]
    async fn a_removed_reply_is_counted_when_its_transaction_commits() {
        let folder = tempfile::tempdir().unwrap();
        let limits = LedgerLimits { max_entries: 1, ..LIMITS };
        let ledger = SqliteLedger::open(&folder.path().join("store.db"), limits, Clock::SYSTEM).unwrap();
        record_reply(&ledger, 4).await.unwrap();
        let rolled_back = ledger.threads.write(|writer, connection| {
            writer.make_room(connection, 1, ENTRY_BYTES, RequestKey([9; 32]), 0)?;
            connection.execute_batch("ROLLBACK")
        });
        assert!(rolled_back.await.is_err());
        assert_eq!(ledger.usage(), LedgerUsage { entries: 1, bytes: 260, shed: 0 });
        record_reply(&ledger, 5).await.unwrap();
        assert_eq!(ledger.usage(), LedgerUsage { entries: 1, bytes: 261, shed: 1 });
    }

    #[tokio::test]
    async fn a_check_waits_for_an_abandoned_write_and_reports_its_failure() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = SqliteLedger::open(&folder.path().join("store.db"), LIMITS, Clock::SYSTEM).unwrap();
        let (begin, begun) = tokio::sync::oneshot::channel();
        let (go_on, gone_on) = std::sync::mpsc::channel::<()>();
        // As on a file system that hangs, and then reports that it is full.
        let write = ledger.threads.write(move |_, connection| {
            let _ = begin.send(());
            let _ = gone_on.recv();
            connection.pragma_update(None, "max_page_count", 1)?;
            connection.execute_batch("CREATE TABLE more (x)")
        });
        tokio::select! {
            biased;
            _ = write => unreachable!("it waits"),
            begun = begun => begun.unwrap(),
        }
        let (checked, ()) = tokio::join!(biased; ledger.check(), async { go_on.send(()).unwrap() });
        assert_eq!(checked, Err(StoreError::Failed("database or disk is full".to_owned())));
    }

    #[tokio::test]
    async fn a_ledger_whose_sums_triggers_kept_goes_on_with_these() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store.db");
        let open = || SqliteLedger::open(&path, LIMITS, Clock::SYSTEM).unwrap();
        record_reply(&open(), 4).await.unwrap();
        let triggers = &MIGRATION[MIGRATION.find("CREATE TRIGGER").unwrap()..];
        let older = format!("{triggers}; DROP INDEX ledger_expires_at; PRAGMA user_version = 2");
        Connection::open(&path).unwrap().execute_batch(&older).unwrap();
        let ledger = open();
        assert_eq!(ledger.usage(), LedgerUsage { entries: 1, bytes: 260, shed: 0 });
        record_reply(&ledger, 5).await.unwrap();
        assert_eq!(ledger.usage(), LedgerUsage { entries: 2, bytes: 521, shed: 0 });
        assert_eq!(open().usage(), ledger.usage());
        let index = "SELECT count(*) FROM sqlite_schema WHERE name = 'ledger_expires_at'";
        let indexes: i64 = Connection::open(&path).unwrap().query_row(index, (), |row| row.get(0)).unwrap();
        assert_eq!(indexes, 1);
    }
}
