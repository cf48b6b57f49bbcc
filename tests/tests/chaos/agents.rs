//! Unknown agent names, more than a daemon can keep.

use std::collections::HashMap;
use std::time::Duration;

use futures_util::StreamExt;
use lapin::options::{BasicConsumeOptions, BasicPublishOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Consumer};
use serde_json::{Value, json};
use toolbus_e2e::backend::Backend;
use toolbus_e2e::client::Client;
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::namespace::BrokerNamespace;
use toolbus_testing::patience::eventually;

use crate::turn;

const AGENTS: usize = 30_000;
/// Calls of one agent, that fill what is bounded and does not depend on names: tasks, buffers, kept replies.
const WARM_UP: usize = 10_000;
/// Agents of which the daemon may remember something: no further one costs anything.
const REMEMBERED: usize = 12_000;
/// Most memory that all agents may cost together, in KiB.
const MEMORY: usize = 24 * 1024;
/// Most memory that the agents beyond those remembered may cost together, in KiB: some 450 bytes each.
const MEMORY_BEYOND: usize = 8 * 1024;
/// CPU time that all of them may cost the daemon, in seconds: a development build on a slow machine.
const CPU_SECONDS: u64 = 60;
/// Unit of CPU time in Linux's `/proc`.
const TICKS_PER_SECOND: u64 = 100;
/// Longest wait for the replies to a part of them.
const PATIENCE: Duration = Duration::from_secs(240);
/// Calls of one tool that all of them may make together.
const BURST: usize = 50;

/// All agents are one class: with a tool set, a limited tool, and two calls at a time.
const POLICY: &str = r#"
[identity]
trust_headers = true
[agents.default]
toolsets = ["files"]
max_in_flight = 2
max_queued = 60
tool_rate_limits = { "files.stamp" = { rps = 0.0001, burst = 50 } }
[toolsets.files]
kind = "rest"
endpoints = ["stamp"]
"#;

/// Messages that agents without a section send, and replies that they get.
struct Crowd {
    site: BrokerNamespace,
    channel: Channel,
    replies: String,
    received: Consumer,
    codes: HashMap<String, usize>,
}

impl Crowd {
    async fn new(site: &BrokerNamespace, channel: Channel) -> Self {
        let own = QueueDeclareOptions { exclusive: true, ..QueueDeclareOptions::default() };
        let replies = format!("{}-answers", site.prefix);
        channel.queue_declare(replies.as_str().into(), own, FieldTable::default()).await.unwrap();
        let consume = BasicConsumeOptions { no_ack: true, ..BasicConsumeOptions::default() };
        let consumed = channel.basic_consume(replies.as_str().into(), "".into(), consume, FieldTable::default());
        let received = consumed.await.unwrap();
        Self { site: site.clone(), channel, replies, received, codes: HashMap::new() }
    }

    /// Each of these calls, in a session of its own, without waiting for anything in between; then their replies.
    async fn call(&mut self, agents: impl ExactSizeIterator<Item = String>) {
        let count = agents.len();
        let Self { site, channel, replies, received, codes } = self;
        let publish = async {
            for agent in agents {
                let body = json!({"toolName": "files.stamp", "toolCallId": agent, "sessionId": agent}).to_string();
                let mut headers = FieldTable::default();
                headers.insert("rb-source".into(), AMQPValue::LongString(agent.into()));
                let properties =
                    BasicProperties::default().with_reply_to(replies.as_str().into()).with_headers(headers);
                let (exchange, options) = (site.exchange.as_str().into(), BasicPublishOptions::default());
                let published =
                    channel.basic_publish(exchange, "tool.invoke".into(), options, body.as_bytes(), properties);
                published.await.unwrap();
            }
        };
        let receive = async {
            for _ in 0..count {
                let body: Value = serde_json::from_slice(&received.next().await.unwrap().unwrap().data).unwrap();
                *codes.entry(body["code"].as_str().unwrap_or("a result").to_owned()).or_default() += 1;
            }
        };
        let all = async { tokio::join!(publish, receive) };
        tokio::time::timeout(PATIENCE, all).await.unwrap();
    }
}

/// Memory of a process that is in use, in KiB.
fn resident(pid: u32) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// CPU time that a process has used, in seconds.
fn cpu(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    // The name of the program, in parentheses, may have spaces.
    let (_, fields) = stat.rsplit_once(')').unwrap();
    let ticks = |number: usize| -> u64 { fields.split_whitespace().nth(number).unwrap().parse().unwrap() };
    (ticks(11) + ticks(12)) / TICKS_PER_SECOND
}

#[tokio::test]
async fn thirty_thousand_agents_without_a_section_share_one_budget_and_leave_no_trace() {
    let _turn = turn().await;
    let (site, backend) = (BrokerNamespace::shared().await, Backend::start().await);
    let stamp = backend.endpoint("stamp", "/weather/stamp", r#"{"type":"object"}"#, "");
    let hold = backend.tool("hold", "/gate?id={id}", "timeout = \"100s\"");
    let daemon = Daemon::start(&site, &format!("{POLICY}{stamp}{hold}")).await;
    let (_connection, channel) = site.channel().await;
    let mut crowd = Crowd::new(&site, channel).await;
    let names = |range: std::ops::Range<usize>| range.map(|number| format!("agent-{number}"));

    crowd.call(std::iter::repeat_n("one".to_owned(), WARM_UP)).await;
    let (used, before) = (cpu(daemon.pid()), resident(daemon.pid()));
    crowd.call(names(0..REMEMBERED)).await;
    let remembered = resident(daemon.pid());
    crowd.call(names(REMEMBERED..AGENTS)).await;
    let (used, after) = (cpu(daemon.pid()) - used, resident(daemon.pid()));
    println!("{used} s; KiB: {before} with one agent, {remembered} with {REMEMBERED}, {after} with {AGENTS}");

    let codes = |code: &str| crowd.codes.get(code).copied().unwrap_or_default();
    // On a slow machine the backend holds some up, so that others find no slot.
    assert_eq!(codes("a result") + codes("overloaded") + codes("rate_limited"), WARM_UP + AGENTS, "{:?}", crowd.codes);
    assert!(codes("a result") <= BURST, "{:?}", crowd.codes);
    assert!(codes("rate_limited") > WARM_UP + AGENTS - 2 * BURST, "{:?}", crowd.codes);
    assert_eq!(backend.count("stamp"), codes("a result"));
    assert!(used < CPU_SECONDS, "{used} s");
    assert!(after < before + MEMORY, "{before} KiB with one agent, {after} KiB with {AGENTS}");
    assert!(after < remembered + MEMORY_BEYOND, "{remembered} KiB with {REMEMBERED} agents, {after} KiB with {AGENTS}");

    // Slots are shared, too: two run, sixty wait, and one has no room.
    let client = Client::connect(&site).await;
    let held: Vec<_> = (0..63)
        .map(|number| client.request("hold", &json!({"id": "held"})).header("rb-source", &format!("another-{number}")))
        .collect();
    for request in &held {
        client.send(request).await;
    }
    let refused = eventually("a refusal", async || client.received().into_iter().next()).await;
    eventually("two calls at the backend", async || (backend.count("held") >= 2).then_some(())).await;
    assert_eq!((refused.code().as_str(), backend.count("held")), ("overloaded", 2));
    backend.open();
    let mut passed = 0;
    for request in &held {
        passed += usize::from(client.reply(request).await.content() == "passed held");
    }
    assert_eq!(passed, 62);
    daemon.stop(&site).await;
}
