mod calls;
mod many;
mod store_away;
mod tools;

use jiff::Timestamp;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use toolbus_broker::embedded::Embedded;
use toolbus_core::bus::Delivery;
use toolbus_core::caller::AgentName;
use toolbus_core::ledger::{Ledger, LedgerLimits};
use toolbus_core::store::Store;
use toolbus_protocol::{Envelope, ScheduledTaskMessage, derived_message_id, topic};
use toolbus_store::{MemoryLedger, MemoryStore};

use self::tools::Tools;
use super::*;
use crate::schedule::config::Missed;
use crate::schedule::task::ScheduledCall;
use crate::testing;

/// 2026-01-01T00:00:00Z, when the clock begins.
const START: u64 = 1_767_225_600;

/// Schedulers on one store and one bus, whose time passes as fast as they wait.
struct Fixture {
    tasks: TaskStore,
    bus: Embedded,
    clock: Clock,
    tools: Tools,
    /// Ledger of calls that processes share.
    ledger: Arc<dyn Ledger>,
    running: JoinSet<()>,
    stop: CancellationToken,
}

impl Fixture {
    fn new() -> Self {
        Self::on(Arc::new(MemoryStore::default()))
    }

    /// The same, with the queue of ana.
    fn with_queue() -> (Self, mpsc::Receiver<Delivery>) {
        let fixture = Self::new();
        let queue = fixture.queue("ana");
        (fixture, queue)
    }

    fn on(store: Arc<dyn Store>) -> Self {
        let clock = Clock::paused();
        let limits = LedgerLimits { max_entries: 10_000, max_bytes: 64 * 1024 * 1024 };
        Self {
            tasks: TaskStore::new(store, Random::seeded(1)),
            bus: Embedded::new(),
            clock,
            tools: Tools::new(),
            ledger: Arc::new(MemoryLedger::new(limits, clock)),
            running: JoinSet::new(),
            stop: CancellationToken::new(),
        }
    }

    /// Starts a scheduler, with a dispatcher of its own.
    fn start(&mut self, missed: Missed, is_shared: bool) -> tokio::task::AbortHandle {
        let scheduler = self.scheduler(missed, is_shared);
        self.running.spawn(scheduler.run(self.stop.clone()))
    }

    fn scheduler(&self, missed: Missed, is_shared: bool) -> Scheduler {
        let config = ScheduleConfig { missed, max_missed: 3, ..ScheduleConfig::default() };
        let (name, seed) = ("toolbus".to_owned(), self.running.len() as u64 + 2);
        // Another process has another view of the tasks.
        let tasks = TaskStore::new(Arc::clone(self.tasks.store()), Random::seeded(seed));
        let ledger = Some(Arc::clone(&self.ledger));
        let dispatcher = testing::dispatcher(&self.tools.policy, &self.bus, ledger, self.clock);
        let calls = (Arc::new(dispatcher) as Arc<dyn Invoker>, self.tools.policy.clone());
        let around = (self.clock, Random::seeded(seed));
        Scheduler::new(tasks, config, Arc::new(self.bus.clone()), name, is_shared, calls, around)
    }

    /// The queue of an agent.
    fn queue(&self, agent: &str) -> mpsc::Receiver<Delivery> {
        testing::queue(&self.bus, &format!("{agent}.tasks"), &[&topic::scheduled_task(agent)], 10_000)
    }

    /// A task of ana that is next due so many seconds after the start.
    async fn schedule(&self, name: &str, cron: &str, next: u64, run_once: bool) {
        self.add(Task { run_once, ..task("ana", name, cron, next) }).await;
    }

    /// The same, of a task that calls a tool.
    async fn schedule_call(&self, tool: &str, cron: &str, next: u64, run_once: bool) {
        let arguments = serde_json::Map::from_iter([("text".to_owned(), "hi".into())]);
        let call = ScheduledCall { name: tool.to_owned(), arguments, binding: None };
        self.add(Task { run_once, tool: Some(call), ..task("ana", tool, cron, next) }).await;
    }

    async fn add(&self, task: Task) {
        let added = self.tasks.update(task.agent.as_str(), |tasks| {
            tasks.push(task.clone());
            Ok::<_, Infallible>(())
        });
        added.await.unwrap().unwrap();
        self.tasks.announce(task.agent.as_str()).await.unwrap();
    }

    /// Changes the tasks of ana.
    async fn change(&self, change: impl Fn(&mut Vec<Task>)) {
        let changed = self.tasks.update("ana", |tasks| {
            change(tasks);
            Ok::<_, Infallible>(())
        });
        changed.await.unwrap().unwrap();
    }

    fn seconds(&self) -> u64 {
        self.clock.since_epoch().as_secs() - START
    }

    async fn wait(&self, seconds: u64) {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
    }
}

/// A task that is next due so many seconds after the start.
fn task(agent: &str, name: &str, cron: &str, next: u64) -> Task {
    Task {
        id: format!("id-of-{name}"),
        agent: AgentName::parse(agent).unwrap(),
        name: name.to_owned(),
        description: format!("Do {name}"),
        cron: cron.to_owned(),
        zone: "UTC".to_owned(),
        run_once: false,
        created: START,
        next: START + next,
        last: None,
        tool: None,
        begun: None,
    }
}

/// The name and the time of the next message, acknowledged; and when it came, in seconds after the start.
async fn next(fixture: &Fixture, queue: &mut mpsc::Receiver<Delivery>) -> (String, u64) {
    let delivery = queue.recv().await.unwrap();
    let body: ScheduledTaskMessage = serde_json::from_slice(&delivery.body).unwrap();
    delivery.settle.acknowledge().await;
    let due: Timestamp = body.due_at.unwrap().parse().unwrap();
    assert!(due.as_second() as u64 <= START + fixture.seconds());
    (body.task_name, due.as_second() as u64 - START)
}

/// Every message that is in the queue now.
async fn all(fixture: &Fixture, queue: &mut mpsc::Receiver<Delivery>) -> Vec<(String, u64)> {
    let mut found = Vec::new();
    while let Ok(message) = tokio::time::timeout(Duration::from_millis(1), next(fixture, queue)).await {
        found.push(message);
    }
    found
}

fn times(name: &str, times: impl IntoIterator<Item = u64>) -> Vec<(String, u64)> {
    times.into_iter().map(|time| (name.to_owned(), time)).collect()
}

#[tokio::test(start_paused = true)]
async fn a_task_is_published_at_each_of_its_times_for_its_agent_under_the_profile_for_it() {
    let (mut fixture, mut queue) = Fixture::with_queue();
    fixture.start(Missed::Once, false);
    fixture.schedule("mail", "*/5 * * * *", 300, false).await;
    let delivery = queue.recv().await.unwrap();
    assert_eq!(fixture.seconds(), 300);
    let envelope = Envelope::read(&delivery.properties);
    let body = std::str::from_utf8(&delivery.body).unwrap();
    insta::assert_snapshot!(body, @r#"{"taskName":"mail","description":"Do mail","dueAt":"2026-01-01T00:05:00Z"}"#);
    assert_eq!(envelope.message_type, "RockBot.Host.ScheduledTaskMessage");
    assert_eq!(envelope.message_id.unwrap(), derived_message_id("ana", "id-of-mail", &(START + 300).to_string()));
    assert_eq!(envelope.destination.as_deref(), Some("ana"));
    assert_eq!(envelope.headers, [("rb-tool-profile".to_owned(), "scheduled".to_owned())]);
    delivery.settle.acknowledge().await;
    assert_eq!(next(&fixture, &mut queue).await, ("mail".to_owned(), 600));
    assert_eq!(fixture.seconds(), 600);
    let task = fixture.tasks.read("ana").await.unwrap().remove(0);
    assert_eq!((task.last, task.next), (Some(START + 600), START + 900));
}

#[tokio::test(start_paused = true)]
async fn times_that_were_missed_while_no_daemon_ran_are_published_by_policy() {
    for (missed, expected) in [(Missed::Skip, vec![]), (Missed::Once, vec![600]), (Missed::All, vec![480, 540, 600])] {
        let (mut fixture, mut queue) = Fixture::with_queue();
        fixture.schedule("mail", "* 0 * * *", 60, false).await;
        fixture.schedule("note", "30 0 * * *", 1800, true).await;
        fixture.schedule("once", "2 0 * * *", 120, true).await;
        // Every minute until 00:10, as of which it is 00:12.
        fixture.change(|tasks| tasks[0].cron = "0-10 0 * * *".to_owned()).await;
        fixture.wait(720).await;
        fixture.start(missed, false);
        fixture.wait(1).await;
        let mut found = all(&fixture, &mut queue).await;
        found.sort();
        assert_eq!(found, [times("mail", expected), times("once", [120])].concat(), "{missed:?}");
        fixture.wait(1200).await;
        assert_eq!(all(&fixture, &mut queue).await, times("note", [1800]));
    }
}

#[tokio::test(start_paused = true)]
async fn a_task_stays_due_until_a_queue_takes_its_message_and_then_ends_if_for_once() {
    let mut fixture = Fixture::new();
    fixture.start(Missed::Once, false);
    fixture.schedule("once", "1 0 * * *", 60, true).await;
    fixture.wait(400).await;
    assert_eq!(fixture.tasks.read("ana").await.unwrap().len(), 1);
    let mut queue = fixture.queue("ana");
    assert_eq!(next(&fixture, &mut queue).await, ("once".to_owned(), 60));
    fixture.wait(1).await;
    assert_eq!(fixture.tasks.read("ana").await, Ok(Vec::new()));
    fixture.wait(1000).await;
    assert_eq!(all(&fixture, &mut queue).await, []);
}

#[tokio::test(start_paused = true)]
async fn a_task_that_was_cancelled_or_replaced_is_not_published() {
    let (mut fixture, mut queue) = Fixture::with_queue();
    fixture.start(Missed::Once, false);
    fixture.schedule("mail", "* * * * *", 60, false).await;
    assert_eq!(next(&fixture, &mut queue).await, ("mail".to_owned(), 60));
    fixture.change(Vec::clear).await;
    fixture.wait(300).await;
    assert_eq!(all(&fixture, &mut queue).await, []);
}

#[tokio::test(start_paused = true)]
async fn one_of_several_processes_publishes_and_another_takes_over_without_loss_or_repetition() {
    let (mut fixture, mut queue) = Fixture::with_queue();
    fixture.schedule("mail", "* * * * *", 60, false).await;
    let first = fixture.start(Missed::All, true);
    fixture.wait(1).await;
    fixture.start(Missed::All, true);
    fixture.start(Missed::All, true);
    fixture.wait(180).await;
    assert_eq!(all(&fixture, &mut queue).await, times("mail", [60, 120, 180]));
    // It ends as if killed, a second before the next time.
    fixture.wait(58).await;
    first.abort();
    fixture.wait(600).await;
    assert_eq!(all(&fixture, &mut queue).await, times("mail", (4..=13).map(|minute| minute * 60)));
    fixture.stop.cancel();
    while fixture.running.join_next().await.is_some() {}
    let mut next = Fixture { running: JoinSet::new(), stop: CancellationToken::new(), ..fixture };
    let stopped = next.seconds();
    next.start(Missed::All, true);
    next.wait(60).await;
    assert_eq!(
        all(&next, &mut queue).await,
        times("mail", [stopped / 60 * 60 + 60]),
        "a released lease is had at once"
    );
}

#[tokio::test(start_paused = true)]
async fn a_message_that_was_confirmed_before_a_crash_is_published_again_with_the_same_id() {
    let (mut fixture, mut queue) = Fixture::with_queue();
    fixture.schedule("mail", "* * * * *", 60, false).await;
    let before = fixture.tasks.read("ana").await.unwrap();
    let mut ids = Vec::new();
    for _ in 0..2 {
        let scheduler = fixture.start(Missed::Once, false);
        fixture.wait(if ids.is_empty() { 61 } else { 1 }).await;
        let delivery = queue.recv().await.unwrap();
        ids.push(Envelope::read(&delivery.properties).message_id.unwrap());
        delivery.settle.acknowledge().await;
        scheduler.abort();
        // The store does not know of it.
        fixture.change(|tasks| before.clone_into(tasks)).await;
    }
    assert_eq!(ids[0], ids[1]);
}

#[tokio::test(start_paused = true)]
async fn many_tasks_of_one_second_are_all_published_once() {
    let (mut fixture, mut queue) = Fixture::with_queue();
    fixture.start(Missed::Once, false);
    for number in 0..200 {
        fixture.schedule(&format!("task {number}"), "1 0 * * *", 60, true).await;
    }
    fixture.wait(61).await;
    let mut names: Vec<String> = all(&fixture, &mut queue).await.into_iter().map(|(name, _)| name).collect();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 200);
    fixture.wait(60).await;
    assert_eq!(all(&fixture, &mut queue).await, []);
    assert_eq!(fixture.tasks.read("ana").await, Ok(Vec::new()));
}
