//! Counts of running and waiting calls, and of the calls of each agent and tool, for gauges and for operators.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::caller::Caller;

/// Names in a tally of calls; calls of further ones are not counted by name.
const MAX_NAMES: usize = 1_000;
/// Time that one tally covers. Two are kept, so that a sum of them covers one to two of these.
const TALLY_TIME: Duration = Duration::from_secs(60);
/// Name of every caller without a section, as in the configuration.
const WITHOUT_SECTION: &str = "default";

/// Calls that run and wait now, and those that ended lately.
#[derive(Debug, Default)]
pub struct Load(Mutex<LoadState>);

#[derive(Debug, Default)]
struct LoadState {
    running: usize,
    /// Running calls by tool.
    tools: HashMap<Arc<str>, usize>,
    /// When each waiting call began to wait, in order.
    waits: BTreeMap<u64, Instant>,
    next_wait: u64,
    /// When the present tally began.
    began: Option<Instant>,
    now: Tally,
    before: Tally,
}

/// Calls that ended, by name.
#[derive(Debug, Default)]
struct Tally {
    agents: HashMap<Arc<str>, u64>,
    tools: HashMap<Arc<str>, u64>,
}

/// A tool with calls, now or lately.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BusyTool {
    /// Name of the agent or tool.
    pub name: Arc<str>,
    /// Calls running now.
    pub running: usize,
    /// Calls that ended in the last one to two minutes, refused ones included.
    pub recent: u64,
}

impl Load {
    /// Tools running now.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.0.lock().running
    }

    /// Calls waiting for a permit now.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.0.lock().waits.len()
    }

    /// Time for which the oldest of them has waited; zero if none waits.
    #[must_use]
    pub fn oldest_wait(&self, now: Instant) -> Duration {
        let state = self.0.lock();
        state.waits.first_key_value().map_or(Duration::ZERO, |(_, since)| now.saturating_duration_since(*since))
    }

    /// Calls that ended in the last one to two minutes by agent, refused ones included; those of callers without a
    /// section under `default`.
    #[must_use]
    pub fn recent_by_agent(&self, now: Instant) -> HashMap<Arc<str>, u64> {
        let mut state = self.0.lock();
        state.turn(now);
        let mut recent = state.now.agents.clone();
        for (agent, calls) in &state.before.agents {
            *recent.entry(Arc::clone(agent)).or_default() += calls;
        }
        recent
    }

    /// The tools with calls that run now or ended lately, in no order.
    #[must_use]
    pub fn busy_tools(&self, now: Instant) -> Vec<BusyTool> {
        let mut state = self.0.lock();
        state.turn(now);
        let mut all: HashMap<&Arc<str>, (usize, u64)> = HashMap::new();
        for (name, running) in &state.tools {
            all.entry(name).or_default().0 += running;
        }
        for (name, calls) in state.now.tools.iter().chain(&state.before.tools) {
            all.entry(name).or_default().1 += calls;
        }
        all.into_iter().map(|(name, (running, recent))| BusyTool { name: Arc::clone(name), running, recent }).collect()
    }

    /// Counts a running call until the guard is dropped.
    pub(crate) fn enter_running(self: &Arc<Self>, tool: Option<Arc<str>>) -> LoadGuard {
        let mut state = self.0.lock();
        state.running += 1;
        if let Some(tool) = &tool {
            *state.tools.entry(Arc::clone(tool)).or_default() += 1;
        }
        LoadGuard { load: Arc::clone(self), counted: Counted::Running(tool) }
    }

    /// Counts a waiting call until the guard is dropped.
    pub(crate) fn enter_waiting(self: &Arc<Self>, now: Instant) -> LoadGuard {
        let mut state = self.0.lock();
        let number = state.next_wait;
        state.next_wait += 1;
        state.waits.insert(number, now);
        LoadGuard { load: Arc::clone(self), counted: Counted::Waiting(number) }
    }

    /// Counts a call that has ended.
    pub(crate) fn ended(&self, caller: &Caller, tool: Option<&Arc<str>>, now: Instant) {
        let mut state = self.0.lock();
        state.turn(now);
        match caller.section() {
            Some(agent) => count(&mut state.now.agents, agent),
            None => count(&mut state.now.agents, WITHOUT_SECTION),
        }
        if let Some(tool) = tool {
            count(&mut state.now.tools, tool);
        }
    }
}

impl LoadState {
    /// Begins another tally where the present one is old enough.
    fn turn(&mut self, now: Instant) {
        let age = now.saturating_duration_since(*self.began.get_or_insert(now));
        if age < TALLY_TIME {
            return;
        }
        let ended = std::mem::take(&mut self.now);
        self.before = if age < 2 * TALLY_TIME { ended } else { Tally::default() };
        self.began = Some(now);
    }
}

fn count(tally: &mut HashMap<Arc<str>, u64>, name: &str) {
    if let Some(calls) = tally.get_mut(name) {
        *calls += 1;
    } else if tally.len() < MAX_NAMES {
        tally.insert(name.into(), 1);
    }
}

/// Counts one call until it is dropped.
pub(crate) struct LoadGuard {
    load: Arc<Load>,
    counted: Counted,
}

enum Counted {
    Running(Option<Arc<str>>),
    Waiting(u64),
}

impl Drop for LoadGuard {
    fn drop(&mut self) {
        let mut state = self.load.0.lock();
        match &self.counted {
            Counted::Running(tool) => {
                state.running -= 1;
                if let Some(tool) = tool
                    && let Some(running) = state.tools.get_mut(tool)
                {
                    *running -= 1;
                    if *running == 0 {
                        state.tools.remove(tool);
                    }
                }
            }
            Counted::Waiting(number) => drop(state.waits.remove(number)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Clock;
    use crate::caller::AgentName;

    fn ana() -> Caller {
        Caller::agent(AgentName::parse("ana").unwrap())
    }

    #[test]
    fn the_age_of_the_queue_is_the_wait_of_its_oldest_call() {
        let (load, clock) = (Arc::<Load>::default(), Clock::manual());
        let first = load.enter_waiting(clock.now());
        clock.advance(Duration::from_secs(3));
        let second = load.enter_waiting(clock.now());
        clock.advance(Duration::from_secs(1));
        assert_eq!((load.waiting(), load.oldest_wait(clock.now())), (2, Duration::from_secs(4)));
        drop(first);
        assert_eq!((load.waiting(), load.oldest_wait(clock.now())), (1, Duration::from_secs(1)));
        drop(second);
        assert_eq!((load.waiting(), load.oldest_wait(clock.now())), (0, Duration::ZERO));
    }

    #[test]
    fn a_tool_is_busy_while_it_runs_and_for_a_while_after_its_last_call() {
        let (load, clock) = (Arc::<Load>::default(), Clock::manual());
        let echo: Arc<str> = "echo".into();
        let running = load.enter_running(Some(Arc::clone(&echo)));
        let busy = |running, recent| vec![BusyTool { name: "echo".into(), running, recent }];
        assert_eq!((load.in_flight(), load.busy_tools(clock.now())), (1, busy(1, 0)));
        load.ended(&ana(), Some(&echo), clock.now());
        drop(running);
        assert_eq!((load.in_flight(), load.busy_tools(clock.now())), (0, busy(0, 1)));
        clock.advance(Duration::from_secs(61));
        load.ended(&ana(), Some(&echo), clock.now());
        assert_eq!(load.busy_tools(clock.now()), busy(0, 2));
        clock.advance(Duration::from_secs(121));
        assert_eq!(load.busy_tools(clock.now()), []);
    }

    #[test]
    fn callers_without_a_section_count_as_one_and_names_are_bounded() {
        let (load, clock) = (Load::default(), Clock::manual());
        let stranger = Caller { has_section: false, ..ana() };
        for caller in [&ana(), &stranger, &Caller::unknown()] {
            load.ended(caller, None, clock.now());
        }
        assert_eq!(load.recent_by_agent(clock.now()), HashMap::from([("ana".into(), 1), ("default".into(), 2)]));
        for number in 0..2 * MAX_NAMES {
            load.ended(&ana(), Some(&format!("tool_{number}").into()), clock.now());
        }
        assert_eq!(load.busy_tools(clock.now()).len(), MAX_NAMES);
    }
}
