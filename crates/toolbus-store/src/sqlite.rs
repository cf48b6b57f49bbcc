//! A store in one SQLite file, which several processes on one machine may share.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::thread;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension, Transaction, TransactionBehavior, params};
use rustix::fs::{Access, CWD, FileType, Mode, access, mknodat};
use rustix::io::Errno;
use tokio::sync::{mpsc, oneshot};
use toolbus_core::Clock;
use toolbus_core::store::{MAX_KEYS, Store, StoreError, check_key, check_namespace, check_value};

use crate::claim::hand_over;
use crate::sqlite_ledger;
use crate::sqlite_log::{self, LogState};

/// Operations that wait for the connection; further ones wait for a slot.
const MAX_WAITING: usize = 64;

/// Longest wait for another process that holds the file.
const PATIENCE: Duration = Duration::from_secs(5);
/// Time between two attempts to open it, where SQLite does not wait by itself.
const RETRY: Duration = Duration::from_millis(10);
/// Number of times that a log is read that seems to be damaged.
const LOG_ATTEMPTS: usize = 3;
/// First bytes of every database of SQLite, the length of its header, and where two of its numbers are.
const MAGIC: &[u8] = b"SQLite format 3\0";
const HEADER: u64 = 100;
const USER_VERSION: usize = 60;
const APPLICATION_ID: usize = 68;

/// Contents of a file.
pub(crate) struct Schema {
    /// Marks the file as one of this kind.
    pub(crate) application: [u8; 4],
    /// Additions of each version of the tables to the one before. Only ever appended to.
    pub(crate) migrations: &'static [&'static str],
    /// Whether each commit reaches the disk.
    pub(crate) is_durable: bool,
}

/// The file of the store and the ledger.
pub(crate) const STORE: Schema = Schema {
    application: *b"Tbus",
    migrations: &[
        "CREATE TABLE entries (
    namespace TEXT NOT NULL,
    key TEXT NOT NULL,
    value BLOB NOT NULL,
    PRIMARY KEY (namespace, key)
) STRICT, WITHOUT ROWID",
        sqlite_ledger::MIGRATION,
        sqlite_ledger::WITHOUT_TRIGGERS,
        sqlite_ledger::EXPIRY_INDEX,
    ],
    // A switch that an operator turned must not turn back, whatever happens to the machine.
    is_durable: true,
};

/// An operation, run by the thread of the connection.
type Operation = Box<dyn FnOnce(&Connection) + Send>;

/// Keeps values in a file. A connection cannot be shared between threads, so a thread owns it, which ends when this is
/// dropped.
#[derive(Debug)]
pub struct Sqlite {
    operations: mpsc::Sender<Operation>,
}

impl Sqlite {
    /// Opens a file, or creates it for this user alone. Blocks, usually for milliseconds, at most for seconds when another
    /// process holds the file.
    ///
    /// # Errors
    ///
    /// If the file cannot be opened for reading and writing, or is not a store of this program: see [`OpenError`].
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        let connection = open(path, &STORE)?;
        let (operations, mut waiting) = mpsc::channel::<Operation>(MAX_WAITING);
        let run = move || {
            while let Some(operation) = waiting.blocking_recv() {
                operation(&connection);
            }
        };
        thread::Builder::new().name("toolbus-store".to_owned()).spawn(run).map_err(OpenError::Thread)?;
        Ok(Self { operations })
    }

    /// Whether a file is one of an earlier version, whose tables [`open`](Self::open) changes. False if it cannot be read.
    #[must_use]
    pub fn is_older(path: &Path) -> bool {
        let version = read_header(path).ok().and_then(|header| number(&header, USER_VERSION));
        // 0: the application id may still be in the log alone.
        version
            .is_some_and(|found| usize::try_from(found).is_ok_and(|found| (1..STORE.migrations.len()).contains(&found)))
    }

    /// Checks what [`open`](Self::open) would refuse of a file, without opening it as a database, and creates nothing.
    ///
    /// # Errors
    ///
    /// If the file cannot be used as a store, as far as its path, kind, header and log show.
    pub fn check(path: &Path) -> Result<(), OpenError> {
        let path = std::path::absolute(path).map_err(OpenError::Unusable)?;
        if !path.exists() {
            let has_folder = path.parent().is_some_and(Path::is_dir);
            return if has_folder { Ok(()) } else { Err(OpenError::NoFolder) };
        }
        usable(&path)?;
        check_header(&path, &STORE)?;
        read_log(&path).map(drop)
    }

    /// Puts a value under a key that is not there; returns whether it is there.
    async fn add(&self, namespace: &str, key: &str, value: Vec<u8>) -> Result<bool, StoreError> {
        check_key(namespace, key)?;
        check_value(&value)?;
        let (in_namespace, key) = (namespace.to_owned(), key.to_owned());
        let added = self.run(move |connection| {
            let mut statement = connection.prepare_cached(
                "INSERT INTO entries (namespace, key, value) SELECT ?1, ?2, ?3 \
                 WHERE (SELECT count(*) FROM entries WHERE namespace = ?1) < ?4 ON CONFLICT DO NOTHING",
            )?;
            if statement.execute(params![in_namespace, key, value, MAX_KEYS as i64])? > 0 {
                return Ok(Some(true));
            }
            let same = "SELECT value = ?3 FROM entries WHERE namespace = ?1 AND key = ?2";
            connection.prepare_cached(same)?.query_row(params![in_namespace, key, value], |row| row.get(0)).optional()
        });
        added.await?.ok_or_else(|| StoreError::Full(namespace.to_owned()))
    }

    async fn run<T: Send + 'static>(
        &self,
        operation: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (sender, receiver) = oneshot::channel();
        let operation: Operation = Box::new(move |connection| {
            // The receiver may have given up.
            let _ = sender.send(operation(connection));
        });
        let gone = || StoreError::Failed("its thread has ended".to_owned());
        self.operations.send(operation).await.map_err(|_| gone())?;
        receiver.await.map_err(|_| gone())?.map_err(|error| StoreError::Failed(error.to_string()))
    }
}

impl Store for Sqlite {
    fn get<'a>(&'a self, namespace: &'a str, key: &'a str) -> BoxFuture<'a, Result<Option<Vec<u8>>, StoreError>> {
        async move {
            check_key(namespace, key)?;
            let names = (namespace.to_owned(), key.to_owned());
            self.run(move |connection| {
                connection
                    .prepare_cached("SELECT value FROM entries WHERE namespace = ?1 AND key = ?2")?
                    .query_row(names, |row| row.get(0))
                    .optional()
            })
            .await
        }
        .boxed()
    }

    fn put<'a>(&'a self, namespace: &'a str, key: &'a str, value: Vec<u8>) -> BoxFuture<'a, Result<(), StoreError>> {
        async move {
            check_key(namespace, key)?;
            check_value(&value)?;
            let (in_namespace, key) = (namespace.to_owned(), key.to_owned());
            let stored = self.run(move |connection| {
                connection
                    .prepare_cached(
                        "INSERT INTO entries (namespace, key, value) SELECT ?1, ?2, ?3 \
                         WHERE EXISTS (SELECT 1 FROM entries WHERE namespace = ?1 AND key = ?2) \
                         OR (SELECT count(*) FROM entries WHERE namespace = ?1) < ?4 \
                         ON CONFLICT DO UPDATE SET value = excluded.value",
                    )?
                    .execute(params![in_namespace, key, value, MAX_KEYS as i64])
            });
            if stored.await? == 0 { Err(StoreError::Full(namespace.to_owned())) } else { Ok(()) }
        }
        .boxed()
    }

    fn replace<'a>(
        &'a self,
        namespace: &'a str,
        key: &'a str,
        expected: Option<&'a [u8]>,
        value: Vec<u8>,
    ) -> BoxFuture<'a, Result<bool, StoreError>> {
        async move {
            let Some(expected) = expected.map(<[u8]>::to_vec) else {
                return self.add(namespace, key, value).await;
            };
            check_key(namespace, key)?;
            check_value(&value)?;
            let (namespace, key) = (namespace.to_owned(), key.to_owned());
            let replaced = self.run(move |connection| {
                connection
                    .prepare_cached(
                        "UPDATE entries SET value = ?3 WHERE namespace = ?1 AND key = ?2 AND value IN (?3, ?4)",
                    )?
                    .execute(params![namespace, key, value, expected])
            });
            Ok(replaced.await? > 0)
        }
        .boxed()
    }

    fn delete<'a>(&'a self, namespace: &'a str, key: &'a str) -> BoxFuture<'a, Result<bool, StoreError>> {
        async move {
            check_key(namespace, key)?;
            let names = (namespace.to_owned(), key.to_owned());
            let deleted = self.run(move |connection| {
                connection.prepare_cached("DELETE FROM entries WHERE namespace = ?1 AND key = ?2")?.execute(names)
            });
            Ok(deleted.await? > 0)
        }
        .boxed()
    }

    fn list<'a>(&'a self, namespace: &'a str) -> BoxFuture<'a, Result<Vec<String>, StoreError>> {
        async move {
            check_namespace(namespace)?;
            let namespace = namespace.to_owned();
            self.run(move |connection| {
                connection
                    .prepare_cached("SELECT key FROM entries WHERE namespace = ?1 ORDER BY key LIMIT ?2")?
                    .query_map(params![namespace, MAX_KEYS as i64], |row| row.get(0))?
                    .collect()
            })
            .await
        }
        .boxed()
    }
}

/// Reason why a file cannot be used as a store. The texts follow the file's name.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Missing folder of the file.
    #[error("its folder does not exist; create it, for the daemon's user alone")]
    NoFolder,
    /// File that cannot be read and written.
    #[error("it cannot be opened for reading and writing: {0}")]
    Unusable(io::Error),
    /// Folder, pipe or device instead of a file.
    #[error("it is no regular file")]
    NoFile,
    /// File that is not a database of SQLite.
    #[error("it is not a database of SQLite; name another file")]
    NoDatabase,
    /// Database of another program.
    #[error("it is a database of another program; name another file")]
    Foreign,
    /// A later version of this program has written it.
    #[error(
        "it has version {found}, and this program knows {known}: use the program that wrote it, or name another file"
    )]
    Newer {
        /// Version of the file.
        found: usize,
        /// Latest version that is known.
        known: usize,
    },
    /// Log of the file that was damaged after it was written.
    #[error(
        "its log {0} is damaged, and calls that began or were answered would be forgotten: restore both files from one \
         backup, or remove the log to go on without what it had"
    )]
    DamagedLog(String),
    /// Another process holds it.
    #[error("another process has held it for {} s", PATIENCE.as_secs())]
    Held,
    /// SQLite refuses.
    #[error("{0}")]
    Sqlite(rusqlite::Error),
    /// Thread of the file that cannot be started.
    #[error("no thread can be started for it: {0}")]
    Thread(io::Error),
}

impl From<rusqlite::Error> for OpenError {
    fn from(error: rusqlite::Error) -> Self {
        match error.sqlite_error_code() {
            Some(ErrorCode::NotADatabase) => Self::NoDatabase,
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Self::Held,
            _ => Self::Sqlite(error),
        }
    }
}

/// Whole milliseconds of a time, as columns have them.
pub(crate) fn milliseconds(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

/// A number, as columns have it.
pub(crate) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Opens the file, creates it if it is missing, and migrates its tables.
pub(crate) fn open(path: &Path, schema: &Schema) -> Result<Connection, OpenError> {
    // A name such as `:memory:` has a meaning of its own for SQLite; a path does not.
    let path = std::path::absolute(path).map_err(OpenError::Unusable)?;
    create(&path)?;
    // After a loss of power, a log whose commits do not reach the disk may lack any part. SQLite reads it up to there.
    let log = if schema.is_durable { read_log(&path)? } else { LogState::Whole };
    let deadline = Clock::SYSTEM.now() + PATIENCE;
    let connection = loop {
        match connect(&path, schema) {
            // Where two processes turn on the log of a new file, SQLite refuses one of them without waiting.
            Err(OpenError::Held) if Clock::SYSTEM.now() < deadline => thread::park_timeout(RETRY),
            result => break result?,
        }
    };
    if log == LogState::Torn {
        // A torn frame must not follow new ones: after another power loss it would be part of the log.
        connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", (), |_| Ok(()))?;
    }
    Ok(connection)
}

/// Reads the log beside a file, before SQLite does.
fn read_log(path: &Path) -> Result<LogState, OpenError> {
    let mut name = path.as_os_str().to_owned();
    name.push("-wal");
    let name = Path::new(&name);
    let mut attempts = LOG_ATTEMPTS;
    loop {
        attempts -= 1;
        match sqlite_log::read(name).map_err(OpenError::Unusable)? {
            // Another connection may begin it anew meanwhile.
            LogState::Damaged if attempts > 0 => thread::park_timeout(RETRY),
            LogState::Damaged => return Err(OpenError::DamagedLog(name.display().to_string())),
            log => return Ok(log),
        }
    }
}

fn connect(path: &Path, schema: &Schema) -> Result<Connection, OpenError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(PATIENCE)?;
    // Without it, SQLite plans a statement anew whenever a value differs that it is compared with.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    if schema.is_durable {
        // Each page of a transaction is in the log once, which `sqlite_log` counts on. What a batch writes stays in memory.
        connection.pragma_update(None, "cache_spill", false)?;
    }
    migrate(&mut connection, schema)?;
    connection.pragma_update(None, "synchronous", if schema.is_durable { "FULL" } else { "NORMAL" })?;
    connection.query_row("PRAGMA journal_mode = WAL", (), |_| Ok(()))?;
    Ok(connection)
}

/// Creates the file if it is missing, readable for this user alone. SQLite gives the files beside it the same mode.
///
/// Never opens it: closing a file takes away every lock that the process has on it, those of other connections too.
fn create(path: &Path) -> Result<(), OpenError> {
    match mknodat(CWD, path, FileType::RegularFile, Mode::RUSR | Mode::WUSR, 0) {
        Ok(()) => hand_over(path),
        Err(Errno::EXIST) => {}
        Err(Errno::NOENT) => return Err(OpenError::NoFolder),
        Err(error) => return Err(OpenError::Unusable(error.into())),
    }
    usable(path)
}

/// Whether a file is one that can be read and written.
fn usable(path: &Path) -> Result<(), OpenError> {
    let metadata = path.metadata().map_err(OpenError::Unusable)?;
    if !metadata.is_file() {
        return Err(OpenError::NoFile);
    }
    access(path, Access::READ_OK | Access::WRITE_OK).map_err(|error| OpenError::Unusable(error.into()))
}

fn read_header(path: &Path) -> io::Result<Vec<u8>> {
    let mut header = Vec::new();
    File::open(path)?.take(HEADER).read_to_end(&mut header)?;
    Ok(header)
}

fn number(header: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(header.get(at..at + 4)?.try_into().ok()?))
}

/// Reads the header in the first page of a file. Changes that are in the log alone are not seen.
fn check_header(path: &Path, schema: &Schema) -> Result<(), OpenError> {
    let header = read_header(path).map_err(OpenError::Unusable)?;
    if header.is_empty() {
        return Ok(());
    }
    let (Some(version), Some(application), true) =
        (number(&header, USER_VERSION), number(&header, APPLICATION_ID), header.starts_with(MAGIC))
    else {
        return Err(OpenError::NoDatabase);
    };
    let (found, known) = (usize::try_from(version).unwrap_or(usize::MAX), schema.migrations.len());
    match application {
        // A database of another program without an id is recognised when it is opened.
        0 => Ok(()),
        ours if ours == u32::from_be_bytes(schema.application) && found <= known => Ok(()),
        ours if ours == u32::from_be_bytes(schema.application) => Err(OpenError::Newer { found, known }),
        _ => Err(OpenError::Foreign),
    }
}

fn migrate(connection: &mut Connection, schema: &Schema) -> Result<(), OpenError> {
    // Two processes may find the same new file: one of them makes the tables, the other one waits.
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let application = i32::from_be_bytes(schema.application);
    let version = version(&transaction, application)?;
    let known = schema.migrations.len();
    if version > known {
        return Err(OpenError::Newer { found: version, known });
    }
    for migration in schema.migrations.iter().skip(version) {
        transaction.execute_batch(migration)?;
    }
    transaction.pragma_update(None, "application_id", application)?;
    transaction.pragma_update(None, "user_version", known as i64)?;
    Ok(transaction.commit()?)
}

/// Version of the tables; 0 when there are none yet.
fn version(transaction: &Transaction<'_>, expected: i32) -> Result<usize, OpenError> {
    let number = |query: &str| transaction.query_row(query, (), |row| row.get::<_, i64>(0));
    let application = number("PRAGMA application_id")?;
    let is_empty = number("SELECT count(*) FROM sqlite_schema")? == 0;
    match application {
        0 if is_empty => Ok(0),
        ours if ours == i64::from(expected) => {
            usize::try_from(number("PRAGMA user_version")?).map_err(|_| OpenError::Foreign)
        }
        _ => Err(OpenError::Foreign),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt as _, chown};

    use super::*;
    use crate::FileClaim;

    #[test]
    fn every_commit_of_a_store_reaches_the_disk_and_readers_wait_for_no_writer() {
        let folder = tempfile::tempdir().unwrap();
        let other = Schema { application: *b"Test", migrations: &["CREATE TABLE x (y)"], is_durable: false };
        for (name, schema, expected) in [("store.db", STORE, 2), ("other.db", other, 1)] {
            let path = folder.path().join(name);
            drop(open(&path, &schema).unwrap());
            let again = open(&path, &schema).unwrap();
            let synchronous: i64 = again.query_row("PRAGMA synchronous", (), |row| row.get(0)).unwrap();
            let journal: String = again.query_row("PRAGMA journal_mode", (), |row| row.get(0)).unwrap();
            assert_eq!((synchronous, journal.as_str()), (expected, "wal"));
        }
        assert!(matches!(open(&folder.path().join("other.db"), &STORE), Err(OpenError::Foreign)));
    }

    #[test]
    fn new_files_have_the_owner_of_their_folder() {
        let folder = tempfile::tempdir().unwrap();
        // Only root can; of others the folder is their own.
        let _ = chown(folder.path(), Some(12_345), Some(12_346));
        let owner = |path: &Path| path.metadata().map(|file| (file.uid(), file.gid())).unwrap();
        let path = folder.path().join("store.db");
        let _open = (open(&path, &STORE).unwrap(), FileClaim::new(&path, "a daemon").unwrap());
        for name in ["store.db", "store.db.lock"] {
            assert_eq!(owner(&folder.path().join(name)), owner(folder.path()), "{name}");
        }
    }

    #[test]
    fn a_check_refuses_an_unusable_file_and_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let other = Schema { application: *b"Test", migrations: &["CREATE TABLE x (y)"], is_durable: false };
        drop((open(&path("store.db"), &STORE).unwrap(), open(&path("other.db"), &other).unwrap()));
        let newer = open(&path("newer.db"), &STORE).unwrap();
        newer.pragma_update(None, "user_version", 99).unwrap();
        drop(newer);
        std::fs::write(path("text.db"), "no database".repeat(20)).unwrap();
        std::fs::write(path("empty.db"), "").unwrap();
        for name in ["new.db", "empty.db", "store.db"] {
            assert!(Sqlite::check(&path(name)).is_ok(), "{name}");
        }
        assert!(!path("new.db").exists() && !path("store.db-wal").exists());
        for name in ["text.db", "other.db", "newer.db", "missing/a.db", "."] {
            let reported = Sqlite::check(&path(name)).unwrap_err().to_string();
            assert_eq!(reported, open(&path(name), &STORE).unwrap_err().to_string(), "{name}");
        }
    }
}
