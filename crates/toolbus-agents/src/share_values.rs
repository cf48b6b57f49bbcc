//! Values in the store that several processes change: one for each share of callers.

use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;
use toolbus_core::store::{Store, StoreError};
use toolbus_protocol::Random;

/// Version of the values.
const VERSION: u32 = 1;
/// Number of times that a change is tried again when another process is faster, and the longest wait before each.
const ATTEMPTS: usize = 16;
const MAX_PAUSE: Duration = Duration::from_millis(20);
/// Values that one process changes at a time.
const LANES: usize = 16;
/// Rows that an overview has at most, and shares that are read for it.
const MAX_ROWS: usize = 1_000;

/// Rows for operators, of all agents together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Overview<T> {
    /// The rows, in no order.
    pub rows: Vec<T>,
    /// Whether there is nothing else: other rows are too many, or cannot be read.
    pub is_whole: bool,
}

/// The values of one namespace. Cheap to clone.
#[derive(Clone)]
pub(crate) struct ShareValues {
    store: Arc<dyn Store>,
    namespace: &'static str,
    /// Changes of one process wait for each other, so that only those of other processes use up [`ATTEMPTS`].
    lanes: Arc<[Mutex<()>; LANES]>,
}

/// Reason why a value cannot be read or changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ShareValueError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("`{0}` of `{1}` has version {2}, and this program knows {VERSION}")]
    Newer(&'static str, String, u32),
    #[error("`{0}` of `{1}` cannot be read: {2}")]
    Malformed(&'static str, String, String),
    #[error("other processes change `{0}` of `{1}` all the time")]
    Contended(&'static str, String),
}

impl ShareValueError {
    /// Whether the same may succeed later.
    pub(crate) const fn is_passing(&self) -> bool {
        matches!(self, Self::Store(StoreError::Failed(_)) | Self::Contended(..))
    }
}

impl From<ShareValueError> for StoreError {
    fn from(error: ShareValueError) -> Self {
        match error {
            ShareValueError::Store(error) => error,
            other => Self::Failed(other.to_string()),
        }
    }
}

#[derive(Serialize, Deserialize)]
struct Versioned<T> {
    version: u32,
    value: T,
}

/// The version alone: what else there is may differ.
#[derive(Deserialize)]
struct VersionAlone {
    version: u32,
}

impl ShareValues {
    pub(crate) fn new(store: Arc<dyn Store>, namespace: &'static str) -> Self {
        Self { store, namespace, lanes: Arc::default() }
    }

    /// Every share that has or had a value.
    pub(crate) async fn shares(&self) -> Result<Vec<String>, ShareValueError> {
        Ok(self.store.list(self.namespace).await?)
    }

    /// The value of a share; the default if it has none.
    pub(crate) async fn read<T: DeserializeOwned + Default>(&self, share: &str) -> Result<T, ShareValueError> {
        self.parse(share, self.store.get(self.namespace, share).await?.as_deref())
    }

    /// The rows of all shares whose values are lists, each with its share.
    pub(crate) async fn overview<T: DeserializeOwned + Send + 'static>(
        &self,
    ) -> Result<Overview<(String, T)>, StoreError> {
        let shares = self.store.list(self.namespace).await?;
        let mut all = Overview { rows: Vec::new(), is_whole: shares.len() <= MAX_ROWS };
        for share in shares.into_iter().take(MAX_ROWS) {
            let value = self.store.get(self.namespace, &share).await?;
            let values = self.clone();
            // A value may have megabytes: it is not read on a thread that calls run on.
            let reading = spawn_blocking(move || {
                let rows = values.parse::<Vec<T>>(&share, value.as_deref()).ok()?;
                Some(rows.into_iter().map(|row| (share.clone(), row)).collect::<Vec<_>>())
            });
            match reading.await.ok().flatten() {
                Some(rows) => all.rows.extend(rows),
                None => all.is_whole = false,
            }
            if all.rows.len() > MAX_ROWS {
                all.rows.truncate(MAX_ROWS);
                all.is_whole = false;
                break;
            }
        }
        Ok(all)
    }

    /// Changes the value of a share; `change` returns `Err` to change nothing, and is called again after another process
    /// was faster.
    pub(crate) async fn update<T: Serialize + DeserializeOwned + Default, R, E>(
        &self,
        share: &str,
        mut change: impl FnMut(&mut T) -> Result<R, E>,
    ) -> Result<Result<R, E>, ShareValueError> {
        let lane = share.bytes().fold(0, |sum: usize, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
        let _turn = match self.lanes.get(lane % LANES) {
            Some(lane) => Some(lane.lock().await),
            None => None,
        };
        for attempt in 0..ATTEMPTS {
            if attempt > 0 {
                tokio::time::sleep(Random::SYSTEM.below(MAX_PAUSE)).await;
            }
            let present = self.store.get(self.namespace, share).await?;
            let mut value = self.parse(share, present.as_deref())?;
            let result = match change(&mut value) {
                Ok(result) => result,
                Err(refused) => return Ok(Err(refused)),
            };
            let written = self.written(share, &value)?;
            if self.store.replace(self.namespace, share, present.as_deref(), written).await? {
                return Ok(Ok(result));
            }
        }
        Err(ShareValueError::Contended(self.namespace, share.to_owned()))
    }

    /// Replaces the value of a share, whatever it is.
    pub(crate) async fn put<T: Serialize>(&self, share: &str, value: &T) -> Result<(), ShareValueError> {
        let written = self.written(share, value)?;
        Ok(self.store.put(self.namespace, share, written).await?)
    }

    fn written<T: Serialize>(&self, share: &str, value: &T) -> Result<Vec<u8>, ShareValueError> {
        serde_json::to_vec(&Versioned { version: VERSION, value })
            .map_err(|error| ShareValueError::Malformed(self.namespace, share.to_owned(), error.to_string()))
    }

    /// Reads a value as the store has it; the default if it has none.
    pub(crate) fn parse<T: DeserializeOwned + Default>(
        &self,
        share: &str,
        value: Option<&[u8]>,
    ) -> Result<T, ShareValueError> {
        let Some(value) = value else { return Ok(T::default()) };
        let malformed =
            |error: serde_json::Error| ShareValueError::Malformed(self.namespace, share.to_owned(), error.to_string());
        let VersionAlone { version } = serde_json::from_slice(value).map_err(malformed)?;
        if version > VERSION {
            return Err(ShareValueError::Newer(self.namespace, share.to_owned(), version));
        }
        serde_json::from_slice::<Versioned<T>>(value).map(|stored| stored.value).map_err(malformed)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::thread::{self, ThreadId};

    use serde::Deserializer;
    use serde::de::IgnoredAny;
    use toolbus_store::MemoryStore;

    use super::*;
    use crate::testing::TestStore;

    #[tokio::test]
    async fn a_value_that_is_newer_or_malformed_is_an_error_and_stays() {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
        let values = ShareValues::new(Arc::clone(&store), "tests");
        for (written, expected) in [
            (r#"{"version":2,"value":{}}"#, "`tests` of `ana` has version 2, and this program knows 1"),
            ("[", "`tests` of `ana` cannot be read: EOF while parsing a list at line 1 column 1"),
        ] {
            store.put("tests", "ana", written.into()).await.unwrap();
            assert_eq!(values.read::<Vec<u32>>("ana").await.unwrap_err().to_string(), expected);
            values.update("ana", |_: &mut Vec<u32>| Ok::<_, Infallible>(())).await.unwrap_err();
            assert_eq!(store.get("tests", "ana").await, Ok(Some(written.into())));
        }
    }

    #[tokio::test]
    async fn an_overview_says_when_rows_are_left_out() {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
        let values = ShareValues::new(Arc::clone(&store), "tests");
        let put = async |share, numbers: std::ops::Range<usize>| {
            values.put(share, &numbers.collect::<Vec<_>>()).await.unwrap();
            let Overview { rows, is_whole } = values.overview::<usize>().await.unwrap();
            (rows.len(), rows.last().cloned(), is_whole)
        };
        let row = |share: &str, number: usize| Some((share.to_owned(), number));
        assert_eq!(put("ana", 0..2).await, (2, row("ana", 1), true));
        assert_eq!(put("bo", 0..MAX_ROWS).await, (MAX_ROWS, row("bo", MAX_ROWS - 3), false));
        assert_eq!(put("bo", 0..1).await, (3, row("bo", 0), true));
        store.put("tests", "ana", "[".into()).await.unwrap();
        assert_eq!(put("bo", 0..1).await, (1, row("bo", 0), false));
    }

    /// The thread on which a row was read.
    struct ReadOn(ThreadId);

    impl<'de> Deserialize<'de> for ReadOn {
        fn deserialize<D: Deserializer<'de>>(row: D) -> Result<Self, D::Error> {
            IgnoredAny::deserialize(row).map(|_| Self(thread::current().id()))
        }
    }

    #[tokio::test]
    async fn an_overview_is_not_read_on_the_thread_of_its_task() {
        let values = ShareValues::new(Arc::new(MemoryStore::default()), "tests");
        values.put("ana", &[1]).await.unwrap();
        let rows = values.overview::<ReadOn>().await.unwrap().rows;
        assert!(matches!(&rows[..], [(_, ReadOn(reader))] if *reader != thread::current().id()));
    }

    #[tokio::test]
    async fn many_changes_at_once_by_two_processes_are_all_made() {
        let store = Arc::new(TestStore::default());
        let processes = [(); 2].map(|()| ShareValues::new(Arc::clone(&store) as _, "tests"));
        let adding = (0..100).map(|number| {
            processes[number % 2].update("bo", move |numbers: &mut Vec<usize>| {
                numbers.push(number);
                Ok::<_, Infallible>(())
            })
        });
        for added in futures_util::future::join_all(adding).await {
            added.unwrap().unwrap();
        }
        assert_eq!(processes[0].read::<Vec<usize>>("bo").await.unwrap().len(), 100);
    }
}
