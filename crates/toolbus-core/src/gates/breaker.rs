//! Breakers: a tool or server that fails again and again gets no further calls but one trial at a time.
//!
//! Only what fails has a breaker here, so that a call costs a look at one number while nothing fails. A breaker is of
//! the one tool, or of the MCP server with all its tools.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::Clock;
use crate::failure::{Cause, ToolFailure};
use crate::tool::ToolDescriptor;

/// When a call may be tried again that found the trial of another under way.
const DURING_TRIAL: Duration = Duration::from_secs(1);

/// Tools and servers whose failures are counted at a time: the one that has not failed for longest gives way, and open
/// breakers last. Callers may register servers, and remove them again before they work.
const MAX_FAILING: usize = 4096;

/// When a breaker trips, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BreakerRules {
    /// Failures in a row that trip it; 0: none does.
    pub failures: u32,
    /// Time from its trip to the first trial; doubled by each trial that fails.
    pub pause: Duration,
    /// Longest time to the next trial.
    pub max_pause: Duration,
}

impl Default for BreakerRules {
    fn default() -> Self {
        Self { failures: 5, pause: Duration::from_secs(5), max_pause: Duration::from_secs(120) }
    }
}

/// The breakers of all tools and servers. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Breakers {
    shared: Arc<BreakersShared>,
}

#[derive(Debug)]
struct BreakersShared {
    /// Number of entries in `failing`, to be read without the lock.
    count: AtomicUsize,
    /// Number of times that a breaker has opened since the start.
    trips: AtomicU64,
    state: Mutex<BreakersState>,
    clock: Clock,
}

#[derive(Debug, Default)]
struct BreakersState {
    rules: BreakerRules,
    /// By the name of the tool, or the source of a server's tools.
    failing: BTreeMap<Arc<str>, Breaker>,
}

/// One that has failed since it last succeeded.
#[derive(Debug, Clone, Copy)]
struct Breaker {
    /// Failures in a row.
    failures: u32,
    /// The last of them.
    failed: Instant,
    /// Present once it has tripped.
    open: Option<OpenState>,
}

#[derive(Debug, Clone, Copy)]
struct OpenState {
    since: Instant,
    /// When the next trial may begin.
    next: Instant,
    pause: Duration,
    /// Whether a trial is under way.
    on_trial: bool,
}

/// State of a breaker, for an operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BreakerStatus {
    /// The tool, or the source of a server's tools, such as `mcp:files`.
    pub name: Arc<str>,
    /// Failures in a row.
    pub failures: u32,
    /// Time since the breaker opened.
    pub open_for: Duration,
    /// Time to the next trial; zero: with the next call.
    pub next_trial: Duration,
    /// Whether a trial is under way.
    pub on_trial: bool,
}

/// State of a tool's backend, as the end of a call shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BackendState {
    /// The backend works, whatever the tool returned.
    Works,
    /// The backend does not work.
    Fails,
    /// Nothing is shown: the caller's mistake, or a cancellation.
    Unknown,
}

/// A change that is reported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum BreakerChange {
    /// Calls are refused from now on.
    Tripped {
        name: Arc<str>,
        /// Failures in a row.
        failures: u32,
        /// Time to the first trial.
        pause: Duration,
    },
    /// Calls run again.
    Closed {
        name: Arc<str>,
        /// Time for which calls have been refused.
        open_for: Duration,
    },
}

/// The right to run past a breaker. A trial without an outcome is followed by another one at once.
pub(crate) struct Passage<'a> {
    breakers: &'a Breakers,
    /// Present for a trial.
    trial: Option<Arc<str>>,
}

impl Breakers {
    /// Breakers by this clock, none of which has tripped.
    #[must_use]
    pub fn new(clock: Clock) -> Self {
        let shared =
            BreakersShared { count: AtomicUsize::new(0), trips: AtomicU64::new(0), state: Mutex::default(), clock };
        Self { shared: Arc::new(shared) }
    }

    /// Replaces the rules. What has tripped stays so until its next trial.
    pub fn configure(&self, rules: BreakerRules) {
        let mut state = self.shared.state.lock();
        state.rules = rules;
        if rules.failures == 0 {
            state.failing.clear();
            self.shared.count.store(0, Ordering::Relaxed);
        }
    }

    /// Those that have tripped.
    #[must_use]
    pub fn open(&self) -> Vec<BreakerStatus> {
        let now = self.shared.clock.now();
        let state = self.shared.state.lock();
        let status = |(name, breaker): (&Arc<str>, &Breaker)| {
            let open = breaker.open?;
            Some(BreakerStatus {
                name: Arc::clone(name),
                failures: breaker.failures,
                open_for: now.saturating_duration_since(open.since),
                next_trial: open.next.saturating_duration_since(now),
                on_trial: open.on_trial,
            })
        };
        state.failing.iter().filter_map(status).collect()
    }

    /// Number of times that a breaker has opened since the start.
    #[must_use]
    pub fn trips(&self) -> u64 {
        self.shared.trips.load(Ordering::Relaxed)
    }

    /// Closes one as if it had never failed, and gives how long it was open; `None` if it is not.
    pub fn reset(&self, name: &str) -> Option<Duration> {
        let mut state = self.shared.state.lock();
        let open = state.failing.get(name)?.open?;
        self.forget(&mut state, name);
        Some(self.shared.clock.since(open.since))
    }

    /// Whether a call may begin, as far as is known before it waits for its permit.
    pub(crate) fn check(&self, tool: &ToolDescriptor) -> Result<(), ToolFailure> {
        self.gate(tool, false).map(drop)
    }

    /// Lets a call begin: any while nothing failed, and otherwise one trial at a time.
    pub(crate) fn enter(&self, tool: &ToolDescriptor) -> Result<Passage<'_>, ToolFailure> {
        let trial = self.gate(tool, true)?;
        Ok(Passage { breakers: self, trial })
    }

    /// Gives the name of the breaker whose trial the call is, if it is one.
    fn gate(&self, tool: &ToolDescriptor, begins: bool) -> Result<Option<Arc<str>>, ToolFailure> {
        if self.shared.count.load(Ordering::Relaxed) == 0 {
            return Ok(None);
        }
        let Some(name) = name_of(tool) else { return Ok(None) };
        let mut state = self.shared.state.lock();
        let Some(open) = state.failing.get_mut(name).and_then(|breaker| breaker.open.as_mut()) else { return Ok(None) };
        let left = open.next.saturating_duration_since(self.shared.clock.now());
        if !left.is_zero() || open.on_trial {
            return Err(refused(tool, if left.is_zero() { DURING_TRIAL } else { left }));
        }
        open.on_trial = begins;
        Ok(begins.then(|| Arc::clone(name)))
    }

    fn note(&self, tool: &ToolDescriptor, is_trial: bool, backend: BackendState) -> Option<BreakerChange> {
        if backend == BackendState::Works && self.shared.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let name = name_of(tool)?;
        let mut state = self.shared.state.lock();
        let now = self.shared.clock.now();
        let rules = state.rules;
        match backend {
            BackendState::Works => {
                let breaker = *state.failing.get(name)?;
                // A call that began before the trip proves nothing of the time since.
                if breaker.open.is_some() && !is_trial {
                    return None;
                }
                self.forget(&mut state, name);
                let open_for = now.saturating_duration_since(breaker.open?.since);
                Some(BreakerChange::Closed { name: Arc::clone(name), open_for })
            }
            BackendState::Fails if rules.failures > 0 => {
                if !state.failing.contains_key(name) {
                    if state.failing.len() >= MAX_FAILING {
                        let open_last = |breaker: &Breaker| (breaker.open.is_some(), breaker.failed);
                        let oldest = state.failing.iter().min_by_key(|(_, breaker)| open_last(breaker));
                        let oldest = oldest.map(|(name, _)| Arc::clone(name))?;
                        self.forget(&mut state, &oldest);
                    }
                    self.shared.count.fetch_add(1, Ordering::Relaxed);
                }
                let first = Breaker { failures: 0, failed: now, open: None };
                let breaker = state.failing.entry(Arc::clone(name)).or_insert(first);
                breaker.failed = now;
                breaker.failures = breaker.failures.saturating_add(1);
                match &mut breaker.open {
                    Some(open) if is_trial => {
                        open.pause = open.pause.saturating_mul(2).min(rules.max_pause);
                        (open.next, open.on_trial) = (now + open.pause, false);
                        None
                    }
                    Some(_) => None,
                    None if breaker.failures < rules.failures => None,
                    None => {
                        let pause = rules.pause.min(rules.max_pause);
                        self.shared.trips.fetch_add(1, Ordering::Relaxed);
                        breaker.open = Some(OpenState { since: now, next: now + pause, pause, on_trial: false });
                        Some(BreakerChange::Tripped { name: Arc::clone(name), failures: breaker.failures, pause })
                    }
                }
            }
            BackendState::Fails | BackendState::Unknown => None,
        }
    }

    fn forget(&self, state: &mut BreakersState, name: &str) {
        if state.failing.remove(name).is_some() {
            self.shared.count.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Passage<'_> {
    /// Notes how the call ended.
    pub(crate) fn ended(mut self, tool: &ToolDescriptor, backend: BackendState) -> Option<BreakerChange> {
        let is_trial = self.trial.is_some();
        if backend != BackendState::Unknown {
            self.trial = None;
        }
        self.breakers.note(tool, is_trial, backend)
    }
}

impl Drop for Passage<'_> {
    fn drop(&mut self) {
        let Some(name) = self.trial.take() else { return };
        let mut state = self.breakers.shared.state.lock();
        if let Some(open) = state.failing.get_mut(&name).and_then(|breaker| breaker.open.as_mut()) {
            open.on_trial = false;
        }
    }
}

/// State of the tool's backend after a call. A time-out counts only if the tool had most of the time that its settings
/// grant, so that a caller with a short budget opens no breaker for others.
pub(crate) fn backend_state(failure: Cause, tool: &ToolDescriptor, had_its_time: bool) -> BackendState {
    match failure {
        // An MCP server that cannot be connected to is parked by its supervisor, which tries again by itself.
        Cause::ConnectFailed if tool.server.is_some() => BackendState::Unknown,
        Cause::ConnectFailed | Cause::ConnectionLost | Cause::Unavailable => BackendState::Fails,
        Cause::DeadlineExceeded if had_its_time => BackendState::Fails,
        Cause::DeadlineExceeded
        | Cause::MalformedRequest
        | Cause::UnknownTool
        | Cause::UnknownServer
        | Cause::InvalidArguments
        | Cause::Expired
        | Cause::NotAllowed
        | Cause::RateLimited
        | Cause::Overloaded
        | Cause::CancelledBeforeStart
        | Cause::Cancelled
        | Cause::AuthRequired
        | Cause::Panicked
        | Cause::ResultTooLarge
        | Cause::InvalidResult
        | Cause::DeliveredTooOften
        | Cause::BreakerOpen
        | Cause::OutcomeUnknown
        | Cause::KeyReused
        | Cause::LedgerUnavailable
        | Cause::Failed => BackendState::Unknown,
    }
}

/// The name of a tool's breaker: that of its server, or else its own. Tools of the daemon itself have none, nor have
/// scripts, whose time is their caller's doing, and tools that run in a process of their caller's session.
fn name_of(tool: &ToolDescriptor) -> Option<&Arc<str>> {
    match (&tool.server, tool.provider) {
        _ if tool.delegates || tool.toolset.as_ref().is_some_and(|member| member.needs_session) => None,
        (Some(_), _) => Some(&tool.source),
        (None, "rest" | "command") => Some(&tool.name),
        (None, _) => None,
    }
}

fn refused(tool: &ToolDescriptor, wait: Duration) -> ToolFailure {
    let what = match &tool.server {
        Some(server) => format!("MCP server '{server}'"),
        None => format!("Tool '{}'", tool.name),
    };
    let text = format!("{what} has failed again and again, and is not called for now. The tool was not run.");
    ToolFailure::new(Cause::BreakerOpen, text).with_retry_after(wait)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tool::Membership;

    const RULES: BreakerRules =
        BreakerRules { failures: 3, pause: Duration::from_secs(5), max_pause: Duration::from_secs(12) };

    fn breakers() -> (Breakers, Clock) {
        let clock = Clock::manual();
        let breakers = Breakers::new(clock);
        breakers.configure(RULES);
        (breakers, clock)
    }

    fn tool(name: &str) -> ToolDescriptor {
        ToolDescriptor::new(name, "rest", "rest")
    }

    fn end(breakers: &Breakers, tool: &ToolDescriptor, backend: BackendState) -> Option<BreakerChange> {
        breakers.enter(tool).ok().unwrap().ended(tool, backend)
    }

    fn trip(breakers: &Breakers, tool: &ToolDescriptor) {
        assert_eq!(end(breakers, tool, BackendState::Fails), None);
        assert_eq!(end(breakers, tool, BackendState::Fails), None);
        let tripped = end(breakers, tool, BackendState::Fails);
        assert!(matches!(tripped, Some(BreakerChange::Tripped { failures: 3, .. })), "{tripped:?}");
    }

    /// One that has tripped for the tool `pay`.
    fn tripped() -> (Breakers, Clock, ToolDescriptor) {
        let (breakers, clock) = breakers();
        let pay = tool("pay");
        trip(&breakers, &pay);
        (breakers, clock, pay)
    }

    fn wait_of(breakers: &Breakers, tool: &ToolDescriptor) -> Option<u64> {
        let failure = breakers.check(tool).err()?;
        assert_eq!(failure.cause, Cause::BreakerOpen);
        failure.retry_after.map(|wait| wait.as_secs())
    }

    #[test]
    fn failures_in_a_row_trip_the_breaker_and_a_success_resets_the_count() {
        let (breakers, _) = breakers();
        let (pay, echo) = (tool("pay"), tool("echo"));
        for _ in 0..5 {
            assert_eq!(end(&breakers, &pay, BackendState::Fails), None);
            assert_eq!(end(&breakers, &pay, BackendState::Fails), None);
            assert_eq!(end(&breakers, &pay, BackendState::Unknown), None);
            assert_eq!(end(&breakers, &pay, BackendState::Works), None);
        }
        assert_eq!(breakers.shared.count.load(Ordering::Relaxed), 0, "nothing is kept of what works");
        trip(&breakers, &pay);
        assert_eq!((wait_of(&breakers, &pay), wait_of(&breakers, &echo)), (Some(5), None));
        assert!(breakers.enter(&pay).is_err() && breakers.enter(&echo).is_ok());
    }

    #[test]
    fn one_trial_runs_at_a_time_and_its_success_closes_the_breaker() {
        let (breakers, clock, pay) = tripped();
        clock.advance(RULES.pause);
        assert!(breakers.check(&pay).is_ok() && breakers.check(&pay).is_ok(), "a look begins nothing");
        let trial = breakers.enter(&pay).ok().unwrap();
        assert_eq!(wait_of(&breakers, &pay), Some(1), "while the trial is under way");
        assert!(breakers.open()[0].on_trial);
        let closed = trial.ended(&pay, BackendState::Works);
        assert_eq!(closed, Some(BreakerChange::Closed { name: "pay".into(), open_for: RULES.pause }));
        assert!(breakers.open().is_empty() && breakers.check(&pay).is_ok());
        trip(&breakers, &pay);
    }

    #[test]
    fn each_failed_trial_doubles_the_pause_up_to_its_limit() {
        let (breakers, clock, pay) = tripped();
        for expected in [10, 12, 12] {
            clock.advance(RULES.max_pause);
            assert_eq!(end(&breakers, &pay, BackendState::Fails), None);
            assert_eq!(wait_of(&breakers, &pay), Some(expected));
        }
        assert_eq!(breakers.open()[0].open_for, RULES.max_pause * 3);
    }

    #[test]
    fn a_trial_without_an_outcome_is_followed_by_another() {
        let (breakers, clock, pay) = tripped();
        clock.advance(RULES.pause);
        drop(breakers.enter(&pay));
        assert_eq!(end(&breakers, &pay, BackendState::Unknown), None);
        assert!(matches!(end(&breakers, &pay, BackendState::Works), Some(BreakerChange::Closed { .. })));
    }

    #[test]
    fn calls_that_began_before_the_trip_change_nothing_after_it() {
        let (breakers, clock) = breakers();
        let pay = tool("pay");
        let [works, fails] = [breakers.enter(&pay), breakers.enter(&pay)].map(|passage| passage.ok().unwrap());
        trip(&breakers, &pay);
        assert_eq!(works.ended(&pay, BackendState::Works), None);
        assert_eq!(fails.ended(&pay, BackendState::Fails), None);
        assert_eq!(wait_of(&breakers, &pay), Some(5));
        clock.advance(RULES.pause);
        assert!(breakers.enter(&pay).is_ok());
    }

    #[test]
    fn failing_tools_are_bounded_and_the_least_recent_failure_is_forgotten() {
        let (breakers, clock) = breakers();
        let (known, open) = (tool("0"), tool("open"));
        trip(&breakers, &open);
        for number in 0..MAX_FAILING - 1 {
            assert_eq!(end(&breakers, &tool(&number.to_string()), BackendState::Fails), None);
            clock.advance(Duration::from_millis(1));
        }
        assert_eq!(end(&breakers, &known, BackendState::Fails), None);
        clock.advance(Duration::from_millis(1));
        // The others are servers that came and went.
        trip(&breakers, &tool("late"));
        let state = breakers.shared.state.lock();
        assert_eq!((state.failing.len(), breakers.shared.count.load(Ordering::Relaxed)), (MAX_FAILING, MAX_FAILING));
        assert!(!state.failing.contains_key("1") && state.failing.contains_key("open"));
        drop(state);
        assert!(matches!(end(&breakers, &known, BackendState::Fails), Some(BreakerChange::Tripped { .. })));
    }

    #[test]
    fn a_server_has_one_breaker_for_all_its_tools_and_a_delegating_tool_none() {
        let (breakers, _) = breakers();
        let of_server = |name: &str| ToolDescriptor {
            server: Some("files".into()),
            ..ToolDescriptor::new(name, "mcp:files", "mcp")
        };
        trip(&breakers, &of_server("read"));
        let refused = breakers.check(&of_server("write")).unwrap_err();
        assert!(refused.message.starts_with("MCP server 'files' has failed"), "{}", refused.message);
        let wrapper = ToolDescriptor { delegates: true, ..of_server("mcp_invoke_tool") };
        assert!(breakers.check(&wrapper).is_ok());
        let member = Membership { set: "repl".into(), name: "run".into(), needs_session: true };
        let of_session = ToolDescriptor { toolset: Some(member), ..of_server("run") };
        assert!(breakers.check(&of_session).is_ok(), "its process is its caller's alone");
        assert_eq!(breakers.open().iter().map(|open| &*open.name).collect::<Vec<_>>(), ["mcp:files"]);
    }

    #[test]
    fn a_breaker_is_reset_by_name_and_trips_only_with_a_limit() {
        let (breakers, clock, pay) = tripped();
        clock.advance(Duration::from_secs(2));
        assert_eq!((breakers.reset("other"), breakers.reset("pay")), (None, Some(Duration::from_secs(2))));
        assert!(breakers.check(&pay).is_ok());
        trip(&breakers, &pay);
        assert_eq!(breakers.trips(), 2);
        breakers.configure(BreakerRules { failures: 0, ..RULES });
        for _ in 0..10 {
            assert_eq!(end(&breakers, &pay, BackendState::Fails), None);
        }
        assert!(breakers.check(&pay).is_ok());
    }

    #[test]
    fn a_callers_own_doing_and_an_unconnected_server_are_no_failures_of_the_tool() {
        let (pay, server) = (tool("pay"), ToolDescriptor { server: Some("s".into()), ..tool("read") });
        let fails = |cause, tool: &ToolDescriptor, had_its_time| {
            backend_state(cause, tool, had_its_time) == BackendState::Fails
        };
        assert!(fails(Cause::DeadlineExceeded, &pay, true) && !fails(Cause::DeadlineExceeded, &pay, false));
        assert!(fails(Cause::ConnectFailed, &pay, true) && !fails(Cause::ConnectFailed, &server, true));
        let others = [Cause::ConnectFailed, Cause::ConnectionLost, Cause::Unavailable, Cause::DeadlineExceeded];
        for cause in Cause::ALL.into_iter().filter(|cause| !others.contains(cause)) {
            assert_eq!(backend_state(cause, &pay, true), BackendState::Unknown, "{cause:?}");
        }
    }
}
