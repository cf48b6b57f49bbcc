//! A task, and when it is due.

use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use toolbus_core::caller::AgentName;
use toolbus_protocol::derived_message_id;

use super::config::Missed;
use super::cron::{CronError, CronExpression};

/// Longest delay with which a time may be published with `missed = "skip"`, in seconds.
const LATE: u64 = 60;
/// Longest time by which what was done may be ahead of the clock, in seconds: beyond, the clock was wrong then.
const AHEAD: u64 = 60 * 60;

/// A task of an agent. Times are seconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Task {
    /// Another one for each call of `schedule_task`.
    pub(crate) id: String,
    pub(crate) agent: AgentName,
    pub(crate) name: String,
    pub(crate) description: String,
    pub(crate) cron: String,
    /// IANA name of the zone of `cron`.
    pub(crate) zone: String,
    pub(crate) run_once: bool,
    pub(crate) created: u64,
    /// The first time that is not published.
    pub(crate) next: u64,
    /// The last time that was published.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) last: Option<u64>,
    /// Tool call made at each time; absent: the agent gets a message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) tool: Option<ScheduledCall>,
    /// The time whose call may have begun, and whose result is not published.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) begun: Option<u64>,
}

/// The call of a tool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ScheduledCall {
    pub(crate) name: String,
    pub(crate) arguments: Map<String, Value>,
    /// The binding of the request that scheduled it, which narrows what the agent may use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) binding: Option<String>,
}

/// Times to be published of a task.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct DueTimes {
    /// In order; empty where missed times are skipped.
    pub(crate) times: Vec<u64>,
    /// The first time after these; absent where the task has ended.
    pub(crate) next: Option<u64>,
}

impl Task {
    /// Whether the task is the one of this agent and name, in any case.
    pub(crate) fn is_named(&self, agent: &AgentName, name: &str) -> bool {
        self.agent == *agent && self.name.to_lowercase() == name.to_lowercase()
    }

    pub(crate) fn zone(&self) -> TimeZone {
        TimeZone::get(&self.zone).unwrap_or(TimeZone::UTC)
    }

    pub(crate) fn expression(&self) -> Result<CronExpression, CronError> {
        CronExpression::parse(&self.cron, self.zone())
    }

    /// Identifies the message and the call of a time: the same in every process.
    pub(crate) fn fire_key(&self, time: u64) -> String {
        derived_message_id(self.agent.as_str(), &self.id, &time.to_string())
    }

    /// The first time after that of a call; `None` where the task has ended, or its expression cannot be read any more.
    pub(crate) fn next_after(&self, time: u64) -> Option<u64> {
        let cron = self.expression().ok().filter(|_| !self.run_once)?;
        cron.next_after(time)
    }

    /// Returns what is due at `now`; `None` if that is nothing.
    ///
    /// # Errors
    ///
    /// If the expression cannot be read, which it could when the task was made.
    pub(crate) fn due(&self, now: u64, missed: Missed, max_missed: usize) -> Result<Option<DueTimes>, CronError> {
        if self.next > now {
            return Ok(None);
        }
        if self.run_once {
            return Ok(Some(DueTimes { times: vec![self.next], next: None }));
        }
        let cron = self.expression()?;
        let before = |time: u64| cron.last_until(time).filter(|time| *time > self.next);
        let latest = before(now).unwrap_or(self.next);
        let times = match missed {
            Missed::Skip if now - latest > LATE => Vec::new(),
            Missed::Skip | Missed::Once => vec![latest],
            Missed::All => {
                let earlier = |time: &u64| {
                    let time = (*time > self.next).then(|| time - 1)?;
                    Some(before(time).unwrap_or(self.next))
                };
                let mut times: Vec<u64> = std::iter::successors(Some(latest), earlier).take(max_missed).collect();
                times.reverse();
                times
            }
        };
        Ok(Some(DueTimes { times, next: cron.next_after(now.max(latest)) }))
    }

    /// Begins anew at `now` if the task was made or published at a time that is yet to come: the clock was wrong then, and
    /// would have to come that far again. Returns whether it was so.
    pub(crate) fn follow_clock(&mut self, now: u64) -> bool {
        if self.last.unwrap_or_default().max(self.created) <= now + AHEAD {
            return false;
        }
        (self.created, self.last) = (now, None);
        if let Some(next) = self.expression().ok().and_then(|cron| cron.next_after(now)) {
            self.next = next;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-01-01T00:00:00Z.
    const START: u64 = 1_767_225_600;

    fn every_minute() -> Task {
        Task {
            id: "1".to_owned(),
            agent: AgentName::parse("ana").unwrap(),
            name: "Mail".to_owned(),
            description: "Look".to_owned(),
            cron: "* * * * *".to_owned(),
            zone: "UTC".to_owned(),
            run_once: false,
            created: START,
            next: START + 60,
            last: None,
            tool: None,
            begun: None,
        }
    }

    fn due(task: &Task, now: u64, missed: Missed) -> Option<(Vec<u64>, Option<u64>)> {
        let due = task.due(START + now, missed, 3).unwrap()?;
        let since = |time: u64| time - START;
        Some((due.times.into_iter().map(since).collect(), due.next.map(since)))
    }

    #[test]
    fn a_time_is_due_from_its_second_on() {
        for missed in [Missed::Skip, Missed::Once, Missed::All] {
            assert_eq!(due(&every_minute(), 59, missed), None);
            assert_eq!(due(&every_minute(), 60, missed), Some((vec![60], Some(120))));
            assert_eq!(due(&every_minute(), 61, missed), Some((vec![60], Some(120))));
        }
    }

    #[test]
    fn missed_times_are_skipped_published_once_or_each_up_to_the_most() {
        let task = Task { cron: "*/10 * * * *".to_owned(), next: START + 600, ..every_minute() };
        let (late, now) = (3 * 600 + 61, 3 * 600 + 60);
        assert_eq!(due(&task, late, Missed::Skip), Some((vec![], Some(2400))));
        assert_eq!(due(&task, now, Missed::Skip), Some((vec![1800], Some(2400))));
        assert_eq!(due(&task, late, Missed::Once), Some((vec![1800], Some(2400))));
        assert_eq!(due(&task, late, Missed::All), Some((vec![600, 1200, 1800], Some(2400))));
        assert_eq!(due(&task, late + 600, Missed::All), Some((vec![1200, 1800, 2400], Some(3000))));
    }

    #[test]
    fn a_month_of_missed_seconds_costs_no_more_than_the_most() {
        let task = Task { cron: "* * * * * *".to_owned(), next: START + 1, ..every_minute() };
        let month = 30 * 24 * 60 * 60;
        assert_eq!(due(&task, month, Missed::All), Some((vec![month - 2, month - 1, month], Some(month + 1))));
    }

    #[test]
    fn a_task_for_once_is_never_skipped_and_ends() {
        let task = Task { run_once: true, ..every_minute() };
        for missed in [Missed::Skip, Missed::Once, Missed::All] {
            assert_eq!(due(&task, 100_000, missed), Some((vec![60], None)));
        }
    }

    #[test]
    fn a_task_of_a_clock_that_was_wrong_begins_anew() {
        let year = 365 * 24 * 60 * 60;
        let mut task = Task { last: Some(START + year), next: START + year + 60, ..every_minute() };
        assert!(task.follow_clock(START + 30));
        assert_eq!((task.next, task.last), (START + 60, None));
        let mut task = Task { last: Some(START + 3600), next: START + 3660, ..every_minute() };
        assert!(!task.follow_clock(START + 30), "a clock that is set back by less waits, so that no time comes twice");
    }

    #[test]
    fn a_name_is_the_same_in_any_case() {
        let (ana, bruno) = (AgentName::parse("ana").unwrap(), AgentName::parse("bruno").unwrap());
        assert!(every_minute().is_named(&ana, "MAIL"));
        assert!(!every_minute().is_named(&bruno, "Mail") && !every_minute().is_named(&ana, "mails"));
    }
}
