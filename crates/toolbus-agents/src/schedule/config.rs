//! `[schedule]`: the zone that times are in, missed times, and how much an agent may schedule.

use jiff::tz::TimeZone;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolbus_config::HumanDuration;

/// Tasks at times that agents give: the tools for them are there when this section is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ScheduleConfig {
    /// IANA name of the time zone that cron expressions are in, where the agent gives none; absent: the system's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timezone: Option<String>,
    /// Treatment of times that passed while no daemon ran.
    pub missed: Missed,
    /// Messages that `missed = "all"` makes up for at most, of one task: the latest.
    #[schemars(range(min = 1, max = 1000))]
    pub max_missed: usize,
    /// Tasks of one agent, and of all callers without a section together.
    #[schemars(range(min = 1, max = 1000))]
    pub max_tasks: usize,
    /// Least time between two times of a task.
    pub min_interval: HumanDuration,
}

/// Treatment of times that have passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Missed {
    /// Nothing, once they are a minute past.
    Skip,
    /// One message for all of them.
    #[default]
    Once,
    /// A message for each.
    All,
}

impl Default for ScheduleConfig {
    fn default() -> Self {
        Self {
            timezone: None,
            missed: Missed::default(),
            max_missed: 100,
            max_tasks: 100,
            min_interval: HumanDuration::from_secs(10),
        }
    }
}

impl ScheduleConfig {
    /// The zone of expressions for which the agent gives none; `None` if `timezone` names none.
    #[must_use]
    pub fn zone(&self) -> Option<TimeZone> {
        match &self.timezone {
            Some(name) => TimeZone::get(name).ok(),
            // A zone without a name cannot be kept.
            None => Some(TimeZone::system()).filter(|zone| zone.iana_name().is_some()).or(Some(TimeZone::UTC)),
        }
    }
}
