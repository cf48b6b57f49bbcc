use std::collections::BTreeMap;

use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::task::TaskTracker;
use toolbus_broker::embedded::Embedded;
use toolbus_core::bus::{Bus, Delivery};
use toolbus_core::caller::AgentName;
use toolbus_core::events::AgentEvents;
use toolbus_core::pattern::Pattern;
use toolbus_core::redact::Redactor;
use toolbus_core::store::Store;
use toolbus_core::{Clock, ControlError};
use toolbus_outbound::egress::EgressRules;
use toolbus_protocol::{AgentMessage, AgentTaskResult, Envelope, Random, message_type, topic};
use toolbus_testing::recording_bus::RecordingBus;

use super::*;
use crate::a2a::config::A2aConfig;
use crate::a2a::directory::AgentDirectory;
use crate::a2a::tasks::AgentTasks;
use crate::testing::{self, TestStore};

mod delivery;
mod hostile;
mod limits;
mod over_http;
mod unconfirmed;

/// Keeps what is counted.
#[derive(Default)]
struct CountedOutcomes(Mutex<Vec<String>>);

impl AgentEvents for CountedOutcomes {
    fn announced(&self, outcome: &'static str) {
        self.0.lock().push(format!("announced {outcome}"));
    }

    fn task_message(&self, outcome: &'static str) {
        self.0.lock().push(format!("answered {outcome}"));
    }

    fn task_ended(&self, outcome: &'static str) {
        self.0.lock().push(format!("ended {outcome}"));
    }
}

/// A daemon on a bus where the agents `Bob` and `Carol` have announced themselves.
struct Fixture {
    bus: Embedded,
    doubtful: Arc<RecordingBus>,
    store: Arc<TestStore>,
    service: AgentService,
    tools: Vec<Tool>,
    counted: Arc<CountedOutcomes>,
    clock: Clock,
}

fn name(text: &str) -> AgentName {
    AgentName::parse(text).unwrap()
}

fn service(
    bus: &Arc<RecordingBus>,
    store: &Arc<TestStore>,
    counted: &Arc<CountedOutcomes>,
    clock: Clock,
    seed: u64,
) -> AgentService {
    let config = A2aConfig { max_tasks: 2, ..A2aConfig::default() };
    let directory = AgentDirectory::new(&config, "toolbus", clock).unwrap();
    let skills = json!([{"id": "sum", "name": "Sum", "description": "Adds numbers"}]);
    for (agent, skills) in [("Bob", skills), ("Carol", json!([]))] {
        let card = json!({"agentName": agent, "description": format!("{agent} helps"), "skills": skills});
        assert_eq!(directory.announce(Some(&name(agent)), card.to_string().as_bytes()), "new");
    }
    let tasks = AgentTasks::new(Arc::clone(store) as _);
    let (bus, events): (Arc<dyn Bus>, _) = (Arc::clone(bus) as _, Arc::clone(counted) as Arc<dyn AgentEvents>);
    let (names, redactor) = (("toolbus".to_owned(), "toolbus"), Redactor::default());
    redactor.configure(["s3cret-of-the-daemon".into()]);
    AgentService::new(config, directory, tasks, bus, names, events, (clock, Random::seeded(seed), redactor))
}

/// The tools of a replica: `ana` may give tasks to every agent, `eve` to Carol.
fn tools(service: &AgentService) -> Vec<Tool> {
    let patterns = |list: &[&str]| list.iter().map(|text| Pattern::parse(text).unwrap()).collect::<Vec<_>>();
    let sections = BTreeMap::from([(name("ana"), patterns(&["*"])), (name("eve"), patterns(&["Carol"]))]);
    let egress = Egress::new(EgressRules::default(), "test").unwrap();
    A2aTools::new(service.clone(), AllowedAgents::new(sections, None), egress).tools()
}

/// Sweeps by a plan by which nothing was read yet.
async fn sweep(service: &AgentService) {
    service.sweep(&mut service.plan()).await.unwrap();
}

impl Fixture {
    fn new() -> Self {
        let (bus, counted, clock) = (Embedded::new(), Arc::new(CountedOutcomes::default()), Clock::paused());
        let (doubtful, store) = (Arc::new(RecordingBus::before(bus.clone())), Arc::new(TestStore::default()));
        let service = service(&doubtful, &store, &counted, clock, 1);
        Self { tools: tools(&service), bus, doubtful, store, service, counted, clock }
    }

    /// The same, with the queues of Bob's tasks and of ana's results.
    fn with_queues() -> (Self, mpsc::Receiver<Delivery>, mpsc::Receiver<Delivery>) {
        let site = Self::new();
        let (of_bob, of_ana) = (site.queue(topic::agent_task("Bob")), site.queue(topic::agent_response("ana")));
        (site, of_bob, of_ana)
    }

    /// A queue that is bound to a topic.
    fn queue(&self, topic: String) -> mpsc::Receiver<Delivery> {
        testing::queue(&self.bus, &format!("queue.{topic}"), &[&topic], 100_000)
    }

    fn call(&self, agent: &str, tool: &str, arguments: Value) -> JoinHandle<Result<ToolOutput, ToolFailure>> {
        let caller = AgentName::parse(agent).map_or_else(|_| Caller::unknown(), Caller::agent);
        TaskTracker::new().spawn(testing::run(&self.tools, caller, tool, arguments, self.clock))
    }

    async fn text(&self, agent: &str, tool: &str, arguments: Value) -> String {
        let output = self.call(agent, tool, arguments).await.unwrap().unwrap();
        assert!(!output.is_error, "{output:?}");
        output.content.unwrap()
    }

    async fn error(&self, agent: &str, tool: &str, arguments: Value) -> String {
        let output = self.call(agent, tool, arguments).await.unwrap().unwrap();
        assert!(output.is_error, "{output:?}");
        output.content.unwrap()
    }

    /// Gives Bob a task; returns its id.
    async fn dispatch(&self, agent: &str) -> String {
        let text = self.text(agent, INVOKE, add(false)).await;
        text.split("task_id: ").nth(1).unwrap().split('.').next().unwrap().to_owned()
    }

    /// Another replica that shares the store and the bus.
    fn replica(&self, seed: u64) -> AgentService {
        service(&self.doubtful, &self.store, &self.counted, self.clock, seed)
    }

    /// The ids of the tasks that are kept.
    async fn kept(&self) -> Vec<String> {
        self.store.list("a2a-tasks").await.unwrap()
    }

    async fn task(&self, id: &str) -> Value {
        serde_json::from_str(&self.text("ana", TASK, json!({"task_id": id})).await).unwrap()
    }

    /// Passes a message of `sender` about a task to the service.
    async fn hear(&self, sender: &str, kind: &str, correlation: &str, body: &Value) -> &'static str {
        let envelope =
            Envelope { message_type: kind.to_owned(), correlation_id: correlation.to_owned(), ..Envelope::default() };
        self.service.hear(&envelope, &Caller::agent(name(sender)), body.to_string().as_bytes()).await
    }

    async fn result(&self, sender: &str, id: &str, text: &str) -> &'static str {
        self.hear(sender, message_type::AGENT_TASK_RESULT, id, &result(id, text)).await
    }

    fn counted(&self) -> Vec<String> {
        self.counted.0.lock().clone()
    }
}

/// Arguments of a task for Bob.
fn add(wait: bool) -> Value {
    json!({"agent_name": "bob", "skill": "SUM", "message": "Add 1 and 2", "wait": wait})
}

fn result(id: &str, text: &str) -> Value {
    let message = Some(AgentMessage::text("agent", text));
    let state = AgentTaskState::Completed;
    serde_json::to_value(AgentTaskResult { task_id: id.to_owned(), state, message, ..AgentTaskResult::default() })
        .unwrap()
}

async fn next(queue: &mut mpsc::Receiver<Delivery>) -> (Envelope, Value) {
    let delivery = queue.recv().await.unwrap();
    let read = (Envelope::read(&delivery.properties), serde_json::from_slice(&delivery.body).unwrap());
    delivery.settle.acknowledge().await;
    read
}

#[tokio::test(start_paused = true)]
async fn agents_are_listed_as_far_as_the_caller_may_give_them_tasks() {
    let site = Fixture::new();
    insta::assert_snapshot!(site.text("ana", LIST, json!({"skill": "sum"})).await, @r#"[{"agentName":"Bob","description":"Bob helps","lastSeen":"2026-01-01T00:00:00Z","skills":[{"id":"sum","description":"Adds numbers"}]}]"#);
    assert_eq!(site.text("ana", LIST, json!({"skill": "dance"})).await, "No agents found with skill 'dance'.");
    let of_eve: Value = serde_json::from_str(&site.text("eve", LIST, json!({})).await).unwrap();
    assert_eq!((of_eve.as_array().unwrap().len(), &of_eve[0]["agentName"]), (1, &json!("Carol")));
    assert_eq!(site.text("zoe", LIST, json!({})).await, "No agents have announced themselves yet.");
    let details = site.text("ana", DETAILS, json!({"agent_name": "BOB"})).await;
    assert!(details.contains(r#""agentName":"Bob""#) && details.contains("Adds numbers"), "{details}");
    let unknown = "Agent 'bob' is not known. Known agents: Carol.";
    assert_eq!(site.error("eve", DETAILS, json!({"agent_name": "bob"})).await, unknown, "as if there were none");
}

#[tokio::test(start_paused = true)]
async fn a_task_is_published_on_behalf_of_its_caller_and_its_result_goes_to_the_callers_topic() {
    let (site, mut of_bob, mut of_ana) = Fixture::with_queues();
    let id = site.dispatch("ana").await;
    let (envelope, body) = next(&mut of_bob).await;
    assert_eq!((&*envelope.correlation_id, &*envelope.reply_to), (&*id, "agent.response.toolbus"));
    assert_eq!((envelope.source.as_deref(), envelope.header("rb-on-behalf-of")), (Some("toolbus"), Some("ana")));
    assert_eq!(envelope.message_type, "RockBot.A2A.AgentTaskRequest");
    insta::assert_snapshot!(body.to_string().replace(&id, "ID"), @r#"{"contextId":null,"message":{"parts":[{"data":null,"kind":"text","mimeType":null,"text":"Add 1 and 2"}],"role":"user"},"metadata":{"onBehalfOf":"ana"},"skill":"SUM","taskId":"ID"}"#);
    assert_eq!(site.task(&id).await["state"], "submitted");

    let working =
        json!({"taskId": id, "state": 1, "message": {"role": "agent", "parts": [{"kind": "text", "text": "Adding"}]}});
    assert_eq!(site.hear("Bob", message_type::AGENT_TASK_STATUS_UPDATE, &id, &working).await, "state");
    let task = site.task(&id).await;
    assert_eq!((&task["state"], &task["note"]), (&json!("working"), &json!("Adding")));

    assert_eq!(site.result("Bob", &id, "3").await, "result");
    let (envelope, body) = next(&mut of_ana).await;
    assert_eq!(
        (&body["taskId"], &body["state"], &body["message"]["parts"][0]["text"]),
        (&json!(id), &json!(3), &json!("3"))
    );
    assert_eq!((&*envelope.correlation_id, envelope.destination.as_deref()), (&*id, Some("ana")));
    assert_eq!(envelope.header("rb-tool-profile"), Some("a2a-synthesis"));
    assert_eq!(envelope.header("rb-answering-agent"), Some("Bob"));
    assert_eq!(envelope.header("rb-content-trust"), Some("tool-output"));
    let task = site.task(&id).await;
    assert_eq!((&task["state"], &task["result"]), (&json!("completed"), &json!("3")));
    assert_eq!(site.counted(), ["ended completed"]);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_waits_gets_the_result_even_before_the_confirm() {
    let (site, mut of_bob, mut of_ana) = Fixture::with_queues();
    let waiting = site.call("ana", INVOKE, add(true));
    let (envelope, _) = next(&mut of_bob).await;
    assert_eq!(envelope.reply_to, "agent.response.toolbus", "any replica takes it");
    // The confirm may not have come yet.
    assert_eq!(site.result("Bob", &envelope.correlation_id, "3").await, "result");
    assert_eq!(waiting.await.unwrap().unwrap(), ToolOutput::text("3"));
    assert!(of_ana.try_recv().is_err(), "once");

    let waiting = site.call("ana", INVOKE, add(true));
    let id = next(&mut of_bob).await.0.correlation_id;
    let error = json!({"taskId": id, "code": "skill_not_supported", "message": "No sums today", "isRetryable": false});
    assert_eq!(site.hear("Bob", message_type::AGENT_TASK_ERROR, &id, &error).await, "result");
    let output = waiting.await.unwrap().unwrap();
    let text = format!("Agent 'Bob' gave no result (task_id: {id}): No sums today (skill_not_supported)");
    assert_eq!(output, ToolOutput::error(text));

    let waiting = site.call("ana", INVOKE, add(true));
    let id = next(&mut of_bob).await.0.correlation_id;
    let question = json!({"taskId": id, "contextId": "c7", "state": 2, "message": {"role": "agent", "parts": [{"kind": "text", "text": "Which?"}]}});
    assert_eq!(site.hear("Bob", message_type::AGENT_TASK_RESULT, &id, &question).await, "result");
    let text = "Agent 'Bob' needs input: Which?\nAnswer by `invoke_agent` with context_id: c7.";
    assert_eq!(waiting.await.unwrap().unwrap(), ToolOutput::text(text));
}

#[tokio::test(start_paused = true)]
async fn a_result_has_no_secret_of_the_daemon() {
    let (site, _of_bob, mut of_ana) = Fixture::with_queues();
    let id = site.dispatch("ana").await;
    let parts = json!([{"kind": "text", "text": "Reading s3cret-of-the-daemon"}]);
    let working = json!({"taskId": id, "state": 1, "message": {"role": "agent", "parts": parts}});
    assert_eq!(site.hear("Bob", message_type::AGENT_TASK_STATUS_UPDATE, &id, &working).await, "state");
    let task = site.task(&id).await;
    assert!(task["note"].is_string() && !task.to_string().contains("s3cret"), "{task}");
    assert_eq!(site.result("Bob", &id, "It is s3cret-of-the-daemon.").await, "result");
    let (_, body) = next(&mut of_ana).await;
    assert_eq!((&body["taskId"], body.to_string().contains("s3cret")), (&json!(id), false), "{body}");
    assert!(!site.task(&id).await.to_string().contains("s3cret"));
}

#[tokio::test(start_paused = true)]
async fn a_result_that_comes_after_the_call_has_ended_goes_to_the_callers_topic() {
    let (site, mut of_bob, mut of_ana) = Fixture::with_queues();
    let waiting = site.call("ana", INVOKE, add(true));
    let id = next(&mut of_bob).await.0.correlation_id;
    let text = waiting.await.unwrap().unwrap().content.unwrap();
    assert!(
        text.starts_with(&format!("Agent 'Bob' has not answered yet. The task goes on with task_id: {id}.")),
        "{text}"
    );
    assert_eq!(site.result("Bob", &id, "3").await, "result");
    assert_eq!(next(&mut of_ana).await.1["taskId"], id);
}

#[tokio::test(start_paused = true)]
async fn malformed_repeated_and_foreign_reports_are_ignored() {
    let (site, _of_bob, mut of_ana) = Fixture::with_queues();
    let id = site.dispatch("ana").await;
    assert_eq!(site.result("Carol", &id, "4").await, "not_asked");
    assert_eq!(site.result("bob", &id, "4").await, "not_asked", "an agent of another spelling is another one");
    let other = "0123456789abcdef0123456789abcdef";
    assert_eq!(site.result("Bob", other, "4").await, "unknown_task");
    assert_eq!(site.result("Bob", "no id", "4").await, "unknown_task");
    let kind = message_type::AGENT_TASK_RESULT;
    assert_eq!(site.hear("Bob", kind, other, &result(&id, "4")).await, "uncorrelated");
    assert_eq!(site.hear("Bob", kind, &id, &json!({"taskId": id})).await, "malformed");
    assert_eq!(site.hear("Bob", "RockBot.Tools.ToolInvokeResponse", &id, &result(&id, "4")).await, "malformed");
    let (one, two) = tokio::join!(site.result("Bob", &id, "3"), site.result("Bob", &id, "3"));
    assert_eq!([one, two], ["result", "repeated"]);
    assert_eq!(site.result("Bob", &id, "3").await, "repeated");
    assert_eq!(next(&mut of_ana).await.1["message"]["parts"][0]["text"], "3");
    assert!(of_ana.try_recv().is_err());
}

#[tokio::test(start_paused = true)]
async fn a_task_without_a_result_in_time_ends_once_for_several_daemons_and_a_late_result_is_ignored() {
    let (site, _of_bob, mut of_ana) = Fixture::with_queues();
    let id = site.dispatch("ana").await;
    let other = site.replica(2);
    tokio::time::advance(Duration::from_secs(5 * 60)).await;
    sweep(&site.service).await;
    assert_eq!(site.task(&id).await["state"], "submitted");
    tokio::time::advance(Duration::from_secs(6)).await;
    tokio::join!(sweep(&site.service), sweep(&other));
    let (envelope, body) = next(&mut of_ana).await;
    assert_eq!(envelope.message_type, "RockBot.A2A.AgentTaskError");
    insta::assert_snapshot!(body.to_string().replace(&id, "ID"), @r#"{"code":"execution_failed","contextId":null,"isRetryable":false,"message":"Agent 'Bob' gave no result in time. It may go on with the task.","taskId":"ID"}"#);
    assert_eq!(site.result("Bob", &id, "3").await, "late");
    assert!(of_ana.try_recv().is_err());
    assert_eq!(site.counted(), ["ended timeout"]);
    tokio::time::advance(Duration::from_secs(60 * 60 + 1)).await;
    sweep(&site.service).await;
    let gone = format!("No task of yours has the id '{id}'. It may have ended some time ago.");
    assert_eq!(site.error("ana", TASK, json!({"task_id": id})).await, gone);
}

#[tokio::test(start_paused = true)]
async fn a_call_without_a_result_in_time_notes_that_the_task_may_go_on() {
    let site = Fixture::new();
    let mut of_bob = site.queue(topic::agent_task("Bob"));
    let mut arguments = add(true);
    arguments["timeout_minutes"] = json!(1);
    let error = site.error("ana", INVOKE, arguments).await;
    let id = next(&mut of_bob).await.0.correlation_id;
    let text = "There was no result in time; it may go on with the task (execution_failed)";
    assert_eq!(error, format!("Agent 'Bob' gave no result (task_id: {id}): {text}"));
}

#[tokio::test(start_paused = true)]
async fn a_task_is_cancelled_by_its_agent_if_that_can() {
    let (site, _of_bob, mut of_ana) = Fixture::with_queues();
    let mut cancels = site.queue(topic::agent_task_cancel("Bob"));
    let id = site.dispatch("ana").await;
    let cancelled = site.text("ana", CANCEL, json!({"task_id": id})).await;
    assert_eq!(cancelled, format!("Asked agent 'Bob' to cancel task {id}. `get_agent_task` shows what became of it."));
    let (envelope, body) = next(&mut cancels).await;
    assert_eq!((envelope.correlation_id.clone(), body), (id.clone(), json!({"taskId": id, "contextId": null})));
    let cannot = "Stateless agents do not support task cancellation.";
    let error = json!({"taskId": id, "code": "task_not_cancelable", "message": cannot, "isRetryable": false});
    assert_eq!(site.hear("Bob", message_type::AGENT_TASK_ERROR, &id, &error).await, "state");
    let task = site.task(&id).await;
    assert_eq!((&task["state"], &task["note"]), (&json!("submitted"), &json!(cannot)));
    assert!(of_ana.try_recv().is_err(), "the task goes on");

    let canceled = json!({"taskId": id, "state": 5});
    assert_eq!(site.hear("Bob", message_type::AGENT_TASK_RESULT, &id, &canceled).await, "result");
    assert_eq!(next(&mut of_ana).await.1["state"], 5);
    let over = format!("Task {id} has ended already: canceled.");
    assert_eq!(site.text("ana", CANCEL, json!({"task_id": id})).await, over);
}

#[tokio::test(start_paused = true)]
async fn an_operator_sees_the_tasks_of_all_agents_open_ones_first() {
    let site = Fixture::new();
    let _of_bob = site.queue(topic::agent_task("Bob"));
    let ended = site.dispatch("ana").await;
    site.result("Bob", &ended, "3").await;
    let open = site.dispatch("ana").await;
    let all = site.service.overview().await.unwrap();
    let shown: Vec<_> = all.rows.iter().map(|task| (&*task.id, &*task.caller, &*task.agent, task.state)).collect();
    let [submitted, completed] = [AgentTaskState::Submitted, AgentTaskState::Completed];
    assert_eq!(shown, [(&*open, "ana", "Bob", submitted), (&*ended, "ana", "Bob", completed)]);
    assert!(all.is_whole);
}

#[tokio::test(start_paused = true)]
async fn a_task_belongs_to_the_agent_that_gave_it() {
    let site = Fixture::new();
    let _of_bob = site.queue(topic::agent_task("Bob"));
    let id = site.dispatch("ana").await;
    let none = format!("No task of yours has the id '{id}'. It may have ended some time ago.");
    for tool in [TASK, CANCEL] {
        assert_eq!(site.error("eve", tool, json!({"task_id": id})).await, none);
    }
    let unknown_caller = site.call("", INVOKE, add(false)).await.unwrap().unwrap_err();
    assert_eq!(unknown_caller.cause, Cause::NotAllowed);
}

#[tokio::test(start_paused = true)]
async fn a_task_for_an_agent_that_is_not_allowed_or_lacks_the_skill_is_not_published() {
    let site = Fixture::new();
    let mut of_bob = site.queue(topic::agent_task("Bob"));
    assert_eq!(site.error("eve", INVOKE, add(false)).await, "Agent 'bob' is not known. Known agents: Carol.");
    let none = "Agent 'bob' is not known. No agents have announced themselves yet.";
    assert_eq!(site.error("zoe", INVOKE, add(false)).await, none);
    let dance = json!({"agent_name": "Bob", "skill": "dance", "message": "Dance"});
    assert_eq!(site.error("ana", INVOKE, dance).await, "Agent 'Bob' has no skill 'dance'. It has: sum.");
    assert!(of_bob.try_recv().is_err());
}

#[tokio::test(start_paused = true)]
async fn a_task_that_no_queue_takes_is_refused_and_forgotten() {
    let site = Fixture::new();
    let failure = site.call("ana", INVOKE, add(false)).await.unwrap().unwrap_err();
    assert_eq!(failure.cause, Cause::ConnectFailed);
    assert_eq!(failure.message, "Agent 'Bob' takes no tasks now. Try again later, or ask another agent.");
    assert_eq!(site.kept().await, [""; 0]);
    assert_eq!(site.counted(), ["ended not_sent"]);
}

#[tokio::test(start_paused = true)]
async fn tasks_of_an_agent_are_limited_and_ended_ones_make_room() {
    let (site, _of_bob, _of_ana) = Fixture::with_queues();
    let first = site.dispatch("ana").await;
    site.dispatch("ana").await;
    let full = "2 tasks of yours are under way. Wait until one has ended, or cancel one.";
    assert_eq!(site.error("ana", INVOKE, add(false)).await, full);
    site.result("Bob", &first, "3").await;
    site.dispatch("ana").await;
    assert_eq!(site.kept().await.len(), 2);
    let gone = site.error("ana", TASK, json!({"task_id": first})).await;
    assert!(gone.starts_with("No task of yours"), "{gone}");
}
