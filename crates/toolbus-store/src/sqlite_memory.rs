//! Working memory in a SQLite file of its own.
//!
//! Commits do not wait for the disk: after a loss of power, the last entries may be missing. The file of the store cannot
//! hold them, because each of its commits is to reach the disk, and a large batch would delay what calls wait for.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use rusqlite::types::Type;
use rusqlite::{Connection, OptionalExtension, Row, params};
use toolbus_core::Clock;
use toolbus_core::store::StoreError;
use toolbus_memory::usage::{MAX_USAGE, MemoryUsage, NamespaceUsage, ShareUsage};
use toolbus_memory::working_memory::{
    EntryInfo, EntryKey, KeyPrefix, MemoryEntry, MemoryError, MemoryLimits, MemoryOwner, NewEntry, SearchHit,
    SearchQuery, WorkingMemory,
};

use crate::entry_index::{EntryChanges, EntryIndexes, MemoryMark};
use crate::sqlite::{OpenError, Schema, milliseconds, signed};
use crate::sqlite_threads::{SqliteThreads, Writer};
use crate::volatile_memory::UsedMemory;

/// Ending that the name of the file adds to that of the store's file.
const ENDING: &str = "-memory";

/// The tables. `memory_usage` counts what `kind` and `name` have, kept right by the triggers: 0 is all, 1 a share, 2 a
/// namespace of an owner. Identifiers of entries only grow.
const SCHEMA: Schema = Schema {
    application: *b"Tbwm",
    migrations: &["
CREATE TABLE memory (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    owner TEXT NOT NULL,
    key TEXT NOT NULL,
    namespace TEXT NOT NULL,
    share TEXT NOT NULL,
    size INTEGER NOT NULL,
    saved_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    characters INTEGER NOT NULL,
    category TEXT,
    tags TEXT NOT NULL,
    value TEXT NOT NULL,
    UNIQUE (owner, key)
) STRICT;
CREATE INDEX memory_ends ON memory (expires_at);
CREATE INDEX memory_saved ON memory (owner, id);
CREATE TABLE memory_usage (
    kind INTEGER NOT NULL, name TEXT NOT NULL, entries INTEGER NOT NULL, bytes INTEGER NOT NULL, PRIMARY KEY (kind, name)
) STRICT, WITHOUT ROWID;
CREATE TABLE memory_deletions (one INTEGER PRIMARY KEY CHECK (one = 1), number INTEGER NOT NULL) STRICT;
INSERT INTO memory_deletions VALUES (1, 0);
CREATE TRIGGER memory_inserted AFTER INSERT ON memory BEGIN
    INSERT INTO memory_usage VALUES (0, '', 1, new.size), (1, new.share, 1, new.size),
        (2, new.owner || char(10) || new.namespace, 1, new.size)
    ON CONFLICT DO UPDATE SET entries = entries + 1, bytes = bytes + excluded.bytes;
END;
CREATE TRIGGER memory_deleted AFTER DELETE ON memory BEGIN
    UPDATE memory_usage SET entries = entries - 1, bytes = bytes - old.size
    WHERE (kind = 0 AND name = '') OR (kind = 1 AND name = old.share)
        OR (kind = 2 AND name = old.owner || char(10) || old.namespace);
    DELETE FROM memory_usage WHERE kind = 1 AND name = old.share AND entries = 0;
    DELETE FROM memory_usage WHERE kind = 2 AND name = old.owner || char(10) || old.namespace AND entries = 0;
END"],
    is_durable: false,
};

/// Columns of the metadata of an entry.
const INFO: &str = "key, category, tags, characters, saved_at, expires_at";

/// Bytes that are written to find out whether a file that had no room for an entry has some again.
const ROOM: u32 = 256 << 10;
/// Writes so many, in an entry that has expired.
const CHECK_QUERY: &str = "INSERT INTO memory (owner, key, namespace, share, size, saved_at, expires_at, characters, tags, \
    value) VALUES ('', 'check/file', 'check', '', 0, 0, 0, 0, '[]', printf('%.*c', ?1, ' '))";

/// Keeps entries in a file.
#[derive(Debug)]
pub struct SqliteMemory {
    threads: SqliteThreads<MemoryWriter>,
    limits: MemoryLimits,
    clock: Clock,
    indexes: Arc<EntryIndexes>,
}

/// State of the writing thread.
#[derive(Debug)]
struct MemoryWriter {
    limits: MemoryLimits,
    clock: Clock,
}

impl SqliteMemory {
    /// Opens a file, or creates it for this user alone. Blocks as [`Sqlite::open`](crate::Sqlite::open) does.
    ///
    /// # Errors
    ///
    /// If the file cannot be opened for reading and writing, or is none of working memory: see [`OpenError`].
    pub fn open(path: &Path, limits: MemoryLimits, clock: Clock) -> Result<Self, OpenError> {
        let threads = SqliteThreads::open(path, &SCHEMA, "toolbus-memory", MemoryWriter { limits, clock })?;
        Ok(Self { threads, limits, clock, indexes: Arc::default() })
    }

    /// Whether entries can be saved: writes a little and, after a failure, as much as a large entry has.
    ///
    /// # Errors
    ///
    /// If the file was removed or replaced, or cannot be written, for example because its file system is full or read-only.
    pub async fn check(&self) -> Result<(), StoreError> {
        let room = if self.threads.has_failed().await? { ROOM } else { 1 };
        self.threads
            .write(move |writer, connection| {
                // Also removes the entry of the last check, which had expired then.
                writer.expire(connection)?;
                connection.prepare_cached(CHECK_QUERY)?.execute([room]).map(drop)
            })
            .await?;
        self.threads.check_name().await
    }

    /// The file of working memory that belongs to the file of a store.
    #[must_use]
    pub fn beside(store: &Path) -> PathBuf {
        let mut name = store.as_os_str().to_owned();
        name.push(ENDING);
        name.into()
    }
}

impl WorkingMemory for SqliteMemory {
    fn save(&self, owner: MemoryOwner, entries: Vec<NewEntry>) -> BoxFuture<'_, Result<(), MemoryError>> {
        async move {
            let entries = self.limits.checked(entries)?;
            self.threads.write(move |writer, connection| writer.save(connection, &owner, &entries)).await?
        }
        .boxed()
    }

    fn get(&self, owner: MemoryOwner, key: EntryKey) -> BoxFuture<'_, Result<Option<MemoryEntry>, MemoryError>> {
        let now = milliseconds(self.clock.since_epoch());
        async move {
            let found = self.threads.read(move |connection| {
                let query =
                    format!("SELECT {INFO}, value FROM memory WHERE owner = ?1 AND key = ?2 AND expires_at > ?3");
                let mut statement = connection.prepare_cached(&query)?;
                statement.query_row(params![owner.key, key.as_str(), now], entry_of).optional()
            });
            Ok(found.await?)
        }
        .boxed()
    }

    fn list(&self, owner: MemoryOwner, prefix: KeyPrefix) -> BoxFuture<'_, Result<Vec<EntryInfo>, MemoryError>> {
        let now = milliseconds(self.clock.since_epoch());
        async move {
            let found = self.threads.read(move |connection| {
                let query = format!(
                    "SELECT {INFO} FROM memory WHERE owner = ?1 AND key >= ?2 AND expires_at > ?3 ORDER BY key"
                );
                let mut statement = connection.prepare_cached(&query)?;
                let rows = statement.query_map(params![owner.key, prefix.as_str(), now], info_of)?;
                // The first one without the prefix ends those that have it.
                let has_prefix =
                    |info: &rusqlite::Result<EntryInfo>| info.as_ref().map_or(true, |info| prefix.matches(&info.key));
                rows.take_while(has_prefix).collect()
            });
            Ok(found.await?)
        }
        .boxed()
    }

    fn search(&self, owner: MemoryOwner, query: SearchQuery) -> BoxFuture<'_, Result<Vec<SearchHit>, MemoryError>> {
        let now = self.clock.since_epoch();
        async move {
            let of = Arc::clone(&owner.key);
            let read = |since| {
                let owner = Arc::clone(&of);
                async move { Ok(self.threads.read(move |connection| changes(connection, &owner, since, now)).await?) }
            };
            self.indexes.search(owner, query, now, read).await
        }
        .boxed()
    }

    fn delete(&self, owner: MemoryOwner, key: EntryKey) -> BoxFuture<'_, Result<bool, MemoryError>> {
        async move {
            let deleted = self.threads.write(move |writer, connection| {
                writer.expire(connection)?;
                let query = "DELETE FROM memory WHERE owner = ?1 AND key = ?2";
                let deleted = connection.prepare_cached(query)?.execute(params![owner.key, key.as_str()])?;
                let query = "UPDATE memory_deletions SET number = number + ?1";
                connection.prepare_cached(query)?.execute([signed(deleted as u64)])?;
                Ok(deleted > 0)
            });
            Ok(deleted.await?)
        }
        .boxed()
    }

    fn usage(&self) -> BoxFuture<'_, Result<MemoryUsage, MemoryError>> {
        async move {
            let used = self.threads.write(|writer, connection| {
                writer.expire(connection)?;
                usage(connection)
            });
            Ok(used.await?)
        }
        .boxed()
    }
}

impl Writer for MemoryWriter {
    fn finish(&self, connection: &Connection, operations: usize) -> rusqlite::Result<()> {
        // The operations of a transaction remove what has expired before they count.
        if operations == 0 { self.expire(connection).map(drop) } else { Ok(()) }
    }
}

impl MemoryWriter {
    fn save(
        &self,
        connection: &Connection,
        owner: &MemoryOwner,
        entries: &[NewEntry],
    ) -> rusqlite::Result<Result<(), MemoryError>> {
        let now = self.expire(connection)?;
        connection.prepare_cached("SAVEPOINT save")?.execute(())?;
        let saved = self.save_all(connection, owner, entries, now);
        if !matches!(saved, Ok(Ok(()))) {
            connection.prepare_cached("ROLLBACK TO save")?.execute(())?;
        }
        connection.prepare_cached("RELEASE save")?.execute(())?;
        saved
    }

    /// Saves entries, and finds out whether that was too much.
    fn save_all(
        &self,
        connection: &Connection,
        owner: &MemoryOwner,
        entries: &[NewEntry],
        now: Duration,
    ) -> rusqlite::Result<Result<(), MemoryError>> {
        let used = |kind: u8, name: &str| {
            let query = "SELECT entries, bytes FROM memory_usage WHERE kind = ?1 AND name = ?2";
            let unsigned = |row: &Row<'_>, at| row.get::<_, i64>(at).map(|number| u64::try_from(number).unwrap_or(0));
            let row = |row: &Row<'_>| Ok(UsedMemory { entries: unsigned(row, 0)?, bytes: unsigned(row, 1)? });
            connection
                .prepare_cached(query)?
                .query_row(params![kind, name], row)
                .optional()
                .map(Option::unwrap_or_default)
        };
        let (share, total) = (used(1, &owner.share)?, used(0, "")?);
        let mut grown = BTreeSet::new();
        for entry in entries {
            if insert(connection, owner, entry, now)? {
                grown.insert(entry.key.namespace());
            }
        }
        let MemoryLimits { max_entries_per_namespace: max, max_entries, max_size, max_total_size, .. } = self.limits;
        for namespace in grown {
            if used(2, &format!("{}\n{namespace}", owner.key))?.entries > max {
                return Ok(Err(MemoryError::Namespace { namespace: namespace.into(), max }));
            }
        }
        // Without growth nothing is refused, also where a limit was lowered.
        let is_over = |before: u64, after: u64, max: u64| after > before && after > max;
        let (share_after, total_after) = (used(1, &owner.share)?, used(0, "")?);
        Ok(if is_over(share.entries, share_after.entries, max_entries) {
            Err(MemoryError::Entries(max_entries))
        } else if is_over(share.bytes, share_after.bytes, max_size) {
            Err(MemoryError::Size(max_size))
        } else if is_over(total.bytes, total_after.bytes, max_total_size) {
            Err(MemoryError::Total(max_total_size))
        } else {
            Ok(())
        })
    }

    /// Removes what has expired; returns the time since 1970.
    fn expire(&self, connection: &Connection) -> rusqlite::Result<Duration> {
        let now = self.clock.since_epoch();
        connection.prepare_cached("DELETE FROM memory WHERE expires_at <= ?1")?.execute([milliseconds(now)])?;
        Ok(now)
    }
}

/// Returns the usage, in which entries that have expired count until they are removed.
fn usage(connection: &Connection) -> rusqlite::Result<MemoryUsage> {
    let query = "SELECT name, entries, bytes FROM memory_usage WHERE kind = ?1 ORDER BY entries DESC, name LIMIT ?2";
    let unsigned = |row: &Row<'_>, at| row.get::<_, i64>(at).map(|number| u64::try_from(number).unwrap_or(0));
    let used = |kind: u8| -> rusqlite::Result<Vec<(String, UsedMemory)>> {
        let row =
            |row: &Row<'_>| Ok((row.get(0)?, UsedMemory { entries: unsigned(row, 1)?, bytes: unsigned(row, 2)? }));
        connection.prepare_cached(query)?.query_map(params![kind, signed(MAX_USAGE as u64 + 1)], row)?.collect()
    };
    let share = |(share, UsedMemory { entries, bytes }): (String, UsedMemory)| ShareUsage {
        share: share.into(),
        entries,
        bytes,
    };
    let namespace = |(name, used): (String, UsedMemory)| {
        let (owner, namespace) = name.rsplit_once('\n')?;
        Some(NamespaceUsage { owner: owner.into(), namespace: namespace.into(), entries: used.entries })
    };
    let bytes = used(0)?.first().map_or(0, |(_, used)| used.bytes);
    let (shares, namespaces) = (used(1)?.into_iter().map(share), used(2)?.into_iter().filter_map(namespace));
    Ok(MemoryUsage::new(bytes, shares.collect(), namespaces.collect(), true))
}

/// Saves an entry; returns whether there was none under its key.
fn insert(connection: &Connection, owner: &MemoryOwner, entry: &NewEntry, now: Duration) -> rusqlite::Result<bool> {
    let key = entry.key.as_str();
    let query = "DELETE FROM memory WHERE owner = ?1 AND key = ?2";
    let replaced = connection.prepare_cached(query)?.execute(params![owner.key, key])?;
    let EntryInfo { category, tags, characters, saved_at, expires_at, .. } = entry.info(now);
    let tags: Vec<&str> = tags.iter().map(AsRef::as_ref).collect();
    let query = "INSERT INTO memory (owner, key, namespace, share, size, saved_at, expires_at, characters, category, tags, \
                 value) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)";
    connection.prepare_cached(query)?.execute(params![
        owner.key,
        key,
        entry.key.namespace(),
        owner.share,
        signed(entry.size()),
        milliseconds(saved_at),
        milliseconds(expires_at),
        signed(characters),
        category,
        serde_json::Value::from(tags).to_string(),
        entry.value,
    ])?;
    Ok(replaced == 0)
}

/// Returns the changes in the entries of an owner since a state.
fn changes(
    connection: &Connection,
    owner: &str,
    since: Option<MemoryMark>,
    now: Duration,
) -> rusqlite::Result<EntryChanges> {
    // All queries see one state.
    let connection = connection.unchecked_transaction()?;
    let number = |query: &str| connection.prepare_cached(query)?.query_row((), |row| row.get::<_, i64>(0)).optional();
    let deletions = number("SELECT number FROM memory_deletions")?.unwrap_or_default();
    let revision = number("SELECT seq FROM sqlite_sequence WHERE name = 'memory'")?.unwrap_or_default();
    let [deletions, revision] = [deletions, revision].map(|number| u64::try_from(number).unwrap_or_default());
    let mark = MemoryMark { epoch: 0, deletions, revision };
    let last = since.map_or(0, |since| since.revision);
    let mut saved = Vec::new();
    if revision > last {
        let query =
            format!("SELECT {INFO}, value FROM memory WHERE owner = ?1 AND id > ?2 AND expires_at > ?3 ORDER BY id");
        let mut statement = connection.prepare_cached(&query)?;
        let found = statement.query_map(params![owner, signed(last), milliseconds(now)], entry_of)?;
        saved = found.map(|entry| entry.map(Arc::new)).collect::<rusqlite::Result<_>>()?;
    }
    let mut keys = None;
    if since.is_some_and(|since| since.deletions != deletions) {
        let mut statement = connection.prepare_cached("SELECT key FROM memory WHERE owner = ?1")?;
        let found = statement.query_map([owner], |row| key_of(&row.get::<_, String>(0)?))?;
        keys = Some(found.collect::<rusqlite::Result<_>>()?);
    }
    Ok(EntryChanges { mark, is_complete: since.is_none(), saved, keys })
}

fn entry_of(row: &Row<'_>) -> rusqlite::Result<MemoryEntry> {
    Ok(MemoryEntry { info: info_of(row)?, value: row.get(6)? })
}

fn info_of(row: &Row<'_>) -> rusqlite::Result<EntryInfo> {
    let tags: Vec<String> = serde_json::from_str(row.get_ref(2)?.as_str()?).map_err(|error| unreadable(2, error))?;
    let time = |at| row.get::<_, i64>(at).map(|time| Duration::from_millis(u64::try_from(time).unwrap_or_default()));
    Ok(EntryInfo {
        key: key_of(row.get_ref(0)?.as_str()?)?,
        category: row.get(1)?,
        tags: tags.into_iter().map(Arc::from).collect(),
        characters: u64::try_from(row.get::<_, i64>(3)?).unwrap_or_default(),
        saved_at: time(4)?,
        expires_at: time(5)?,
    })
}

fn key_of(text: &str) -> rusqlite::Result<EntryKey> {
    EntryKey::parse(text).map_err(|error| unreadable(0, error))
}

fn unreadable(column: usize, error: impl std::error::Error + Send + Sync + 'static) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(column, Type::Text, Box::new(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: MemoryLimits = MemoryLimits {
        max_value: 1 << 20,
        max_entries_per_namespace: 10,
        max_entries: 10,
        max_size: 1 << 24,
        max_total_size: 1 << 24,
    };

    impl SqliteMemory {
        async fn set(&self, pragma: &'static str, value: i64) {
            let set = self.threads.write(move |_, connection| {
                connection.query_row(&format!("PRAGMA {pragma} = {value}"), (), |_| Ok(())).optional()
            });
            set.await.unwrap();
        }

        async fn put(&self, value: &str) -> Result<(), MemoryError> {
            let owner = MemoryOwner { key: "ana".into(), share: "ana".into() };
            let key = EntryKey::parse("a/b").unwrap();
            self.save(owner, vec![NewEntry::new(key, value, Duration::from_secs(60))]).await
        }
    }

    fn open(folder: &tempfile::TempDir) -> SqliteMemory {
        SqliteMemory::open(&folder.path().join("store.db-memory"), LIMITS, Clock::SYSTEM).unwrap()
    }

    fn failed(text: &str) -> StoreError {
        StoreError::Failed(text.to_owned())
    }

    #[tokio::test]
    async fn a_full_disk_is_reported_from_the_first_failed_write_until_there_is_room() {
        let folder = tempfile::tempdir().unwrap();
        let memory = open(&folder);
        memory.put("small").await.unwrap();
        memory.set("max_page_count", 40).await;
        assert_eq!(memory.check().await, Ok(()), "there is room for a little");
        let full = failed("database or disk is full");
        assert_eq!(memory.put(&"x".repeat(1 << 20)).await, Err(MemoryError::Store(full.clone())));
        assert_eq!(memory.check().await, Err(full));
        memory.set("max_page_count", 1 << 20).await;
        assert_eq!(memory.check().await, Ok(()));
        assert!(!memory.threads.has_failed().await.unwrap());
        memory.put(&"x".repeat(1 << 20)).await.unwrap();
    }

    #[tokio::test]
    async fn a_read_only_file_is_reported_without_a_call() {
        let folder = tempfile::tempdir().unwrap();
        let memory = open(&folder);
        memory.set("query_only", 1).await;
        assert_eq!(memory.check().await, Err(failed("attempt to write a readonly database")));
    }
}
