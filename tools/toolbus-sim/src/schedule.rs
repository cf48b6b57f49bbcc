//! One schedule: what its seed lets happen, and when.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::{Builder, Handle};
use tokio::task::JoinSet;
use toolbus_core::Drained;
use toolbus_core::bus::Bus as _;
use toolbus_protocol::topic;
use toolbus_store::OpenError;

use crate::broker::SimBroker;
use crate::bus::SimBus;
use crate::callers::{CALLERS, PlannedRequest};
use crate::chance::Chance;
use crate::context::{Fault, Faults, ScheduleContext};
use crate::daemon::{PREFIX, SimDaemon, Surroundings};
use crate::ledger::LedgerStorage;
use crate::oracle::{Oracle, Violation};

/// Time within which a drained process lets its calls finish, by chance.
const PATIENCE: std::ops::RangeInclusive<u64> = 0..=10_000;
/// Time after the last fault in which every request gets its reply and is settled.
const LAST_WAIT: Duration = Duration::from_secs(3_600);

/// Outcome of a schedule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScheduleReport {
    /// Everything that happened, one line each.
    pub trace: String,
    /// Number of occurrences of each fault.
    pub faults: Faults,
    /// Requests.
    pub requests: usize,
    /// Runs of tools.
    pub executions: usize,
    /// Events that should not have happened.
    pub violations: Vec<Violation>,
}

/// Something that happens to the broker or to a process.
#[derive(Debug, Clone, Copy)]
enum Incident {
    Lose(usize),
    Connect(usize),
    Freeze,
    Thaw,
    Restart,
    Crash(usize),
    Drain(usize),
    Start(usize),
}

/// Runs the schedule of a seed, on this thread, with a ledger in this file or in memory. The same seed gives the same
/// report.
///
/// # Errors
///
/// If the operating system gives no runtime, or the file cannot be opened.
pub fn run(seed: u64, file: Option<PathBuf>) -> io::Result<ScheduleReport> {
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build()?;
    runtime.block_on(perform(seed, file)).map_err(io::Error::other)
}

async fn perform(seed: u64, file: Option<PathBuf>) -> Result<ScheduleReport, OpenError> {
    let context = Arc::new(ScheduleContext::new(seed));
    let chance = context.chance;
    let horizon = chance.millis(2_000..=60_000);
    let topics = CALLERS.map(|caller| (caller, format!("{}.{caller}", topic::TOOL_RESULT)));
    let inboxes: Vec<(&str, &str)> = topics.iter().map(|(caller, topic)| (*caller, topic.as_str())).collect();
    let broker = SimBroker::new(Arc::clone(&context), &inboxes);
    let around = Surroundings {
        context: Arc::clone(&context),
        broker: Arc::clone(&broker),
        executions: Arc::default(),
        storage: LedgerStorage::new(file, &context),
    };
    let daemons = usize::from(chance.percent(60)) + 1;
    let mut world = World::new(around.clone(), daemons)?;

    let requests = usize::try_from(chance.number(2..=16)).unwrap_or_default();
    let plans = PlannedRequest::draw_all(chance, requests, horizon);
    let incidents = draw_incidents(chance, horizon, daemons);
    let mut callers = JoinSet::new();
    for plan in &plans {
        if let Some((_, bus)) = world.callers.iter().find(|(name, _)| *name == plan.caller) {
            callers.spawn(plan.clone().perform(Arc::clone(bus), Arc::clone(&context)));
        }
    }
    for (at, incident) in incidents {
        tokio::time::sleep(at.saturating_sub(context.elapsed())).await;
        world.apply(incident)?;
    }
    context.heal();
    world.mend()?;
    while callers.join_next().await.is_some() {}
    let is_quiet = world.settle().await;
    let finished = world.end().await;

    let mut violations = Oracle {
        plans: &plans,
        executions: &around.executions,
        broker: &broker,
        has_ledger_failed: context.has_met(Fault::LedgerFailed),
    }
    .check();
    let (waiting, unsettled) = broker.left(PREFIX);
    if !is_quiet || (waiting, unsettled) != (0, 0) {
        violations.push(Violation::Unsettled { waiting, unsettled });
    }
    if !finished {
        violations.push(Violation::NotFinished);
    }
    let tasks = Handle::current().metrics().num_alive_tasks();
    let (trace, faults) = context.end();
    // What was under way in a process that crashed is freed with the runtime.
    if tasks > 0 && !faults.contains_key(&Fault::DaemonCrashed) {
        violations.push(Violation::TasksLeft(tasks));
    }
    let executions = (0..requests).map(|request| around.executions.of(request).len()).sum();
    Ok(ScheduleReport { trace, faults, requests, executions, violations })
}

/// Draws what happens, in the order of its time.
fn draw_incidents(chance: Chance, horizon: Duration, daemons: usize) -> Vec<(Duration, Incident)> {
    let mut all = Vec::new();
    let most = u64::try_from(horizon.as_millis()).unwrap_or_default();
    let mut several = |often: u64, draw: &dyn Fn() -> (Incident, Option<Incident>)| {
        if !chance.percent(40) {
            return;
        }
        for _ in 0..chance.number(1..=often) {
            let (first, then) = draw();
            let at = chance.millis(0..=most);
            let lasts = if chance.percent(20) { 5_000..=40_000 } else { 10..=3_000 };
            all.push((at, first));
            all.extend(then.map(|then| (at + chance.millis(lasts), then)));
        }
    };
    let of = |count: usize| usize::try_from(chance.number(1..=u64::try_from(count).unwrap_or(1))).unwrap_or(1) - 1;
    several(6, &|| {
        let client = of(daemons + CALLERS.len());
        (Incident::Lose(client), Some(Incident::Connect(client)))
    });
    several(2, &|| (Incident::Freeze, Some(Incident::Thaw)));
    several(2, &|| (Incident::Restart, None));
    several(4, &|| {
        let daemon = of(daemons);
        (Incident::Crash(daemon), Some(Incident::Start(daemon)))
    });
    several(3, &|| {
        let daemon = of(daemons);
        (Incident::Drain(daemon), Some(Incident::Start(daemon)))
    });
    all.sort_by_key(|(at, _)| *at);
    all
}

/// The processes and the callers.
struct World {
    around: Surroundings,
    daemons: Vec<DaemonSlot>,
    callers: Vec<(&'static str, Arc<SimBus>)>,
    draining: JoinSet<Drained>,
}

/// Where processes of one daemon run, one after another.
struct DaemonSlot {
    number: usize,
    starts: usize,
    process: Option<SimDaemon>,
}

impl World {
    fn new(around: Surroundings, daemons: usize) -> Result<Self, OpenError> {
        let bus = |caller| (caller, SimBus::new(caller, &around.context, &around.broker));
        let callers = CALLERS.map(bus).into();
        let daemons = (1..=daemons).map(|number| DaemonSlot { number, starts: 0, process: None }).collect();
        let mut world = Self { around, daemons, callers, draining: JoinSet::new() };
        world.daemons.iter_mut().try_for_each(|slot| slot.start(&world.around))?;
        Ok(world)
    }

    /// The connection of a client: of the daemons first.
    fn bus(&self, client: usize) -> Option<&Arc<SimBus>> {
        match client.checked_sub(self.daemons.len()) {
            None => self.daemons.get(client)?.process.as_ref().map(|process| &process.bus),
            Some(caller) => self.callers.get(caller).map(|(_, bus)| bus),
        }
    }

    fn apply(&mut self, incident: Incident) -> Result<(), OpenError> {
        let (context, broker) = (Arc::clone(&self.around.context), Arc::clone(&self.around.broker));
        let mut process = |number: usize| self.daemons.get_mut(number).and_then(|slot| slot.process.take());
        match incident {
            Incident::Lose(client) => {
                if let Some(bus) = self.bus(client) {
                    context.count(Fault::ConnectionLost, bus.name(), "what is not settled comes again");
                    bus.lose();
                }
            }
            Incident::Connect(client) => self.bus(client).into_iter().for_each(|bus| bus.connect()),
            Incident::Freeze => {
                context.count(Fault::BrokerFrozen, "broker", "it does nothing");
                broker.freeze(true);
            }
            Incident::Thaw => {
                context.note("broker", "goes on");
                broker.freeze(false);
            }
            Incident::Restart => {
                context.count(Fault::BrokerRestarted, "broker", "all connections are lost");
                let clients = self.daemons.len() + self.callers.len();
                let buses: Vec<_> = (0..clients).filter_map(|client| self.bus(client).cloned()).collect();
                buses.iter().for_each(|bus| bus.lose());
                broker.restart();
                buses.iter().for_each(|bus| bus.connect());
            }
            Incident::Crash(daemon) => {
                if let Some(process) = process(daemon) {
                    context.count(Fault::DaemonCrashed, process.bus.name(), "it is gone");
                    process.crash();
                }
            }
            Incident::Drain(daemon) => {
                if let Some(process) = process(daemon) {
                    context.count(Fault::DaemonDrained, process.bus.name(), "it takes no more");
                    let patience = context.chance.millis(PATIENCE);
                    self.draining.spawn(process.drain(patience));
                }
            }
            Incident::Start(daemon) => {
                let slot = self.daemons.get_mut(daemon);
                return slot.into_iter().try_for_each(|slot| slot.start(&self.around));
            }
        }
        Ok(())
    }

    /// Brings everything back.
    fn mend(&mut self) -> Result<(), OpenError> {
        self.around.broker.freeze(false);
        self.daemons.iter_mut().try_for_each(|slot| slot.start(&self.around))?;
        (0..self.daemons.len() + self.callers.len()).try_for_each(|client| self.apply(Incident::Connect(client)))
    }

    /// Waits until everything is settled; false if it is not, after a long time.
    async fn settle(&self) -> bool {
        let waits = async {
            while self.around.broker.left(PREFIX) != (0, 0) {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        };
        tokio::time::timeout(LAST_WAIT, waits).await.is_ok()
    }

    /// Ends every process in order; false if one has calls left over.
    async fn end(mut self) -> bool {
        while self.draining.join_next().await.is_some() {}
        let mut finished = true;
        for process in self.daemons.iter_mut().filter_map(|slot| slot.process.take()) {
            finished &= process.drain(Duration::from_secs(60)).await == Drained::Finished;
        }
        for (_, bus) in &self.callers {
            bus.close().await;
        }
        // What was aborted ends.
        tokio::time::sleep(Duration::from_secs(60)).await;
        finished
    }
}

impl DaemonSlot {
    /// Starts a process, unless one runs.
    fn start(&mut self, around: &Surroundings) -> Result<(), OpenError> {
        if self.process.is_none() {
            self.starts += 1;
            self.process = Some(SimDaemon::start(&format!("daemon-{}.{}", self.number, self.starts), around)?);
        }
        Ok(())
    }
}
