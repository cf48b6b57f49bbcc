//! One deadline per call, fixed when the request arrives.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use toolbus_protocol::{Envelope, header};

use crate::failure::{Cause, ToolFailure};

/// Time that calls may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budgets {
    /// For a caller that names no budget, and a tool without a limit of its own.
    pub default: Duration,
    /// The most that any caller or tool gets.
    pub max: Duration,
}

/// Timestamps have whole seconds, so that a message may seem this much older than it is.
const TIMESTAMP_RESOLUTION: Duration = Duration::from_secs(1);

/// An age over this is a clock that is wrong, not a message that is old.
const IMPLAUSIBLE_AGE: Duration = Duration::from_secs(24 * 60 * 60);

/// Executors end this much before the call does, at the most.
const MAX_MARGIN: Duration = Duration::from_millis(250);

/// The time that a caller grants: its length, and how much of it is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TimeBudget {
    granted: Option<Duration>,
    age: Duration,
    /// Whether a budget was named that cannot be used.
    pub(crate) is_unusable: bool,
}

impl TimeBudget {
    /// Of a caller that names no budget.
    pub(crate) const UNLIMITED: Self = Self { granted: None, age: Duration::ZERO, is_unusable: false };

    /// Reads the caller's budget, less the age of the message where both are known.
    ///
    /// A budget that is no positive number of milliseconds is as good as none.
    pub(crate) fn read(envelope: &Envelope, now: SystemTime) -> Self {
        let text = envelope.header(header::TIMEOUT_MS);
        let milliseconds = text.and_then(|text| text.trim().parse().ok()).filter(|number| *number > 0);
        let granted = milliseconds.map(Duration::from_millis);
        let age = match (granted, envelope.timestamp) {
            (Some(_), Some(seconds)) => age(seconds, now),
            _ => Duration::ZERO,
        };
        Self { granted, age, is_unusable: text.is_some() && granted.is_none() }
    }

    /// The time until a deadline that is fixed already.
    pub(crate) fn until(deadline: Instant, now: Instant) -> Self {
        Self { granted: Some(deadline.saturating_duration_since(now)), age: Duration::ZERO, is_unusable: false }
    }

    /// When the call must have ended, given the limit of its tool.
    pub(crate) fn deadline(&self, arrived: Instant, tool_limit: Option<Duration>, budgets: Budgets) -> Instant {
        let time = match (self.granted, tool_limit) {
            (Some(granted), Some(limit)) => granted.min(limit),
            (Some(granted), None) => granted,
            (None, Some(limit)) => limit,
            (None, None) => budgets.default,
        };
        let time = time.min(budgets.max);
        match self.granted {
            // The age counts against the time that the caller grants, not against that of the tool.
            Some(granted) => arrived + time.min(granted.saturating_sub(self.age)),
            None => arrived + time,
        }
    }

    /// Whether the caller had given up before the message arrived.
    pub(crate) fn is_spent(&self) -> bool {
        self.granted.is_some_and(|granted| granted <= self.age)
    }
}

/// When an inner layer has to end, so that its more precise error is reported instead of the outer one.
pub(crate) fn inner(deadline: Instant, now: Instant) -> Instant {
    let margin = (deadline.saturating_duration_since(now) / 20).min(MAX_MARGIN);
    deadline.checked_sub(margin).unwrap_or(deadline)
}

fn age(sent: u64, now: SystemTime) -> Duration {
    let now = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    let age = now.saturating_sub(Duration::from_secs(sent)).saturating_sub(TIMESTAMP_RESOLUTION);
    if age > IMPLAUSIBLE_AGE { Duration::ZERO } else { age }
}

/// The failure of a call whose deadline is over before its tool began.
pub(crate) fn passed() -> ToolFailure {
    let text = "The deadline of the call had passed before the tool could begin. It was not run.";
    ToolFailure::new(Cause::Expired, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Clock;

    const BUDGETS: Budgets = Budgets { default: Duration::from_secs(60), max: Duration::from_secs(120) };

    fn envelope(budget: Option<&str>, timestamp: Option<u64>) -> Envelope {
        let headers = budget.map(|text| (header::TIMEOUT_MS.to_owned(), text.to_owned())).into_iter().collect();
        Envelope { headers, timestamp, ..Envelope::default() }
    }

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    fn budget(budget: Option<&str>, tool: Option<u64>) -> Duration {
        let arrived = Clock::SYSTEM.now();
        let budget = TimeBudget::read(&envelope(budget, None), at(1000));
        budget.deadline(arrived, tool.map(Duration::from_secs), BUDGETS) - arrived
    }

    #[test]
    fn the_budget_is_the_least_of_what_caller_and_tool_allow() {
        let table = [
            (None, None, 60_000),
            (Some("5000"), None, 5_000),
            (Some(" 5000 "), None, 5_000),
            (Some("5000"), Some(2), 2_000),
            (Some("5000"), Some(20), 5_000),
            (None, Some(90), 90_000),
            (None, Some(900), 120_000),
        ];
        for (header, tool, milliseconds) in table {
            assert_eq!(budget(header, tool), Duration::from_millis(milliseconds), "{header:?} {tool:?}");
        }
    }

    #[test]
    fn an_unusable_budget_is_the_default() {
        for text in ["0", "-1", "soon", "", "1e3", "99999999999999999999999"] {
            assert_eq!(budget(Some(text), None), BUDGETS.default, "{text}");
            assert!(TimeBudget::read(&envelope(Some(text), None), at(1000)).is_unusable, "{text}");
        }
    }

    #[test]
    fn a_huge_budget_is_capped() {
        assert_eq!(budget(Some("18446744073709551615"), None), BUDGETS.max);
    }

    #[test]
    fn the_age_of_the_message_counts_where_budget_and_timestamp_are_known() {
        let arrived = Clock::SYSTEM.now();
        let budget = TimeBudget::read(&envelope(Some("10000"), Some(1000)), at(1004));
        assert_eq!(budget.deadline(arrived, None, BUDGETS) - arrived, Duration::from_secs(7));
        assert!(!budget.is_spent());
        let without_budget = TimeBudget::read(&envelope(None, Some(1000)), at(1500));
        assert_eq!(without_budget.deadline(arrived, None, BUDGETS) - arrived, BUDGETS.default);
    }

    #[test]
    fn an_implausible_age_is_ignored() {
        let arrived = Clock::SYSTEM.now();
        for sent in [1, 200_000] {
            let budget = TimeBudget::read(&envelope(Some("10000"), Some(sent)), at(100_000));
            assert_eq!(budget.deadline(arrived, None, BUDGETS) - arrived, Duration::from_secs(10), "{sent}");
        }
    }

    #[test]
    fn a_message_older_than_its_budget_is_spent() {
        assert!(TimeBudget::read(&envelope(Some("10000"), Some(1000)), at(1011)).is_spent());
    }

    #[test]
    fn inner_layers_end_a_twentieth_earlier_and_at_most_a_quarter_second() {
        let now = Clock::SYSTEM.now();
        assert_eq!(inner(now + Duration::from_secs(1), now), now + Duration::from_millis(950));
        assert_eq!(inner(now + Duration::from_secs(100), now), now + Duration::from_millis(99_750));
    }
}
