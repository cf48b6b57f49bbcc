//! Permits: limits of the calls that run and wait at a time, and the order in which they run.
//!
//! A permit holds a slot under each of three limits: the tool's, the agent's, and the daemon's. Beside them each caller
//! may take only a multiple of the slots that are free, so that some stay free for others however many callers take all
//! they can get: the threshold that switches use for the queues of a shared memory.
//!
//! Where calls wait, the next is of the caller with the fewest running calls, and among such callers of the one with
//! the oldest turn in the queue. Of that caller's calls it is the one whose wait ends first, whichever came first. A
//! call that cannot get a permit before its wait ends is refused before it waits.

use parking_lot::{Mutex, MutexGuard};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use crate::Clock;
use crate::failure::{Cause, ToolFailure};
use crate::gates::pace::Pace;
use crate::load::{Load, LoadGuard};
use crate::tool::ToolDescriptor;

/// Bodies of waiting calls may hold this much memory together, in bytes.
const MAX_WAITING_BYTES: usize = 64 * 1024 * 1024;

/// When a refused caller may try again.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// An agent may run this many calls for each slot that is free, and so may a caller without a section of the slots that
/// such callers share: three quarters of all while it is alone, and with N of them one slot in 3 N + 1 stays free.
const PER_FREE: usize = 3;
/// The same for calls of an agent that wait: half of all slots while it is alone.
const WAITING_PER_FREE: usize = 1;

/// The right to run: held while a call runs, given back when dropped.
pub(crate) struct Permit {
    state: Arc<Mutex<State>>,
    request: PermitRequest,
    began: Instant,
    _running: LoadGuard,
}

/// Limits of the calls that run and wait at a time, of one agent or of all callers without a section.
pub(crate) struct AgentGate {
    max_in_flight: usize,
    max_queued: usize,
    /// Whether several callers share it.
    is_shared: bool,
    /// Changed under the lock of [`Permits`] only.
    used: Used,
    /// Time that calls hold their slots.
    pace: Mutex<Pace>,
}

/// Failure of a call when too many of its caller's calls wait.
const FULL: &str = "Too many calls of this agent are waiting.";
/// Refusal when no slot came free.
const LATE: &str = "No place to run this call came free in time.";
/// When none will come free.
const HOPELESS: &str = "The calls of this agent that wait already take longer than this call may wait. It was not run.";

/// Calls and bytes that use up a limit.
#[derive(Default)]
struct Used {
    running: AtomicUsize,
    waiting: AtomicUsize,
    /// Bytes of the bodies of waiting calls.
    bytes: AtomicUsize,
}

/// A tool's name and its limit, so that a tool registered again with another limit gets that limit.
type ToolLimit = (Arc<str>, usize);

/// Request for a permit.
#[derive(Clone)]
struct PermitRequest {
    /// Name of the tool, if a tool is to run.
    name: Option<Arc<str>>,
    tool: Option<ToolLimit>,
    agent: Arc<AgentGate>,
    caller: Arc<str>,
}

/// A call that waits.
struct Waiter {
    number: u64,
    /// Turn of the call among callers with equally many running calls: the lowest is next. A call that leaves before an
    /// older one of its caller leaves the older turn unused, and takes its own along.
    turn: u64,
    request: PermitRequest,
    bytes: usize,
    /// When its wait ends.
    until: Instant,
    given: oneshot::Sender<Instant>,
}

/// Grants permits.
pub(crate) struct Permits {
    state: Arc<Mutex<State>>,
    load: Arc<Load>,
}

struct State {
    max_in_flight: usize,
    max_waiting: usize,
    clock: Clock,
    daemon: Used,
    /// Calls that run of each tool that has a limit.
    tools: HashMap<ToolLimit, usize>,
    /// Of callers that share a gate; each is here while it has calls.
    callers: HashMap<Arc<str>, Used>,
    /// In the order in which they came. None of them could run now.
    queue: VecDeque<Waiter>,
    next_number: u64,
}

impl Permits {
    pub(crate) fn new(max_in_flight: usize, max_waiting: usize, load: Arc<Load>, clock: Clock) -> Self {
        let state = State {
            max_in_flight,
            max_waiting,
            clock,
            daemon: Used::default(),
            tools: HashMap::new(),
            callers: HashMap::new(),
            queue: VecDeque::new(),
            next_number: 0,
        };
        Self { state: Arc::new(Mutex::new(state)), load }
    }

    /// Waits for a permit, at most until `until`. `caller` is distinguished from others that share the same gate;
    /// `bytes` is what the call holds while it waits.
    ///
    /// # Errors
    ///
    /// [`Cause::Overloaded`] when too many wait already, none will come free in time, or none did.
    pub(crate) async fn acquire(
        &self,
        tool: Option<&ToolDescriptor>,
        agent: &Arc<AgentGate>,
        caller: Arc<str>,
        bytes: usize,
        until: Instant,
    ) -> Result<Permit, ToolFailure> {
        let name = tool.map(|tool| Arc::clone(&tool.name));
        let tool = tool.and_then(|tool| Some((Arc::clone(&tool.name), tool.max_in_flight?)));
        let request = PermitRequest { name, tool, agent: Arc::clone(agent), caller };
        let (given, slot) = oneshot::channel();
        let (number, now) = {
            let mut state = lock(&self.state);
            if state.fits(&request) {
                let began = state.begin(&request);
                return Ok(self.permit(request, began));
            }
            (state.wait(request.clone(), bytes, until, given)?, state.clock.now())
        };
        let mut waiting = Waiting { permits: self, request: Some(request), number, slot };
        let _counted = self.load.enter_waiting(now);
        match tokio::time::timeout_at(until.into(), &mut waiting.slot).await {
            Ok(Ok(began)) => waiting.request.take().map(|request| self.permit(request, began)),
            _ => None,
        }
        .ok_or_else(|| overloaded(LATE))
    }

    /// Takes a slot among the waiting calls, for a call that waits for something else than a permit.
    ///
    /// # Errors
    ///
    /// [`Cause::Overloaded`] when too many wait already.
    pub(crate) fn wait(
        &self,
        agent: &Arc<AgentGate>,
        caller: Arc<str>,
        bytes: usize,
    ) -> Result<WaitingElsewhere, ToolFailure> {
        let request = PermitRequest { name: None, tool: None, agent: Arc::clone(agent), caller };
        let now = {
            let mut state = lock(&self.state);
            state.admit(&request, bytes)?;
            state.clock.now()
        };
        let state = Arc::clone(&self.state);
        Ok(WaitingElsewhere { state, request, bytes, _counted: self.load.enter_waiting(now) })
    }

    fn permit(&self, request: PermitRequest, began: Instant) -> Permit {
        let running = self.load.enter_running(request.name.clone());
        Permit { state: Arc::clone(&self.state), request, began, _running: running }
    }
}

/// The slot of a call that waits for something else than a permit, given back when dropped.
pub(crate) struct WaitingElsewhere {
    state: Arc<Mutex<State>>,
    request: PermitRequest,
    bytes: usize,
    _counted: LoadGuard,
}

impl Drop for WaitingElsewhere {
    fn drop(&mut self) {
        lock(&self.state).left(&self.request, self.bytes);
    }
}

/// A call that waits, or was given a slot that it has not taken yet.
struct Waiting<'a> {
    permits: &'a Permits,
    /// Absent once the slot was taken.
    request: Option<PermitRequest>,
    number: u64,
    /// Closed without a slot when the call made room for another.
    slot: oneshot::Receiver<Instant>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let Some(request) = &self.request else { return };
        let mut state = lock(&self.permits.state);
        if !state.leave(self.number)
            && let Ok(began) = self.slot.try_recv()
        {
            state.end(request, began);
        }
    }
}

impl Permit {
    /// Gives the tool's slot back, and keeps those of the agent and of the daemon.
    pub(crate) fn release_tool(&mut self) {
        if let Some(tool) = self.request.tool.take() {
            lock(&self.state).end_at_tool(Some(&tool));
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut state = lock(&self.state);
        let now = state.clock.now();
        self.request.agent.pace.lock().note(now.saturating_duration_since(self.began), now);
        state.end(&self.request, self.began);
    }
}

impl State {
    /// Whether a call could begin now.
    fn fits(&self, request: &PermitRequest) -> bool {
        let PermitRequest { tool, agent, caller, .. } = request;
        let of_agent = agent.used.running();
        let free = self.max_in_flight.saturating_sub(self.daemon.running());
        let free_to_agent = agent.max_in_flight.saturating_sub(of_agent);
        let share = share(PER_FREE, agent.max_in_flight, self.max_in_flight);
        free > 0
            && free_to_agent > 0
            && of_agent < free.saturating_mul(share)
            && (!agent.is_shared || self.running_of(caller) < free_to_agent.saturating_mul(PER_FREE))
            && tool.as_ref().is_none_or(|tool| self.tools.get(tool).is_none_or(|running| *running < tool.1))
    }

    fn running_of(&self, caller: &str) -> usize {
        self.callers.get(caller).map_or(0, Used::running)
    }

    /// Begins the run of a call, and gives the present time.
    fn begin(&mut self, request: &PermitRequest) -> Instant {
        let now = self.clock.now();
        request.agent.pace.lock().begin(now);
        self.count(request, |used| add(&used.running, 1));
        if let Some(tool) = &request.tool {
            *self.tools.entry(tool.clone()).or_default() += 1;
        }
        now
    }

    /// Ends the run of a call, and gives its slot to the next ones.
    fn end(&mut self, request: &PermitRequest, began: Instant) {
        request.agent.pace.lock().end(began);
        self.count(request, |used| subtract(&used.running, 1));
        self.end_at_tool(request.tool.as_ref());
    }

    /// Ends the run of a call as far as its tool is concerned, and begins the calls that can run now.
    fn end_at_tool(&mut self, tool: Option<&ToolLimit>) {
        if let Some(tool) = tool
            && let Some(running) = self.tools.get_mut(tool)
        {
            *running = running.saturating_sub(1);
            if *running == 0 {
                self.tools.remove(tool);
            }
        }
        while let Some(next) = self.next() {
            self.left(&next.request, next.bytes);
            let began = self.begin(&next.request);
            // A call that stopped waiting meanwhile ends this when its `Waiting` is dropped.
            let _ = next.given.send(began);
        }
    }

    /// Takes the next call that can run out of the queue: of the caller whose turn it is, the one whose wait ends
    /// first.
    fn next(&mut self) -> Option<Waiter> {
        let turn = |waiter: &Waiter| {
            let PermitRequest { agent, caller, .. } = &waiter.request;
            (agent.used.running(), if agent.is_shared { self.running_of(caller) } else { 0 }, waiter.turn)
        };
        let can_run = || self.queue.iter().enumerate().filter(|(_, waiter)| self.fits(&waiter.request));
        let (position, first) = can_run().min_by_key(|(_, waiter)| turn(waiter))?;
        let of_caller = can_run().filter(|(_, waiter)| waiter.request.is_of_caller(&first.request));
        let (urgent, _) = of_caller.min_by_key(|(_, waiter)| (waiter.until, waiter.turn))?;
        let used = first.turn;
        let mut next = self.queue.remove(urgent)?;
        // The older call gets the turn that the urgent one did not need, so that the caller uses up one turn, the
        // oldest.
        let left_behind = if position < urgent { position } else { position.saturating_sub(1) };
        if position != urgent
            && let Some(waiter) = self.queue.get_mut(left_behind)
        {
            waiter.turn = std::mem::replace(&mut next.turn, used);
        }
        Some(next)
    }

    /// Whether a call would get no slot before its wait ends if its agent had all its slots, and every call of the
    /// agent took as long as the shortest lately. Those that wait for a tool with a limit of its own need not go first,
    /// and of one for such a tool this is not known.
    fn is_hopeless(&self, request: &PermitRequest, until: Instant) -> bool {
        if request.tool.is_some() {
            return false;
        }
        let (now, pace) = (self.clock.now(), &mut *request.agent.pace.lock());
        let Some(shortest) = pace.shortest(now) else { return false };
        let slots = request.agent.max_in_flight.min(self.max_in_flight).max(1);
        let turns = u32::try_from(self.waiting_of(request) / slots + 1).unwrap_or(u32::MAX);
        if shortest.saturating_mul(turns) <= until.saturating_duration_since(now) {
            return false;
        }
        let goes_first = |waiter: &&Waiter| {
            waiter.until <= until && waiter.request.tool.is_none() && waiter.request.is_of_caller(request)
        };
        let mut ends: Vec<Instant> = self.queue.iter().filter(goes_first).map(|waiter| waiter.until).collect();
        ends.sort_unstable();
        let mut free: BinaryHeap<_> = pace.frees(slots, shortest, now).map(Reverse).collect();
        for end in ends {
            if let Some(mut slot) = free.peek_mut()
                && slot.0 <= end
            {
                slot.0 += shortest;
            }
        }
        free.peek().is_some_and(|slot| slot.0 > until)
    }

    /// Takes a slot among the waiting calls: first among those of the agent, which learns nothing of how busy others
    /// are.
    fn admit(&mut self, request: &PermitRequest, bytes: usize) -> Result<(), ToolFailure> {
        let agent = Arc::clone(&request.agent);
        let of_agent = &agent.used;
        let free_to_agent = agent.max_queued.saturating_sub(of_agent.waiting());
        let has_share = !agent.is_shared || self.waiting_of(request) <= free_to_agent.saturating_mul(PER_FREE);
        let has_slot = (free_to_agent > 0 && has_share) || self.free_slot(request, Some(&agent));
        let room_of_agent = (MAX_WAITING_BYTES / 2).saturating_sub(of_agent.bytes());
        let left = room_of_agent.checked_sub(bytes);
        let has_room =
            left.is_some_and(|left| !agent.is_shared || self.bytes_of(request) <= left.saturating_mul(PER_FREE));
        let lacking = bytes.saturating_sub(room_of_agent);
        if !has_slot || !(has_room || self.make_room(request, Some(&agent), lacking)) {
            return Err(overloaded(FULL));
        }
        let free = self.max_waiting.saturating_sub(self.daemon.waiting());
        let share = share(WAITING_PER_FREE, agent.max_queued, self.max_waiting);
        let has_share = of_agent.waiting() <= free.saturating_mul(share);
        let has_slot = (free > 0 && has_share) || self.free_slot(request, None);
        let room = MAX_WAITING_BYTES.saturating_sub(self.daemon.bytes());
        let has_share = of_agent.bytes() <= room;
        let lacking = if has_share { bytes.saturating_sub(room) } else { bytes };
        if !has_slot || !(lacking == 0 || self.make_room(request, None, lacking)) {
            return Err(overloaded("Too many calls are waiting."));
        }
        self.count(request, |used| {
            add(&used.waiting, 1);
            add(&used.bytes, bytes);
        });
        Ok(())
    }

    /// Lets a call wait for its turn.
    fn wait(
        &mut self,
        request: PermitRequest,
        bytes: usize,
        until: Instant,
        given: oneshot::Sender<Instant>,
    ) -> Result<u64, ToolFailure> {
        if self.is_hopeless(&request, until) {
            return Err(overloaded(HOPELESS));
        }
        self.admit(&request, bytes)?;
        let number = self.next_number;
        self.next_number += 1;
        self.queue.push_back(Waiter { number, turn: number, request, bytes, until, given });
        Ok(number)
    }

    /// For the only waiting call of its caller: removes the last one of the caller with the most waiting calls, of this
    /// agent or of any. False when no caller has two.
    fn free_slot(&mut self, request: &PermitRequest, of: Option<&Arc<AgentGate>>) -> bool {
        if self.waiting_of(request) > 0 {
            return false;
        }
        let others = self.queue.iter().enumerate().filter(|(_, waiter)| waiter.request.is_of(of));
        let most = others.map(|(position, waiter)| (self.waiting_of(&waiter.request), position)).max();
        let Some((2.., position)) = most else { return false };
        let last = self.queue.remove(position);
        last.inspect(|waiter| self.left(&waiter.request, waiter.bytes)).is_some()
    }

    /// For the only waiting call of its caller: removes the last ones of the caller whose calls beside its first hold
    /// the most, of this agent or of any, until `lacking` bytes are free. False, with nothing removed, when they hold
    /// less.
    fn make_room(&mut self, request: &PermitRequest, of: Option<&Arc<AgentGate>>, lacking: usize) -> bool {
        if self.waiting_of(request) > 0 {
            return false;
        }
        let mut callers = HashMap::<_, Vec<(u64, usize)>>::new();
        for waiter in self.queue.iter().filter(|waiter| waiter.request.is_of(of)) {
            let PermitRequest { agent, caller, .. } = &waiter.request;
            let caller = (Arc::as_ptr(agent), agent.is_shared.then_some(&**caller));
            callers.entry(caller).or_default().push((waiter.number, waiter.bytes));
        }
        let beside_first = |calls: &[(u64, usize)]| calls.iter().skip(1).map(|(_, bytes)| bytes).sum::<usize>();
        // Of equal ones, whose last call came last: the order of the map must not decide.
        let most = callers.into_values().max_by_key(|calls| (beside_first(calls), calls.last().copied()));
        let Some(calls) = most.filter(|calls| beside_first(calls) >= lacking) else { return false };
        let mut freed = 0;
        for (number, bytes) in calls.into_iter().rev() {
            if freed >= lacking {
                break;
            }
            freed += bytes;
            self.leave(number);
        }
        true
    }

    /// Number of this caller's calls that wait.
    fn waiting_of(&self, request: &PermitRequest) -> usize {
        self.used_by(request).map_or(0, Used::waiting)
    }

    /// Bytes of the bodies of this caller's waiting calls.
    fn bytes_of(&self, request: &PermitRequest) -> usize {
        self.used_by(request).map_or(0, Used::bytes)
    }

    fn used_by<'a>(&'a self, request: &'a PermitRequest) -> Option<&'a Used> {
        if request.agent.is_shared { self.callers.get(&request.caller) } else { Some(&request.agent.used) }
    }

    /// Removes a call from the queue; false when it is there no more, because it was given a slot.
    fn leave(&mut self, number: u64) -> bool {
        let position = self.queue.binary_search_by_key(&number, |waiter| waiter.number);
        let left = position.ok().and_then(|position| self.queue.remove(position));
        left.inspect(|waiter| self.left(&waiter.request, waiter.bytes)).is_some()
    }

    /// Counts a call that left the queue.
    fn left(&mut self, request: &PermitRequest, bytes: usize) {
        self.count(request, |used| {
            subtract(&used.waiting, 1);
            subtract(&used.bytes, bytes);
        });
    }

    /// Counts a call at the daemon, at its agent, and at its caller where several share the agent's slots.
    fn count(&mut self, request: &PermitRequest, change: impl Fn(&Used)) {
        change(&self.daemon);
        change(&request.agent.used);
        if request.agent.is_shared {
            let of_caller = self.callers.entry(Arc::clone(&request.caller)).or_default();
            change(of_caller);
            if of_caller.running() == 0 && of_caller.waiting() == 0 {
                self.callers.remove(&request.caller);
            }
        }
    }
}

impl PermitRequest {
    /// Whether the call is of this agent; without one, every call is.
    fn is_of(&self, agent: Option<&Arc<AgentGate>>) -> bool {
        agent.is_none_or(|agent| Arc::ptr_eq(agent, &self.agent))
    }

    /// Whether both are of one caller.
    fn is_of_caller(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.agent, &other.agent) && (!self.agent.is_shared || self.caller == other.caller)
    }
}

impl AgentGate {
    /// Of one agent, of which at most `max_in_flight` calls run and `max_queued` wait.
    #[must_use]
    pub(crate) fn new(max_in_flight: usize, max_queued: usize) -> Self {
        Self { max_in_flight, max_queued, is_shared: false, used: Used::default(), pace: Mutex::default() }
    }

    /// A gate that callers share: at most `max_in_flight` of their calls run and `max_queued` wait.
    #[must_use]
    pub(crate) fn shared(max_in_flight: usize, max_queued: usize) -> Self {
        Self { is_shared: true, ..Self::new(max_in_flight, max_queued) }
    }

    /// Returns how many of its calls run and wait now.
    pub(crate) fn used(&self) -> (usize, usize) {
        (self.used.running(), self.used.waiting())
    }
}

impl Used {
    fn running(&self) -> usize {
        self.running.load(Ordering::Relaxed)
    }

    fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }
}

fn add(count: &AtomicUsize, number: usize) {
    count.fetch_add(number, Ordering::Relaxed);
}

fn subtract(count: &AtomicUsize, number: usize) {
    count.fetch_sub(number, Ordering::Relaxed);
}

/// Number of slots that an agent may take for each that is free: so many that one with a limit above the usual share
/// reaches that limit while it is alone.
fn share(usual: usize, limit: usize, all: usize) -> usize {
    match all.checked_sub(limit) {
        Some(others) if others > 0 => usual.max(limit.div_ceil(others)),
        _ => usize::MAX,
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    // Nothing panics under the lock.
    state.lock()
}

fn overloaded(reason: &str) -> ToolFailure {
    ToolFailure::new(Cause::Overloaded, format!("{reason} Try again later.")).with_retry_after(RETRY_AFTER)
}

#[cfg(test)]
mod tests;
