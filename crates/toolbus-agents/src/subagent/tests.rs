use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use toolbus_broker::embedded::Embedded;
use toolbus_core::bus::{Delivery, PublishError};
use toolbus_core::caller::{AgentName, Caller};
use toolbus_core::events::SubagentEvents;
use toolbus_core::failure::{Cause, ToolFailure};
use toolbus_core::store::Store;
use toolbus_core::tool::ToolOutput;
use toolbus_core::{Clock, ControlError};
use toolbus_protocol::{Random, SubagentProgressMessage, SubagentResultMessage, message_type};
use toolbus_testing::faulty_store::StoreFault;
use toolbus_testing::recording_bus::{RecordingBus, Route};

use super::task::Ignored;
use super::{SubagentState, Subagents, SubagentsConfig};
use crate::testing::{self, TestStore};

/// Tasks of ana for the pool of w1 and w2.
struct Fixture {
    subagents: Subagents,
    /// Another replica.
    other: Subagents,
    clock: Clock,
    bus: Embedded,
    doubtful: Arc<RecordingBus>,
    store: Arc<TestStore>,
    reported: Arc<CountedReports>,
}

/// Keeps what is counted.
#[derive(Default)]
struct CountedReports(Mutex<Vec<&'static str>>);

impl SubagentEvents for CountedReports {
    fn reported(&self, outcome: &'static str) {
        self.0.lock().push(outcome);
    }
}

impl Fixture {
    fn new() -> Self {
        Self::with(SubagentsConfig { max_tasks: 2, max_entries: 2, ..SubagentsConfig::default() })
    }

    fn with(config: SubagentsConfig) -> Self {
        let (bus, clock, store) = (Embedded::new(), Clock::manual(), Arc::new(TestStore::default()));
        let pools = [("thinkers".to_owned(), vec![name("w1"), name("w2")])].into();
        let config = SubagentsConfig { pools, ..config };
        let (doubtful, reported) = (Arc::new(RecordingBus::before(bus.clone())), Arc::<CountedReports>::default());
        let [subagents, other] = [1, 2].map(|seed| {
            let (store, parts) = (Arc::clone(&store) as Arc<dyn Store>, (clock, Random::seeded(seed)));
            let (bus, events) = (Arc::clone(&doubtful), Arc::clone(&reported) as _);
            Subagents::new(&config, &store, bus, events, "toolbus", parts)
        });
        Self { subagents, other, clock, bus, doubtful, store, reported }
    }

    /// The same, with the queue of the pool.
    fn with_offers() -> (Self, mpsc::Receiver<Delivery>) {
        let fixture = Self::new();
        let offers = fixture.queue("subagent.task.thinkers");
        (fixture, offers)
    }

    /// The same, with a task that ana has given.
    async fn with_task() -> (Self, mpsc::Receiver<Delivery>, String) {
        let (fixture, offers) = Self::with_offers();
        let id = fixture.spawn().await;
        (fixture, offers, id)
    }

    fn queue(&self, topic: &str) -> mpsc::Receiver<Delivery> {
        testing::queue(&self.bus, &format!("queue of {topic}"), &[topic], 100_000)
    }

    async fn call(&self, agent: &str, tool: &str, arguments: Value) -> Result<ToolOutput, ToolFailure> {
        Self::call_at(&self.subagents, agent, tool, arguments).await
    }

    /// Calls a tool of one of the replicas.
    async fn call_at(
        subagents: &Subagents,
        agent: &str,
        tool: &str,
        arguments: Value,
    ) -> Result<ToolOutput, ToolFailure> {
        let tools = [subagents.tools(), subagents.whiteboard_tools()].concat();
        let caller = Caller { session: Some("session/1".into()), ..testing::agent(agent) };
        testing::run(&tools, caller, tool, arguments, Clock::SYSTEM).await
    }

    async fn text(&self, agent: &str, tool: &str, arguments: Value) -> String {
        self.call(agent, tool, arguments).await.unwrap().content.unwrap()
    }

    /// Gives a task of ana; returns its id.
    async fn spawn(&self) -> String {
        let arguments = json!({"description": "Count the frogs", "context": "In the pond", "timeout_minutes": 5});
        let text = self.text("ana", "spawn_subagent", arguments).await;
        let id = text.strip_prefix("Subagent spawned with task_id: ").unwrap_or_else(|| panic!("{text}"));
        id.split('.').next().unwrap().to_owned()
    }

    async fn progress(&self, by: &str, task: &str) -> Result<(), Ignored> {
        let message = "counting".to_owned();
        let report = SubagentProgressMessage { task_id: task.to_owned(), message, ..Default::default() };
        self.subagents.progressed(Some(&name(by)), report).await.unwrap()
    }

    async fn result(&self, by: &str, task: &str, output: &str) -> Result<(), Ignored> {
        let (task_id, output) = (task.to_owned(), output.to_owned());
        let report = SubagentResultMessage { task_id, output, is_success: true, ..Default::default() };
        self.subagents.ended(Some(&name(by)), report).await.unwrap()
    }
}

fn name(text: &str) -> AgentName {
    AgentName::parse(text).unwrap()
}

/// The body of the next message, which is acknowledged.
async fn next(queue: &mut mpsc::Receiver<Delivery>) -> Value {
    let delivery = queue.recv().await.unwrap();
    let body = serde_json::from_slice(&delivery.body).unwrap();
    delivery.settle.acknowledge().await;
    body
}

#[tokio::test]
async fn without_pools_no_pool_can_be_named() {
    let store = Arc::new(TestStore::default()) as Arc<dyn Store>;
    let bus = Arc::new(RecordingBus::before(Embedded::new()));
    let (reported, parts) = (Arc::<CountedReports>::default(), (Clock::manual(), Random::seeded(1)));
    let subagents = Subagents::new(&SubagentsConfig::default(), &store, bus, reported, "toolbus", parts);
    let tools = subagents.tools();
    let spawn = tools.iter().find(|tool| &*tool.descriptor.name == "spawn_subagent").unwrap();
    let properties = spawn.descriptor.parameters.as_ref().unwrap()["properties"].as_object().unwrap();
    assert_eq!(properties.keys().collect::<Vec<_>>(), ["context", "description", "timeout_minutes"]);
}

#[tokio::test]
async fn a_task_is_offered_to_its_pool_and_its_reports_reach_the_agent_that_gave_it() {
    let fixture = Fixture::new();
    let (mut offers, mut results) = (fixture.queue("subagent.task.thinkers"), fixture.queue("subagent.result.ana"));
    let mut progress = fixture.queue("subagent.progress.ana");
    let id = fixture.spawn().await;
    let offer = offers.recv().await.unwrap();
    assert_eq!(offer.properties.reply_to.as_deref(), Some("subagent.report"));
    assert_eq!(offer.properties.header("rb-rb-tool-profile"), Some("subagent"));
    let body: Value = serde_json::from_slice(&offer.body).unwrap();
    assert_eq!(
        body,
        json!({
            "taskId": id, "subagentSessionId": format!("subagent/{id}"), "primarySessionId": "session/1", "agent": "ana",
            "description": "Count the frogs", "context": "In the pond", "deadline": "2026-01-01T00:05:00Z",
        })
    );
    let listed = fixture.text("ana", "list_subagents", json!({})).await;
    assert_eq!(
        listed,
        format!("Active subagents (1):\n- {id}, by no agent yet, for 0 s, 5 minutes left: Count the frogs")
    );

    assert_eq!(fixture.progress("w1", &id).await, Ok(()));
    assert_eq!(next(&mut progress).await["message"], "counting");
    assert_eq!(fixture.result("w1", &id, "42").await, Ok(()));
    let result = next(&mut results).await;
    assert_eq!((&result["taskId"], &result["output"], &result["isSuccess"]), (&json!(id), &json!("42"), &json!(true)));
    let listed = fixture.text("ana", "list_subagents", json!({})).await;
    assert_eq!(listed, format!("No active subagents.\n\nEnded: {id}: Count the frogs\n42"));
    assert_eq!(fixture.text("bo", "list_subagents", json!({})).await, "No active subagents.");
}

#[tokio::test]
async fn an_operator_sees_how_far_the_tasks_of_all_agents_are() {
    let (fixture, _offers) = Fixture::with_offers();
    let state = async || {
        let all = fixture.subagents.overview().await.unwrap();
        let shown = all.rows.into_iter().map(|task| (task.id, task.worker, task.state, task.output, task.is_told));
        shown.collect::<Vec<_>>()
    };
    let first = fixture.spawn().await;
    assert_eq!(state().await, [(first.clone(), None, SubagentState::Offered, 0, true)]);
    fixture.progress("w1", &first).await.unwrap();
    let worker = Some("w1".to_owned());
    assert_eq!(state().await, [(first.clone(), worker.clone(), SubagentState::Working, 0, true)]);
    fixture.result("w1", &first, "42").await.unwrap();
    let second = fixture.spawn().await;
    let done = (first, worker, SubagentState::Done, 2, false);
    assert_eq!(state().await, [(second.clone(), None, SubagentState::Offered, 0, true), done.clone()]);
    fixture.call("ana", "cancel_subagent", json!({"task_id": second})).await.unwrap();
    assert!(state().await.contains(&(second, None, SubagentState::Failed, 0, true)), "a cancelled one has no result");
}

#[tokio::test]
async fn reports_of_outsiders_and_late_or_repeated_reports_are_ignored() {
    let fixture = Fixture::new();
    let (_offers, mut results) = (fixture.queue("subagent.task.thinkers"), fixture.queue("subagent.result.ana"));
    let (one, two) = (fixture.spawn().await, fixture.spawn().await);
    assert_eq!(fixture.result("eve", &one, "lies").await, Err(Ignored::NotAsked));
    assert_eq!(fixture.result("ana", &one, "mine").await, Err(Ignored::NotAsked));
    assert_eq!(fixture.result("w1", "0123456789", "x").await, Err(Ignored::NoTask));
    assert_eq!(fixture.result("w1", &format!("{one}0"), "x").await, Err(Ignored::NoTask));
    assert_eq!(fixture.progress("w1", &one).await, Ok(()));
    assert_eq!(fixture.result("w2", &one, "not mine").await, Err(Ignored::AnotherWorks));
    assert_eq!(fixture.progress("w2", &one).await, Err(Ignored::AnotherWorks));
    assert_eq!(fixture.result("w1", &one, "first").await, Ok(()));
    assert_eq!(fixture.result("w1", &one, "second").await, Err(Ignored::Ended));
    assert_eq!(next(&mut results).await["output"], "first");
    fixture.clock.advance(Duration::from_secs(300));
    assert_eq!(fixture.result("w2", &two, "late").await, Err(Ignored::Ended));
    fixture.subagents.sweep().await.unwrap();
    let late = next(&mut results).await;
    assert_eq!(
        (&late["isSuccess"], &late["error"]),
        (&json!(false), &json!("The sub-agent did not finish within 5 minutes."))
    );
    fixture.subagents.sweep().await.unwrap();
    assert!(results.try_recv().is_err(), "each end is delivered once");
}

#[tokio::test]
async fn a_task_that_is_cancelled_is_called_off_and_has_no_result() {
    let fixture = Fixture::new();
    let (_offers, mut cancelled) = (fixture.queue("subagent.task.thinkers"), fixture.queue("subagent.cancel.thinkers"));
    let id = fixture.spawn().await;
    let cancel = |agent: &'static str| fixture.text(agent, "cancel_subagent", json!({"task_id": id}));
    assert_eq!(cancel("bo").await, format!("No active subagent found with task_id '{id}'."));
    assert_eq!(cancel("ana").await, format!("Subagent {id} cancelled."));
    assert_eq!(next(&mut cancelled).await, json!({"taskId": id, "reason": "It was cancelled."}));
    assert_eq!(cancel("ana").await, format!("No active subagent found with task_id '{id}'."));
    assert_eq!(fixture.result("w1", &id, "done").await, Err(Ignored::Ended));
}

#[tokio::test]
async fn a_task_without_a_queue_or_beyond_the_limit_is_an_error() {
    let fixture = Fixture::new();
    let arguments = json!({"description": "x"});
    let output = fixture.call("ana", "spawn_subagent", arguments.clone()).await.unwrap();
    let text = "Error: no agent of the pool `thinkers` can be reached: no queue takes it.";
    assert_eq!((output.is_error, output.content.as_deref()), (true, Some(text)));
    let _offers = fixture.queue("subagent.task.thinkers");
    fixture.spawn().await;
    fixture.spawn().await;
    let output = fixture.call("ana", "spawn_subagent", arguments.clone()).await.unwrap();
    let text = "Error: 2 tasks are under way, which is the most. Wait for one, or cancel it.";
    assert_eq!((output.is_error, output.content.as_deref()), (true, Some(text)));
    assert!(!fixture.call("bo", "spawn_subagent", arguments).await.unwrap().is_error);
    let unknown = json!({"description": "x", "pool": "none"});
    assert_eq!(fixture.call("bo", "spawn_subagent", unknown).await.unwrap_err().cause, Cause::InvalidArguments);
}

#[tokio::test]
async fn a_result_that_no_queue_takes_is_delivered_once_one_does() {
    let (fixture, _offers, id) = Fixture::with_task().await;
    assert_eq!(fixture.result("w1", &id, "42").await, Ok(()));
    fixture.subagents.sweep().await.unwrap();
    let mut results = fixture.queue("subagent.result.ana");
    fixture.subagents.sweep().await.unwrap();
    assert_eq!(next(&mut results).await["output"], "42");
}

#[tokio::test]
async fn agents_without_a_section_share_no_whiteboard_by_their_tasks() {
    let (fixture, _offers) = Fixture::with_offers();
    let tools = [fixture.subagents.tools(), fixture.subagents.whiteboard_tools()].concat();
    for (agent, worker) in [("ana", "w1"), ("eve", "w2")] {
        let caller = Caller { has_section: false, ..testing::agent(agent) };
        let task = json!({"description": "Count the frogs"});
        let text = testing::run(&tools, caller, "spawn_subagent", task, Clock::SYSTEM).await.unwrap().content.unwrap();
        let id = text.split("task_id: ").nth(1).unwrap().split('.').next().unwrap();
        for (tool, entry) in [("write", json!({"key": "plan", "value": "x"})), ("read", json!({"key": "plan"}))] {
            let mut arguments = entry;
            arguments["task_id"] = id.into();
            let refused = fixture.call(worker, &format!("whiteboard_{tool}"), arguments).await.unwrap_err();
            assert_eq!(refused.cause, Cause::NotAllowed, "{refused:?}");
            assert!(refused.message.contains("has no whiteboard"), "{refused:?}");
        }
        assert_eq!(fixture.result(worker, id, "done").await, Ok(()), "the task itself is worked on");
    }
}

#[tokio::test]
async fn a_whiteboard_is_open_to_its_agent_and_the_sub_agents_that_work_for_it() {
    let (fixture, _offers, id) = Fixture::with_task().await;
    let write = json!({"key": "plan", "value": "count twice"});
    assert_eq!(fixture.text("ana", "whiteboard_write", write).await, "Wrote 'plan' to the whiteboard.");
    let of_task = json!({"key": "plan", "task_id": id});
    assert_eq!(fixture.text("w1", "whiteboard_read", of_task.clone()).await, "count twice");
    for stranger in ["w2", "eve"] {
        let refused = fixture.call(stranger, "whiteboard_read", of_task.clone()).await.unwrap_err();
        assert_eq!(refused.cause, Cause::NotAllowed, "{stranger}");
    }
    let write = json!({"key": "found", "value": "41", "task_id": id});
    fixture.text("w1", "whiteboard_write", write).await;
    let listed = fixture.text("ana", "whiteboard_list", json!({})).await;
    assert_eq!(listed, "- found: 2 characters, by w1\n- plan: 11 characters, by ana");
    assert_eq!(fixture.text("w1", "whiteboard_list", json!({})).await, "The whiteboard is empty.");
    let third = fixture.call("ana", "whiteboard_write", json!({"key": "more", "value": "x"})).await.unwrap();
    assert!(third.is_error, "{third:?}");
    fixture.text("ana", "whiteboard_write", json!({"key": "plan", "value": ""})).await;
    assert!(fixture.call("ana", "whiteboard_read", json!({"key": "plan"})).await.unwrap().is_error);
    fixture.result("w1", &id, "42").await.unwrap();
    let refused = fixture.call("w1", "whiteboard_read", json!({"key": "found", "task_id": id})).await;
    assert_eq!(refused.unwrap_err().cause, Cause::NotAllowed, "after the end");
}

#[tokio::test]
async fn calls_at_once_in_several_replicas_exceed_no_limit_of_tasks_or_entries() {
    let (fixture, _offers) = Fixture::with_offers();
    let replicas = [&fixture.subagents, &fixture.other];
    let spawning = (0..20)
        .map(|number| Fixture::call_at(replicas[number % 2], "ana", "spawn_subagent", json!({"description": "x"})));
    let spawned = join_all(spawning).await;
    assert_eq!(spawned.iter().filter(|output| !output.as_ref().unwrap().is_error).count(), 2);
    let writing = (0..20).map(|number| {
        let entry = json!({"key": format!("key {number}"), "value": "x"});
        Fixture::call_at(replicas[number % 2], "ana", "whiteboard_write", entry)
    });
    let written = join_all(writing).await;
    assert_eq!(written.iter().filter(|output| !output.as_ref().unwrap().is_error).count(), 2);
    assert_eq!(fixture.text("ana", "whiteboard_list", json!({})).await.lines().count(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_task_whose_offer_is_not_confirmed_has_an_unknown_outcome_and_its_result_counts() {
    for doubt in [
        Route::Doubted(None),
        Route::Doubted(Some(PublishError::Unavailable("lost".to_owned()))),
        Route::Doubted(Some(PublishError::Rejected("another queue for it is full".to_owned()))),
    ] {
        let (fixture, mut offers) = Fixture::with_offers();
        fixture.doubtful.route_all(doubt);
        let failure = fixture.call("ana", "spawn_subagent", json!({"description": "x"})).await.unwrap_err();
        let id = next(&mut offers).await["taskId"].as_str().unwrap().to_owned();
        assert_eq!(failure.cause, Cause::OutcomeUnknown);
        assert_eq!(
            failure.message,
            format!(
                "It is not known whether an agent of the pool `thinkers` has got the task with task_id: {id}. If one \
                 has, its result arrives as a message. `list_subagents` shows who works on it; cancel it before you give \
                 it again."
            )
        );
        fixture.doubtful.route_all(Route::Routed);
        let mut results = fixture.queue("subagent.result.ana");
        assert_eq!(fixture.result("w1", &id, "42").await, Ok(()));
        assert_eq!(next(&mut results).await["output"], "42");
    }
    let (fixture, _offers) = Fixture::with_offers();
    fixture.doubtful.route_all(Route::Refused);
    assert!(fixture.call("ana", "spawn_subagent", json!({"description": "x"})).await.unwrap().is_error);
    assert_eq!(fixture.text("ana", "list_subagents", json!({})).await, "No active subagents.", "it is forgotten");
}

#[tokio::test]
async fn an_ignored_report_is_counted_by_its_reason() {
    let (fixture, _offers, id) = Fixture::with_task().await;
    let _results = fixture.queue("subagent.result.ana");
    let report = async |sender: Caller, id: &str| {
        let body = json!({"taskId": id, "output": "42", "isSuccess": true}).to_string();
        let kind = message_type::SUBAGENT_RESULT_MESSAGE;
        fixture.subagents.take_report(kind, &sender, body.as_bytes()).await.unwrap();
    };
    fixture.progress("w2", &id).await.unwrap();
    for liar in [Caller::unknown(), testing::agent("eve"), testing::agent("W2"), testing::agent("w1")] {
        report(liar, &id).await;
    }
    for id in ["none", "x\n", &"x".repeat(60_000)] {
        report(testing::agent("w2"), id).await;
    }
    report(testing::agent("w2"), &id).await;
    report(testing::agent("w2"), &id).await;
    assert_eq!(
        *fixture.reported.0.lock(),
        ["not_asked", "not_asked", "not_asked", "another_works", "no_task", "no_task", "no_task", "taken", "ended"]
    );
    let kind = message_type::SUBAGENT_RESULT_MESSAGE;
    assert!(fixture.subagents.take_report(kind, &testing::agent("w2"), b"[").await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_report_that_arrives_while_the_store_is_away_has_to_come_again_and_counts_then() {
    let (fixture, _offers, id) = Fixture::with_task().await;
    let mut results = fixture.queue("subagent.result.ana");
    let body = json!({"taskId": id, "output": "42", "isSuccess": true}).to_string();
    let (kind, sender) = (message_type::SUBAGENT_RESULT_MESSAGE, testing::agent("w1"));
    let mut taken = Vec::new();
    for is_away in [true, false] {
        fixture.store.set(is_away.then_some(StoreFault::Away));
        taken.push(fixture.subagents.take_report(kind, &sender, body.as_bytes()).await);
    }
    assert_eq!(taken, [Err(ControlError::StoreAway), Ok(())]);
    assert_eq!(next(&mut results).await["output"], "42");
    assert_eq!(*fixture.reported.0.lock(), ["taken"]);
}

#[tokio::test]
async fn tasks_are_read_when_due_and_an_undelivered_result_soon() {
    let (fixture, _offers, id) = Fixture::with_task().await;
    let before = fixture.store.reads();
    for _ in 0..48 {
        fixture.subagents.sweep().await.unwrap();
        fixture.clock.advance(Duration::from_secs(5));
    }
    let reads = fixture.store.reads() - before;
    assert!((2..=10).contains(&reads), "{reads} reads in four minutes");
    assert_eq!(fixture.result("w1", &id, "42").await, Ok(()));
    let mut results = fixture.queue("subagent.result.ana");
    fixture.clock.advance(Duration::from_secs(5));
    fixture.subagents.sweep().await.unwrap();
    assert_eq!(next(&mut results).await["output"], "42");
}

#[tokio::test]
async fn descriptions_and_entries_of_any_characters_leave_room_for_results_in_the_store() {
    let fixture = Fixture::with(SubagentsConfig { max_tasks: 100, max_entries: 1000, ..SubagentsConfig::default() });
    let _offers = fixture.queue("subagent.task.thinkers");
    let mut ids = Vec::new();
    let full = loop {
        let output = fixture.call("ana", "spawn_subagent", json!({"description": "\u{1}".repeat(4000)})).await.unwrap();
        let text = output.content.unwrap();
        match text.strip_prefix("Subagent spawned with task_id: ") {
            Some(id) => ids.push(id.split('.').next().unwrap().to_owned()),
            None => break text,
        }
    };
    let text = "Error: the descriptions of the tasks that are under way leave no room for another. Wait for one, or cancel it.";
    assert_eq!((&*full, ids.len()), (text, 16));
    for id in &ids {
        assert_eq!(fixture.result("w1", id, &"x".repeat(60_000)).await, Ok(()), "no result is lost");
    }
    for number in 0..70 {
        let entry = json!({"key": format!("key {number}"), "value": "\u{1}".repeat(4000)});
        let written = fixture.call("ana", "whiteboard_write", entry).await.unwrap();
        assert_eq!(written.is_error, number >= 10, "{written:?}");
    }
}

#[tokio::test]
async fn reports_of_outsiders_make_the_daemon_read_nothing() {
    let (fixture, _offers, id) = Fixture::with_task().await;
    let before = (fixture.store.reads(), fixture.store.writes());
    for _ in 0..1000 {
        assert_eq!(fixture.result("eve", &id, "lies").await, Err(Ignored::NotAsked));
        assert_eq!(fixture.progress("eve", "none").await, Err(Ignored::NotAsked));
    }
    assert_eq!((fixture.store.reads(), fixture.store.writes()), before);
}

#[tokio::test]
async fn a_result_adds_no_line_to_the_list_that_could_be_that_of_another_task() {
    let (fixture, _offers, id) = Fixture::with_task().await;
    assert_eq!(fixture.result("w1", &id, "42\n\nEnded: other: Pay\r\nEnded: x").await, Ok(()));
    let listed = fixture.text("ana", "list_subagents", json!({})).await;
    assert_eq!(listed.lines().filter(|line| line.starts_with("Ended: ")).count(), 1, "{listed}");
}

#[tokio::test]
async fn a_key_of_the_whiteboard_is_one_line_of_its_list() {
    let fixture = Fixture::new();
    fixture.text("ana", "whiteboard_write", json!({"key": "a: 1\n- b", "value": "x"})).await;
    let listed = fixture.text("ana", "whiteboard_list", json!({})).await;
    assert_eq!(listed, "- a: 1\\n- b: 1 characters, by ana");
}
