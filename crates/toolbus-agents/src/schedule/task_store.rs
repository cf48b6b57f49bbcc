//! The tasks in the store: one value for each share, which is an agent with a section, or all others together.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use toolbus_core::store::{Store, StoreError};
use toolbus_protocol::Random;

use super::task::Task;

/// The values, by share.
const TASKS: &str = "schedules";
/// What schedulers know of each other and of changes.
pub(super) const SCHEDULER: &str = "scheduler";
/// Key of a text that is another one after each change by a tool.
const CHANGE: &str = "change";
/// Version of the values.
const VERSION: u32 = 1;
/// How often a change is tried again that another process is faster than.
const ATTEMPTS: usize = 16;

/// Keeps tasks. Cheap to clone.
#[derive(Clone)]
pub struct TaskStore {
    store: Arc<dyn Store>,
    /// Tells the scheduler of this process of changes.
    changed: Arc<Notify>,
    random: Random,
}

/// Why tasks cannot be read or changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TaskStoreError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("the tasks of `{0}` have version {1}, and this program knows {VERSION}")]
    Newer(String, u32),
    #[error("the tasks of `{0}` cannot be read: {1}")]
    Malformed(String, String),
    #[error("other processes change the tasks of `{0}` all the time")]
    Contended(String),
}

/// A value of the store.
#[derive(Serialize, Deserialize)]
struct Stored {
    version: u32,
    tasks: Vec<Task>,
}

/// The version alone: what else there is may differ.
#[derive(Deserialize)]
struct Version {
    version: u32,
}

impl TaskStore {
    /// Tasks in this store.
    #[must_use]
    pub fn new(store: Arc<dyn Store>, random: Random) -> Self {
        Self { store, changed: Arc::default(), random }
    }

    pub(super) fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// The tasks of a share.
    pub(super) async fn read(&self, share: &str) -> Result<Vec<Task>, TaskStoreError> {
        read(share, self.store.get(TASKS, share).await?.as_deref())
    }

    /// Every share that has or had tasks.
    pub(super) async fn shares(&self) -> Result<Vec<String>, TaskStoreError> {
        Ok(self.store.list(TASKS).await?)
    }

    /// Changes the tasks of a share; `change` returns `Err` to change nothing, and is called again after another process was
    /// faster.
    pub(super) async fn update<T, E>(
        &self,
        share: &str,
        mut change: impl FnMut(&mut Vec<Task>) -> Result<T, E>,
    ) -> Result<Result<T, E>, TaskStoreError> {
        for _ in 0..ATTEMPTS {
            let present = self.store.get(TASKS, share).await?;
            let mut tasks = read(share, present.as_deref())?;
            let result = match change(&mut tasks) {
                Ok(result) => result,
                Err(refused) => return Ok(Err(refused)),
            };
            let written = serde_json::to_vec(&Stored { version: VERSION, tasks })
                .map_err(|error| TaskStoreError::Malformed(share.to_owned(), error.to_string()))?;
            if self.store.replace(TASKS, share, present.as_deref(), written).await? {
                return Ok(Ok(result));
            }
        }
        Err(TaskStoreError::Contended(share.to_owned()))
    }

    /// Tells schedulers, also of other processes, that tasks have changed.
    pub(super) async fn tell(&self) -> Result<(), TaskStoreError> {
        let told = self.store.put(SCHEDULER, CHANGE, self.random.id().into_bytes()).await;
        self.changed.notify_one();
        Ok(told?)
    }

    /// A text that is another one after each change.
    pub(super) async fn last_change(&self) -> Result<Option<Vec<u8>>, TaskStoreError> {
        Ok(self.store.get(SCHEDULER, CHANGE).await?)
    }

    /// Waits for a change by a tool of this process.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }
}

fn read(share: &str, value: Option<&[u8]>) -> Result<Vec<Task>, TaskStoreError> {
    let Some(value) = value else { return Ok(Vec::new()) };
    let malformed = |error: serde_json::Error| TaskStoreError::Malformed(share.to_owned(), error.to_string());
    let Version { version } = serde_json::from_slice(value).map_err(malformed)?;
    if version > VERSION {
        return Err(TaskStoreError::Newer(share.to_owned(), version));
    }
    serde_json::from_slice::<Stored>(value).map(|stored| stored.tasks).map_err(malformed)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use toolbus_store::Memory;

    use super::*;

    /// A value of version 1. What it holds must be readable for good.
    const FIRST: &str = r#"{"version":1,"tasks":[{"id":"a1","agent":"ana","name":"Mail","description":"Look","cron":"0 9 * * *","zone":"Europe/Berlin","runOnce":false,"created":1767225600,"next":1767254400}]}"#;

    fn tasks(store: &Arc<Memory>) -> TaskStore {
        TaskStore::new(Arc::clone(store) as Arc<dyn Store>, Random::seeded(1))
    }

    #[tokio::test]
    async fn a_value_of_the_first_version_is_read_and_written_as_it_is() {
        let store = Arc::new(Memory::default());
        store.put(TASKS, "ana", FIRST.into()).await.unwrap();
        let read = tasks(&store).read("ana").await.unwrap();
        assert_eq!((read[0].name.as_str(), read[0].zone.as_str(), read[0].last), ("Mail", "Europe/Berlin", None));
        tasks(&store).update("ana", |_| Ok::<_, Infallible>(())).await.unwrap().unwrap();
        assert_eq!(store.get(TASKS, "ana").await, Ok(Some(FIRST.into())));
    }

    #[tokio::test]
    async fn a_value_that_is_newer_or_malformed_is_an_error_and_stays() {
        let store = Arc::new(Memory::default());
        for (value, expected) in [
            (r#"{"version":2,"jobs":[]}"#, "the tasks of `ana` have version 2, and this program knows 1"),
            ("[", "the tasks of `ana` cannot be read: EOF while parsing a list at line 1 column 1"),
        ] {
            store.put(TASKS, "ana", value.into()).await.unwrap();
            assert_eq!(tasks(&store).read("ana").await.unwrap_err().to_string(), expected);
            tasks(&store).update("ana", |_| Ok::<_, Infallible>(())).await.unwrap_err();
            assert_eq!(store.get(TASKS, "ana").await, Ok(Some(value.into())));
        }
    }

    #[tokio::test]
    async fn no_change_of_many_at_once_is_lost() {
        let store = Arc::new(Memory::default());
        store.put(TASKS, "ana", FIRST.into()).await.unwrap();
        let tasks = tasks(&store);
        let changes = (0..10).map(|number| {
            tasks.update("ana", move |tasks| {
                let task = Task { id: number.to_string(), ..tasks[0].clone() };
                tasks.push(task);
                Ok::<_, Infallible>(())
            })
        });
        for change in futures_util::future::join_all(changes).await {
            change.unwrap().unwrap();
        }
        assert_eq!(tasks.read("ana").await.unwrap().len(), 11);
    }
}
