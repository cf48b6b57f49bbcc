//! One process of the daemon: the dispatcher, the control service and what feeds them, as the binary puts them together.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use toolbus_core::bus::{Bus, Ownership, Subscription};
use toolbus_core::caller::Identity;
use toolbus_core::events::Discard;
use toolbus_core::ledger::LedgerSettings;

use toolbus_core::policy::{AgentPolicy, Capacity, Policy, PolicyHandle};
use toolbus_core::telemetry::Load;
use toolbus_core::toolsets::SessionSets;
use toolbus_core::{
    About, AllArrived, Budgets, ControlService, Dispatcher, DispatcherSettings, Drained, Gates, ReplyRules, Service,
};
use toolbus_protocol::topic;
use toolbus_store::OpenError;

use crate::broker::SimBroker;
use crate::bus::SimBus;
use crate::context::ScheduleContext;
use crate::ledger::{LedgerStorage, SimLedger};
use crate::tools::{SimTools, ToolRuns};

/// Prefix of the daemon's queues.
pub(crate) const PREFIX: &str = "toolbus";
/// The queue of calls.
pub(crate) const INVOKE: &str = "toolbus.invoke";
/// The queue of its dead letters.
pub(crate) const DEAD_LETTERS: &str = "toolbus.invoke.dlq";
/// Time for which the ledger knows of a request: longer than any schedule lasts.
const TTL: Duration = Duration::from_hours(24);
/// Largest reply that the ledger keeps, in bytes.
const MAX_REPLY: usize = 64 * 1024;
/// Calls that run at a time, and as many wait.
const ROOM: usize = 6;

/// Objects that are there before a process, and outlive it.
#[derive(Clone)]
pub(crate) struct Surroundings {
    pub(crate) context: Arc<ScheduleContext>,
    pub(crate) broker: Arc<SimBroker>,
    pub(crate) executions: Arc<ToolRuns>,
    pub(crate) storage: LedgerStorage,
}

/// A process.
pub(crate) struct SimDaemon {
    pub(crate) bus: Arc<SimBus>,
    service: Arc<Service>,
    alive: Arc<AtomicBool>,
    consuming: JoinSet<()>,
    stop_receiving: CancellationToken,
}

impl SimDaemon {
    /// Starts a process of this name.
    ///
    /// # Errors
    ///
    /// If the file of the ledger cannot be opened.
    pub(crate) fn start(process: &str, around: &Surroundings) -> Result<Self, OpenError> {
        let context = &around.context;
        let bus = SimBus::new(process, context, &around.broker);
        let alive = Arc::new(AtomicBool::new(true));
        let tools = SimTools {
            context: Arc::clone(context),
            executions: Arc::clone(&around.executions),
            process: process.into(),
            alive: Arc::clone(&alive),
        };
        let ledger = SimLedger::open(&around.storage, context, &alive)?;
        let settings = settings(context, ledger);
        let every_agent = AgentPolicy { max_in_flight: Some(ROOM), max_queued: Some(ROOM), ..AgentPolicy::default() };
        let policy = Policy { default: every_agent, ..Policy::default() };
        let capacity = Capacity { max_in_flight: ROOM, max_waiting: ROOM };
        let gates = Gates::new(PolicyHandle::new(tools.registry(), Identity::default(), policy, capacity));
        let dispatcher = Dispatcher::new(
            settings.clone(),
            Arc::new(gates),
            Arc::clone(&bus) as Arc<dyn Bus>,
            Arc::new(Discard),
            Arc::new(Discard),
            Arc::<Load>::default(),
            Arc::new(AllArrived),
        );
        let about = About {
            name: settings.name,
            version: String::new(),
            config_digest: watch::Sender::new(String::new()).subscribe(),
            roles: Vec::new(),
            started: context.clock.now(),
        };
        let sessions = SessionSets::default();
        let control = ControlService::new(
            about,
            Arc::clone(&bus) as Arc<dyn Bus>,
            settings.replies,
            dispatcher.clone(),
            sessions,
        );
        let service = Arc::new(Service::new(dispatcher));
        let mut consuming = JoinSet::new();
        let calls = bus.consume(subscription(INVOKE, &[topic::TOOL_INVOKE], Ownership::Shared));
        let requests =
            bus.consume(subscription(&format!("{PREFIX}.{process}"), &[topic::TOOL_CANCEL], Ownership::Replica));
        let of_calls = Arc::clone(&service);
        consuming.spawn(async move { of_calls.serve_calls(calls).await });
        let of_requests = Arc::clone(&service);
        let stop_receiving = CancellationToken::new();
        let ended = stop_receiving.clone();
        consuming.spawn(async move { of_requests.serve_inbox(&control, requests, &ended).await });
        Ok(Self { bus, service, alive, consuming, stop_receiving })
    }

    /// Ends the process without a word. What was under way in it waits for ever for bus, tools and ledger, which is as good
    /// as gone, and is freed with the runtime.
    pub(crate) fn crash(self) {
        self.alive.store(false, Ordering::Relaxed);
        self.bus.kill();
    }

    /// Ends the process in order, as the binary does.
    pub(crate) async fn drain(mut self, patience: Duration) -> Drained {
        self.bus.stop_consuming().await;
        let drained = self.service.drain(patience).await;
        self.stop_receiving.cancel();
        while self.consuming.join_next().await.is_some() {}
        self.bus.close().await;
        self.alive.store(false, Ordering::Relaxed);
        drained
    }
}

fn settings(context: &ScheduleContext, ledger: SimLedger) -> DispatcherSettings {
    DispatcherSettings {
        name: PREFIX.to_owned(),
        replies: ReplyRules {
            reply_topics: vec!["tool.result.#".to_owned()],
            request_topics: vec![topic::TOOL_INVOKE.to_owned()],
            queue_prefix: PREFIX.to_owned(),
            default_topic: topic::TOOL_RESULT.to_owned(),
            own_topics_only: false,
        },
        budgets: Budgets { default: Duration::from_secs(20), max: Duration::from_secs(60) },
        max_body: 64 * 1024,
        max_in_flight: ROOM,
        max_waiting: ROOM,
        redactor: Default::default(),
        ignores_unknown_servers: false,
        ledger: Some(LedgerSettings { ledger: Arc::new(ledger), ttl: TTL, max_reply: MAX_REPLY }),
        results: None,
        clock: context.clock,
        random: context.chance.random(),
    }
}

fn subscription(queue: &str, topics: &[&str], ownership: Ownership) -> Subscription {
    let prefetch = u16::try_from(2 * ROOM).unwrap_or(u16::MAX);
    let topics = topics.iter().map(|topic| (*topic).to_owned()).collect();
    let is_inbox = ownership == Ownership::Replica;
    Subscription { queue: queue.to_owned(), topics, prefetch, max_body: usize::MAX, ownership, is_inbox }
}
