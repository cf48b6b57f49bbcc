//! The view as a value, and how keys change it.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::time::{Duration, Instant};

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use serde::Serialize;
use toolbus_core::Clock;

use super::rates::{Figures, Grouping, Window};
use crate::commands::daemon::reason;
use crate::commands::one_line;
use crate::commands::target::query_of;
use crate::http::admin::recent::CallTrace;
use crate::http::admin::view::{CallRates, DaemonStatus};

/// Longest filter, in characters.
const MAX_FILTER: usize = 64;
/// Rows that PageUp and PageDown move by.
const PAGE: isize = 10;
/// Recent calls that are shown.
const MAX_CALLS: usize = 50;
/// Labels that summarise several names, so that no call can be found by them.
const COLLECTIVE: [&str; 3] = ["default", "_other", "_unknown"];

/// State of the daemon, from its status.
#[derive(Debug, Default)]
pub(super) struct DaemonState {
    pub(super) version: String,
    /// Reasons for not being ready; empty when it is.
    pub(super) blockers: Vec<String>,
    /// Running calls of the busiest tools.
    pub(super) tools: HashMap<String, usize>,
    /// Running calls of the busiest agents.
    pub(super) agents: HashMap<String, usize>,
}

impl From<DaemonStatus> for DaemonState {
    fn from(daemon: DaemonStatus) -> Self {
        Self {
            version: daemon.status.build.version.into_owned(),
            blockers: daemon.blocked_by.iter().map(reason).collect(),
            tools: daemon.busiest_tools.into_iter().map(|tool| (tool.tool, tool.running)).collect(),
            agents: daemon.busiest_agents.into_iter().map(|agent| (agent.agent, agent.running)).collect(),
        }
    }
}

/// A column of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Column {
    Name,
    Rate,
    InFlight,
    Errors,
    P50,
    P95,
}

impl Column {
    pub(super) const ALL: [Self; 6] = [Self::Name, Self::Rate, Self::InFlight, Self::Errors, Self::P50, Self::P95];

    /// The column beside it, the last one beside the first.
    fn beside(self, step: usize) -> Self {
        let at = Self::ALL.iter().position(|column| *column == self).unwrap_or_default();
        Self::ALL.get((at + step) % Self::ALL.len()).copied().unwrap_or(self)
    }
}

/// A row of the table.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Row {
    pub(super) name: String,
    #[serde(flatten)]
    pub(super) figures: Figures,
    /// Calls that run now, where the daemon reports them.
    pub(super) in_flight: Option<usize>,
}

/// A request of a key to the loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyEffect {
    /// A new drawing alone.
    Draw,
    /// The recent calls of the view that was opened.
    Calls,
    /// The end.
    Quit,
}

/// The view: figures, and the choices of the operator.
pub(super) struct State {
    /// The daemon's address.
    pub(super) address: String,
    pub(super) window: Window,
    pub(super) health: DaemonState,
    pub(super) grouping: Grouping,
    /// The opened rows, outermost first: the present ones are of calls with these names.
    pub(super) path: Vec<(Grouping, String)>,
    /// Recent calls of the path, where they are shown instead of rows.
    pub(super) calls: Option<Vec<CallTrace>>,
    pub(super) sort: Column,
    pub(super) is_reversed: bool,
    pub(super) filter: String,
    pub(super) is_typing: bool,
    pub(super) is_paused: bool,
    pub(super) shows_help: bool,
    /// Error of the last poll; absent if it succeeded.
    pub(super) failure: Option<String>,
    /// Name of the selected row; the first one if it is gone.
    selected: Option<String>,
    responded: Instant,
    clock: Clock,
}

impl State {
    pub(super) fn new(address: String, grouping: Grouping, clock: Clock) -> Self {
        Self {
            address,
            window: Window::default(),
            health: DaemonState::default(),
            grouping,
            path: Vec::new(),
            calls: None,
            sort: Column::Rate,
            is_reversed: false,
            filter: String::new(),
            is_typing: false,
            is_paused: false,
            shows_help: false,
            failure: None,
            selected: None,
            responded: clock.now(),
            clock,
        }
    }

    /// Takes in a response, or why there is none: the figures stay then.
    pub(super) fn polled(&mut self, response: Result<(CallRates, DaemonState), String>) {
        match response {
            Ok((rates, health)) => {
                self.window.add(rates);
                self.health = health;
                self.failure = None;
                self.responded = self.clock.now();
            }
            Err(failure) => self.failure = Some(failure),
        }
    }

    /// Takes in the calls of `query`, unless another view is open by now.
    pub(super) fn found(&mut self, query: &str, calls: Vec<CallTrace>) {
        if self.query().as_deref() == Some(query) {
            self.calls = Some(calls);
        }
    }

    /// Time since the last response.
    pub(super) fn silence(&self) -> Duration {
        self.clock.since(self.responded)
    }

    /// The query for recent calls, where they are shown.
    pub(super) fn query(&self) -> Option<String> {
        self.calls.as_ref()?;
        let of = |wanted| {
            let (_, name) = self.path.iter().find(|(grouping, _)| *grouping == wanted)?;
            (!COLLECTIVE.contains(&name.as_str())).then(|| name.clone())
        };
        let limit = Some(MAX_CALLS.to_string());
        Some(query_of([("tool", &of(Grouping::Tool)), ("agent", &of(Grouping::Agent)), ("limit", &limit)]))
    }

    /// The rows, filtered and sorted. Names are untrusted.
    pub(super) fn rows(&self) -> Vec<Row> {
        let running = match (self.path.is_empty(), self.grouping) {
            (true, Grouping::Tool) => Some(&self.health.tools),
            (true, Grouping::Agent) => Some(&self.health.agents),
            _ => None,
        };
        let filter = self.filter.to_lowercase();
        let figures = self.window.by(self.grouping, &self.path).into_iter();
        let meant = figures.filter(|(name, _)| name.to_lowercase().contains(&filter));
        let row = |(name, figures): (&str, Figures)| Row {
            name: name.to_owned(),
            figures,
            in_flight: running.and_then(|running| running.get(name)).copied(),
        };
        let mut rows: Vec<Row> = meant.map(row).collect();
        rows.sort_by(|one, other| {
            let order = self.order(one, other).then_with(|| one.name.cmp(&other.name));
            if self.is_reversed { order.reverse() } else { order }
        });
        rows
    }

    /// Names ascend, figures descend.
    fn order(&self, one: &Row, other: &Row) -> Ordering {
        let by = |value: fn(&Figures) -> Option<f64>| {
            let of = |row: &Row| value(&row.figures).unwrap_or(-1.0);
            of(other).total_cmp(&of(one))
        };
        match self.sort {
            Column::Name => Ordering::Equal,
            Column::Rate => by(|figures| Some(figures.calls_per_second)),
            Column::InFlight => other.in_flight.cmp(&one.in_flight),
            Column::Errors => by(|figures| figures.errors_percent),
            Column::P50 => by(|figures| figures.p50_ms),
            Column::P95 => by(|figures| figures.p95_ms),
        }
    }

    /// Number of the selected row.
    pub(super) fn selected(&self, rows: &[Row]) -> usize {
        let selected = self.selected.as_ref();
        selected.and_then(|name| rows.iter().position(|row| row.name == *name)).unwrap_or_default()
    }

    /// The path, the filter and the grouping in words.
    pub(super) fn title(&self) -> String {
        let path = self.path.iter().map(|(grouping, name)| format!("{} {}", grouping.name(), one_line(name)));
        let last = match self.calls {
            Some(_) => "recent calls".to_owned(),
            None => format!("by {}", self.grouping.name()),
        };
        let filter = if self.filter.is_empty() { String::new() } else { format!(", with \"{}\"", self.filter) };
        format!("{}{filter}", path.chain([last]).collect::<Vec<_>>().join(" > "))
    }

    /// Applies a key to the view.
    pub(super) fn press(&mut self, key: KeyEvent) -> KeyEffect {
        match key.code {
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return KeyEffect::Quit,
            _ if self.shows_help => self.shows_help = false,
            code if self.is_typing => self.edit(code),
            KeyCode::Char('q') => return KeyEffect::Quit,
            KeyCode::Char('?') => self.shows_help = true,
            KeyCode::Char('p') => self.is_paused = !self.is_paused,
            KeyCode::Char('t') => self.group(Grouping::Tool),
            KeyCode::Char('a') => self.group(Grouping::Agent),
            KeyCode::Char('s') => self.group(Grouping::Source),
            KeyCode::Tab => self.group(self.grouping.next()),
            KeyCode::Char('<') => self.sort = self.sort.beside(Column::ALL.len() - 1),
            KeyCode::Char('>') => self.sort = self.sort.beside(1),
            KeyCode::Char('o') => self.is_reversed = !self.is_reversed,
            KeyCode::Char('/') => self.is_typing = true,
            KeyCode::Up | KeyCode::Char('k') => self.select(-1),
            KeyCode::Down | KeyCode::Char('j') => self.select(1),
            KeyCode::PageUp => self.select(-PAGE),
            KeyCode::PageDown => self.select(PAGE),
            KeyCode::Home => self.selected = None,
            KeyCode::Enter => return self.enter(),
            KeyCode::Esc if self.filter.is_empty() => self.leave(),
            KeyCode::Esc => self.filter.clear(),
            _ => {}
        }
        KeyEffect::Draw
    }

    fn edit(&mut self, code: KeyCode) {
        match code {
            KeyCode::Char(letter) if self.filter.chars().count() < MAX_FILTER => self.filter.push(letter),
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Esc => {
                self.is_typing = false;
                self.filter.clear();
            }
            _ => {}
        }
    }

    fn group(&mut self, grouping: Grouping) {
        self.grouping = grouping;
        self.path.clear();
        (self.calls, self.selected) = (None, None);
    }

    fn select(&mut self, step: isize) {
        let rows = self.rows();
        let to = self.selected(&rows).saturating_add_signed(step).min(rows.len().saturating_sub(1));
        self.selected = rows.into_iter().nth(to).map(|row| row.name);
    }

    /// Opens the selected row: of a tool its agents, of an agent or a source its tools, and then the calls.
    fn enter(&mut self) -> KeyEffect {
        let rows = self.rows();
        let Some(row) = rows.get(self.selected(&rows)).filter(|_| self.calls.is_none()) else { return KeyEffect::Draw };
        self.path.push((self.grouping, row.name.clone()));
        self.filter.clear();
        self.selected = None;
        let next = if self.grouping == Grouping::Tool { Grouping::Agent } else { Grouping::Tool };
        if self.path.iter().any(|(grouping, _)| *grouping == next) {
            self.calls = Some(Vec::new());
            return KeyEffect::Calls;
        }
        self.grouping = next;
        KeyEffect::Draw
    }

    fn leave(&mut self) {
        if let Some((grouping, name)) = self.path.pop() {
            self.grouping = grouping;
            (self.calls, self.selected) = (None, Some(name));
        }
    }
}
