//! Tasks for agents in the store: tracked from before they are sent until some time after they have ended.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use toolbus_core::caller::{AgentName, Caller};
use toolbus_core::store::{Store, StoreError};
use toolbus_protocol::AgentTaskState;

use crate::share_values::{ShareValueError, ShareValues};

/// The tasks, by id.
const TASKS: &str = "a2a-tasks";
/// The lists of the tasks of each share.
const SHARES: &str = "a2a-shares";
/// Number of times that a change is tried again when another process is faster.
const ATTEMPTS: usize = 16;

/// A task of an agent for another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct AgentTask {
    pub(crate) id: String,
    /// The agent that gave it.
    pub(crate) caller: AgentName,
    /// The share of the limits that it uses.
    pub(crate) share: String,
    /// The agent that has to do it.
    pub(crate) agent: AgentName,
    pub(crate) skill: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) context: Option<String>,
    /// In seconds since 1970, as are all times.
    pub(crate) begun: u64,
    pub(crate) deadline: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ended: Option<u64>,
    pub(crate) state: AgentTaskState,
    /// Whether the task ended because nothing came in time.
    #[serde(default)]
    pub(crate) is_late: bool,
    /// Last note of the agent on its state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) note: Option<String>,
    /// The beginning of its result, or why there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) result: Option<String>,
    /// Id of the task at an agent that is reached over HTTP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) remote: Option<String>,
    /// The topic of the replica whose call waits for the result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) waiter: Option<String>,
    /// The replica that ended it: what two replicas write at once must differ, for one of them to learn that it was slower.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ended_by: Option<String>,
    /// Digest of the report that counts; once it is kept, of the result as it is handed to that replica.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) digest: Option<String>,
}

/// A task in the list of its share, by which alone tasks are counted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TaskEntry {
    pub(crate) id: String,
    /// When it is looked at: to end it for being late, and to forget it after it has ended.
    pub(crate) due: u64,
    #[serde(default)]
    pub(crate) is_over: bool,
}

/// Keeps tasks. Cheap to clone.
#[derive(Clone)]
pub struct AgentTasks {
    store: Arc<dyn Store>,
    /// The [`TaskEntry`]s of each share.
    shares: ShareValues,
}

/// Reason why a task is not begun.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BeginError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Shares(#[from] ShareValueError),
    /// All that the share may have are under way.
    #[error("there is no room for another task")]
    Full,
}

impl AgentTasks {
    /// Tasks in this store.
    #[must_use]
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self { shares: ShareValues::new(Arc::clone(&store), SHARES), store }
    }

    pub(crate) const fn shares(&self) -> &ShareValues {
        &self.shares
    }

    /// Keeps a new task that is looked at when it is `due`, if its share has fewer than `max`, or one of them has ended.
    ///
    /// The list of the share is changed in one conditional write, so that calls at the same time do not exceed `max`.
    pub(crate) async fn begin(&self, task: &AgentTask, max: usize, due: u64) -> Result<(), BeginError> {
        // Ended tasks that make room: they are deleted from the store before the list forgets them.
        let mut deleted: Vec<String> = Vec::new();
        loop {
            let begun = self.shares.update(&task.share, |entries: &mut Vec<TaskEntry>| {
                while entries.len() >= max {
                    let over = |entry: &&TaskEntry| entry.is_over;
                    let oldest = entries.iter().filter(over).min_by_key(|entry| entry.due);
                    let is_deleted = |entry: &&TaskEntry| deleted.contains(&entry.id);
                    let gone = entries.iter().filter(over).find(is_deleted).map(|entry| entry.id.clone());
                    match (gone, oldest) {
                        (Some(gone), _) => entries.retain(|entry| entry.id != gone),
                        (None, oldest) => return Err(oldest.map(|oldest| oldest.id.clone())),
                    }
                }
                entries.push(TaskEntry { id: task.id.clone(), due, is_over: false });
                Ok(())
            });
            match begun.await? {
                Ok(()) => break,
                Err(Some(oldest)) => {
                    self.store.delete(TASKS, &oldest).await?;
                    deleted.push(oldest);
                }
                Err(None) => return Err(BeginError::Full),
            }
        }
        if let Err(error) = self.store.put(TASKS, &task.id, written(task)).await {
            // Where that fails, too, the list has room again when the task would have been late.
            let _ = self.remove(&task.id, &task.share).await;
            return Err(error.into());
        }
        Ok(())
    }

    /// A task.
    pub(crate) async fn get(&self, id: &str) -> Result<Option<AgentTask>, StoreError> {
        // A key of another length would be an error.
        if !is_id(id) {
            return Ok(None);
        }
        Ok(self.store.get(TASKS, id).await?.and_then(|value| serde_json::from_slice(&value).ok()))
    }

    /// A task of this caller.
    pub(crate) async fn of_caller(&self, id: &str, caller: &Caller) -> Result<Option<AgentTask>, StoreError> {
        let is_own = |task: &AgentTask| Some(&task.caller) == caller.agent.as_ref() && *task.share == *caller.share();
        Ok(self.get(id).await?.filter(is_own))
    }

    /// Changes a task; `change` returns whether there is anything to change, and is called again after another process
    /// was faster. Returns the task if it was changed.
    pub(crate) async fn update(
        &self,
        id: &str,
        mut change: impl FnMut(&mut AgentTask) -> bool,
    ) -> Result<Option<AgentTask>, StoreError> {
        if !is_id(id) {
            return Ok(None);
        }
        for _ in 0..ATTEMPTS {
            let Some(present) = self.store.get(TASKS, id).await? else { return Ok(None) };
            let Ok(mut task) = serde_json::from_slice(&present) else { return Ok(None) };
            if !change(&mut task) {
                return Ok(None);
            }
            if self.store.replace(TASKS, id, Some(&present), written(&task)).await? {
                return Ok(Some(task));
            }
        }
        Err(StoreError::Failed("other processes change the task all the time".to_owned()))
    }

    /// Notes in the list of its share that a task has ended, and when it is forgotten.
    pub(crate) async fn settle(&self, id: &str, share: &str, due: u64) -> Result<(), ShareValueError> {
        let changed = self.shares.update(share, |entries: &mut Vec<TaskEntry>| {
            let entry = entries.iter_mut().find(|entry| entry.id == id && !entry.is_over).ok_or(())?;
            (entry.due, entry.is_over) = (due, true);
            Ok::<_, ()>(())
        });
        changed.await.map(drop)
    }

    /// Forgets a task.
    pub(crate) async fn remove(&self, id: &str, share: &str) -> Result<(), ShareValueError> {
        self.store.delete(TASKS, id).await?;
        let removed = self.shares.update(share, |entries: &mut Vec<TaskEntry>| {
            let before = entries.len();
            entries.retain(|entry| entry.id != id);
            if entries.len() == before { Err(()) } else { Ok(()) }
        });
        removed.await.map(drop)
    }
}

/// Whether a text can be the id of a task: those of this module have 32 hexadecimal digits.
fn is_id(text: &str) -> bool {
    text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn written(task: &AgentTask) -> Vec<u8> {
    serde_json::to_vec(task).unwrap_or_default()
}
