//! Rates and percentiles of the last seconds: differences of totals.

use std::collections::{HashMap, VecDeque};

use clap::ValueEnum;
use jiff::Timestamp;
use serde::Serialize;
use toolbus_telemetry::{CallSeries, CallTotals};

use crate::http::admin::view::CallRates;

/// Seconds that rates and percentiles are of, at least.
const SPAN: f64 = 10.0;

/// Kind of names that the rows of the table have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Grouping {
    /// One row for each tool.
    Tool,
    /// One row for each agent.
    Agent,
    /// One row for each source of tools, such as an MCP server.
    Source,
}

impl Grouping {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Tool => "tool",
            Self::Agent => "agent",
            Self::Source => "source",
        }
    }

    pub(super) const fn next(self) -> Self {
        match self {
            Self::Tool => Self::Agent,
            Self::Agent => Self::Source,
            Self::Source => Self::Tool,
        }
    }

    fn of(self, series: &CallSeries) -> &str {
        match self {
            Self::Tool => &series.tool,
            Self::Agent => &series.agent,
            Self::Source => &series.source,
        }
    }
}

/// The polls of the last seconds, oldest first.
#[derive(Debug, Default)]
pub(super) struct Window(VecDeque<Poll>);

#[derive(Debug)]
struct Poll {
    at: Timestamp,
    totals: CallTotals,
}

impl Window {
    /// Takes a poll in. One of a daemon that has started again begins a new window.
    pub(super) fn add(&mut self, rates: CallRates) {
        let poll = Poll { at: rates.at.parse().unwrap_or_default(), totals: rates.totals };
        if self.0.back().is_some_and(|last| !poll.follows(last)) {
            self.0.clear();
        }
        while self.0.get(1).is_some_and(|second| poll.seconds_since(second) >= SPAN) {
            self.0.pop_front();
        }
        self.0.push_back(poll);
    }

    /// Seconds between the oldest poll and the newest.
    pub(super) fn seconds(&self) -> f64 {
        self.0.back().zip(self.0.front()).map_or(0.0, |(newest, oldest)| newest.seconds_since(oldest))
    }

    /// Tools that run, and calls that wait.
    pub(super) fn present(&self) -> (u64, u64) {
        self.0.back().map_or((0, 0), |newest| (newest.totals.in_flight, newest.totals.waiting))
    }

    /// Figures of every call.
    pub(super) fn whole(&self) -> Figures {
        self.grouped(|_| Some("")).remove("").unwrap_or_default()
    }

    /// Figures by name, of calls with the names of `path`. Names without a call in the window have figures, too.
    pub(super) fn by(&self, grouping: Grouping, path: &[(Grouping, String)]) -> HashMap<&str, Figures> {
        let is_meant = |series: &CallSeries| path.iter().all(|(grouping, name)| grouping.of(series) == name.as_str());
        self.grouped(move |series| is_meant(series).then(|| grouping.of(series)))
    }

    fn grouped<'a>(&'a self, name: impl Fn(&'a CallSeries) -> Option<&'a str>) -> HashMap<&'a str, Figures> {
        let (Some(newest), Some(oldest)) = (self.0.back(), self.0.front()) else { return HashMap::new() };
        let before: HashMap<_, _> = oldest.totals.series.iter().map(|series| (labels(series), series)).collect();
        let is_first = self.0.len() == 1;
        let mut counts: HashMap<&str, WindowCounts> = HashMap::new();
        for series in &newest.totals.series {
            let Some(name) = name(series) else { continue };
            let before = if is_first { Some(series) } else { before.get(&labels(series)).copied() };
            counts.entry(name).or_default().add(series, before);
        }
        let (bounds, seconds) = (&newest.totals.bounds_ms, self.seconds());
        counts.into_iter().map(|(name, counts)| (name, counts.figures(bounds, seconds))).collect()
    }
}

impl Poll {
    fn seconds_since(&self, earlier: &Self) -> f64 {
        self.at.duration_since(earlier.at).as_secs_f64()
    }

    /// Whether both are of the same process: time goes on, and no total has shrunk.
    fn follows(&self, earlier: &Self) -> bool {
        let now: HashMap<_, _> = self.totals.series.iter().map(|series| (labels(series), series.count)).collect();
        let has_grown = |series: &CallSeries| now.get(&labels(series)).is_some_and(|count| *count >= series.count);
        self.at > earlier.at && earlier.totals.series.iter().all(has_grown)
    }
}

fn labels(series: &CallSeries) -> [&str; 4] {
    [&series.agent, &series.tool, &series.source, &series.status]
}

/// Calls of a window.
#[derive(Debug, Default)]
struct WindowCounts {
    calls: u64,
    failed: u64,
    buckets: Vec<u64>,
}

impl WindowCounts {
    fn add(&mut self, now: &CallSeries, before: Option<&CallSeries>) {
        let calls = now.count.saturating_sub(before.map_or(0, |before| before.count));
        self.calls += calls;
        if now.status != "ok" {
            self.failed += calls;
        }
        self.buckets.resize(self.buckets.len().max(now.buckets.len()), 0);
        for (number, (sum, count)) in self.buckets.iter_mut().zip(&now.buckets).enumerate() {
            *sum += count.saturating_sub(before.and_then(|before| before.buckets.get(number)).copied().unwrap_or(0));
        }
    }

    fn figures(&self, bounds: &[f64], seconds: f64) -> Figures {
        let calls = self.calls as f64;
        Figures {
            calls_per_second: if seconds > 0.0 { rounded(calls / seconds) } else { 0.0 },
            errors_percent: (self.calls > 0).then(|| rounded(self.failed as f64 * 100.0 / calls)),
            p50_ms: CallTotals::quantile(bounds, &self.buckets, 0.5).map(rounded),
            p95_ms: CallTotals::quantile(bounds, &self.buckets, 0.95).map(rounded),
        }
    }
}

/// Figures of the calls of a window. Without a call there are neither errors nor percentiles.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Figures {
    pub(super) calls_per_second: f64,
    /// Share of calls that did not end with `ok`.
    pub(super) errors_percent: Option<f64>,
    pub(super) p50_ms: Option<f64>,
    pub(super) p95_ms: Option<f64>,
}

/// A figure to a thousandth.
fn rounded(figure: f64) -> f64 {
    (figure * 1_000.0).round() / 1_000.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::top::tests::totals;

    fn window(polls: impl IntoIterator<Item = CallRates>) -> Window {
        let mut window = Window::default();
        polls.into_iter().for_each(|poll| window.add(poll));
        window
    }

    #[test]
    fn figures_are_of_calls_between_the_oldest_poll_and_the_newest() {
        let window = window([
            totals(0, &[("echo", "ana", "ok", [100, 0, 0])]),
            totals(2, &[("echo", "ana", "ok", [100, 10, 0]), ("echo", "bob", "timeout", [0, 0, 10])]),
        ]);
        let figures = |calls_per_second, errors, p50, p95| Figures {
            calls_per_second,
            errors_percent: Some(errors),
            p50_ms: Some(p50),
            p95_ms: Some(p95),
        };
        assert_eq!(window.whole(), figures(10.0, 50.0, 100.0, 100.0));
        let by_agent = window.by(Grouping::Agent, &[]);
        assert_eq!(by_agent["ana"], figures(5.0, 0.0, 55.0, 95.5));
        assert_eq!(by_agent["bob"], figures(5.0, 100.0, 100.0, 100.0));
        let of_bob = window.by(Grouping::Source, &[(Grouping::Agent, "bob".to_owned())]);
        assert_eq!(of_bob.into_keys().collect::<Vec<_>>(), ["mcp:echo"]);
    }

    #[test]
    fn a_first_poll_has_names_and_no_rates() {
        let window = window([totals(0, &[("echo", "ana", "ok", [100, 0, 0])])]);
        assert_eq!(window.by(Grouping::Tool, &[])["echo"], Figures::default());
        assert_eq!((window.seconds(), window.present()), (0.0, (2, 1)));
    }

    #[test]
    fn the_window_slides() {
        let window = window((0..30).step_by(2).map(|at| totals(at, &[("echo", "ana", "ok", [u64::from(at), 0, 0])])));
        assert_eq!((window.0.len(), window.seconds()), (6, 10.0));
        assert_eq!(window.whole().calls_per_second, 1.0);
    }

    #[test]
    fn a_daemon_that_has_started_again_begins_a_new_window() {
        let before = || totals(0, &[("echo", "ana", "ok", [5, 0, 0])]);
        for after in [totals(2, &[("echo", "ana", "ok", [4, 0, 0])]), totals(2, &[]), totals(0, &[])] {
            assert_eq!(window([before(), after]).seconds(), 0.0);
        }
    }
}
