//! Parts that tests of several families of tools have in common.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde_json::Value;
use tokio::sync::mpsc;
use toolbus_broker::embedded::Embedded;
use toolbus_core::bus::{Bus, Delivery, Ownership, Subscription};
use toolbus_core::caller::{AgentName, Caller, Identity};
use toolbus_core::events::Discard;
use toolbus_core::failure::ToolFailure;
use toolbus_core::ledger::{Ledger, LedgerSettings};
use toolbus_core::policy::{AgentPolicy, Capacity, Policy, PolicyHandle};
use toolbus_core::registry::Registry;
use toolbus_core::tool::{Executor, Tool, ToolCall, ToolOutput};
use toolbus_core::{AllArrived, Budgets, Clock, Dispatcher, DispatcherSettings, Gates, ReplyRules};
use toolbus_protocol::Random;
use toolbus_store::MemoryStore;
use toolbus_testing::faulty_store::FaultyStore;

/// Time of a call.
const TIME: Duration = Duration::from_secs(120);

/// A tool that is found and not run.
pub(crate) struct UnusedExecutor;

impl Executor for UnusedExecutor {
    async fn execute(&self, _: ToolCall) -> Result<ToolOutput, ToolFailure> {
        Ok(ToolOutput::default())
    }
}

/// Agents with these sections, and room for their calls.
pub(crate) fn policy<const N: usize>(registry: Registry, agents: [(&str, AgentPolicy); N]) -> PolicyHandle {
    let agents = agents.map(|(name, section)| (AgentName::parse(name).unwrap(), section)).into();
    let capacity = Capacity { max_in_flight: 64, max_waiting: 64 };
    PolicyHandle::new(registry, Identity::default(), Policy { agents, ..Policy::default() }, capacity)
}

/// A dispatcher of the tools of a policy, with bodies of at most 1 MiB.
pub(crate) fn dispatcher(
    policy: &PolicyHandle,
    bus: &Embedded,
    ledger: Option<Arc<dyn Ledger>>,
    clock: Clock,
) -> Dispatcher {
    let settings = DispatcherSettings {
        name: "toolbus".to_owned(),
        replies: reply_rules(),
        budgets: Budgets { default: Duration::from_secs(60), max: Duration::from_secs(60) },
        max_body: 1024 * 1024,
        max_in_flight: 64,
        max_waiting: 64,
        redactor: Default::default(),
        ignores_unknown_servers: false,
        ledger: ledger.map(|ledger| LedgerSettings {
            ledger,
            ttl: Duration::from_secs(24 * 60 * 60),
            max_reply: 1024 * 1024,
        }),
        results: None,
        clock,
        random: Random::SYSTEM,
    };
    let gates = Arc::new(Gates::new(policy.clone()));
    let bus: Arc<dyn Bus> = Arc::new(bus.clone());
    Dispatcher::new(settings, gates, bus, Arc::new(Discard), Arc::new(Discard), Arc::default(), Arc::new(AllArrived))
}

/// Which addresses replies may go to.
pub(crate) fn reply_rules() -> ReplyRules {
    ReplyRules {
        reply_topics: vec!["agent.response.#".to_owned()],
        request_topics: vec!["tool.invoke".to_owned()],
        queue_prefix: "bus".to_owned(),
        default_topic: "tool.result".to_owned(),
        own_topics_only: false,
    }
}

/// The messages of these topics, from a queue of this name.
pub(crate) fn queue(bus: &Embedded, name: &str, topics: &[&str], max_body: usize) -> mpsc::Receiver<Delivery> {
    bus.connect().consume(Subscription {
        queue: name.to_owned(),
        topics: topics.iter().map(|topic| (*topic).to_owned()).collect(),
        prefetch: 1000,
        max_body,
        ownership: Ownership::Shared,
        is_inbox: false,
    })
}

/// An agent of this name.
pub(crate) fn agent(name: &str) -> Caller {
    Caller::agent(AgentName::parse(name).unwrap())
}

/// Runs one of these tools for a caller, without the dispatcher.
pub(crate) fn run(
    tools: &[Tool],
    caller: Caller,
    name: &str,
    arguments: Value,
    clock: Clock,
) -> BoxFuture<'static, Result<ToolOutput, ToolFailure>> {
    let tool = tools.iter().find(|tool| &*tool.descriptor.name == name).unwrap();
    let call = ToolCall {
        deadline: clock.now() + TIME,
        ..ToolCall::new(name, caller, serde_json::from_value(arguments).unwrap(), TIME)
    };
    Arc::clone(&tool.executor).execute_boxed(call)
}

/// A store at a distance, which counts and fails.
pub(crate) type TestStore = FaultyStore<MemoryStore>;
