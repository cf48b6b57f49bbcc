//! State of families in the admin API: schedules, tasks and working memory of all agents.

use std::fmt::Display;
use std::sync::Arc;

use parking_lot::RwLock;
use tokio::sync::Mutex;
use toolbus_agents::a2a::AgentTaskSummary;
use toolbus_agents::guides::Guide;
use toolbus_agents::schedule::{ScheduledTask, TaskStore};
use toolbus_agents::subagent::SubagentSummary;
use toolbus_agents::{AgentService, Guides, Overview, Subagents};
use toolbus_core::tool::ToolDescriptor;
use toolbus_memory::usage::MemoryUsage;
use toolbus_memory::working_memory::{EntryInfo, KeyPrefix, MemoryLimits, MemoryOwner, WorkingMemory};

use super::Admin;
use super::view::ApiError;

/// State of families that operators see; absent where the configuration has no section for it.
#[derive(Clone, Default)]
pub struct FamilyViews {
    /// Scheduled tasks.
    pub schedules: Option<TaskStore>,
    /// Tasks for sub-agents.
    pub subagents: Option<Subagents>,
    /// Tasks for other agents.
    pub agents: Option<AgentService>,
    /// Held while all tasks are read, which may be many megabytes.
    pub turn: Arc<Mutex<()>>,
    /// Working memory, with its limits.
    pub memory: Option<(Arc<dyn WorkingMemory>, MemoryLimits)>,
    /// The guides that are in force; `None` without `[guides]`.
    pub guides: Arc<RwLock<Option<Guides>>>,
}

impl Admin {
    /// Returns the scheduled tasks of all agents; `None` without `[schedule]`.
    ///
    /// # Errors
    ///
    /// If the store cannot be read.
    pub async fn schedules(&self) -> Result<Option<Overview<ScheduledTask>>, ApiError> {
        let Some(schedules) = &self.families.schedules else { return Ok(None) };
        let _turn = self.families.turn.lock().await;
        schedules.overview().await.map(Some).map_err(unreadable)
    }

    /// Removes a scheduled task of a share.
    ///
    /// # Errors
    ///
    /// If there is none, or the store cannot be changed.
    pub(super) async fn cancel_schedule(&self, share: &str, id: &str) -> Result<ScheduledTask, ApiError> {
        let none =
            || ApiError::not_found("there is no such scheduled task: it has ended, or was replaced or cancelled");
        let schedules = self.families.schedules.as_ref().ok_or_else(none)?;
        let removed = schedules.remove(share, id).await.map_err(unreadable)?.ok_or_else(none)?;
        tracing::info!(agent = removed.agent, name = removed.name, "admin: a scheduled task was cancelled");
        Ok(removed)
    }

    /// Returns the tasks for sub-agents; `None` without `[subagents]`.
    ///
    /// # Errors
    ///
    /// If the store cannot be read.
    pub async fn subagents(&self) -> Result<Option<Overview<SubagentSummary>>, ApiError> {
        let Some(subagents) = &self.families.subagents else { return Ok(None) };
        let _turn = self.families.turn.lock().await;
        subagents.overview().await.map(Some).map_err(unreadable)
    }

    /// Returns the tasks of agents for other agents; `None` without `[a2a]`.
    ///
    /// # Errors
    ///
    /// If the store cannot be read.
    pub async fn agent_tasks(&self) -> Result<Option<Overview<AgentTaskSummary>>, ApiError> {
        let Some(agents) = &self.families.agents else { return Ok(None) };
        let _turn = self.families.turn.lock().await;
        agents.overview().await.map(Some).map_err(unreadable)
    }

    /// Returns the guides to the use of a tool, by name.
    pub(in crate::http) fn guides(&self, tool: &ToolDescriptor) -> Vec<Guide> {
        self.families.guides.read().as_ref().map(|guides| guides.of_tool(tool)).unwrap_or_default()
    }

    /// Returns how much is in working memory, with its limits; `None` without `[memory]`.
    ///
    /// # Errors
    ///
    /// If working memory cannot be read.
    pub async fn memory(&self) -> Result<Option<(MemoryUsage, MemoryLimits)>, ApiError> {
        let Some((memory, limits)) = &self.families.memory else { return Ok(None) };
        Ok(Some((memory.usage().await.map_err(unreadable)?, *limits)))
    }

    /// Returns the entries of an owner, without their texts; `None` without `[memory]`.
    ///
    /// # Errors
    ///
    /// If working memory cannot be read.
    pub async fn memory_of(&self, owner: &str) -> Result<Option<Vec<EntryInfo>>, ApiError> {
        let Some((memory, _)) = &self.families.memory else { return Ok(None) };
        memory.list(MemoryOwner::to_read(owner), KeyPrefix::all()).await.map(Some).map_err(unreadable)
    }
}

fn unreadable(error: impl Display) -> ApiError {
    ApiError::unavailable(format!("{error}; try again later"))
}
