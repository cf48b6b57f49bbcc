//! Scheduled tasks as operators see them, and their removal.

use jiff::tz::TimeZone;
use toolbus_core::store::StoreError;

use super::cron::CronExpression;
use super::task::Task;
use super::task_store::TaskStore;
use crate::share_values::Overview;

/// A scheduled task. Times are seconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScheduledTask {
    /// Identifies the task within its share.
    pub id: String,
    /// Share that the task counts for: an agent with a section, or all other callers together.
    pub share: String,
    /// The agent that scheduled it.
    pub agent: String,
    /// Name of the task.
    pub name: String,
    /// The agent's note to itself.
    pub description: String,
    /// The tool that is called; absent: the agent receives a message.
    pub tool: Option<String>,
    /// Cron expression, in the time zone `zone`.
    pub cron: String,
    /// IANA name of a time zone.
    pub zone: String,
    /// Whether the task ends after its first time.
    pub run_once: bool,
    /// When the task was made.
    pub created: u64,
    /// The first time that is not published.
    pub next: u64,
    /// The last time that was published.
    pub last: Option<u64>,
    /// Whether a call of the task has begun, and not ended as far as this process saw it.
    pub is_running: bool,
    /// When its call, which could not begin, is tried again, where this process makes it.
    pub retry: Option<u64>,
    /// Failure of the last time, where this process saw it.
    pub failure: Option<String>,
}

impl ScheduledTask {
    fn new((share, task): (String, Task)) -> Self {
        Self {
            id: task.id,
            share,
            agent: task.agent.to_string(),
            name: task.name,
            description: task.description,
            tool: task.tool.map(|call| call.name),
            cron: task.cron,
            zone: task.zone,
            run_once: task.run_once,
            created: task.created,
            next: task.next,
            last: task.last,
            is_running: task.begun.is_some(),
            retry: None,
            failure: None,
        }
    }

    /// At most so many times after `next`. Blocks for the time of the search.
    #[must_use]
    pub fn later(&self, most: usize) -> Vec<u64> {
        let zone = TimeZone::get(&self.zone).unwrap_or(TimeZone::UTC);
        let Some(cron) = CronExpression::parse(&self.cron, zone).ok().filter(|_| !self.run_once) else {
            return Vec::new();
        };
        std::iter::successors(cron.next_after(self.next), |time| cron.next_after(*time)).take(most).collect()
    }
}

impl TaskStore {
    /// The tasks of all agents, those that are due first before others.
    ///
    /// # Errors
    ///
    /// If the store cannot be read.
    pub async fn overview(&self) -> Result<Overview<ScheduledTask>, StoreError> {
        let Overview { rows, is_whole } = self.all().await?;
        let with_failure = |task: ScheduledTask| {
            let retry = self.failures().retry_of(&task.id).filter(|_| task.is_running);
            ScheduledTask {
                // The result of one that ended waits to be published.
                is_running: task.is_running && retry.is_none() && !self.failures().has_message(&task.id),
                retry,
                failure: self.failures().of(&task.id),
                ..task
            }
        };
        let mut rows: Vec<ScheduledTask> = rows.into_iter().map(ScheduledTask::new).map(with_failure).collect();
        rows.sort_by(|one, other| (one.next, &one.name).cmp(&(other.next, &other.name)));
        Ok(Overview { rows, is_whole })
    }

    /// Removes a task of a share; returns the task, if there was one. A call that has begun goes on.
    ///
    /// # Errors
    ///
    /// If the store cannot be changed.
    pub async fn remove(&self, share: &str, id: &str) -> Result<Option<ScheduledTask>, StoreError> {
        let removed = self.update(share, |tasks| {
            let index = tasks.iter().position(|task| task.id == id).ok_or(())?;
            Ok::<_, ()>(tasks.remove(index))
        });
        Ok(removed.await?.ok().map(|task| ScheduledTask::new((share.to_owned(), task))))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use toolbus_core::store::Store as _;
    use toolbus_protocol::Random;
    use toolbus_store::MemoryStore;

    use super::*;

    #[tokio::test]
    async fn an_operator_sees_the_tasks_of_all_agents_with_their_next_times_and_removes_one() {
        let task = |agent: &str, name: &str, more: &str, next: u64| {
            format!(
                r#"{{"version":1,"value":[{{"id":"{name}","agent":"{agent}","name":"{name}","description":"Look",
                    "cron":"0 9 * * *","zone":"UTC","runOnce":false,"created":1,"next":{next}{more}}}]}}"#
            )
        };
        let store = Arc::new(MemoryStore::default());
        let of_tool = r#","tool":{"name":"pay","arguments":{"secret":1}},"begun":32400"#;
        for (share, value) in
            [("ana", task("ana", "late", of_tool, 118_800)), ("unknown:", task("eve", "early", "", 32_400))]
        {
            store.put("schedules", share, value.into()).await.unwrap();
        }
        let tasks = TaskStore::new(store, Random::SYSTEM);
        let Overview { rows, is_whole } = tasks.overview().await.unwrap();
        let shown = |task: &ScheduledTask| (task.name.clone(), task.agent.clone(), task.tool.clone(), task.is_running);
        let expected = [("early", "eve", None, false), ("late", "ana", Some("pay".to_owned()), true)]
            .map(|(name, agent, tool, is_running)| (name.to_owned(), agent.to_owned(), tool, is_running));
        assert_eq!((rows.iter().map(shown).collect::<Vec<_>>(), is_whole), (expected.into(), true));
        assert_eq!(rows[0].later(2), [118_800, 205_200]);
        assert!(ScheduledTask { run_once: true, ..rows[0].clone() }.later(2).is_empty());
        assert_eq!(tasks.remove("ana", "early").await, Ok(None), "a task of another share stays");
        let removed = tasks.remove("unknown:", "early").await.unwrap();
        assert_eq!(removed.as_ref(), rows.first());
        assert_eq!(tasks.overview().await.unwrap().rows, rows[1..]);
    }
}
