//! Tasks for agents in the store: tracked from before they are sent until some time after they have ended.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use toolbus_core::caller::{AgentName, Caller};
use toolbus_core::store::{Store, StoreError};
use toolbus_protocol::AgentTaskState;

/// The tasks, by id.
const TASKS: &str = "a2a-tasks";
/// Before the share of a caller: the ids of its tasks.
const OF_SHARE: &str = "a2a-tasks-of/";
/// How often a change is tried again that another process is faster than.
const ATTEMPTS: usize = 16;

/// A task of an agent for another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct AgentTask {
    pub(crate) id: String,
    /// Who gave it.
    pub(crate) caller: AgentName,
    /// Whose part of what is limited it uses.
    pub(crate) share: String,
    /// Who has to do it.
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
    /// Whether it ended because nothing came in time.
    #[serde(default)]
    pub(crate) is_late: bool,
    /// What the agent said last of its state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) note: Option<String>,
    /// The beginning of its result, or why there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) result: Option<String>,
    /// Its id at an agent that is reached over HTTP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) remote: Option<String>,
}

/// Keeps tasks. Cheap to clone.
#[derive(Clone)]
pub struct AgentTasks {
    store: Arc<dyn Store>,
}

/// Why a task is not begun.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BeginError {
    #[error(transparent)]
    Store(#[from] StoreError),
    /// All that the share may have are under way.
    #[error("there is no room for another task")]
    Full,
}

impl AgentTasks {
    /// Tasks in this store.
    #[must_use]
    pub const fn new(store: Arc<dyn Store>) -> Self {
        Self { store }
    }

    /// Keeps a new task, if its share has fewer than `max` or one of them has ended.
    pub(crate) async fn begin(&self, task: &AgentTask, max: usize) -> Result<(), BeginError> {
        let of_share = of_share(&task.share);
        let ids = self.store.list(&of_share).await?;
        if ids.len() >= max {
            let mut ended = Vec::new();
            for id in ids {
                match self.get(&id).await? {
                    Some(AgentTask { ended: None, .. }) => {}
                    Some(task) => ended.push((task.ended, task.id)),
                    None => drop(self.store.delete(&of_share, &id).await?),
                }
            }
            match ended.into_iter().min() {
                Some((_, oldest)) => self.remove(&oldest, &task.share).await?,
                None if self.store.list(&of_share).await?.len() >= max => return Err(BeginError::Full),
                None => {}
            }
        }
        // First: a task that is kept and not in its share's list would count towards no limit.
        self.store.put(&of_share, &task.id, Vec::new()).await?;
        self.store.put(TASKS, &task.id, written(task)).await?;
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

    /// Changes a task; `change` says whether there is anything to change, and is called again after another process was
    /// faster. Returns the task if it was changed.
    pub(crate) async fn update(
        &self,
        id: &str,
        mut change: impl FnMut(&mut AgentTask) -> bool,
    ) -> Result<Option<AgentTask>, StoreError> {
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

    /// Forgets a task.
    pub(crate) async fn remove(&self, id: &str, share: &str) -> Result<(), StoreError> {
        self.store.delete(TASKS, id).await?;
        self.store.delete(&of_share(share), id).await?;
        Ok(())
    }

    /// Every task.
    pub(crate) async fn all(&self) -> Result<Vec<AgentTask>, StoreError> {
        let mut tasks = Vec::new();
        for id in self.store.list(TASKS).await? {
            tasks.extend(self.get(&id).await?);
        }
        Ok(tasks)
    }
}

/// Whether a text can be the id of a task: those of this module have 32 hexadecimal digits.
fn is_id(text: &str) -> bool {
    text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn of_share(share: &str) -> String {
    [OF_SHARE, share].concat()
}

fn written(task: &AgentTask) -> Vec<u8> {
    serde_json::to_vec(task).unwrap_or_default()
}
