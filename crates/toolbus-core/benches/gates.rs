//! Cost of the gates: 1 000 agents, 5 000 tools, 200 patterns for each agent.
//!
//! `cargo bench -p toolbus-core`. Allocations are counted: none may depend on the number of tools or patterns.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a measurement that cannot be made should fail")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use divan::{AllocProfiler, Bencher};
use serde_json::json;
use toolbus_core::caller::{AgentName, Caller, Identity};
use toolbus_core::failure::ToolFailure;
use toolbus_core::pattern::Pattern;
use toolbus_core::policy::{AgentPolicy, Allowed, Capacity, Policy, PolicyHandle};
use toolbus_core::rate::{Rate, RateRule, RateRules};
use toolbus_core::recipients::{AllowedRecipients, Compare, Outbound, RecipientPath};
use toolbus_core::registry::{Rank, Registry};
use toolbus_core::tool::{Executor, Tool, ToolCall, ToolDescriptor, ToolOutput};
use toolbus_core::{Gates, ToolRef};

use toolbus_core::Clock;
use toolbus_protocol::Envelope;

#[global_allocator]
static ALLOCATOR: AllocProfiler = AllocProfiler::system();

const AGENTS: usize = 1_000;
const TOOLS: usize = 5_000;
const PATTERNS: usize = 200;
const SOURCES: usize = 100;

struct Never;

impl Executor for Never {
    async fn execute(&self, _: ToolCall) -> Result<ToolOutput, ToolFailure> {
        Ok(ToolOutput::default())
    }
}

/// Names such as `files_17_read_4217`: fifty tools in each of a hundred sources.
fn name(number: usize) -> String {
    let verb = ["read", "write", "list", "send", "search"][number % 5];
    format!("files_{}_{verb}_{number}", number % SOURCES)
}

fn tool(number: usize, revision: usize) -> Tool {
    let schema = json!({
        "type": "object", "required": ["to"],
        "properties": {"to": {"type": "string"}, "text": {"type": "string", "maxLength": 1000}},
    });
    let mut descriptor = ToolDescriptor::new(name(number), format!("source_{}", number % SOURCES), "local");
    descriptor.description = format!("Tool {number}, revision {revision}");
    descriptor.parameters = Some(Arc::new(schema));
    Tool::new(descriptor, Never)
}

fn source(number: usize, revision: usize) -> Vec<Tool> {
    (0..TOOLS).filter(|tool| tool % SOURCES == number).map(|number| tool(number, revision)).collect()
}

/// Half exact names, the rest globs that fix the beginning, the end, or something between.
fn patterns(agent: usize) -> Vec<Pattern> {
    let text = |number: usize| {
        let index = agent * 7 + number * 13;
        match number % 10 {
            0..5 => name(index % TOOLS),
            5..8 => format!("files_{}_{}*", index % SOURCES, ["r", "w", "l"][index % 3]),
            8 => format!("*_{}", index % TOOLS),
            _ => format!("files_?{}_se*_{}*", index % 10, index % 100),
        }
    };
    (0..PATTERNS).map(|number| Pattern::parse(&text(number)).unwrap()).collect()
}

fn agent(number: usize) -> AgentName {
    AgentName::parse(&format!("agent-{number}")).unwrap()
}

fn policy() -> Policy {
    let rate = |pattern: &str| RateRule::new(Pattern::parse(pattern).unwrap(), Rate::new(1e6, 1_000_000).unwrap());
    let section = |number: usize| AgentPolicy {
        tools: Allowed::Only(patterns(number)),
        rates: Arc::new(RateRules::new((0..20).map(|n| rate(&format!("files_{n}_*"))).collect()).unwrap()),
        recipients: Arc::new(
            [("chat".into(), AllowedRecipients::new(Compare::Digits, &["+573001112233"]).unwrap())].into(),
        ),
        ..AgentPolicy::default()
    };
    let outbound = Outbound {
        channel: "chat".into(),
        tools: vec![Pattern::parse("*_send_*").unwrap()],
        recipients: vec![RecipientPath::parse("/to").unwrap()],
        compare: Compare::Digits,
    };
    Policy {
        agents: (0..AGENTS).map(|number| (agent(number), section(number))).collect(),
        outbound: [("chat".into(), Arc::new(outbound))].into(),
        ..Policy::default()
    }
}

fn access() -> PolicyHandle {
    let registry = Registry::new();
    registry.register_all((0..TOOLS).map(|number| tool(number, 0)).collect()).unwrap();
    PolicyHandle::new(registry, Identity::default(), policy(), Capacity { max_in_flight: 256, max_waiting: 1024 })
}

/// A sender's envelope, and the names of tools that it may call.
fn senders(access: &PolicyHandle) -> Vec<(Envelope, Vec<String>)> {
    let sender = |number| {
        let name = agent(number);
        let effective = access.effective(&Caller::agent(name.clone()));
        let tools =
            effective.tools().iter().step_by(7).map(|allowed| allowed.tool.descriptor.name.to_string()).collect();
        (Envelope { source: Some(name.to_string()), ..Envelope::default() }, tools)
    };
    (0..AGENTS).step_by(10).map(sender).collect()
}

/// Steps 2 and 4 to 7 of a call that passes.
#[divan::bench(sample_count = 200, sample_size = 500)]
fn gates_of_a_call(bencher: Bencher<'_, '_>) {
    let gates = Gates::new(access());
    let senders = senders(gates.policy());
    let arguments = Some(r#"{"to": "+57 300 111 2233", "text": "hello"}"#);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let sharer: Arc<str> = "ana".into();
    let next = AtomicUsize::new(0);
    let call = || {
        let number = next.fetch_add(1, Ordering::Relaxed);
        let (envelope, tools) = &senders[number % senders.len()];
        let caller = gates.policy().identify(None, envelope, "tool.invoke").unwrap();
        let effective = gates.enter(&caller);
        let allowed =
            gates.resolve(&effective, &caller, ToolRef::named(&tools[number / senders.len() % tools.len()])).unwrap();
        let deadline = Clock::SYSTEM.now() + Duration::from_secs(60);
        let checked = gates.arguments(&effective, allowed, arguments, Arc::clone(&sharer), deadline);
        let arguments = runtime.block_on(checked).unwrap();
        gates.recipients(&effective, allowed, &arguments).unwrap();
        gates.rate(&effective, allowed, Clock::SYSTEM.now()).unwrap();
    };
    (0..50_000).for_each(|_| call());
    bencher.bench(call);
}

/// The same without the arguments, whose cost is that of their size and schema.
#[divan::bench(sample_count = 200, sample_size = 500)]
fn gates_of_a_call_but_arguments(bencher: Bencher<'_, '_>) {
    let gates = Gates::new(access());
    let senders = senders(gates.policy());
    let arguments = json!({"to": "+57 300 111 2233"});
    let arguments = arguments.as_object().unwrap();
    let next = AtomicUsize::new(0);
    let call = || {
        let number = next.fetch_add(1, Ordering::Relaxed);
        let (envelope, tools) = &senders[number % senders.len()];
        let caller = gates.policy().identify(None, envelope, "tool.invoke").unwrap();
        let effective = gates.enter(&caller);
        let allowed =
            gates.resolve(&effective, &caller, ToolRef::named(&tools[number / senders.len() % tools.len()])).unwrap();
        gates.recipients(&effective, allowed, arguments).unwrap();
        gates.rate(&effective, allowed, Clock::SYSTEM.now()).unwrap();
    };
    (0..50_000).for_each(|_| call());
    bencher.bench(call);
}

/// One source of fifty tools changes its definitions, or is replaced by another.
#[divan::bench(sample_count = 30, sample_size = 1, args = ["same names", "other names"])]
fn rebuild_after_a_source_changed(bencher: Bencher<'_, '_>, change: &str) {
    let access = access();
    for tool in source(7, 0) {
        assert!(access.registry().unregister(&tool.descriptor.name));
    }
    let mut revision = 0;
    bencher.bench_local(|| {
        revision += 1;
        let tools = match change {
            "same names" => source(7, revision),
            _ => (0..50)
                .map(|number| tool(TOOLS + revision * 50 + number, revision))
                .map(|t| with_source(t, 7))
                .collect(),
        };
        access.registry().publish(Rank::Configured, &"source_7".into(), tools).unwrap();
        access.refresh();
        for number in 0..AGENTS {
            assert!(!access.effective(&Caller::agent(agent(number))).is_empty());
        }
    });
}

fn with_source(mut tool: Tool, number: usize) -> Tool {
    Arc::make_mut(&mut tool.descriptor).source = format!("source_{number}").into();
    tool
}

/// Everything at once, as at a start or a reload.
#[divan::bench(sample_count = 10, sample_size = 1)]
fn build_everything() {
    let access = access();
    for number in 0..AGENTS {
        assert!(!access.effective(&Caller::agent(agent(number))).is_empty());
    }
}

/// Resident memory of this process, in bytes.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<usize>().ok()).unwrap_or_default() * 1024
}

/// Builds every set that calls use, and prints the memory of all of them, without the tools and the policy as read.
fn memory() {
    let registry = Registry::new();
    registry.register_all((0..TOOLS).map(|number| tool(number, 0)).collect()).unwrap();
    let policy = policy();
    let before = resident();
    let capacity = Capacity { max_in_flight: 256, max_waiting: 1024 };
    let gates = Gates::new(PolicyHandle::new(registry, Identity::default(), policy, capacity));
    for number in 0..AGENTS {
        let caller = Caller::agent(agent(number));
        let effective = gates.enter(&caller);
        for allowed in effective.tools() {
            let _ = gates.rate(&effective, allowed, Clock::SYSTEM.now());
        }
    }
    let held = resident().saturating_sub(before);
    println!(
        "memory of all sets: {:.1} MB for {AGENTS} agents, {TOOLS} tools, {PATTERNS} patterns each",
        held as f64 / 1e6
    );
}

fn main() {
    memory();
    divan::main();
}
