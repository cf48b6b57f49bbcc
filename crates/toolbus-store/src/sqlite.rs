//! A store in one SQLite file, which several processes on one machine may share.

mod file;

use std::path::Path;
use std::thread;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use rusqlite::{Connection, OptionalExtension, params};
use tokio::sync::{mpsc, oneshot};
use toolbus_core::store::{MAX_KEYS, Store, StoreError, check_key, check_namespace, check_value};

pub use self::file::OpenError;

/// Operations that wait for the connection; whoever comes later waits before.
const MAX_WAITING: usize = 64;

/// An operation, done where the connection is.
type Work = Box<dyn FnOnce(&Connection) + Send>;

/// Keeps values in a file. A connection cannot be shared between threads, so that a thread of its own has it; that
/// thread ends with this.
#[derive(Debug)]
pub struct Sqlite {
    work: mpsc::Sender<Work>,
}

impl Sqlite {
    /// Opens a file, or creates it for this user alone. Blocks, usually for milliseconds, at most for seconds when another
    /// process holds the file.
    ///
    /// # Errors
    ///
    /// When it cannot be opened, or is none of ours.
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        let connection = file::open(path)?;
        let (work, mut waiting) = mpsc::channel::<Work>(MAX_WAITING);
        let run = move || {
            while let Some(work) = waiting.blocking_recv() {
                work(&connection);
            }
        };
        thread::Builder::new().name("toolbus-store".to_owned()).spawn(run).map_err(OpenError::Thread)?;
        Ok(Self { work })
    }

    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (answer, answered) = oneshot::channel();
        let work: Work = Box::new(move |connection| {
            // Whoever gave up waiting does not want the answer.
            let _ = answer.send(work(connection));
        });
        let gone = || StoreError::Failed("its thread has ended".to_owned());
        self.work.send(work).await.map_err(|_| gone())?;
        answered.await.map_err(|_| gone())?.map_err(|error| StoreError::Failed(error.to_string()))
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
