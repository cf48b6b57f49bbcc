//! A dispatcher with a bus that records what it is given, and scripted tools.

use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use toolbus_core::bus::{Bus, Delivery, Outgoing, Target};
use toolbus_core::caller::{AgentName, Caller, Identity};
use toolbus_core::events::Discard;
use toolbus_core::failure::{Cause, ToolFailure};
use toolbus_core::policy::{AgentPolicy, Capacity, Policy, PolicyHandle};
use toolbus_core::registry::Registry;
use toolbus_core::telemetry::{CallEnd, CallSpan, CallSummary, DeadReason, LedgerEvent, Load, Telemetry};
use toolbus_core::tool::{Effect, Executor, Tool, ToolCall, ToolDescriptor, ToolOutput};
use toolbus_core::toolsets::SessionSets;
use toolbus_core::{
    About, AllArrived, Budgets, Clock, ControlService, Dispatcher, DispatcherSettings, Gates, InnerCall, InnerOrigin,
    Invoker as _, PendingTools, ReplyRules, Service,
};
use toolbus_protocol::{Properties, Random, TraceContext};
use toolbus_testing::recording_bus::{RecordingBus, Route};

pub(crate) use crate::message::{Message, Settled, Settlement, call, delivery, raw, request};

/// A message that left.
#[derive(Debug, Clone)]
pub(crate) struct Sent {
    pub(crate) target: Target,
    pub(crate) mandatory: bool,
    pub(crate) properties: Arc<Properties>,
    pub(crate) body: Value,
}

/// The messages that left, in order.
pub(crate) fn sent(bus: &RecordingBus) -> Vec<Sent> {
    let shown = |message: Outgoing| Sent {
        body: serde_json::from_slice(&message.body)
            .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&message.body).into_owned())),
        target: message.target,
        mandatory: message.mandatory,
        properties: message.properties,
    };
    bus.sent().into_iter().map(shown).collect()
}

/// Counts the events of the dispatcher, and panics on demand.
#[derive(Default)]
pub(crate) struct Recorder {
    published: AtomicUsize,
    dead_letters: AtomicUsize,
    attached: AtomicUsize,
    panics: AtomicBool,
    ledger: Mutex<Vec<LedgerEvent>>,
}

impl Recorder {
    /// Publishes of replies that were begun.
    pub(crate) fn published(&self) -> usize {
        self.published.load(Ordering::SeqCst)
    }

    /// Dead letters that were counted.
    pub(crate) fn dead_letters(&self) -> usize {
        self.dead_letters.load(Ordering::SeqCst)
    }

    /// Calls for which another one ran.
    pub(crate) fn attached(&self) -> usize {
        self.attached.load(Ordering::SeqCst)
    }

    /// Events of the ledger, in order.
    pub(crate) fn ledger(&self) -> Vec<LedgerEvent> {
        self.ledger.lock().clone()
    }

    /// Makes every call panic before its tool begins.
    pub(crate) fn break_calls(&self, broken: bool) {
        self.panics.store(broken, Ordering::SeqCst);
    }
}

struct RecordingTelemetry(Arc<Recorder>);

impl Telemetry for RecordingTelemetry {
    fn arrived(&self, _: &Delivery, parent: Option<&TraceContext>) -> Box<dyn CallSpan> {
        Box::new(RecordingSpan { recorder: Arc::clone(&self.0), sender: parent.cloned() })
    }

    fn nested(&self, parent: Option<&TraceContext>, _: Option<u64>) -> Box<dyn CallSpan> {
        Box::new(RecordingSpan { recorder: Arc::clone(&self.0), sender: parent.cloned() })
    }

    fn consuming(&self, _: &str) {}

    fn dead_lettered(&self, _: &str, _: DeadReason) {
        self.0.dead_letters.fetch_add(1, Ordering::SeqCst);
    }

    fn ledger(&self, event: LedgerEvent) {
        self.0.ledger.lock().push(event);
    }
}

struct RecordingSpan {
    recorder: Arc<Recorder>,
    sender: Option<TraceContext>,
}

impl CallSpan for RecordingSpan {
    fn trace_id(&self) -> Option<&str> {
        self.sender.as_ref().map(TraceContext::trace_id)
    }

    fn executing(&mut self, _: &ToolDescriptor, _: &str, _: &Caller) -> Option<TraceContext> {
        assert!(!self.recorder.panics.load(Ordering::SeqCst), "broken on purpose");
        self.sender.clone()
    }

    fn executed(&mut self, _: &CallEnd, _: Duration) {}

    fn publishing(&mut self, _: &str) -> Option<TraceContext> {
        self.recorder.published.fetch_add(1, Ordering::SeqCst);
        self.sender.clone()
    }

    fn published(&mut self, _: bool, _: Duration) {}

    fn finished(self: Box<Self>, summary: &CallSummary<'_>) {
        self.recorder.attached.fetch_add(summary.attached.into(), Ordering::SeqCst);
    }
}

pub(crate) struct World {
    pub(crate) dispatcher: Dispatcher,
    pub(crate) gates: Arc<Gates>,
    pub(crate) bus: Arc<RecordingBus>,
    pub(crate) load: Arc<Load>,
    pub(crate) recorder: Arc<Recorder>,
    pub(crate) runs: Arc<AtomicUsize>,
    /// Lets one call of a `wait…` tool end.
    pub(crate) go_on: Arc<Notify>,
}

impl World {
    pub(crate) fn new() -> Self {
        Self::with(|_| {})
    }

    pub(crate) fn with(edit: impl FnOnce(&mut DispatcherSettings)) -> Self {
        Self::arriving(edit, Arc::new(AllArrived))
    }

    /// The same, with tools that may still come.
    pub(crate) fn arriving(edit: impl FnOnce(&mut DispatcherSettings), arrivals: Arc<dyn PendingTools>) -> Self {
        let (bus, load): (Arc<RecordingBus>, Arc<Load>) = Default::default();
        let (runs, go_on): (Arc<AtomicUsize>, Arc<Notify>) = Default::default();
        let mut settings = settings();
        edit(&mut settings);
        let registry = Registry::new();
        for (name, effect) in [
            ("echo", Effect::ReadOnly),
            ("pay", Effect::Effectful),
            ("panic", Effect::Undeclared),
            ("huge", Effect::ReadOnly),
            ("fail", Effect::ReadOnly),
            ("sad", Effect::ReadOnly),
            ("wait", Effect::ReadOnly),
            ("wait_effectful", Effect::Effectful),
            ("wait_undeclared", Effect::Undeclared),
        ] {
            let descriptor = ToolDescriptor {
                effect,
                parameters: (name == "echo").then(|| Arc::new(echo_schema())),
                ..ToolDescriptor::new(name, "test", "local")
            };
            registry
                .register(Tool::new(descriptor, Scripted { runs: Arc::clone(&runs), go_on: Arc::clone(&go_on) }))
                .unwrap();
        }
        let recorder: Arc<Recorder> = Arc::default();
        let telemetry = Arc::new(RecordingTelemetry(Arc::clone(&recorder)));
        let gates = Arc::new(gates(registry, &settings));
        let bus_of_calls = Arc::clone(&bus) as Arc<dyn Bus>;
        let (of_calls, discard) = (Arc::clone(&gates), Arc::new(Discard));
        let dispatcher =
            Dispatcher::new(settings, of_calls, bus_of_calls, telemetry, discard, Arc::clone(&load), arrivals);
        Self { dispatcher, gates, bus, load, recorder, runs, go_on }
    }

    /// Delivers a message and waits until it has been handled.
    pub(crate) async fn deliver(&self, message: Message) -> Settlement {
        let (delivery, settlement) = delivery(message);
        self.dispatcher.handle(delivery).await;
        settlement
    }

    /// Delivers a message without waiting.
    pub(crate) fn begin(&self, message: Message) -> (JoinHandle<()>, Settlement) {
        let (delivery, settlement) = delivery(message);
        let dispatcher = self.dispatcher.clone();
        (TaskTracker::new().spawn(async move { dispatcher.handle(delivery).await }), settlement)
    }

    /// Delivers a message, and waits until its call is the one that runs.
    pub(crate) async fn begin_running(&self, message: Message) -> (JoinHandle<()>, Settlement) {
        let begun = self.begin(message);
        self.until_running(1).await;
        begun
    }

    /// Makes a call that no message brings, without waiting.
    pub(crate) fn begin_inner(&self, call: InnerCall) -> JoinHandle<Result<ToolOutput, ToolFailure>> {
        let dispatcher = self.dispatcher.clone();
        TaskTracker::new().spawn(async move { dispatcher.invoke(call).await })
    }

    /// Lets one call of a `wait…` tool end, and waits for the end of this one.
    pub(crate) async fn finish<T>(&self, running: JoinHandle<T>) -> T {
        self.go_on.notify_one();
        running.await.unwrap()
    }

    /// Delivers a message that must be acknowledged, and gives the one message that leaves.
    pub(crate) async fn reply(&self, message: Message) -> Sent {
        let before = self.sent().len();
        let settlement = self.deliver(message).await;
        assert_eq!(settlement.get(), Some(Settled::Acknowledged));
        let mut sent = self.sent();
        assert_eq!(sent.len(), before + 1, "exactly one reply");
        sent.pop().unwrap()
    }

    /// Registers one more tool, without a declared effect, that returns "paid".
    pub(crate) fn register(&self, name: &str) {
        self.register_as(ToolDescriptor::new(name, "test", "local"));
    }

    /// Registers one more tool, which does what its name begins with.
    pub(crate) fn register_as(&self, descriptor: ToolDescriptor) {
        let scripted = Scripted { runs: Arc::clone(&self.runs), go_on: Arc::clone(&self.go_on) };
        self.add(Tool::new(descriptor, scripted));
    }

    /// Registers one more tool.
    pub(crate) fn add(&self, tool: Tool) {
        self.dispatcher.policy().registry().register(tool).unwrap();
        self.dispatcher.policy().refresh();
    }

    /// Has everything that is published to this name, as a topic and as a queue, go this way.
    pub(crate) fn route_both(&self, name: &str, route: &Route) {
        for target in [Target::Topic(name.to_owned()), Target::Queue(name.to_owned())] {
            self.bus.route(target, route.clone());
        }
    }

    /// The messages that left, in order.
    pub(crate) fn sent(&self) -> Vec<Sent> {
        sent(&self.bus)
    }

    pub(crate) fn runs(&self) -> usize {
        self.runs.load(Ordering::SeqCst)
    }

    /// Waits until this many calls are running.
    pub(crate) async fn until_running(&self, calls: usize) {
        while self.load.in_flight() != calls || self.runs() < calls {
            tokio::task::yield_now().await;
        }
    }

    /// Waits until at least this many calls wait for their turn.
    pub(crate) async fn until_waiting(&self, calls: usize) {
        while self.load.waiting() < calls {
            tokio::task::yield_now().await;
        }
    }

    /// Waits until at least this many messages were published, whether or not the bus took them.
    pub(crate) async fn until_attempted(&self, messages: usize) {
        while self.bus.attempts().len() < messages {
            tokio::task::yield_now().await;
        }
    }

    /// Waits until at least this many events of the ledger were recorded.
    pub(crate) async fn until_recorded(&self, events: usize) {
        while self.recorder.ledger().len() < events {
            tokio::task::yield_now().await;
        }
    }
}

/// A call of an MCP client.
pub(crate) fn inner_call(caller: Caller, tool: &str, arguments: &Value) -> InnerCall {
    InnerCall {
        idempotency_key: None,
        origin: InnerOrigin::McpClient,
        caller: Arc::new(caller),
        call_id: "call_1".into(),
        server: None,
        tool: tool.to_owned(),
        arguments: Some(arguments.to_string()),
        deadline: None,
        cancelled: CancellationToken::new(),
        trace: None,
        around: None,
        progress: None,
    }
}

/// Service for requests of other kinds than calls, beside a dispatcher on this bus.
pub(crate) fn control(dispatcher: &Dispatcher, bus: &Arc<RecordingBus>) -> ControlService {
    let about = About {
        name: "toolbus".to_owned(),
        version: "1".to_owned(),
        config_digest: watch::channel("0".to_owned()).1,
        roles: Vec::new(),
        started: Clock::SYSTEM.now(),
    };
    let bus = Arc::clone(bus) as Arc<dyn Bus>;
    ControlService::new(about, bus, settings().replies, dispatcher.clone(), SessionSets::default())
}

/// Delivers a message on a topic, and waits until it is settled. Returns its settlement.
pub(crate) async fn serve(
    dispatcher: &Dispatcher,
    control: &ControlService,
    topic: &str,
    message: Message,
) -> Settlement {
    let (mut delivery, settlement) = delivery(message);
    delivery.routing_key = topic.into();
    let (sender, receiver) = mpsc::channel(1);
    sender.send(delivery).await.unwrap();
    drop(sender);
    let service = Service::new(dispatcher.clone());
    service.serve_requests(control, receiver).await;
    service.drain(Duration::from_secs(30)).await;
    settlement
}

pub(crate) fn settings() -> DispatcherSettings {
    DispatcherSettings {
        name: "toolbus".to_owned(),
        replies: ReplyRules {
            reply_topics: ["tool.result.#", "script.result.#", "agent.response.#"].map(str::to_owned).into(),
            request_topics: vec!["tool.invoke".to_owned(), "my.requests".to_owned()],
            queue_prefix: "bus7".to_owned(),
            default_topic: "tool.result".to_owned(),
            own_topics_only: false,
        },
        budgets: Budgets { default: Duration::from_secs(60), max: Duration::from_secs(120) },
        max_body: 1024 * 1024,
        max_in_flight: 4,
        max_waiting: 4,
        redactor: Default::default(),
        ignores_unknown_servers: false,
        ledger: None,
        results: None,
        clock: Clock::SYSTEM,
        random: Random::SYSTEM,
    }
}

/// Gates by which every caller may use every tool and all the room.
fn gates(registry: Registry, settings: &DispatcherSettings) -> Gates {
    let unlisted = AgentPolicy {
        max_in_flight: Some(settings.max_in_flight),
        max_queued: Some(settings.max_waiting),
        ..AgentPolicy::default()
    };
    let capacity = Capacity { max_in_flight: settings.max_in_flight, max_waiting: settings.max_waiting };
    let policy = Policy { default: unlisted, ..Policy::default() };
    Gates::new(PolicyHandle::new(registry, Identity::default(), policy, capacity))
}

/// The agent of this name.
pub(crate) fn agent(name: &str) -> Caller {
    Caller::agent(AgentName::parse(name).unwrap())
}

fn echo_schema() -> Value {
    json!({
        "type": "object",
        "properties": {"text": {"type": "string"}},
        "required": ["text"],
        "additionalProperties": false
    })
}

struct Scripted {
    runs: Arc<AtomicUsize>,
    go_on: Arc<Notify>,
}

impl Executor for Scripted {
    async fn execute(&self, call: ToolCall) -> Result<ToolOutput, ToolFailure> {
        let earlier = self.runs.fetch_add(1, Ordering::SeqCst);
        match &*call.tool {
            "panic" => panic!("at /srv/secret/path.rs"),
            "huge" => Ok(ToolOutput::text("x".repeat(100 * 1024 * 1024))),
            name if name.starts_with("sad") => Ok(ToolOutput::error("no such city")),
            "fail_five" if earlier >= 5 => Ok(ToolOutput::text("paid")),
            name if name.starts_with("fail") => {
                Err(ToolFailure::new(Cause::ConnectFailed, "The backend could not be reached.")
                    .with_detail("10.0.0.7:9000 refused"))
            }
            name if name.starts_with("wait") => {
                self.go_on.notified().await;
                Ok(ToolOutput::text("waited"))
            }
            // Its backend never comes up.
            name if name.starts_with("pending") => {
                call.cancelled.cancelled().await;
                Err(ToolFailure::new(Cause::CancelledBeforeStart, "The call was cancelled before the tool began."))
            }
            "pay" | "gone" => Ok(ToolOutput::text("paid")),
            _ => Ok(ToolOutput::text(call.arguments["text"].as_str().unwrap())),
        }
    }
}
