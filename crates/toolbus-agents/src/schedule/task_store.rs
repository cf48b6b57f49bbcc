//! The tasks in the store: one value for each share, which is an agent with a section, or all others together.

use std::sync::Arc;

use tokio::sync::Notify;
use toolbus_core::store::Store;
use toolbus_protocol::Random;

use super::task::Task;
use crate::share_values::{ShareValueError, ShareValues};

/// What schedulers know of each other and of changes.
pub(super) const SCHEDULER: &str = "scheduler";
/// Key of a text that is another one after each change by a tool.
const CHANGE: &str = "change";

/// Keeps tasks. Cheap to clone.
#[derive(Clone)]
pub struct TaskStore {
    store: Arc<dyn Store>,
    tasks: ShareValues,
    /// Tells the scheduler of this process of changes.
    changed: Arc<Notify>,
    random: Random,
}

impl TaskStore {
    /// Tasks in this store.
    #[must_use]
    pub fn new(store: Arc<dyn Store>, random: Random) -> Self {
        let tasks = ShareValues::new(Arc::clone(&store), "schedules");
        Self { store, tasks, changed: Arc::default(), random }
    }

    pub(super) fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// The tasks of a share.
    pub(super) async fn read(&self, share: &str) -> Result<Vec<Task>, ShareValueError> {
        self.tasks.read(share).await
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

    /// Tells schedulers, also of other processes, that tasks have changed.
    pub(super) async fn tell(&self) -> Result<(), ShareValueError> {
        let told = self.store.put(SCHEDULER, CHANGE, self.random.id().into_bytes()).await;
        self.changed.notify_one();
        Ok(told?)
    }

    /// A text that is another one after each change.
    pub(super) async fn last_change(&self) -> Result<Option<Vec<u8>>, ShareValueError> {
        Ok(self.store.get(SCHEDULER, CHANGE).await?)
    }

    /// Waits for a change by a tool of this process.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use toolbus_store::Memory;

    use super::*;

    /// A value of version 1. What it holds must be readable for good.
    const FIRST: &str = r#"{"version":1,"value":[{"id":"a1","agent":"ana","name":"Mail","description":"Look","cron":"0 9 * * *","zone":"Europe/Berlin","runOnce":false,"created":1767225600,"next":1767254400}]}"#;

    fn tasks(store: &Arc<Memory>) -> TaskStore {
        TaskStore::new(Arc::clone(store) as Arc<dyn Store>, Random::seeded(1))
    }

    #[tokio::test]
    async fn a_value_of_the_first_version_is_read_and_written_as_it_is() {
        let store = Arc::new(Memory::default());
        store.put("schedules", "ana", FIRST.into()).await.unwrap();
        let read = tasks(&store).read("ana").await.unwrap();
        assert_eq!((read[0].name.as_str(), read[0].zone.as_str(), read[0].last), ("Mail", "Europe/Berlin", None));
        tasks(&store).update("ana", |_| Ok::<_, Infallible>(())).await.unwrap().unwrap();
        assert_eq!(store.get("schedules", "ana").await, Ok(Some(FIRST.into())));
    }
}
