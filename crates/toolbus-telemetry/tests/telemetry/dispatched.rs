//! Calls that the real dispatcher handles.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use toolbus_core::bus::Delivery;
use toolbus_core::caller::Identity;
use toolbus_core::events::Discard;
use toolbus_core::failure::ToolFailure;
use toolbus_core::policy::{AgentPolicy, Capacity, Policy, PolicyHandle};
use toolbus_core::registry::Registry;
use toolbus_core::tool::{Executor, Tool, ToolCall, ToolOutput};
use toolbus_core::{AllArrived, Budgets, Clock, Dispatcher, DispatcherSettings, Gates, ReplyRules};
use toolbus_protocol::{Properties, Random, TraceContext, header};
use toolbus_testing::patience::eventually;
use toolbus_testing::recording_bus::RecordingBus;

use crate::observed::{hex, metrics, span};
use crate::support::{Daemon, SAMPLED, delivery, request, tool};

/// Runs until it is let go, and keeps the trace that it was given.
struct Waits {
    go: Arc<Semaphore>,
    traces: Arc<Mutex<Vec<TraceContext>>>,
}

impl Executor for Waits {
    async fn execute(&self, call: ToolCall) -> Result<ToolOutput, ToolFailure> {
        self.traces.lock().extend(call.trace);
        drop(self.go.acquire().await.unwrap());
        Ok(ToolOutput::text("done"))
    }
}

struct World {
    dispatcher: Dispatcher,
    bus: Arc<RecordingBus>,
    go: Arc<Semaphore>,
    traces: Arc<Mutex<Vec<TraceContext>>>,
}

impl World {
    fn new(daemon: &Daemon) -> Self {
        let (go, traces) = (Arc::new(Semaphore::new(0)), Arc::<Mutex<_>>::default());
        let registry = Registry::new();
        let executor = Waits { go: Arc::clone(&go), traces: Arc::clone(&traces) };
        registry.register(Tool::new(tool("slow"), executor)).unwrap();
        let replies = ReplyRules {
            reply_topics: vec!["tool.result".into()],
            request_topics: vec!["tool.invoke".into()],
            queue_prefix: "toolbus".into(),
            default_topic: "tool.result".into(),
            own_topics_only: false,
        };
        let settings = DispatcherSettings {
            name: "toolbus".into(),
            replies,
            budgets: Budgets { default: Duration::from_secs(60), max: Duration::from_secs(60) },
            max_body: 1_024,
            max_in_flight: 2,
            max_waiting: 4,
            redactor: Default::default(),
            ignores_unknown_servers: false,
            ledger: None,
            results: None,
            clock: Clock::SYSTEM,
            random: Random::SYSTEM,
        };
        let bus = Arc::<RecordingBus>::default();
        let (telemetry, load) = (Arc::clone(&daemon.telemetry), Arc::clone(&daemon.load));
        let default = AgentPolicy { max_in_flight: Some(2), max_queued: Some(4), ..AgentPolicy::default() };
        let policy = Policy { default, ..Policy::default() };
        let capacity = Capacity { max_in_flight: 2, max_waiting: 4 };
        let gates = Arc::new(Gates::new(PolicyHandle::new(registry, Identity::default(), policy, capacity)));
        let dispatcher =
            Dispatcher::new(settings, gates, bus.clone(), telemetry, Arc::new(Discard), load, Arc::new(AllArrived));
        Self { dispatcher, bus, go, traces }
    }
}

fn call(number: u32) -> Delivery {
    let properties = Properties {
        message_id: Some(format!("message-{number}")),
        reply_to: Some("caller".into()),
        headers: vec![(header::TRACEPARENT.into(), SAMPLED.into())],
        ..request()
    };
    let body = bytes::Bytes::from_static(br#"{"toolName":"slow","arguments":{}}"#);
    Delivery { size: body.len(), body, ..delivery(properties) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gauges_show_running_and_waiting_calls() {
    let variables = [("OTEL_TRACES_EXPORTER", "none"), ("OTEL_METRIC_EXPORT_INTERVAL", "20")];
    let (receiver, daemon) = Daemon::with_receiver(&variables).await;
    let world = World::new(&daemon);
    let mut calls = JoinSet::new();
    for number in 0..3 {
        let dispatcher = world.dispatcher.clone();
        calls.spawn(async move { dispatcher.handle(call(number)).await });
    }
    let shown = async |expected: [f64; 2]| {
        eventually("the gauges of calls", async || {
            let metrics = metrics(&receiver);
            let value = |name| metrics.get(name).and_then(|series| series.value(&[]));
            let seen = ["toolbus.calls.in_flight", "toolbus.calls.waiting"].map(value);
            (seen == expected.map(Some)).then_some(())
        })
        .await;
    };
    shown([2.0, 1.0]).await;
    world.go.add_permits(3);
    calls.join_all().await;
    shown([0.0, 0.0]).await;
    daemon.end().await;
    assert_eq!(metrics(&receiver)["rockbot.tool.invocations"].value(&[("status", "ok")]), Some(3.0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_trace_leads_from_the_sender_through_the_tool_to_the_reply() {
    let (receiver, daemon) = Daemon::with_receiver(&[]).await;
    let world = World::new(&daemon);
    world.go.add_permits(1);
    world.dispatcher.handle(call(1)).await;
    daemon.end().await;

    let spans = receiver.spans();
    let of = |name| {
        let span = span(&spans, name);
        format!("00-{}-{}-01", hex(&span.trace_id), hex(&span.span_id))
    };
    assert_eq!(hex(&span(&spans, "process").parent_span_id), "b7ad6b7169203331");
    assert_eq!(world.traces.lock()[0].traceparent(), of("execute_tool slow"));
    let replies = world.bus.sent();
    assert_eq!(replies[0].properties.header(header::TRACEPARENT), Some(of("publish reply").as_str()));
}
