//! A task of a sub-agent: its worker, and its end.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use toolbus_core::caller::AgentName;
use toolbus_core::text::shortened;
use toolbus_core::tool::time_text;

/// Ended tasks of a share that are kept, the latest.
const MAX_ENDED: usize = 8;
/// Longest part of a description that lists show, in characters.
pub(super) const MAX_SHOWN: usize = 100;

/// A task that an agent has given. Times are seconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SubagentTask {
    pub(super) id: String,
    /// The session of the sub-agent.
    pub(super) session: String,
    /// The session in which it was given.
    pub(super) primary_session: String,
    /// The agent that gave it.
    pub(super) agent: AgentName,
    pub(super) pool: String,
    pub(super) description: String,
    pub(super) created: u64,
    pub(super) deadline: u64,
    /// The agent that works on it, once it has reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) worker: Option<AgentName>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) end: Option<SubagentEnd>,
}

/// End of a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SubagentEnd {
    pub(super) at: u64,
    pub(super) output: String,
    pub(super) is_success: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<String>,
    /// Whether the agent that gave the task has its result, or wants none.
    pub(super) is_told: bool,
}

/// Reason why a report is ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ignored {
    /// There is no such task.
    NoTask,
    /// Sender that is not of the pool of the task.
    NotAsked,
    /// Another agent works on the task.
    AnotherWorks,
    /// The task has ended: it has a result, was cancelled, or its time is over.
    Ended,
}

impl Ignored {
    /// As metrics and the log name it.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::NoTask => "no_task",
            Self::NotAsked => "not_asked",
            Self::AnotherWorks => "another_works",
            Self::Ended => "ended",
        }
    }
}

impl SubagentTask {
    /// Takes the task to be this agent's, one of `pool`, if no agent has it yet.
    ///
    /// # Errors
    ///
    /// If it is not its to work on.
    pub(super) fn claim(&mut self, agent: Option<&AgentName>, pool: &[AgentName], now: u64) -> Result<(), Ignored> {
        let Some(agent) = agent.filter(|agent| pool.contains(agent)) else { return Err(Ignored::NotAsked) };
        if self.worker.as_ref().is_some_and(|worker| worker != agent) {
            return Err(Ignored::AnotherWorks);
        }
        if self.end.is_some() || self.deadline <= now {
            return Err(Ignored::Ended);
        }
        self.worker = Some(agent.clone());
        Ok(())
    }

    /// Ends it for its time being over, if that is so.
    pub(super) fn expire(&mut self, now: u64) -> bool {
        if self.end.is_some() || self.deadline > now {
            return false;
        }
        let minutes = (self.deadline - self.created) / 60;
        let error =
            Some(format!("The sub-agent did not finish within {}.", time_text(Duration::from_secs(minutes * 60))));
        self.end = Some(SubagentEnd { at: now, output: String::new(), is_success: false, error, is_told: false });
        true
    }
}

/// Forgets what has ended but for the latest, and of those what no list shows. Undelivered results stay longest.
pub(super) fn forget_ended(tasks: &mut Vec<SubagentTask>) {
    for task in tasks.iter_mut().filter(|task| task.end.is_some()) {
        task.description = shortened(&task.description, MAX_SHOWN).into_owned();
    }
    let end = |(index, task): (usize, &SubagentTask)| task.end.as_ref().map(|end| (!end.is_told, end.at, index));
    let mut ended: Vec<_> = tasks.iter().enumerate().filter_map(end).collect();
    ended.sort_unstable();
    ended.truncate(ended.len().saturating_sub(MAX_ENDED));
    let mut indexes = 0..;
    tasks.retain(|_| indexes.next().is_some_and(|index| ended.iter().all(|(.., gone)| *gone != index)));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agent(name: &str) -> AgentName {
        AgentName::parse(name).unwrap()
    }

    fn task(id: &str) -> SubagentTask {
        SubagentTask {
            id: id.to_owned(),
            session: "s".to_owned(),
            primary_session: "p".to_owned(),
            agent: agent("ana"),
            pool: "thinkers".to_owned(),
            description: "d".to_owned(),
            created: 0,
            deadline: 600,
            worker: None,
            end: None,
        }
    }

    #[test]
    fn a_task_belongs_to_the_first_agent_of_its_pool_that_reports() {
        let pool = [agent("w1"), agent("w2")];
        let mut task = task("a");
        assert_eq!(task.claim(None, &pool, 1), Err(Ignored::NotAsked));
        assert_eq!(task.claim(Some(&agent("ana")), &pool, 1), Err(Ignored::NotAsked));
        assert_eq!(task.claim(Some(&agent("w2")), &pool, 1), Ok(()));
        assert_eq!(task.claim(Some(&agent("w1")), &pool, 1), Err(Ignored::AnotherWorks));
        assert_eq!(task.claim(Some(&agent("w2")), &pool, 600), Err(Ignored::Ended));
        assert!(!task.expire(599) && task.expire(600) && !task.expire(601));
        assert_eq!(task.end.unwrap().error.unwrap(), "The sub-agent did not finish within 10 minutes.");
    }

    #[test]
    fn the_latest_ended_tasks_are_kept() {
        let ended = |number: u64| {
            let end = SubagentEnd { at: number, output: String::new(), is_success: true, error: None, is_told: true };
            SubagentTask { end: Some(end), ..task(&number.to_string()) }
        };
        let mut tasks = vec![task("running"), ended(20)];
        tasks.extend((0..10).map(ended));
        tasks[2].end.as_mut().unwrap().is_told = false;
        forget_ended(&mut tasks);
        let ids: Vec<&str> = tasks.iter().map(|task| &*task.id).collect();
        assert_eq!(ids, ["running", "20", "0", "4", "5", "6", "7", "8", "9"], "20 ran longest, 0 was not delivered");
    }
}
