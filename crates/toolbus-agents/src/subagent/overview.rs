//! Tasks for sub-agents as operators see them: without the texts of task and result.

use std::cmp::Reverse;

use toolbus_core::store::StoreError;

use super::coordinator::Subagents;
use super::task::SubagentTask;
use crate::share_values::Overview;

/// A task for a sub-agent. Times are seconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubagentSummary {
    /// Identifies the task.
    pub id: String,
    /// The agent that gave it.
    pub agent: String,
    /// The pool that it was offered to.
    pub pool: String,
    /// The agent that works on it, or did.
    pub worker: Option<String>,
    /// State of the task.
    pub state: SubagentState,
    /// When it was given.
    pub created: u64,
    /// When its time is over.
    pub deadline: u64,
    /// When it ended.
    pub ended: Option<u64>,
    /// Size of its result, in bytes.
    pub output: usize,
    /// Whether the agent that gave it has its result, or wants none.
    pub is_told: bool,
}

/// State of a task for a sub-agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SubagentState {
    /// No agent works on it yet.
    Offered,
    /// An agent works on it.
    Working,
    /// There is a result.
    Done,
    /// Failed, cancelled, or not done in time.
    Failed,
}

impl SubagentSummary {
    fn new(task: SubagentTask) -> Self {
        let state = match (&task.end, &task.worker) {
            (Some(end), _) if end.is_success => SubagentState::Done,
            (Some(_), _) => SubagentState::Failed,
            (None, Some(_)) => SubagentState::Working,
            (None, None) => SubagentState::Offered,
        };
        Self {
            id: task.id,
            agent: task.agent.to_string(),
            pool: task.pool,
            worker: task.worker.map(|worker| worker.to_string()),
            state,
            created: task.created,
            deadline: task.deadline,
            ended: task.end.as_ref().map(|end| end.at),
            output: task.end.as_ref().map_or(0, |end| end.output.len()),
            is_told: task.end.is_none_or(|end| end.is_told),
        }
    }
}

impl Subagents {
    /// The tasks of all agents: those that go on, then those that ended, the newest first.
    ///
    /// # Errors
    ///
    /// If the store cannot be read.
    pub async fn overview(&self) -> Result<Overview<SubagentSummary>, StoreError> {
        let Overview { rows, is_whole } = self.tasks.overview().await?;
        let mut rows: Vec<SubagentSummary> = rows.into_iter().map(|(_, task)| SubagentSummary::new(task)).collect();
        rows.sort_by_key(|task| (task.ended.is_some(), Reverse(task.created)));
        Ok(Overview { rows, is_whole })
    }
}
