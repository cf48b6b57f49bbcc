//! Cost of 10 000 scheduled tasks of 100 agents while nothing is due, and delay with which 1 000 of one second are
//! published.
//!
//! `cargo bench -p toolbus-agents --bench schedules`. The broker is the embedded one; the store is in memory, then a file.
//! CPU time is that of the whole process.

#![expect(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "a bench prints, and ends by panicking")]

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, ready};
use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use toolbus_agents::schedule::tools::ScheduleTools;
use toolbus_agents::schedule::{NAMES, ScheduleConfig, Scheduler, TaskStore};
use toolbus_broker::embedded::Embedded;
use toolbus_core::bus::{Bus as _, Delivery, Ownership, Subscription};
use toolbus_core::caller::{AgentName, Caller, Identity};
use toolbus_core::failure::{Cause, ToolFailure};
use toolbus_core::policy::{AgentPolicy, Capacity, Policy, PolicyHandle};
use toolbus_core::registry::Registry;
use toolbus_core::store::Store;
use toolbus_core::tool::{Tool, ToolCall, ToolOutput};
use toolbus_core::{Clock, Gates, InnerCall, Invoker};
use toolbus_protocol::Random;
use toolbus_store::{MemoryStore, Sqlite};

const AGENTS: usize = 100;
const TASKS: usize = 100;
/// Tasks of each agent that are due in the same second.
const DUE: usize = 10;
const ROUNDS: usize = 5;
/// Time in which nothing is due; everything is read again within.
const IDLE: Duration = Duration::from_secs(65);
/// Time for making the tasks that are due in a second.
const AHEAD: Duration = Duration::from_secs(25);
const CLOCK: Clock = Clock::SYSTEM;

/// Calls nothing: no task of this measurement calls a tool.
struct Uncallable;

impl Invoker for Uncallable {
    fn invoke(&self, _: InnerCall) -> BoxFuture<'_, Result<ToolOutput, ToolFailure>> {
        ready(Err(ToolFailure::new(Cause::Unavailable, ""))).boxed()
    }
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let folder = tempfile::tempdir().unwrap();
    measure("memory", Arc::new(MemoryStore::default())).await;
    measure("file", Arc::new(Sqlite::open(&folder.path().join("toolbus.db")).unwrap())).await;
}

async fn measure(name: &str, store: Arc<dyn Store>) {
    let tasks = TaskStore::new(store, Random::SYSTEM);
    let registry = Registry::new();
    let agents = (0..AGENTS).map(|number| (agent(number), AgentPolicy::default())).collect();
    let capacity = Capacity { max_in_flight: 64, max_waiting: 64 };
    let policy = Policy { agents, ..Policy::default() };
    let policy = PolicyHandle::new(registry.clone(), Identity::default(), policy, capacity);
    let gates = Arc::new(Gates::new(policy.clone()));
    let config = ScheduleConfig { timezone: Some("UTC".to_owned()), ..ScheduleConfig::default() };
    let tools = || ScheduleTools::new(&config, tasks.clone(), Arc::clone(&gates), CLOCK, Random::SYSTEM).tools();
    registry.register_all(tools()).unwrap();
    policy.refresh();
    let tool = tools().into_iter().find(|tool| *tool.descriptor.name == *NAMES[0]).unwrap();

    for agent in 0..AGENTS {
        for number in 0..TASKS {
            schedule(&tool, agent, number, "0 0 * * *").await;
        }
    }
    let bus = Embedded::new();
    let mut queue = consume(&bus);
    let stop = CancellationToken::new();
    let calls = (Arc::new(Uncallable) as Arc<dyn Invoker>, policy);
    let scheduler = Scheduler::new(
        tasks.clone(),
        config.clone(),
        Arc::new(bus.clone()),
        "toolbus".to_owned(),
        false,
        calls,
        (CLOCK, Random::SYSTEM),
    );
    let mut running = JoinSet::new();
    running.spawn(scheduler.run(stop.clone()));
    tokio::time::sleep(Duration::from_secs(5)).await;

    let before = cpu_time();
    tokio::time::sleep(IDLE).await;
    let share = (cpu_time() - before).as_secs_f64() / IDLE.as_secs_f64() * 100.0;
    println!("{name}: {} tasks, nothing due: {share:.3} % of a core", AGENTS * TASKS);

    let (mut late, mut used) = (Vec::new(), Duration::ZERO);
    for _ in 0..ROUNDS {
        let due = Duration::from_secs((CLOCK.since_epoch() + AHEAD).as_secs());
        let time = Timestamp::from_second(i64::try_from(due.as_secs()).unwrap()).unwrap().to_zoned(TimeZone::UTC);
        let cron = cron(&time);
        for agent in 0..AGENTS {
            for number in 0..DUE {
                schedule(&tool, agent, number, &cron).await;
            }
        }
        assert!(CLOCK.since_epoch() < due, "the tasks took longer to make than {AHEAD:?}");
        tokio::time::sleep(due.saturating_sub(CLOCK.since_epoch() + Duration::from_millis(200))).await;
        let before = cpu_time();
        for _ in 0..AGENTS * DUE {
            let delivery = queue.recv().await.unwrap();
            late.push(CLOCK.since_epoch().saturating_sub(due));
            delivery.settle.acknowledge().await;
        }
        used += cpu_time() - before;
    }
    late.sort_unstable();
    let at =
        |percent: usize| late.get((late.len() * percent / 100).min(late.len() - 1)).unwrap().as_secs_f64() * 1000.0;
    let used = used.as_secs_f64() * 1000.0 / ROUNDS as f64;
    println!(
        "{name}: {} due in one second, {ROUNDS} rounds: p50 {:.0} ms, p99 {:.0} ms, last {:.0} ms late; {used:.0} ms of CPU",
        AGENTS * DUE,
        at(50),
        at(99),
        at(100),
    );
    stop.cancel();
    running.join_all().await;
}

/// Each year at this second.
fn cron(time: &Zoned) -> String {
    format!("{} {} {} {} {} *", time.second(), time.minute(), time.hour(), time.day(), time.month())
}

fn agent(number: usize) -> AgentName {
    AgentName::parse(&format!("agent-{number}")).unwrap()
}

async fn schedule(tool: &Tool, agent_number: usize, number: usize, cron: &str) {
    let arguments = json!({
        "name": format!("task {number}"), "cron": cron, "description": "Look for new mail, and tell Ana of it. ".repeat(5),
    });
    let Value::Object(arguments) = arguments else { panic!("no object") };
    let call = ToolCall::new(Arc::clone(&tool.descriptor.name), Caller::agent(agent(agent_number)), arguments, AHEAD);
    let output = Arc::clone(&tool.executor).execute_boxed(call).await.unwrap();
    assert!(!output.is_error, "{output:?}");
}

fn consume(bus: &Embedded) -> mpsc::Receiver<Delivery> {
    bus.connect().consume(Subscription {
        queue: "tasks".to_owned(),
        topics: vec!["scheduled.task.#".to_owned()],
        prefetch: 10_000,
        max_body: 100_000,
        ownership: Ownership::Shared,
        is_inbox: false,
    })
}

/// CPU time of the process, threads that have ended included, in steps of 10 ms.
fn cpu_time() -> Duration {
    let text = fs::read_to_string("/proc/self/stat").unwrap();
    // After the name, which may have spaces: the twelfth and thirteenth fields are hundredths of a second.
    let fields = text.rsplit(')').next().unwrap().split_whitespace();
    let ticks = fields.skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap()).sum::<u64>();
    Duration::from_millis(ticks * 10)
}
