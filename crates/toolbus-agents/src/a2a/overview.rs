//! Tasks for agents as operators see them: without the texts of task and result.

use std::cmp::Reverse;

use toolbus_core::store::StoreError;
use toolbus_protocol::AgentTaskState;

use super::service::AgentService;
use super::tasks::{AgentTask, TaskEntry};
use crate::share_values::Overview;

/// Tasks that are read at most.
const MAX_READ: usize = 200;

/// A task of an agent for another. Times are seconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentTaskSummary {
    /// Identifies the task.
    pub id: String,
    /// The agent that gave it.
    pub caller: String,
    /// The agent that has to do it.
    pub agent: String,
    /// The requested skill.
    pub skill: String,
    /// State of the task.
    pub state: AgentTaskState,
    /// Whether the task ended because nothing came in time.
    pub is_late: bool,
    /// When it was given.
    pub begun: u64,
    /// When its time is over.
    pub deadline: u64,
    /// When it ended.
    pub ended: Option<u64>,
}

impl AgentTaskSummary {
    fn new(task: AgentTask) -> Self {
        let AgentTask { id, caller, agent, skill, state, is_late, begun, deadline, ended, .. } = task;
        let (caller, agent) = (caller.to_string(), agent.to_string());
        Self { id, caller, agent, skill, state, is_late, begun, deadline, ended }
    }
}

impl AgentService {
    /// The tasks of all agents: those that go on, then those that ended last, 200 at most.
    ///
    /// # Errors
    ///
    /// If the store cannot be read.
    pub async fn overview(&self) -> Result<Overview<AgentTaskSummary>, StoreError> {
        let listed: Overview<(String, TaskEntry)> = self.tasks().shares().overview().await?;
        let mut entries: Vec<TaskEntry> = listed.rows.into_iter().map(|(_, entry)| entry).collect();
        entries.sort_by_key(|entry| (entry.is_over, Reverse(entry.due)));
        let is_whole = listed.is_whole && entries.len() <= MAX_READ;
        let mut rows = Vec::new();
        for entry in entries.into_iter().take(MAX_READ) {
            rows.extend(self.tasks().get(&entry.id).await?.map(AgentTaskSummary::new));
        }
        rows.sort_by_key(|task| (task.ended.is_some(), Reverse(task.begun)));
        Ok(Overview { rows, is_whole })
    }
}
