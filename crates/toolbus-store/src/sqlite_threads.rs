//! The threads of a file's connections: one writes, many operations in one transaction, and one reads meanwhile.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rusqlite::{Connection, Transaction, TransactionBehavior};
use tokio::sync::{mpsc, oneshot};
use toolbus_core::store::StoreError;

use crate::sqlite::{OpenError, Schema, open};

/// Operations that wait; further ones wait for a slot.
const MAX_WAITING: usize = 1024;
/// Operations of one transaction.
const MAX_BATCH: usize = 256;
/// Prepared statements of a connection.
const STATEMENTS: usize = 32;

/// An operation of a transaction; it receives an error if the transaction could not begin. It returns the function that
/// reports its result once the transaction has ended.
type Write<W> = Box<dyn FnOnce(Result<(&W, &Connection), StoreError>) -> Report + Send>;
type Report = Box<dyn FnOnce(Result<(), StoreError>) + Send>;
/// An operation that only reads.
type Read = Box<dyn FnOnce(&Connection) + Send>;

/// State of the writing thread, and its work beside the operations.
pub(crate) trait Writer: Send + 'static {
    /// Runs at the beginning of each transaction.
    fn start(&self, _: &Connection) -> rusqlite::Result<()> {
        Ok(())
    }

    /// Runs before the first operation, and at the end of each transaction of so many.
    fn finish(&self, connection: &Connection, operations: usize) -> rusqlite::Result<()>;

    /// Runs once that is committed, before the operations are reported.
    fn committed(&self) {}
}

/// The two threads, which end when this is dropped.
#[derive(Debug)]
pub(crate) struct SqliteThreads<W> {
    writes: mpsc::Sender<Write<W>>,
    reads: mpsc::Sender<Read>,
    file: PathBuf,
    /// Distinguishes the file from another one of its name.
    identity: Option<FileIdentity>,
    state: Arc<WriteState>,
}

/// State of the writing thread, also of writes that their callers have given up.
#[derive(Debug, Default)]
struct WriteState {
    /// Whether a transaction is under way.
    is_busy: AtomicBool,
    /// Whether the last write has failed.
    has_failed: AtomicBool,
}

/// A file, whatever its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileIdentity {
    device: u64,
    inode: u64,
}

impl FileIdentity {
    fn of(path: &Path) -> Option<Self> {
        path.metadata().ok().map(|metadata| Self { device: metadata.dev(), inode: metadata.ino() })
    }
}

impl<W: Writer> SqliteThreads<W> {
    /// Opens a file, or creates it for this user alone. Blocks as [`Sqlite::open`](crate::Sqlite::open) does. `name` is at
    /// most 13 bytes long.
    pub(crate) fn open(path: &Path, schema: &Schema, name: &str, writer: W) -> Result<Self, OpenError> {
        let (writing, reading) = (open(path, schema)?, open(path, schema)?);
        for connection in [&writing, &reading] {
            connection.set_prepared_statement_cache_capacity(STATEMENTS);
        }
        reading.pragma_update(None, "query_only", true)?;
        writer.finish(&writing, 0)?;
        writer.committed();
        let (writes, waiting) = mpsc::channel(MAX_WAITING);
        let state = Arc::<WriteState>::default();
        let shared = Arc::clone(&state);
        spawn(name, move || run(&writer, &writing, &shared, waiting))?;
        let (reads, mut waiting) = mpsc::channel::<Read>(MAX_WAITING);
        spawn(&format!("{name}-r"), move || {
            while let Some(operation) = waiting.blocking_recv() {
                operation(&reading);
            }
        })?;
        let (file, identity) = (path.to_owned(), FileIdentity::of(path));
        Ok(Self { writes, reads, file, identity, state })
    }

    /// Whether the last write has failed. Waits for the transaction that is under way, which does not end while the file
    /// system hangs.
    ///
    /// # Errors
    ///
    /// If the next transaction fails as well.
    pub(crate) async fn has_failed(&self) -> Result<bool, StoreError> {
        if self.state.is_busy.load(Ordering::Relaxed) {
            let (end, ended) = oneshot::channel();
            // Not by `write`: its success would not cover earlier writes.
            let operation: Write<W> = Box::new(|_| Box::new(move |committed| drop(end.send(committed))));
            self.writes.send(operation).await.map_err(|_| gone())?;
            ended.await.map_err(|_| gone())??;
        }
        Ok(self.state.has_failed.load(Ordering::Relaxed))
    }

    /// Checks that the file is the one that was opened. The thread that reads does so: a file system may hang.
    ///
    /// # Errors
    ///
    /// If the file was removed or replaced.
    pub(crate) async fn check_name(&self) -> Result<(), StoreError> {
        let file = self.file.clone();
        if self.read(move |_| Ok(FileIdentity::of(&file))).await? == self.identity {
            return Ok(());
        }
        Err(StoreError::Failed(format!("the file `{}` was removed or replaced", self.file.display())))
    }

    /// Runs an operation in a transaction with others, and returns once that is committed.
    pub(crate) async fn write<T: Send + 'static>(
        &self,
        operation: impl FnOnce(&W, &Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (sender, receiver) = oneshot::channel();
        let state = Arc::clone(&self.state);
        let operation: Write<W> = Box::new(move |begun| {
            let result = begun.and_then(|(writer, connection)| operation(writer, connection).map_err(failed));
            Box::new(move |committed| {
                let written = result.and_then(|value| committed.map(|()| value));
                state.has_failed.store(written.is_err(), Ordering::Relaxed);
                // The receiver may have given up.
                drop(sender.send(written));
            })
        });
        self.writes.send(operation).await.map_err(|_| gone())?;
        receiver.await.map_err(|_| gone())?
    }

    /// Runs an operation that only reads.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        operation: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (sender, receiver) = oneshot::channel();
        let operation: Read = Box::new(move |connection| drop(sender.send(operation(connection).map_err(failed))));
        self.reads.send(operation).await.map_err(|_| gone())?;
        receiver.await.map_err(|_| gone())?
    }
}

fn run<W: Writer>(writer: &W, connection: &Connection, state: &WriteState, mut waiting: mpsc::Receiver<Write<W>>) {
    let mut batch = Vec::with_capacity(MAX_BATCH);
    while waiting.blocking_recv_many(&mut batch, MAX_BATCH) > 0 {
        state.is_busy.store(true, Ordering::Relaxed);
        let mut reports = Vec::with_capacity(batch.len());
        let committed = commit(writer, connection, &mut batch, &mut reports);
        if let Err(error) = &committed {
            // Those that did not come to run, because the transaction could not begin.
            reports.extend(batch.drain(..).map(|operation| operation(Err(error.clone()))));
        }
        reports.into_iter().for_each(|report| report(committed.clone()));
        state.is_busy.store(false, Ordering::Relaxed);
    }
}

/// Runs operations in one transaction.
fn commit<W: Writer>(
    writer: &W,
    connection: &Connection,
    batch: &mut Vec<Write<W>>,
    reports: &mut Vec<Report>,
) -> Result<(), StoreError> {
    let transaction = Transaction::new_unchecked(connection, TransactionBehavior::Immediate).map_err(failed)?;
    writer.start(&transaction).map_err(failed)?;
    let number = batch.len();
    for operation in batch.drain(..) {
        // After some errors, such as a full disk, SQLite has rolled back: what follows would be a transaction of its own.
        let begun = if transaction.is_autocommit() { Err(rolled_back()) } else { Ok((writer, &*transaction)) };
        reports.push(operation(begun));
    }
    if transaction.is_autocommit() {
        return Err(rolled_back());
    }
    writer.finish(&transaction, number).and_then(|()| transaction.commit()).map_err(failed)?;
    writer.committed();
    Ok(())
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), OpenError> {
    thread::Builder::new().name(name.to_owned()).spawn(run).map(drop).map_err(OpenError::Thread)
}

#[expect(clippy::needless_pass_by_value, reason = "for `map_err`")]
fn failed(error: rusqlite::Error) -> StoreError {
    StoreError::Failed(error.to_string())
}

fn rolled_back() -> StoreError {
    StoreError::Failed("an operation of the same transaction failed, and SQLite rolled back all".to_owned())
}

fn gone() -> StoreError {
    StoreError::Failed("the file's thread did not run it".to_owned())
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;
    use crate::sqlite::STORE;

    struct Bare;

    impl Writer for Bare {
        fn finish(&self, _: &Connection, _: usize) -> rusqlite::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn operations_after_the_end_of_their_transaction_do_not_run_and_fail() {
        let folder = tempfile::tempdir().unwrap();
        let connection = open(&folder.path().join("store.db"), &STORE).unwrap();
        let reported = Arc::<Mutex<Vec<Result<(), StoreError>>>>::default();
        let operation = |statement: &'static str| -> Write<Bare> {
            let reported = Arc::clone(&reported);
            Box::new(move |begun| {
                let result = begun.and_then(|(_, connection)| connection.execute_batch(statement).map_err(failed));
                Box::new(move |committed| reported.lock().push(result.and(committed)))
            })
        };
        let insert = "INSERT INTO entries (namespace, key, value) VALUES ('a', 'b', x'00')";
        let mut batch = vec![operation(insert), operation("ROLLBACK"), operation(insert)];
        let mut reports = Vec::new();
        let committed = commit(&Bare, &connection, &mut batch, &mut reports);
        assert_eq!(committed, Err(rolled_back()));
        reports.into_iter().for_each(|report| report(committed.clone()));
        assert_eq!(*reported.lock(), vec![Err(rolled_back()); 3]);
        let entries: i64 = connection.query_row("SELECT count(*) FROM entries", (), |row| row.get(0)).unwrap();
        assert_eq!(entries, 0);
    }
}
