//! Opening the file: whose it is, what is in it, and how safe it keeps that.

use std::io;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rusqlite::{Connection, ErrorCode, OpenFlags, Transaction, TransactionBehavior};
use rustix::fs::{Access, CWD, FileType, Mode, access, mknodat};
use rustix::io::Errno;

/// How long to wait for another process that holds the file.
const PATIENCE: Duration = Duration::from_secs(5);
/// Time between two attempts to open it, where SQLite does not wait by itself.
const RETRY: Duration = Duration::from_millis(10);
/// Marks the file as ours: `Tbus`.
const APPLICATION: i32 = i32::from_be_bytes(*b"Tbus");
/// What each version of the tables adds to the one before. Only ever appended to.
const MIGRATIONS: [&str; 1] = ["CREATE TABLE entries (
    namespace TEXT NOT NULL,
    key TEXT NOT NULL,
    value BLOB NOT NULL,
    PRIMARY KEY (namespace, key)
) STRICT, WITHOUT ROWID"];

/// Why a file cannot be used as a store. The texts follow the file's name.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Its folder is missing.
    #[error("its folder does not exist; create it, for the daemon's user alone")]
    NoFolder,
    /// It cannot be read and written.
    #[error("it cannot be opened for reading and writing: {0}")]
    Unusable(io::Error),
    /// A folder, a pipe or a device.
    #[error("it is no regular file")]
    NoFile,
    /// It is something else.
    #[error("it is not a database of SQLite; name another file")]
    NoDatabase,
    /// It is a database of something else.
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
    /// Somebody else holds it.
    #[error("another process has held it for {} s", PATIENCE.as_secs())]
    Held,
    /// SQLite says no.
    #[error("{0}")]
    Sqlite(rusqlite::Error),
    /// There is no thread for it.
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

pub(super) fn open(path: &Path) -> Result<Connection, OpenError> {
    // A name such as `:memory:` has a meaning of its own for SQLite; a path does not.
    let path = std::path::absolute(path).map_err(OpenError::Unusable)?;
    create(&path)?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        match connect(&path) {
            // Where two processes turn on the log of a new file, SQLite refuses one of them without waiting.
            Err(OpenError::Held) if Instant::now() < deadline => thread::park_timeout(RETRY),
            result => return result,
        }
    }
}

fn connect(path: &Path) -> Result<Connection, OpenError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(PATIENCE)?;
    migrate(&mut connection)?;
    // A switch that an operator turned must not turn back, whatever happens to the machine: every commit reaches the disk.
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.query_row("PRAGMA journal_mode = WAL", (), |_| Ok(()))?;
    Ok(connection)
}

/// Makes the file, if it is not there, readable for this user alone. SQLite gives the files beside it the same mode.
///
/// Never opens it: closing a file takes away every lock that the process has on it, those of other connections too.
fn create(path: &Path) -> Result<(), OpenError> {
    match mknodat(CWD, path, FileType::RegularFile, Mode::RUSR | Mode::WUSR, 0) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(Errno::NOENT) => return Err(OpenError::NoFolder),
        Err(error) => return Err(OpenError::Unusable(error.into())),
    }
    let metadata = path.metadata().map_err(OpenError::Unusable)?;
    if !metadata.is_file() {
        return Err(OpenError::NoFile);
    }
    access(path, Access::READ_OK | Access::WRITE_OK).map_err(|error| OpenError::Unusable(error.into()))
}

fn migrate(connection: &mut Connection) -> Result<(), OpenError> {
    // Two processes may find the same new file: one of them makes the tables, the other one waits.
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let version = version(&transaction)?;
    let known = MIGRATIONS.len();
    if version > known {
        return Err(OpenError::Newer { found: version, known });
    }
    for migration in MIGRATIONS.iter().skip(version) {
        transaction.execute_batch(migration)?;
    }
    transaction.pragma_update(None, "application_id", APPLICATION)?;
    transaction.pragma_update(None, "user_version", known as i64)?;
    Ok(transaction.commit()?)
}

/// Version of the tables; 0 when there are none yet.
fn version(transaction: &Transaction<'_>) -> Result<usize, OpenError> {
    let number = |query: &str| transaction.query_row(query, (), |row| row.get::<_, i64>(0));
    let application = number("PRAGMA application_id")?;
    let is_empty = number("SELECT count(*) FROM sqlite_schema")? == 0;
    match application {
        0 if is_empty => Ok(0),
        ours if ours == i64::from(APPLICATION) => {
            usize::try_from(number("PRAGMA user_version")?).map_err(|_| OpenError::Foreign)
        }
        _ => Err(OpenError::Foreign),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_commit_reaches_the_disk_and_readers_wait_for_no_writer() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store.db");
        drop(open(&path).unwrap());
        let again = open(&path).unwrap();
        let synchronous: i64 = again.query_row("PRAGMA synchronous", (), |row| row.get(0)).unwrap();
        let journal: String = again.query_row("PRAGMA journal_mode", (), |row| row.get(0)).unwrap();
        assert_eq!((synchronous, journal.as_str()), (2, "wal"));
    }
}
