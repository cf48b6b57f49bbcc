//! Cost for calls with small results of splitting long ones: `cargo bench -p toolbus-core --bench small_results`.
//!
//! The same call with and without settings of results, in turn, in CPU time, so that a machine with other work gives
//! the same figures.

#![expect(clippy::unwrap_used, reason = "a measurement that cannot be made should fail")]

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, ready};
use serde_json::json;
use tokio_util::sync::CancellationToken;
use toolbus_core::caller::{AgentName, Identity};
use toolbus_core::events::Discard;
use toolbus_core::failure::ToolFailure;
use toolbus_core::policy::{AgentPolicy, Capacity, Policy, PolicyHandle};
use toolbus_core::registry::Registry;
use toolbus_core::results::{LongResult, ResultBudget, ResultSettings, ResultSplitter, SplitResult};
use toolbus_core::telemetry::Load;
use toolbus_core::tool::{Executor, Tool, ToolCall, ToolDescriptor, ToolOutput};
use toolbus_core::{
    AllArrived, Budgets, Clock, Dispatcher, DispatcherSettings, Gates, InnerCall, InnerOrigin, Invoker as _, ReplyRules,
};
use toolbus_protocol::Random;
use toolbus_testing::recording_bus::RecordingBus;

/// Enough for the ticks of some milliseconds in which the kernel counts CPU time.
const CALLS: u32 = 100_000;
const ROUNDS: usize = 11;

#[derive(Debug)]
struct Unused;

impl ResultSplitter for Unused {
    fn split(&self, _: LongResult) -> BoxFuture<'static, Result<SplitResult, String>> {
        ready(Err("no result is long".to_owned())).boxed()
    }
}

struct Echo;

impl Executor for Echo {
    async fn execute(&self, _: ToolCall) -> Result<ToolOutput, ToolFailure> {
        Ok(ToolOutput::text("a small result"))
    }
}

fn dispatcher(results: Option<ResultSettings>) -> Dispatcher {
    let settings = DispatcherSettings {
        name: "toolbus".to_owned(),
        replies: ReplyRules {
            reply_topics: vec!["tool.result.#".to_owned()],
            request_topics: vec!["tool.invoke".to_owned()],
            queue_prefix: "bench".to_owned(),
            default_topic: "tool.result".to_owned(),
            own_topics_only: false,
        },
        budgets: Budgets { default: Duration::from_secs(60), max: Duration::from_secs(120) },
        max_body: 1024 * 1024,
        max_in_flight: 64,
        max_waiting: 64,
        redactor: Default::default(),
        ignores_unknown_servers: false,
        ledger: None,
        results,
        clock: Clock::SYSTEM,
        random: Random::SYSTEM,
    };
    let unlisted = AgentPolicy { max_in_flight: Some(64), max_queued: Some(64), ..AgentPolicy::default() };
    let capacity = Capacity { max_in_flight: 64, max_waiting: 64 };
    let registry = Registry::default();
    registry.register(Tool::new(ToolDescriptor::new("echo", "bench", "local"), Echo)).unwrap();
    let policy = Policy { default: unlisted, ..Policy::default() };
    let gates = Gates::new(PolicyHandle::new(registry, Identity::default(), policy, capacity));
    let discard = Arc::new(Discard);
    let load = Arc::<Load>::default();
    Dispatcher::new(
        settings,
        gates.into(),
        Arc::<RecordingBus>::default(),
        discard.clone(),
        discard,
        load,
        Arc::new(AllArrived),
    )
}

/// CPU time of this thread.
fn cpu() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap())
}

/// CPU time of a call, in nanoseconds.
async fn measure(dispatcher: &Dispatcher) -> f64 {
    let caller = Arc::new(dispatcher.policy().vouched(AgentName::parse("ana").ok(), "s".into()));
    let began = cpu();
    for _ in 0..CALLS {
        let call = InnerCall {
            idempotency_key: None,
            origin: InnerOrigin::McpClient,
            caller: Arc::clone(&caller),
            call_id: "call_1".into(),
            server: None,
            tool: "echo".to_owned(),
            arguments: Some(json!({"text": "small"}).to_string()),
            deadline: None,
            cancelled: CancellationToken::new(),
            trace: None,
            around: None,
            progress: None,
        };
        std::hint::black_box(dispatcher.invoke(call).await).unwrap();
    }
    (cpu() - began).as_secs_f64() * 1e9 / f64::from(CALLS)
}

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let splitter = Arc::new(Unused);
        let budget = ResultBudget::new(64 << 20, 128 << 20);
        let topics = [("tool.invoke.mcp".to_owned(), 0)].into();
        let results = ResultSettings { threshold: 64_000, models: Vec::new(), topics, splitter, budget };
        let (with, without) = (dispatcher(Some(results)), dispatcher(None));
        let (mut first, mut second) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            first.push(measure(&without).await);
            second.push(measure(&with).await);
        }
        for (name, times) in [("without", &mut first), ("with", &mut second)] {
            times.sort_by(f64::total_cmp);
            let at = |part: usize| times.get(times.len() * part / 4).copied().unwrap_or_default();
            println!("{name} [memory]: median {:.0} ns a call, quartiles {:.0} to {:.0}", at(2), at(1), at(3));
        }
    });
}
