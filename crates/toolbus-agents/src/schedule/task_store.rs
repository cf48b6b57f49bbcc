//! The tasks in the store: one value for each share, which is an agent with a section, or all others together.

use std::convert::Infallible;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use toolbus_core::store::{Store, StoreError};
use toolbus_protocol::Random;

use super::failures::TaskFailures;
use super::task::Task;
use crate::share_values::{Overview, ShareValueError, ShareValues};

/// Namespace of what schedulers know of each other and of changes.
pub(super) const SCHEDULER: &str = "scheduler";
/// Key of the latest changes by tools.
const CHANGE: &str = "change";
/// Changes that are remembered; a scheduler that has not seen the one before them reads everything.
const CHANGES: usize = 64;

/// A change by a tool.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct TaskChange {
    id: String,
    /// The share with changed tasks.
    share: String,
}

/// Keeps tasks. Cheap to clone.
#[derive(Clone)]
pub struct TaskStore {
    store: Arc<dyn Store>,
    tasks: ShareValues,
    changes: ShareValues,
    /// Notifies the scheduler of this process of changes.
    changed: Arc<Notify>,
    failures: TaskFailures,
    random: Random,
}

impl TaskStore {
    /// Tasks in this store.
    #[must_use]
    pub fn new(store: Arc<dyn Store>, random: Random) -> Self {
        let tasks = ShareValues::new(Arc::clone(&store), "schedules");
        let changes = ShareValues::new(Arc::clone(&store), SCHEDULER);
        Self { store, tasks, changes, changed: Arc::default(), failures: TaskFailures::default(), random }
    }

    /// Failures that the scheduler of this process saw.
    pub(super) const fn failures(&self) -> &TaskFailures {
        &self.failures
    }

    pub(super) fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// The tasks of a share.
    pub(super) async fn read(&self, share: &str) -> Result<Vec<Task>, ShareValueError> {
        self.tasks.read(share).await
    }

    /// The tasks of all shares, each with its share.
    pub(super) async fn all(&self) -> Result<Overview<(String, Task)>, StoreError> {
        self.tasks.overview().await
    }

    /// Every share that has or had tasks.
    pub(super) async fn shares(&self) -> Result<Vec<String>, ShareValueError> {
        self.tasks.shares().await
    }

    /// Changes the tasks of a share; `change` returns `Err` to change nothing, and is called again after another process was
    /// faster.
    pub(super) async fn update<T, E>(
        &self,
        share: &str,
        change: impl FnMut(&mut Vec<Task>) -> Result<T, E>,
    ) -> Result<Result<T, E>, ShareValueError> {
        self.tasks.update(share, change).await
    }

    /// Announces to schedulers, also of other processes, that tasks of a share have changed.
    pub(super) async fn announce(&self, share: &str) -> Result<(), ShareValueError> {
        let change = TaskChange { id: self.random.id(), share: share.to_owned() };
        let written = self.changes.update(CHANGE, |changes: &mut Vec<TaskChange>| {
            changes.push(change.clone());
            changes.drain(..changes.len().saturating_sub(CHANGES));
            Ok::<_, Infallible>(())
        });
        let announced = match written.await {
            Ok(Ok(())) => Ok(()),
            Err(ShareValueError::Store(error)) => Err(error.into()),
            // Schedulers do not know what has changed before this one, and read everything.
            Err(_) => self.changes.put(CHANGE, &vec![change]).await,
        };
        self.changed.notify_one();
        announced
    }

    /// The latest changes, as the store has them: other bytes after each.
    pub(super) async fn last_change(&self) -> Result<Option<Vec<u8>>, ShareValueError> {
        Ok(self.store.get(SCHEDULER, CHANGE).await?)
    }

    /// The shares that have changed between two of [`Self::last_change`]; `None` if they are not known.
    pub(super) fn changed_between(&self, earlier: Option<&[u8]>, later: Option<&[u8]>) -> Option<Vec<String>> {
        let read = |value| self.changes.parse::<Vec<TaskChange>>(CHANGE, value).ok();
        let (last, later) = (read(earlier)?.pop()?, read(later)?);
        let index = later.iter().position(|change| change.id == last.id)?;
        let mut shares: Vec<String> = later.into_iter().skip(index + 1).map(|change| change.share).collect();
        shares.sort();
        shares.dedup();
        Some(shares)
    }

    /// Waits for a change by a tool of this process.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use toolbus_store::MemoryStore;

    use super::*;

    /// A value of version 1. What it holds must be readable for good.
    const FIRST: &str = r#"{"version":1,"value":[{"id":"a1","agent":"ana","name":"Mail","description":"Look","cron":"0 9 * * *","zone":"Europe/Berlin","runOnce":false,"created":1767225600,"next":1767254400}]}"#;

    fn tasks(store: &Arc<MemoryStore>) -> TaskStore {
        TaskStore::new(Arc::clone(store) as Arc<dyn Store>, Random::seeded(1))
    }

    #[tokio::test]
    async fn a_value_of_the_first_version_is_read_and_written_as_it_is() {
        let store = Arc::new(MemoryStore::default());
        store.put("schedules", "ana", FIRST.into()).await.unwrap();
        let read = tasks(&store).read("ana").await.unwrap();
        assert_eq!((read[0].name.as_str(), read[0].zone.as_str(), read[0].last), ("Mail", "Europe/Berlin", None));
        tasks(&store).update("ana", |_| Ok::<_, Infallible>(())).await.unwrap().unwrap();
        assert_eq!(store.get("schedules", "ana").await, Ok(Some(FIRST.into())));
    }

    #[tokio::test]
    async fn changes_are_listed_by_share_unless_too_many_were_missed_or_another_version_wrote_them() {
        let store = Arc::new(MemoryStore::default());
        let tasks = tasks(&store);
        let shares = async |changed: &[&str]| {
            let before = tasks.last_change().await.unwrap();
            for share in changed {
                tasks.announce(share).await.unwrap();
            }
            let after = tasks.last_change().await.unwrap();
            tasks.changed_between(before.as_deref(), after.as_deref())
        };
        assert_eq!(shares(&["ana"]).await, None, "there may have been changes before the first");
        assert_eq!(shares(&["bob", "ana", "bob"]).await, Some(vec!["ana".to_owned(), "bob".to_owned()]));
        assert_eq!(shares(&[]).await, Some(Vec::new()));
        assert_eq!(shares(&["ana"; CHANGES]).await, None);
        store.put(SCHEDULER, CHANGE, b"a text of an earlier version".into()).await.unwrap();
        assert_eq!(shares(&["ana"]).await, None);
        assert_eq!(shares(&["ana"]).await, Some(vec!["ana".to_owned()]));
    }
}
