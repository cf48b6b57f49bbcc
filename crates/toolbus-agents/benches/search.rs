//! Cost of searching services and tools, in CPU time, so that a machine with other work gives the same figures: `cargo
//! bench -p toolbus-agents --bench search`.

#![expect(clippy::unwrap_used, reason = "a measurement that cannot be made should fail")]

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use toolbus_agents::{CallerSearch, SearchSources};
use toolbus_core::HintSource as _;
use toolbus_core::caller::{AgentName, Caller, Identity};
use toolbus_core::failure::ToolFailure;
use toolbus_core::policy::{Capacity, Policy, PolicyHandle};
use toolbus_core::registry::Registry;
use toolbus_core::tool::{Executor, Tool, ToolCall, ToolDescriptor, ToolOutput};
use toolbus_protocol::{AgentCard, AgentSkill};

/// Tools of a server.
const TOOLS: usize = 10;
/// Words of a description.
const WORDS: usize = 20;
/// Different words of all descriptions, the first of them the most frequent.
const VOCABULARY: usize = 2_000;
/// Runs of which the mean is taken.
const RUNS: u32 = 2_000;
/// Text that is searched for: rare words, frequent ones, and function words.
const QUERY: &str = "Please w1999 the w3 and w4 of w700, with w1 w2 for my w1200";

struct Never;

impl Executor for Never {
    async fn execute(&self, _: ToolCall) -> Result<ToolOutput, ToolFailure> {
        Ok(ToolOutput::default())
    }
}

/// A description: words of which low numbers are frequent.
fn text(number: usize) -> String {
    let mut state = number as u64 + 1;
    let words = (0..WORDS).map(|_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let share = (state >> 33) as f64 / f64::from(1_u32 << 31);
        format!("w{}", (share * share * VOCABULARY as f64) as usize)
    });
    words.collect::<Vec<_>>().join(" ")
}

/// So many servers, and so many agents of three skills each, all of which the caller may use.
fn search(servers: usize, agents: usize) -> (CallerSearch, PolicyHandle) {
    let registry = Registry::new();
    let of_servers = (0..servers * TOOLS).map(|number| {
        let server = format!("server-{}", number / TOOLS);
        let source = format!("mcp:{server}");
        let (server, description) = (Some(server.into()), text(number));
        ToolDescriptor { server, description, ..ToolDescriptor::new(format!("tool_{number}"), source, "mcp") }
    });
    let invoke = ToolDescriptor::new("invoke_agent", "a2a", "local");
    let tools = of_servers.chain([invoke]).map(|tool| Tool::new(tool, Never));
    registry.register_all(tools.collect()).unwrap();
    let capacity = Capacity { max_in_flight: 64, max_waiting: 64 };
    let policy = PolicyHandle::new(registry, Identity::default(), Policy::default(), capacity);
    let skill = |number: usize| AgentSkill {
        id: format!("skill-{number}"),
        description: Some(text(number)),
        ..AgentSkill::default()
    };
    let cards: Vec<AgentCard> = (0..agents)
        .map(|number| AgentCard {
            agent_name: format!("agent-{number}"),
            description: Some(text(1_000_000 + number)),
            skills: (0..3).map(|part| skill(2_000_000 + 3 * number + part)).collect(),
            ..AgentCard::default()
        })
        .collect();
    let sources = SearchSources {
        summaries: Arc::new(|server| Some(format!("What {server} is for, in the words of its operator"))),
        agents: Arc::new(move |_| cards.clone()),
        version: Arc::new(|| 0),
    };
    (CallerSearch::new(&policy, sources), policy)
}

/// CPU time of this thread.
fn cpu() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap())
}

/// CPU time of the first run, which makes the index, and the mean of those after it, in milliseconds.
fn measured(mut run: impl FnMut()) -> (f64, f64) {
    let began = cpu();
    run();
    let first = cpu() - began;
    let began = cpu();
    (0..RUNS).for_each(|_| run());
    (first.as_secs_f64() * 1e3, (cpu() - began).as_secs_f64() * 1e3 / f64::from(RUNS))
}

fn main() {
    let caller = Caller::agent(AgentName::parse("ana").unwrap());
    println!("| | first, with the index | mean |");
    let row = |name: &str, (first, mean): (f64, f64)| println!("| {name} | {first:.1} ms | {mean:.3} ms |");
    let (all, policy) = search(500, 1_000);
    row(
        "search_known_services, 500 servers with 5 000 tools, 1 000 agents",
        measured(|| {
            black_box(all.find_services(&caller, black_box(QUERY))).unwrap();
        }),
    );
    row(
        "search_tools, 5 000 tools",
        measured(|| {
            black_box(all.find_tools(&caller, black_box(QUERY))).unwrap();
        }),
    );
    row(
        "tool.hints, 500 servers with 5 000 tools, 1 000 agents",
        measured(|| {
            black_box(all.hints(&caller, &policy.effective(&caller), black_box(QUERY)));
        }),
    );
    let (few, policy) = search(30, 0);
    row(
        "tool.hints, 30 servers with 300 tools",
        measured(|| {
            black_box(few.hints(&caller, &policy.effective(&caller), black_box(QUERY)));
        }),
    );
    row(
        "search_tools, 300 tools",
        measured(|| {
            black_box(few.find_tools(&caller, black_box(QUERY))).unwrap();
        }),
    );
}
